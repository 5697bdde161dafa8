"""Linear ListNet (Cao et al. 2007), by gradient or, as a certified convex problem, by L-BFGS."""

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.losses import listnet_loss
from torchrank.rankers.core.rounds import start_rounds
from torchrank.rankers.neural import LinearScorer, NeuralRanker
from torchrank.solvers.linear.lbfgs import LBFGS, lbfgs_step

MEMORY = 30  # moves remembered by L-BFGS


class ListNet(NeuralRanker):
    """Linear scores s = Xw; minimises the mean over lists of the cross entropy of softmax(labels) and softmax(s), plus
    l2/2 |w|^2. Lists with one distinct label add nothing.

    `solver="lbfgs"` goes by rounds on global sums in float64 until the largest gradient entry is below `tolerance`;
    `solver="gradient"` is Adam on batches.
    """

    scorer: LinearScorer
    moves: Tensor
    changes: Tensor

    def __init__(
        self,
        num_features: int,
        solver: str = "lbfgs",
        l2: float = 1e-4,
        transform: str | dict | list | None = "standard",
        rounds: int = 500,
        tolerance: float = 1e-6,
        lr: float = 1e-2,
    ):
        if solver not in ("lbfgs", "gradient"):
            raise ValueError(f"unknown solver {solver!r}: choose lbfgs or gradient")
        super().__init__(num_features, "linear", "listnet", transform, lr=lr, weight_decay=l2)
        self.l2, self.tolerance, self.rounds = l2, tolerance, rounds
        self.by_rounds = self.certified = solver == "lbfgs"
        self._latest: tuple[Tensor, Tensor, Tensor] | None = None  # point, value, gradient after the last round
        if self.by_rounds:
            start_rounds(self)
            self.scorer.double().requires_grad_(False)
            for name in ("moves", "changes"):
                self.register_buffer(name, torch.zeros(MEMORY, self.transform.num_outputs, dtype=torch.float64))

    def inputs_sized(self) -> None:
        super().inputs_sized()
        if self.by_rounds and self.moves.shape[1] != self.transform.num_outputs:
            for name in ("moves", "changes"):
                self.resize(name, (MEMORY, self.transform.num_outputs))

    def prepare(self) -> None:
        self._latest = None
        if self.by_rounds:
            for tensor in (self.scorer.weight, self.moves, self.changes):
                tensor.zero_()

    def round(self) -> bool:
        state = LBFGS(self.scorer.weight.detach().clone(), self.moves, self.changes)
        if self._latest is None or not torch.equal(self._latest[0], state.point):
            self._latest = (state.point, *self.objective(state.point))
        new, value, gradient = lbfgs_step(state, self.objective, *self._latest[1:])
        stuck = torch.equal(new.point, state.point)
        self._latest = (new.point, value, gradient)
        slope = float(gradient.abs().max())
        self.certificate = {"gradient": slope, "tolerance": self.tolerance}
        if stuck and slope > self.tolerance:
            rank_zero_warn(f"no step decreases the loss, at a gradient of {slope:.1e}: model.transform=standard helps")
        self.log("train/loss", value, prog_bar=True)
        self.log("train/gradient", slope)
        self.scorer.weight.copy_(new.point)
        self.moves.copy_(new.moves)
        self.changes.copy_(new.changes)
        return stuck or slope <= self.tolerance

    def objective(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient of the global objective at `weight`."""

        def sums(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            with torch.enable_grad():
                point = weight.clone().requires_grad_()
                scores = batch.x.to(dtype=torch.float64) @ point
                entries = batch.at_entries(scores)
                loss = listnet_loss(entries, batch.labels, batch.offsets, max_length=batch.max_length).sum()
                (gradient,) = torch.autograd.grad(loss, point)
            return loss.detach(), gradient, torch.tensor(float(batch.num_lists), device=loss.device)

        loss, gradient, lists = self.total(sums)
        return loss / lists + self.l2 / 2 * weight.square().sum(), gradient / lists + self.l2 * weight

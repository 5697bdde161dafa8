"""Linear ListNet (Cao et al. 2007), by gradient or, as a certified convex problem, by L-BFGS."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import NumericalWarning, check_choice, check_number
from torchrank.functional.lists import Lists
from torchrank.functional.losses.softmax import label_shares
from torchrank.functional.ragged import has_pairs, per_entry, segment_softmax, segment_sum, wide
from torchrank.rankers.core.optimizers import Option
from torchrank.rankers.core.ranker import TransformOption, warn
from torchrank.rankers.core.rounds import Certificate, Round
from torchrank.rankers.neural.linear import LinearScorer
from torchrank.rankers.neural.ranker import NeuralRanker
from torchrank.solvers.linear.lbfgs import LBFGS, Scaling, lbfgs_step, unscaled
from torchrank.solvers.linear.many_models import listnet_gradient
from torchrank.solvers.linear.scores import add_gradient, entry_scores

MEMORY = 30  # moves remembered by L-BFGS
WIDEST = 1024  # features of which all products are summed
SAMPLED = 2**14  # entries that are enough for these products, or
FOR_EACH = 32  # entries for each feature if those are more


class ListNet(NeuralRanker):
    """Linear scores s = Xw; minimises the mean over lists of the cross entropy of softmax(labels) and softmax(s), plus
    l2/2 |w|^2. Lists with one distinct label add nothing.

    Args:
        num_features: columns of the rows.
        solver: lbfgs, by rounds on global sums in float64 until the certificate holds; or gradient, on batches.
        l2: weight of the penalty.
        transform: of the features, see `make_transform`.
        rounds: most rounds of lbfgs.
        tolerance: lbfgs ends when the largest gradient entry is below it.
        lr: learning rate of solver="gradient".
        optimizer: of solver="gradient": a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: of solver="gradient": a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": ...}.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> ranker = ListNet(1).fit(lists)
        >>> ranker.certificate.proved, ranker.rank(x, offsets)
        (True, tensor([1, 2, 0]))
    """

    scorer: LinearScorer
    moves: Tensor
    changes: Tensor

    def __init__(
        self,
        num_features: int,
        solver: str = "lbfgs",
        l2: float = 1e-4,
        transform: TransformOption = "auto",
        rounds: int = 500,
        tolerance: float = 1e-6,
        lr: float = 1e-2,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
    ):
        check_choice(("lbfgs", "gradient"), solver=solver)
        check_number("> 0", tolerance=tolerance)
        super().__init__(
            num_features,
            "linear",
            "listnet",
            transform,
            lr=lr,
            weight_decay=l2,
            optimizer=optimizer,
            scheduler=scheduler,
        )
        self.l2, self.tolerance, self.certified = l2, tolerance, solver == "lbfgs"
        if solver == "lbfgs":
            self.use_rounds(rounds)
            self.scorer.double().requires_grad_(False)
            for name in ("moves", "changes"):
                self.register_buffer(name, torch.zeros(MEMORY, self.transform.num_outputs, dtype=torch.float64))

    def start(self, lists: TrainingLists) -> None:
        super().start(lists)
        if self.by_rounds:
            zeros = lists.zeros(MEMORY, self.transform.num_outputs)
            store(self.scorer, weight=zeros[0])
            store(self, moves=zeros, changes=zeros)

    def open(self, lists: TrainingLists) -> None:
        super().open(lists)
        if self.by_rounds:
            self.kept.scaling = self._scaling(lists)

    def _scaling(self, lists: TrainingLists) -> Scaling:
        """The inverse of the Hessian at w = 0, the mean covariance of a list: raw features are alike or far apart in
        scale, and then the gradient alone points nowhere. Of many lists some tell enough, at equal distances. Not for
        sparse rows, nor for so many features that the pass costs more than it saves."""
        width = self.transform.num_outputs
        every = max(1, lists.num_entries // max(SAMPLED, FOR_EACH * width))
        if lists.is_sparse or width > WIDEST:
            return unscaled

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            if every > 1:
                batch = batch.take((batch.query % every == 0).nonzero().flatten())[0]
            rows, lengths = wide(batch.dense), wide(batch.offsets.diff()).clamp(min=1)
            means = segment_sum(rows, batch.offsets) / lengths[:, None]
            share = (has_pairs(batch.labels, batch.offsets) / lengths).sqrt()[:, None]
            rows = (rows - per_entry(means, batch.offsets, len(rows))) * per_entry(share, batch.offsets, len(rows))
            into[0].addmm_(rows.T, rows)
            into[1].add_(batch.num_lists)

        scatter, number = lists.total(add, into=(lists.zeros(width, width), lists.zeros()))
        hessian = scatter / number.clamp(min=1)
        ridge = max(self.l2, 1e-12) + 1e-10 * float(hessian.diagonal().mean())
        factor = torch.linalg.cholesky(hessian + ridge * torch.eye(width, dtype=hessian.dtype, device=hessian.device))
        return lambda vectors, numbers: torch.cholesky_solve(vectors.T, factor).T

    def round(self, lists: TrainingLists, number: int) -> Round:
        state = LBFGS(self.scorer.weight.detach().clone(), self.moves, self.changes)

        def objective(weight: Tensor) -> tuple[Tensor, Tensor]:
            return self.objective(lists, weight)

        value, gradient = getattr(self.kept, "slopes", None) or objective(state.point)
        new, value, gradient, slope, moved = lbfgs_step(state, objective, value, gradient, self.kept.scaling)
        stuck = not moved
        if stuck and slope > self.tolerance:
            warn(
                f"no step decreases the loss at a gradient of {slope:.1e}: use model.transform=standard",
                NumericalWarning,
            )
        store(self.scorer, weight=new.point)
        store(self, moves=new.moves, changes=new.changes)
        self.kept.slopes = (value, gradient)
        certificate = Certificate("gradient", slope, self.tolerance)
        return Round(stuck or certificate.proved, {"train/loss": value, "train/gradient": slope}, certificate)

    def objective(self, lists: TrainingLists, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient of the global objective at `weight`."""
        goals = self._goals(lists)
        place = count()

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            number = next(place)
            if number == len(goals):  # the first pass over these lists
                goals.append(Goal.of(batch.labels, batch.offsets, batch.weights))
            losses, slopes = goals[number](entry_scores(batch, weight[None], per_topic=False), batch.offsets)
            into[0].add_(losses.sum())
            add_gradient(batch, slopes, into[1], per_topic=False)
            into[2].add_(batch.num_lists)

        loss, gradient, number = lists.total(add, into=(lists.zeros(), lists.zeros(1, len(weight)), lists.zeros()))
        return loss / number + self.l2 / 2 * weight.square().sum(), gradient[0] / number + self.l2 * weight

    def _goals(self, lists: TrainingLists) -> list[Goal]:
        """What is known of the batches of these lists, which are the same in every pass."""
        if getattr(self.kept, "goals_of", None) is not lists:
            self.kept.goals_of, self.kept.goals = lists, []
        goals: list[Goal] = self.kept.goals
        return goals


class Goal(NamedTuple):
    """What the loss of a batch needs of its labels."""

    target: Tensor  # (N,) softmax of the labels, weighted
    several: Tensor  # (Q,) whether a list has different labels, and a weight above 0
    inside: Tensor  # (N,) the same for its entries

    @classmethod
    def of(cls, labels: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Goal:
        if weights is not None:
            target = label_shares(labels, Lists(offsets, len(labels)), weights)
            several = segment_sum(target, offsets) > 0
        else:
            several, target = has_pairs(labels, offsets), segment_softmax(wide(labels), offsets)
        return cls(target, several, per_entry(several, offsets, len(labels)))

    def __call__(self, scores: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """`listnet_loss` (Q,) of scores (N,), and its slopes (N,)."""
        scores = torch.where(self.inside, scores, 0.0)  # the other lists have slope 0, not nan
        loss, slopes = listnet_gradient(scores[:, None], self.target, offsets)
        return torch.where(self.several, loss[:, 0], 0.0), slopes[:, 0] * self.inside

"""The one gradient-trained ranker: any scorer with any loss."""

import inspect
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.kernels import KERNELS
from torchrank.functional.losses import LOSSES
from torchrank.rankers.core.ranker import GradientRanker


class LinearScorer(nn.Module):
    """x . w, without a bias: a constant per list changes no ranking. Starts at 0."""

    def __init__(self, num_inputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs))

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        return x @ self.weight.to(x.dtype)


class MLPScorer(nn.Module):
    """Fully connected layers with ReLU between them; the last has no bias, whose gradient would be rounding noise."""

    def __init__(self, num_inputs: int, hidden: list[int] = (256, 128), dropout: float = 0.0):  # type: ignore[assignment]
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([num_inputs, *hidden]))
        self.layers.append(nn.Linear([num_inputs, *hidden][-1], 1, bias=False))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        first, *others = self.layers
        dtype = x.dtype
        hidden = x.to(dtype=first.weight.dtype) @ first.weight.T  # type: ignore[arg-type, operator]
        hidden = hidden if first.bias is None else hidden + first.bias  # type: ignore[operator]
        for layer in others:
            hidden = layer(self.dropout(torch.relu(hidden)))
        return hidden.squeeze(-1).to(dtype)


class LocalMetricScorer(nn.Module):
    """sum_r weights_r phi(||F_r' x - b_r|| / tau_r) + u . x with M metrics F_r F_r' of this rank (None: full).

    Features whose entry of `live (D,)` is 0 are ignored.
    """

    live: Tensor

    def __init__(
        self,
        num_inputs: int,
        metrics: int = 32,
        rank: int | None = None,
        kernel: str = "distance",
        beta: float = 2.0,
        linear: bool = True,
    ):
        super().__init__()
        if kernel not in KERNELS:
            raise ValueError(f"unknown kernel {kernel!r}: choose one of {', '.join(KERNELS)}")
        self.kernel, self.beta = kernel, beta
        rank = num_inputs if rank is None else min(rank, num_inputs)
        self.factors = nn.Parameter(torch.randn(metrics, num_inputs, rank) / max(rank, 1) ** 0.5)
        self.shifts = nn.Parameter(torch.randn(metrics, rank))
        self.log_tau = nn.Parameter(torch.full((metrics,), max(num_inputs, 1) ** 0.5).log())
        self.weights = nn.Parameter(torch.ones(metrics))
        self.linear = nn.Parameter(torch.zeros(num_inputs)) if linear else None
        self.register_buffer("live", torch.ones(num_inputs))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.terms(x).sum(1)
        return scores if self.linear is None else scores + x @ (self.linear * self.live).to(x.dtype)

    def terms(self, x: Tensor) -> Tensor:
        """What each metric adds to the score of each row, (n, M)."""
        columns = (self.factors * self.live[:, None]).permute(1, 0, 2).flatten(1).to(x.dtype)  # (D, M k)
        images = (x @ columns).unflatten(1, self.shifts.shape) - self.shifts.to(x.dtype)
        distances = torch.linalg.vector_norm(images, dim=2)  # its gradient at an anchor is 0, not nan
        return KERNELS[self.kernel](distances / self.log_tau.exp().to(x.dtype), self.beta) * self.weights.to(x.dtype)


SCORERS = {"linear": LinearScorer, "mlp": MLPScorer, "local": LocalMetricScorer}


class NeuralRanker(GradientRanker):
    """A scorer of single documents (`linear`, `mlp`, `local`) trained with Adam on a loss of `torchrank.functional`."""

    takes = frozenset({"sparse", "corpus"})

    def __init__(
        self,
        num_features: int,
        scorer: str = "mlp",
        loss: str = "lambdarank",
        transform: str | dict | list | None = "standard",
        scorer_options: dict | None = None,
        loss_options: dict | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ):
        super().__init__(num_features, transform, lr, weight_decay)
        for name, choices, what in ((scorer, SCORERS, "scorer"), (loss, LOSSES, "loss")):
            if name not in choices:
                raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(choices)}")
        self.loss_name, self.loss_options = loss, loss_options or {}
        if unknown := self.loss_options.keys() - inspect.signature(LOSSES[loss]).parameters.keys():
            raise ValueError(f"the loss {loss!r} has no option {', '.join(unknown)}")
        self.scorer_name, self.scorer_options = scorer, scorer_options or {}
        self.scorer: nn.Module = self._new_scorer()

    def _new_scorer(self) -> nn.Module:
        return SCORERS[self.scorer_name](self.transform.num_outputs, **self.scorer_options)

    def inputs_sized(self) -> None:
        """Only `pca` knows its number of outputs after the fit: then the first layer is made anew."""
        fresh = self._new_scorer().state_dict()
        old = self.scorer.state_dict()
        self.store({f"scorer.{name}": new for name, new in fresh.items() if new.shape != old[name].shape})

    def score(self, batch: Batch) -> Tensor:
        scores = self.scorer(batch.x)
        return batch.at_entries(scores)

    def loss(self, batch: Batch) -> Tensor:
        return LOSSES[self.loss_name](
            self.score(batch),
            batch.labels,
            batch.offsets,
            max_length=batch.max_length,
            num_grades=batch.num_grades,
            num_pairs=batch.num_pairs,
            **self.loss_options,
        )

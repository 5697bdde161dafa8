"""Rankers that learn by gradient: any scorer of single documents with any loss."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.data.state import take_sizes
from torchrank.data.training import TrainingLists
from torchrank.errors import check_choice
from torchrank.functional.kernels import KERNELS
from torchrank.functional.losses import LOSSES
from torchrank.rankers.core.optimizers import Optimization, Option
from torchrank.rankers.core.ranker import Ranker, TransformOption


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

    Features whose entry of `live (D,)` is 0 are ignored. For `LGMMLNet` with groups of similar queries there are a
    linear term for each metric, `linear (M, D)`, and the `centres` of the groups.
    """

    live: Tensor
    centres: Tensor  # (C, D)
    width: Tensor  # () of the soft gate

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
        check_choice(KERNELS, kernel=kernel)
        self.kernel, self.beta = kernel, beta
        rank = num_inputs if rank is None else min(rank, num_inputs)
        self.factors = nn.Parameter(torch.randn(metrics, num_inputs, rank) / max(rank, 1) ** 0.5)
        self.shifts = nn.Parameter(torch.randn(metrics, rank))
        self.log_tau = nn.Parameter(torch.full((metrics,), max(num_inputs, 1) ** 0.5).log())
        self.weights = nn.Parameter(torch.ones(metrics))
        self.linear = nn.Parameter(torch.zeros(num_inputs)) if linear else None
        self.register_buffer("live", torch.ones(num_inputs))
        self.register_buffer("centres", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("width", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.terms(x).sum(1)
        return scores if self.linear is None else scores + x @ (self.linear * self.live).to(x.dtype)

    def terms(self, x: Tensor) -> Tensor:
        """What each metric adds to the score of each row, (n, M)."""
        columns = (self.factors * self.live[:, None]).permute(1, 0, 2).flatten(1).to(x.dtype)  # (D, M k)
        images = (x @ columns).unflatten(1, self.shifts.shape) - self.shifts.to(x.dtype)
        distances = torch.linalg.vector_norm(images, dim=2)  # its gradient at an anchor is 0, not nan
        return KERNELS[self.kernel](distances / self.log_tau.exp().to(x.dtype), self.beta) * self.weights.to(x.dtype)


GIVEN = ("num_inputs", "scores", "labels", "offsets", "max_length", "num_grades", "num_pairs")  # are no options
SCORERS: dict[str, type[nn.Module]] = {"linear": LinearScorer, "mlp": MLPScorer, "local": LocalMetricScorer}


class NeuralRanker(Ranker):
    """A scorer of single documents, trained by gradient on a loss of `torchrank.functional`.

    Args:
        num_features: columns of the rows.
        scorer: linear, mlp, or local (kernels of distances under metrics).
        loss: a key of `torchrank.functional.LOSSES`: listnet, ranknet, lambdarank, warp, ...
        transform: of the features, see `make_transform`.
        scorer_options: of the scorer, such as {"hidden": [256, 128], "dropout": 0.1} of mlp.
        loss_options: of the loss, such as {"k": 10} of lambdarank.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> ranker = NeuralRanker(2, scorer="mlp", loss="listnet", scorer_options={"hidden": [4]}, lr=0.1)
        >>> ranker.fit(lists, epochs=20).rank(x, offsets)
        tensor([1, 2, 0])
    """

    takes = frozenset({"sparse", "corpus"})

    def __init__(
        self,
        num_features: int,
        scorer: str = "mlp",
        loss: str = "lambdarank",
        transform: TransformOption = "standard",
        scorer_options: dict[str, Any] | None = None,
        loss_options: dict[str, Any] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
    ):
        super().__init__(num_features, transform)
        check_choice(SCORERS, scorer=scorer)
        check_choice(LOSSES, loss=loss)
        self.loss_name, self.loss_options = loss, loss_options or {}
        self.scorer_name, self.scorer_options = scorer, scorer_options or {}
        _check_options(f"the loss {loss!r}", LOSSES[loss], self.loss_options)
        _check_options(f"the scorer {scorer!r}", SCORERS[scorer], self.scorer_options)
        self.scorer: nn.Module = self._new_scorer()
        self.optimization = Optimization(optimizer, scheduler, lr, weight_decay)

    def _new_scorer(self) -> nn.Module:
        return SCORERS[self.scorer_name](self.transform.num_outputs, **self.scorer_options)

    def start(self, lists: TrainingLists) -> None:
        """Replace the layers whose size has changed: `pca` knows its number of outputs only after it was fitted."""
        old, fresh = self.scorer.state_dict(), self._new_scorer().to(self.device).state_dict()
        state = {name: new if new.shape != old[name].shape else old[name] for name, new in fresh.items()}
        take_sizes(self.scorer, state, "")
        self.scorer.load_state_dict(state)

    def score(self, batch: Batch) -> Tensor:
        return batch.at_entries(self.scorer(batch.x))

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


def _check_options(owner: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(function).parameters if name not in GIVEN]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"{owner} has no option {', '.join(unknown)}; its options are: {', '.join(known) or 'none'}")


class LambdaRank(NeuralRanker):
    """Linear scores, pairs weighted by the change of NDCG@k (Burges et al. 2006).

    Args:
        num_features: columns of the rows.
        k: cut-off of NDCG; None: the whole list.
        transform: of the features, see `make_transform`.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> LambdaRank(1, k=10).fit(lists, epochs=5).rank(x, offsets)
        tensor([1, 2, 0])
    """

    def __init__(
        self,
        num_features: int,
        k: int | None = None,
        transform: TransformOption = "standard",
        lr: float = 5e-2,
        weight_decay: float = 0.0,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
    ):
        super().__init__(
            num_features,
            "linear",
            "lambdarank",
            transform,
            loss_options={"k": k},
            lr=lr,
            weight_decay=weight_decay,
            optimizer=optimizer,
            scheduler=scheduler,
        )

"""Rankers that learn by gradient: any scorer, also your own network, with any loss, also your own function."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import cache
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
from torchrank.rankers.core.gradient import GradientRanker
from torchrank.rankers.core.optimizers import Option
from torchrank.rankers.core.own import resolve
from torchrank.rankers.core.ranker import TransformOption
from torchrank.rankers.lgmml.distances import anchor_distances


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
        factors = (self.factors * self.live[:, None]).to(x.dtype)
        distances = anchor_distances(x, factors, self.shifts.to(x.dtype))
        return KERNELS[self.kernel](distances / self.log_tau.exp().to(x.dtype), self.beta) * self.weights.to(x.dtype)


SIZES = ("max_length", "num_grades", "num_pairs")  # of a batch: a loss gets those that it has parameters for
GIVEN = ("num_inputs", "scores", "labels", "offsets", "group", "qid", *SIZES)  # are no options
SCORERS: dict[str, type[nn.Module]] = {"linear": LinearScorer, "mlp": MLPScorer, "local": LocalMetricScorer}


class NeuralRanker(GradientRanker):
    """A network that scores documents, trained by gradient on a loss of rankings. Both may be your own.

    A network is a class that is made with the number of inputs and `scorer_options`, or an instance, of which the
    ranker trains a copy. It gets rows (n, D) and returns scores (n,) or (n, 1). If its `forward` has a parameter
    `offsets`, it gets the rows of whole lists and where these begin and end, (Q + 1,), so that a score may depend on
    the other documents. A loss takes (scores, labels, offsets), the sizes of the batch among max_length, num_grades and
    num_pairs that it has parameters for, and `loss_options`; it returns (Q,) or a scalar, the mean over the lists.

    Checkpoints hold the name of an own network or loss; `torchrank.load(path, scorer=Net, loss=function)` takes it.

    Args:
        num_features: columns of the rows.
        scorer: linear, mlp, or local (kernels of distances under metrics); or your own `nn.Module`: its class, an
            instance, or its dotted name.
        loss: a key of `torchrank.functional.LOSSES`: listnet, ranknet, lambdarank, warp, ...; or your own function, or
            its dotted name.
        transform: of the features, see `make_transform`.
        scorer_options: of the scorer, such as {"hidden": [256, 128], "dropout": 0.1} of mlp.
        loss_options: of the loss, such as {"k": 10} of lambdarank.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.
        compile: whether scorer and loss are compiled for training by `torch.compile`. Batches of all sizes share a
            graph. Checkpoints are the same with and without it.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> ranker = NeuralRanker(2, scorer="mlp", loss="listnet", scorer_options={"hidden": [4]}, lr=0.1)
        >>> ranker.fit(lists, epochs=20).rank(x, offsets)
        tensor([1, 2, 0])
        >>> ranker = NeuralRanker(2, scorer=nn.Linear(2, 1, bias=False), loss="listnet", lr=0.1)
        >>> ranker.fit(lists, epochs=20).rank(x, offsets)
        tensor([1, 2, 0])
    """

    takes = frozenset({"sparse", "corpus"})

    def __init__(
        self,
        num_features: int,
        scorer: str | type[nn.Module] | nn.Module = "mlp",
        loss: str | Callable[..., Tensor] = "lambdarank",
        transform: TransformOption = "standard",
        scorer_options: dict[str, Any] | None = None,
        loss_options: dict[str, Any] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
        compile: bool = False,
    ):
        scorer, network = resolve("scorer", scorer, SCORERS)  # hyper-parameters hold names
        loss, function = resolve("loss", loss, LOSSES)
        super().__init__(num_features, transform, lr, weight_decay, optimizer, scheduler)
        self.loss_name, self.loss_options = loss, loss_options or {}
        self.scorer_name, self.scorer_options = scorer, scorer_options or {}
        self.own = {} if scorer in SCORERS else {"scorer": network}
        self.own |= {} if loss in LOSSES else {"loss": function}
        self._check_loss(function)
        self._check_network(network)
        self.scorer: nn.Module = self._new_scorer()
        if lazy := [key for key, each in self.scorer.named_parameters() if nn.parameter.is_lazy(each)]:
            raise ValueError(f"the scorer {scorer} has layers without a size, such as {lazy[0]}: name their inputs")
        self.sees_lists = "offsets" in _parameters(self.scorer.forward)
        self.in_graph = compile

    def _check_loss(self, function: Any) -> None:
        if not callable(function) or inspect.isclass(function):
            raise ValueError(f"loss must be a function of (scores, labels, offsets), got {function!r}")
        known = _parameters(function)
        self._sizes = [name for name in SIZES if name in known]
        _check_options(f"the loss {self.loss_name!r}", known, self.loss_options)

    def _check_network(self, network: Any) -> None:
        name, options = self.scorer_name, self.scorer_options
        if "scorer" not in self.own:
            _check_options(f"the scorer {name!r}", _parameters(network), options)
            return
        self.takes = frozenset({"corpus"})
        if isinstance(network, nn.Module):
            if options:
                raise ValueError(f"scorer_options are for a class: the scorer {name} was given as an instance")
            return
        if not (inspect.isclass(network) and issubclass(network, nn.Module)):
            raise ValueError(f"scorer must be a class or an instance of torch.nn.Module, got {network!r}")
        try:
            inspect.signature(network).bind(self.transform.num_outputs, **options)
        except TypeError as error:
            wanted = f"{name}({self.transform.num_outputs}, **{options})"
            raise ValueError(
                f"the scorer is made by {wanted}, its number of inputs and scorer_options: {error}"
            ) from None

    def _new_scorer(self) -> nn.Module:
        network: Any = self.own.get("scorer", SCORERS.get(self.scorer_name))
        if isinstance(network, nn.Module):
            return deepcopy(network)
        made: nn.Module = network(self.transform.num_outputs, **self.scorer_options)
        return made

    def start(self, lists: TrainingLists) -> None:
        """Replace the layers whose size has changed: `pca` knows its number of outputs only after it was fitted."""
        old, fresh = self.scorer.state_dict(), self._new_scorer().to(self.device).state_dict()
        state = {name: old.get(name, new) if _same_size(old.get(name), new) else new for name, new in fresh.items()}
        take_sizes(self.scorer, state, "")
        self.scorer.load_state_dict(state)

    def entry_bytes(self, width: int) -> int:
        if "scorer" in self.own:
            return 0
        images = (each.numel() // min(each.shape) for each in self.scorer.parameters() if each.dim() > 1)
        return super().entry_bytes(width) + 8 * sum(images)

    def score(self, batch: Batch) -> Tensor:
        if "scorer" not in self.own:
            return batch.at_entries(self.scorer(batch.x))
        if self.sees_lists:
            return self._own_scores(batch.dense, offsets=batch.offsets)
        return batch.at_entries(self._own_scores(batch.x))

    def _own_scores(self, x: Any, **lists: Tensor) -> Tensor:
        """Scores (n,) of rows (n, D) by the user's network, which sees them in its own dtype."""
        rows = x.shape[0]
        weight = next((each for each in self.scorer.parameters() if each.is_floating_point()), x)
        found = self.scorer(x.to(weight.dtype), **lists)
        if not isinstance(found, Tensor) or found.shape not in ((rows,), (rows, 1)):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"the scorer {self.scorer_name} must return ({rows},) or ({rows}, 1), got {shape}")
        return found.reshape(-1).to(x.dtype)

    def loss(self, batch: Batch) -> Tensor:
        found: Tensor = _in_graph()(self, batch) if self.in_graph else self.losses(batch)
        return found

    def losses(self, batch: Batch) -> Tensor:
        """The loss (Q,) of each list: what `compile` compiles."""
        scores, sizes = self.score(batch), {name: getattr(batch, name) for name in self._sizes}
        if "loss" in self.own and batch.num_lists == 0:
            return scores.sum() + scores.new_zeros(0)
        function: Any = self.own.get("loss", LOSSES.get(self.loss_name))
        found: Tensor = function(scores, batch.labels, batch.offsets, **sizes, **self.loss_options)
        return found if "loss" not in self.own else self._own_losses(found, batch.num_lists)

    def _own_losses(self, found: Any, num_lists: int) -> Tensor:
        """The loss (Q,) of each list by the user's function; a scalar is the mean over them."""
        if not isinstance(found, Tensor) or found.shape not in ((), (num_lists,)):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"the loss {self.loss_name} must return ({num_lists},) or a scalar, got {shape}")
        return found.expand(num_lists)


@cache
def _in_graph() -> Callable[[NeuralRanker, Batch], Tensor]:
    """One compiled function for all rankers: the modules stay as they are, and so do their states and copies."""
    return torch.compile(NeuralRanker.losses, dynamic=True)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a function in C
        return {}


def _check_options(owner: str, parameters: dict[str, inspect.Parameter], options: dict[str, Any]) -> None:
    if any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        return
    known = [name for name in parameters if name not in GIVEN]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"{owner} has no option {', '.join(unknown)}; its options are: {', '.join(known) or 'none'}")


def _same_size(old: Any, new: Any) -> bool:
    return not isinstance(new, Tensor) or (isinstance(old, Tensor) and old.shape == new.shape)


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

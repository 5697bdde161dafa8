"""Any network, also your own, trained by gradient with any loss, also your own function."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import take_sizes
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, check_integer, check_mapping, check_number, check_options, parameters_of
from torchrank.functional.lists import Lists
from torchrank.functional.losses import LOSSES
from torchrank.rankers.core.gradient import GradientRanker
from torchrank.rankers.core.optimizers import Option
from torchrank.rankers.core.own import resolve
from torchrank.rankers.core.ranker import TransformOption
from torchrank.rankers.neural.members import Members, ranking_scores, tiled
from torchrank.rankers.neural.scorers import SCORERS, check_sizes

SIZES = ("max_length", "num_grades", "num_pairs")  # of a batch: a loss gets those that it has parameters for
OF_LISTS = ("offsets", "max_length")  # a network gets those that its forward has parameters for
OF_CALLS = (
    "scores",
    "labels",
    "offsets",
    "weights",
    "list_weights",
    "group",
    "qid",
    "mask",
)  # what a loss is called with
GIVEN = ("num_inputs", "outputs", "bias", *OF_CALLS)
LEVELS = ("mse", "bce", "ordinal")  # losses that look at a score by itself, so that a constant is not lost on them


class NeuralRanker(GradientRanker):
    """A network that scores documents, trained by gradient on a loss of rankings. Both may be your own.

    A network is a class that is made with the number of inputs and `scorer_options`, or an instance, of which the
    ranker trains a copy. It gets rows (n, D) and returns scores (n,) or (n, 1). If its `forward` has a parameter
    `offsets`, it gets the rows of whole lists and where these begin and end, (Q + 1,), so that a score may depend on
    the other documents. A loss takes (scores, labels, offsets), the sizes of the batch among max_length, num_grades and
    num_pairs that it has parameters for, and `loss_options`; it returns (Q,) or a scalar, the mean over the lists.

    With `loss="ordinal"` a network has an output for each grade above 0, and a document is ranked by the sum of their
    sigmoids. If its class has a parameter `outputs`, it is told how many.

    Checkpoints hold the name of an own network or loss; `torchrank.load(path, scorer=Net, loss=function)` takes it.

    Args:
        num_features: columns of the rows.
        scorer: linear, mlp, resnet (residual blocks), dcn (products of features), gam (a network for each feature),
            attention (documents of a list look at each other), or local (kernels of distances under metrics); or your
            own `nn.Module`: its class, an instance, or its dotted name.
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
        members: networks that are trained side by side from different first weights; a score is the mean of theirs,
            and the loss the sum.
        noise: standard deviation of Gaussian noise that is added to the transformed features while training.
        clip: largest norm of the gradient of a step; longer ones are shortened to it.

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
    weighted = True

    def __init__(
        self,
        num_features: int,
        scorer: str | type[nn.Module] | nn.Module = "mlp",
        loss: str | Callable[..., Tensor] = "lambdarank",
        transform: TransformOption = "auto",
        scorer_options: dict[str, Any] | None = None,
        loss_options: dict[str, Any] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
        compile: bool = False,
        members: int = 1,
        noise: float = 0.0,
        clip: float | None = None,
    ):
        check_integer(">= 1", members=members)
        check_number(">= 0", noise=noise)
        check_mapping(scorer_options=scorer_options, loss_options=loss_options)
        scorer, network = resolve("scorer", scorer, SCORERS)  # hyper-parameters hold names
        loss, function = resolve("loss", loss, LOSSES)
        super().__init__(num_features, transform, lr, weight_decay, optimizer, scheduler, clip)
        self.loss_name, self.loss_options = loss, loss_options or {}
        self.scorer_name, self.scorer_options = scorer, scorer_options or {}
        self.members, self.noise = members, noise
        self.is_ordinal = loss == "ordinal" and scorer != "local"  # which has one output: relevant or not
        self.own = {} if scorer in SCORERS else {"scorer": network}
        self.own |= {} if loss in LOSSES else {"loss": function}
        self._check_loss(function)
        self._check_network(network)
        self.scorer: nn.Module = self._new_scorer()
        if lazy := [key for key, each in self.scorer.named_parameters() if nn.parameter.is_lazy(each)]:
            raise ValueError(f"the scorer {scorer} has layers without a size, such as {lazy[0]}: name their inputs")
        forward = parameters_of(network.forward)
        self._of_lists = [name for name in OF_LISTS if name in forward and "offsets" in forward]
        self.in_graph = compile

    @property
    def sees_lists(self) -> bool:
        """Whether a score depends on the other documents of a list."""
        return bool(self._of_lists)

    def _check_loss(self, function: Any) -> None:
        if not callable(function) or inspect.isclass(function):
            raise ValueError(f"loss must be a function of (scores, labels, offsets), got {function!r}")
        known = parameters_of(function)
        self._sizes = [name for name in SIZES if name in known]
        self._takes_weights = "weights" in known
        check_options(f"the loss {self.loss_name!r}", function, self.loss_options, (*GIVEN, *SIZES))

    def _check_network(self, network: Any) -> None:
        name, options = self.scorer_name, self.scorer_options
        if "scorer" in self.own or self.noise or getattr(network, "dense", False):
            self.takes = frozenset({"corpus"})
        if "scorer" not in self.own:
            check_options(f"the scorer {name!r}", network, options, GIVEN)
            check_sizes(network, options)
        elif isinstance(network, nn.Module):
            if options:
                raise ValueError(f"scorer_options are for a class: the scorer {name} was given as an instance")
            if self.members > 1:
                raise ValueError(f"members={self.members} need different first weights: give the class of {name}")
        elif not (inspect.isclass(network) and issubclass(network, nn.Module)):
            raise ValueError(f"scorer must be a class or an instance of torch.nn.Module, got {network!r}")
        else:
            self._check_making(network)

    def _check_making(self, network: type[nn.Module]) -> None:
        inputs, options = self.transform.num_outputs, self.scorer_options
        try:
            inspect.signature(network).bind(inputs, **options)
        except TypeError as error:
            wanted = f"{self.scorer_name}({inputs}, **{options})"
            raise ValueError(
                f"the scorer is made by {wanted}, its number of inputs and scorer_options: {error}"
            ) from None

    def _new_scorer(self, outputs: int = 1) -> nn.Module:
        network: Any = self.own.get("scorer", SCORERS.get(self.scorer_name))
        if isinstance(network, nn.Module):
            return deepcopy(network)
        wanted = {"outputs": outputs} if self.is_ordinal else {}
        wanted |= {"bias": True} if self.loss_name in LEVELS and "scorer" not in self.own else {}
        told = {name: value for name, value in wanted.items() if name in parameters_of(network)}
        made = [network(self.transform.num_outputs, **told, **self.scorer_options) for _ in range(self.members)]
        first: nn.Module = made[0]
        return first if self.members == 1 else Members(made)

    def start(self, lists: TrainingLists) -> None:
        """Replace the layers whose size has changed: `pca` knows its number of outputs only after it was fitted, and an
        ordinal loss the number of grades."""
        outputs = self._outputs(lists.lists.num_grades) if self.is_ordinal else 1
        old, fresh = self.scorer.state_dict(), self._new_scorer(outputs).to(self.device).state_dict()
        state = {name: old.get(name, new) if _same_size(old.get(name), new) else new for name, new in fresh.items()}
        take_sizes(self.scorer, state, "")
        self.scorer.load_state_dict(state)

    def _outputs(self, grades: int) -> int:
        if grades == 0:
            raise DataError("loss=ordinal needs integer labels 0, 1, ..., but these are real-valued: use another loss")
        return max(grades - 1, 1)

    def entry_bytes(self, width: int) -> int:
        if "scorer" in self.own:
            return 0
        images = (each.numel() // min(each.shape) for each in self.scorer.parameters() if each.dim() > 1)
        return super().entry_bytes(width) + 8 * sum(images)

    def score(self, batch: Batch) -> Tensor:
        return ranking_scores(self.values(batch), self.is_ordinal)

    def values(self, batch: Batch) -> Tensor:
        """What the networks return for each entry, (members, N) or, for an ordinal loss, (members, N, outputs)."""
        lists = {name: getattr(batch, name) for name in self._of_lists}
        found = self._returned(batch.flat().x if lists else batch.x, lists)
        return found if lists or batch.index is None else found[:, batch.index]

    def _returned(self, x: Any, lists: dict[str, Any]) -> Tensor:
        """The outputs of rows (n, D); a network of the user sees them in its own dtype."""
        weight = next((each for each in self.scorer.parameters() if each.is_floating_point()), x)
        found = self.scorer(x.to(weight.dtype) if "scorer" in self.own else x, **lists)
        if "scorer" in self.own:
            self._check_returned(found, x.shape[0])
        each: Tensor = (found if self.members > 1 else found[None]).to(x.dtype)
        if self.is_ordinal:
            return each if each.dim() == 3 else each[:, :, None]
        return each.reshape(each.shape[:2])

    def _check_returned(self, found: Any, rows: int) -> None:
        shape = tuple(found.shape[1:] if self.members > 1 else found.shape) if isinstance(found, Tensor) else None
        if shape is None or not (shape in ((rows,), (rows, 1)) or (self.is_ordinal and shape[:-1] == (rows,))):
            told = type(found).__name__ if shape is None else shape
            raise ValueError(f"the scorer {self.scorer_name} must return ({rows},) or ({rows}, 1), got {told}")

    def loss(self, batch: Batch) -> Tensor:
        found: Tensor = _in_graph()(self, batch) if self.in_graph else self.losses(batch)
        return found

    def losses(self, batch: Batch) -> Tensor:
        """The loss (Q,) of each list, the sum over the members: what `compile` compiles."""
        if self.noise and self.training:
            rows = batch.x
            batch = batch._replace(x=rows + self.noise * torch.randn_like(rows))  # type: ignore[arg-type, operator]
        several = self.members > 1 or self.is_ordinal
        values = self.values(batch) if several else self.score(batch)[None]  # a subclass may define score alone
        if "loss" in self.own and batch.num_lists == 0:
            return values.sum() + values.new_zeros(0)
        return self._losses(values.flatten(0, 1), batch).view(self.members, batch.num_lists).sum(0)

    def _losses(self, values: Tensor, batch: Batch) -> Tensor:
        """The losses (M Q,) of all members in one call: their lists are laid end to end."""
        labels, lists = batch.labels, batch.lists
        given: dict[str, Any] = {} if batch.weights is None else {"weights": self._weights(batch.weights)}
        if self.members > 1:
            offsets, labels = tiled(batch.offsets, len(labels), self.members), labels.repeat(self.members)
            lists = Lists(offsets, len(labels), longest=batch.max_length, grades=batch.num_grades)
        if "loss" not in self.own:
            return LOSSES[self.loss_name](values, labels, lists, **given, **self.loss_options)
        given |= {name: getattr(batch, name) for name in self._sizes}
        given |= {"num_pairs": batch.num_pairs * self.members} if "num_pairs" in given else {}
        losses: Any = self.own["loss"]
        return self._own_losses(losses(values, labels, lists.offsets, **given, **self.loss_options), len(lists))

    def _weights(self, weights: Tensor) -> Tensor:
        if not self._takes_weights:
            raise DataError(f"the data has weights, but the loss {self.loss_name!r} takes none: choose another loss")
        return weights.repeat(self.members)

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


def _same_size(old: Any, new: Any) -> bool:
    return not isinstance(new, Tensor) or (isinstance(old, Tensor) and old.shape == new.shape)

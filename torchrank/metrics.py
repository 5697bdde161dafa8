"""Measures as metrics of torchmetrics: means over all lists of all batches and processes.

`RankingMetrics` computes many measures from one sort, as a dict; `NDCG`, `MeanAveragePrecision` and the others compute
one, as a scalar:

    >>> scores, labels = torch.tensor([0.2, 1.5, 0.7, 3.0, 1.0]), torch.tensor([0, 2, 1, 0, 1])
    >>> metric = NDCG(k=10)
    >>> metric(scores, labels, torch.tensor([0, 3, 5]))  # offsets: where the lists begin and end
    tensor(0.8155)
    >>> metric(scores, labels, indexes=torch.tensor([4, 4, 4, 9, 9]))  # the query of each entry, in any order
    tensor(0.8155)
    >>> metric.compute()
    tensor(0.8155)

Metrics that may be compared in one table have one convention: see `torchrank.functional.describe`.
"""

import ast
import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from torchrank.errors import check_integer
from torchrank.functional.arrays import Array, to_integers, to_tensor, wide
from torchrank.functional.conventions import CONVENTIONS, Measure, Values, convention_of, describe
from torchrank.functional.lists import REMOVED, Given, Lists, check_weights, takes_arrays
from torchrank.functional.measures import MEASURES, evaluation
from torchrank.functional.ragged import read

SUMS = ("sums", "counts", "totals", "table", "seen")
KEPT = {"kept_scores": torch.float64, "kept_labels": torch.float64, "kept_indexes": torch.int64}


class ListMetric(Metric):
    """Sums of measures over lists, and what all metrics of rankings share.

    All states are sums, so any split of the lists into batches and processes gives the same result, to the rounding of
    float64, and `update` never synchronises. Lists without a value (nan) are left out of a mean. Only what is given by
    `indexes` is kept as it is, since the entries of a query may come in several batches.
    """

    is_differentiable = False
    full_state_update = False
    sums: Tensor  # (measures,)
    counts: Tensor  # (measures,) lists with a value, or the sum of their weights
    totals: Tensor  # (3,) lists, lists without relevant entry, batches with NaN scores or impossible ranks
    table: Tensor  # (num_queries, measures)
    seen: Tensor  # (num_queries,)
    kept_indexes: list[Tensor] | Tensor

    def __init__(
        self, measures: Sequence[str], convention: str = "default", *, num_queries: int | None = None,
        threshold: float | None = None, max_label: float | None = None, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(**kwargs)
        wanted = evaluation.wanted_measures(measures, convention)  # a misspelt measure fails here
        evaluation.check_options_of(wanted, {"max_label": max_label})
        self.measures, self.convention, self.num_queries = list(wanted), convention, num_queries
        self.threshold, self.max_label = threshold, max_label
        width = len(self.measures)
        self._sum_state("sums", width, dtype=torch.float64)
        self._sum_state("counts", width, dtype=torch.float64)
        self._sum_state("totals", 3)
        if num_queries is not None:
            self._sum_state("table", num_queries, width, dtype=torch.float64)
            self._sum_state("seen", num_queries)
        for name in KEPT:
            self.add_state(name, [], dist_reduce_fx="cat")
        # MetricCollection updates only one of the metrics whose states are equal after the first batch: those of other
        # measures must never be, even if both are 1
        digest = hashlib.sha256(repr((self.measures, convention, threshold, max_label)).encode()).digest()
        self.add_state("kind", torch.tensor(list(digest)), dist_reduce_fx="max")

    def _sum_state(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn: Any, *arguments: Any) -> Any:
        """Moves states with the module but keeps their dtype, also under `trainer.precision=bf16-true`."""
        return super()._apply(lambda state: state.to(fn(state.new_empty(0)).device), *arguments)

    def _sync_dist(self, dist_sync_fn: Any = gather_all_tensors, process_group: Any = None) -> None:
        """All sums in one reduction; if any process kept something, torchmetrics gathers state by state."""
        if dist_sync_fn is not gather_all_tensors or not self._sum_over(process_group or self.process_group):
            self._gather(dist_sync_fn, process_group)

    def _sum_over(self, group: Any) -> bool:
        """Sum all states over the processes, unless one of them kept something."""
        states = [name for name in SUMS if hasattr(self, name)]
        parts = [getattr(self, name).double().flatten() for name in states]
        joined = torch.cat([*parts, self.sums.new_tensor([float(len(self.kept_indexes))])])
        torch.distributed.all_reduce(joined, group=group)
        if joined[-1].tolist():
            return False
        for name, summed in zip(states, joined[:-1].split([part.numel() for part in parts]), strict=True):
            before: Tensor = getattr(self, name)
            setattr(self, name, summed.view_as(before).to(before.dtype))
        return True

    def _gather(self, dist_sync_fn: Any, process_group: Any) -> None:
        """A process that kept nothing gathers empty tensors of the right dtype."""
        for name, dtype in KEPT.items():
            if len(getattr(self, name)) == 0:
                setattr(self, name, [torch.empty(0, dtype=dtype, device=self.device)])
        super()._sync_dist(dist_sync_fn, process_group)

    def update(
        self, scores: Array, labels: Array, offsets: Array = None, *, indexes: Array = None, group: Array = None,
        qid: Array = None, mask: Array = None, query: Tensor | None = None, list_weights: Array = None,
        num_documents: int | None = None, **given: Any,
    ) -> None:  # fmt: skip
        """Add the lists of a batch.

        Args:
            scores: score of each entry, `(N,)`; or `(Q, L)`, a list in each row. With `num_documents`: its rank.
            labels: relevance label of each entry, of the same shape.
            offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
            indexes: in place of offsets, the query of each entry, `(N,)`, in any order, as in torchmetrics: entries of
                a query may come in several batches and are kept until `compute`.
            group: in place of offsets, the number of entries of each list, `(Q,)`.
            qid: in place of offsets, the query id of each entry, `(N,)`, with the rows of a query together.
            mask: which entries of `(Q, L)` count; all by default.
            query: position of each list in the table of values, `(Q,)`, for `num_queries`.
            list_weights: importance of each list, `(Q,)`: the means are weighted.
            num_documents: the entries are the judged ones among so many documents of a query, and `scores` their ranks
                among all of them, from 1: values are those of `evaluate_ranks`.
            given: what else `evaluate` takes of a batch: tiebreak, num_relevant, judged, weights, classes,
                query_classes.
        """
        given = {name: value for name, value in given.items() if name not in REMOVED}
        scores = self._tensor(scores, "scores")
        if indexes is not None:
            named = {"offsets": offsets, "group": group, "qid": qid, "mask": mask, "query": query}
            self._refuse_with_indexes(**named, list_weights=list_weights, num_documents=num_documents, **given)
            self._keep(scores, self._tensor(labels, "labels"), self._tensor(indexes, "indexes"))
            return
        if scores.ndim == 2 and mask is None and not isinstance(offsets, Lists):
            mask = torch.ones_like(scores, dtype=torch.bool)
        _check_offsets(scores, offsets)
        weights = {"weights": given.pop("weights", None), "list_weights": list_weights}
        batch = _flat(scores, labels, offsets, **weights, group=group, qid=qid, mask=mask)
        if batch[3] is not None:
            given["weights"] = batch[3]
        self._add(*batch[:3], list_weights=batch[4], num_documents=num_documents, query=query, **given)

    def _tensor(self, values: Array, name: str) -> Tensor:
        tensor = to_tensor(values, name)
        return tensor if isinstance(values, Tensor) else tensor.to(self.device)

    def _refuse_with_indexes(self, **given: Any) -> None:
        if names := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"indexes cannot be combined with {', '.join(names)}: give offsets instead of indexes")
        if self.num_queries is not None:
            raise ValueError("num_queries keeps the values of lists by position: give offsets and query, not indexes")
        if convention_of(self.convention).ties == "ids":
            raise ValueError(f"convention={self.convention!r} needs tiebreak: give offsets instead of indexes")

    def _keep(self, scores: Tensor, labels: Tensor, indexes: Tensor) -> None:
        """For `compute`: entries of a query may come in several batches."""
        to_integers(indexes.flatten(), "indexes")
        if not scores.shape == labels.shape == indexes.shape:
            shapes = ", ".join(str(tuple(each.shape)) for each in (scores, labels, indexes))
            raise ValueError(f"scores, labels and indexes must have one shape, got {shapes}")
        for (name, dtype), values in zip(KEPT.items(), (scores, labels, indexes), strict=True):
            getattr(self, name).append(values.detach().flatten().to(dtype))

    def _add(
        self, scores: Tensor, labels: Tensor, lists: Lists, *, list_weights: Tensor | None = None,
        num_documents: int | None = None, query: Tensor | None = None, **given: Any,
    ) -> None:  # fmt: skip
        """Add the values (Q, measures) of lists to the sums."""
        if self.num_queries is not None and query is None:
            raise ValueError(f"num_queries={self.num_queries} keeps the value of every list: give query=")
        rules = {"convention": self.convention, "threshold": self.threshold, "max_label": self.max_label}
        call: Callable[..., dict[str, Tensor]] = evaluation.evaluate
        if num_documents is not None:
            if names := [name for name, value in given.items() if value is not None]:
                raise ValueError(f"num_documents, for ranks, cannot be combined with {', '.join(names)}: give scores")
            call, given = evaluation.evaluate_ranks, {"num_documents": num_documents}
        found = call(scores, labels, lists, measures=self.measures, **rules, **given)
        values = torch.stack([found[name] for name in self.measures], dim=1)
        if num_documents is not None:
            scores = evaluation.scores_of_ranks(scores, num_documents)
        relevant = labels >= convention_of(self.convention, self.threshold).threshold
        empty = (lists.sum(wide(relevant)) == 0).sum()
        counts = (~values.isnan()).double()
        factor = counts if list_weights is None else counts * list_weights.double()[:, None]
        self.sums += torch.where(counts > 0, values * factor, 0).sum(0)
        self.counts += factor.sum(0)
        self.totals += torch.stack([torch.full_like(empty, len(lists)), empty, torch.isnan(scores).any().long()])
        if query is not None and self.num_queries is not None:
            self.table[query] = values
            self.seen[query] += 1

    def means(self) -> Tensor:
        """The mean of each measure over the lists that have a value, `(measures,)`; nan if none has."""
        before = self.sums, self.counts, self.totals
        if len(self.kept_indexes):
            self.sums, self.counts, self.totals = (state.clone() for state in before)
            states = (getattr(self, name) for name in KEPT)
            scores, labels, indexes = (each if isinstance(each, Tensor) else torch.cat(each) for each in states)
            order = indexes.argsort(stable=True)
            sizes = indexes[order].unique_consecutive(return_counts=True)[1]
            self._add(scores[order], labels[order], Lists.of(group=sizes))
        means = self.sums / self.counts
        self._read(means)
        self.sums, self.counts, self.totals = before
        return means

    def _read(self, means: Tensor) -> None:
        """Bring what is asked for later to the host, in one copy, and check it there."""
        parts = [self.totals, means] + ([] if self.num_queries is None else [self.seen, self.table])
        joined = torch.cat([part.double().flatten() for part in parts]).cpu()
        totals, self._means, *kept = joined.split([part.numel() for part in parts])
        self._lists, self._empty, invalid = map(int, totals.tolist())
        if invalid:
            raise ValueError(
                f"scores were NaN in {invalid} batches (or ranks not in 1..num_documents): no ranking is defined. Did "
                "training diverge?"
            )
        if kept:
            seen, table = kept
            if (seen > 1).any():
                again = int(seen.argmax())
                raise ValueError(f"list {again} was measured {int(seen[again])} times: reset() between passes")
            self._table = torch.where(seen[:, None] > 0, table.view(-1, len(self.measures)), torch.nan)

    @property
    def lists(self) -> int:
        """Number of lists measured, over all processes."""
        self.compute()
        return int(self._lists)

    @property
    def empty(self) -> int:
        """Number of lists without a relevant entry: left out of the means where the convention gives them no value."""
        self.compute()
        return int(self._empty)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot a value, several of them, or without any that of `compute`; see `torchmetrics.Metric`.

        Returns:
            The figure and its axes.
        """
        return self._plot(val, ax)


@takes_arrays
def _flat(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, list_weights: Array = None,
    **given: Unpack[Given],
) -> tuple[Tensor, Tensor, Lists, Tensor | None, Tensor | None]:  # fmt: skip
    if list_weights is not None:
        check_weights("list_weights", list_weights, len(offsets), "list")
    return scores, labels, offsets, weights, list_weights


def _check_offsets(scores: Tensor, offsets: Array) -> None:
    """Explain the mistake of passing indexes positionally, as in torchmetrics."""
    suspect = isinstance(offsets, Tensor) and offsets.shape == scores.shape and scores.device.type == "cpu"
    if suspect and len(scores) and (read(offsets[0]) != 0 or read(offsets[-1]) != len(scores)):
        raise ValueError(
            f"offsets must rise from 0 to {len(scores)}, the number of entries. If this is the query of each entry, "
            "give it by name: indexes=..."
        )


class RankingMetrics(ListMetric):
    """Means of several `measures` in one convention, from one sort; lists without a value (nan) are left out.

    All states are sums, so any split of the lists into batches and processes gives the same result, to the rounding of
    float64. `update` never synchronises; `lists`, `empty` and `per_query()` are those of `compute()`, which every
    process has to call. For `MetricCollection`, `BootStrapper` and others that want a scalar there are single measures:
    `NDCG`, `MeanAveragePrecision`, ...

    Args:
        measures: names such as "ndcg@10", "map", "p@5".
        convention: whose definitions: default, letor, lightgbm, xgboost, trec, sklearn.
        num_queries: keep the value of every list too; each process fills its own rows of one table.
        threshold: the lowest grade that counts as relevant; None: that of the convention.
        max_label: the highest grade of the data set, for err.
        kwargs: options of `torchmetrics.Metric`.

    Example:
        >>> metrics = RankingMetrics(["ndcg@10", "map"])
        >>> metrics.update(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]))
        >>> {name: round(value.item(), 4) for name, value in metrics.compute().items()}
        {'ndcg@10': 0.6309, 'map': 0.5}
        >>> metrics.lists, metrics.empty
        (2, 1)
        >>> metrics.update(torch.tensor([500]), torch.tensor([1]), torch.tensor([0, 1]), num_documents=1000)  # a rank
        >>> metrics.compute()["map"].item()
        0.251
    """

    def compute(self) -> dict[str, Tensor]:
        """Mean of each measure over the lists that have a value; nan if none has."""
        return Values(zip(self.measures, self.means(), strict=True))

    def per_query(self) -> dict[str, Tensor]:
        """Value of every list on the host, `(num_queries,)` per measure; nan where it has none or was not measured."""
        if self.num_queries is None:
            raise ValueError("values per list are kept only with num_queries=: give it when making RankingMetrics")
        self.compute()
        return Values(zip(self.measures, self._table.unbind(1), strict=True))

    def summary(self) -> dict[str, Any]:
        """The text of the convention, the numbers of lists, the means and, where they are kept, the values per list."""
        summary = {
            "text": describe(self.convention, threshold=self.threshold),
            "lists": self.lists,
            "empty": self.empty,
            "measures": dict(zip(self.measures, self._means.tolist(), strict=True)),
        }
        if self.num_queries is not None:
            summary["per_query"] = dict(self.per_query())
        return summary


# ---------------------------------------------------------------------------------------------- single measures


class SingleMetric(ListMetric):
    """The mean of one measure over lists, as a scalar in torch's default dtype; sums are in float64."""

    row: ClassVar[Measure]  # of `MEASURES`
    plot_lower_bound: float | None = 0.0

    def __init__(self, *given: Any, **options: Any):
        bound = inspect.signature(type(self)).bind(*given, **options)
        bound.apply_defaults()
        known, k = bound.arguments, bound.arguments.pop("k", None)
        check_integer(">= 1", k=k)
        name = self.row.name if k is None else f"{self.row.name}@{k}"
        super().__init__([name], **known.pop("kwargs"), **known)

    def compute(self) -> Tensor:
        """The mean over the lists that have a value; nan if none has."""
        return self.means()[0].to(torch.get_default_dtype())


def single_metric(row: Measure) -> type[SingleMetric]:
    """The class of one measure, with the options that it has, and its example as a mean over lists.

    >>> single_metric(MEASURES["p"]), inspect.signature(single_metric(MEASURES["p"]))
    (<class 'torchrank.metrics.Precision'>, <Signature (k: int, convention: str = 'default', *, threshold: float | None = None, **kwargs: Any)>)
    """  # noqa: E501
    options = _options(row)
    facts: dict[str, Any] = {
        "row": row,
        "higher_is_better": row.better == "higher",
        "plot_upper_bound": row.highest,
        "__signature__": inspect.Signature([parameter for parameter, _ in options.values()]),
        "__doc__": _doc(row, options),
        "__module__": __name__,
    }
    return type(row.metric or row.name, (SingleMetric,), facts)


def _options(row: Measure) -> dict[str, tuple[inspect.Parameter, str]]:
    """The options of the class of a measure, and what its docstring says of each."""
    one, both = inspect.Parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD
    defined = [name for name, rules in CONVENTIONS.items() if row.name in rules.measures]
    options: list[tuple[bool, str, Any, Any, Any, str]] = [
        ("max_label" in row.options, "max_label", both, one.empty, float, "the top label of the data set, not of the "
         "batch: 4 for web data, 2 for OHSUMED and MQ200x."),
        (row.cut == "optional", "k", both, None, int | None, "the number of ranks that count; None counts all."),
        (row.cut == "required", "k", both, one.empty, int, "the number of ranks that count."),
        (len(defined) > 1, "convention", both, "default", str, f"whose definition: {', '.join(defined)}."),
        ("threshold" in row.options, "threshold", one.KEYWORD_ONLY, None, float | None,
         "the lowest grade that counts as relevant; None: that of the convention."),
        (True, "kwargs", one.VAR_KEYWORD, one.empty, Any, "options of `torchmetrics.Metric`."),
    ]  # fmt: skip
    return {
        name: (one(name, kind, default=default, annotation=type_), text)
        for has, name, kind, default, type_, text in options
        if has
    }


def _doc(row: Measure, options: dict[str, tuple[inspect.Parameter, str]]) -> str:
    """A docstring with the summary and the example of the function."""
    text = inspect.getdoc(row.function) or ""
    lines = [f"The mean over lists of `{row.function.__name__}`. {text.partition(chr(10))[0]}", "", "Args:"]
    lines += [f"    {name}: {what}" for name, (_, what) in options.items()]
    example = re.search(r">>> (\w+\(.*\))\n +tensor\(\[(?:nan, *)?([\d.]+)[^\d]*\]\)", text)
    if example:
        call = cast(ast.Call, ast.parse(example[1], mode="eval").body)
        made, lists = (", ".join(map(ast.unparse, part)) for part in (call.keywords, call.args))
        lines += ["", "Example:", f"    >>> metric = {row.metric}({made})", f"    >>> metric({lists})"]
        lines += [f"    tensor({example[2]})"]
    return "\n".join(lines)


if TYPE_CHECKING:  # the classes of the table, for type checkers and editors

    class AUC(SingleMetric): ...

    class DCG(SingleMetric): ...

    class NDCG(SingleMetric): ...

    class AllPairsError(SingleMetric): ...

    class DominationError(SingleMetric): ...

    class ExpectedReciprocalRank(SingleMetric): ...

    class HitRate(SingleMetric): ...

    class MeanAveragePrecision(SingleMetric): ...

    class MeanNDCG(SingleMetric): ...

    class MeanReciprocalRank(SingleMetric): ...

    class Precision(SingleMetric): ...

    class Recall(SingleMetric): ...

else:

    def __getattr__(name: str) -> type[SingleMetric]:
        """The class of this name, made from the table when it is first asked for."""
        for row in MEASURES.values():
            if row.metric == name:
                return globals().setdefault(name, single_metric(row))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

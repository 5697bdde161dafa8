"""Measures accumulated over batches and processes: sums that meet once, at the end."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from torchrank.functional.conventions import convention_of, evaluate, parse_measure
from torchrank.functional.ragged import segment_max


class RankingMetrics(Metric):
    """Means of `measures` in one convention over all lists of all processes; lists without a value (nan) are left out.

    All states are sums, so any split of the lists into batches and processes gives the same result, to the rounding of
    float64. With `num_queries` the value of every list is kept too: each process fills its own rows of one table, and
    the sum of the tables is the whole. `update` never synchronises; `lists`, `empty` and `per_query()` are those of
    `compute()`, which every process has to call.

    >>> metrics = RankingMetrics(["ndcg@10", "map"])
    >>> metrics.update(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]))
    >>> {name: round(value.item(), 4) for name, value in metrics.compute().items()}, metrics.lists, metrics.empty
    ({'ndcg@10': 0.6309, 'map': 0.5}, 2, 1)
    """

    full_state_update = False
    sums: Tensor  # (measures,)
    counts: Tensor  # (measures,) lists with a value
    totals: Tensor  # (3,) lists, lists without relevant entry, batches with NaN scores
    table: Tensor  # (num_queries, measures)
    seen: Tensor  # (num_queries,)

    def __init__(
        self,
        measures: Sequence[str],
        convention: str = "default",
        *,
        num_queries: int | None = None,
        threshold: float | None = None,
        max_label: float | None = None,
    ):
        super().__init__()
        for name in measures:  # a misspelt measure fails here, not after the first epoch
            if parse_measure(name, convention).family == "err" and max_label is None:
                raise ValueError("err needs max_label, the top label of the data set (4 for web data, 2 for MQ2008)")
        self.measures, self.convention, self.num_queries = list(measures), convention, num_queries
        self.threshold, self.max_label = threshold, max_label
        width = len(self.measures)
        self._sum_state("sums", width, dtype=torch.float64)
        self._sum_state("counts", width)
        self._sum_state("totals", 3)
        if num_queries is not None:
            self._sum_state("table", num_queries, width, dtype=torch.float64)
            self._sum_state("seen", num_queries)

    def _sum_state(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn, *arguments):
        """A cast of the ranker (`trainer.precision=bf16-true`) does not touch the sums: they follow to its device."""
        return super()._apply(lambda state: state.to(fn(state.new_empty(0)).device), *arguments)

    def update(
        self,
        scores: Tensor,
        labels: Tensor,
        offsets: Tensor,
        *,
        query: Tensor | None = None,
        tiebreak: Tensor | None = None,
        classes: Tensor | None = None,
        query_classes: Tensor | None = None,
        max_length: int | None = None,
        num_grades: int | None = None,
    ) -> None:
        """Adds the lists of a batch; `query (Q,)` are their rows in the table of values, `classes (N,)` and
        `query_classes (Q,)` are for `knn_error@k`."""
        found = evaluate(
            scores,
            labels,
            offsets,
            measures=self.measures,
            convention=self.convention,
            threshold=self.threshold,
            max_label=self.max_label,
            tiebreak=tiebreak,
            classes=classes,
            query_classes=query_classes,
            max_length=max_length,
            num_grades=num_grades,
        )
        values = torch.stack([found[name].to(self.sums.dtype) for name in self.measures], dim=1)  # (Q, measures)
        defined = ~values.isnan()
        self.sums += torch.where(defined, values, 0).sum(0)
        self.counts += defined.sum(0)
        threshold = convention_of(self.convention, self.threshold).threshold
        empty = (segment_max(labels, offsets) < threshold).sum()
        lists = torch.full_like(empty, len(offsets) - 1)
        self.totals += torch.stack([lists, empty, torch.isnan(scores).any().long()])
        if self.num_queries is not None:
            if query is None:
                raise ValueError(f"RankingMetrics(num_queries={self.num_queries}) keeps values per list: give query=")
            self.table[query] = values
            self.seen[query] += 1

    def compute(self) -> dict[str, Tensor]:
        """Mean of each measure over the lists that have a value; nan if none has."""
        lists, empty, invalid = self.totals.tolist()
        if invalid:
            raise ValueError(f"scores were NaN in {invalid} batches: no ranking is defined. Did training diverge?")
        self._lists, self._empty = lists, empty
        if self.num_queries is not None:
            if (self.seen > 1).any():
                again = int(self.seen.argmax())
                raise ValueError(f"list {again} was measured {self.seen[again].item()} times: reset() between passes")
            self._table = torch.where(self.seen[:, None] > 0, self.table, torch.nan)
        return dict(zip(self.measures, self.sums / self.counts, strict=True))

    @property
    def lists(self) -> int:
        """Number of lists measured, over all processes."""
        self.compute()
        return self._lists

    @property
    def empty(self) -> int:
        """Number of lists without a relevant entry: left out of the means where the convention gives them no value."""
        self.compute()
        return self._empty

    def per_query(self) -> dict[str, Tensor]:
        """Value of every list, `(num_queries,)` per measure; nan where it has none or was not measured."""
        if self.num_queries is None:
            raise ValueError("values per list are kept only with num_queries=: give it when making RankingMetrics")
        self.compute()
        return dict(zip(self.measures, self._table.unbind(1), strict=True))

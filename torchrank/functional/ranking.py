"""Lists in rank order: the one sort that all measures share, relevant entries, and what ties mean."""

import math
from dataclasses import dataclass, field
from numbers import Integral
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from torchrank.errors import DataError
from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.arrays import result_dtype as result_dtype
from torchrank.functional.gains import Gain, check_gains, gain_of
from torchrank.functional.lists import Given, Lists, takes_arrays
from torchrank.functional.ragged import runs


class Hits(NamedTuple):
    """Relevant entries in rank order. Everything is float64, exact up to 2^53 and ready for division."""

    relevant: Tensor  # (N,) 1 or 0
    so_far: Tensor  # (N,) relevant entries of the list up to and including this one
    number: Tensor  # (Q,) relevant entries of the list
    total: Tensor  # (Q,) relevant documents of the query, with those that were not retrieved
    first: Tensor  # (Q,) the index of the first relevant entry; where there is none, any index or N
    gains: Tensor  # (N,) `relevant` times the weights
    mass: Tensor  # (Q,) `total`, or where there are weights their sum over the relevant entries


@dataclass
class Ranking:
    """Lists in rank order: what every measure is computed from."""

    order: Tensor  # (N,) entries best first, list by list
    unordered: Tensor  # (N,) scores in the given order
    labels: Tensor  # (N,) in rank order
    lists: Lists
    weights: Tensor | None = None  # (N,) in rank order, float64; None: all 1
    num_relevant: Tensor | None = None  # (Q,) relevant documents, retrieved or not; None: those in the list or judged
    judged: tuple[Tensor, Lists] | None = None  # labels of all documents, retrieved or not; None: those in the list
    given: Tensor | None = None  # (N,) ranks where entries of label 0 are left out, without weights; None: 1, 2, 3, ...
    length: int | None = None  # entries of each list, with those that are left out
    kept: dict[float, Hits] = field(default_factory=dict)  # by threshold

    @property
    def scores(self) -> Tensor:
        """(N,) in rank order; few measures need them."""
        return self.unordered.index_select(0, self.order)

    @property
    def lengths(self) -> Tensor:
        """(Q,) entries of each list."""
        lengths = self.lists.offsets.diff()
        return lengths if self.length is None else torch.full_like(lengths, self.length, dtype=torch.int64)

    @property
    def ranks(self) -> Tensor:
        """(N,) rank in the list, from 1, float64; a new tensor."""
        if self.given is not None:
            return wide(self.given)
        starts = wide(self.lists.offsets).index_select(0, self.lists.ids)
        return torch.arange(1, len(starts) + 1, dtype=starts.dtype, device=starts.device).sub_(starts)

    def hits(self, threshold: float) -> Hits:
        """The relevant entries, those with at least the label `threshold`: one running count over all lists."""
        if threshold not in self.kept:
            self.kept[threshold] = self._hits(threshold)
        return self.kept[threshold]

    def _hits(self, threshold: float) -> Hits:
        offsets, relevant = self.lists.offsets, wide(self.labels >= threshold)
        running = relevant.new_zeros(relevant.shape[0] + 1)
        torch.cumsum(relevant, 0, out=running[1:])
        bounds = running.index_select(0, offsets)
        before, count = bounds[:-1], bounds.diff()
        so_far = before.index_select(0, self.lists.ids)
        torch.sub(running[1:], so_far, out=so_far)
        first = torch.searchsorted(running, before + 1) - 1  # `running` exceeds `before` right after this entry
        total = count
        if self.num_relevant is not None:
            total = check_total(count, self.num_relevant)
        elif self.judged is not None:
            labels, lists = self.judged
            total = check_total(count, lists.sum(wide(labels >= threshold)))
        if self.weights is None:
            return Hits(relevant, so_far, count, total, first, relevant, total)
        gains = relevant * self.weights
        return Hits(relevant, so_far, count, total, first, gains, self.lists.sum(gains))

    def best(self) -> tuple[Tensor, Lists]:
        """The labels of which the ideal order is made, and their lists.

        The number of relevant documents says enough if labels are 0 and 1; graded ones have to be given themselves.
        """
        if self.judged is not None or self.num_relevant is None:
            return self.judged or (self.labels, self.lists)
        if not bool(((self.labels == 0) | (self.labels == 1)).all()):
            raise ValueError(
                "the best NDCG depends on the grades of documents that were not retrieved, which num_relevant does "
                "not tell: give judged=(labels, offsets), the labels of all judged documents of each query"
            )
        total = self.hits(1).total.long()
        lists = Lists.of(group=total)
        return torch.ones(lists.num_entries, device=total.device), lists

    def gains(self, gain: Gain) -> Tensor:
        """Gains times weights in rank order, `(N,)`."""
        check_gains(self.labels, gain, self.lists.grades)
        gains = gain_of(self.labels, gain)
        return gains if self.weights is None else gains * self.weights


def rank(
    scores: Tensor,
    labels: Tensor,
    lists: Lists,
    k: int | None = None,
    *,
    weights: Tensor | None = None,
    num_relevant: Tensor | None = None,
    judged: tuple[Array, Array] | None = None,
    tiebreak: Tensor | None = None,
) -> Ranking:
    """The entries sorted by descending score, list by list; equal scores by ascending `tiebreak`, then stable.

    A cut-off `k` that makes no sense is refused, and so are weights where documents were not retrieved.

    >>> rank(torch.tensor([1.0, 2.0]), torch.tensor([0, 3]), Lists.of([0, 2])).labels
    tensor([3, 0])
    """
    if k is not None:
        check_cutoff(k)
    if weights is not None and (num_relevant is not None or judged is not None):
        raise ValueError(
            "weights are those of the entries of the lists: the weights of documents that were not retrieved "
            "(num_relevant, judged) are not known"
        )
    if tiebreak is None:
        order = lists.order(scores)
    else:
        first = lists.order(tiebreak, descending=False)
        order = first.index_select(0, lists.order(scores.index_select(0, first)))
    ranked = labels.index_select(0, order)  # three times as fast as labels[order]
    weights = None if weights is None else wide(weights.detach()).index_select(0, order)
    best = None if judged is None else judged_lists(judged, lists)
    return Ranking(order, scores.detach(), ranked, lists, weights, num_relevant, best)


def judged_lists(judged: tuple[Array, Array], lists: Lists) -> tuple[Tensor, Lists]:
    """The labels of all judged documents, given as any arrays, and their lists, of which there are as many."""
    if not isinstance(judged, tuple | list) or len(judged) != 2:
        raise DataError(f"judged must be (labels, offsets) of all judged documents, got {type(judged).__name__}")
    labels, their_lists = _as_lists(*judged)
    if len(their_lists) != len(lists):
        raise ValueError(f"judged has {len(their_lists)} lists of labels, but there are {len(lists)}")
    return labels, their_lists


@takes_arrays
def _as_lists(labels: Array, offsets: Array = None, **given: Unpack[Given]) -> tuple[Tensor, Lists]:
    return labels, offsets


def check_total(count: Tensor, num_relevant: Tensor) -> Tensor:
    """The numbers of relevant documents `(Q,)` in float64, which must not be smaller than those that were retrieved."""
    if num_relevant.shape != count.shape:
        raise ValueError(f"num_relevant must be {tuple(count.shape)}, one per list, got {tuple(num_relevant.shape)}")
    total = wide(num_relevant)
    if (wrong := host(~(total >= count))) is not None and wrong.any():
        place = int(wrong.argmax())
        numbers = f"{num_relevant[place].item()}, but the list has {int(count[place])} relevant entries"
        raise ValueError(f"num_relevant counts retrieved documents too: num_relevant[{place}] is {numbers}")
    return total


def check_cutoff(k: int | None) -> None:
    """Refuses a cut-off that is not a positive integer or None, the whole list."""
    if k is not None and (not isinstance(k, Integral) or k < 1):
        raise ValueError(f"k must be a positive integer or None (the whole list), got {k!r}")


# ties="average": the mean over all orders of equal scores (McSherry & Najork 2008)


def average_gains(ranking: Ranking, gains: Tensor) -> Tensor:
    """Gains in rank order, `(N,)`, each replaced by the mean over the entries of the list with the same score."""
    first, after = runs(ranking.scores, ranking.lists.offsets)
    return _sum_of_run(gains, first) / (after - first)


def average_hits(ranking: Ranking, hits: Hits) -> tuple[Tensor, Tensor]:
    """The probability that the entry at each rank is relevant, `(N,)`, and the mean number of relevant entries up to
    and including it when it is, `(N,)`.

    With n equal scores, r of them relevant, these are r/n and, at the i-th of their ranks, the number of relevant
    entries before them + 1 + (i - 1) (r - 1) / (n - 1).
    """
    first, after = runs(ranking.scores, ranking.lists.offsets)
    relevant = _sum_of_run(hits.relevant, first)
    before = (hits.so_far - hits.relevant)[first]
    place = torch.arange(len(first), device=first.device) - first
    among = place * (relevant - 1) / (after - first - 1).clamp(min=1)
    return relevant / (after - first), before + 1 + among


def _sum_of_run(values: Tensor, first: Tensor) -> Tensor:
    """For every entry the sum over the run of equal scores that starts at `first (N,)`."""
    return torch.zeros_like(values).index_add(0, first, values)[first]


def ratio(numerator: Tensor, denominator: Tensor, empty: float = math.nan) -> Tensor:
    """numerator / denominator; `empty` where the denominator is not positive."""
    missing = ~(denominator > 0)
    return (numerator / denominator.masked_fill(missing, 1)).masked_fill(missing, empty)

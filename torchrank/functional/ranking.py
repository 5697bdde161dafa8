"""Lists in rank order: gains and discounts, the one sort that all measures share, relevant entries, what ties mean."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from torchrank.errors import DataError, DataWarning
from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.arrays import result_dtype as result_dtype
from torchrank.functional.lists import Given, Lists, bounds_of, takes_arrays
from torchrank.functional.ragged import runs

# ------------------------------------ gains and discounts: one named definition of each, for losses and measures alike

Function = Callable[[Tensor], Tensor]
Gain = str | Function
Discount = str | Function
Cuts = list[int | None]  # cut-offs; None is the whole list

GAINS: dict[str, Function] = {
    "exp2": lambda labels: torch.exp2(labels) - 1,
    "linear": lambda labels: labels,
}
DISCOUNTS: dict[str, Function] = {
    "log2p1": lambda ranks: 1 / torch.log2(ranks + 1),
    "letor": lambda ranks: 1 / torch.log2(ranks.clamp(min=2)),  # 1, 1, 1/log2(3), ...: Jarvelin & Kekalainen's form
}

FEW = 4096  # entries that take less time to sort than to count by grades
SMALL = 64  # cut-offs up to here are computed from the first labels of each list alone
LAST_GRADE = 31  # the last one that other tools know a gain of; 2^31 - 1 is 2 billion times the gain of grade 1
HUGE_GAINS = (
    f"there are labels above {LAST_GRADE}, whose gains 2^y - 1 outweigh all others: use gain='linear' or a convention "
    "with linear gains, or map the labels to fewer grades"
)
LAST_GAIN = 1000  # the last label whose gain 2^y - 1 can be summed in float64


def gain_of(labels: Tensor, gain: Gain = "exp2") -> Tensor:
    """The gain of each label: 2^y - 1 (`"exp2"`), y (`"linear"`), or a function of the labels (given in float64).

    >>> gain_of(torch.tensor([0, 1, 4])).tolist()
    [0.0, 1.0, 15.0]
    """
    if isinstance(gain, str) and gain in GAINS:
        return GAINS[gain](wide(labels))
    return wide(_function(gain, GAINS, "gain")(wide(labels)))


def check_gains(labels: Tensor, gain: Gain, grades: int = 0) -> None:
    """Warns of labels above 31 if gains are 2^y - 1, and refuses those whose gain is infinite.

    Labels are read where that is free, and only if `grades` does not say that there are none.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     check_gains(torch.tensor([50, 1]), "exp2", 51)
    >>> str(caught[0].message)[:66]
    'there are labels above 31, whose gains 2^y - 1 outweigh all others'
    """
    if 0 < grades <= LAST_GRADE + 1 or gain != "exp2":
        return
    highest = bounds_of(labels)[1]
    if highest > LAST_GAIN:
        raise ValueError(f"the gain 2^y - 1 of label {highest:g} is infinite: use gain='linear', or smaller labels")
    if highest > LAST_GRADE:
        warnings.warn(HUGE_GAINS, DataWarning, stacklevel=1)  # one text at one place, which Python shows once


def discount_of(ranks: Tensor, discount: Discount = "log2p1") -> Tensor:
    """The discount at each rank, from 1: 1/log2(1 + rank) (`"log2p1"`); 1, 1, 1/log2(3), 1/log2(4), ... as in the LETOR
    tools and the MLR paper (`"letor"`); or a function of the ranks (given in float64).

    >>> discount_of(torch.tensor([1, 3]), "log2p1").tolist(), discount_of(torch.tensor([1, 2, 4]), "letor").tolist()
    ([1.0, 0.5], [1.0, 1.0, 0.5])
    """
    if isinstance(discount, str) and discount in DISCOUNTS:
        return DISCOUNTS[discount](wide(ranks))
    return wide(_function(discount, DISCOUNTS, "discount")(wide(ranks)))


def _function(choice: str | Function, table: dict[str, Function], name: str) -> Function:
    if isinstance(choice, str) or not callable(choice):
        raise ValueError(f"unknown {name}={choice!r}: choose one of {', '.join(table)}, or give a function")
    return choice


def dcg_at(
    ordered: Tensor, lists: Lists, cuts: Cuts, *, gain: Gain, discount: Discount, ranks: Tensor | None = None
) -> list[Tensor]:
    """DCG of each list at each cut-off, `(Q,)` each, of labels in rank order, `(N,)`, or of several orders `(R, N)`.

    Small cut-offs share one `(Q, k)` block of the first labels of each list: entries after the cut-off are not touched,
    and three cut-offs cost as much as one. Where `ranks (N,)` are given, they are not 1, 2, ... and there is no block.

    >>> dcg_at(torch.tensor([2, 1]), Lists.of([0, 2]), [1, None], gain="exp2", discount="letor")
    [tensor([3.], dtype=torch.float64), tensor([4.], dtype=torch.float64)]
    """
    values: dict[int | None, Tensor] = {}
    small = _small(cuts) if ranks is None and lists.num_entries else []
    if small:
        width = max(1, min(max(small), lists.bound))
        slot = lists.offsets[:-1, None] + torch.arange(width, device=ordered.device)
        block = ordered.index_select(-1, slot.clamp_(max=lists.num_entries - 1).flatten())
        values |= _block_dcg(block.view(*ordered.shape[:-1], -1, width), lists, small, gain, discount)
    for k in cuts:
        if k not in values:
            rank = lists.positions + 1 if ranks is None else ranks
            terms = gain_of(ordered, gain) * discount_of(rank, discount)
            terms = terms if k is None else torch.where(rank <= k, terms, 0)
            values[k] = lists.sum(terms) if terms.ndim == 1 else lists.sum(terms.mT).mT
    return list(map(values.__getitem__, cuts))


def ideal_dcg_at(labels: Tensor, lists: Lists, cuts: Cuts, *, gain: Gain, discount: Discount) -> list[Tensor]:
    """DCG of each list in its best order at each cut-off, `(Q,)` each. Many labels with grades are counted, not sorted.

    >>> ideal_dcg_at(torch.tensor([0, 1]), Lists.of([0, 2]), [1], gain="exp2", discount="letor")
    [tensor([1.], dtype=torch.float64)]
    """
    small = _small(cuts)
    if len(small) < len(cuts) or len(labels) <= FEW or not lists.grades:
        return dcg_at(ideal_labels(labels, lists, gain), lists, cuts, gain=gain, discount=discount)
    grades, counts = _grade_counts(labels, lists, gain)
    # rank r of the best order holds the first grade up to which there are at least r entries
    rank = torch.arange(1, max(1, min(max(small), lists.bound)) + 1, device=labels.device)
    place = torch.searchsorted(counts.cumsum(1), rank.expand(len(counts), -1).contiguous())
    values = _block_dcg(grades[place.clamp(max=lists.grades - 1)], lists, small, gain, discount)
    return [values[k] for k in small]


def ideal_labels(labels: Tensor, lists: Lists, gain: Gain) -> Tensor:
    """The labels of each list by descending gain, `(N,)`.

    >>> ideal_labels(torch.tensor([0, 1, 0, 2]), Lists.of([0, 2, 4]), "exp2")
    tensor([1, 0, 2, 0])
    """
    if len(labels) > FEW and lists.grades:
        grades, counts = _grade_counts(labels, lists, gain)
        return grades.repeat(len(counts)).repeat_interleave(counts.flatten(), output_size=len(labels))
    if isinstance(gain, str):  # the named gains grow with the label
        return labels.index_select(0, lists.order(labels, grades=lists.grades))
    return labels.index_select(0, lists.order(gain_of(labels, gain)))


def _small(cuts: Cuts) -> list[int]:
    return [k for k in cuts if k is not None and k <= SMALL]


def _block_dcg(
    block: Tensor, lists: Lists, cuts: list[int], gain: Gain, discount: Discount
) -> dict[int | None, Tensor]:
    """DCG at each cut-off from the first labels of each list, `(..., Q, width)`; what follows the end of a list counts
    0."""
    width = block.shape[-1]
    rank = torch.arange(1, width + 1, device=block.device)
    terms = gain_of(block, gain) * discount_of(rank, discount)
    running = terms.masked_fill(rank > lists.offsets.diff()[:, None], 0).cumsum(-1)
    return {k: running[..., min(k, width) - 1] for k in cuts}


def _grade_counts(labels: Tensor, lists: Lists, gain: Gain) -> tuple[Tensor, Tensor]:
    """The grades by descending gain, `(K,)`, and how many entries of each list have them, `(Q, K)`."""
    number, device = lists.grades, labels.device
    grades = gain_of(torch.arange(number, device=device), gain).argsort(descending=True)
    counts = torch.zeros(len(lists) * number, dtype=torch.int64, device=device)
    index = torch.int32 if max(len(labels), len(counts)) < 2**31 else torch.int64  # half the memory to write
    bins = labels.to(index, copy=True).add_(lists.ids.to(index), alpha=number)
    one = torch.ones(1, dtype=torch.int64, device=device).expand(len(labels))
    return grades, counts.index_add(0, bins, one).view(-1, number)[:, grades]


def best_dcg(
    gains: Tensor, lists: Lists, k: int | None = None, discount: Discount = "log2p1", *, labels: Tensor | None = None
) -> Tensor:
    """The DCG at k of each list in its best order, `(Q,)`, from the gain of each entry, `(N,)`. Differentiable.

    Labels that fall and rise with the gains are sorted in less time.
    """
    discounts = discount_of(torch.arange(1, lists.bound + 1, device=gains.device), discount)
    if k is not None:
        discounts[k:] = 0
    if lists.small is not None:
        best = torch.zeros_like(lists.offsets[:-1], dtype=gains.dtype)
        rows = lists.small.fill(gains, 0.0).sort(1, descending=True).values
        rows = rows @ discounts[: rows.shape[1]]  # `bound` may be longer than the longest list
        return rows if lists.small.inside is None else best.index_copy(0, lists.small.lists, rows)
    order = lists.order(gains) if labels is None else lists.order(labels, grades=lists.grades)
    return lists.sum(gains.index_select(0, order) * discounts.index_select(0, lists.positions))


# ------------------------------------------------------------------------------------------------- lists in rank order


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

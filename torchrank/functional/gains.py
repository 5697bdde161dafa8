"""Gains and discounts: one named definition of each convention, for losses and measures alike."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from torchrank.errors import DataWarning
from torchrank.functional.arrays import wide
from torchrank.functional.lists import Lists, bounds_of

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
            values[k] = lists.sum(terms) if terms.ndim == 1 else torch.stack(list(map(lists.sum, terms)))
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
        rows = lists.small.fill(gains, 0.0).sort(1, descending=True).values @ discounts
        return rows if lists.small.inside is None else best.index_copy(0, lists.small.lists, rows)
    order = lists.order(gains) if labels is None else lists.order(labels, grades=lists.grades)
    return lists.sum(gains.index_select(0, order) * discounts.index_select(0, lists.positions))

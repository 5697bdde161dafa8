"""Gains and discounts: one named definition of each convention, for losses and measures alike."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from torchrank.errors import DataWarning
from torchrank.functional.operations import readable
from torchrank.functional.ragged import list_ids, measure_sum, positions_within, read, sort_within, wide

Function = Callable[[Tensor], Tensor]
Gain = str | Function
Discount = str | Function

GAINS: dict[str, Function] = {
    "exp2": lambda labels: torch.exp2(labels) - 1,
    "linear": lambda labels: labels,
}
DISCOUNTS: dict[str, Function] = {
    "log2p1": lambda ranks: 1 / torch.log2(ranks + 1),
    "letor": lambda ranks: 1 / torch.log2(ranks.clamp(min=2)),  # 1, 1, 1/log2(3), ...: Jarvelin & Kekalainen's form
}

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
    return wide(_named(gain, GAINS, "gain")(wide(labels)))


def check_gains(labels: Tensor, gain: Gain, num_grades: int | None) -> None:
    """Warns of labels above 31 if gains are 2^y - 1, and refuses those whose gain is infinite.

    Labels are read on CPU only, and only if `num_grades` does not tell that there are none.

    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     check_gains(torch.tensor([50, 1]), "exp2", 51)
    >>> str(told[0].message)[:66]
    'there are labels above 31, whose gains 2^y - 1 outweigh all others'
    """
    few = num_grades is not None and 0 < num_grades <= LAST_GRADE + 1
    if few or gain != "exp2" or not readable(labels) or len(labels) == 0:
        return
    highest = read(labels.max())
    if highest > LAST_GAIN:
        raise ValueError(f"the gain 2^y - 1 of label {highest:g} is infinite: use gain='linear', or smaller labels")
    if highest > LAST_GRADE:
        warnings.warn(HUGE_GAINS, DataWarning, stacklevel=1)  # one text at one place, which Python tells once


def discount_of(ranks: Tensor, discount: Discount = "log2p1") -> Tensor:
    """The discount at each rank, from 1: 1/log2(1 + rank) (`"log2p1"`); 1, 1, 1/log2(3), 1/log2(4), ... as in the LETOR
    tools and the MLR paper (`"letor"`); or a function of the ranks (given in float64).

    >>> discount_of(torch.tensor([1, 3]), "log2p1").tolist(), discount_of(torch.tensor([1, 2, 4]), "letor").tolist()
    ([1.0, 0.5], [1.0, 1.0, 0.5])
    """
    return wide(_named(discount, DISCOUNTS, "discount")(wide(ranks)))


def _named(choice: str | Function, table: dict[str, Function], name: str) -> Function:
    if not isinstance(choice, str) and callable(choice):
        return choice
    if choice not in table:
        raise ValueError(f"unknown {name}={choice!r}: choose one of {', '.join(table)}, or give a function")
    return table[choice]


def dcg(
    labels: Tensor,
    offsets: Tensor,
    *,
    cutoffs: list[int | None],
    gain: Gain,
    discount: Discount,
    longest: int,
    ranks: Tensor | None = None,
) -> list[Tensor]:
    """DCG of each list at each cut-off, `(Q,)` each; `labels (N,)` are in rank order, None is the whole list.

    Small cut-offs share one `(Q, k)` block of the first labels of each list: entries after the cut-off are not touched,
    and three cut-offs cost as much as one. Where `ranks (N,)` are given, they are not 1, 2, ... and there is no block.

    >>> dcg(torch.tensor([2, 1]), torch.tensor([0, 2]), cutoffs=[1, None], gain="exp2", discount="letor", longest=2)
    [tensor([3.], dtype=torch.float64), tensor([4.], dtype=torch.float64)]
    """
    small = [k for k in cutoffs if is_small(k) and ranks is None]
    found: dict[int | None, Tensor] = {}
    if small:
        known = labels if len(labels) else labels.new_zeros(1)
        slot = offsets[:-1, None] + torch.arange(block_width(small, longest), device=labels.device)
        block = known[slot.clamp_(max=len(known) - 1)]
        found |= zip(small, block_dcg(block, offsets, cutoffs=small, gain=gain, discount=discount), strict=True)
    for k in set(cutoffs) - set(small):
        rank = positions_within(offsets, len(labels)) + 1 if ranks is None else ranks
        terms = gain_of(labels, gain) * discount_of(rank, discount)
        found[k] = measure_sum(terms if k is None else torch.where(rank <= k, terms, 0), offsets)
    return [found[k] for k in cutoffs]


def is_small(k: int | None) -> bool:
    return k is not None and k <= 64


def block_width(cutoffs: list[int | None], longest: int) -> int:
    return max(1, min(max(k for k in cutoffs if k is not None), longest))


def block_dcg(
    block: Tensor, offsets: Tensor, *, cutoffs: list[int | None], gain: Gain, discount: Discount
) -> list[Tensor]:
    """DCG at each cut-off from the first labels of each list, `(Q, width)`; what follows the end of a list counts 0."""
    width = block.shape[1]
    rank = torch.arange(1, width + 1, device=block.device)
    terms = gain_of(block, gain) * discount_of(rank, discount)
    running = torch.where(rank <= offsets.diff()[:, None], terms, 0).cumsum(1)
    return [running[:, min(k or width, width) - 1] for k in cutoffs]


def ideal_dcg(
    labels: Tensor,
    offsets: Tensor,
    *,
    cutoffs: list[int | None],
    gain: Gain,
    discount: Discount,
    longest: int,
    num_grades: int | None,
) -> list[Tensor]:
    """DCG of each list in its best order at each cut-off, `(Q,)` each.

    >>> ideal_dcg(torch.tensor([0, 1]), torch.tensor([0, 2]), cutoffs=[1], gain="exp2", discount="letor", longest=2,
    ...           num_grades=2)
    [tensor([1.], dtype=torch.float64)]
    """
    if not num_grades or not all(map(is_small, cutoffs)):
        best = ideal_labels(labels, offsets, gain=gain, longest=longest, num_grades=num_grades)
        return dcg(best, offsets, cutoffs=cutoffs, gain=gain, discount=discount, longest=longest)
    grades, counts = grade_counts(labels, offsets, gain, num_grades)
    # rank r of the best order holds the first grade up to which there are at least r entries
    rank = torch.arange(1, block_width(cutoffs, longest) + 1, device=labels.device)
    place = torch.searchsorted(counts.cumsum(1), rank.expand(len(counts), -1).contiguous())
    block = grades[place.clamp(max=num_grades - 1)]
    return block_dcg(block, offsets, cutoffs=cutoffs, gain=gain, discount=discount)


def grade_counts(labels: Tensor, offsets: Tensor, gain: Gain, num_grades: int) -> tuple[Tensor, Tensor]:
    """The grades by descending gain, `(K,)`, and how many entries of each list have them, `(Q, K)`."""
    grades = gain_of(torch.arange(num_grades, device=labels.device), gain).argsort(descending=True)
    counts = torch.zeros((len(offsets) - 1) * num_grades, dtype=torch.int64, device=labels.device)
    index = torch.int32 if max(len(labels), len(counts)) < 2**31 else torch.int64  # half the memory to write
    bins = labels.to(index, copy=True).add_(list_ids(offsets.to(index), len(labels)), alpha=num_grades)
    one = torch.ones(1, dtype=torch.int64, device=labels.device).expand(len(labels))
    return grades, counts.index_add(0, bins, one).view(-1, num_grades)[:, grades]


def ideal_labels(labels: Tensor, offsets: Tensor, *, gain: Gain, longest: int, num_grades: int | None) -> Tensor:
    """Labels of each list by descending gain, `(N,)`. Grades 0..K-1 are counted, not sorted.

    >>> ideal_labels(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 2, 4]), gain="exp2", longest=2, num_grades=3).tolist()
    [1, 0, 2, 0]
    """
    if not num_grades:
        by = labels if isinstance(gain, str) else gain_of(labels, gain)  # the named gains grow with the label
        return labels[sort_within(by, offsets, max_length=longest)]
    grades, counts = grade_counts(labels, offsets, gain, num_grades)
    return grades.repeat(len(counts)).repeat_interleave(counts.flatten(), output_size=len(labels))


def best_dcg(gains: Tensor, lists: Lists, k: int | None = None, discount: Discount = "log2p1") -> Tensor:
    """The DCG at k of each list in its best order, `(Q,)`, from the gain of each entry, `(N,)`."""
    place = lists.positions
    discounts = discount_of(torch.arange(1, lists.bound + 1, device=gains.device), discount).index_select(0, place)
    best = gains.index_select(0, lists.order(gains)) * discounts
    return lists.sum(best if k is None else torch.where(place < k, best, 0))

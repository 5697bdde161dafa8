"""Gains and discounts: one definition for losses and measures. A convention is decided here, once, and has a name."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchrank.functional.ragged import list_ids, positions_within, segment_sum, sort_within

Gain = str | Callable[[Tensor], Tensor]
Discount = str | Callable[[Tensor], Tensor]

GAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp2": lambda labels: torch.exp2(labels) - 1,
    "linear": lambda labels: labels,
}
DISCOUNTS: dict[str, Callable[[Tensor], Tensor]] = {
    "log2p1": lambda ranks: 1 / torch.log2(ranks + 1),
    "letor": lambda ranks: 1 / torch.log2(ranks.clamp(min=2)),  # 1, 1, 1/log2(3), ...: Jarvelin & Kekalainen's form
}


def wide(values: Tensor) -> Tensor:
    """`values` in the type in which sums are made: float64, or float32 on a device that has no float64 (mps)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def gain_of(labels: Tensor, gain: Gain = "exp2") -> Tensor:
    """Gain of each label, `"exp2"`: 2^y - 1, `"linear"`: y, or a function of the labels (given in float64).

    >>> gain_of(torch.tensor([0, 1, 4])).tolist()
    [0.0, 1.0, 15.0]
    """
    return wide(_named(gain, GAINS, "gain")(wide(labels)))


def discount_of(ranks: Tensor, discount: Discount = "log2p1") -> Tensor:
    """Discount at each rank (from 1), `"log2p1"`: 1/log2(1 + rank), `"letor"`: 1, 1, 1/log2(3), 1/log2(4), ..., as in
    the LETOR tools and the MLR paper, or a function of the ranks (given in float64).

    >>> discount_of(torch.tensor([1, 3]), "log2p1").tolist(), discount_of(torch.tensor([1, 2, 4]), "letor").tolist()
    ([1.0, 0.5], [1.0, 1.0, 0.5])
    """
    return wide(_named(discount, DISCOUNTS, "discount")(wide(ranks)))


def _named(choice, table: dict, what: str) -> Callable[[Tensor], Tensor]:
    if callable(choice):
        return choice
    if choice not in table:
        raise ValueError(f"unknown {what} {choice!r}: choose one of {sorted(table)} or give a function")
    return table[choice]


def dcg(
    labels: Tensor, offsets: Tensor, *, cutoffs: list[int | None], gain: Gain, discount: Discount, longest: int
) -> list[Tensor]:
    """Discounted gain of each list at each cut-off, `(Q,)` each; `labels (N,)` in rank order, None is the whole list.

    Small cut-offs share one `(Q, k)` block of the first labels of each list and its running sum: entries behind the
    cut-off are not touched, and three cut-offs cost what one does.

    >>> dcg(torch.tensor([2, 1]), torch.tensor([0, 2]), cutoffs=[1, None], gain="exp2", discount="letor", longest=2)
    [tensor([3.], dtype=torch.float64), tensor([4.], dtype=torch.float64)]
    """
    small = [k for k in cutoffs if k is not None and k <= 64]
    found: dict[int | None, Tensor] = {}
    if small:
        width = max(1, min(max(small), longest))
        rank = torch.arange(1, width + 1, device=labels.device)
        slot = offsets[:-1, None] + rank - 1
        exists = slot < offsets[1:, None]
        first = torch.nn.functional.pad(labels, (0, 1))[torch.where(exists, slot, len(labels))]  # (Q, width)
        running = torch.where(exists, gain_of(first, gain) * discount_of(rank, discount), 0).cumsum(1)
        found |= {k: running[:, min(k, width) - 1] for k in small}
    for k in set(cutoffs) - set(small):
        rank = positions_within(offsets, len(labels)) + 1
        terms = gain_of(labels, gain) * discount_of(rank, discount)
        found[k] = segment_sum(terms if k is None else torch.where(rank <= k, terms, 0), offsets)
    return [found[k] for k in cutoffs]


def ideal_labels(labels: Tensor, offsets: Tensor, *, gain: Gain, longest: int, num_grades: int | None) -> Tensor:
    """Labels of each list in the order of descending gain, `(N,)`.

    Grades 0..K-1 are counted, not sorted; a callable gain may order them differently from the labels.

    >>> ideal_labels(torch.tensor([0, 1, 0, 2]), torch.tensor([0, 2, 4]), gain="exp2", longest=2, num_grades=3).tolist()
    [1, 0, 2, 0]
    """
    if not num_grades:
        by = labels if isinstance(gain, str) else gain_of(labels, gain)  # the named gains grow with the label
        return labels[sort_within(by, offsets, max_length=longest)]
    lists = len(offsets) - 1
    grade = list_ids(offsets, len(labels)) * num_grades + labels.long()
    counts = torch.zeros(lists * num_grades, dtype=torch.int64, device=labels.device)
    counts = counts.index_add(0, grade, torch.ones_like(grade)).view(lists, num_grades)
    best = gain_of(torch.arange(num_grades, device=labels.device), gain).argsort(descending=True)
    return best.repeat(lists).repeat_interleave(counts[:, best].flatten(), output_size=len(labels))

"""Stable orders by score, best first, of flat lists and of rows, computed on whole tensors.

Numbers are read (`tolist`) only on the CPU, where that is free.
"""

import torch
from torch import Tensor

from torchrank.functional.operations import readable

FEW = 2**15  # torch sorts fewer integers by comparisons: 1.4 ms for 29,000 on the CPU, and numpy 0.1 ms


def sort_keys(
    scores: Tensor, ids: Tensor, *, lists: int, descending: bool = True, num_grades: int | None = None
) -> Tensor:
    """`sort_within` for a caller who already has the list of every entry.

    One stable sort of int64 keys (list, score bits). On CPU torch has a radix sort for integers: 11 ms for 700,000
    entries, where a stable sort of floats takes 75 ms and would be needed twice, or padded rows. When the score bits
    leave no room for the list (float64, int64), the scores are first replaced by their rank among all scores, which
    takes a second sort of the same kind; on CPU float64 is first tried with its last bits cut off. Grades
    0..num_grades-1 need few bits: keys of 16 bits take a third of the time.
    """
    if num_grades:
        keys = scores.detach().long()
        keys = torch.add(num_grades - 1 - keys if descending else keys, ids, alpha=num_grades)
        return stable_order(keys, max(lists, 1) * num_grades)
    keys, levels = _ordered_integers(scores.detach(), descending=descending)
    if max(lists, 1) * levels > 2**63:
        if scores.is_floating_point() and readable(scores):
            order = _sort_cut(keys, ids, lists=lists)
            if order is not None:
                return order
        values, order = torch.sort(keys)
        keys.scatter_(0, order, _count_changes(values))
        levels = len(scores)
    return stable_order(keys.add_(ids, alpha=levels), max(lists, 1) * levels)


def stable_order(keys: Tensor, most: int) -> Tensor:
    """The positions of int64 keys in their order; those of equal keys ascend. The keys are smaller than `most`, and so
    are their negatives.

    >>> stable_order(torch.tensor([7, -1, 7, 3]), 8)
    tensor([1, 3, 0, 2])
    """
    if _are_few(keys):
        places = (len(keys) - 1).bit_length()
        if most << places <= 2**63:
            packed = (keys << places).bitwise_or_(torch.arange(len(keys)))
            packed.numpy().sort()
            return packed.bitwise_and_(2**places - 1)
    return torch.sort(keys.to(torch.int16) if most <= 2**15 else keys, stable=True).indices


def _are_few(keys: Tensor) -> bool:
    """Whether numpy sorts them faster."""
    return readable(keys) and len(keys) < FEW


def _sort_cut(keys: Tensor, ids: Tensor, *, lists: int) -> Tensor | None:
    """One sort by (list, first bits of a 64-bit key); None if entries that differ in the other bits are misplaced."""
    places = (len(keys) - 1).bit_length() if _are_few(keys) else 0
    cut = max(lists - 1, 1).bit_length() + 1 + places
    short = (keys >> cut).add_(ids, alpha=2 ** (64 - cut))
    order = stable_order(short, 2 ** (63 - places))
    ordered, short = keys.index_select(0, order), short.index_select(0, order)
    falls = ordered[1:] < ordered[:-1]
    return None if (falls & (short[1:] == short[:-1])).any().tolist() else order


def sort_marked(scores: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Stable order of every row of `scores (Q, L)`, best first, as columns `(Q, L)`, and the boolean `marks (Q, L)` in
    that order as 0 and 1.

    On CPU numpy sorts float64 as integers whose last bits hold the column and the mark: a sixth of the time of
    torch.sort, which is used only if entries differ in no other bits.

    >>> order, marks = sort_marked(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([[True, False, False]]))
    >>> order.tolist(), marks.tolist()
    ([[1, 2, 0]], [[0, 0, 1]])
    """
    if readable(scores) and scores.dtype == torch.float64 and scores.numel() > 0:
        columns, cut = scores.shape[1], 2 ** ((scores.shape[1] - 1).bit_length() + 1)
        packed, _ = _ordered_integers(scores.detach(), descending=True)
        packed.bitwise_and_(-cut).bitwise_or_(torch.arange(0, 2 * columns, 2)).bitwise_or_(marks)
        packed.numpy().sort(axis=1)
        order = (packed >> 1).bitwise_and_(cut // 2 - 1)
        if not _has_near(packed, cut) or not _has_rises(scores.gather(1, order)):
            return order, packed.bitwise_and_(1)
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    return order, marks.long().gather(1, order)


def _has_near(packed: Tensor, cut: int) -> bool:
    """Whether two neighbours differ only in the last bits; the end of a row and the start of the next one count too."""
    numbers = packed.reshape(-1).numpy()
    return bool((numbers[1:] ^ numbers[:-1]).view("uint64").min(initial=cut) < cut)


def _has_rises(rows: Tensor) -> bool:
    return bool((rows[:, 1:] > rows[:, :-1]).numpy().any())


def _ordered_integers(values: Tensor, *, descending: bool) -> tuple[Tensor, int]:
    """New int64 numbers in the order of `values` or in reverse, and how many different ones there may be.

    The bits of an IEEE float, read as an integer, rise with positive numbers and fall with negative ones. -0.0 becomes
    0.0 first, because the two are equal as scores.
    """
    if not values.is_floating_point():
        keys, levels = values.to(torch.int64, copy=True), 2 ** (8 * values.dtype.itemsize)
    else:
        values = values + 0.0 if values.dtype == torch.float64 else values.float() + 0.0
        sign = 8 * values.dtype.itemsize - 1
        bits = values.view(torch.int64 if sign == 63 else torch.int32)
        bits ^= (bits >> sign).bitwise_and_(2**sign - 1)
        keys, levels = bits.long(), 2 ** (sign + 1)
    return keys.bitwise_not_() if descending else keys, levels


def _count_changes(ordered: Tensor) -> Tensor:
    """How often the value has changed up to each entry: 0 at the first one."""
    return torch.nn.functional.pad(ordered[1:] != ordered[:-1], (1, 0)).cumsum(0)[: len(ordered)]

"""Stable orders of flat lists and of rows, computed on whole tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrank.functional.arrays import host


def order_within(values: Tensor, ids: Tensor, lists: int, *, descending: bool = True, grades: int = 0) -> Tensor:
    """Stable order of the entries inside each list, `(N,)`, from the list of every entry.

    One sort of int64 keys (list, bits of the value): a stable sort of floats takes 7 to 18 times as long, and would be
    needed twice. If the bits do not leave enough bits for the list (float64, int64), the values are first replaced by
    their position among all values; float64 is first tried without its last bits. Grades 0..grades-1 need few bits.
    Values that can be read are sorted by numpy, in half the time or less.

    >>> order_within(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 0, 1, 1]), 2).tolist()
    [1, 0, 2, 3]
    """
    ids = ids.long()  # offsets may have 32 bits
    known, of_lists, lists = host(values), host(ids), max(lists, 1)
    readable = known is not None and of_lists is not None
    xp: Any = np if readable else torch
    numbers: Any = known if readable else values.detach()
    list_of: Any = of_lists if readable else ids
    if grades:
        keys, levels = xp.asarray(numbers, dtype=xp.int64), grades
        keys = grades - 1 - keys if descending else keys
    else:
        keys, levels = _ordered_integers(numbers, xp, real=values.is_floating_point(), descending=descending)
    if lists * levels > 2**63:
        if readable and values.is_floating_point() and (order := _cut_order(keys, list_of, lists)) is not None:
            return order
        keys, list_of, xp = torch.as_tensor(keys), ids, torch
        ordered, order = torch.sort(keys)
        keys = torch.empty_like(keys).scatter(0, order, _count_changes(ordered))
        levels = len(keys)
    whole = xp.asarray(list_of, dtype=xp.int64) * levels + keys  # offsets may have 32 bits
    return stable_order(whole, lists * levels)


def stable_order(keys: Any, most: int) -> Tensor:
    """Stable argsort of int64 keys, a tensor or an array, whose absolute values are smaller than `most`. If keys and
    positions fit into one integer, numpy sorts both at once.

    >>> stable_order(torch.tensor([7, -1, 7, 3]), 8)
    tensor([1, 3, 0, 2])
    """
    known = keys if isinstance(keys, np.ndarray) else host(keys)
    if known is not None and most << (places := len(known).bit_length()) <= 2**63:
        packed = known << places
        packed |= np.arange(len(known))
        packed.sort()
        packed &= 2**places - 1
        return torch.from_numpy(packed)
    return torch.sort(torch.as_tensor(keys), stable=True).indices


def _cut_order(keys: np.ndarray, ids: Any, lists: int) -> Tensor | None:
    """One sort by (list, first bits of a 64-bit key); None if that misplaces entries which differ in the other bits."""
    places = len(keys).bit_length()
    cut = max(lists - 1, 1).bit_length() + 1 + places
    short = (keys >> cut) + ids * 2 ** (64 - cut)
    order = stable_order(short, 2 ** (63 - places))
    ordered, short = keys.take(order.numpy()), short.take(order.numpy())
    misplaced = (ordered[1:] < ordered[:-1]) & (short[1:] == short[:-1])
    return None if misplaced.any() else order


def sort_marked(scores: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Stable order of every row of `scores (Q, L)`, best first, as columns `(Q, L)`, and the boolean `marks (Q, L)` in
    that order as 0 and 1.

    On the CPU numpy sorts float64 as integers whose last bits hold the column and the mark: a sixth of the time of
    torch.sort, which is used only if entries differ in no other bits.

    >>> order, marks = sort_marked(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([[True, False, False]]))
    >>> order.tolist(), marks.tolist()
    ([[1, 2, 0]], [[0, 0, 1]])
    """
    if scores.dtype == torch.float64 and scores.numel() > 0 and host(scores) is not None:
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
    numbers = rows.detach().numpy()
    return bool((numbers[:, 1:] > numbers[:, :-1]).any())


def _ordered_integers(values: Any, xp: Any = torch, *, real: bool = True, descending: bool) -> tuple[Any, int]:
    """int64 numbers in the order of `values` or in reverse, and how many different ones there may be; `xp` is torch or
    numpy, whichever the values are of.

    The bits of an IEEE float, read as an integer, rise with positive numbers and fall with negative ones. -0.0 becomes
    0.0 first, because the two are equal as scores.
    """
    if not real:
        keys, levels = xp.asarray(values, dtype=xp.int64), 2 ** (8 * values.dtype.itemsize)
    else:
        values = xp.asarray(values, dtype=xp.float64 if values.dtype == xp.float64 else xp.float32) + 0.0
        sign = 8 * values.dtype.itemsize - 1
        bits = values.view(xp.int64 if sign == 63 else xp.int32)
        bits ^= (bits >> sign) & (2**sign - 1)
        keys, levels = xp.asarray(bits, dtype=xp.int64), 2 ** (sign + 1)
    return ~keys if descending else keys, levels


def _count_changes(ordered: Tensor) -> Tensor:
    """How often the value has changed up to each entry: 0 at the first one."""
    return torch.nn.functional.pad(ordered[1:] != ordered[:-1], (1, 0)).cumsum(0)[: len(ordered)]

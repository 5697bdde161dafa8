"""Flat lists: the entries of list q are `offsets[q]:offsets[q + 1]` of every `(N, ...)` tensor.

Everything here is whole-tensor work: no loop over lists, no host synchronisation when the sizes are given
(`max_length`, `num_pairs`), and lists of length 0 as well as batches without lists are ordinary input.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchrank.functional.sorting import sort_keys

BLOCK_NUMBERS = 2**24  # entries of the matrices made at once by `segment_gram`: 128 MB in float64


def read(values: Tensor) -> Any:
    """Numbers for the host. Costs nothing on CPU; elsewhere it synchronises, so functions ask for sizes instead."""
    return values.tolist()


def to_offsets(lengths: Tensor) -> Tensor:
    """Offsets `(Q + 1,)` of lists of these lengths `(Q,)`.

    >>> to_offsets(torch.tensor([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def entries_of(offsets: Tensor, lists: Tensor, num_entries: int | None = None) -> tuple[Tensor, Tensor]:
    """Entries of these lists one after another `(N',)`, and their offsets `(Q' + 1,)`.

    >>> entries_of(torch.tensor([0, 2, 5, 6]), torch.tensor([2, 0]))
    (tensor([5, 0, 1]), tensor([0, 1, 3]))
    """
    starts, ends = offsets[:-1][lists], offsets[1:][lists]
    bounds = to_offsets(ends - starts)
    num_entries = read(bounds[-1]) if num_entries is None else num_entries
    shift = per_entry(starts - bounds[:-1], bounds, num_entries)
    return shift + torch.arange(num_entries, device=offsets.device), bounds


def list_ids(offsets: Tensor, num_entries: int) -> Tensor:
    """List number of every entry, `(N,)`.

    >>> list_ids(torch.tensor([0, 2, 2, 3]), 3).tolist()
    [0, 0, 2]
    """
    return torch.repeat_interleave(offsets.diff(), output_size=num_entries)


def per_entry(values: Tensor, offsets: Tensor, num_entries: int) -> Tensor:
    """The value of its list for every entry, `(N, ...)`. Differentiable; faster than indexing by `list_ids`.

    >>> per_entry(torch.tensor([1.5, 2.5, 3.5]), torch.tensor([0, 2, 2, 3]), 3).tolist()
    [1.5, 1.5, 3.5]
    """
    return values.repeat_interleave(offsets.diff(), dim=0, output_size=num_entries)


def positions_within(offsets: Tensor, num_entries: int) -> Tensor:
    """Position of every entry in its list, counted from 0, `(N,)`.

    >>> positions_within(torch.tensor([0, 2, 2, 3]), 3).tolist()
    [0, 1, 0]
    """
    return torch.arange(num_entries, device=offsets.device).sub_(per_entry(offsets[:-1], offsets, num_entries))


def wide(values: Tensor) -> Tensor:
    """`values` in the type in which sums are made: float64, or float32 on a device that has no float64 (mps)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum of each list, `(Q, ...)`; 0 for a list without entries. Differentiable.

    Not a difference of running totals: one list must not lose digits to the size of the others.

    >>> segment_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 5.0]
    """
    total = values.new_zeros((len(offsets) - 1, *values.shape[1:]))
    return total.index_add(0, list_ids(offsets, len(values)), values)


def measure_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """`segment_sum` of real numbers `(N,)` that nobody differentiates, as measures need it: on CPU the same sums in a
    third of the time, by an operation that has no forward and no second derivatives.

    >>> measure_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 5.0]
    """
    if values.device.type != "cpu":
        return segment_sum(values, offsets)
    return torch.segment_reduce(values, "sum", offsets=offsets, unsafe=True, initial=0)


def segment_gram(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum of the outer products of the rows of each list, `(Q, D, D)` from `(N, D)`; 0 for a list without entries.

    >>> segment_gram(torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 2, 3])).tolist()
    [[[1.0, 2.0], [2.0, 5.0]], [[9.0, 0.0], [0.0, 0.0]]]
    """
    width = values.shape[1]
    total = values.new_zeros(len(offsets) - 1, width, width)
    for lists, rows, inside in row_blocks(offsets, len(values), width):
        block = torch.where(inside[:, :, None], values[rows], 0)  # (blocks, size, D)
        total.index_add_(0, lists, block.mT @ block)
    return total


def segment_forms(values: Tensor, matrices: Tensor, offsets: Tensor) -> Tensor:
    """Quadratic form x' A_q x of every row `(N, D)` with the matrix of its list, `matrices (Q, D, D)`: `(N,)`.

    >>> segment_forms(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.eye(2).expand(2, 2, 2), torch.tensor([0, 1, 2]))
    tensor([5., 9.])
    """
    forms = values.new_zeros(len(values))
    for lists, rows, inside in row_blocks(offsets, len(values), values.shape[1]):
        block = values[rows]
        found = ((block @ matrices[lists]) * block).sum(2)
        forms.index_add_(0, rows.flatten(), torch.where(inside, found, 0).flatten())
    return forms


def row_blocks(offsets: Tensor, num_entries: int, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Lists of rows cut into blocks of one length, for batched products: list of each block `(B,)`, its rows
    `(B, size)` and which of these are inside the list. Only the last block of a list is filled up, by at most a quarter
    of all rows where lists are long; no more blocks come at once than a `(B, width, width)` tensor of 128 MB has."""
    num_lists = len(offsets) - 1
    if num_entries == 0:
        return
    size = max(32, num_entries // (4 * num_lists))
    last = (-(-offsets.diff() // size)).cumsum(0)  # number of the first block behind each list
    first = torch.nn.functional.pad(last, (1, 0))[:-1]
    count = num_entries // size + num_lists  # no less than there are
    for begin in range(0, count, step := max(1, BLOCK_NUMBERS // (width * max(width, size)))):
        block = torch.arange(begin, min(begin + step, count), device=offsets.device)
        lists = torch.searchsorted(last, block, right=True).clamp(max=num_lists - 1)
        rows = (offsets[lists] + (block - first[lists]) * size)[:, None] + torch.arange(size, device=offsets.device)
        yield lists, rows.clamp(max=num_entries - 1), rows < offsets[lists + 1][:, None]


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Largest value of each list, `(Q,)`; -inf (for integers the smallest integer) for a list without entries.

    >>> segment_max(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    lowest = -torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
    start = values.new_full((len(offsets) - 1,), lowest)
    return start.scatter_reduce(0, list_ids(offsets, len(values)), values, "amax")


def segment_min(values: Tensor, offsets: Tensor) -> Tensor:
    """Smallest value of each list, `(Q,)`; inf (for integers the largest integer) for a list without entries.

    >>> segment_min(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 3])).tolist()
    [1.0, 5.0]
    """
    highest = torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).max
    start = values.new_full((len(offsets) - 1,), highest)
    return start.scatter_reduce(0, list_ids(offsets, len(values)), values, "amin")


def segment_logsumexp(values: Tensor, offsets: Tensor) -> Tensor:
    """log of the sum of exp over each list, `(Q,)`; -inf for a list without entries. Differentiable.

    >>> segment_logsumexp(torch.tensor([1e4, 1e4, 3.0]), torch.tensor([0, 2, 3])).tolist()
    [10000.693359375, 3.0]
    """
    peak = segment_max(values.detach(), offsets)
    peak = torch.where(peak.isinf(), 0.0, peak)  # keeps -inf - -inf = nan out
    shifted = torch.exp(values - per_entry(peak, offsets, len(values)))
    return torch.log(segment_sum(shifted, offsets)) + peak


def segment_softmax(values: Tensor, offsets: Tensor) -> Tensor:
    """Softmax over each list, `(N,)`. Differentiable.

    >>> segment_softmax(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([0, 2, 3])).tolist()
    [0.5, 0.5, 1.0]
    """
    return torch.exp(values - per_entry(segment_logsumexp(values, offsets), offsets, len(values)))


def has_pairs(labels: Tensor, offsets: Tensor) -> Tensor:
    """Lists with two different labels, `(Q,)`: those that a ranking can be learned from.

    >>> has_pairs(torch.tensor([1, 0, 2, 2]), torch.tensor([0, 2, 4, 4])).tolist()
    [True, False, False]
    """
    return segment_max(labels, offsets) > segment_min(labels, offsets)


def dominating(labels: Tensor, offsets: Tensor) -> Tensor:
    """Entries above the lowest label of their list, `(N,)`: those that have something to dominate.

    >>> dominating(torch.tensor([2, 1, 1, 0]), torch.tensor([0, 3, 4])).tolist()
    [True, False, False, False]
    """
    return labels > per_entry(segment_min(labels, offsets), offsets, len(labels))


def longest_list(offsets: Tensor, num_entries: int, max_length: int | None) -> int:
    """An upper bound of the list lengths that costs no synchronisation: `max_length`, else the length of the longest
    list where the host can read it for nothing (CPU), else the number of entries.

    >>> longest_list(torch.tensor([0, 2, 3]), 3, None)
    2
    """
    if offsets.device.type != "cpu" or len(offsets) < 2:
        return num_entries if max_length is None else max_length
    longest = read(offsets.diff().max())
    if max_length is not None and longest > max_length:
        raise ValueError(f"max_length is {max_length}, but the longest list has {longest} entries")
    return longest if max_length is None else max_length


def segment_cumsum(values: Tensor, offsets: Tensor, *, max_length: int | None = None) -> Tensor:
    """Running sum inside each list, `(N,)`. Differentiable.

    Integers take the difference of one running total, which is exact. Real numbers are added by doubling steps
    (entry i receives entry i - 2^s of its list), log2(longest list) passes: so a list keeps its digits, and an inf
    stays in its own list.

    >>> segment_cumsum(torch.tensor([1, 2, 5]), torch.tensor([0, 2, 3])).tolist()
    [1, 3, 5]
    """
    num_entries = len(values)
    if not values.is_floating_point():
        total = torch.nn.functional.pad(values.cumsum(0), (1, 0))
        return total[1:] - total[offsets[:-1]].repeat_interleave(offsets.diff(), output_size=num_entries)
    position = positions_within(offsets, num_entries)
    step, longest = 1, min(num_entries, longest_list(offsets, num_entries, max_length))
    while step < longest:
        earlier = torch.nn.functional.pad(values[:-step], (step, 0))
        values = values + torch.where(position >= step, earlier, 0)
        step *= 2
    return values


def sort_within(scores: Tensor, offsets: Tensor, *, descending: bool = True, max_length: int | None = None) -> Tensor:
    """Stable order of the entries inside each list, `(N,)` indices: `scores[order]` has each list's block best first.

    `max_length` is only checked: the sort needs no size.

    >>> sort_within(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 2, 4])).tolist()
    [1, 0, 2, 3]
    """
    longest_list(offsets, len(scores), max_length)
    return sort_keys(scores, list_ids(offsets, len(scores)), lists=len(offsets) - 1, descending=descending)


def ranks(scores: Tensor, offsets: Tensor, *, descending: bool = True, max_length: int | None = None) -> Tensor:
    """Rank of every entry in its list, from 1, `(N,)`; equal scores keep the order of the entries.

    >>> ranks(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 2, 4])).tolist()
    [2, 1, 1, 2]
    """
    order = sort_within(scores, offsets, descending=descending, max_length=max_length)
    return torch.empty_like(order).scatter(0, order, positions_within(offsets, len(scores)) + 1)


def levels_within(values: Tensor, offsets: Tensor, *, max_length: int | None = None) -> Tensor:
    """Number of distinct smaller values in the same list, `(N,)`: any labels as the integers 0, 1, 2, ...

    >>> levels_within(torch.tensor([0.5, 7.0, 0.5, 2.0]), torch.tensor([0, 3, 4])).tolist()
    [0, 1, 0, 0]
    """
    order = sort_within(values, offsets, descending=False, max_length=max_length)
    ordered = values[order]
    new = torch.nn.functional.pad(ordered[1:] != ordered[:-1], (1, 0))[: len(ordered)]
    new = new & (positions_within(offsets, len(values)) > 0)
    return torch.empty_like(order).scatter(0, order, segment_cumsum(new.long(), offsets))


def pairs(
    labels: Tensor, offsets: Tensor, *, num_pairs: int | None = None, max_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """All pairs (i, j) of entries of one list with `labels[i] > labels[j]`: two `(P,)` index tensors.

    O(N log N + P): in descending label order the partners of an entry are the block behind its label.

    >>> [side.tolist() for side in pairs(torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 3, 5]))]
    [[1, 1, 2, 3], [2, 0, 0, 4]]
    """
    order, partners, first = partner_blocks(labels, offsets, max_length=max_length)
    starts, num_pairs = partners.cumsum(0), total_pairs(partners, num_pairs)
    slot = torch.arange(len(labels), device=labels.device).repeat_interleave(partners, output_size=num_pairs)
    step = torch.arange(num_pairs, device=labels.device) - (starts - partners)[slot]
    return order[slot], order[first[slot] + step]


def partner_blocks(labels: Tensor, offsets: Tensor, *, max_length: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """`order (N,)`: entries by descending label inside each list; for each slot of that order the number of entries of
    the list with a smaller label, and the slot of the first of them.

    >>> [part.tolist() for part in partner_blocks(torch.tensor([0, 2, 1]), torch.tensor([0, 3]))]
    [[1, 2, 0], [2, 1, 0], [1, 2, 3]]
    """
    num_entries = len(labels)
    order = sort_within(labels, offsets, max_length=max_length)
    _, ends = runs(labels[order], offsets)
    last = offsets[1:].repeat_interleave(offsets.diff(), output_size=num_entries)
    return order, last - ends, ends


def total_pairs(partners: Tensor, num_pairs: int | None) -> int:
    """`num_pairs`, or how many there are; on CPU, where counting is free, another number is refused.

    >>> total_pairs(torch.tensor([2, 1, 0]), None)
    3
    """
    if num_pairs is not None and partners.device.type != "cpu":
        return num_pairs
    found = read(partners.sum())
    if num_pairs not in (None, found):
        raise ValueError(f"num_pairs is {num_pairs}, but the lists have {found} pairs of different labels")
    return found


def runs(ordered: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """First index and index after the last of the run of equal neighbours (in one list) around each entry, `(N,)` each.

    >>> [part.tolist() for part in runs(torch.tensor([3.0, 3.0, 1.0, 1.0]), torch.tensor([0, 3, 4]))]
    [[0, 0, 2, 3], [2, 2, 3, 4]]
    """
    num_entries = len(ordered)
    new = torch.ones(num_entries + 1, dtype=torch.bool, device=ordered.device)
    new[1:num_entries] = ordered[1:] != ordered[:-1]
    new = new.index_fill(0, offsets.long(), True)
    run = new.cumsum(0) - 1
    index = torch.arange(num_entries + 1, device=ordered.device)
    first = torch.full_like(index, num_entries).scatter_reduce(0, run, index, "amin")
    first = torch.nn.functional.pad(first, (0, 1), value=num_entries)
    return first[run[:num_entries]], first[run[:num_entries] + 1]


def ascents(levels: Tensor, offsets: Tensor, *, num_levels: int) -> tuple[Tensor, Tensor]:
    """Pairs of each list whose earlier entry has the smaller level, and pairs with different levels, `(Q,)` each.

    `levels (N,)` are integers below `num_levels`. A wavelet tree, whole batch at once: at each bit, from the highest,
    every group of entries that agree so far is split stably into zeros and ones; a zero before a one is an ascent. Two
    different levels part at exactly one bit. O(N log num_levels), no pair is ever formed.

    >>> ascents(torch.tensor([1, 0, 2, 2]), torch.tensor([0, 4]), num_levels=3)
    (tensor([4]), tensor([5]))
    """
    ids, lengths = list_ids(offsets, len(levels)), offsets.diff()
    index = torch.arange(len(levels), device=levels.device)
    start, end = (side.repeat_interleave(lengths, output_size=len(levels)) for side in (offsets[:-1], offsets[1:]))
    rising, different = torch.zeros_like(ids), torch.zeros_like(ids)
    for bit in reversed(range((num_levels - 1).bit_length())):
        one = (levels >> bit) & 1
        zeros = torch.nn.functional.pad((1 - one).cumsum(0), (1, 0))
        before, inside = zeros[:-1] - zeros[start], zeros[end] - zeros[start]
        rising, different = rising + one * before, different + one * inside
        middle = start + inside
        target = torch.where(one == 1, middle + index - start - before, start + before)
        start, end = torch.where(one == 1, middle, start), torch.where(one == 1, end, middle)
        levels, start, end = (torch.empty_like(part).scatter(0, target, part) for part in (levels, start, end))
    # entries move inside their list only, so the sums per list need no bookkeeping
    return segment_sum(rising, offsets), segment_sum(different, offsets)


def pad(values: Tensor, offsets: Tensor, *, max_length: int | None = None, fill: float = 0) -> tuple[Tensor, Tensor]:
    """Flat `(N, ...)` to `padded (Q, L, ...)` and `mask (Q, L)`, True where there is an entry. Differentiable.

    >>> padded, mask = pad(torch.tensor([1, 2, 5]), torch.tensor([0, 2, 3]))
    >>> padded.tolist(), mask.tolist()
    ([[1, 2], [5, 0]], [[True, True], [True, False]])
    """
    lengths = offsets.diff()
    if max_length is None:
        max_length = max(read(lengths), default=0)
    max_length = longest_list(offsets, len(values), max_length)
    slot = list_ids(offsets, len(values)) * max_length + positions_within(offsets, len(values))
    flat = values.new_full((len(lengths) * max_length, *values.shape[1:]), fill).index_copy(0, slot, values)
    mask = torch.arange(max_length, device=offsets.device) < lengths[:, None]
    return flat.view(len(lengths), max_length, *values.shape[1:]), mask


def unpad(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Padded `values (Q, L, ...)` with `mask (Q, L)` to flat `(N, ...)` and `offsets (Q + 1,)`; synchronises once.

    >>> values, offsets = unpad(torch.tensor([[1, 2], [5, 0]]), torch.tensor([[True, True], [True, False]]))
    >>> values.tolist(), offsets.tolist()
    ([1, 2, 5], [0, 2, 3])
    """
    mask = mask.bool()
    return values[mask], to_offsets(mask.sum(1))

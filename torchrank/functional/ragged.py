"""Flat lists: the entries of list q are `offsets[q]:offsets[q + 1]` of every `(N, ...)` tensor.

All functions work on whole tensors: there is no loop over lists and, when the sizes `max_length` and `num_pairs` are
given, no host synchronisation. Lists of length 0 and batches without lists are ordinary input.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays, to_offsets
from torchrank.functional.operations import one_operation, readable, transforming
from torchrank.functional.sorting import sort_keys

SUM_BLOCK = 32  # entries that `segment_cumsum` adds up at once
BLOCK_NUMBERS = 2**24  # numbers in the matrices that `segment_gram` makes at once: 128 MB in float64


def read(values: Tensor) -> Any:
    """The values as Python numbers. Free on CPU; elsewhere it synchronises, so functions ask for sizes instead."""
    return values.tolist()


def lent(values: Tensor) -> Any:
    """Readable values as a numpy array, of which small operations take a third of the time, or as they are inside of
    torch.func, where tensors lend their memory to nobody. Both are read alike.

    >>> lent(torch.tensor([1, 2])).max().tolist()
    2
    """
    return values if transforming() else values.numpy()


def entries_of(offsets: Tensor, lists: Tensor, num_entries: int | None = None) -> tuple[Tensor, Tensor]:
    """The entries of the given lists, one list after another `(N',)`, and the offsets of the result `(Q' + 1,)`.

    >>> entries_of(torch.tensor([0, 2, 5, 6]), torch.tensor([2, 0]))
    (tensor([5, 0, 1]), tensor([0, 1, 3]))
    """
    starts, ends = offsets[:-1][lists], offsets[1:][lists]
    bounds = to_offsets(ends - starts)
    num_entries = read(bounds[-1]) if num_entries is None else num_entries
    shift = per_entry(starts - bounds[:-1], bounds, num_entries)
    return shift + torch.arange(num_entries, device=offsets.device), bounds


def subsample(count: int, most: int, seed: int | torch.Generator = 0) -> Tensor:
    """At most `most` of the numbers 0..count-1 in ascending order, on CPU, drawn without replacement from a seed.

    >>> subsample(5, 2), subsample(3, 9)
    (tensor([0, 4]), tensor([0, 1, 2]))
    """
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    return torch.randperm(count, generator=generator)[:most].sort().values


def list_ids(offsets: Tensor, num_entries: int) -> Tensor:
    """List number of every entry, `(N,)`.

    >>> list_ids(torch.tensor([0, 2, 2, 3]), 3).tolist()
    [0, 0, 2]
    """
    return torch.repeat_interleave(offsets.diff(), output_size=num_entries)


def per_entry(values: Tensor, offsets: Tensor, num_entries: int) -> Tensor:
    """For every entry the value of its list, `(N, ...)`. Differentiable; faster than indexing by `list_ids`.

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
    """`values` in the dtype used for sums: float64, or float32 on a device without float64 (mps)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum of each list, `(Q, ...)`; 0 for a list without entries. Differentiable.

    The sum is not a difference of running totals, so that no list loses digits to the size of the others.

    >>> segment_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 5.0]
    """
    total = values.new_zeros((len(offsets) - 1, *values.shape[1:]))
    return total.index_add(0, list_ids(offsets, len(values)), values)


def measure_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """`segment_sum` of real numbers `(N,)` for measures, which need no derivatives.

    On CPU the same sums take a third of the time, by an operation that has no forward-mode and no second derivatives.

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
    """Quadratic forms `(N,)`: x' A_q x of every row x of `values (N, D)` with A_q of `matrices (Q, D, D)`, q its list.

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
    """Lists of rows cut into blocks of equal length, for batched products.

    Yields the list of each block `(B,)`, its rows `(B, size)` and which of these are inside the list. Only the last
    block of a list is padded; where lists are long, padding adds at most a quarter of all rows. B is so small that a
    `(B, width, width)` tensor has at most 128 MB.
    """
    num_lists = len(offsets) - 1
    if num_entries == 0:
        return
    size = max(32, num_entries // (4 * num_lists))
    last = (-(-offsets.diff() // size)).cumsum(0)  # number of the first block after each list
    first = torch.nn.functional.pad(last, (1, 0))[:-1]
    count = num_entries // size + num_lists  # an upper bound
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
    peak = torch.where(peak.isinf(), 0.0, peak)  # -inf - -inf would be nan
    shifted = torch.exp(values - per_entry(peak, offsets, len(values)))
    return torch.log(segment_sum(shifted, offsets)) + peak


def cell_logsumexp(values: Tensor, cells: Tensor, num_cells: int) -> Tensor:
    """log of the sum of exp of the `values (N, ...)` in each cell, `(num_cells, ...)`, given the cell of every entry,
    `(N,)`; -inf for a cell without entries.

    >>> cell_logsumexp(torch.tensor([1e4, 1e4, 3.0]), torch.tensor([2, 2, 0]), 3)
    tensor([3.0000e+00,       -inf, 1.0001e+04])
    """
    places = cells.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
    peak = values.new_full((num_cells, *values.shape[1:]), -torch.inf).scatter_reduce(0, places, values, "amax")
    peak = torch.where(peak.isinf(), 0.0, peak)  # -inf - -inf would be nan
    sums = torch.zeros_like(peak).index_add_(0, cells, torch.exp(values - peak[cells]))
    return sums.log() + peak


def lower_logsumexp(logs: Tensor, margin: Tensor | None = None) -> Tensor:
    """log of the sum of exp over the grades below each grade, `(Q, K, ...)`, given the logarithms of the grades; for
    `(Q, K)` a `margin (K, K)` between a grade and a lower one may be added.

    >>> lower_logsumexp(torch.tensor([[0.0, 0.0, 5.0]]))
    tensor([[  -inf, 0.0000, 0.6931]])
    """
    if margin is not None:
        lower = torch.ones_like(margin).tril(-1) > 0
        return (logs[:, None, :] + torch.where(lower, margin, -torch.inf)).logsumexp(2)
    none = torch.full_like(logs[:, :1], -torch.inf)
    return torch.cat((none, logs.logcumsumexp(1)[:, :-1]), 1)


def segment_softmax(values: Tensor, offsets: Tensor) -> Tensor:
    """Softmax over each list, `(N,)`. Differentiable.

    >>> segment_softmax(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([0, 2, 3])).tolist()
    [0.5, 0.5, 1.0]
    """
    return torch.exp(values - per_entry(segment_logsumexp(values, offsets), offsets, len(values)))


def has_pairs(labels: Tensor, offsets: Tensor) -> Tensor:
    """Whether a list has two different labels, `(Q,)`: only such lists teach a ranking.

    >>> has_pairs(torch.tensor([1, 0, 2, 2]), torch.tensor([0, 2, 4, 4])).tolist()
    [True, False, False]
    """
    labels = labels.long() if labels.dtype == torch.bool else labels
    return segment_max(labels, offsets) > segment_min(labels, offsets)


def dominating(labels: Tensor, offsets: Tensor) -> Tensor:
    """Whether an entry is above the lowest label of its list, `(N,)`: only such entries have something to dominate.

    >>> dominating(torch.tensor([2, 1, 1, 0]), torch.tensor([0, 3, 4])).tolist()
    [True, False, False, False]
    """
    return labels > per_entry(segment_min(labels, offsets), offsets, len(labels))


def longest_list(offsets: Tensor, num_entries: int, max_length: int | None) -> int:
    """An upper bound of the list lengths that needs no synchronisation.

    It is `max_length` if given, else the length of the longest list where reading is free (CPU), else the number of
    entries.

    >>> longest_list(torch.tensor([0, 2, 3]), 3, None)
    2
    """
    if not readable(offsets) or len(offsets) < 2:
        return num_entries if max_length is None else max_length
    known = lent(offsets)
    longest: int = (known[1:] - known[:-1]).max().tolist()
    if max_length is not None and longest > max_length:
        raise ValueError(f"max_length must be at least {longest}, the length of the longest list, got {max_length}")
    return longest if max_length is None else max_length


def segment_cumsum(values: Tensor, offsets: Tensor, *, max_length: int | None = None) -> Tensor:
    """Running sum inside each list, `(N,)`. Differentiable.

    For integers it is the difference of one running total, which is exact. Real numbers are added within blocks of a
    list and then over the blocks, or in doubling steps (entry i receives entry i - 2^s of its list), log2(longest list)
    passes. So every list keeps its digits, and an inf stays in its own list.

    >>> segment_cumsum(torch.tensor([1, 2, 5]), torch.tensor([0, 2, 3])).tolist()
    [1, 3, 5]
    """
    num_entries = len(values)
    if not values.is_floating_point():
        total = torch.nn.functional.pad(values.cumsum(0), (1, 0))
        return total[1:] - total[offsets[:-1]].repeat_interleave(offsets.diff(), output_size=num_entries)
    if torch.compiler.is_compiling():
        most = num_entries if max_length is None else max_length
        return _doubled(values, positions_within(offsets, num_entries), most)
    step, longest = 1, min(num_entries, longest_list(offsets, num_entries, max_length))
    if longest > SUM_BLOCK and readable(offsets):
        return _cumsum_by_blocks(values, offsets)
    position = positions_within(offsets, num_entries)
    while step < longest:
        earlier = torch.nn.functional.pad(values[:-step], (step, 0))
        values = values + torch.where(position >= step, earlier, 0)
        step *= 2
    return values


def _doubled(values: Tensor, position: Tensor, longest: int) -> Tensor:
    """The sums of `segment_cumsum` in a graph for lists of up to 64, 4,096, 262,144, ... entries: lists of other
    lengths need another graph only if they are much longer."""
    bits = next(bits for bits in range(6, 66, 6) if longest <= 2**bits)
    index = torch.arange(len(values), device=values.device)
    for step in (2**bit for bit in range(bits)):
        values = values + torch.where(position >= step, values[(index - step).clamp(min=0)], 0)
    return values


def _cumsum_by_blocks(values: Tensor, offsets: Tensor) -> Tensor:
    """`segment_cumsum` where the number of blocks may be read: in half of the time of doubling steps."""
    bounds = to_offsets((offsets.diff() + (SUM_BLOCK - 1)) // SUM_BLOCK)
    shift = per_entry(bounds[:-1] * SUM_BLOCK - offsets[:-1], offsets, len(values))
    places, count = shift.add_(torch.arange(len(values), device=values.device)), read(bounds[-1])
    blocks = values.new_zeros(count * SUM_BLOCK).index_copy(0, places, values).view(count, SUM_BLOCK).cumsum(1)
    before = torch.nn.functional.pad(segment_cumsum(blocks[:, -1], bounds), (1, 0))
    before = before.index_fill(0, bounds.long(), 0)[:-1]  # a difference of sums would be nan after an inf
    return (blocks + before[:, None]).flatten().index_select(0, places)


def sort_within(
    scores: Tensor,
    offsets: Tensor,
    *,
    descending: bool = True,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Stable order of the entries inside each list, `(N,)` indices: in `scores[order]` each list has its best first.

    `max_length` is only checked: the sort needs no size. Integers 0..num_grades-1 are sorted in less time.

    >>> sort_within(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 2, 4])).tolist()
    [1, 0, 2, 3]
    """
    longest_list(offsets, len(scores), max_length)
    ids = list_ids(offsets, len(scores))
    return sort_keys(scores, ids, lists=len(offsets) - 1, descending=descending, num_grades=num_grades)


def ranks(scores: Tensor, offsets: Tensor, *, descending: bool = True, max_length: int | None = None) -> Tensor:
    """Rank of every entry in its list, from 1, `(N,)`; equal scores keep the order of the entries.

    >>> ranks(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 2, 4])).tolist()
    [2, 1, 1, 2]
    """
    order = sort_within(scores, offsets, descending=descending, max_length=max_length)
    return torch.empty_like(order).scatter(0, order, positions_within(offsets, len(scores)) + 1)


def levels_within(values: Tensor, offsets: Tensor, *, max_length: int | None = None) -> Tensor:
    """Number of distinct smaller values in the same list, `(N,)`: maps any labels to the integers 0, 1, 2, ...

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

    O(N log N + P): in descending label order the partners of an entry are the block after its label.

    >>> [side.tolist() for side in pairs(torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 3, 5]))]
    [[1, 1, 2, 3], [2, 0, 0, 4]]
    """
    order, partners, first = partner_blocks(labels, offsets, max_length=max_length)
    starts, num_pairs = partners.cumsum(0), total_pairs(partners, num_pairs)
    slot = torch.arange(len(labels), device=labels.device).repeat_interleave(partners, output_size=num_pairs)
    step = torch.arange(num_pairs, device=labels.device) - (starts - partners)[slot]
    return order[slot], order[first[slot] + step]


def partner_blocks(
    labels: Tensor, offsets: Tensor, *, max_length: int | None = None, num_grades: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Where the partners of each entry stand when the lists are sorted by label, `(N,)` each.

    The first result is the order of the entries by descending label inside each list. The other two belong to the
    slots of that order: the number of entries of the list with a smaller label, and the slot of the first of them.

    >>> [part.tolist() for part in partner_blocks(torch.tensor([0, 2, 1]), torch.tensor([0, 3]))]
    [[1, 2, 0], [2, 1, 0], [1, 2, 3]]
    """
    num_entries = len(labels)
    order = sort_within(labels, offsets, max_length=max_length, num_grades=num_grades)
    _, ends = runs(labels.index_select(0, order), offsets)
    last = offsets[1:].repeat_interleave(offsets.diff(), output_size=num_entries)
    return order, last - ends, ends


def total_pairs(partners: Tensor, num_pairs: int | None) -> int:
    """`num_pairs`, or the number counted if it is None. On CPU, where counting is free, a wrong number is refused.

    >>> total_pairs(torch.tensor([2, 1, 0]), None)
    3
    """
    if num_pairs is not None and not readable(partners):
        return num_pairs
    found: int = read(partners.sum())
    if num_pairs not in (None, found):
        raise ValueError(f"num_pairs must be {found}, the number of pairs with different labels, got {num_pairs}")
    return found


def runs(ordered: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The run of equal neighbours (within one list) that each entry is in: its first index and the index after its last
    one, `(N,)` each.

    >>> [part.tolist() for part in runs(torch.tensor([3.0, 3.0, 1.0, 1.0]), torch.tensor([0, 3, 4]))]
    [[0, 0, 2, 3], [2, 2, 3, 4]]
    """
    num_entries = len(ordered)
    new = torch.ones(num_entries + 1, dtype=torch.bool, device=ordered.device)
    new[1:num_entries] = ordered[1:] != ordered[:-1]
    new = new.index_fill(0, offsets.long(), True)
    run = new.cumsum(0) - 1
    index = torch.arange(num_entries + 1, device=ordered.device)
    first = index.new_full((num_entries + 2,), num_entries).scatter_reduce(0, run, index, "amin")
    return first[run[:num_entries]], first[run[:num_entries] + 1]


def ascents(
    levels: Tensor, offsets: Tensor, *, num_levels: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Pairs of each list whose earlier entry has the smaller level, and pairs with different levels, `(Q,)` each.

    `levels (N,)` are integers below `num_levels`. This is a wavelet tree over the whole batch: at each bit, from the
    highest, every group of entries that agree so far is split stably into zeros and ones; a zero before a one is an
    ascent. Two different levels separate at exactly one bit. O(N log num_levels), no pair is ever formed. With
    `weights (N,)` a pair counts as much as its entry with the larger level.

    >>> ascents(torch.tensor([1, 0, 2, 2]), torch.tensor([0, 4]), num_levels=3)
    (tensor([4]), tensor([5]))
    """
    return _count_ascents(levels, offsets, num_levels, weights)


def _ascents(levels: Tensor, offsets: Tensor, num_levels: int, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    ids, lengths = list_ids(offsets, len(levels)), offsets.diff()
    index = torch.arange(len(levels), device=levels.device)
    start, end = (side.repeat_interleave(lengths, output_size=len(levels)) for side in (offsets[:-1], offsets[1:]))
    weight = torch.ones_like(ids) if weights is None else weights
    rising, different = torch.zeros_like(weight), torch.zeros_like(weight)
    for bit in reversed(range((num_levels - 1).bit_length())):
        one = (levels >> bit) & 1
        zeros = torch.nn.functional.pad((1 - one).cumsum(0), (1, 0))
        before, inside = zeros[:-1] - zeros[start], zeros[end] - zeros[start]
        counted = one if weights is None else one * weight
        rising, different = rising + counted * before, different + counted * inside
        middle = start + inside
        target = torch.where(one == 1, middle + index - start - before, start + before)
        start, end = torch.where(one == 1, middle, start), torch.where(one == 1, end, middle)
        levels, start, end = (torch.empty_like(part).scatter(0, target, part) for part in (levels, start, end))
        weight = weight if weights is None else torch.empty_like(weight).scatter(0, target, weight)
    # entries move only within their list, so the sums per list need no bookkeeping
    return segment_sum(rising, offsets), segment_sum(different, offsets)


def _no_ascents(levels: Tensor, offsets: Tensor, num_levels: int, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    like = levels if weights is None else weights
    return like.new_empty(offsets.shape[0] - 1), like.new_empty(offsets.shape[0] - 1)


_count_ascents = one_operation("ascents", _ascents, _no_ascents)  # a pass for each bit of the number of levels


@takes_arrays
def pad(values: Tensor, offsets: Tensor, *, max_length: int | None = None, fill: float = 0) -> tuple[Tensor, Tensor]:
    """Converts flat lists to a padded tensor and its mask. Differentiable.

    Args:
        values: the entries of all lists, `(N, ...)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        max_length: the length L of the padded lists; None takes the longest list, which synchronises once.
        fill: the value after the end of a list.

    Returns:
        `padded (Q, L, ...)` and `mask (Q, L)`, True where there is an entry.

    Example:
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


@takes_arrays
def unpad(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Converts padded lists to flat ones; the inverse of `pad`. Differentiable; synchronises once.

    Args:
        values: the padded entries, `(Q, L, ...)`.
        mask: which of them are entries, `(Q, L)`: True, or any number but 0.

    Returns:
        `values (N, ...)`, the entries of all lists, and `offsets (Q + 1,)`, where the lists begin and end.

    Example:
        >>> values, offsets = unpad(torch.tensor([[1, 2], [5, 0]]), torch.tensor([[True, True], [True, False]]))
        >>> values.tolist(), offsets.tolist()
        ([1, 2, 5], [0, 2, 3])
    """
    mask = mask.bool()
    return values[mask], to_offsets(mask.sum(1))

"""Operations on flat lists by their offsets: the entries of list q are `offsets[q]:offsets[q + 1]`.

`Lists` has the same operations as methods. This module has them for raw offsets, and others on rows `(N, D)`, on
pairs and on runs of equal neighbours. No function loops over lists. Lists of length 0 and batches without lists are
valid input.
"""

from collections.abc import Callable, Iterator
from typing import Any, Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, to_offsets
from torchrank.functional.arrays import wide as wide
from torchrank.functional.lists import Given, Lists, takes_arrays

BLOCK_NUMBERS = 2**24  # numbers in the matrices that `segment_gram` makes at once: 128 MB in float64


def read(values: Tensor) -> Any:
    """The values as Python numbers. This is free on the CPU; other devices are waited for."""
    return values.tolist()


def entries_of(offsets: Tensor, lists: Tensor, num_entries: int | None = None) -> tuple[Tensor, Tensor]:
    """The entries of some lists, one list after another `(N',)`, and the offsets of the result `(Q' + 1,)`.

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
    """For every entry the value of its list, `(N, ...)`. Differentiable.

    >>> per_entry(torch.tensor([1.5, 2.5, 3.5]), torch.tensor([0, 2, 2, 3]), 3).tolist()
    [1.5, 1.5, 3.5]
    """
    return values.repeat_interleave(offsets.diff(), dim=0, output_size=num_entries)


def positions_within(offsets: Tensor, num_entries: int) -> Tensor:
    """Position of every entry in its list, counted from 0, `(N,)`.

    >>> positions_within(torch.tensor([0, 2, 2, 3]), 3).tolist()
    [0, 1, 0]
    """
    return Lists(offsets, num_entries).positions


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum of each list, `(Q, ...)`; 0 for a list without entries. Differentiable.

    >>> segment_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 5.0]
    """
    return Lists(offsets, len(values)).sum(values)


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Largest value of each list, `(Q,)`; -inf (for integers the smallest integer) for a list without entries.

    >>> segment_max(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    return Lists(offsets, len(values)).max(values)


def segment_min(values: Tensor, offsets: Tensor) -> Tensor:
    """Smallest value of each list, `(Q,)`; inf (for integers the largest integer) for a list without entries.

    >>> segment_min(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 2, 3])).tolist()
    [1.0, 5.0]
    """
    return Lists(offsets, len(values)).min(values)


def segment_cumsum(values: Tensor, offsets: Tensor) -> Tensor:
    """Running sum inside each list, `(N,)`. Differentiable.

    >>> segment_cumsum(torch.tensor([1, 2, 5]), torch.tensor([0, 2, 3])).tolist()
    [1, 3, 5]
    """
    return Lists(offsets, len(values)).cumsum(values)


def segment_logsumexp(values: Tensor, offsets: Tensor) -> Tensor:
    """log of the sum of exp over each list, `(Q,)`; -inf for a list without entries. Differentiable.

    >>> segment_logsumexp(torch.tensor([1e4, 1e4, 3.0]), torch.tensor([0, 2, 3])).tolist()
    [10000.693359375, 3.0]
    """
    lists = Lists(offsets, len(values))
    peak = lists.max(values.detach())
    peak = torch.where(peak.isinf(), 0.0, peak)  # -inf - -inf would be nan
    return torch.log(lists.sum(torch.exp(values - lists.each(peak)))) + peak


def segment_softmax(values: Tensor, offsets: Tensor) -> Tensor:
    """Softmax over each list, `(N,)`. Differentiable.

    >>> segment_softmax(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([0, 2, 3])).tolist()
    [0.5, 0.5, 1.0]
    """
    return torch.exp(values - per_entry(segment_logsumexp(values, offsets), offsets, len(values)))


def has_pairs(labels: Tensor, offsets: Tensor) -> Tensor:
    """Whether a list has entries with different labels, `(Q,)`: the others say nothing about the order.

    >>> has_pairs(torch.tensor([1, 0, 2, 2]), torch.tensor([0, 2, 4, 4])).tolist()
    [True, False, False]
    """
    return Lists(offsets, len(labels)).several(labels)


def dominating(labels: Tensor, offsets: Tensor) -> Tensor:
    """Whether an entry is above the lowest label of its list, `(N,)`: only such entries have something to dominate.

    >>> dominating(torch.tensor([2, 1, 1, 0]), torch.tensor([0, 3, 4])).tolist()
    [True, False, False, False]
    """
    return labels > per_entry(segment_min(labels, offsets), offsets, len(labels))


def sort_within(scores: Tensor, offsets: Tensor, *, descending: bool = True, grades: int = 0) -> Tensor:
    """Stable order of the entries inside each list, `(N,)` indices: in `scores[order]` each list has its best first.

    >>> sort_within(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 2, 4])).tolist()
    [1, 0, 2, 3]
    """
    return Lists(offsets, len(scores)).order(scores, descending=descending, grades=grades)


def ranks(scores: Tensor, offsets: Tensor, *, descending: bool = True) -> Tensor:
    """Rank of every entry in its list, from 1, `(N,)`; equal scores keep the order of the entries.

    >>> ranks(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 2, 4])).tolist()
    [2, 1, 1, 2]
    """
    return Lists(offsets, len(scores)).ranks(scores, descending=descending)


def levels_within(values: Tensor, offsets: Tensor) -> Tensor:
    """Number of distinct smaller values in the same list, `(N,)`: maps any labels to the integers 0, 1, 2, ...

    >>> levels_within(torch.tensor([0.5, 7.0, 0.5, 2.0]), torch.tensor([0, 3, 4])).tolist()
    [0, 1, 0, 0]
    """
    return Lists(offsets, len(values)).levels(values)[0]


# -------------------------------------------------------------------------------------------- rows of lists


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
        products = ((block @ matrices[lists]) * block).sum(2)
        forms.index_add_(0, rows.flatten(), torch.where(inside, products, 0).flatten())
    return forms


def row_blocks(offsets: Tensor, num_entries: int, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Lists of rows cut into blocks of equal length, for batched matrix products.

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
    count = num_entries // size + num_lists  # at least the number of blocks
    for begin in range(0, count, step := max(1, BLOCK_NUMBERS // (width * max(width, size)))):
        block = torch.arange(begin, min(begin + step, count), device=offsets.device)
        lists = torch.searchsorted(last, block, right=True).clamp(max=num_lists - 1)
        rows = (offsets[lists] + (block - first[lists]) * size)[:, None] + torch.arange(size, device=offsets.device)
        yield lists, rows.clamp(max=num_entries - 1), rows < offsets[lists + 1][:, None]


# ---------------------------------------------------------------------------------------------- runs and pairs


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


def pairs(labels: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs (i, j) of entries of one list with `labels[i] > labels[j]`: two `(P,)` index tensors.

    O(N log N + P): in descending label order the partners of an entry are the block after its label. This waits
    for a device, because the number of pairs is the size of the result.

    >>> [side.tolist() for side in pairs(torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 3, 5]))]
    [[1, 1, 2, 3], [2, 0, 0, 4]]
    """
    order, partners, first = partner_blocks(labels, offsets)
    slot = torch.repeat_interleave(partners)
    step = torch.arange(len(slot), device=labels.device) - (partners.cumsum(0) - partners)[slot]
    return order[slot], order[first[slot] + step]


def partner_blocks(labels: Tensor, offsets: Tensor, *, grades: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Where the partners of each entry stand when the lists are sorted by label, `(N,)` each.

    The first result is the order of the entries by descending label inside each list. The other two belong to the
    slots of that order: the number of entries of the list with a smaller label, and the slot of the first of them.

    >>> [part.tolist() for part in partner_blocks(torch.tensor([0, 2, 1]), torch.tensor([0, 3]))]
    [[1, 2, 0], [2, 1, 0], [1, 2, 3]]
    """
    order = sort_within(labels, offsets, grades=grades)
    _, ends = runs(labels.index_select(0, order), offsets)
    return order, per_entry(offsets[1:], offsets, len(labels)) - ends, ends


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


@takes_arrays
def pad(values: Array, offsets: Array = None, *, fill: float = 0, **given: Unpack[Given]) -> tuple[Tensor, Tensor]:
    """Converts flat lists to a padded tensor and its mask. Differentiable.

    Args:
        values: the entries of all lists, `(N, ...)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`. Without a `Lists` this waits for a device.
        fill: the value after the end of a list.

    Returns:
        `padded (Q, L, ...)` and `mask (Q, L)`, True where there is an entry.

    Example:
        >>> padded, mask = pad(torch.tensor([1, 2, 5]), torch.tensor([0, 2, 3]))
        >>> padded.tolist(), mask.tolist()
        ([[1, 2], [5, 0]], [[True, True], [True, False]])
    """
    lists: Lists = offsets
    longest = lists.longest
    slot = lists.ids * longest + lists.positions
    flat = values.new_full((len(lists) * longest, *values.shape[1:]), fill).index_copy(0, slot, values)
    mask = torch.arange(longest, device=values.device) < lists.offsets.diff()[:, None]
    return flat.view(len(lists), longest, *values.shape[1:]), mask


@takes_arrays
def unpad(values: Array, mask: Array) -> tuple[Tensor, Tensor]:
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


# ---------------------------------------------------------------------------------------------- many columns of scores

CACHED_SCORES = 2**18  # scores that are ranked at once on the CPU, which stay in the cache
DEVICE_SCORES = 2**25  # the same on a device, where a block must keep all cores busy
SAME = 1e-12  # values that differ by no more count as equal

Measure = Callable[..., Tensor]


def by_column(measure: Measure, scores: Tensor, labels: Tensor, offsets: Tensor, **options: Any) -> Tensor:
    """The measure (Q, C) of each list under each column of `scores (N, C)`.

    Column c becomes a run of lists of its own, so a block of columns needs one sort only.

    >>> from torchrank.functional import average_precision
    >>> scores, labels = torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([1, 0])
    >>> by_column(average_precision, scores, labels, torch.tensor([0, 2]))
    tensor([[1.0000, 0.5000]])
    """
    most = CACHED_SCORES if scores.device.type == "cpu" else DEVICE_SCORES
    blocks = scores.split(max(1, most // max(1, len(scores))), dim=1)
    return torch.cat([_block(measure, block, labels, offsets, options) for block in blocks], 1)


def _block(measure: Measure, scores: Tensor, labels: Tensor, offsets: Tensor, options: dict[str, Any]) -> Tensor:
    entries, columns = scores.shape
    starts = entries * torch.arange(columns + 1, dtype=offsets.dtype, device=scores.device)
    bounds = torch.cat([(offsets[:-1] + starts[:-1, None]).flatten(), starts[-1:]])
    values = measure(scores.T.flatten(), labels.repeat(columns), bounds, **options)
    return values.view(columns, len(offsets) - 1).T


def first_largest(values: Tensor, dim: int | None = None) -> Tensor:
    """The index of the largest value along a dimension, or among all values if `dim` is None.

    Values within 1e-12 of the largest count as equal to it, and the first of them is taken.

    >>> first_largest(torch.tensor([1.0, 2.0, 2.0])), first_largest(torch.tensor([[3.0, 2.0], [1.0, 4.0]]), dim=1)
    (tensor(1), tensor([0, 1]))
    """
    if dim is None:
        return first_largest(values.flatten(), 0)
    return (values >= values.amax(dim, keepdim=True) - SAME).to(torch.int8).argmax(dim)

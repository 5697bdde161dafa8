"""Soft ranks: 1 + the sum of sigmoid((s_j - s_i) / T) over the other entries j of the list (Qin, Liu & Li 2010).

Everything here is one sum over pairs and its derivatives. With x = (s_j - s_i) / T, the sum over j of a_j times the
n-th derivative of sigmoid(x) is called the sum of order n. Its slopes are sums of order n + 1, because the first
derivative of the sigmoid is even, the second odd, and so on. So one function finds ranks, slopes, slopes of slopes and
tangents.

Two forms find the same. `_dense` works on blocks of lists of similar length on the CPU, where reading lengths is free,
and writes all pairs of a block into one buffer, which stays in the cache. `_flat` takes some entries at a time with all
places that a list may have; it never waits for a device. Memory is bounded in both, however long a list is. Pairs of
float32 scores (and of half precision) are computed in float32, all others in float64; every sum is in float64.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchrank.errors import check_number
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.batching import pair_blocks
from torchrank.functional.operations import one_operation, readable
from torchrank.functional.ragged import list_ids, longest_list, per_entry, read, segment_sum, wide
from torchrank.functional.ranking import check_offsets, result_dtype

BLOCK_PAIRS = 2**18  # of the dense form: the buffers stay in the cache
FEW_PAIRS = 2**15  # take less time than the preparation of another block
DEVICE_PAIRS = 2**22  # of the flat form
HIGHEST = 3  # order of a sum
SHORT = (torch.float16, torch.bfloat16, torch.float32)


@takes_arrays
def soft_ranks(scores: Tensor, offsets: Tensor, *, temperature: float = 1.0, max_length: int | None = None) -> Tensor:
    """Differentiable ranks: 1 + the sum of sigmoid((s_j - s_i) / temperature) over the other entries of the list.

    As the temperature falls they approach the ranks; equal scores share the mean of theirs. A list of L entries costs
    O(L^2) time and bounded memory.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        offsets: where the lists begin and end, `(Q + 1,)`.
        temperature: the difference of scores at which the better entry counts .73 of a rank.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        The soft rank of each entry, from 1, `(N,)`. It can be differentiated three times.

    Example:
        >>> soft_ranks(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([0, 3, 4]), temperature=0.1)
        tensor([3.0000, 1.0000, 2.0000, 1.0000])
    """
    check_offsets(scores, scores, offsets)
    return (1 + soft_counts(scores, offsets, temperature=temperature, max_length=max_length)).to(result_dtype(scores))


def soft_counts(
    scores: Tensor,
    offsets: Tensor,
    values: Tensor | None = None,
    *,
    temperature: float,
    max_length: int | None = None,
) -> Tensor:
    """How many other entries of the list score higher, `(N,)` in float64, each counted sigmoid((s_j - s_i) / T) times
    its value in `values (N,)`, or times 1.

    >>> soft_counts(torch.tensor([2.0, 2.0]), torch.tensor([0, 2]), torch.tensor([1.0, 3.0]), temperature=1.0)
    tensor([1.5000, 0.5000], dtype=torch.float64)
    """
    check_positive(temperature=temperature)
    own, short = wide(scores), scores.dtype in SHORT
    columns = own.new_zeros(0, len(own)) if values is None else wide(values)[None]
    longest = read_longest(offsets, len(own), max_length)
    found = _sums(own, columns, offsets, float(temperature), 0, longest, short)
    return found[0 if values is None else 1]


def check_positive(**options: float) -> None:
    """Refuses numbers that are not positive, but not in a compiled graph, where they may have no value yet.

    >>> check_positive(temperature=0.0)
    Traceback (most recent call last):
    ValueError: temperature must be > 0, got 0.0
    """
    if not torch.compiler.is_compiling():
        check_number("> 0", **options)


def read_longest(offsets: Tensor, num_entries: int, max_length: int | None) -> int:
    """`longest_list` for work that grows with the square of it: on a device too it is read if it was not given.

    >>> read_longest(torch.tensor([0, 2, 3]), 3, None)
    2
    """
    unknown = max_length is None and offsets.device.type not in ("cpu", "meta") and len(offsets) > 1
    if unknown and not torch.compiler.is_compiling():
        max_length = read(offsets.diff().max())
    return longest_list(offsets, num_entries, max_length)


def _pair_sums(
    scores: Tensor, values: Tensor, offsets: Tensor, temperature: float, order: int, longest: int, short: bool
) -> Tensor:
    """Sums of one order over the other entries j of each list, `(1 + A, N)`: the first one with a_j = 1, the others
    with a_j from the rows of `values (A, N)`."""
    own = scores.float() if short else scores
    sums = wide(scores).new_empty(1 + len(values), len(scores) + 1)  # the last place takes what nobody needs
    form = _dense if readable(scores) else _flat
    form(own, values.to(own.dtype), offsets, temperature, order, longest, sums)
    return sums[:, :-1] * temperature**-order


def _derivative(rises: Tensor, order: int) -> Tensor:
    """The sigmoid or one of its derivatives, in place."""
    shares = rises.sigmoid_()
    if order == 0:
        return shares
    if order == 1:
        return shares.addcmul_(shares, shares, value=-1)
    slopes = shares.sub(shares.square())
    return slopes.mul_(1 - 2 * shares) if order == 2 else slopes.mul_(1 - 6 * slopes)


def _dense(
    scores: Tensor, values: Tensor, offsets: Tensor, temperature: float, order: int, longest: int, sums: Tensor
) -> None:
    """Rows of some lists against the whole of them at a time, `(lists, rows, longest of these lists)`."""
    for _, entries, inside in pair_blocks(offsets, BLOCK_PAIRS, few=FEW_PAIRS):
        lists, width = entries.shape
        own, columns = scores.take(entries), [torch.where(inside, row.take(entries), 0)[:, None] for row in values]
        surplus, places = width - inside.sum(1, keepdim=True), torch.where(inside, entries, len(scores))
        height = max(1, min(width, BLOCK_PAIRS // (lists * width)))
        buffers = scores.new_empty(1 + bool(columns), lists * height * width)
        for begin in range(0, width, height):
            rows = places[:, begin : begin + height]
            pairs, *weighted = (buffer[: rows.numel() * width].view(*rows.shape, width) for buffer in buffers)
            torch.sub(own[:, None], own[:, begin : begin + height, None], out=pairs)
            pairs = _derivative(pairs if temperature == 1 else pairs.div_(temperature), order)
            pairs.diagonal(begin, 1, 2).zero_()
            # a place after the end of a list holds its last entry
            sums[0].put_(rows, pairs.sum(2, dtype=sums.dtype) - surplus * pairs[:, :, -1])
            for place, column in enumerate(columns, 1):
                sums[place].put_(rows, torch.mul(pairs, column, out=weighted[0]).sum(2, dtype=sums.dtype))


def _flat(
    scores: Tensor, values: Tensor, offsets: Tensor, temperature: float, order: int, longest: int, sums: Tensor
) -> None:
    """Some entries at a time against all places of their lists, `(entries, longest)`."""
    count, places = len(scores), torch.arange(longest, device=scores.device)
    index = torch.arange(count, device=scores.device)
    ids = list_ids(offsets, count)
    first, last = offsets[:-1][ids], offsets[1:][ids] - 1
    step = max(1, DEVICE_PAIRS // max(longest, 1))
    for begin in range(0, count, step):
        some = slice(begin, begin + step)
        others = first[some, None] + places
        inside = (others <= last[some, None]) & (others != index[some, None])
        others = torch.minimum(others, last[some, None])
        pairs = _derivative((scores[others] - scores[some, None]) / temperature, order)
        for place in range(len(sums)):
            weighted = torch.where(inside, pairs if place == 0 else pairs * values[place - 1][others], 0)
            sums[place, :count][some] = weighted.sum(1, dtype=sums.dtype)


class _Compiled(torch.autograd.Function):
    """`_pair_sums` with its slopes, which a compiled graph takes."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return _operation(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, values, offsets, *ctx.rest = inputs
        ctx.save_for_backward(scores, values, offsets)
        ctx.save_for_forward(scores, values, offsets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _slopes(_operation, ctx.needs_input_grad, grads[0], *ctx.saved_tensors, *ctx.rest)


class _Eager(_Compiled):
    """The same with slopes of slopes, in forward mode and for torch.func."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _slopes(_sums, ctx.needs_input_grad, grads[0], *ctx.saved_tensors, *ctx.rest)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (scores, values, offsets), (moved, changed, *_) = ctx.saved_tensors, tangents
        factors = _with_ones(values)
        found = torch.zeros_like(factors)
        if moved is not None:
            sums = _sums(scores, torch.cat([values, factors * moved]), offsets, *_higher(*ctx.rest))
            own, along = sums.split([len(factors), len(factors)])
            found = found + along - moved * own
        if changed is not None and len(values):
            rows = _sums(scores, changed, offsets, *ctx.rest)[1:]
            found = found + torch.cat([torch.zeros_like(rows[:1]), rows])
        return found

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], scores: Tensor, values: Tensor, offsets: Tensor, *rest: Any) -> Any:
        """The copies of the lists end to end."""
        if dims[2] is not None:
            raise ValueError("vmap over offsets is not supported: lay the lists end to end instead")
        count = info.batch_size
        scores = scores.expand(count, -1) if dims[0] is None else scores.movedim(dims[0], 0)
        values = values.expand(count, -1, -1) if dims[1] is None else values.movedim(dims[1], 0)
        ends = torch.nn.functional.pad(offsets.diff().repeat(count).cumsum(0), (1, 0))
        found = _sums(scores.flatten(), values.transpose(0, 1).flatten(1), ends, *rest)
        return found.unflatten(1, scores.shape), 1


def _slopes(
    sums: Callable[..., Tensor],
    wanted: tuple[bool, ...],
    pulls: Tensor,
    scores: Tensor,
    values: Tensor,
    offsets: Tensor,
    *rest: Any,
) -> tuple[Tensor | None, ...]:
    """The gradient of sums at scores and values; `pulls (1 + A, N)` is that at the sums."""
    factors, order = _with_ones(values), rest[1]
    sign, for_scores, for_values = 1 - 2 * (order % 2), None, None
    if wanted[0]:
        found = sums(scores, torch.cat([values, pulls]), offsets, *_higher(*rest))
        own, pulled = found.split([len(factors), len(factors)])
        for_scores = (sign * factors * pulled - pulls * own).sum(0)
    if wanted[1] and len(values):
        found = sums(scores, pulls[1:], offsets, *rest)[1:]
        total = per_entry(segment_sum(pulls[1:].T, offsets), offsets, len(scores)).T - pulls[1:]
        for_values = total - found if order == 0 else -sign * found  # sigmoid(-x) = 1 - sigmoid(x)
    return for_scores, for_values, None, None, None, None, None


def _higher(temperature: float, order: int, *rest: Any) -> tuple[Any, ...]:
    if order == HIGHEST:
        raise RuntimeError("soft ranks have no fourth derivative")
    return temperature, order + 1, *rest


def _with_ones(values: Tensor) -> Tensor:
    return torch.cat([values.new_ones(1, values.shape[1]), values])


def _room(scores: Tensor, values: Tensor, *others: Any) -> Tensor:
    return scores.new_empty(1 + values.shape[0], scores.shape[0])


_operation: Callable[..., Tensor] = one_operation("soft_sums", _pair_sums, _room)


def _sums(scores: Tensor, values: Tensor, *rest: Any) -> Tensor:
    """A graph without slopes takes the operation itself: there torch cannot trace a function of its own."""
    compiled = torch.compiler.is_compiling()
    if compiled and not (torch.is_grad_enabled() and (scores.requires_grad or values.requires_grad)):
        return _operation(scores, values, *rest)
    function = _Compiled if compiled else _Eager
    found: Tensor = function.apply(scores, values, *rest)
    return found

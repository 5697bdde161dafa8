"""Sums over all pairs of a list with different labels: the losses of RankNet and LambdaRank with their slopes.

The slope of a pair is known in closed form, so one pass adds up values and slopes and keeps no pair. Pairs of float32
scores (and of half precision) are computed in float32, all others in float64; every sum is in float64.

Two forms find the same. `_dense` works on blocks of pairs on the CPU, where reading lengths is free. `_flat` takes any
pairs one after another; it never waits for a device, and it takes scores that are not finite.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.functional.operations import empty_sums, one_operation
from torchrank.functional.ragged import list_ids, partner_blocks, read, total_pairs, wide

PAIRS_AT_ONCE = 2**20  # in the flat form: about 60 bytes per pair
BLOCK_PAIRS = 2**16  # in the dense form: the temporary tensors stay in the cache
FEW_PAIRS = 2**13  # take less time than the preparation of another block
TALLEST = 64  # rows of a strip


class Weights(NamedTuple):
    """The weight of a pair: |gain_i - gain_j| |discount_i - discount_j|."""

    gains: Tensor  # (N,) rise with the label
    discounts: Tensor  # (N,)


def pair_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Weights | None,
    *,
    max_length: int | None,
    num_pairs: int | None,
) -> tuple[Tensor, Tensor]:
    """Sum of w_ij log(1 + exp(-(s_i - s_j))) over the pairs with y_i > y_j per list, `(Q,)`, and its slopes `(N,)`.

    A pair adds -w sigmoid(-(s_i - s_j)) to the slope of i and the opposite to that of j. Memory is bounded for any
    batch, where a padded Q x L x L tensor takes the square of the longest list for each list. Compiled, it is one
    operation.

    >>> pair_sums(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]), None, max_length=2, num_pairs=1)
    (tensor([0.6931], dtype=torch.float64), tensor([ 0.5000, -0.5000], dtype=torch.float64))
    """
    gains, discounts = weights or (None, None)
    return _operation(scores, labels, offsets, gains, discounts, max_length, num_pairs)


def _pair_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    gains: Tensor | None,
    discounts: Tensor | None,
    max_length: int | None,
    num_pairs: int | None,
) -> tuple[Tensor, Tensor]:
    order, partners, first = partner_blocks(labels, offsets, max_length=max_length)
    num_pairs, ids = total_pairs(partners, num_pairs), list_ids(offsets, len(scores))
    short = scores.dtype in (torch.float16, torch.bfloat16, torch.float32)
    ordered = scores[order].float() if short else wide(scores[order])
    weights = None if gains is None or discounts is None else Weights(gains[order], discounts[order])
    sums = _Sums(wide(ordered).new_zeros(len(offsets) - 1), torch.zeros_like(wide(ordered)))
    if ordered.device.type == "cpu" and num_pairs > FEW_PAIRS and math.isfinite(read(ordered.sum())):
        _dense(ordered, weights, partners, first, ids, sums)
    else:
        _flat(ordered, weights, partners, first, ids, num_pairs, sums)
    return sums.loss, torch.empty_like(sums.slopes).scatter(0, order, sums.slopes)


_operation = one_operation("pair_sums", _pair_sums, empty_sums)


class _Sums(NamedTuple):
    """What is added up, in float64."""

    loss: Tensor  # (Q,)
    slopes: Tensor  # (N,) of the entries by descending label


class _Strips(NamedTuple):
    """Entries of one label and one list, next to each other, that share their partners: all entries after the label."""

    first: Tensor  # (S,) slot of the first entry
    lower: Tensor  # (S,) slot of the first partner
    partners: Tensor  # (S,) their number

    def take(self, some: Any) -> "_Strips":
        return _Strips(*(part[some] for part in self))


def _dense(scores: Tensor, weights: Weights | None, partners: Tensor, first: Tensor, ids: Tensor, sums: _Sums) -> None:
    """The pairs of some strips at a time, `(strips, height, width)`: strips of equal height and similar width.

    Columns after the end of a list have a score of -inf, so that they add 0; rows are never padded.
    """
    discounts = None if weights is None else weights.discounts.to(scores.dtype)
    for height, strips in _blocks(partners, first):
        width = torch.arange(read(strips.partners.max()))
        rows = strips.first[:, None] + torch.arange(height)
        columns = torch.add(strips.lower[:, None], width).clamp_(max=len(scores) - 1)
        inside = width < strips.partners[:, None]
        rises = torch.where(inside, scores.take(columns), -torch.inf)[:, None] - scores.take(rows)[:, :, None]
        values, pulls = torch.nn.functional.softplus(rises), rises.sigmoid_()
        if weights is not None and discounts is not None:
            swap = (discounts.take(columns)[:, None] - discounts.take(rows)[:, :, None]).abs_()
            gains = weights.gains.take(strips.first)[:, None] - weights.gains.take(columns)
            swap.mul_(torch.where(inside, gains, 0.0).to(swap.dtype)[:, None])
            values.mul_(swap)
            pulls.mul_(swap)
        sums.loss.index_add_(0, ids.take(strips.first), values.sum((1, 2), dtype=sums.loss.dtype))
        sums.slopes.index_add_(0, columns.flatten(), pulls.sum(1, dtype=sums.loss.dtype).flatten())
        sums.slopes.index_add_(0, rows.flatten(), pulls.sum(2, dtype=sums.loss.dtype).flatten(), alpha=-1)


def _blocks(partners: Tensor, first: Tensor) -> Iterator[tuple[int, _Strips]]:
    """Strips of equal height, those with the most partners first, so many that their pairs fit into the cache.

    A block ends early where the number of partners has halved, unless it has few pairs.
    """
    for height, strips in _strips(partners, first):
        falling, begin = (-strips.partners).numpy(), 0
        while begin < len(falling):
            row = -height * int(falling[begin])
            alike = int(falling.searchsorted(falling[begin] // 2)) - begin
            end = begin + max(1, FEW_PAIRS // row, min(alike, BLOCK_PAIRS // row))
            yield height, strips.take(slice(begin, end))
            begin = end


def _strips(partners: Tensor, first: Tensor) -> Iterator[tuple[int, _Strips]]:
    """The entries of each label as strips of 64, 32, .., 2 and 1 entries, by height: as the binary digits of their
    number say."""
    begins = torch.nn.functional.pad(first[1:] != first[:-1], (1, 0), value=True)
    slots = torch.from_numpy((begins & (partners > 0)).numpy().nonzero()[0])
    rest, height = _Strips(slots, first.take(slots), partners.take(slots)), TALLEST
    while height:
        counts = (rest.lower - rest.first) // height
        if total := read(counts.sum()):
            owner = torch.repeat_interleave(counts, output_size=total)
            place = torch.arange(total) - (counts.cumsum(0) - counts).take(owner)
            strips = rest.take(owner)._replace(first=rest.first.take(owner) + place * height)
            yield height, strips.take(strips.partners.argsort(descending=True, stable=True))
        rest, height = rest._replace(first=rest.first + counts * height), height // 2


def _flat(
    scores: Tensor,
    weights: Weights | None,
    partners: Tensor,
    first: Tensor,
    ids: Tensor,
    num_pairs: int,
    sums: _Sums,
) -> None:
    """Pairs in pieces of `PAIRS_AT_ONCE`."""
    starts = partners.cumsum(0) - partners
    factors = () if weights is None else tuple(factor.to(scores.dtype) for factor in weights)
    for begin in range(0, num_pairs, PAIRS_AT_ONCE):
        upper, lower = _piece(starts, first, begin, min(PAIRS_AT_ONCE, num_pairs - begin))
        rises = scores[lower] - scores[upper]
        values, pulls = torch.nn.functional.softplus(rises), rises.sigmoid_()
        for factor in factors:
            weight = (factor[upper] - factor[lower]).abs_()
            values, pulls = values * weight, pulls * weight
        sums.loss.index_add_(0, ids[upper], wide(values))
        pulls = wide(pulls)
        sums.slopes.index_add_(0, upper, pulls, alpha=-1).index_add_(0, lower, pulls)


def _piece(starts: Tensor, first: Tensor, begin: int, size: int) -> tuple[Tensor, Tensor]:
    """Slots (upper, lower) of `size` pairs from `begin` on. The last slot that starts at or before p has pair p."""
    marks = torch.zeros(size + 1, dtype=torch.int64, device=starts.device)
    marks = marks.index_add(0, (starts - begin).clamp(0, size), torch.ones_like(starts))
    upper = marks[:size].cumsum(0) - 1
    return upper, first[upper] + torch.arange(begin, begin + size, device=starts.device) - starts[upper]

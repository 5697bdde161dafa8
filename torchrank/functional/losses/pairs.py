"""Sums over all pairs of a list with different labels, with their slopes: what every pairwise loss is made of.

The slope of a pair is known in closed form, so one pass adds up values and slopes and keeps no pair. Pairs of float32
scores (and of half precision) are computed in float32, all others in float64; every sum is in float64.

Two forms find the same. `_dense` works on blocks of pairs on the CPU, where reading lengths is free. `_flat` takes any
pairs one after another; it never waits for a device, and it takes scores that are not finite.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.functional.operations import empty_sums, one_operation
from torchrank.functional.ragged import list_ids, partner_blocks, read, total_pairs, wide
from torchrank.functional.ranking import count_grades

PAIRS_AT_ONCE = 2**20  # in the flat form: about 60 bytes per pair
BLOCK_PAIRS = 2**16  # in the dense form: the temporary tensors stay in the cache
MOST_PAIRS = 2**21  # of a strip at once, where lists are so long: at most 16 MB for a temporary tensor
FEW_PAIRS = 2**13  # take less time than the preparation of another block
TALLEST = 64  # rows of a strip


class Pair(NamedTuple):
    """A function f of the rise r = s_j - s_i of a pair with y_i > y_j; f, f' and f'' are 0 at -inf."""

    slopes: Callable[[Tensor], tuple[Tensor, Tensor]]  # f and f'; may write to the rises
    curvature: Callable[[Tensor], Tensor]  # f''; may write to the rises


def _logistic(rises: Tensor) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.softplus(rises, threshold=40), rises.sigmoid_()


def _logistic_curvature(rises: Tensor) -> Tensor:
    shares = rises.sigmoid_()
    return shares * (1 - shares)


def _hinge(rises: Tensor) -> tuple[Tensor, Tensor]:
    values = rises.add_(1).relu_()
    return values, (values * 1e30).clamp_(max=1)  # 0 or 1, in a third of the time of a comparison; NaN stays NaN


def _soft_zero_one(rises: Tensor) -> tuple[Tensor, Tensor]:
    shares = rises.sigmoid_()
    return shares, shares * (1 - shares)


def _soft_zero_one_curvature(rises: Tensor) -> Tensor:
    shares = rises.sigmoid_()
    return shares * (1 - shares) * (1 - 2 * shares)


PAIRS = {
    "logistic": Pair(_logistic, _logistic_curvature),  # log(1 + exp(r))
    "hinge": Pair(_hinge, lambda rises: torch.zeros_like(rises)),  # max(0, 1 + r)
    "soft_zero_one": Pair(_soft_zero_one, _soft_zero_one_curvature),  # sigmoid(r)
}


class Swap(NamedTuple):
    """The weight of a pair: |gain_i - gain_j| (|discount_i - discount_j| + near(|rank_i - rank_j|)), where what is not
    given is left out."""

    gains: Tensor | None = None  # (N,)
    discounts: Tensor | None = None  # (N,)
    ranks: Tensor | None = None  # (N,)
    near: Tensor | None = None  # (longest list,) values of a function of 0, 1, 2, ...


def pair_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None = None,
    *,
    pair: str = "logistic",
    swap: Swap | None = None,
    max_length: int | None = None,
    num_pairs: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of w_i f(s_j - s_i) over the pairs with y_i > y_j per list, `(Q,)`, and its slopes `(N,)`.

    `pair` names f; `weights (N,)` are those of the more relevant entry; `swap` weighs the pairs in addition. A pair
    adds -w f' to the slope of i and the opposite to that of j. Memory is bounded for any batch, where a padded
    Q x L x L tensor takes the square of the longest list for each list. Compiled, it is one operation.

    >>> pair_sums(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))
    (tensor([0.6931], dtype=torch.float64), tensor([ 0.5000, -0.5000], dtype=torch.float64))
    """
    factors = (weights, *(swap or Swap()))
    return _operation(scores, labels, offsets, *factors, None, pair, max_length, num_pairs)


def pair_products(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    direction: Tensor,
    *,
    pair: str = "logistic",
    swap: Swap | None = None,
    max_length: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """The second derivative of `pair_sums` times a direction, `(N,)`; weights are constants.

    >>> lists = torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2])
    >>> pair_products(*lists, None, torch.tensor([1.0, 0.0]))
    tensor([ 0.2500, -0.2500], dtype=torch.float64)
    """
    factors = (weights, *(swap or Swap()))
    return _operation(scores, labels, offsets, *factors, direction, pair, max_length, num_pairs)[1]


def _pair_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    gains: Tensor | None,
    discounts: Tensor | None,
    ranks: Tensor | None,
    near: Tensor | None,
    direction: Tensor | None,
    pair: str,
    max_length: int | None,
    num_pairs: int | None,
) -> tuple[Tensor, Tensor]:
    order, partners, first = partner_blocks(
        labels, offsets, max_length=max_length, num_grades=count_grades(labels, None)
    )
    num_pairs, ids = total_pairs(partners, num_pairs), list_ids(offsets, len(scores))
    short = scores.dtype in (torch.float16, torch.bfloat16, torch.float32)
    ordered = scores.index_select(0, order)
    ordered = ordered.float() if short else wide(ordered)
    others = weights, gains, discounts, ranks, direction
    parts = (None if part is None else part.index_select(0, order) for part in others)
    entries = _Entries(PAIRS[pair], None if near is None else near.to(ordered.dtype), ordered, *parts)
    sums = _Sums(wide(ordered).new_zeros(len(offsets) - 1), torch.zeros_like(wide(ordered)))
    if ordered.device.type == "cpu" and num_pairs > FEW_PAIRS and math.isfinite(read(ordered.sum())):
        _dense(entries, partners, first, ids, sums)
    else:
        _flat(entries, partners, first, ids, num_pairs, sums)
    return sums.loss, torch.empty_like(sums.slopes).scatter(0, order, sums.slopes)


_operation = one_operation("pair_sums", _pair_sums, empty_sums)


class _Entries(NamedTuple):
    """What pairs are made of, by descending label."""

    pair: Pair
    near: Tensor | None
    scores: Tensor  # (N,)
    weights: Tensor | None
    gains: Tensor | None
    discounts: Tensor | None
    ranks: Tensor | None
    direction: Tensor | None  # of the second derivative; None asks for values and slopes


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


def _dense(entries: _Entries, partners: Tensor, first: Tensor, ids: Tensor, sums: _Sums) -> None:
    """The pairs of some strips at a time, `(strips, height, width)`: strips of equal height and similar width.

    Columns after the end of a list have a score of -inf, so that they add 0; rows are never padded.
    """
    names = [name for name in ("scores", "discounts", "ranks", "direction") if getattr(entries, name) is not None]
    table = torch.stack([getattr(entries, name).to(entries.scores.dtype) for name in names])
    for height, strips in _blocks(partners, first):
        rows = strips.first[:, None] + torch.arange(height)
        upper = _at(rows, table)
        for width in torch.arange(read(strips.partners.max())).split(max(1, MOST_PAIRS // rows.numel())):
            columns = torch.add(strips.lower[:, None], width).clamp_(max=table.shape[1] - 1)
            lower = _at(columns, table)
            outside = width >= strips.partners[:, None]
            lower[0].masked_fill_(outside, -torch.inf)
            gaps = dict(zip(names, (lower[:, :, None] - upper[:, :, :, None]).unbind(), strict=True))
            values, pulls = _terms(entries, gaps)
            factor = _dense_factor(entries, strips, rows, columns, outside, gaps)
            if factor is not None:
                values, pulls = values.mul_(factor), pulls if pulls is values else pulls.mul_(factor)
            sums.loss.index_add_(0, _at(strips.first, ids), values.sum((1, 2), dtype=sums.loss.dtype))
            pulls = wide(pulls)
            sums.slopes.index_add_(0, columns.flatten(), pulls.sum(1).flatten())
            sums.slopes.index_add_(0, rows.flatten(), pulls.sum(2).flatten(), alpha=-1)


def _at(places: Tensor, values: Tensor) -> Tensor:
    """The values `(..., N)` at some places, `(..., *places.shape)`: faster than `take`."""
    return values.index_select(-1, places.flatten()).view(*values.shape[:-1], *places.shape)


def _terms(entries: _Entries, gaps: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The value of each pair and its slope, or twice its part of the product with the direction."""
    if entries.direction is None:
        return entries.pair.slopes(gaps["scores"])
    found = entries.pair.curvature(gaps["scores"]).mul_(gaps["direction"])
    return found, found


def _dense_factor(
    entries: _Entries, strips: _Strips, rows: Tensor, columns: Tensor, outside: Tensor, gaps: dict[str, Tensor]
) -> Tensor | None:
    """The weight of each pair of a block; the entries of a strip have one label, so without weights one gain."""
    kind = entries.scores.dtype
    weights = None if entries.weights is None else _at(rows, entries.weights).to(kind)[:, :, None]
    if entries.gains is None:
        return weights
    own = _at(strips.first[:, None] if weights is None else rows, entries.gains)
    gains = (own[:, :, None] - _at(columns, entries.gains)[:, None]).abs_().masked_fill_(outside[:, None], 0).to(kind)
    moves = _moves(entries, gaps)
    swap = gains if moves is None else moves.mul_(gains)
    return swap if weights is None else swap.mul_(weights)


def _moves(entries: _Entries, gaps: dict[str, Tensor]) -> Tensor | None:
    """What the ranks of each pair add to its weight."""
    swap = gaps["discounts"].abs_() if "discounts" in gaps else None
    if entries.near is None:
        return swap
    near = _at(gaps["ranks"].abs_().int(), entries.near)
    return near if swap is None else swap.add_(near)


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


def _flat(entries: _Entries, partners: Tensor, first: Tensor, ids: Tensor, num_pairs: int, sums: _Sums) -> None:
    """Pairs in pieces of `PAIRS_AT_ONCE`."""
    starts = partners.cumsum(0) - partners
    for begin in range(0, num_pairs, PAIRS_AT_ONCE):
        upper, lower = _piece(starts, first, begin, min(PAIRS_AT_ONCE, num_pairs - begin))
        rises = entries.scores[lower] - entries.scores[upper]
        if entries.direction is None:
            values, pulls = entries.pair.slopes(rises)
        else:
            values = pulls = entries.pair.curvature(rises) * (entries.direction[lower] - entries.direction[upper])
        for factor in _flat_factors(entries, upper, lower):
            values, pulls = values * factor, pulls * factor
        pulls = wide(pulls)
        sums.loss.index_add_(0, ids[upper], wide(values))
        sums.slopes.index_add_(0, upper, pulls, alpha=-1).index_add_(0, lower, pulls)


def _flat_factors(entries: _Entries, upper: Tensor, lower: Tensor) -> Iterator[Tensor]:
    kind = entries.scores.dtype
    if entries.weights is not None:
        yield entries.weights[upper].to(kind)
    if entries.gains is not None:
        yield (entries.gains[upper] - entries.gains[lower]).abs_().to(kind)
    parts = {"discounts": entries.discounts, "ranks": entries.ranks}
    gaps = {name: part[lower] - part[upper] for name, part in parts.items() if part is not None}
    if (moves := _moves(entries, gaps)) is not None:
        yield moves.to(kind)


def _piece(starts: Tensor, first: Tensor, begin: int, size: int) -> tuple[Tensor, Tensor]:
    """Slots (upper, lower) of `size` pairs from `begin` on. The last slot that starts at or before p has pair p."""
    marks = torch.zeros(size + 1, dtype=torch.int64, device=starts.device)
    marks = marks.index_add(0, (starts - begin).clamp(0, size), torch.ones_like(starts))
    upper = marks[:size].cumsum(0) - 1
    return upper, first[upper] + torch.arange(begin, begin + size, device=starts.device) - starts[upper]

"""The most violated rankings of average precision and NDCG of the whole list: every irrelevant entry finds its place
independently of the others.

Describe a ranking by a_j, the number of the P relevant entries before the j-th best of the N irrelevant ones. The loss
of a pair (i, j) in the wrong order depends on i and j alone, and the sum over the pairs i > a of one j telescopes, so
that the objective is, up to a factor and a constant, the sum over j of

    f_j(a) = U(j + a) + (a + 1) V(j + a) + cp(a) - a s^-_j,    0 <= a <= P,    cp(a) = s^+_1 + .. + s^+_a

    average precision:  U(r) = -(1 + 1/2 + .. + 1/r),  V(r) = 1/r,  scores times 2/N          Yue et al. 2007
    NDCG:               U(r) = D(r), the discount,     V = 0,       scores times 2 Z/(P N)    Chakrabarti et al. 2008

This form has no difference of large numbers, which j times harmonic numbers would have. If the loss of a pair does not
grow with j (D is convex), the best a_j does not fall with j: then the choices form a ranking, and the a_j are the row
maxima of a monotone matrix. They are found by halving, the odd multiples of 2^l between their known neighbours, in
O((P + N) log N).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.oracles.merged import Merged
from torchrank.functional.ragged import read, wide

DENSE_NUMBERS = 2**18  # numbers in the matrices that are made at once: they stay in the cache


class Places(NamedTuple):
    """What the f_j of all lists are made of; columns after the P-th and N-th are never read."""

    sums: Tensor  # (Q, L + 1) cp(a) at column a
    scores: Tensor  # (Q, L + 1) s^-_j at column j
    counts: tuple[Tensor, Tensor]  # (Q, 1) each: P and N
    even: Tensor  # (L + 1,) U(r) at r
    slope: Tensor | None  # (L + 1,) V(r) at r; None: 0
    num_entries: int | None  # of all lists together; None on the CPU, where reading numbers is free


def average_precision_problem(merged: Merged) -> Places:
    """The f_j of average precision, which `dense` and `halving` maximise."""
    ranks = torch.arange(merged.above.shape[1] + 1, dtype=merged.unordered.dtype, device=merged.above.device)
    inverse = torch.where(ranks > 0, 1 / ranks.clamp(min=1), 0)
    return _separate(merged, 2 / wide(merged.counts[1]).clamp(min=1), -inverse.cumsum(0), inverse)


def average_precision_places(merged: Merged) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` for average precision."""
    return average_precision_at(merged, _fastest(average_precision_problem(merged)))


def average_precision_at(merged: Merged, best: Tensor) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` of the ranking with the a_j of `best (Q, L)`."""
    before_relevant, before_irrelevant = _everywhere(merged, best)
    precisions = merged.above / wide(merged.above + before_relevant).clamp(min=1)
    total = torch.where(merged.relevant, precisions, 0).sum(1)
    return merged.inversions(before_relevant, before_irrelevant), 1 - total / merged.counts[0][:, 0]


def ndcg_places(merged: Merged, discounts: Tensor, *, convex: bool) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` for NDCG; `discounts (L,)` are convex, or would be with a larger D(1).

    D(1) occurs in the pair (1, 1) only. Raise it until D is convex, which only improves rankings with a_1 = 0. If the
    best ranking of that problem has a_1 >= 1, it is the answer. If it has a_1 = 0, it is the best of those; the best of
    the others, a_j >= 1 for all j, is found without D(1), and the better one of the two is the answer.
    """
    ideal = discounts.cumsum(0)[(merged.counts[0] - 1).clamp(min=0)]
    places = _separate(merged, ideal * merged.scale, torch.nn.functional.pad(discounts, (1, 0)), None)
    if convex or len(discounts) < 3:
        best = _fastest(places)
    else:
        raised = torch.cat([discounts[:1], 2 * discounts[1:2] - discounts[2:3], discounts[1:]])
        best, other = _fastest(places._replace(even=raised)), _fastest(places, least=1)
        best = torch.where(_value(places, best) >= _value(places, other), best, other)
    before_relevant, before_irrelevant = _everywhere(merged, best)
    gains = places.even[(merged.above + before_relevant).clamp(max=len(discounts))]
    total = torch.where(merged.relevant, gains, 0).sum(1)
    return merged.inversions(before_relevant, before_irrelevant), 1 - total / ideal[:, 0]


def _separate(merged: Merged, factor: Tensor, even: Tensor, slope: Tensor | None) -> Places:
    """The two classes apart, scores times `factor`. Column 0 takes the entries of the other class."""
    scores = torch.nan_to_num(merged.scores() * factor, 0, 0, 0)  # else no place would be the best of its range
    empty, irrelevant = scores.new_empty(len(scores), scores.shape[1] + 1), merged.irrelevant
    totals = torch.where(merged.relevant, scores, 0).cumsum(1)
    sums = empty.scatter(1, torch.where(merged.relevant, merged.above, 0), totals)
    sums[:, 0] = 0
    others = empty.scatter(1, torch.where(irrelevant, merged.below, 0), scores)
    num_entries = None if scores.device.type == "cpu" else len(merged.unordered)
    return Places(sums, others, merged.counts, even, slope, num_entries)


def _everywhere(merged: Merged, best: Tensor) -> tuple[Tensor, Tensor]:
    """b_i = #{j : a_j < i} and a_j at the places of all entries; `best` has a_j at column j - 1."""
    counts = best.new_zeros(len(best), best.shape[1] + 1).scatter_add_(1, best, torch.ones_like(best)).cumsum(1)
    above, below = ((number - 1).clamp(min=0) for number in (merged.above, merged.below))
    return counts.gather(1, above), best.gather(1, below)


def _value(places: Places, best: Tensor) -> Tensor:
    """Sum of f_j(a_j) over the j of each list, `(Q, 1)`, where V = 0."""
    j = torch.arange(1, best.shape[1] + 1, device=best.device)
    values = (
        places.even[(j + best).clamp(max=best.shape[1])] + places.sums.gather(1, best) - best * places.scores[:, 1:]
    )
    return torch.where(j <= places.counts[1], values, 0).sum(1, keepdim=True)


def halving(places: Places, least: int = 0) -> Tensor:
    """The best a_j >= `least` for every j, `(Q, L)`, the smallest one if there are several; P after the last j.

    Column j of `best` is found between its neighbours j - step and j + step, which are known already.
    """
    (num_lists, longest), (relevant, irrelevant) = places.sums.shape, places.counts
    width = 1 << (longest - 1).bit_length()
    best = relevant.repeat(1, width + 1)
    best[:, :1] = relevant.clamp(max=least)
    step = width // 2
    while step and num_lists:
        columns = torch.arange(step, longest, 2 * step, device=best.device)
        low, high = (best[:, first :: 2 * step][:, : len(columns)] for first in (0, 2 * step))
        found = _level(places, columns, low, high)
        best[:, step : longest : 2 * step] = torch.where(columns <= irrelevant, found, relevant)
        step //= 2
    return best[:, 1:longest]


def _level(places: Places, columns: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The best a_j in low..high, `(Q, J)` each, at the J columns: all lists in one flat buffer.

    The buffer has at most P + J numbers per list, so no more than there are entries, whatever the ranges are.
    """
    lengths = torch.where(columns <= places.counts[1], high - low + 1, 0).flatten()
    ends = lengths.cumsum(0)
    # where reading is not free the buffer has its largest size, and its unused part belongs to one more node
    size = read(ends[-1]) if places.num_entries is None else places.num_entries
    lengths = torch.cat([lengths, size - ends[-1:]])
    node = torch.repeat_interleave(lengths, output_size=size)
    a, values = _values(places, columns, node, low.flatten() - ends + lengths[:-1])
    peak = values.new_full((len(lengths),), -torch.inf).scatter_reduce_(0, node, values, "amax")
    first = torch.where(values == peak.index_select(0, node), a, places.sums.shape[1])
    return torch.full_like(lengths, places.sums.shape[1]).scatter_reduce_(0, node, first, "amin")[:-1].view(low.shape)


def _values(places: Places, columns: Tensor, node: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The number a and the value f_j(a) at every place of the buffer; `shift` is a minus the place, for every node."""
    num_lists, width = places.sums.shape
    node = node.clamp(max=len(shift) - 1)
    a = shift.index_select(0, node).add_(torch.arange(len(node), device=node.device)).clamp_(max=width - 1)
    rank = columns.repeat(num_lists).index_select(0, node).add_(a).clamp_(max=width - 1)
    starts = torch.arange(0, num_lists * width, width, device=node.device).repeat_interleave(len(columns))
    values = places.sums.flatten().index_select(0, starts.index_select(0, node).add_(a))
    values += places.even.index_select(0, rank)
    values -= places.scores[:, columns].flatten().index_select(0, node).mul_(a)
    if places.slope is not None:
        values += places.slope.index_select(0, rank).mul_(a + 1)
    return a, values


def dense(places: Places, least: int = 0) -> Tensor:
    """The result of `halving` by trying every a for every j: O(P N), faster for short lists."""
    (num_lists, longest), (relevant, irrelevant) = places.sums.shape, places.counts
    most, last = _largest(places)
    j = torch.arange(1, last + 1, device=relevant.device)[:, None]
    a = torch.arange(most + 1, device=relevant.device)
    rank = (j + a).clamp(max=longest - 1)
    losses = places.even[rank] if places.slope is None else places.even[rank] + (a + 1) * places.slope[rank]
    allowed = (a <= relevant) & (a >= relevant.clamp(max=least))
    sums, a = torch.where(allowed, places.sums[:, : most + 1], -torch.inf), wide(a)
    best = relevant.repeat(1, longest - 1)
    step = max(1, DENSE_NUMBERS // max(1, losses.numel()))
    for start in range(0, num_lists, step):
        part = slice(start, start + step)
        values = torch.addcmul(losses + sums[part, None], places.scores[part, 1 : last + 1, None], a, value=-1)
        best[part, :last] = torch.where(irrelevant[part] >= j.T, values.max(2).indices, relevant[part])
    return best


def _largest(places: Places) -> tuple[int, int]:
    """The largest P and the largest N where reading is free, else upper bounds."""
    if places.sums.device.type != "cpu" or len(places.sums) == 0:
        return places.sums.shape[1] - 1, places.sums.shape[1] - 1
    relevant, irrelevant = places.counts
    return read(relevant.max()), read(irrelevant.max())


def _fastest(places: Places, least: int = 0) -> Tensor:
    """`dense` or `halving`, whichever should be faster.

    Measured on CPU, in units of one number of the dense form: a level of halving costs 100,000 before it begins, and
    each number it tries costs 12.
    """
    (num_lists, longest), (most, last) = places.sums.shape, _largest(places)
    levels = longest.bit_length()
    looked_at = num_lists * (levels * most + last)
    return (dense if num_lists * (most + 1) * last < 100_000 * levels + 12 * looked_at else halving)(places, least)

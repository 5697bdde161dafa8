"""Lists of relevant and irrelevant entries in rank order, both classes together: the input of the oracles.

Row q of every `(Q, L)` tensor holds list q, best first. A ranking that keeps each class in the order of its scores is
described by the number of entries of the other class before each entry: b_i for the i-th best relevant one, a_j for the
j-th best irrelevant one. In the sorted ranking these are m_i = `below` and t(j) = `above` at their places.

The most violated rankings of sorted lists under each measure.

Measures of the first k ranks, precision@k and NDCG@k: in a ranking with a relevant entries among the first k, and
beta = k - a irrelevant ones, the i-th best relevant entry has b_i <= beta for i <= a and b_i >= beta for i > a. After
the cut only psi counts, which is concave in every b_i with its maximum at m_i: there b_i = max(m_i, beta).

Measures of the whole list, AUC, the reciprocal rank, average precision and NDCG: in those of average precision and NDCG
every irrelevant entry finds its place independently of the others. Describe a ranking by a_j, the number of the P
relevant entries before the j-th best of the N irrelevant ones. The loss of a pair (i, j) in the wrong order depends on
i and j alone, and the sum over the pairs i > a of one j telescopes, so that the objective is, up to a factor and a
constant, the sum over j of

    f_j(a) = U(j + a) + (a + 1) V(j + a) + cp(a) - a s^-_j,    0 <= a <= P,    cp(a) = s^+_1 + .. + s^+_a

    average precision:  U(r) = -(1 + 1/2 + .. + 1/r),  V(r) = 1/r,  scores times 2/N          Yue et al. 2007
    NDCG:               U(r) = D(r), the discount,     V = 0,       scores times 2 Z/(P N)    Chakrabarti et al. 2008

This form avoids differences of large numbers, such as j times harmonic numbers. If the loss of a pair does not
grow with j (D is convex), the best a_j does not fall with j: then the choices form a ranking, and the a_j are the row
maxima of a monotone matrix. They are found by halving, the odd multiples of 2^l between their known neighbours, in
O((P + N) log N).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.arrays import wide
from torchrank.functional.lists import Lists
from torchrank.functional.ragged import read
from torchrank.functional.sorting import sort_marked

# -------------------------------------------------------------------------------------------------------- sorted lists


@dataclass(eq=False, frozen=True)
class Merged:
    """The sorted lists. After the end of a list nothing is relevant and the counts do not change."""

    scores_of_entries: Tensor  # (N,) scores in float64, in the given order
    order: Tensor  # (Q, L) which entry of the list is at each place
    ones: Tensor  # (Q, L) 1 at relevant entries, 0 at others
    slots: Tensor | None  # (N,) where each entry is in rows in the given order; None: the rows have no padding
    lengths: Tensor  # (Q, 1)

    @cached_property
    def relevant(self) -> Tensor:  # (Q, L)
        return self.ones.bool()

    @cached_property
    def irrelevant(self) -> Tensor:  # (Q, L)
        return ~self.relevant if self.slots is None else self.inside & ~self.relevant

    @cached_property
    def inside(self) -> Tensor:  # (Q, L)
        return torch.arange(self.order.shape[1], device=self.lengths.device) < self.lengths

    @cached_property
    def above(self) -> Tensor:
        """The number of relevant entries up to here, `(Q, L)`: i at relevant entries, t(j) at irrelevant ones."""
        return self.ones.cumsum(1)

    @cached_property
    def below(self) -> Tensor:
        """The number of irrelevant entries up to here, `(Q, L)`: m_i at relevant entries, j at irrelevant ones."""
        ranks = torch.arange(1, self.order.shape[1] + 1, device=self.lengths.device)
        return (ranks if self.slots is None else torch.minimum(ranks, self.lengths)) - self.above

    @property
    def counts(self) -> tuple[Tensor, Tensor]:
        """The numbers P of relevant and N of irrelevant entries, `(Q, 1)` each."""
        relevant = self.above[:, -1:]
        return relevant, self.lengths - relevant

    @cached_property
    def scale(self) -> Tensor:
        """2 / (P N), `(Q, 1)`; 0 for a list with one class."""
        relevant, irrelevant = self.counts
        pairs = wide(relevant * irrelevant)
        return torch.where(pairs > 0, 2 / pairs, 0)

    @cached_property
    def scores(self) -> Tensor:
        """Scores in rank order `(Q, L)`, minus the best one of the list, so that sums lose no digits to a shift or to
        scores that are far below; 0 after the end."""
        rows = fill_rows(self.scores_of_entries, self.slots, self.order.shape, 0).gather(1, self.order)
        scores = rows - rows[:, :1]
        return scores if self.slots is None else torch.where(self.inside, scores, 0)

    def inversions(self, before_relevant: Tensor, before_irrelevant: Tensor) -> Tensor:
        """The number of pairs in the wrong order, `(Q, L)`: b_i at relevant entries, minus it, a_j - P, at others."""
        after = before_irrelevant - self.above[:, -1:]
        return torch.where(self.relevant, before_relevant, after, out=after)

    def coefficients(self, inversions: Tensor) -> Tensor:
        """The coefficients of psi(y*) - psi(y) for inversions `(Q, L)`, `(N,)` in the given order."""
        values = inversions * self.scale
        values = torch.empty_like(values).scatter_(1, self.order, values).flatten()
        return values if self.slots is None else values.index_select(0, self.slots)

    def nth(self, counts: Tensor, numbers: int) -> Tensor:
        """The place of the n-th counted entry for n = 0..numbers, `(Q, numbers + 1)`; any place if there is none."""
        n = torch.arange(numbers + 1, device=counts.device).expand(len(counts), -1).contiguous()
        return torch.searchsorted(counts, n).clamp(max=counts.shape[1] - 1)


def merge(scores: Tensor, relevant: Tensor, lists: Lists, *, lower: float = 0.0) -> Merged:
    """Sorts the lists, relevant entries as if they scored `lower` less.

    >>> merged = merge(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False]), Lists.of([0, 3]))
    >>> merged.relevant.tolist(), merged.below.tolist()
    ([[False, True, False]], [[1, 1, 2]])
    """
    slots, shape = None, (len(lists), lists.longest)
    if math.prod(shape) > lists.num_entries:  # otherwise all lists have the same length
        slots = lists.ids * lists.longest + lists.positions
    scores = wide(scores)
    lowered = scores.sub(relevant.view(torch.uint8), alpha=lower) if lower else scores
    rows, marks = fill_rows(lowered, slots, shape, -torch.inf), fill_rows(relevant, slots, shape, False)
    order, ones = sort_marked(rows, marks)
    return Merged(scores, order, ones, slots, lists.offsets.diff()[:, None])


def fill_rows(values: Tensor, slots: Tensor | None, shape: tuple[int, ...], end: float) -> Tensor:
    """The values `(N,)` as rows `(Q, L)` in the order of the entries, `end` after the end of a list."""
    if slots is None:
        return values.view(shape)
    return values.new_full((math.prod(shape),), end).index_copy_(0, slots, values).view(shape)


class Sums(NamedTuple):
    """Running sums along the rows. psi is largest in the sorted ranking; b_i makes it smaller by 2/(P N) cost_i(b_i),

    cost_i(b) = C(m_i) - m_i s_i - C(b) + b s_i >= 0,    C(b) the sum of the b best irrelevant scores.
    """

    irrelevant: Tensor  # (Q, L) scores of the irrelevant entries up to here: C
    relevant: Tensor  # (Q, L) scores of the relevant entries up to here
    costs: Tensor  # (Q, L) C(m_i) - m_i s_i of the relevant entries up to here


def running_sums(merged: Merged) -> Sums:
    relevant = torch.where(merged.relevant, merged.scores, 0)
    irrelevant = (merged.scores - relevant).cumsum_(1)
    costs = torch.where(merged.relevant, irrelevant - merged.below * merged.scores, 0).cumsum_(1)
    return Sums(irrelevant, relevant.cumsum_(1), costs)


# ------------------------------------------------------------------------------------------ the most violated rankings

# --------------------------------------------------------------------------------------------------- the first k ranks


class _Splits(NamedTuple):
    """The first k ranks split into a = 0..k relevant entries and the rest, `(Q, k + 1)` each."""

    relevant: Tensor  # a
    irrelevant: Tensor  # beta: k - a, but at most N
    allowed: Tensor  # whether such rankings exist
    change: Tensor  # sum of cost_i(beta) over a < i <= t(beta), minus the sum over t(beta) < i <= a
    scores: Tensor  # s_a
    costs: Tensor  # running sum of C(m_i) - m_i s_i up to a
    sums: Tensor  # C(b) for b = 0..k


def _find_splits(merged: Merged, k: int) -> _Splits:
    """All splits with what their values are computed from."""
    (num_relevant, num_irrelevant), numbers = merged.counts, torch.arange(k + 1, device=merged.above.device)
    place, place_irrelevant = merged.nth(merged.above, k), merged.nth(merged.below, k)
    scores, sums = merged.scores, running_sums(merged)

    def at(values: Tensor, places: Tensor) -> Tensor:
        return torch.where(numbers > 0, values.gather(1, places), 0)

    a, beta = numbers.expand(len(scores), -1), torch.minimum(k - numbers, num_irrelevant)
    best, relevant, costs = (at(values, place) for values in (scores, sums.relevant, sums.costs))
    irrelevant = at(sums.irrelevant, place_irrelevant)
    t, relevant_t, costs_t = (
        at(v, place_irrelevant).gather(1, beta) for v in (merged.above, sums.relevant, sums.costs)
    )
    change = costs_t - costs - (t - a) * irrelevant.gather(1, beta) + beta * (relevant_t - relevant)
    allowed = (a <= num_relevant) & (a >= torch.minimum(k - num_irrelevant, num_relevant))
    return _Splits(a, beta, allowed, change, best, costs, irrelevant)


def _best_split(splits: _Splits, values: Tensor) -> tuple[Tensor, Tensor]:
    """a and beta of the split with the largest value, `(Q, 1)` each."""
    best = torch.where(splits.allowed, values, -torch.inf).argmax(1, keepdim=True)
    return splits.relevant.gather(1, best), splits.irrelevant.gather(1, best)


def top_precision(merged: Merged, k: int) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` for precision@k.

    The loss depends on a alone, so b_i = min(m_i, beta) for i <= a: this is the sorted ranking except between the
    places of the a-th relevant and the beta-th irrelevant entry, where b_i = beta and a_j = a.
    """
    splits, most = _find_splits(merged, k), wide(merged.counts[0].clamp(1, k))
    # no cost is negative, so the sum over a < i <= t or t < i <= a is the absolute value of the change
    a, beta = _best_split(splits, 1 - splits.relevant / most - merged.scale * splits.change.abs())
    above, below = merged.above, merged.below
    moved = (above <= a) != (below <= beta)
    inversions = merged.inversions(torch.where(moved, beta, below), torch.where(moved, a, above))
    return inversions, (1 - a / most)[:, 0]


def top_ndcg(merged: Merged, discounts: Tensor) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` for NDCG@k with any `discounts (k,)`.

    A dynamic program within the first k places (Chakrabarti et al., KDD 2008): V_i(b) is the largest value of
    b_1 <= .. <= b_i = b, and V_i(b) = max over b' <= b of V_{i-1}(b') - 2/(P N) cost_i(b) - D(i + b) / Z.
    """
    k, (num_relevant, num_irrelevant) = len(discounts), merged.counts
    splits, ideal = _find_splits(merged, k), discounts.cumsum(0)[(num_relevant - 1).clamp(0, k - 1)]
    numbers = torch.arange(k + 1, device=discounts.device)
    value, tops = torch.zeros_like(splits.sums), [torch.zeros_like(ideal)]
    last, pointers = list[Tensor](), list[Tensor]()
    for i in range(1, k + 1):
        b = numbers[: k - i + 1]
        value, pointer = value[:, : len(b)].cummax(1)
        linear = splits.costs[:, i, None] - splits.costs[:, i - 1, None]
        cost = linear - splits.sums[:, : len(b)] + b * splits.scores[:, i, None]
        value = torch.where(b <= num_irrelevant, value - merged.scale * cost - discounts[i - 1 :] / ideal, -torch.inf)
        top, argument = value.max(1, keepdim=True)
        tops.append(top)
        last.append(argument)
        pointers.append(pointer)
    a, beta = _best_split(splits, torch.cat(tops, 1) - merged.scale * splits.change.clamp(min=0))
    chosen = _trace(a, last, pointers)
    rank = numbers[1:] + chosen
    gains = torch.where(rank <= k, discounts[(rank - 1).clamp(max=k - 1)], 0)
    return _inversions(merged, chosen, a, beta), 1 - (gains.sum(1, keepdim=True) / ideal)[:, 0]


def _trace(a: Tensor, last: list[Tensor], pointers: list[Tensor]) -> Tensor:
    """b_1..b_a of the best ranking, followed by k + 1: `(Q, k)`. `last[i - 1]` is the best b_i if a = i."""
    k, chosen, b = len(last), [], torch.zeros_like(a)
    for i in range(k, 0, -1):
        b = torch.where(a == i, last[i - 1], b)
        chosen.append(torch.where(a >= i, b, k + 1))
        b = pointers[i - 1].gather(1, b)
    return torch.cat(chosen[::-1], 1)


def _inversions(merged: Merged, chosen: Tensor, a: Tensor, beta: Tensor) -> Tensor:
    """Inversions `(Q, L)` of the ranking with b_i = `chosen (Q, k)` for the split (a, beta)."""
    above, below, k = merged.above, merged.below, chosen.shape[1]
    numbers = torch.arange(k + 1, device=chosen.device).expand(len(chosen), -1).contiguous()
    placed = torch.searchsorted(chosen, numbers)  # how many b_i are smaller than j, j = 0..k
    b, a_j = chosen.gather(1, (above - 1).clamp(0, k - 1)), placed.gather(1, below.clamp(max=k))
    before_relevant = torch.where(above <= a, b, torch.maximum(below, beta))
    before_irrelevant = torch.where(below <= beta, a_j, torch.maximum(above, a))
    return merged.inversions(before_relevant, before_irrelevant)


# ------------------------------------------------------------------------------------------------------ the whole list


def whole_auc(merged: Merged) -> tuple[Tensor, Tensor]:
    """Pair (i, j) is inverted if and only if s_i - s_j < 1/2: the ranking when relevant entries score 1/2 less.

    P - t(j) pairs are inverted at the j-th irrelevant entry, and the sum of P - i over the relevant ones is known.
    Floats take half the time of integers here; after the end of a list nothing is relevant.
    """
    relevant, places = merged.counts[0], merged.order.shape[1]
    inverted = relevant * places - merged.above.sum(1, keepdim=True) - relevant * (relevant - 1) // 2
    ones, above, ranks = wide(merged.ones), wide(merged.above), torch.arange(1, places + 1, device=relevant.device)
    return torch.lerp(above - wide(relevant), wide(ranks) - above, ones), (inverted * merged.scale)[:, 0] / 2


def whole_mrr(merged: Merged) -> tuple[Tensor, Tensor]:
    """b_1 = beta and b_i = max(m_i, beta) with the best beta: one candidate at each irrelevant entry, and beta = 0."""
    above, below, scale, scores = merged.above, merged.below, merged.scale, merged.scores
    sums, first = running_sums(merged), merged.nth(above, 1)[:, 1:]
    score, least = scores.gather(1, first), sums.costs.gather(1, first)
    several = sums.costs - above * sums.irrelevant + below * sums.relevant
    cost = torch.where(above > 0, several, least - sums.irrelevant + below * score)
    values = torch.where(merged.irrelevant, below / wide(below + 1) - scale * cost, -torch.inf)
    value, place = values.max(1, keepdim=True)
    beta = torch.where(value >= -scale * least, below.gather(1, place), 0)
    before_relevant = torch.where(above == 1, beta, torch.maximum(below, beta))
    before_irrelevant = torch.where(below <= beta, 0, above.clamp(min=1))
    return merged.inversions(before_relevant, before_irrelevant), (beta / wide(beta + 1))[:, 0]


def whole_average_precision(merged: Merged) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` for average precision."""
    ranks = torch.arange(merged.above.shape[1] + 1, dtype=merged.scale.dtype, device=merged.scale.device)
    inverse = torch.where(ranks > 0, 1 / ranks.clamp(min=1), 0)
    objective = _objective(merged, 2 / wide(merged.counts[1]).clamp(min=1), -inverse.cumsum(0), inverse)
    before_relevant, before_irrelevant = _both_classes(merged, _halving(objective))
    precisions = merged.above / wide(merged.above + before_relevant).clamp(min=1)
    total = torch.where(merged.relevant, precisions, 0).sum(1)
    return merged.inversions(before_relevant, before_irrelevant), 1 - total / merged.counts[0][:, 0]


def whole_ndcg(merged: Merged, discounts: Tensor, *, convex: bool) -> tuple[Tensor, Tensor]:
    """Inversions `(Q, L)` and loss `(Q,)` for NDCG; `discounts (L,)` are convex, or would be with a larger D(1).

    D(1) occurs in the pair (1, 1) only. Raise it until D is convex, which only improves rankings with a_1 = 0. If the
    best ranking of that problem has a_1 >= 1, it is the answer. If it has a_1 = 0, it is the best of those; the best of
    the others, a_j >= 1 for all j, is found without D(1), and the better one of the two is the answer.
    """
    ideal = discounts.cumsum(0)[(merged.counts[0] - 1).clamp(min=0)]
    objective = _objective(merged, ideal * merged.scale, torch.nn.functional.pad(discounts, (1, 0)), None)
    if convex or len(discounts) < 3:
        best = _halving(objective)
    else:
        raised = torch.cat([discounts[:1], 2 * discounts[1:2] - discounts[2:3], discounts[1:]])
        best, other = _halving(objective._replace(u=raised)), _halving(objective, least=1)
        best = torch.where(objective.total(best) >= objective.total(other), best, other)
    before_relevant, before_irrelevant = _both_classes(merged, best)
    gains = objective.u[(merged.above + before_relevant).clamp(max=len(discounts))]
    total = torch.where(merged.relevant, gains, 0).sum(1)
    return merged.inversions(before_relevant, before_irrelevant), 1 - total / ideal[:, 0]


class _Objective(NamedTuple):
    """The parts of the f_j of all lists; columns after the P-th and N-th are never read."""

    sums: Tensor  # (Q, L + 1) cp(a) at column a
    scores: Tensor  # (Q, L + 1) s^-_j at column j
    counts: tuple[Tensor, Tensor]  # (Q, 1) each: P and N
    u: Tensor  # (L + 1,) U(r) at r
    v: Tensor | None  # (L + 1,) V(r) at r; None: 0
    num_entries: int | None  # of all lists together; None on the CPU, where reading numbers is free

    def total(self, best: Tensor) -> Tensor:
        """Sum of f_j(a_j) over the j of each list, `(Q, 1)`, where V = 0."""
        j = torch.arange(1, best.shape[1] + 1, device=best.device)
        u = self.u[(j + best).clamp(max=best.shape[1])]
        values = u + self.sums.gather(1, best) - best * self.scores[:, 1:]
        return torch.where(j <= self.counts[1], values, 0).sum(1, keepdim=True)


def _objective(merged: Merged, factor: Tensor, u: Tensor, v: Tensor | None) -> _Objective:
    """The two classes apart, scores times `factor`. Column 0 takes the entries of the other class."""
    scores = torch.nan_to_num(merged.scores * factor, 0, 0, 0)  # otherwise a range might have no best place
    empty = scores.new_empty(len(scores), scores.shape[1] + 1)
    totals = torch.where(merged.relevant, scores, 0).cumsum(1)
    sums = empty.scatter(1, torch.where(merged.relevant, merged.above, 0), totals)
    sums[:, 0] = 0
    others = empty.scatter(1, torch.where(merged.irrelevant, merged.below, 0), scores)
    num_entries = None if scores.device.type == "cpu" else len(merged.scores_of_entries)
    return _Objective(sums, others, merged.counts, u, v, num_entries)


def _both_classes(merged: Merged, best: Tensor) -> tuple[Tensor, Tensor]:
    """b_i = #{j : a_j < i} and a_j at the places of all entries; `best` has a_j at column j - 1."""
    counts = best.new_zeros(len(best), best.shape[1] + 1).scatter_add_(1, best, torch.ones_like(best)).cumsum(1)
    above, below = ((number - 1).clamp(min=0) for number in (merged.above, merged.below))
    return counts.gather(1, above), best.gather(1, below)


def _halving(objective: _Objective, least: int = 0) -> Tensor:
    """The best a_j >= `least` for every j, `(Q, L)`, the smallest one if there are several; P after the last j.

    Column j of `best` is found between its neighbours j - step and j + step, which are known already.
    """
    (num_lists, longest), (relevant, irrelevant) = objective.sums.shape, objective.counts
    step = 1 << (longest - 1).bit_length()
    best = relevant.repeat(1, step + 1)
    best[:, :1] = relevant.clamp(max=least)
    while step > 1 and num_lists:
        step //= 2
        columns = torch.arange(step, longest, 2 * step, device=best.device)
        low, high = (best[:, first :: 2 * step][:, : len(columns)] for first in (0, 2 * step))
        places = _best_between(objective, columns, low, high)
        best[:, step : longest : 2 * step] = torch.where(columns <= irrelevant, places, relevant)
    return best[:, 1:longest]


def _best_between(objective: _Objective, columns: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The best a_j in low..high, `(Q, J)` each, at the J columns: all candidates of all lists in one flat buffer.

    The buffer has at most P + J numbers per list, so no more than there are entries, for any ranges.
    """
    num_lists, width = objective.sums.shape
    lengths = torch.where(columns <= objective.counts[1], high - low + 1, 0).flatten()
    ends = lengths.cumsum(0)
    # if reading would wait for a device, the buffer has its largest size, and its unused part is one more range
    size = read(ends[-1]) if objective.num_entries is None else objective.num_entries
    lengths = torch.cat([lengths, size - ends[-1:]])
    owner = torch.repeat_interleave(lengths, output_size=size)  # the range of each candidate
    inside = owner.clamp(max=len(ends) - 1)
    first = low.flatten() - ends + lengths[:-1]  # a minus the place in the buffer
    a = first.index_select(0, inside).add_(torch.arange(size, device=inside.device)).clamp_(max=width - 1)
    rank = columns.expand_as(low).flatten().index_select(0, inside).add_(a).clamp_(max=width - 1)
    starts = torch.arange(0, num_lists * width, width, device=a.device)[:, None].expand_as(low).flatten()
    values = objective.sums.flatten().index_select(0, starts.index_select(0, inside).add_(a))
    values += objective.u.index_select(0, rank)
    values -= objective.scores.index_select(1, columns).flatten().index_select(0, inside).mul_(a)
    if objective.v is not None:
        values += objective.v.index_select(0, rank).mul_(a + 1)
    peaks = values.new_full((len(lengths),), -torch.inf).scatter_reduce_(0, owner, values, "amax")
    a = torch.where(values == peaks.index_select(0, owner), a, width)
    return torch.full_like(lengths, width).scatter_reduce_(0, owner, a, "amin")[:-1].view(low.shape)

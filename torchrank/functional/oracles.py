"""The most violated ranking of each list under five measures (McFee & Lanckriet, ICML 2010), and the hinge it gives.

A ranking of P relevant and N irrelevant entries is written by b_i, how many irrelevant entries stand before the i-th best
relevant one. Nothing is lost by keeping each class in the order of its scores. With psi the mean over the P N pairs of
+-(s_i - s_j), the oracle maximises loss(y) - (psi(y*) - psi(y)), and psi falls short of that of the sorted ranking by

    2/(P N) sum_i cost_i(b_i),   cost_i(b) = C(m_i) - m_i s_i - C(b) + b s_i >= 0,   C(b) the sum of the b best irrelevant scores

where m_i is b_i in the sorted ranking. Everything is read off one sort of both classes together: at an irrelevant entry j
the relevant entries before it are t(j) = #{i : m_i < j}, and running sums along the row are the prefix sums up to them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.gains import discount_of
from torchrank.functional.gradient import KnownGradient
from torchrank.functional.placement import Places, dense, halving, place_values
from torchrank.functional.ragged import list_ids, longest_list, positions_within, read, sort_keys, wide
from torchrank.functional.ranking import check, check_cutoff, check_lists, result_dtype

AP_FORMS = {"dense": dense, "divide": halving}


def most_violated(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    max_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Coefficients `(N,)` of psi(y*) - psi(y) in the entries, and the loss `(Q,)` of the ranking y that violates most.

    The y that maximises loss(y) - sum of coefficients * scores; entries with `labels >= threshold` are relevant. The
    loss is 1 - AUC, 1 - precision@k (of at most min(k, P)), 1 - average precision, 1 - reciprocal rank of the first, or
    1 - NDCG@k with 0/1 gains; `k` is read by "precision", which needs it, and by "ndcg". Exact, O(n log n) (+ k^2 for
    NDCG). Coefficients of a list add up to 0; a list with one class has none and loss 0.

    >>> most_violated(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]), measure="auc")
    (tensor([-0., 0., 0.]), tensor([0., 0.]))
    """
    check(scores, labels, offsets)
    merged = _merge(scores.detach(), labels, offsets, measure=measure, threshold=threshold, max_length=max_length)
    coefficients, loss = _violate(merged, measure, k, discount)
    dtype = result_dtype(scores)
    return merged.flat(coefficients).to(dtype), loss.to(dtype)


def structured_hinge(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Largest loss(y) - (psi(y*) - psi(y)) over all rankings y of each list, `(Q,)`: a bound of the loss of the ranking
    by the scores. Its gradient is minus the coefficients of `most_violated`, where the options are explained.

    >>> structured_hinge(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]), measure="auc")
    tensor([1., 0.])
    """
    check_lists(scores, labels, offsets)
    merged = _merge(scores.detach(), labels, offsets, measure=measure, threshold=threshold, max_length=max_length)
    coefficients, loss = _violate(merged, measure, k, discount)
    hinge = loss - (coefficients * merged.scores).sum(1)
    dtype = result_dtype(scores)
    slopes = -merged.flat(coefficients).to(dtype)
    return KnownGradient.apply(scores, hinge.to(dtype), slopes, list_ids(offsets, len(scores)))


class _Merged(NamedTuple):
    """Row q holds list q, both classes together, best first; behind its end scores are 0 and counts stay as they are."""

    order: Tensor  # (N,) entry at each place of all lists
    place: Tensor  # (N,) and where it stands in the rows
    scores: Tensor  # (Q, L) float64, less the mean of the list
    relevant: Tensor  # (Q, L)
    irrelevant: Tensor  # (Q, L)
    above: Tensor  # (Q, L) relevant entries up to here: i of the i-th relevant, t(j) of the j-th irrelevant entry
    below: Tensor  # (Q, L) irrelevant entries up to here: m_i, and j

    @property
    def num_relevant(self) -> Tensor:  # (Q, 1)
        return self.relevant.sum(1, keepdim=True)

    @property
    def num_irrelevant(self) -> Tensor:  # (Q, 1)
        return self.irrelevant.sum(1, keepdim=True)

    def flat(self, rows: Tensor) -> Tensor:
        """`(Q, L)` as `(N,)` in the order of the entries."""
        values = rows.flatten().index_select(0, self.place)
        return torch.empty_like(values).scatter(0, self.order, values)


def _merge(
    scores: Tensor, labels: Tensor, offsets: Tensor, *, measure: str, threshold: float, max_length: int | None
) -> _Merged:
    """Sorts once. For AUC a relevant entry stands as if it had 1/2 less: then the sorted ranking is the answer."""
    if max_length is None and len(offsets) > 1:
        max_length = read(offsets.diff().max())
    num_lists, longest = len(offsets) - 1, longest_list(offsets, len(scores), max_length)
    ids, relevant = list_ids(offsets, len(scores)), labels >= threshold
    scores = wide(scores)
    keys = scores - 0.5 * relevant if measure == "auc" else scores
    order = sort_keys(keys, ids, lists=num_lists)
    place = ids * longest + positions_within(offsets, len(scores))

    def rows(values: Tensor) -> Tensor:
        padded = values.new_zeros(num_lists * longest).index_copy(0, place, values.index_select(0, order))
        return padded.view(num_lists, longest)

    inside = torch.arange(longest, device=scores.device) < offsets.diff()[:, None]
    values, relevant = rows(scores), rows(relevant)
    irrelevant = inside & ~relevant
    mean = values.sum(1, keepdim=True) / offsets.diff()[:, None].clamp(min=1)
    values = torch.where(inside, values - mean, 0)
    return _Merged(order, place, values, relevant, irrelevant, relevant.cumsum(1), irrelevant.cumsum(1))


def _violate(merged: _Merged, measure: str, k: int | None, discount: str) -> tuple[Tensor, Tensor]:
    """Coefficients `(Q, L)` and loss `(Q,)` in float64."""
    if measure not in ORACLES:
        raise ValueError(f"unknown measure {measure!r}: choose one of {sorted(ORACLES)}")
    check_cutoff(k)
    if measure == "precision" and k is None:
        raise ValueError("measure='precision' needs its cut-off k, the number of places that count")
    num_lists, longest = merged.scores.shape
    if longest == 0:
        return merged.scores, merged.scores.new_zeros(num_lists)
    before, loss = ORACLES[measure](merged, min(k or longest, longest), discount)
    pairs = wide(merged.num_relevant * merged.num_irrelevant)
    inverted = torch.where(merged.relevant, before, torch.where(merged.irrelevant, before - merged.num_relevant, 0))
    coefficients = torch.where(pairs > 0, 2 * inverted / pairs.clamp(min=1), 0)
    return coefficients, torch.where(pairs[:, 0] > 0, loss, 0)


# Each oracle returns, for every place, how many entries of the other class stand before it in the ranking it found
# (b_i at a relevant, a_j at an irrelevant entry, anything behind the end), and the loss of the ranking.


def _auc(merged: _Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    before = torch.where(merged.relevant, merged.below, merged.above)
    inversions = torch.where(merged.relevant, merged.below, 0).sum(1)
    return before, inversions / wide(merged.num_relevant * merged.num_irrelevant)[:, 0]


class _Sums(NamedTuple):
    """Running sums along the rows: what the costs are made of."""

    irrelevant: Tensor  # (Q, L) scores of the irrelevant entries up to here: C
    relevant: Tensor  # (Q, L) scores of the relevant ones
    sorted: Tensor  # (Q, L) C(m_i) - m_i s_i of the relevant ones


def _sums(merged: _Merged) -> _Sums:
    relevant = torch.where(merged.relevant, merged.scores, 0)
    irrelevant = (merged.scores - relevant).cumsum(1)
    costs = torch.where(merged.relevant, irrelevant - merged.below * merged.scores, 0)
    return _Sums(irrelevant, relevant.cumsum(1), costs.cumsum(1))


def _mrr(merged: _Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    """b_1 = beta and b_i = max(m_i, beta), with the best beta: one candidate at each irrelevant entry, and beta = 0."""
    above, below, sums = merged.above, merged.below, _sums(merged)
    scale = 2 / wide(merged.num_relevant * merged.num_irrelevant)
    first = _nth(above, 1)[:, 1:]
    score, least = merged.scores.gather(1, first), sums.sorted.gather(1, first)
    several = sums.sorted - above * sums.irrelevant + below * sums.relevant
    cost = torch.where(above > 0, several, least - sums.irrelevant + below * score)
    values = torch.where(merged.irrelevant, below / (below + 1.0) - scale * cost, -torch.inf)
    value, place = values.max(1, keepdim=True)
    beta = torch.where(value >= -scale * least, below.gather(1, place), 0)
    before_relevant = torch.where(above == 1, beta, torch.maximum(below, beta))
    before_irrelevant = torch.where(below <= beta, 0, above.clamp(min=1))
    loss = beta / wide(beta + 1)
    return torch.where(merged.relevant, before_relevant, before_irrelevant), loss[:, 0]


class _Cuts(NamedTuple):
    """Rankings with a relevant entries among the first k, a = 0..k: `(Q, k + 1)` each."""

    relevant: Tensor  # a
    irrelevant: Tensor  # beta: k - a, but no more than N
    allowed: Tensor  # such rankings exist
    change: Tensor  # 2/(P N) times the sum of cost_i(beta) over a < i <= t(beta), minus it over t(beta) < i <= a
    scores: Tensor  # s_a
    costs: Tensor  # C(m_a) - m_a s_a
    sums: Tensor  # C(b) for b = 0..k


def _cuts(merged: _Merged, k: int) -> _Cuts:
    sums, numbers = _sums(merged), torch.arange(k + 1, device=merged.scores.device)

    def at(values: Tensor, places: Tensor) -> Tensor:
        return torch.where(numbers > 0, values.gather(1, places), 0)

    a, beta = numbers.expand(len(merged.scores), -1), torch.minimum(k - numbers, merged.num_irrelevant)
    nth, nth_other = _nth(merged.above, k), _nth(merged.below, k)
    best, relevant, costs = (at(values, nth) for values in (merged.scores, sums.relevant, sums.sorted))
    other, *at_cut = (at(values, nth_other) for values in (sums.irrelevant, merged.above, sums.relevant, sums.sorted))
    total, (t, relevant_t, costs_t) = other.gather(1, beta), (values.gather(1, beta) for values in at_cut)
    change = costs_t - costs - (t - a) * total + beta * (relevant_t - relevant)
    scale = 2 / wide(merged.num_relevant * merged.num_irrelevant)
    allowed = (a <= merged.num_relevant) & (a >= torch.minimum(k - merged.num_irrelevant, merged.num_relevant))
    return _Cuts(a, beta, allowed, scale * change, best, costs, other)


def _nth(counts: Tensor, k: int) -> Tensor:
    """Place of the n-th entry that is counted, n = 0..k, `(Q, k + 1)`; any place where there is none."""
    numbers = torch.arange(k + 1, device=counts.device).expand(len(counts), -1).contiguous()
    return torch.searchsorted(counts, numbers).clamp(max=counts.shape[1] - 1)


def _precision(merged: _Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    """With a relevant entries among the first k the loss is known, and each b_i is m_i as far as it may: at most k - a
    for i <= a, at least k - a for i > a."""
    cuts, most = _cuts(merged, k), wide(merged.num_relevant.clamp(max=k))
    # cost_i(beta) is never negative, so that the sum over a < i <= t or t < i <= a is the size of `change`
    values = 1 - cuts.relevant / most - cuts.change.abs()
    best = torch.where(cuts.allowed, values, -torch.inf).argmax(1, keepdim=True)
    a, beta = cuts.relevant.gather(1, best), cuts.irrelevant.gather(1, best)
    above, below = merged.above, merged.below
    before_relevant = torch.where(above <= a, torch.minimum(below, beta), torch.maximum(below, beta))
    before_irrelevant = torch.where(below <= beta, torch.minimum(above, a), torch.maximum(above, a))
    return torch.where(merged.relevant, before_relevant, before_irrelevant), (1 - a / most)[:, 0]


def _map(merged: _Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    ranks = torch.arange(merged.scores.shape[1] + 1, dtype=merged.scores.dtype, device=merged.scores.device)
    harmonic = torch.where(ranks > 0, 1 / ranks.clamp(min=1), 0)
    before = _placed(merged, _best_places(_places(merged, 1.0, (-harmonic.cumsum(0), -harmonic))))
    precisions = torch.where(merged.relevant, merged.above / wide(merged.above + before).clamp(min=1), 0)
    return before, 1 - precisions.sum(1) / merged.num_relevant[:, 0]


def _ndcg(merged: _Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    ranks = torch.arange(1, k + 1, device=merged.scores.device)
    discounts = discount_of(ranks, discount)
    ideal = discounts.cumsum(0)[(merged.num_relevant - 1).clamp(0, k - 1)]  # (Q, 1)
    if k < merged.scores.shape[1]:
        return _cut_ndcg(merged, k, discounts, ideal)
    return _whole_ndcg(merged, discounts, ideal, discount)


def _places(merged: _Merged, weight: Tensor | float, tables: tuple[Tensor, Tensor]) -> Places:
    """The two classes apart: column i, and column j, for the i-th and the j-th best."""
    counts = merged.num_relevant, merged.num_irrelevant
    scores = merged.scores * (2 / wide(counts[1]).clamp(min=1))
    sums = torch.where(merged.relevant, scores, 0).cumsum(1)
    empty = scores.new_zeros(len(scores), scores.shape[1] + 1)
    relevant = empty.scatter(1, torch.where(merged.relevant, merged.above, 0), sums)
    relevant[:, 0] = 0
    irrelevant = empty.scatter(1, torch.where(merged.irrelevant, merged.below, 0), scores)
    weights = torch.as_tensor(weight, dtype=scores.dtype, device=scores.device).expand(len(scores), 1)
    return Places(relevant, irrelevant, counts, weights, tables, len(merged.order))


def _placed(merged: _Merged, best: Tensor) -> Tensor:
    """From the a_j, column j - 1, to all places: b_i = #{j : a_j < i}."""
    counts = torch.zeros_like(best).new_zeros(len(best), best.shape[1] + 1)
    counts = counts.scatter_add(1, best, torch.ones_like(best)).cumsum(1)
    before_relevant = counts.gather(1, (merged.above - 1).clamp(min=0))
    before_irrelevant = best.gather(1, (merged.below - 1).clamp(min=0))
    return torch.where(merged.relevant, before_relevant, before_irrelevant)


def _best_places(places: Places, least: int = 0) -> Tensor:
    return halving(places, least)


def _whole_ndcg(merged: _Merged, discounts: Tensor, ideal: Tensor, discount: str) -> tuple[Tensor, Tensor]:
    """A convex discount is placed entry by entry. "letor" is convex but for D(1) = D(2), which only matters while the
    best irrelevant entry is first of all: with D(1) raised to 2 D(2) - D(3) the best ranking is found among those, unless
    the raised problem itself prefers another. Among the others, a_j >= 1, D(1) does not matter. The better one is it."""
    weight, nothing = merged.num_relevant / ideal, discounts.new_zeros(len(discounts) + 1)
    table = torch.nn.functional.pad(discounts, (1, 0))
    places = _places(merged, weight, (table, nothing))
    if discount != "letor":
        best = _best_places(places)
    else:
        raised = table.index_fill(0, torch.ones(1, dtype=torch.int64, device=table.device), 2 - 1 / 1.584962500721156)
        best, other = _best_places(places._replace(tables=(raised, nothing))), _best_places(places, 1)
        best = torch.where(place_values(places, best) >= place_values(places, other), best, other)
    before = _placed(merged, best)
    gains = torch.where(merged.relevant, table[(merged.above + before).clamp(max=len(discounts))], 0)
    return before, 1 - gains.sum(1) / ideal[:, 0]


def _cut_ndcg(merged: _Merged, k: int, discounts: Tensor, ideal: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic programme over the first k places: V_i(b) is the best value of b_1 <= .. <= b_i = b (Chakrabarti et al.,
    KDD 2008), then a as for precision; behind the cut b_i = max(m_i, k - a)."""
    cuts = _cuts(merged, k)
    scale = 2 / wide(merged.num_relevant * merged.num_irrelevant)
    numbers = torch.arange(k + 1, device=discounts.device)
    value, tops, picks, pointers = torch.zeros_like(cuts.sums), [torch.zeros_like(ideal)], [], []
    for i in range(1, k + 1):
        b = numbers[: k - i + 1]
        value, pointer = value[:, : k - i + 1].cummax(1)
        cost = (
            cuts.costs[:, i : i + 1]
            - cuts.costs[:, i - 1 : i]
            - cuts.sums[:, : k - i + 1]
            + b * cuts.scores[:, i : i + 1]
        )
        value = value - scale * cost - discounts[i - 1 :] / ideal
        value = torch.where(b <= merged.num_irrelevant, value, -torch.inf)
        top, pick = value.max(1, keepdim=True)
        tops.append(top)
        picks.append(pick)
        pointers.append(pointer)
    values = torch.cat(tops, 1) - cuts.change.clamp(min=0)
    values = torch.where(cuts.allowed, values, -torch.inf)
    best = values.argmax(1, keepdim=True)
    a, beta = cuts.relevant.gather(1, best), cuts.irrelevant.gather(1, best)
    chosen, b = [], torch.zeros_like(a)
    for i in range(k, 0, -1):
        b = torch.where(a == i, picks[i - 1], b)
        chosen.append(torch.where(a >= i, b, k + 1))
        b = pointers[i - 1].gather(1, b)
    chosen = torch.cat(chosen[::-1], 1)  # (Q, k): b_i, k + 1 behind the a-th
    return _cut_places(merged, chosen, a, beta), 1 - _gain(chosen, discounts, a) / ideal[:, 0]


def _gain(chosen: Tensor, discounts: Tensor, a: Tensor) -> Tensor:
    k = len(discounts)
    rank = torch.arange(1, k + 1, device=chosen.device) + chosen
    return torch.where(rank <= k, discounts[(rank - 1).clamp(max=k - 1)], 0).sum(1)


def _cut_places(merged: _Merged, chosen: Tensor, a: Tensor, beta: Tensor) -> Tensor:
    above, below, k = merged.above, merged.below, chosen.shape[1]
    numbers = torch.arange(k + 1, device=chosen.device).expand(len(chosen), -1).contiguous()
    table = torch.searchsorted(chosen, numbers)
    before_relevant = torch.where(above <= a, chosen.gather(1, (above - 1).clamp(0, k - 1)), torch.maximum(below, beta))
    before_irrelevant = torch.where(below <= beta, table.gather(1, below.clamp(max=k)), torch.maximum(above, a))
    return torch.where(merged.relevant, before_relevant, before_irrelevant)


ORACLES = {"auc": _auc, "precision": _precision, "map": _map, "mrr": _mrr, "ndcg": _ndcg}

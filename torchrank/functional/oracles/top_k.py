"""The most violated rankings of measures of the first k ranks: precision@k and NDCG@k.

In a ranking with a relevant entries among the first k, and beta = k - a irrelevant ones, the i-th best relevant entry
has b_i <= beta for i <= a and b_i >= beta for i > a. After the cut only psi counts, which is concave in every b_i with
its maximum at m_i: there b_i = max(m_i, beta). The letters are explained in merged.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.oracles.merged import Merged, running_sums
from torchrank.functional.ragged import wide


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

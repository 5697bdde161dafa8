"""Losses typed again, plainly: one list at a time, loops over pairs; 0 where a list has one distinct label.

The second opinion against which `torchrank.functional` is compared, as in tests/reference/measures.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from tests.reference.measures import (
    List,
    blocks,
    dcg,
    discount_of,
    gain_of,
    ideal_dcg,
    ordered_pairs,
    stable_order,
)
from tests.reference.soft import approx_mrr_loss as approx_mrr_loss
from tests.reference.soft import approx_ndcg_loss as approx_ndcg_loss
from tests.reference.soft import lambda_loss as lambda_loss
from tests.reference.soft import neural_ndcg_loss as neural_ndcg_loss


def softplus(value: float) -> float:
    """log(1 + exp(value)) without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def log_softmax(values: List) -> list[float]:
    top = max(values)
    log_total = math.log(math.fsum(math.exp(v - top) for v in values))
    return [v - top - log_total for v in values]


def listnet_loss(scores, labels) -> float:
    if len(set(labels)) < 2:
        return 0.0
    target = [math.exp(v) for v in log_softmax(labels)]
    return -math.fsum(p * v for p, v in zip(target, log_softmax(scores), strict=True))


def listnet_gradient(scores, labels) -> np.ndarray:
    """softmax(scores) - softmax(labels)."""
    if len(set(labels)) < 2:
        return np.zeros(len(scores))
    return np.exp(log_softmax(scores)) - np.exp(log_softmax(labels))


def ranknet_loss(scores, labels) -> float:
    return math.fsum(softplus(scores[j] - scores[i]) for i, j in ordered_pairs(labels))


def swap_weights(scores, labels, *, k=None) -> dict[tuple[int, int], float]:
    """|change of NDCG@k| when the two entries of a pair exchange their places: by exchanging them."""
    order, ideal = stable_order(scores), ideal_dcg(labels, k)
    before = dcg([labels[i] for i in order], k)
    weights = {}
    for i, j in ordered_pairs(labels):
        swapped = [j if entry == i else i if entry == j else entry for entry in order]
        weights[i, j] = abs(dcg([labels[entry] for entry in swapped], k) - before) / ideal if ideal > 0 else 0.0
    return weights


def lambdarank_loss(scores, labels, *, k=None, weights=None) -> float:
    """`weights` hold the order fixed while finite differences move the scores."""
    weights = swap_weights(scores, labels, k=k) if weights is None else weights
    return math.fsum(weight * softplus(scores[j] - scores[i]) for (i, j), weight in weights.items())


# --- softmax, ListMLE (Xia et al. 2008), pointwise and pairwise losses, with weights of entries ---


def ones(values: List, weights) -> list[float]:
    return [1.0] * len(values) if weights is None else [float(w) for w in weights]


def softmax_loss(scores, labels, *, gain="linear", normalize=False, weights=None) -> float:
    """Cross entropy of the weighted gains, or of their shares, against softmax(scores)."""
    target = [w * gain_of(y, gain) for w, y in zip(ones(labels, weights), labels, strict=True)]
    if normalize and math.fsum(target) > 0:
        target = [t / math.fsum(target) for t in target]
    return -math.fsum(t * v for t, v in zip(target, log_softmax(scores), strict=True)) if len(scores) else 0.0


def poly1_softmax_loss(scores, labels, *, epsilon=1.0, gain="linear", weights=None) -> float:
    """softmax_loss + epsilon (1 - the probability of the target, which is uniform if all of it is 0)."""
    if not len(scores):
        return 0.0
    target = [w * gain_of(y, gain) for w, y in zip(ones(labels, weights), labels, strict=True)]
    total = math.fsum(target)
    shares = [t / total if total > 0 else 1 / len(target) for t in target]
    hit = math.fsum(t * math.exp(v) for t, v in zip(shares, log_softmax(scores), strict=True))
    return softmax_loss(scores, labels, gain=gain, weights=weights) + epsilon * (1 - hit)


def unique_softmax_loss(scores, labels, *, gain="exp2", weights=None) -> float:
    """Every entry in a softmax of its own, with the entries of smaller label (Zhu & Klabjan 2020)."""
    terms = []
    for i, weight in enumerate(ones(labels, weights)):
        rivals = [scores[i], *(scores[j] for j in range(len(scores)) if labels[j] < labels[i])]
        terms.append(-weight * gain_of(labels[i], gain) * log_softmax(rivals)[0])
    return math.fsum(terms)


def listmle_loss(scores, labels, *, discount=None, weights=None) -> float:
    """-log of the Plackett-Luce likelihood of the order by label: at each rank a softmax over those not yet placed."""
    order, weight, terms = stable_order(labels), ones(labels, weights), []
    for place, i in enumerate(order):
        rest = [scores[j] for j in order[place:]]
        factor = 1.0 if discount is None else discount_of(place + 1, discount)
        terms.append(-weight[i] * factor * log_softmax(rest)[0])
    return math.fsum(terms)


def mse_loss(scores, labels, *, weights=None) -> float:
    return math.fsum(w * (s - y) ** 2 for s, y, w in zip(scores, labels, ones(labels, weights), strict=True))


def bce_loss(scores, labels, *, weights=None) -> float:
    """Labels above 1 count as 1."""
    targets = [min(y, 1.0) for y in labels]
    terms = zip(scores, targets, ones(labels, weights), strict=True)
    return math.fsum(w * (y * softplus(-s) + (1 - y) * softplus(s)) for s, y, w in terms)


def ordinal_loss(scores, labels, *, weights=None) -> float:
    """Column k of the scores tells whether the label is k + 1 or more; one column may be given as a vector."""
    rows = [[s] if np.ndim(s) == 0 else list(s) for s in scores]
    return math.fsum(
        w * softplus(-s if y >= k + 1 else s)
        for row, y, w in zip(rows, labels, ones(labels, weights), strict=True)
        for k, s in enumerate(row)
    )


def pairs_loss(scores, labels, weights, function: Callable[[float], float]) -> float:
    """The sum of `function(s_i - s_j)` over the pairs with y_i > y_j, times the weight of i."""
    weight = ones(labels, weights)
    return math.fsum(weight[i] * function(scores[i] - scores[j]) for i, j in ordered_pairs(labels))


def logistic_loss(scores, labels, *, weights=None) -> float:
    return pairs_loss(scores, labels, weights, lambda gap: softplus(-gap))


def hinge_loss(scores, labels, *, weights=None) -> float:
    return pairs_loss(scores, labels, weights, lambda gap: max(0.0, 1 - gap))


def soft_zero_one_loss(scores, labels, *, weights=None) -> float:
    return pairs_loss(scores, labels, weights, lambda gap: math.exp(-softplus(gap)))


def pairwise_mse_loss(scores, labels, *, weights=None) -> float:
    """All ordered pairs, those of equal labels too."""
    size, weight = range(len(labels)), ones(labels, weights)
    return math.fsum(weight[i] * ((labels[i] - labels[j]) - (scores[i] - scores[j])) ** 2 for i in size for j in size)


# --- WARP (Su, King & Lyu 2017) ---


def rank_weight(k: int) -> float:
    """L(k) = sum over i <= k of 1/log2(i + 1), eq. 16."""
    return math.fsum(1.0 / math.log2(i + 1) for i in range(1, k + 1))


def negatives_of(label: float, labels, negatives: str) -> list[int]:
    """Places of the less relevant documents: all of them, or those of label 0."""
    return [j for j, other in enumerate(labels) if other < label and (negatives == "lower" or other == 0)]


def warp_terms(scores, labels, margin=0.1, negatives="lower") -> list[tuple[int, list[int], float]]:
    """(i, its violators V, L(|V|) / |V|) for every entry i that has a negative."""
    terms = []
    for i, label in enumerate(labels):
        below = negatives_of(label, labels, negatives)
        if below:
            found = [j for j in below if margin + scores[j] > scores[i]]
            terms.append((i, found, rank_weight(len(found)) / max(len(found), 1)))
    return terms


def warp_loss(scores, labels, margin=0.1, negatives="lower") -> float:
    """Eq. 17: the mean over i of its weight times the sum over V of margin - s_i + s_j."""
    terms = warp_terms(scores, labels, margin, negatives)
    total = math.fsum(weight * (margin - scores[i] + scores[j]) for i, found, weight in terms for j in found)
    return total / max(len(terms), 1)


def warp_gradient(scores, labels, margin=0.1, negatives="lower") -> np.ndarray:
    """The weights are constants, so every violator adds its weight to itself and takes it from i."""
    result, terms = np.zeros(len(scores)), warp_terms(scores, labels, margin, negatives)
    for i, found, weight in terms:
        result[i] -= weight * len(found) / len(terms)
        result[found] += weight / len(terms)
    return result


def exact_warp(scores, labels) -> float:
    """Eq. 14-15: the mean of L(number of less relevant documents that score as high or higher)."""
    found = []
    for i, label in enumerate(labels):
        below = negatives_of(label, labels, "lower")
        if below:
            found.append(rank_weight(sum(scores[j] >= scores[i] for j in below)))
    return math.fsum(found) / len(found) if found else 0.0


# --- domination (Stevens 2010) ---

Delta = Callable[[int, int], float]


def no_margin(i: int, j: int) -> float:
    return 0.0


def domination_terms(scores, labels, delta: Delta) -> dict[int, dict[int, np.longdouble]]:
    """{i: {j: f_j - f_i + delta(i, j) for the j with smaller label}} for the i that have such a j."""
    s = [np.longdouble(score) for score in scores]
    terms: dict[int, dict[int, np.longdouble]] = {}
    for i, j in ordered_pairs(labels):
        terms.setdefault(i, {})[j] = s[j] - s[i] + np.longdouble(delta(i, j))
    return terms


def domination_loss(scores, labels, delta: Delta = no_margin) -> float:
    """Sum over i of log(1 + sum of exp(f_j - f_i + delta(i, j)) over the j with smaller label), pair by pair."""
    total = np.longdouble(0)
    for terms in domination_terms(scores, labels, delta).values():
        top = max(0, *terms.values())
        total += top + np.log(np.exp(-top) + sum(np.exp(term - top) for term in terms.values()))
    return float(total)


def domination_gradient(scores, labels, delta: Delta = no_margin) -> np.ndarray:
    """The share of j in the sum of i goes up at j and down at i."""
    result = np.zeros(len(scores), dtype=np.longdouble)
    for i, terms in domination_terms(scores, labels, delta).items():
        top = max(0, *terms.values())
        whole = np.exp(-top) + sum(np.exp(term - top) for term in terms.values())
        for j, term in terms.items():
            share = np.exp(term - top) / whole
            result[j] += share
            result[i] -= share
    return result.astype(float)


def gradients(function: Callable[..., np.ndarray], scores, labels, offsets, **options) -> np.ndarray:
    """`function` of every list of a flat batch, one list after another (N,)."""
    found: Iterable[np.ndarray] = (
        function([float(s) for s in scores[block]], [float(y) for y in labels[block]], **options)
        for block in blocks(offsets)
    )
    return np.concatenate([np.zeros(0), *found])

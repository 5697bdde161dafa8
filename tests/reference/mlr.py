"""The pieces of MLR typed again, plainly: measures of one ranking, all rankings one by one, sums over all pairs.

McFee & Lanckriet, ICML 2010. A ranking is a row of zeros and ones, best first (1 = relevant), or an order of entries.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np

# --- measures of a ranking: 1 when every relevant entry is before every other ---


def discount_of(rank: int, discount: str) -> float:
    """`letor`: 1, 1, 1/log2(3), ...; the paper's D."""
    if discount == "log2p1":
        return 1 / math.log2(1 + rank)
    return 1.0 if rank <= 2 else 1 / math.log2(rank)


def score_of(ranked: tuple[int, ...], measure: str, k: int | None = None, discount: str = "letor") -> float:
    """AUC, Precision@k, AP, reciprocal rank or NDCG@k; the last two of k are divided by what a best ranking has."""
    ranks = [rank for rank, relevant in enumerate(ranked, start=1) if relevant]
    count, k = len(ranks), len(ranked) if k is None else k
    if measure == "auc":
        right = sum(len(ranked[rank:]) - sum(ranked[rank:]) for rank in ranks)
        return right / (count * (len(ranked) - count))
    if measure == "precision":
        return sum(rank <= k for rank in ranks) / min(k, count)
    if measure == "map":
        return sum(sum(ranked[:rank]) / rank for rank in ranks) / count
    if measure == "mrr":
        return 1 / ranks[0]
    return sum(discount_of(rank, discount) for rank in ranks if rank <= k) / ideal(min(k, count), discount)


@cache
def ideal(count: int, discount: str) -> float:
    """DCG of so many relevant entries at the top."""
    return sum(discount_of(rank, discount) for rank in range(1, count + 1))


def loss_of(ranked: tuple[int, ...], measure: str, k: int | None = None, discount: str = "letor") -> float:
    """Delta(y*, y)."""
    return 1 - score_of(ranked, measure, k, discount)


# --- rankings ---


def interleavings(relevant: int, others: int) -> Iterator[tuple[int, ...]]:
    """Every row of so many ones and zeros."""
    length = relevant + others
    for places in itertools.combinations(range(length), relevant):
        yield tuple(int(place in places) for place in range(length))


def from_counts(before: list[int], others: int) -> tuple[int, ...]:
    """The ranking whose i-th relevant entry has before[i] irrelevant ones before it."""
    ranked: list[int] = []
    for count in sorted(before):
        ranked += [0] * (count - ranked.count(0)) + [1]
    return tuple(ranked + [0] * (others - ranked.count(0)))


def entries_of(ranked: tuple[int, ...], scores: np.ndarray, relevant: np.ndarray) -> list[int]:
    """The entries in the order of the ranking, each class by falling scores."""
    order = np.argsort(-scores, kind="stable")
    queues = {1: [i for i in order if relevant[i]], 0: [i for i in order if not relevant[i]]}
    return [queues[which].pop(0) for which in ranked]


def coefficients_of(order: list[int], relevant: np.ndarray) -> np.ndarray:
    """Coefficients of phi in psi(y*) - psi(y), as eq. 3 says: over all pairs, (1 - y_ij) / (P N) for i, against j."""
    place = {entry: rank for rank, entry in enumerate(order)}
    c = np.zeros(len(order))
    for i in np.flatnonzero(relevant):
        for j in np.flatnonzero(~relevant):
            y = 1 if place[i] < place[j] else -1
            c[i] += 1 - y
            c[j] -= 1 - y
    return c / (relevant.sum() * (~relevant).sum())


@cache
def all_coefficients(relevant: int, others: int) -> np.ndarray:
    """(rankings, P + N): rows of `coefficients_of` for entries that are sorted, the relevant ones first."""
    which = np.arange(relevant + others) < relevant
    scores = -np.arange(relevant + others, dtype=float)
    rows = [coefficients_of(entries_of(y, scores, which), which) for y in interleavings(relevant, others)]
    return np.array(rows)


@cache
def all_losses(relevant: int, others: int, measure: str, k: int | None, discount: str) -> np.ndarray:
    return np.array([loss_of(y, measure, k, discount) for y in interleavings(relevant, others)])


# --- the most violated ranking: max over y of Delta(y*, y) - <scores, coefficients> ---


def sorted_scores(scores: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    return np.concatenate([-np.sort(-scores[relevant]), -np.sort(-scores[~relevant])])


def brute_force(
    scores: np.ndarray, relevant: np.ndarray, measure: str, k: int | None = None, discount: str = "letor"
) -> float:
    """By trying every interleaving of the two sorted classes."""
    counts = int(relevant.sum()), int((~relevant).sum())
    margins = all_coefficients(*counts) @ sorted_scores(scores, relevant)
    return float((all_losses(*counts, measure, k, discount) - margins).max())


def most_violated_plain(
    scores: np.ndarray, relevant: np.ndarray, measure: str, k: int | None = None, discount: str = "letor"
) -> tuple[np.ndarray, float]:
    """Coefficients and Delta of a ranking that attains `brute_force`."""
    counts = int(relevant.sum()), int((~relevant).sum())
    losses = all_losses(*counts, measure, k, discount)
    best = int((losses - all_coefficients(*counts) @ sorted_scores(scores, relevant)).argmax())
    places = np.concatenate([np.flatnonzero(part)[np.argsort(-scores[part])] for part in (relevant, ~relevant)])
    coefficients = np.zeros(len(scores))
    coefficients[places] = all_coefficients(*counts)[best]
    return coefficients, float(losses[best])


def item_gain(i: int, before: int, relevant: int, measure: str, k: int, discount: str) -> float:
    """What the i-th relevant entry (from 1) adds to the measure with so many irrelevant ones before it; not AUC."""
    rank = i + before
    if measure == "precision":
        return (rank <= k) / min(k, relevant)
    if measure == "map":
        return i / rank / relevant
    if measure == "mrr":
        return (i == 1) / rank
    return (rank <= k) * discount_of(rank, discount) / ideal(min(k, relevant), discount)


def by_programme(
    scores: np.ndarray, relevant: np.ndarray, measure: str, k: int | None = None, discount: str = "letor"
) -> float:
    """The same maximum by a dynamic programme over (relevant entry, irrelevant ones before it); any measure but AUC.

    With b_i irrelevant entries before relevant i, the margin lost is 2 sum_{j <= b_i} (s_i - s_j) / (P N).
    """
    good, bad = -np.sort(-scores[relevant]), -np.sort(-scores[~relevant])
    k = len(scores) if k is None else k
    best = np.zeros(len(bad) + 1)
    for i, score in enumerate(good, start=1):
        gains = [item_gain(i, before, len(good), measure, k, discount) for before in range(len(bad) + 1)]
        lost = np.concatenate([[0], np.cumsum(score - bad)]) * 2 / (len(good) * len(bad))
        best = np.maximum.accumulate(best) - gains - lost
    return 1 + float(best.max())


# --- psi as a matrix or a vector ---


def feature_map(query: np.ndarray | None, row: np.ndarray, model: str) -> np.ndarray:
    """phi(q, i): minus the outer product of q - x_i (eq. 4), its diagonal; linear: |q - x_i|, without query the row."""
    if query is None:
        return row
    gap = query - row
    return {"metric": -np.outer(gap, gap), "diagonal": -(gap**2), "linear": abs(gap)}[model]


def delta_psi(
    order: list[int], relevant: np.ndarray, query: np.ndarray | None, rows: np.ndarray, model: str
) -> np.ndarray:
    """psi(y*) - psi(y) by the double sum of eq. 3."""
    place = {entry: rank for rank, entry in enumerate(order)}
    good, bad = np.flatnonzero(relevant), np.flatnonzero(~relevant)
    phi = [feature_map(query, row, model) for row in rows]
    return sum((1 - (1 if place[i] < place[j] else -1)) * (phi[i] - phi[j]) for i in good for j in bad) / (
        len(good) * len(bad)
    )


def factored_psi(
    order: list[int], relevant: np.ndarray, own: int, entries: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """The same as X' S X (eq. 5), where the query is the point `own` and entry i is the point `entries[i]`."""
    place = {entry: rank for rank, entry in enumerate(order)}
    good, bad = np.flatnonzero(relevant), np.flatnonzero(~relevant)
    unit = np.eye(len(points))

    def pair(x: int) -> np.ndarray:
        return -np.outer(unit[own] - unit[x], unit[own] - unit[x])

    s = np.zeros((len(points), len(points)))
    for i in good:
        for j in bad:
            s += (1 - (1 if place[i] < place[j] else -1)) * (pair(entries[i]) - pair(entries[j]))
    return points.T @ s @ points / (len(good) * len(bad))


# --- votes of neighbours ---


def vote(scores: np.ndarray, classes: np.ndarray, k: int) -> int:
    """Class of most of the k highest scores; among equals the class of the nearest of them."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    counts = Counter(int(classes[i]) for i in order)
    return next(int(classes[i]) for i in order if counts[int(classes[i])] == max(counts.values()))

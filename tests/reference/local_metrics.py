"""L-GMML typed again, plainly, in numpy: one metric, one list, one document at a time (Su, King & Lyu 2017).

Only the draw of the source lists is taken from the ranker. Rows are those that its transform made; `offsets` cut them
into lists; `sources` (M, q) names the training lists of each metric.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from tests.reference.measures import blocks, ndcg


class Local(NamedTuple):
    """M local metrics: matrices (M, D, D), anchors (M, D), scales (M,)."""

    metrics: np.ndarray
    anchors: np.ndarray
    tau: np.ndarray


# --- features ---


def live_features(rows: np.ndarray) -> np.ndarray:
    """The features that are not constant over the whole training set."""
    return np.flatnonzero(rows.max(0) > rows.min(0))


def standardise(training: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Minus the training mean, over the training deviation, cut off at 8; kept in float32 as the data are."""
    mean, deviation = training.mean(0), training.std(0)
    return np.clip((rows - mean) / np.where(deviation > 0, deviation, 1.0), -8, 8).astype(np.float32).astype(np.float64)


# --- one metric ---


def high_and_low(labels: np.ndarray, high: str) -> tuple[np.ndarray, np.ndarray]:
    """Places of the high and the low documents of a list; none is both."""
    low = labels == labels.min()  # label 0, or the lowest that there is
    least = {"half": max(1, math.ceil(labels.max() / 2)), "max": labels.max(), "positive": np.nextafter(0, 1)}[high]
    return np.flatnonzero((labels >= least) & ~low), np.flatnonzero(low)


def usable(labels: np.ndarray, high: str) -> bool:
    if len(labels) == 0:
        return False
    highs, lows = high_and_low(labels, high)
    return len(highs) >= 2 and len(lows) >= 1


def scatter(lists, high: str, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Similar and dissimilar scatter (eq. 4, 5), pair by pair inside each list, pooled over the lists."""
    size = lists[0][0].shape[1]
    similar, dissimilar = np.zeros((size, size)), np.zeros((size, size))
    similar_pairs = dissimilar_pairs = 0
    for rows, labels in lists:
        highs, lows = high_and_low(labels, high)
        for i, j in itertools.combinations(highs, 2):
            similar += np.outer(rows[i] - rows[j], rows[i] - rows[j])
            similar_pairs += 1
        for i, j in itertools.product(highs, lows):
            dissimilar += np.outer(rows[i] - rows[j], rows[i] - rows[j])
            dissimilar_pairs += 1
    if form == "mean":
        return similar / max(similar_pairs, 1), dissimilar / max(dissimilar_pairs, 1)
    return similar, dissimilar


def with_ridge(similar: np.ndarray, dissimilar: np.ndarray, ridge: float, mode: str) -> tuple[np.ndarray, np.ndarray]:
    size = len(similar)
    if mode == "absolute":
        return similar + ridge * np.eye(size), dissimilar + ridge * np.eye(size)
    floor = max(1e-12 * max(np.trace(similar), np.trace(dissimilar)) / size, np.finfo(np.float64).tiny)
    first, second = (max(ridge * np.trace(matrix) / size, floor) for matrix in (similar, dissimilar))
    return similar + first * np.eye(size), dissimilar + second * np.eye(size)


def matrix_power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * values**exponent) @ vectors.T


def closed_form(similar: np.ndarray, dissimilar: np.ndarray, t: float) -> np.ndarray:
    """S^-1 #_t D = S^-1/2 (S^1/2 D S^1/2)^t S^-1/2 (eq. 9 at t = 1/2)."""
    root, inverse_root = matrix_power(similar, 0.5), matrix_power(similar, -0.5)
    return inverse_root @ matrix_power(root @ dissimilar @ root, t) @ inverse_root


def distance(metric: np.ndarray, difference: np.ndarray) -> float:
    """sqrt(v^T M v)."""
    return math.sqrt(max(0.0, float(difference @ metric @ difference)))


def virtual_anchor(lists, high: str, kappa: float) -> np.ndarray:
    """mu+ + kappa (mu+ - mu-), the means over the lists of the means of their high and low documents."""
    highs, lows = [], []
    for rows, labels in lists:
        high_places, low_places = high_and_low(labels, high)
        highs.append(rows[high_places].mean(0))
        lows.append(rows[low_places].mean(0))
    above, below = np.mean(highs, axis=0), np.mean(lows, axis=0)
    return above + kappa * (above - below)


def anchor_quality(anchor: np.ndarray, metric: np.ndarray, lists) -> float:
    """Mean over the source lists of NDCG@10 when they are ranked by the distance from the anchor, nearest first."""
    values = []
    for rows, labels in lists:
        scores = [-distance(metric, row - anchor) for row in rows]
        values.append(ndcg(scores, labels.tolist(), k=10))
    return math.fsum(values) / len(values)


def best_anchor(metric: np.ndarray, lists, virtual=()) -> np.ndarray:
    """The first of the best, among the documents with the highest label in the source lists and then `virtual` ones."""
    top = max(labels.max() for _, labels in lists)
    real = [row for rows, labels in lists for row in rows[labels == top]]
    found = [(anchor_quality(row, metric, lists), row) for row in (*real, *virtual)]
    best = max(quality for quality, _ in found)
    return next(row for quality, row in found if quality >= best - 1e-12)


# --- all metrics ---


def distances(local: Local, rows: np.ndarray) -> np.ndarray:
    """(n, M)."""
    pairs = list(zip(local.metrics, local.anchors, strict=True))
    return np.array([[distance(metric, row - anchor) for metric, anchor in pairs] for row in rows])


def scales(found: np.ndarray, tau: str | float) -> np.ndarray:
    """(M,) from the distances of all training rows (n, M)."""
    if tau == "median":
        return np.median(found, axis=0)
    if tau == "q95":
        return np.quantile(found, 0.95, axis=0)
    return found.max(0) if tau == "max" else np.full(found.shape[1], float(tau))


def fit(
    rows: np.ndarray, labels: np.ndarray, offsets: np.ndarray, sources: np.ndarray, *, high="half", t=0.5, ridge=0.1,
    ridge_mode="relative", scatter_form="mean", anchor="virtual", kappa=10.0, tau="median",
) -> Local:  # fmt: skip
    """Everything that the first round finds; all weights are 1 then."""
    lists = [(rows[block], labels[block]) for block in blocks(offsets)]
    metrics, anchors = [], []
    for places in sources:
        own = [lists[place] for place in places]
        metric = closed_form(*with_ridge(*scatter(own, high, scatter_form), ridge, ridge_mode), t)
        metrics.append(metric)
        if anchor == "virtual":
            anchors.append(virtual_anchor(own, high, kappa))
        else:
            far = [virtual_anchor(own, high, kappa) for kappa in (1, 3, 10, 30)] if anchor == "search" else []
            anchors.append(best_anchor(metric, own, far))
    local = Local(np.array(metrics), np.array(anchors), np.ones(len(metrics)))
    return local._replace(tau=scales(distances(local, rows), tau))


# --- scores ---


KERNELS = {  # phi(z), of numbers or arrays
    "paper": lambda z, beta: -z * np.exp(-z),
    "demo": lambda z, beta: z * np.exp(-z),
    "rbf": lambda z, beta: np.exp(-beta / 2 * z**2),
    "laplace": lambda z, beta: np.exp(-beta / 2 * z),
    "distance": lambda z, beta: -z,
}


def score(local: Local, row: np.ndarray, weights: np.ndarray, kernel: str, beta: float) -> float:
    """f(p) = sum_r omega_r phi(z_r), or the distance under the locally weighted metric, normalised."""
    z = distances(local, row[None])[0] / local.tau
    if kernel == "localized":
        near = weights * np.exp(-beta / 2 * z)
        return -float((near * z * z).sum() / near.sum())
    return math.fsum(w * KERNELS[kernel](value, beta) for w, value in zip(weights, z, strict=True))


def scores(local: Local, rows, offsets, weights, kernel="distance", beta=2.0) -> np.ndarray:
    """(n,); `weights` (M,) for all lists, or (Q, M) with a row for each."""
    per_list = np.broadcast_to(weights, (len(offsets) - 1, len(local.tau)))
    result = np.zeros(len(rows))
    for own, block in zip(per_list, blocks(offsets), strict=True):
        for i in range(block.start, block.stop):
            result[i] = score(local, rows[i], own, kernel, beta)
    return result


def query_scores(local: Local, query: np.ndarray, rows: np.ndarray, weights, kernel="localized", beta=2.0):
    """Scores (n,) by distances from the query. `localized`: -(p - q)^T M(q) (p - q), M(q) = sum_r w_r M_r, with w_r by
    the distance of the query from anchor r, relative to that of the nearest anchor."""
    if kernel != "localized":
        centred = local._replace(anchors=np.tile(query, (len(local.tau), 1)))
        return scores(centred, rows, [0, len(rows)], weights, kernel, beta)
    near = distances(local, query[None])[0] / local.tau
    shares = weights * (near == near.min() if beta == np.inf else np.exp(-beta / 2 * (near - near.min())))
    metric = np.einsum("r,rde->de", shares, local.metrics)
    return np.array([-(row - query) @ metric @ (row - query) for row in rows])


# --- weights of unseen queries ---


def statistics(rows: np.ndarray) -> np.ndarray:
    """[mean, deviation] of the candidate features of a list."""
    return np.concatenate([rows.mean(0), rows.std(0)])


def nearest_rows(training_lists, rows: np.ndarray, weights: np.ndarray, k: int = 10) -> np.ndarray:
    """Mean of the weight rows of the k training queries whose standardised statistics are nearest."""
    known = np.array([statistics(own) for own in training_lists])
    mean, deviation = known.mean(0), known.std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    gaps = (((known - mean) - (statistics(rows) - mean)) / deviation) ** 2
    nearest = np.argsort(gaps.sum(1), kind="stable")[:k]
    return weights[nearest].mean(0)


# --- WARP ---


def rank_loss(k: int) -> float:
    """L(k) = sum_{i<=k} 1/log2(i+1), eq. 16."""
    return math.fsum(1 / math.log2(i + 1) for i in range(1, k + 1))


def negatives_of(i: int, labels, negatives: str = "lower") -> list[int]:
    """Documents that are less relevant than i: all of them, or those of label 0."""
    return [j for j, other in enumerate(labels) if other < labels[i] and (negatives == "lower" or other == 0)]


def warp_terms(scores, labels, margin=0.1, negatives="lower") -> list[tuple[int, int, float]]:
    """Every positive i with a violator j, eq. 18, and the weight of the pair in the mean over the positives, eq. 17."""
    positives = [i for i in range(len(labels)) if negatives_of(i, labels, negatives)]
    terms = []
    for i in positives:
        violators = [j for j in negatives_of(i, labels, negatives) if margin + scores[j] > scores[i]]
        terms += [(i, j, rank_loss(len(violators)) / len(violators) / len(positives)) for j in violators]
    return terms


def warp_loss(scores, labels, margin=0.1, negatives="lower") -> float:
    """Eq. 17 of one list, pair by pair."""
    terms = warp_terms(scores, labels, margin, negatives)
    return math.fsum(weight * (margin - scores[i] + scores[j]) for i, j, weight in terms)


def warp_slope(phi: np.ndarray, labels, weights=1.0, margin=0.1, negatives="lower") -> np.ndarray:
    """The gradient of eq. 17 with respect to the weights of the columns of phi (n, M), pair by pair."""
    terms = warp_terms((phi * weights).sum(1), labels, margin, negatives)
    return sum((weight * (phi[j] - phi[i]) for i, j, weight in terms), np.zeros(phi.shape[1]))


# --- explanation ---


def explanation(local: Local, a: np.ndarray, b: np.ndarray, weights, kernel: str, beta: float) -> np.ndarray:
    """(M, D): phi_r(a) - phi_r(b), split like the difference of squared distances, (a-b)_j [M_r (a+b-2 a_r)]_j."""
    parts = np.zeros((len(local.tau), len(a)))
    for r, (metric, anchor, tau) in enumerate(zip(*local, strict=True)):
        ends = [KERNELS[kernel](distance(metric, row - anchor) / tau, beta) for row in (a, b)]
        form = (a - b) * (metric @ (a + b - 2 * anchor))
        total = math.fsum(form)
        shares = form / total if total else np.full(len(a), 1 / len(a))
        parts[r] = weights[r] * (ends[0] - ends[1]) * shares
    return parts

"""Losses of relaxed rankings typed again, plainly: one list at a time, every pair, every matrix, every iteration.

The second opinion for soft ranks, the measures made of them, NeuralNDCG and LambdaLoss, as in losses.py.
"""

from __future__ import annotations

import math

import numpy as np

from tests.reference.measures import dcg, discount_of, gain_of, ideal_dcg, stable_order


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def soft_ranks(scores, temperature=1.0) -> list[float]:
    n = range(len(scores))
    return [1 + math.fsum(sigmoid((scores[j] - scores[i]) / temperature) for j in n if j != i) for i in n]


def cut(rank: float, k: int | None, temperature: float) -> float:
    return 1.0 if k is None else sigmoid((k + 0.5 - rank) / temperature)


def best_dcg(gains, k) -> float:
    """Of the largest gains first."""
    return dcg(sorted(gains, reverse=True), k, "linear")


def approx_ndcg_loss(scores, labels, *, k=None, temperature=1.0, gain="exp2", weights=None) -> float:
    weights = weights or [1.0] * len(labels)
    gains = [w * gain_of(y, gain) for w, y in zip(weights, labels, strict=True)]
    ideal = best_dcg(gains, k)
    if len(set(labels)) < 2 or ideal == 0:
        return 0.0
    ranks = soft_ranks(scores, temperature)
    found = (g * cut(r, k, temperature) / math.log2(1 + r) for g, r in zip(gains, ranks, strict=True))
    return -math.fsum(found) / ideal


def approx_mrr_loss(scores, labels, *, temperature=1.0, weights=None) -> float:
    weights = weights or [1.0] * len(labels)
    relevance = [w * y for w, y in zip(weights, labels, strict=True)]
    if len(set(labels)) < 2 or sum(relevance) == 0:
        return 0.0
    ranks = soft_ranks(scores, temperature)
    return -math.fsum(y / r for y, r in zip(relevance, ranks, strict=True)) / math.fsum(relevance)


def soft_average_precision(scores, labels, *, temperature, k=None, threshold=1) -> float:
    """The mean over relevant entries of (1 + relevant entries above) / rank, everything counted softly."""
    ranks, n = soft_ranks(scores, temperature), range(len(scores))
    relevant = [i for i in n if labels[i] >= threshold]
    total = 0.0
    for i in relevant:
        above = math.fsum(sigmoid((scores[j] - scores[i]) / temperature) for j in relevant if j != i)
        total += cut(ranks[i], k, temperature) * (1 + above) / ranks[i]
    return total / len(relevant)


def neural_sort(scores, temperature=1.0) -> np.ndarray:
    """NeuralSort's matrix: row r is the softmax over j of ((n + 1 - 2r) s_j - sum_k |s_j - s_k|) / T."""
    s = np.array(scores, dtype=np.float64)
    n, spread = len(s), np.abs(s[:, None] - s[None]).sum(1)
    rows = []
    for r in range(1, n + 1):
        exponents = ((n + 1 - 2 * r) * s - spread) / temperature
        shares = np.exp(exponents - exponents.max())
        rows.append(shares / shares.sum())
    return np.array(rows)


def sinkhorn(matrix: np.ndarray, iterations=50, tolerance=1e-6) -> np.ndarray:
    """Columns, then rows, are divided by their sums."""
    for _ in range(iterations):
        matrix = matrix / np.maximum(matrix.sum(0, keepdims=True), 1e-10)
        matrix = matrix / np.maximum(matrix.sum(1, keepdims=True), 1e-10)
        if np.abs(matrix.sum(0) - 1).max() < tolerance and np.abs(matrix.sum(1) - 1).max() < tolerance:
            break
    return matrix


def neural_ndcg_loss(
    scores, labels, *, k=None, temperature=1.0, gain="exp2", iterations=50, tolerance=1e-6, weights=None
) -> float:
    weights = weights or [1.0] * len(labels)
    gains = [w * gain_of(y, gain) for w, y in zip(weights, labels, strict=True)]
    ideal = best_dcg(gains, k)
    if len(set(labels)) < 2 or ideal == 0:
        return 0.0
    relaxed = sinkhorn(neural_sort(scores, temperature), iterations, tolerance) @ np.array(gains)
    return -dcg(relaxed.tolist(), k, "linear") / ideal


def lambda_weights(scores, labels, *, scheme="ndcg2++", k=None, mu=10.0) -> dict[tuple[int, int], float]:
    """The weight of every pair that counts, with ranks by counting and gains over the ideal DCG."""
    order, n, ideal = stable_order(scores), range(len(scores)), ideal_dcg(labels, k)
    if len(set(labels)) < 2:
        return {}
    rank = {entry: place for place, entry in enumerate(order, start=1)}
    gains = [gain_of(y, "exp2") / ideal if ideal else 0.0 for y in labels]
    found = {}
    for i in n:
        for j in n:
            if k is not None and max(rank[i], rank[j]) > k:
                continue
            if scheme in ("ndcg1", "arp1"):
                found[i, j] = labels[i] if scheme == "arp1" else gains[i] * discount_of(rank[i], "log2p1")
            elif labels[i] > labels[j]:
                near = discount_of(abs(rank[i] - rank[j]), "log2p1") - discount_of(abs(rank[i] - rank[j]) + 1, "log2p1")
                swap = abs(discount_of(rank[i], "log2p1") - discount_of(rank[j], "log2p1"))
                gap = abs(gains[i] - gains[j])
                found[i, j] = {
                    "ranknet": 1.0,
                    "arp2": labels[i] - labels[j],
                    "ndcg2": gap * near,
                    "lambdarank": gap * swap,
                    "ndcg2++": gap * (mu * near + swap),
                }[scheme]
    return found


def lambda_loss(scores, labels, *, sigma=1.0, weights=None, **options) -> float:
    """`weights` hold the order fixed while finite differences move the scores."""
    weights = lambda_weights(scores, labels, **options) if weights is None else weights
    terms = (w * log2_logistic(sigma * (scores[j] - scores[i])) for (i, j), w in weights.items())
    return math.fsum(terms)


def log2_logistic(x: float) -> float:
    """log2(1 + exp(x))."""
    return (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) / math.log(2)

"""Losses of relaxed rankings typed again, plainly: one list at a time, every pair, every matrix, every iteration.

The second opinion for soft ranks, the measures made of them, NeuralNDCG and LambdaLoss, as in losses.py.
"""

from __future__ import annotations

import math

import numpy as np

from tests.reference.measures import dcg, gain_of


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

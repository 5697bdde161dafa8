"""Matrix functions typed again: in 60 digits by their definitions, or pair by pair in loops."""

from itertools import combinations, product

import mpmath
import numpy as np
import torch


def power(matrix: mpmath.matrix, exponent) -> mpmath.matrix:
    """By eigenvectors; what is negative by rounding counts as 0."""
    values, vectors = mpmath.eigsy(matrix)
    values = [max(value, mpmath.mpf(0)) for value in values]
    assert exponent >= 0 or min(values) > 0
    return vectors * mpmath.diag([value**exponent for value in values]) * vectors.T


def exact_mean(a: np.ndarray, b: np.ndarray, t: float, invert_a: bool = False) -> np.ndarray:
    """A #_t B = A^1/2 (A^-1/2 B A^-1/2)^t A^1/2, the given float64 numbers taken as exact; `invert_a`: A^-1 #_t B."""
    with mpmath.workdps(60):
        sign = -1 if invert_a else 1
        first, second = mpmath.matrix(a.tolist()), mpmath.matrix(b.tolist())
        root, inverse_root = power(first, sign * mpmath.mpf("0.5")), power(first, -sign * mpmath.mpf("0.5"))
        inner = inverse_root * second * inverse_root
        result = root * power((inner + inner.T) / 2, mpmath.mpf(t)) * root
        return np.array([[float(x) for x in row] for row in result.tolist()])


def exact_gmml(similar: np.ndarray, dissimilar: np.ndarray, t: float) -> np.ndarray:
    """S^-1 #_t D (Su, King & Lyu 2017, eq. 6-9; Zadeh, Hosseini & Sra 2016)."""
    return exact_mean(similar, dissimilar, t, invert_a=True)


def error(actual: torch.Tensor | np.ndarray, expected: np.ndarray) -> float:
    """Relative, in the Frobenius norm."""
    found = np.asarray(actual, dtype=np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def conditioned(rng: np.random.Generator, size: int, condition: float, scale: float = 1.0) -> np.ndarray:
    """Random axes, eigenvalues evenly spread in the logarithm over the whole condition."""
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    matrix = (axes * np.geomspace(1.0, 1.0 / condition, size)) @ axes.T * scale
    return (matrix + matrix.T) / 2


def scatter_by_pairs(positives: np.ndarray, negatives: np.ndarray):
    """Every unordered pair of positives once (eq. 4), every positive with every negative (eq. 5)."""
    size = positives.shape[1]
    similar, dissimilar = np.zeros((size, size)), np.zeros((size, size))
    for a, b in combinations(positives, 2):
        similar += np.outer(a - b, a - b)
    for a, b in product(positives, negatives):
        dissimilar += np.outer(a - b, a - b)
    return similar, dissimilar, len(positives) * (len(positives) - 1) // 2, len(positives) * len(negatives)


def distances_by_loop(rows: np.ndarray, anchors: np.ndarray, factors: np.ndarray) -> np.ndarray:
    result = np.zeros((len(rows), len(anchors)))
    for i, row in enumerate(rows):
        for r, (anchor, factor) in enumerate(zip(anchors, factors, strict=True)):
            difference = row - anchor
            result[i, r] = np.sqrt(difference @ (factor @ factor.T) @ difference)
    return result

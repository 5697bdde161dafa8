"""Paired tests of two rankers on the same queries, intervals, effect sizes, and Holm's correction for many tests.

Smucker, Allan & Carterette, CIKM 2007: the randomisation test and the t test agree on retrieval measures, the sign and
Wilcoxon tests do not. Queries for which either ranker has no value (nan) are dropped; differences below 1e-12 count as
rounding.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

ALPHA = 0.05  # significance level of every verdict
ROUNDING = 1e-12
EXACT = 14  # differences up to which all 2^n sign patterns are enumerated


def differences(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Paired differences a - b without nan pairs; those below rounding become 0.

    >>> differences([0.5, 1.0, float("nan")], [0.25, 1.0, 0.3]).tolist()
    [0.25, 0.0]
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"a paired test needs two vectors of the same queries, got shapes {a.shape} and {b.shape}")
    values = (a - b)[~np.isnan(a - b)]
    return np.where(np.abs(values) < ROUNDING, 0.0, values)


def paired_t(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p-value of the paired t test; 1 if no query differs, nan for fewer than two pairs.

    >>> round(paired_t([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.6, 0.4]), 4)
    0.0462
    """
    values = differences(a, b)
    if len(values) < 2:
        return float("nan")
    if not values.any():
        return 1.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    statistic = abs(values.mean()) / error if error > 0 else np.inf
    return float(2 * stdtr(len(values) - 1, -statistic))


def randomisation(a: ArrayLike, b: ArrayLike, rounds: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value of the paired randomisation test: how often random signs give as large a mean difference.

    Fisher's test by sign flips: `(count + 1) / (rounds + 1)`, so never 0. If at most 14 queries differ it is exact,
    whatever `rounds` (a query without a difference has no sign to flip).

    >>> randomisation([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.6, 0.4])  # 2 of the 16 sign patterns
    0.125
    """
    values = differences(a, b)
    if not len(values):
        return float("nan")
    values = values[values != 0]
    bound = abs(values.sum()) - ROUNDING * np.abs(values).sum()  # the observed pattern must count itself
    exact = len(values) <= EXACT
    flips = _all_patterns(len(values)) if exact else _random_patterns(len(values), rounds, seed)
    count = sum(int((np.abs(values.sum() - 2 * (flip @ values)) >= bound).sum()) for flip in flips)
    return count / 2 ** len(values) if exact else (count + 1) / (rounds + 1)


def bootstrap_interval(
    a: ArrayLike, b: ArrayLike, level: float = 0.95, rounds: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean difference: queries are drawn with replacement; nan without queries.

    >>> low, high = bootstrap_interval([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.6, 0.4])
    >>> round(low, 3), round(high, 3)
    (0.15, 0.45)
    """
    values = differences(a, b)
    if not len(values):
        return float("nan"), float("nan")
    generator, block = np.random.default_rng(seed), max(1, 2**22 // len(values))
    starts = range(0, rounds, block)
    draws = (generator.integers(len(values), size=(min(block, rounds - start), len(values))) for start in starts)
    means = np.concatenate([values[drawn].mean(axis=1) for drawn in draws])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def effect_size(a: ArrayLike, b: ArrayLike) -> float:
    """Cohen's d of paired values: the mean difference over its standard deviation; 0 if no query differs.

    >>> round(effect_size([0.9, 0.8, 0.7, 0.9], [0.5, 0.6, 0.6, 0.4]), 3)
    1.643
    """
    values = differences(a, b)
    if len(values) < 2:
        return float("nan")
    if not values.any():
        return 0.0
    spread = values.std(ddof=1)
    return float(values.mean() / spread) if spread > 0 else float(np.copysign(np.inf, values.mean()))


def outcomes(a: ArrayLike, b: ArrayLike) -> tuple[int, int, int]:
    """On how many queries a is larger, equal up to rounding, and smaller.

    >>> outcomes([0.9, 0.8, 0.7], [0.5, 0.8, 0.9])
    (1, 1, 1)
    """
    values = differences(a, b)
    return int((values > 0).sum()), int((values == 0).sum()), int((values < 0).sum())


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Holm's step-down adjusted p-values (Scandinavian Journal of Statistics 1979); nan stays nan and is not counted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p, kind="stable")[: int((~np.isnan(p)).sum())]  # nan sorts last
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return adjusted


def _all_patterns(size: int) -> Iterator[NDArray[np.int64]]:
    yield (np.arange(2**size)[:, None] >> np.arange(size)) & 1


def _random_patterns(size: int, rounds: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Rows of zeros and ones (1: the sign is flipped), in blocks of about 32 MB."""
    generator = np.random.default_rng(seed)
    block = max(1, 2**22 // size)
    for start in range(0, rounds, block):
        rows = min(block, rounds - start)
        packed = generator.integers(0, 256, size=(rows, -(-size // 8)), dtype=np.uint8)
        yield np.unpackbits(packed, axis=1, count=size).astype(np.float64)

"""Bootstrap intervals of many means at once: all columns share the resampled queries."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

ROUNDS = 2000
BLOCK = 2**22  # resampled queries at a time


def mean_intervals(values: NDArray[np.float64], *, rounds: int = ROUNDS, seed: int = 0) -> NDArray[np.float64]:
    """Percentile bootstrap intervals (K, 2) at 95% of the means of the columns (Q, K); nan: not in this mean.

    Queries are drawn with replacement among those that have a value. A column without values has nan.

    >>> mean_intervals(np.array([[0.0], [1.0], [np.nan]])).tolist()
    [[0.0, 1.0]]
    """
    found = np.full((values.shape[1], 2), np.nan)
    there = ~np.isnan(values)
    masks, kind = np.unique(there, axis=1, return_inverse=True)
    for number, mask in enumerate(masks.T):
        columns = (kind == number).nonzero()[0]
        if mask.any():
            some = values[np.ix_(mask, columns)]
            means = np.concatenate([counts @ some for counts in _resamples(len(some), rounds, seed)]) / len(some)
            found[columns] = np.quantile(means, [0.025, 0.975], axis=0).T
    return found


def _resamples(size: int, rounds: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each of `size` queries was drawn, one row per resample, in blocks."""
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // size)
    for start in range(0, rounds, block):
        rows = min(block, rounds - start)
        drawn = generator.integers(0, size, size=(rows, size)) + size * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)

"""Bootstrap intervals of many means at once: columns of one length share the resampled queries."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10_000
BLOCK = 2**22  # resampled queries at a time


def mean_intervals(columns: Sequence[NDArray[np.float64]], *, seed: int = 0) -> list[tuple[float, float]]:
    """Percentile bootstrap intervals at 95% of the mean of each column `(Q,)` without its nans; nan without values.

    Queries are drawn with replacement. The draws are those of `significance.bootstrap_interval`, so the intervals are
    too.

    >>> mean_intervals([np.array([0.0, 1.0, np.nan]), np.array([0.5])])
    [(0.0, 1.0), (0.5, 0.5)]
    """
    found = [(np.nan, np.nan)] * len(columns)
    places: dict[int, list[int]] = defaultdict(list)
    for place, column in enumerate(columns):
        places[int((~np.isnan(column)).sum())].append(place)
    for size, those in places.items():
        if size:
            table = np.stack([columns[place][~np.isnan(columns[place])] for place in those], axis=1)
            means = np.concatenate([counts @ table for counts in _resamples(size, seed)]) / size
            for place, (low, high) in zip(those, np.quantile(means, [0.025, 0.975], axis=0).T.tolist(), strict=True):
                found[place] = low, high
    return found


def _resamples(size: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each of `size` queries was drawn, one row per resample, in blocks."""
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // size)
    for start in range(0, ROUNDS, block):
        rows = min(block, ROUNDS - start)
        drawn = generator.integers(0, size, size=(rows, size)) + size * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)

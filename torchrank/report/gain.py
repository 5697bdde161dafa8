"""What a ranker gained over the one that it has to beat: the difference, its interval and a test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from torchrank.record import smaller_is_better
from torchrank.report.significance import ALPHA, bootstrap_interval, differences, randomisation


class Gain(NamedTuple):
    """The mean difference of a measure over the queries where both rankers have it.

    Example:
        >>> print(Gain("ndcg@10", 0.02, -0.01, 0.05, 0.2, 40))
        +0.0200 ndcg@10 (95% interval -0.0100 to +0.0500, p = 0.2, 40 queries): within noise
        >>> print(Gain("ndcg@10", 0.0, 0.0, 0.0, 1.0, 40))
        none: ndcg@10 of each of 40 queries is as before
    """

    measure: str
    mean: float
    low: float
    high: float
    p: float  # of the randomisation test
    queries: int

    def __str__(self) -> str:
        if self.mean == self.low == self.high == 0:
            return f"none: {self.measure} of each of {self.queries} queries is as before"
        measure = f"{self.measure}, of which less is better," if smaller_is_better(self.measure) else self.measure
        told = f"{self.mean:+.4f} {measure} (95% interval {self.low:+.4f} to {self.high:+.4f}, p = {self.p:.2g}"
        clear = self.p < ALPHA and not self.low <= 0 <= self.high
        return f"{told}, {self.queries} queries){'' if clear else ': within noise'}"


def gain(measure: str, ours: ArrayLike, theirs: ArrayLike) -> Gain:
    """What one ranker gains over another, by the values of a measure for the same queries.

    Example:
        >>> gain("map", [0.5, 0.7, float("nan")], [0.4, 0.7, 0.2]).mean.__round__(3)
        0.05
    """
    apart = differences(ours, theirs)
    low, high = bootstrap_interval(ours, theirs)
    return Gain(measure, float(np.mean(apart)), low, high, randomisation(ours, theirs), len(apart))

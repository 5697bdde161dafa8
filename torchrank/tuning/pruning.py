"""When a trial is given up: its best value so far is worse than the median of others at the same round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

FEWEST = 4  # finished trials of a model, and rounds of a trial, before any is given up


def is_rung(count: int) -> bool:
    """Whether a trial is judged after this many validations: 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    >>> [count for count in range(1, 50) if is_rung(count)]
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    """
    power = count & -count  # the largest power of 2 that divides it
    return count in (power, 3 * power)


def is_hopeless(count: int, best: float, others: Sequence[Mapping[int, float]], mode: str) -> bool:
    """Whether a trial is worse than the median of finished trials of its model.

    Args:
        count: validations so far.
        best: its best value so far.
        others: of each finished trial the best value so far at every rung; one that ended earlier keeps its last.
        mode: "max" or "min".

    Returns:
        True if the trial should end.

    >>> finished = [{1: 0.2, 4: 0.5}, {1: 0.3, 4: 0.6}, {1: 0.3, 4: 0.7}, {1: 0.8}]
    >>> is_hopeless(4, 0.62, finished, "max"), is_hopeless(4, 0.66, finished, "max")
    (True, False)
    """
    if count < FEWEST or len(others) < FEWEST:
        return False
    reached = [curve[max(rung for rung in curve if rung <= count)] for curve in others if min(curve, default=99) == 1]
    known = [value for value in reached if not math.isnan(value)]
    if not known or math.isnan(best):
        return bool(known)
    return best < median(known) if mode == "max" else best > median(known)

"""A projected gradient step that lowers a function, found with few evaluations of it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SHORTER = 30  # at most so many times a step is shortened
SHARE = 1e-4  # of the decrease that the slope promises, a step must reach at least (Armijo)
TOLERANCE = 1e-4  # a decrease by a smaller share of the value is none

Evaluate = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]  # (point, with slopes) -> value, slopes


class Step(NamedTuple):
    """Where a step led to."""

    point: Tensor
    value: Tensor  # ()
    slopes: Tensor | None  # None: not computed yet
    length: Tensor  # () with which the next search should begin
    small: bool  # whether the value is hardly lower


def search_step(
    point: Tensor, value: Tensor, slopes: Tensor, length: Tensor, *, evaluate: Evaluate, project: Callable[..., Tensor]
) -> Step | None:
    """The first of ever shorter steps down the slopes that lowers the value enough; None: no step does.

    Where the length is that of the last accepted step most searches end with their first trial, so this one is
    evaluated with its slopes, and all others without: their slopes are left to whoever needs them. A step that is too
    long is followed by the minimum of the parabola through what is known of the line, and one that is accepted at once
    by one of double length in the next search.

    Args:
        point: where the steps begin.
        value: () there.
        slopes: there, of the shape of the point.
        length: () of the first step, as a multiple of the slopes.
        evaluate: `evaluate(point, slopes)` returns the value, and the slopes or None.
        project: the nearest point that is allowed.

    >>> def square(point, slopes):
    ...     return point.square().sum(), 2 * point if slopes else None
    >>> start = torch.tensor([3.0])
    >>> found = search_step(start, *square(start, True), torch.tensor(2.0), evaluate=square, project=lambda new: new)
    >>> found.point, found.length
    (tensor([0.]), tensor(0.5000))
    """
    for trial in range(SHORTER):
        new = project(point - length * slopes)
        found, steeper = evaluate(new, trial == 0)
        promised = ((point - new) * slopes).sum()
        lower = (found <= value - SHARE * promised) & (found < value)
        least = TOLERANCE * value.abs()
        accepted, hopeless, small = torch.stack((lower, promised <= least, value - found <= least)).tolist()
        if accepted:
            return Step(new, found, steeper, length if trial else 2 * length, small)
        if hopeless:
            return None
        length = length * (promised / (2 * (found - value + promised))).nan_to_num(0.1).clamp(0.1, 0.5)
    return None

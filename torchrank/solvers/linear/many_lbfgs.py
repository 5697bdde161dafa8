"""L-BFGS on many smooth convex functions at once: each with its own step length, its own memory and its own end."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.solvers.linear.lbfgs import ROUNDING

Objectives = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # points (A, n), their numbers (A,) -> (A,), (A, n)

TRIALS = 60  # of one line search, after which the memory is dropped, and without memory the search is given up


class Minimum(NamedTuple):
    point: Tensor  # (M, n)
    value: Tensor  # (M,)
    slope: Tensor  # (M,) largest entry of the gradient


class Search(NamedTuple):
    """The functions that are not done. Each tries a step of its own line search at every evaluation."""

    number: Tensor  # (A,)
    point: Tensor  # (A, n) where the search starts, with value and gradient
    value: Tensor
    gradient: Tensor
    direction: Tensor  # (A, n)
    step: Tensor  # (A,) tried next
    low: Tensor  # (A,) largest step known to be too short
    high: Tensor  # (A,) smallest step known to be too long
    trials: Tensor  # (A,)
    moves: Tensor  # (A, m, n) of the point, newest last; rows of zeros are unused
    changes: Tensor  # (A, m, n) of the gradient


def many_lbfgs(
    objectives: Objectives, start: Tensor, *, tolerance: float = 1e-6, evaluations: int = 1000, memory: int = 20
) -> Minimum:
    """Minima of M functions from `start (M, n)`, until no entry of a gradient is larger than `tolerance`.

    `objectives(points, numbers)` gives values and gradients of the functions `numbers`; those that are done are no
    longer asked for. One that no step decreases any more is done too, at the limit of the floating-point precision.

    >>> scale = torch.tensor([1.0, 100.0]).double()[:, None]
    >>> bowls = lambda w, number: ((scale[number] * w * w).sum(1) / 2, scale[number] * w)
    >>> found = many_lbfgs(bowls, torch.ones(2, 3).double())
    >>> bool(found.point.abs().max() < 1e-6), bool(found.slope.max() <= 1e-6)
    (True, True)
    """
    number = torch.arange(len(start), device=start.device)
    value, gradient = objectives(start, number)
    found = Minimum(start.clone(), value.clone(), _largest(gradient))
    past = start.new_zeros(len(start), memory, start.shape[1])
    zeros = torch.zeros_like(value)
    blank = Search(number, start, value, gradient, gradient, zeros, zeros, zeros, zeros, past, past.clone())
    search = _begin(blank, torch.ones_like(number, dtype=torch.bool))
    left = found.slope > tolerance
    for _ in range(evaluations):
        if not left.all():
            search = Search(*(part[left] for part in search))
        if not len(search.number):
            break
        trial = search.point + search.step[:, None] * search.direction
        search, given_up = _judge(search, trial, *objectives(trial, search.number))
        slope = _largest(search.gradient)
        for whole, part in zip(found, (search.point, search.value, slope), strict=True):
            whole[search.number] = part
        left = (slope > tolerance) & ~given_up
    return found


def _judge(search: Search, trial: Tensor, value: Tensor, gradient: Tensor) -> tuple[Search, Tensor]:
    """Take the trial, or shorten or lengthen the step (weak Wolfe by bisection, as in `lbfgs`)."""
    slope, new_slope = ((g * search.direction).sum(1) for g in (search.gradient, gradient))
    flatter = (value - search.value <= ROUNDING * search.value.abs()) & (new_slope <= -0.9 * slope)
    lower = flatter | (value <= search.value + 1e-4 * search.step * slope)
    taken = lower & (new_slope >= 0.9 * slope)
    low, high = torch.where(lower, search.step, search.low), torch.where(lower, search.high, search.step)
    step = torch.where(high.isinf(), 2 * low, (low + high) / 2)
    trials = search.trials + 1
    failed = ~taken & ((trials >= TRIALS) | (slope >= 0))
    given_up = failed & ~search.changes.flatten(1).any(1)
    keep = ~(taken | failed)[:, None, None]
    moves, changes = (
        torch.where(taken[:, None, None], torch.cat([past[:, 1:], new[:, None]], 1), past * keep)
        for past, new in ((search.moves, trial - search.point), (search.changes, gradient - search.gradient))
    )
    search = search._replace(
        point=torch.where(taken[:, None], trial, search.point),
        value=torch.where(taken, value, search.value),
        gradient=torch.where(taken[:, None], gradient, search.gradient),
        step=step, low=low, high=high, trials=trials, moves=moves, changes=changes,
    )  # fmt: skip
    return _begin(search, taken | failed), given_up


def _begin(search: Search, these: Tensor) -> Search:
    """New line searches from the points of `these (A,)`: the full step, or without memory a short one downhill."""
    first = ~search.changes.flatten(1).any(1)
    short = 1 / torch.linalg.vector_norm(search.gradient, dim=1).clamp(min=1)
    direction = -_inverse_hessians_times(search)
    return search._replace(
        direction=torch.where(these[:, None], direction, search.direction),
        step=torch.where(these, torch.where(first, short, 1.0), search.step),
        low=search.low.masked_fill(these, 0.0),
        high=search.high.masked_fill(these, torch.inf),
        trials=search.trials.masked_fill(these, 0.0),
    )


def _inverse_hessians_times(search: Search) -> Tensor:
    """Two-loop recursion, (A, n)."""
    products = (search.moves * search.changes).sum(2)  # (A, m)
    unused = int((products[:, :-1] > 0).any(0).logical_not().sum())  # they are the first
    moves, changes, products = search.moves[:, unused:], search.changes[:, unused:], products[:, unused:]
    weights = torch.where(products > 0, 1 / products, 0.0)
    result, shares = search.gradient.clone(), torch.zeros_like(products)
    for i in reversed(range(moves.shape[1])):
        shares[:, i] = weights[:, i] * (moves[:, i] * result).sum(1)
        result -= shares[:, i, None] * changes[:, i]
    last = products[:, -1] / changes[:, -1].square().sum(1)
    result *= torch.where(products[:, -1] > 0, last, 1.0)[:, None]
    for i in range(moves.shape[1]):
        rest = shares[:, i] - weights[:, i] * (changes[:, i] * result).sum(1)
        result += rest[:, None] * moves[:, i]
    return result


def _largest(gradient: Tensor) -> Tensor:
    return gradient.abs().amax(1) if gradient.shape[1] else gradient.new_zeros(len(gradient))

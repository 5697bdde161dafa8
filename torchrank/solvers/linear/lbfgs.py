"""L-BFGS on many smooth convex functions at once, each with its own step length, its own memory and its own end.

Nocedal & Wright, algorithm 7.5, with a line search by bisection for the weak Wolfe conditions (Lewis & Overton 2013),
so that changes . moves > 0. Near the minimum, where values agree to their last digit, the slope decides (Hager & Zhang
2005). Values and gradients may be sums over processes: every decision depends on them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Objectives = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # points (A, n), their numbers (A,) -> (A,), (A, n)
Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # point (n,) -> value, gradient (n,)
Scaling = Callable[[Tensor, Tensor], Tensor]  # vectors (A, n), the numbers (A,) of their functions -> (A, n)

ROUNDING = 1e-14  # share of a value within which rounding errors may hide a decrease
TRIALS = 60  # of a line search; then the memory is dropped, and without a memory the search is given up


class Minimum(NamedTuple):
    """The minima of M functions."""

    point: Tensor  # (M, n)
    value: Tensor  # (M,)
    max_gradient: Tensor  # (M,) largest absolute entry of the gradient


class LBFGS(NamedTuple):
    """The state of one function between two steps. The newest row of the memory is last; rows of zeros are unused."""

    point: Tensor  # (n,)
    moves: Tensor  # (m, n) of the point
    changes: Tensor  # (m, n) of the gradient


class Step(NamedTuple):
    """Where an outer iteration on one function led to."""

    state: LBFGS  # the one before if the line search found no step
    value: Tensor  # ()
    gradient: Tensor  # (n,)
    max_gradient: float  # largest absolute entry of the gradient
    moved: bool  # whether the point has changed


class LineSearch(NamedTuple):
    """The line searches of the functions that are not done. Each of them tries one step at every evaluation."""

    number: Tensor  # (A,) of the functions
    point: Tensor  # (A, n) where the search starts
    value: Tensor  # (A,) there
    gradient: Tensor  # (A, n) there
    direction: Tensor  # (A, n)
    step: Tensor  # (A,) to try next
    low: Tensor  # (A,) largest step known to be too short
    high: Tensor  # (A,) smallest step known to be too long
    trials: Tensor  # (A,) so far
    moves: Tensor  # (A, m, n)
    changes: Tensor  # (A, m, n)


def unscaled(vectors: Tensor, numbers: Tensor) -> Tensor:
    """The scaling by the identity."""
    return vectors


def lbfgs_start(point: Tensor, memory: int = 10) -> LBFGS:
    """The state before the first step, with room for so many moves."""
    return LBFGS(point, point.new_zeros(memory, len(point)), point.new_zeros(memory, len(point)))


def lbfgs_step(
    state: LBFGS, objective: Objective, value: Tensor, gradient: Tensor, scaling: Scaling = unscaled
) -> Step:
    """One outer iteration on one function, from the value and gradient at `state.point`.

    The state, value and gradient are the given ones if the line search finds no step, which happens only at the limit
    of the floating-point precision. What callers decide by comes from the device in one copy for each evaluation.
    `scaling` is that of `many_lbfgs`.

    >>> quadratic = lambda w: ((w * w).sum() / 2, w)
    >>> state = lbfgs_start(torch.tensor([3.0, 4.0], dtype=torch.float64))
    >>> for _ in range(2):
    ...     state, value, *_ = lbfgs_step(state, quadratic, *quadratic(state.point))
    >>> float(value) < 1e-20
    True
    """
    number = torch.zeros(1, dtype=torch.int64, device=state.point.device)
    search = _first_searches(number, state.point[None], value[None], gradient[None], state.moves[None],
                             state.changes[None], scaling)  # fmt: skip
    while True:
        trial = search.point + search.step[:, None] * search.direction
        trial_value, trial_gradient = objective(trial[0])
        search, *ends = _judge(search, trial, trial_value[None], trial_gradient[None])
        changed = (search.point != state.point).any().view(1)
        largest = _largest_entry(search.gradient)
        *flags, max_gradient = torch.cat([part.to(largest.dtype) for part in (*ends, changed, largest)]).tolist()
        taken, failed, given_up, moved = map(bool, flags)
        if given_up:
            return Step(state, value, gradient, max_gradient, moved=False)
        if taken:
            new = LBFGS(search.point[0], search.moves[0], search.changes[0])
            return Step(new, search.value[0], search.gradient[0], max_gradient, moved)
        search = _begin(search, ends[1], scaling) if failed else search


def many_lbfgs(
    objectives: Objectives,
    start: Tensor,
    *,
    tolerance: float = 1e-6,
    evaluations: int = 1000,
    memory: int = 20,
    scaling: Scaling = unscaled,
) -> Minimum:
    """Minima of M functions from `start (M, n)`, until no entry of a gradient is larger than `tolerance`.

    `objectives(points, numbers)` returns the values and gradients of the functions `numbers`, those that are not done.
    A function is also done when its line search finds no step, at the limit of the floating-point precision.
    `scaling(vectors, numbers)` multiplies by a guess of the inverse Hessians, which the memory then improves; a factor
    does not matter.

    >>> scale = torch.tensor([1.0, 100.0]).double()[:, None]
    >>> bowls = lambda w, number: ((scale[number] * w * w).sum(1) / 2, scale[number] * w)
    >>> minimum = many_lbfgs(bowls, torch.ones(2, 3).double())
    >>> bool(minimum.point.abs().max() < 1e-6), bool(minimum.max_gradient.max() <= 1e-6)
    (True, True)
    """
    number = torch.arange(len(start), device=start.device)
    value, gradient = objectives(start, number)
    minimum = Minimum(start.clone(), value.clone(), _largest_entry(gradient))
    if not len(start):
        return minimum
    past = start.new_zeros(len(start), memory, start.shape[1])
    search = _first_searches(number, start, value, gradient, past, past.clone(), scaling)
    left = minimum.max_gradient > tolerance
    all_left = bool(left.all())
    for _ in range(evaluations):
        if not all_left:
            rest = left.nonzero().flatten()
            search = LineSearch(*(part[rest] for part in search))
        if not len(search.number):
            break
        trial = search.point + search.step[:, None] * search.direction
        search, taken, failed, given_up = _judge(search, trial, *objectives(trial, search.number))
        max_gradient, ended = _largest_entry(search.gradient), taken | failed
        left = (max_gradient > tolerance) & ~given_up
        all_left, begins = torch.stack((left.all(), ended.any())).tolist()  # one copy from the device
        search = _begin(search, ended, scaling) if begins else search
        for whole, part in zip(minimum, (search.point, search.value, max_gradient), strict=True):
            whole[search.number] = part
    return minimum


def _first_searches(
    number: Tensor, point: Tensor, value: Tensor, gradient: Tensor, moves: Tensor, changes: Tensor, scaling: Scaling
) -> LineSearch:
    zeros = torch.zeros_like(value)
    blank = LineSearch(number, point, value, gradient, gradient, zeros, zeros, zeros, zeros, moves, changes)
    return _begin(blank, torch.ones_like(number, dtype=torch.bool), scaling)


def _judge(
    search: LineSearch, trial: Tensor, value: Tensor, gradient: Tensor
) -> tuple[LineSearch, Tensor, Tensor, Tensor]:
    """Take the trial, or shorten or lengthen the step. Returns the searches, and for each of them (A,) whether the
    trial is the new point, whether it has failed and its memory was dropped, and whether it had no memory then."""
    slope, new_slope = ((g * search.direction).sum(1) for g in (search.gradient, gradient))
    flatter = (value - search.value <= ROUNDING * search.value.abs()) & (new_slope <= -0.9 * slope)
    lower = flatter | (value <= search.value + 1e-4 * search.step * slope)
    taken = lower & (new_slope >= 0.9 * slope)
    low, high = torch.where(lower, search.step, search.low), torch.where(lower, search.high, search.step)
    trials = search.trials + 1
    failed = ~taken & ((trials >= TRIALS) | (slope >= 0))
    given_up = failed & ~search.changes.flatten(1).any(1)
    keep = ~(taken | failed)[:, None, None]
    moves, changes = (
        torch.where(taken[:, None, None], torch.cat([past[:, 1:], new[:, None]], 1), past * keep)
        for past, new in ((search.moves, trial - search.point), (search.changes, gradient - search.gradient))
    )
    point, gradient = (
        torch.where(taken[:, None], new, old) for new, old in ((trial, search.point), (gradient, search.gradient))
    )
    value, step = torch.where(taken, value, search.value), torch.where(high.isinf(), 2 * low, (low + high) / 2)
    number, direction = search.number, search.direction
    new = LineSearch(number, point, value, gradient, direction, step, low, high, trials, moves, changes)
    return new, taken, failed, given_up


def _begin(search: LineSearch, these: Tensor, scaling: Scaling) -> LineSearch:
    """Start new line searches of `these (A,)`, with the full step, or without a memory with a short step downhill."""
    first = ~search.changes.flatten(1).any(1)
    short = 1 / torch.linalg.vector_norm(search.gradient, dim=1).clamp(min=1)
    direction = -_inverse_hessians_times(search, scaling)
    return search._replace(
        direction=torch.where(these[:, None], direction, search.direction),
        step=torch.where(these, torch.where(first, short, 1.0), search.step),
        low=search.low.masked_fill(these, 0.0),
        high=search.high.masked_fill(these, torch.inf),
        trials=search.trials.masked_fill(these, 0.0),
    )


def _inverse_hessians_times(search: LineSearch, scaling: Scaling) -> Tensor:
    """The inverse Hessians times the gradients (A, n), by the two-loop recursion."""
    products = (search.moves * search.changes).sum(2)  # (A, m)
    moves, changes = search.moves, search.changes
    if products.device.type == "cpu":  # elsewhere to read a number is to wait, and rows of zeros change nothing
        unused = int(((products[:, :-1] > 0).any(0).cumsum(0) == 0).sum())  # oldest rows, which no function has filled
        moves, changes, products = (part[:, unused:] for part in (moves, changes, products))
    weights = torch.where(products > 0, 1 / products, 0.0)  # rounding can leave a row that is not positive
    pairs = list(zip(moves.unbind(1), changes.unbind(1), weights[:, :, None].unbind(1), strict=True))
    result, shares = search.gradient.clone(), []
    for move, change, weight in reversed(pairs):
        shares.append(weight * (move * result).sum(1, keepdim=True))
        result -= shares[-1] * change
    functions, rows = (torch.arange(size, device=products.device) for size in products.shape)
    newest = torch.where(products > 0, rows, 0).amax(1)
    product, change = products[functions, newest], changes[functions, newest]
    length = (change * scaling(change, search.number)).sum(1)
    result = scaling(result, search.number) * torch.where(product > 0, product / length, 1.0)[:, None]
    for move, change, weight in pairs:
        result += (shares.pop() - weight * (change * result).sum(1, keepdim=True)) * move
    return result


def _largest_entry(gradient: Tensor) -> Tensor:
    return gradient.abs().amax(1) if gradient.shape[1] else gradient.new_zeros(len(gradient))

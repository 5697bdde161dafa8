"""L-BFGS on a smooth convex function whose value and gradient are global sums."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # point -> (value, gradient)

ROUNDING = 1e-14  # share of a value in which the rounding of its sums may hide a decrease


class LBFGS(NamedTuple):
    """The last m moves of the point and of the gradient, newest last; rows of zeros are unused."""

    point: Tensor  # (n,)
    moves: Tensor  # (m, n)
    changes: Tensor  # (m, n)


def lbfgs_start(point: Tensor, memory: int = 10) -> LBFGS:
    return LBFGS(point, point.new_zeros(memory, len(point)), point.new_zeros(memory, len(point)))


def lbfgs_step(state: LBFGS, objective: Objective, value: Tensor, gradient: Tensor) -> tuple[LBFGS, Tensor, Tensor]:
    """One outer iteration (Nocedal & Wright, algorithm 7.5) from the value and gradient at `state.point`.

    Returns the new state, value and gradient; the same ones when no step decreases the value, which happens at the
    limit of the floating-point precision only.

    >>> quadratic = lambda w: ((w * w).sum() / 2, w)
    >>> start = lbfgs_start(torch.tensor([3.0, 4.0], dtype=torch.float64))
    >>> state, value, _ = lbfgs_step(start, quadratic, *quadratic(start.point))
    >>> state, value, _ = lbfgs_step(state, quadratic, *quadratic(state.point))
    >>> float(value) < 1e-20
    True
    """
    direction = -_inverse_hessian_times(state, gradient)
    first = not bool(state.changes.any())
    step = 1 / float(gradient.norm().clamp(min=1)) if first else 1.0
    found = _weak_wolfe(state.point, direction, objective, value, gradient, step)
    if found is None and not first:  # forget the past and go down the gradient
        return lbfgs_step(lbfgs_start(state.point, len(state.moves)), objective, value, gradient)
    if found is None:
        return state, value, gradient
    point, new_value, new_gradient = found
    moves = torch.cat([state.moves[1:], (point - state.point)[None]])
    changes = torch.cat([state.changes[1:], (new_gradient - gradient)[None]])
    return LBFGS(point, moves, changes), new_value, new_gradient


def _inverse_hessian_times(state: LBFGS, gradient: Tensor) -> Tensor:
    """Two-loop recursion."""
    products = (state.moves * state.changes).sum(1)
    used = [i for i, product in enumerate(products.tolist()) if product > 0]
    result, shares = gradient.clone(), {}
    for i in reversed(used):
        shares[i] = state.moves[i] @ result / products[i]
        result -= shares[i] * state.changes[i]
    if used:
        result *= products[used[-1]] / state.changes[used[-1]].square().sum()
    for i in used:
        result += (shares[i] - state.changes[i] @ result / products[i]) * state.moves[i]
    return result


def _weak_wolfe(
    point: Tensor, direction: Tensor, objective: Objective, value: Tensor, gradient: Tensor, step: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Bisection for a step that decreases enough and far enough (Lewis & Overton 2013), so that changes . moves > 0.

    Near the minimum values are equal to their last digit: there the slope tells (Hager & Zhang 2005).
    """
    slope = float(gradient @ direction)
    low, high, best = 0.0, float("inf"), None
    for _ in range(100):
        trial = point + step * direction
        trial_value, trial_gradient = objective(trial)
        trial_slope = float(trial_gradient @ direction)
        flatter = float(trial_value - value) <= ROUNDING * abs(float(value)) and trial_slope <= -0.9 * slope
        if not (flatter or float(trial_value) <= float(value) + 1e-4 * step * slope):
            high = step
        else:
            best = (trial, trial_value, trial_gradient)
            if trial_slope >= 0.9 * slope:
                return best
            low = step
        step = 2 * low if high == float("inf") else (low + high) / 2
    return best

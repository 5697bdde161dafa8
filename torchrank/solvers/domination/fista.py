"""FISTA for T separate problems side by side: a smooth convex loss plus l1 |w|_1 + l2 |w|^2."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.solvers.domination.penalty import Penalty

Values = Callable[[Tensor], Tensor]  # points (T, D) -> smooth losses (T,)
Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]  # points (T, D) -> smooth losses (T,), gradients (T, D)

SHRINK = 0.95  # of the curvature after an accepted step, so that it follows the function downwards
ROUNDING = 1e-13  # share of a loss in which the rounding of its sums may hide what a step gains


class Fista(NamedTuple):
    """Points, where the next gradients are taken, momentum, and curvature in units of `scale` (see `fista_step`)."""

    point: Tensor  # (T, D)
    ahead: Tensor  # (T, D)
    momentum: Tensor  # (T,)
    curvature: Tensor  # (T,)


def fista_start(point: Tensor) -> Fista:
    return Fista(point, point, point.new_ones(len(point)), point.new_full((len(point),), 1e-3))


def fista_step(state: Fista, value: Values, slopes: Slopes, penalty: Penalty, scale: Tensor) -> Fista:
    """One accelerated proximal gradient step for each problem (Beck & Teboulle 2009), with backtracking, and a restart
    of the momentum where it points uphill (O'Donoghue & Candes 2015).

    `scale (T, D)` bounds the curvature along each coordinate: the step on coordinate r is 1 / (curvature scale_r).
    Coordinates of scale 0 have no slope. Along any direction the curvature is at most D scale (Cauchy-Schwarz), which
    ends the backtracking whatever rounding does to the values. Where rounding hides what a step gains, curvatures below
    1 are not believed, and no longer lowered: steps that are too long would blow up what is left of the digits.

    >>> quadratic = lambda w: (((w - 3) ** 2).sum(1) / 2, w - 3)
    >>> state = fista_start(torch.zeros(1, 2, dtype=torch.float64))
    >>> for _ in range(60):
    ...     state = fista_step(state, lambda w: quadratic(w)[0], quadratic, Penalty(1.0, 0.0), torch.ones(1, 2))
    >>> state.point.round(decimals=6)
    tensor([[2., 2.]], dtype=torch.float64)
    """
    loss, gradient = slopes(state.ahead)
    if not loss.isfinite().all():
        raise ValueError(f"FISTA: the loss is {float(loss.sum())}: features or weights are not finite, or too large")
    curvature, enough = state.curvature, (scale > 0).sum(1)
    while True:
        steepness = curvature[:, None] * scale
        point = penalty.prox(state.ahead, gradient, steepness)
        move = point - state.ahead
        excess = value(point) - loss - (gradient * move).sum(1) - (steepness * move.square()).sum(1) / 2
        unclear = excess.abs() <= ROUNDING * loss.abs()
        trusted = torch.where(unclear, curvature >= 1, excess <= 0)
        rejected = ~trusted & (curvature < enough)
        if not rejected.any():
            break
        curvature = torch.where(rejected, 2 * curvature, curvature)
    uphill = (scale * (state.ahead - point) * (point - state.point)).sum(1) > 0
    momentum = torch.where(uphill, 1.0, (1 + (1 + 4 * state.momentum.square()).sqrt()) / 2)
    push = torch.where(uphill, 0.0, (state.momentum - 1) / momentum)
    ahead = point + push[:, None] * (point - state.point)
    return Fista(point, ahead, momentum, torch.where(unclear, curvature, SHRINK * curvature))

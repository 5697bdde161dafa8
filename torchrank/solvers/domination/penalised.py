"""Minima of a smooth convex loss plus l1 |w|_1 + l2 |w|^2, for T separate problems at once: the penalty, steps of FISTA
and of L-BFGS, and the choice of the features that a sparse model adds next (Stevens 2010, chapter on induction).

A round of a fit makes several steps; the state of the solver after them (`Solving`) goes into the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from torchrank.solvers.linear.lbfgs import LBFGS, lbfgs_start, lbfgs_step

Values = Callable[[Tensor], Tensor]  # points (T, D) -> smooth losses (T,)
Gradients = Callable[[Tensor], tuple[Tensor, Tensor]]  # points (T, D) -> smooth losses (T,), gradients (T, D)

MEMORY = 30  # moves that L-BFGS remembers
SHRINK = 0.95  # factor on the curvature after an accepted step, so that it can follow the function downwards
ROUNDING = 1e-13  # share of a loss within which rounding errors may hide the gain of a step


class Penalty(NamedTuple):
    """l1 |w|_1 + l2 |w|^2, where `l1` and `l2` are numbers, or tensors (T, 1) if the problems differ."""

    l1: float | Tensor
    l2: float | Tensor

    def __call__(self, point: Tensor) -> Tensor:
        """Penalty (T,) of the points (T, D), one for each problem."""
        l1, l2 = (side.squeeze(-1) if isinstance(side, Tensor) else side for side in self)
        return torch.add(l1 * vector_norm(point, 1, dim=-1), l2 * vector_norm(point, dim=-1).square())

    def prox(self, point: Tensor, gradient: Tensor, steepness: Tensor) -> Tensor:
        """The minimiser of gradient . move + steepness/2 move^2 + penalty(point + move), coordinate by coordinate, with
        exact zeros under l1. Where steepness is 0 so is the gradient: a penalised coordinate goes to 0, others stay.

        >>> Penalty(1.0, 0.0).prox(torch.tensor([2.0, 0.1]), torch.tensor([0.5, 0.5]), torch.ones(2))
        tensor([0.5000, 0.0000])
        """
        target = steepness * point - gradient
        shrunk = target - target.clamp(-self.l1, self.l1)  # type: ignore[arg-type]
        penalised = self.l1 + self.l2 > 0
        without = torch.where(penalised, 0.0, point) if isinstance(penalised, Tensor) else 0.0 if penalised else point
        return torch.where(steepness > 0, shrunk / self._width(steepness), without)

    def _width(self, steepness: Tensor) -> Tensor:
        """The curvature with that of l2; 1 where there is none."""
        return torch.where(steepness > 0, steepness + 2 * self.l2, 1.0)

    def gain(self, gradient: Tensor, steepness: Tensor) -> Tensor:
        """Guaranteed decrease of the objective if a single zero weight takes its best step; 0 without steepness."""
        reach = (gradient.abs() - self.l1).clamp(min=0).square()
        return torch.where(steepness > 0, reach / (2 * self._width(steepness)), 0.0)

    def rows(self, count: int) -> list[Penalty]:
        """The penalty of each of `count` problems."""
        sides = [side.unbind(0) if isinstance(side, Tensor) else [side] * count for side in self]
        return [Penalty(l1, l2) for l1, l2 in zip(*sides, strict=True)]

    def worst(self, point: Tensor, gradient: Tensor, among: Tensor | None = None) -> Tensor:
        """The largest violation () of all problems, over all coordinates or those in `among` (T, D). The problems are
        processed one by one, in the memory that one of them takes."""
        largest = []
        for row, penalty in enumerate(self.rows(len(point))):
            violation = penalty.violation(point[row], gradient[row])
            largest.append((violation if among is None else torch.where(among[row], violation, 0.0)).max())
        return torch.stack(largest).max()

    def violation(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Distance of each coordinate from optimality (the smallest subgradient), in the shape of `point`."""
        smooth = gradient + 2 * self.l2 * point
        at_zero = (smooth.abs() - self.l1).clamp(min=0)
        return torch.where(point == 0, at_zero, (smooth + self.l1 * point.sign()).abs())


def take_in(chosen: Tensor, gradient: Tensor, curvature: Tensor, penalty: Penalty, count: int) -> Tensor:
    """The chosen features (T, D), plus the `count` features of each model that are sure to lower its objective most.

    The models are processed one by one, in the memory that one of them takes.

    >>> gradient, curvature = torch.tensor([[0.5, -3.0, 2.0]]), torch.ones(1, 3)
    >>> take_in(torch.zeros(1, 3, dtype=torch.bool), gradient, curvature, Penalty(1.0, 0.0), count=1)
    tensor([[False,  True, False]])
    """
    chosen = chosen.clone()
    for row, model in enumerate(penalty.rows(len(chosen))):
        gain = torch.where(chosen[row], 0.0, model.gain(gradient[row], curvature[row]))
        best = gain.topk(min(count, len(gain)))
        chosen[row, best.indices[best.values > 0]] = True
    return chosen


class Fista(NamedTuple):
    """The state of FISTA between two steps."""

    point: Tensor  # (T, D)
    ahead: Tensor  # (T, D) where the next gradients are taken
    momentum: Tensor  # (T,)
    curvature: Tensor  # (T,) in units of `scale`, see `fista_step`


def fista_start(point: Tensor) -> Fista:
    """The state before the first step from these points (T, D)."""
    return Fista(point, point, point.new_ones(len(point)), point.new_full((len(point),), 1e-3))


def fista_step(state: Fista, value: Values, gradients: Gradients, penalty: Penalty, scale: Tensor) -> Fista:
    """One accelerated proximal gradient step for each problem (Beck & Teboulle 2009), with backtracking, and a restart
    of the momentum where it points uphill (O'Donoghue & Candes 2015).

    `scale (T, D)` bounds the curvature along each coordinate: the step on coordinate r is 1 / (curvature scale_r).
    Coordinates of scale 0 have a gradient of 0. Along any direction the curvature is at most D scale (Cauchy-Schwarz),
    so backtracking ends whatever rounding does to the values. Where rounding errors hide the gain of a step, curvatures
    below 1 are not accepted, and the curvature is no longer lowered: steps that are too long would amplify the errors.

    >>> quadratic = lambda w: (((w - 3) ** 2).sum(1) / 2, w - 3)
    >>> state = fista_start(torch.zeros(1, 2, dtype=torch.float64))
    >>> for _ in range(60):
    ...     state = fista_step(state, lambda w: quadratic(w)[0], quadratic, Penalty(1.0, 0.0), torch.ones(1, 2))
    >>> state.point.round(decimals=6)
    tensor([[2., 2.]], dtype=torch.float64)
    """
    loss, gradient = gradients(state.ahead)
    curvature, enough = state.curvature, (scale > 0).sum(1)
    while True:
        steepness = curvature[:, None] * scale
        point = penalty.prox(state.ahead, gradient, steepness)
        move = point - state.ahead
        excess = value(point) - loss - (gradient * move).sum(1) - (steepness * move.square()).sum(1) / 2
        unclear = excess.abs() <= ROUNDING * loss.abs()
        trusted = torch.where(unclear, curvature >= 1, excess <= 0)
        rejected = ~trusted & (curvature < enough)
        finite, again = torch.stack((loss.isfinite().all(), rejected.any())).tolist()  # one copy from the device
        if not finite:
            wrong = float(loss.sum())
            raise ValueError(f"FISTA: the loss is {wrong}, so features or weights are not finite or too large")
        if not again:
            break
        curvature = torch.where(rejected, 2 * curvature, curvature)
    uphill = (scale * (state.ahead - point) * (point - state.point)).sum(1) > 0
    momentum = torch.where(uphill, 1.0, (1 + (1 + 4 * state.momentum.square()).sqrt()) / 2)
    push = torch.where(uphill, 0.0, (state.momentum - 1) / momentum)
    ahead = point + push[:, None] * (point - state.point)
    return Fista(point, ahead, momentum, torch.where(unclear, curvature, SHRINK * curvature))


class Solving(NamedTuple):
    """The state of a solver between two rounds."""

    weight: Tensor  # (T, D)
    memory: Tensor  # (rows, T D): where FISTA looks next, or moves and changes of L-BFGS; no row at the start
    pace: Tensor  # (2, T): momentum and curvature of FISTA

    def restarted(self) -> Solving:
        """The same weights with an empty memory."""
        return Solving(self.weight, self.memory[:0], self.pace[:0])


def fista_steps(
    state: Solving, steps: int, values: Values, gradients: Gradients, penalty: Penalty, scale: Tensor
) -> Solving:
    """Make so many steps of FISTA; `scale` is explained in `fista_step`."""
    now = fista_start(state.weight)
    if len(state.memory):
        now = Fista(state.weight, state.memory.view_as(state.weight), *state.pace)
    for _ in range(steps):
        now = fista_step(now, values, gradients, penalty, scale)
    return Solving(now.point, now.ahead.view(1, -1), torch.stack((now.momentum, now.curvature)))


def lbfgs_steps(state: Solving, steps: int, gradients: Gradients, penalty: Penalty, tolerance: float) -> Solving:
    """Make at most so many steps of L-BFGS on a smooth objective, until no gradient entry is above `tolerance`."""

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        weight = point.view_as(state.weight)
        loss, gradient = gradients(weight)
        return (loss + penalty(weight)).sum(), (gradient + 2 * penalty.l2 * weight).flatten()

    now = lbfgs_start(state.weight.flatten(), MEMORY)
    if len(state.memory):
        now = LBFGS(now.point, *state.memory.chunk(2))
    value, gradient = objective(now.point)
    moved, largest = True, float(gradient.abs().max())
    while moved and steps > 0 and largest > tolerance:  # where nothing has moved another try would be the same
        before = now
        now, value, gradient, largest, _ = lbfgs_step(before, objective, value, gradient)
        moved, steps = now is not before, steps - 1
    return Solving(now.point.view_as(state.weight), torch.cat((now.moves, now.changes)), state.pace)

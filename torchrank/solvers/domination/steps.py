"""Several steps of a solver from where it stands to where it stands then: what goes into the checkpoint of a round."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.solvers.domination.fista import Fista, Slopes, Values, fista_start, fista_step
from torchrank.solvers.domination.penalty import Penalty
from torchrank.solvers.linear.lbfgs import LBFGS, lbfgs_start, lbfgs_step

MEMORY = 30  # moves remembered by L-BFGS


class Solving(NamedTuple):
    """Where a solver stands."""

    weight: Tensor  # (T, D)
    memory: Tensor  # (rows, T D): where FISTA looks next, or moves and changes of L-BFGS; no row at the start
    pace: Tensor  # (2, T): momentum and curvature of FISTA

    def anew(self) -> "Solving":
        """The weights without a memory of how they were found."""
        return Solving(self.weight, self.memory[:0], self.pace[:0])


def fista_steps(state: Solving, steps: int, values: Values, slopes: Slopes, penalty: Penalty, scale: Tensor) -> Solving:
    now = fista_start(state.weight)
    if len(state.memory):
        now = Fista(state.weight, state.memory.view_as(state.weight), *state.pace)
    for _ in range(steps):
        now = fista_step(now, values, slopes, penalty, scale)
    return Solving(now.point, now.ahead.view(1, -1), torch.stack((now.momentum, now.curvature)))


def lbfgs_steps(state: Solving, steps: int, slopes: Slopes, penalty: Penalty, tolerance: float) -> Solving:
    """Fewer steps when no slope of the objective, which must be smooth, is above `tolerance`."""

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        weight = point.view_as(state.weight)
        loss, gradient = slopes(weight)
        return (loss + penalty(weight)).sum(), (gradient + 2 * penalty.l2 * weight).flatten()

    now = lbfgs_start(state.weight.flatten(), MEMORY)
    if len(state.memory):
        now = LBFGS(state.weight.flatten(), *state.memory.chunk(2))
    value, gradient = objective(now.point)
    for _ in range(steps):
        if gradient.abs().max() <= tolerance:
            break
        now, value, gradient = lbfgs_step(now, objective, value, gradient)
    return Solving(now.point.view_as(state.weight), torch.cat((now.moves, now.changes)), state.pace)

"""The penalty l1 |w|_1 + l2 |w|^2 (without a factor 1/2), for one problem or T problems side by side, and the choice of
the features that a sparse model adds next (Stevens 2010, chapter on induction)."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm


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
        exact zeros under l1. Where steepness is 0 there is no slope: a penalised coordinate goes to 0, others stay.

        >>> Penalty(1.0, 0.0).prox(torch.tensor([2.0, 0.1]), torch.tensor([0.5, 0.5]), torch.ones(2))
        tensor([0.5000, 0.0000])
        """
        pull = steepness * point - gradient
        shrunk = pull - pull.clamp(-self.l1, self.l1)  # type: ignore[arg-type]
        penalised = self.l1 + self.l2 > 0
        free: float | Tensor = 0.0 if penalised is True else point
        if isinstance(penalised, Tensor):
            free = torch.where(penalised, 0.0, point)
        return torch.where(steepness > 0, shrunk / torch.where(steepness > 0, steepness + 2 * self.l2, 1.0), free)

    def gain(self, gradient: Tensor, steepness: Tensor) -> Tensor:
        """How much the objective is sure to fall if one weight of 0 alone makes its best step; 0 without a slope."""
        reach = (gradient.abs() - self.l1).clamp(min=0).square()
        width = torch.where(steepness > 0, steepness + 2 * self.l2, 1.0)
        return torch.where(steepness > 0, reach / (2 * width), 0.0)

    def rows(self, count: int) -> list["Penalty"]:
        """The penalty of each of `count` problems."""
        sides = [side.unbind(0) if isinstance(side, Tensor) else [side] * count for side in self]
        return [Penalty(l1, l2) for l1, l2 in zip(*sides, strict=True)]

    def worst(self, point: Tensor, gradient: Tensor, among: Tensor | None = None) -> Tensor:
        """The largest violation () of all problems, over all coordinates or those in `among` (T, D). The problems are
        processed one by one, in the memory that one of them takes."""
        found = []
        for row, own in enumerate(self.rows(len(point))):
            each = own.violation(point[row], gradient[row])
            found.append((each if among is None else torch.where(among[row], each, 0.0)).max())
        return torch.stack(found).max()

    def violation(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Distance of each coordinate from optimality (the smallest subgradient), in the shape of `point`."""
        slope = gradient + 2 * self.l2 * point
        at_zero = (slope.abs() - self.l1).clamp(min=0)
        return torch.where(point == 0, at_zero, (slope + self.l1 * point.sign()).abs())


def take_in(chosen: Tensor, gradient: Tensor, curvature: Tensor, penalty: Penalty, count: int) -> Tensor:
    """The chosen features (T, D), plus the `count` features of each model that are sure to lower its objective most.

    The models are processed one by one, in the memory that one of them takes.

    >>> gradient, curvature = torch.tensor([[0.5, -3.0, 2.0]]), torch.ones(1, 3)
    >>> take_in(torch.zeros(1, 3, dtype=torch.bool), gradient, curvature, Penalty(1.0, 0.0), count=1)
    tensor([[False,  True, False]])
    """
    chosen = chosen.clone()
    for row, (own, slopes, bounds) in enumerate(zip(penalty.rows(len(chosen)), gradient, curvature, strict=True)):
        gain = torch.where(chosen[row], 0.0, own.gain(slopes, bounds))
        best = gain.topk(min(count, len(gain)))
        chosen[row, best.indices[best.values > 0]] = True
    return chosen

"""The penalty l1 |w|_1 + l2 |w|^2 (no half in front of the square), for one problem or T side by side."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm


class Penalty(NamedTuple):
    """`l1` and `l2` are numbers, or (T, 1) where the problems differ."""

    l1: float | Tensor
    l2: float | Tensor

    def __call__(self, point: Tensor) -> Tensor:
        """Value for each problem (T,) of points (T, D)."""
        l1, l2 = (side.squeeze(-1) if isinstance(side, Tensor) else side for side in self)
        return l1 * vector_norm(point, 1, dim=-1) + l2 * vector_norm(point, dim=-1).square()

    def prox(self, point: Tensor, gradient: Tensor, steepness: Tensor) -> Tensor:
        """The minimiser of gradient . move + steepness/2 move^2 + penalty(point + move), coordinate by coordinate, with
        exact zeros under l1. Where steepness is 0 there is no slope: the point goes to 0, or stays without a penalty.

        >>> Penalty(1.0, 0.0).prox(torch.tensor([2.0, 0.1]), torch.tensor([0.5, 0.5]), torch.ones(2))
        tensor([0.5000, 0.0000])
        """
        pull = steepness * point - gradient
        shrunk = pull - pull.clamp(-self.l1, self.l1)  # type: ignore[arg-type]
        free = torch.where(torch.as_tensor(self.l1 + self.l2, device=point.device) > 0, 0.0, point)
        return torch.where(steepness > 0, shrunk / torch.where(steepness > 0, steepness + 2 * self.l2, 1.0), free)

    def gain(self, gradient: Tensor, steepness: Tensor) -> Tensor:
        """By how much the objective is sure to fall when a weight of 0 takes its best step alone; 0 without a slope."""
        reach = (gradient.abs() - self.l1).clamp(min=0).square()
        width = torch.where(steepness > 0, steepness + 2 * self.l2, 1.0)
        return torch.where(steepness > 0, reach / (2 * width), 0.0)

    def rows(self, count: int) -> list["Penalty"]:
        """The penalties of T problems, one by one."""
        sides = [side.unbind(0) if isinstance(side, Tensor) else [side] * count for side in self]
        return [Penalty(l1, l2) for l1, l2 in zip(*sides, strict=True)]

    def worst(self, point: Tensor, gradient: Tensor, among: Tensor | None = None) -> float:
        """The largest violation of T problems, of all coordinates or `among` some (T, D), looked at one by one: no more
        memory than one of them takes."""
        found = []
        for row, own in enumerate(self.rows(len(point))):
            each = own.violation(point[row], gradient[row])
            found.append((each if among is None else torch.where(among[row], each, 0.0)).max())
        return float(torch.stack(found).max())

    def violation(self, point: Tensor, gradient: Tensor) -> Tensor:
        """How far each coordinate is from optimality (the smallest subgradient), of the shape of `point`."""
        slope = gradient + 2 * self.l2 * point
        at_zero = (slope.abs() - self.l1).clamp(min=0)
        return torch.where(point == 0, at_zero, (slope + self.l1 * point.sign()).abs())

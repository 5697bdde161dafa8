"""Feature transforms of the rows of one list, in operations that every format has."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from torchrank.data.transforms import Chain, Identity, OneOf, Quantile, QueryMinMax, Standard, Transform


class OneListRows(nn.Module):
    """A fitted transform for the rows (n, D) of one list: float64 in, rows of the ranker in float32 out."""

    def __init__(self, transform: Transform):
        super().__init__()
        self.steps = nn.ModuleList(map(_step, steps_of(transform)))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x.float()


def steps_of(transform: Transform) -> list[Transform]:
    """The transforms that are applied one after another."""
    if isinstance(transform, Chain):
        return [step for part in transform.steps for step in steps_of(part)]
    if isinstance(transform, OneOf):
        return steps_of(transform.options[transform.chosen])
    return [] if isinstance(transform, Identity) else [transform]


def _step(transform: Transform) -> nn.Module:
    if isinstance(transform, QueryMinMax):
        return MinMax()
    return QuantileSearch(transform) if isinstance(transform, Quantile) else RowByRow(transform)


class RowByRow(nn.Module):
    """A transform that does not look at the other rows of the list."""

    def __init__(self, transform: Transform):
        super().__init__()
        self.transform = deepcopy(transform).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.transform.dense(x, None)  # type: ignore[arg-type]


class MinMax(nn.Module):
    """`QueryMinMax` of one list."""

    def forward(self, x: Tensor) -> Tensor:
        low, high = x.amin(0), x.amax(0)
        return (x - low) / torch.where(high > low, high - low, 1.0)


class QuantileSearch(nn.Module):
    """`Quantile` by a binary search, since ONNX has no searchsorted."""

    nodes: Tensor
    scores: Tensor

    def __init__(self, transform: Quantile):
        super().__init__()
        self.register_buffer("nodes", transform.nodes.double().clone())
        self.register_buffer("scores", transform.scores.double().clone())

    def forward(self, x: Tensor) -> Tensor:
        values, last = x.T, self.nodes.shape[1] - 1
        above = torch.zeros_like(values, dtype=torch.int64)  # how many nodes are not above a value
        for bit in reversed(range((last + 1).bit_length())):
            place = above + 2**bit
            reached = self.nodes.gather(1, (place - 1).clamp(max=last)) <= values
            above = torch.where(reached & (place <= last + 1), place, above)
        low, high = (above - 1).clamp(min=0), above.clamp(max=last)
        start, gap = self.nodes.gather(1, low), self.nodes.gather(1, high) - self.nodes.gather(1, low)
        share = torch.where(gap > 0, (values - start) / torch.where(gap > 0, gap, 1.0), 0.0)
        first, second = self.scores.gather(1, low), self.scores.gather(1, high)
        return (first + share * (second - first)).T


def likely_rows(transform: Transform, count: int, generator: torch.Generator) -> Tensor:
    """Random rows (count, D) in float32, where the first transform tells it of the size of the training values."""
    drawn = torch.randn(count, transform.num_features, generator=generator, dtype=torch.float64)
    first = next(iter(steps_of(transform)), None)
    if isinstance(first, Standard):
        drawn = first.mean.cpu() + first.deviation.cpu() * drawn
    if isinstance(first, Quantile):
        place = torch.randint(first.nodes.shape[1], drawn.T.shape, generator=generator)
        drawn = first.nodes.cpu().gather(1, place).T + 0.01 * drawn
    return drawn.float()

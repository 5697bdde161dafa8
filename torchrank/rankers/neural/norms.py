"""Normalisations of hidden values."""

import torch
import torch.distributed as group
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from torchrank.errors import check_choice

NORMS = ("layer", "batch")


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe & Szegedy 2015) over the documents of all processes, in evaluation by running means.

    torch's own takes the moments of each process by itself, and its synchronised form works on CUDA alone. This one
    adds up the moments of all processes, so that a step on two of them is the step on one. A batch of one document is
    ordinary input.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, momentum: float = 0.1, eps: float = 1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self._moments(x) if self.training else (self.mean, self.variance)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (x.to(scale.dtype) * scale + (self.bias - mean * scale)).to(x.dtype)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.double() if x.device.type != "mps" else x.float()
        sums = torch.cat((wide.sum(0), wide.square().sum(0), wide.new_full((1,), float(len(x)))))
        if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
            sums = all_reduce(sums)
        count = sums[-1].detach().clamp(min=1)
        mean, square = (sums[:-1] / count).chunk(2)
        variance = (square - mean.square()).clamp(min=0)
        with torch.no_grad():  # the variance of a sample has count - 1 degrees of freedom
            self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
            unbiased = variance * count / (count - 1).clamp(min=1)
            self.variance.lerp_(unbiased.to(self.mean.dtype), self.momentum)
        return mean.to(self.weight.dtype), variance.to(self.weight.dtype)


def make_norm(norm: str, width: int) -> nn.Module:
    """The normalisation of this name."""
    check_choice(NORMS, norm=norm)
    return nn.LayerNorm(width) if norm == "layer" else BatchNorm(width)

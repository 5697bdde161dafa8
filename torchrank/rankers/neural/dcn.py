"""Deep & cross networks, second version (Wang et al. 2021)."""

import torch
from torch import Tensor, nn

from torchrank.rankers.neural.mlp import MLPScorer


class DCNScorer(nn.Module):
    """Cross layers x <- x0 * (W x + b) + x, which multiply features with each other, and an MLP on top.

    L layers hold products of up to L + 1 features. With `rank`, W is a product of two thin matrices.

    Args:
        num_inputs: columns of the rows.
        layers: cross layers.
        rank: of the matrices of the cross layers; None: full.
        hidden: widths of the layers of the MLP; none: a linear score of the crossed features.
        dropout: share of the values of the MLP that are dropped while training.
        outputs: scores for each row.
        bias: whether the last layer has one, for losses that look at a score by itself.
    """

    dense = True

    def __init__(
        self,
        num_inputs: int,
        layers: int = 2,
        rank: int | None = None,
        hidden: list[int] = (256, 128),  # type: ignore[assignment]
        dropout: float = 0.0,
        outputs: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.crosses = nn.ModuleList(_cross(num_inputs, rank) for _ in range(layers))
        self.deep = MLPScorer(num_inputs, hidden, dropout, outputs, bias)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.deep.layers[0].weight.dtype
        start = crossed = x.to(dtype)  # type: ignore[arg-type]
        for cross in self.crosses:
            crossed = torch.addcmul(crossed, start, cross(crossed))
        return self.deep(crossed).to(x.dtype)  # type: ignore[no-any-return]


def _cross(width: int, rank: int | None) -> nn.Module:
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))

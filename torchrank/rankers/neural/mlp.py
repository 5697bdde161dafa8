"""Fully connected networks."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from torchrank.data.sparse import SparseRows


def project(x: Tensor | SparseRows, layer: nn.Linear) -> Tensor:
    """The layer of rows of any type, dense or sparse."""
    images: Tensor = x.to(dtype=layer.weight.dtype) @ layer.weight.T
    return images if layer.bias is None else images + layer.bias


def last_scores(found: Tensor) -> Tensor:
    """Outputs (n, outputs) of a last layer; one output is (n,). (ONNX refuses to squeeze several.)"""
    return found[:, 0] if found.shape[1] == 1 else found


class MLPScorer(nn.Module):
    """Fully connected layers with ReLU between them; the last has no bias, whose gradient would be rounding noise.

    Args:
        num_inputs: columns of the rows.
        hidden: widths of the hidden layers.
        dropout: share of the hidden values that are dropped while training.
        outputs: scores for each row.
        bias: whether the last layer has one, for losses that look at a score by itself.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: list[int] = (256, 128),  # type: ignore[assignment]
        dropout: float = 0.0,
        outputs: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([num_inputs, *hidden]))
        self.layers.append(nn.Linear([num_inputs, *hidden][-1], outputs, bias=bias))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        first, *others = self.layers
        hidden = project(x, first)  # type: ignore[arg-type]
        for layer in others:
            hidden = layer(self.dropout(torch.relu(hidden)))
        return last_scores(hidden).to(x.dtype)

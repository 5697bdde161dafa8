"""Residual networks (He et al. 2016; for tables Gorishniy et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrank.data.sparse import SparseRows
from torchrank.rankers.neural.mlp import last_scores, project
from torchrank.rankers.neural.norms import make_norm


class ResNetScorer(nn.Module):
    """Blocks that add to what comes in: x + W2 relu(W1 norm(x)), with dropout; then norm, ReLU and a linear score.

    Args:
        num_inputs: columns of the rows.
        width: of the values that blocks add to.
        blocks: how many.
        hidden: width inside a block.
        dropout: share of the hidden values that are dropped while training.
        norm: layer, over the values of a document; or batch, over the documents of a batch (of all processes).
        outputs: scores for each row.
        bias: whether the last layer has one, for losses that look at a score by itself.
    """

    def __init__(
        self,
        num_inputs: int,
        width: int = 128,
        blocks: int = 2,
        hidden: int = 256,
        dropout: float = 0.1,
        norm: str = "layer",
        outputs: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        self.first = nn.Linear(num_inputs, width, bias=norm != "batch")  # which takes a constant away again
        self.blocks = nn.ModuleList(Block(width, hidden, dropout, norm) for _ in range(blocks))
        self.norm, self.last = make_norm(norm, width), nn.Linear(width, outputs, bias=bias)

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        values = project(x, self.first)
        for block in self.blocks:
            values = block(values)
        scores: Tensor = self.last(torch.relu(self.norm(values)))
        return last_scores(scores).to(x.dtype)


class Block(nn.Module):
    """What a block adds, and what comes in."""

    def __init__(self, width: int, hidden: int, dropout: float, norm: str):
        super().__init__()
        self.norm = make_norm(norm, width)
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=norm != "batch")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.dropout(torch.relu(self.first(self.norm(x))))
        added: Tensor = self.dropout(self.second(inside))
        return x + added

"""The scores of trees by tensor operations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrank.export.errors import NotExportable
from torchrank.rankers.trees.forest import Forest
from torchrank.rankers.trees.ranker import GBDTRanker


def trees_of(ranker: GBDTRanker) -> Forest:
    """The trees of a fitted ranker; what is not a sum of numerical decisions is refused."""
    ranker.check_fitted()
    try:
        return ranker.engine.forest(ranker.booster, ranker.first is not None)
    except ValueError as error:
        raise NotExportable(str(error)) from error


class TreeScores(nn.Module):
    """The sum over the trees of the value of the leaf that a row reaches."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    roots: Tensor

    def __init__(self, trees: Forest):
        super().__init__()
        self.depth = trees.depth
        for name in ("feature", "left", "right", "roots"):
            self.register_buffer(name, torch.from_numpy(getattr(trees, name)))
        for name in ("threshold", "value"):
            self.register_buffer(name, torch.from_numpy(getattr(trees, name)).double())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.double()
        node = torch.zeros_like(x[:, :1], dtype=torch.int64) + self.roots  # (n, trees)
        for _ in range(self.depth):
            here = rows.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(here, self.left[node], self.right[node])
        return self.value[node].sum(1)

"""Linear scores."""

import torch
from torch import Tensor, nn

from torchrank.data.sparse import SparseRows


class LinearScorer(nn.Module):
    """x . w, without a bias: a constant per list changes no ranking. Starts at 0.

    Args:
        num_inputs: columns of the rows.
        outputs: scores for each row; with several, `weight` is (D, outputs).
        bias: whether there is one, for losses that look at a score by itself.
    """

    def __init__(self, num_inputs: int, outputs: int = 1, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs) if outputs == 1 else torch.zeros(num_inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[1:])) if bias else None

    def forward(self, x: Tensor | SparseRows) -> Tensor:
        scores = x @ self.weight.to(x.dtype)
        return scores if self.bias is None else scores + self.bias.to(x.dtype)

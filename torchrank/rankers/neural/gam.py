"""Generalised additive models: a small network for each feature (Agarwal et al. 2021; to rank Zhuang et al. 2021)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from torchrank.rankers.neural.mlp import last_scores


class GAMScorer(nn.Module):
    """sum_f g_f(x_f) with a network g_f of one input for each feature, all of them computed at once.

    What a feature adds to a score depends on this feature alone, so that `explain` is exact and
    `torchrank.shape_functions` draws the whole model.

    Args:
        num_inputs: columns of the rows.
        hidden: widths of the hidden layers of each network.
        dropout: share of the hidden values that are dropped while training.
        outputs: scores for each row.
        bias: whether there is a constant, for losses that look at a score by itself.
    """

    dense = True

    def __init__(
        self,
        num_inputs: int,
        hidden: list[int] = (16, 8),  # type: ignore[assignment]
        dropout: float = 0.0,
        outputs: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        sizes = [1, *hidden]
        self.weights = nn.ParameterList(_uniform(a, num_inputs, a, b) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(_uniform(a, num_inputs, 1, b) for a, b in pairwise(sizes))
        self.last = _uniform(sizes[-1], num_inputs, sizes[-1], outputs)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        scores = self._terms(x).sum(0)
        scores = scores if self.bias is None else scores + self.bias
        return last_scores(scores).to(x.dtype)

    def terms(self, x: Tensor) -> Tensor:
        """What each feature adds to the score of each row, (n, D); for one output."""
        return self._terms(x)[:, :, 0].T.to(x.dtype)

    def _terms(self, x: Tensor) -> Tensor:
        values = x.to(self.last.dtype).T[:, :, None]  # (D, n, 1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            values = self.dropout(torch.relu(torch.baddbmm(bias, values, weight)))
        return values @ self.last  # (D, n, outputs)


def _uniform(inputs: int, *shape: int) -> nn.Parameter:
    """First weights of a layer with so many inputs, as those of `nn.Linear`."""
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1) / max(inputs, 1) ** 0.5)

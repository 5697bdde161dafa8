"""Kernels of distances under learned metrics: the network of `LGMMLNet`."""

import torch
from torch import Tensor, nn

from torchrank.errors import check_choice
from torchrank.rankers.lgmml.distances import anchor_distances
from torchrank.rankers.lgmml.kernels import KERNELS


class LocalMetricScorer(nn.Module):
    """sum_r weights_r phi(||F_r' x - b_r|| / tau_r) + u . x with M metrics F_r F_r' of this rank (None: full).

    Features whose entry of `live (D,)` is 0 are ignored. For `LGMMLNet` with groups of similar queries there are a
    linear term for each metric, `linear (M, D)`, and the `centres` of the groups.
    """

    live: Tensor
    centres: Tensor  # (C, D)
    width: Tensor  # () of the soft gate

    def __init__(
        self,
        num_inputs: int,
        metrics: int = 32,
        rank: int | None = None,
        kernel: str = "distance",
        beta: float = 2.0,
        linear: bool = True,
    ):
        super().__init__()
        check_choice(KERNELS, kernel=kernel)
        self.kernel, self.beta = kernel, beta
        rank = num_inputs if rank is None else min(rank, num_inputs)
        self.factors = nn.Parameter(torch.randn(metrics, num_inputs, rank) / max(rank, 1) ** 0.5)
        self.shifts = nn.Parameter(torch.randn(metrics, rank))
        self.log_tau = nn.Parameter(torch.full((metrics,), max(num_inputs, 1) ** 0.5).log())
        self.weights = nn.Parameter(torch.ones(metrics))
        self.linear = nn.Parameter(torch.zeros(num_inputs)) if linear else None
        self.register_buffer("live", torch.ones(num_inputs))
        self.register_buffer("centres", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("width", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.terms(x).sum(1)
        return scores if self.linear is None else scores + x @ (self.linear * self.live).to(x.dtype)

    def terms(self, x: Tensor) -> Tensor:
        """What each metric adds to the score of each row, (n, M)."""
        factors = (self.factors * self.live[:, None]).to(x.dtype)
        distances = anchor_distances(x, factors, self.shifts.to(x.dtype))
        return KERNELS[self.kernel](distances / self.log_tau.exp().to(x.dtype), self.beta) * self.weights.to(x.dtype)

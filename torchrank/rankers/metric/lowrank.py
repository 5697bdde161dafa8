"""MLR with a metric of low rank, by gradient: any number of points, mini-batches of queries."""

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.ragged import segment_sum
from torchrank.rankers.core.ranker import GradientRanker
from torchrank.rankers.metric.cutting_plane import Oracle, is_positive
from torchrank.rankers.metric.distance import DistanceRanker

SAMPLE = 10_000  # rows that the start looks at


class LowRankMLR(DistanceRanker, GradientRanker):
    """Scores s = -|L (q - x)|^2 with L (rank, D), so W = L'L; minimises by Adam the mean over queries of the structured
    hinge of `measure` plus |L|_F^2 / C: the objective of `MLR` over C, with tr W = |L|_F^2, no longer convex.

    `init`: the leading principal components (`pca`) of the training rows, or `random` orthogonal directions, scaled so
    that the mean squared distance of two rows is 1. Never 0, where the gradient is 0. `rank=None`: as many as
    features. The other options are those of `MLR`.
    """

    components: nn.Parameter  # (rank, D)

    def __init__(
        self,
        num_features: int,
        rank: int | None = None,
        measure: str = "map",
        k: int | None = None,
        C: float = 1.0,
        threshold: float | str = 1,
        discount: str = "letor",
        init: str = "pca",
        lr: float = 1e-2,
        seed: int = 0,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(num_features, transform, lr, weight_decay=0.0)
        if init not in ("pca", "random"):
            raise ValueError(f"unknown init={init!r}: choose pca or random")
        if not is_positive(C):
            raise ValueError(f"C={C!r} has to be one positive number")
        if rank is not None and (not isinstance(rank, int) or rank < 1):
            raise ValueError(f"rank={rank!r} has to be an integer, 1 at least")
        self.rank_limit, self.C, self.init, self.seed = rank, C, init, seed
        self.oracle = Oracle.make(measure, k, threshold, discount)
        self.components = nn.Parameter(torch.zeros(self._shape()))

    def _shape(self) -> tuple[int, int]:
        width = self.transform.num_outputs
        return (width if self.rank_limit is None else min(self.rank_limit, width), width)

    def inputs_sized(self) -> None:
        if self.components.shape != self._shape():
            self.resize("components", self._shape())

    def prepare(self) -> None:
        self.check_queries(self.data.sets["train"].has_queries)
        covariance = self.sample_rows(SAMPLE, self.seed).T.cov(correction=0).view(len(self.components.T), -1)
        if self.init == "pca":
            directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, : len(self.components)].T
        else:
            draw = torch.randn(self._shape(), generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
            directions = torch.linalg.qr(draw.T).Q.T.to(covariance.device)
        spread = 2 * (directions @ covariance * directions).sum()  # mean squared distance of two rows
        scale = torch.where(spread > 0, spread.rsqrt(), 1.0)
        self.components.copy_(scale * directions)

    def loss(self, batch: Batch) -> Tensor:
        """Hinge and penalty of the lists that have both classes, 0 of the others (Q,)."""
        scores = self.score(batch)
        coefficients, loss = self.oracle(scores.detach(), batch)
        hinge = loss - segment_sum(coefficients * scores, batch.offsets)
        return torch.where(self.oracle.usable(batch), hinge + self.components.square().sum() / self.C, 0.0 * hinge)

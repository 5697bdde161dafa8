"""MLR with a metric of low rank, trained by gradient: any number of points, in mini-batches of queries."""

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import check_integer
from torchrank.functional.ragged import segment_sum
from torchrank.rankers.core.optimizers import Optimization, Option
from torchrank.rankers.core.ranker import TransformOption
from torchrank.rankers.metric import DistanceRanker
from torchrank.rankers.metric.cutting_plane import Oracle, is_positive

SAMPLE = 10_000  # rows from which the first directions are computed


class LowRankMLR(DistanceRanker):
    """Scores s = -|L (q - x)|^2 with L (rank, D), so W = L'L; minimises by gradient the mean over queries of the
    structured hinge of `measure` plus |L|_F^2 / C. This is the objective of `MLR` divided by C, since tr W = |L|_F^2,
    but it is not convex in L.

    Args:
        num_features: number of columns of the rows.
        rank: number of directions of the metric; None: as many as features.
        measure: auc, map, mrr, precision or ndcg.
        k: cut-off of precision and ndcg; None: 3.
        C: weight of the hinge; larger fits the training lists more.
        threshold: lowest relevant grade, or sweep: the mean over all thresholds that split a list.
        init: pca, the leading principal components of the training rows, or random, orthogonal directions. Both are
            scaled so that the mean squared distance of two rows is 1; L never starts at 0, where the gradient is 0.
        lr: learning rate.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.
        seed: random seed of the first directions, and of the rows that they are computed from.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data.sets import RankingSet
        >>> x, labels = torch.tensor([[0.1, 3.0], [2.0, 0.0], [0.2, -3.0]]), torch.tensor([1.0, 0.0, 1.0])
        >>> lists = RankingSet(x, labels, torch.tensor([0, 3]), queries=torch.zeros(1, 2))
        >>> ranker = LowRankMLR(2, rank=1, C=10.0, lr=0.1, transform=None).fit(lists, epochs=50)
        >>> ranker.rank(x, torch.tensor([0, 3]), queries=torch.zeros(1, 2))[2]  # the irrelevant one is last
        tensor(1)
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
        init: str = "pca",
        lr: float = 1e-2,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
        seed: int = 0,
        transform: TransformOption = "standard",
    ):
        super().__init__(num_features, transform)
        if init not in ("pca", "random"):
            raise ValueError(f"unknown init={init!r}: choose pca or random")
        if not is_positive(C):
            raise ValueError(f"C must be a single number > 0, got {C!r}")
        check_integer(">= 1", rank=rank)
        self.rank_limit, self.C, self.init, self.seed = rank, C, init, seed
        self.oracle = Oracle.make(measure, k, threshold)
        self.optimization = Optimization(optimizer, scheduler, lr)
        self.components = nn.Parameter(torch.zeros(self._shape()))

    def _shape(self) -> tuple[int, int]:
        width = self.transform.num_outputs
        return (width if self.rank_limit is None else min(self.rank_limit, width), width)

    def start(self, lists: TrainingLists) -> None:
        self.check_queries(lists.lists.has_queries)
        rank, width = self._shape()
        covariance = lists.sample_rows(SAMPLE, self.seed).T.cov(correction=0).view(width, -1)
        if self.init == "pca":
            directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :rank].T
        else:
            draw = torch.randn(self._shape(), generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
            directions = torch.linalg.qr(draw.T).Q.T.to(covariance.device)
        spread = 2 * (directions @ covariance * directions).sum()  # mean squared distance of two rows
        scale = torch.where(spread > 0, spread.rsqrt(), 1.0)
        store(self, components=scale * directions)

    def loss(self, batch: Batch) -> Tensor:
        """Hinge plus penalty of the lists with both classes, and 0 of the others (Q,)."""
        scores = self.score(batch)
        coefficients, loss = self.oracle(scores.detach(), batch)
        hinge = loss - segment_sum(coefficients * scores, batch.offsets)
        return torch.where(self.oracle.usable(batch), hinge + self.components.square().sum() / self.C, 0.0 * hinge)

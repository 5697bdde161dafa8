"""Query-KNN (Geng, Liu, Qin, Arnold, Li & Shum 2008, offline-2): one linear model around every training query."""

from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.singlefeature import dense
from torchrank.solvers.linear.losses import LOSSES
from torchrank.solvers.linear.many import Lists, join_lists, solve_many_linear
from torchrank.solvers.query_means import nearest_queries, own_scores, query_vectors


class QueryKNN(RoundRanker):
    """Model q learns from training query q and its `neighbours` nearest ones; a query is ranked by the model of the
    training query nearest to it.

    A query is the mean of its documents: of all, or of the `top` ones by the feature `reference_feature` (BM25, where
    the data has it); of all features, or of `features`. Distances are Euclidean, with `standardise` after division by
    the standard deviations over the training queries. `base="listnet"` or `"ranksvm"` (squared hinge), with `l2`. So a
    document's score depends on the other documents of its list. Models without a pair to learn from are the model of
    all lists; with all other queries as neighbours every model is.

    A round solves `models_per_round` models at once, each until no entry of its gradient is above `tolerance`.
    """

    certified = True
    weight: nn.Parameter  # (Q, D) float64
    vectors: Tensor  # (Q, F) of the training queries, standardised
    mean: Tensor  # (F,)
    scale: Tensor  # (F,)
    slope: Tensor  # (T,) largest gradient entry of each of the first T models: these are solved

    def __init__(
        self,
        num_features: int,
        neighbours: int = 50,
        base: str = "listnet",
        l2: float = 1e-2,
        top: int | None = None,
        reference_feature: int | None = None,
        features: list[int] | None = None,
        standardise: bool = True,
        tolerance: float = 1e-6,
        models_per_round: int = 500,
        rounds: int = 1000,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(num_features, transform, rounds)
        if base not in LOSSES:
            raise ValueError(f"unknown base={base!r}: choose one of {', '.join(LOSSES)}")
        whole = isinstance(neighbours, int) and isinstance(models_per_round, int)
        if not whole or neighbours < 0 or models_per_round < 1:
            given = f"neighbours={neighbours} and models_per_round={models_per_round}"
            raise ValueError(f"{given}: they have to be integers, neighbours 0 or more, models_per_round 1 or more")
        if (top is None) != (reference_feature is None) or (top is not None and top < 1):
            given = f"top={top} and reference_feature={reference_feature}"
            raise ValueError(f"{given}: give both, top from 1, or none for the mean of all documents")
        self.neighbours, self.base, self.l2, self.tolerance = neighbours, base, l2, tolerance
        self.top, self.reference_feature, self.features = top, reference_feature, features
        self.standardise, self.models_per_round = standardise, models_per_round
        self.weight = nn.Parameter(torch.zeros(0, 0, dtype=torch.float64), requires_grad=False)
        for name, shape in {"vectors": (0, 0), "mean": (0,), "scale": (0,), "slope": (0,)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def prepare(self) -> None:
        num_lists, width = len(self.data.sets["train"]), self.transform.num_outputs
        wrong = [f for f in [self.reference_feature or 0, *(self.features or [])] if not 0 <= f < width]
        if wrong:
            raise ValueError(f"features {wrong} of {width}: they are counted from 0 after the transform")

        def gather(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][batch.query] = self._vectors(batch)

        size = len(self.features) if self.features else width
        (found,) = self.total(gather, into=(self.vectors.new_zeros(num_lists, size),))
        deviation, mean = (torch.std_mean(found, 0, correction=0)) if self.standardise else (found[:0].sum(0),) * 2
        scale = torch.where(deviation > 1e-12, deviation, 1.0)
        self.store({"vectors": (found - mean) / scale, "mean": mean, "scale": scale})
        self.resize("weight", (num_lists, width))
        self.resize("slope", (0,))

    def _vectors(self, batch: Batch) -> Tensor:
        x = dense(batch)
        found = query_vectors(x, batch.offsets, top=self.top, reference=self.reference_feature)
        return found[:, self.features] if self.features else found

    def score(self, batch: Batch) -> Tensor:
        if not len(self.vectors):
            raise ValueError("this QueryKNN is not fitted: it knows no training query")
        vectors = (self._vectors(batch) - self.mean) / self.scale
        nearest = nearest_queries(vectors, self.vectors, 1)[:, 0]
        return own_scores(dense(batch), batch.offsets, self.weight[nearest])

    def round(self) -> bool:
        first = len(self.slope)
        models = self.vectors[first : first + self.models_per_round]
        k = min(self.neighbours + 1, len(self.vectors))
        members = nearest_queries(models, self.vectors, k, first=first)
        lists = join_lists(self.batches(), self._reduce)
        found = self._solve(lists, len(models), members=members)
        weight = found.weight
        if (found.used == 0).any():
            weight = torch.where(found.used[:, None] > 0, weight, self._solve(lists, 1).weight)
        slope = torch.cat([self.slope, found.slope])
        self._certify(float(slope.max()), float(found.value.mean()))
        self.weight[first : first + len(models)] = weight
        self.store({"slope": slope})
        return len(slope) == len(self.vectors)

    def _solve(self, lists: Lists, num_models: int, **options: Any) -> Any:
        options |= {"loss": self.base, "l2": self.l2, "tolerance": self.tolerance, "reduce": self._reduce}
        return solve_many_linear(lists, num_models, **options)

    def _certify(self, slope: float, value: float) -> None:
        self.certificate = {"gradient": slope, "tolerance": self.tolerance}
        if slope > self.tolerance:
            rank_zero_warn(f"a model was left at a gradient of {slope:.1e}: raise l2 or tolerance")
        self.log("train/loss", value, prog_bar=True)
        self.log("train/gradient", slope)

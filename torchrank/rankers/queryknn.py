"""Query-KNN (Geng, Liu, Qin, Arnold, Li & Shum 2008, offline-2): one linear model around every training query."""

import logging
import time
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import NotFittedError, NumericalWarning, check_choice, check_integer
from torchrank.rankers.core.ranker import Ranker, TransformOption, warn
from torchrank.rankers.core.rounds import Certificate, Round
from torchrank.solvers.linear.many_models import MODEL_LOSSES, join_lists, solve_many_linear
from torchrank.solvers.linear.scores import nearest_queries, query_vectors, scores_by_list

log = logging.getLogger(__name__)
MODELS = 500  # models that are solved in a round
LONG = 30  # seconds: what the rest of a fit may take before it is told


class QueryKNN(Ranker):
    """One linear model for each training query, trained on the query and its nearest neighbours. A query is ranked by
    the model of the training query nearest to it. A query is represented by the mean of its documents, so a score
    depends on the other documents of its list.

    Where the lists of a model have no pair to learn from, the model of all lists takes its place. A round solves up to
    500 models at once.

    Args:
        num_features: number of columns of the rows.
        neighbours: number of training queries that a model learns from beside its own.
        base: listnet, or ranksvm (squared hinge on pairs).
        l2: weight of the l2 penalty.
        top: a query is the mean of its top documents by reference_feature; None: of all documents.
        reference_feature: number of that feature, counted from 0 after the transform: BM25, where the data has it.
        standardise: whether query vectors are divided by their standard deviations over the training queries.
        tolerance: a model is solved when no entry of its gradient exceeds it.
        rounds: maximum number of rounds.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0], [4.0], [3.0]]), torch.tensor([0, 3, 5])
        >>> ranker = QueryKNN(1, neighbours=1).fit(RankingSet(x, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]), offsets))
        >>> ranker.weight.shape, ranker.rank(x, offsets)
        (torch.Size([2, 1]), tensor([1, 2, 0, 3, 4]))
    """

    certified = True
    weight: nn.Parameter  # (Q, D) float64
    vectors: Tensor  # (Q, F) of the training queries, standardised
    mean: Tensor  # (F,)
    scale: Tensor  # (F,)
    slope: Tensor  # (T,) largest gradient entry of each of the T models that are solved so far

    def __init__(
        self,
        num_features: int,
        neighbours: int = 50,
        base: str = "listnet",
        l2: float = 1e-2,
        top: int | None = None,
        reference_feature: int | None = None,
        standardise: bool = True,
        tolerance: float = 1e-6,
        rounds: int = 1000,
        transform: TransformOption = "auto",
    ):
        super().__init__(num_features, transform, rounds)
        check_choice(MODEL_LOSSES, base=base)
        check_integer(">= 0", neighbours=neighbours)
        if (top is None) != (reference_feature is None) or (top is not None and top < 1):
            given = f"top={top}, reference_feature={reference_feature}"
            raise ValueError(f"top >= 1 and reference_feature must be given together, or neither; got {given}")
        self.neighbours, self.base, self.l2, self.tolerance = neighbours, base, l2, tolerance
        self.top, self.reference_feature, self.standardise = top, reference_feature, standardise
        self.weight = nn.Parameter(torch.zeros(0, 0, dtype=torch.float64), requires_grad=False)
        for name, shape in {"vectors": (0, 0), "mean": (0,), "scale": (0,), "slope": (0,)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def start(self, lists: TrainingLists) -> None:
        width, reference = self.transform.num_outputs, self.reference_feature or 0
        if not 0 <= reference < width:
            raise ValueError(f"reference_feature must be from 0 to {width - 1}, got {reference}")

        def gather(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][batch.query] = self._vectors(batch)

        (found,) = lists.total(gather, into=(lists.zeros(len(lists), width),))
        deviation, mean = (torch.std_mean(found, 0, correction=0)) if self.standardise else (found[:0].sum(0),) * 2
        scale = torch.where(deviation > 1e-12, deviation, 1.0)
        store(self, vectors=(found - mean) / scale, mean=mean, scale=scale)
        store(self, weight=torch.zeros_like(found), slope=found.new_zeros(0))

    def _vectors(self, batch: Batch) -> Tensor:
        return query_vectors(batch.dense, batch.offsets, top=self.top, reference=self.reference_feature)

    def score(self, batch: Batch) -> Tensor:
        if not len(self.vectors):
            raise NotFittedError("this QueryKNN is not fitted: call fit first")
        vectors = (self._vectors(batch) - self.mean) / self.scale
        nearest = nearest_queries(vectors, self.vectors, 1)[:, 0]
        return scores_by_list(batch.dense, batch.offsets, self.weight[nearest])

    def open(self, lists: TrainingLists) -> None:
        self.kept.joined = join_lists(lists, lists.reduce)

    def round(self, lists: TrainingLists, number: int) -> Round:
        first, start = len(self.slope), time.perf_counter()
        models = self.vectors[first : first + MODELS]
        k = min(self.neighbours + 1, len(self.vectors))
        members = nearest_queries(models, self.vectors, k, first=first)
        found = self._solve(lists, len(models), members=members)
        weight = found.weight
        if (found.used == 0).any():
            weight = torch.where(found.used[:, None] > 0, weight, self._solve(lists, 1).weight)
        slopes, value = torch.cat([self.slope, found.max_gradient]), float(found.value.mean())
        certificate = Certificate("gradient", float(slopes.max()), self.tolerance)
        if not certificate.proved:
            left = f"a model still has a gradient of {certificate.found:.1e}"
            warn(f"{left}: raise l2 or tolerance (now {self.tolerance:g})", NumericalWarning)
        self.weight[first : first + len(models)] = weight
        store(self, slope=slopes)
        rest = (len(self.vectors) - len(slopes)) * (time.perf_counter() - start) / len(models)
        if rest > LONG and not first:
            told = f"{len(models)} of {len(self.vectors)} models are solved: the others take {rest / 60:.2g} minutes"
            log.info(f"{told}. Fewer neighbours or a larger tolerance take less.")
        logged = {"train/loss": value, "train/gradient": certificate.found}
        return Round(len(slopes) == len(self.vectors), logged, certificate)

    def _solve(self, lists: TrainingLists, num_models: int, **options: Any) -> Any:
        options |= {"loss": self.base, "l2": self.l2, "tolerance": self.tolerance, "reduce": lists.reduce}
        return solve_many_linear(self.kept.joined, num_models, **options)

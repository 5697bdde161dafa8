"""L-GMML: local geometric-mean metrics that rank (Su, King & Lyu, SIGIR 2017), in closed form and by WARP."""

from collections.abc import Callable
from copy import deepcopy
from itertools import count
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import NotFittedError, check_choice, check_number
from torchrank.functional.kernels import KERNELS
from torchrank.functional.losses import warp_loss
from torchrank.functional.ragged import has_pairs
from torchrank.rankers.core.ranker import Ranker, TransformOption
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.lgmml.compiled import CompiledScorer, compile_scorer
from torchrank.rankers.lgmml.scorer import (
    SAMPLE,
    LocalScorer,
    check_scale,
    distance_scale,
    explain_differences,
    lists_of_pairs,
)
from torchrank.rankers.lgmml.weights import WEIGHTS, MetricWeights
from torchrank.solvers.local_metrics.closed_form import MetricOptions, local_metrics
from torchrank.solvers.local_metrics.sources import found_in
from torchrank.solvers.local_metrics.warp import sampled_warp

KEPT_BYTES = 2**32  # kernel values of the training entries are kept up to this size, otherwise computed in every round
HALVINGS = 30  # at most so many times a full step is halved until the loss falls


class LGMML(Ranker):
    """Scores documents by weighted kernels of their distances from M anchors, each under a metric of its own:
    f(p) = sum_r weights_r phi(||p - a_r||_r / tau_r).

    The first round is a complete ranker with all weights 1, in closed form: metric r is the geometric mean S^-1 #_t D
    of two scatters over `queries_per_metric` drawn lists: S of the pairs of `high` documents, D of the pairs of a high
    and a low document. Each later round is one WARP iteration on the weights.

    With query vectors, distances are measured from the query: f(p) = sum_r weights_r phi(||p - x_q||_r / tau). With
    `kernel="localized"`, f(p) = -(p - x_q)' M(q) (p - x_q), where M(q) is the sum of the metrics with the weights
    weights_r exp(-beta/2 ||x_q - a_r||_r / tau) (eq. 2 and 3; `beta=inf` takes the metric of the nearest anchor alone).
    Without query vectors, `localized` computes the weights at the document: f(p) = -sum_r w_r z_r^2 / sum_r w_r.

    Args:
        num_features: number of columns of the rows.
        metrics: number of metrics, M.
        queries_per_metric: number of training lists that each metric is learned from; None: all.
        high: relevant documents: half (labels in the upper half of the list), max (the highest label of the list), or
            positive (all labels above 0).
        t: position of the metric between the inverse of the similar scatter (0) and the dissimilar scatter (1).
        ridge: number added to the diagonals of both scatters.
        ridge_mode: whether the ridge is relative to the mean variance of each scatter, or absolute.
        scatter: mean or sum over the pairs.
        solver: how the geometric mean is computed: auto, eigh, svd, dbase or gemm.
        anchor: virtual, the ideal document mu+ + kappa (mu+ - mu-); best, the best real document; or search, the best
            of real and virtual documents.
        kappa: how far the virtual anchor lies beyond the mean relevant document.
        anchor_candidates: maximum number of real documents that are tried for each metric.
        kernel: phi, one of distance, rbf, laplace, paper and demo; or localized.
        beta: decay rate of rbf, laplace and localized.
        tau: scale of the distances: their median, q95 or max over the training rows, or a number.
        weights: shared by all queries; per_query, a row for each training query; or amortized, softplus of a linear
            function of the unlabelled documents of the list.
        fallback: weights of all other queries with weights="per_query": the mean of the rows, ones, or knn, the mean of
            the rows of the 10 training queries whose documents have the most similar features.
        nonneg: whether negative weights are set to 0.
        mode: full, a projected gradient step that lowers the mean loss over all lists; or sgd, as many sampled steps as
            there are lists, with a step size that falls to 0 over the rounds.
        margin: margin of WARP.
        negatives: what a document is compared with in WARP: lower, documents with a lower label; or zero, documents
            with label 0.
        lr: mode="full": largest change of a weight in a round, as a share of the largest weight; mode="sgd": step size
            times the number of lists.
        rounds: maximum number of rounds; 1: all weights stay 1.
        seed: random seed of the draws of lists, of anchor candidates and of sampled steps.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import synthetic_splits
        >>> sets = synthetic_splits(num_queries=30, num_features=10)
        >>> ranker = LGMML(10, metrics=4, queries_per_metric=5, rounds=5).fit(sets["train"], sets["val"])
        >>> ranker.factors.shape, ranker.anchors.shape, ranker.weights.shape
        (torch.Size([4, 10, 10]), torch.Size([4, 10]), torch.Size([4]))
    """

    takes = frozenset({"corpus", "queries"})
    sources: Tensor  # (M, lists) training lists of each metric
    row_mean: Tensor  # (D,) of the training rows
    row_covariance: Tensor  # (D, D)
    scale: Tensor  # 1 / mean standard deviation of the kernel values over the training entries; 0 = not yet known
    step: Tensor  # length of the last full step

    def __init__(
        self,
        num_features: int,
        metrics: int = 32,
        queries_per_metric: int | None = 40,
        high: str = "half",
        t: float = 0.5,
        ridge: float = 0.1,
        ridge_mode: str = "relative",
        scatter: str = "mean",
        solver: str = "auto",
        anchor: str = "virtual",
        kappa: float = 10.0,
        anchor_candidates: int = 30,
        kernel: str = "distance",
        beta: float = 2.0,
        tau: str | float = "median",
        weights: str = "shared",
        fallback: str = "mean",
        nonneg: bool = True,
        mode: str = "full",
        margin: float = 0.1,
        negatives: str = "lower",
        lr: float = 0.5,
        rounds: int = 50,
        seed: int = 0,
        transform: TransformOption = "standard",
    ):
        super().__init__(num_features, transform, rounds)
        self.options = MetricOptions(
            metrics=metrics,
            queries_per_metric=queries_per_metric,
            high=high,
            t=t,
            ridge=ridge,
            ridge_mode=ridge_mode,
            scatter=scatter,
            solver=solver,
            anchor=anchor,
            kappa=kappa,
            anchor_candidates=anchor_candidates,
            seed=seed,
        )
        self.scorer, self.scale_by = LocalScorer(kernel, beta), check_scale(tau)
        self.nonneg, self.mode, self.margin, self.negatives, self.lr = nonneg, mode, margin, negatives, lr
        self._check(weights, fallback)
        self.register_buffer("sources", torch.zeros(0, 0, dtype=torch.int64))
        for name in ("row_mean", "row_covariance", "scale", "step"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self.weighting: MetricWeights = WEIGHTS[weights](fallback)

    def _check(self, weights: str, fallback: str) -> None:
        check_choice((*KERNELS, "localized"), kernel=self.scorer.kernel)
        check_choice(WEIGHTS, weights=weights)
        check_choice(("mean", "ones", "knn"), fallback=fallback)
        check_choice(("full", "sgd"), mode=self.mode)
        check_choice(("lower", "zero"), negatives=self.negatives)
        check_number("> 0" if self.mode == "sgd" else "> 0 and < 1", lr=self.lr)
        if self.scorer.kernel == "localized" and not self.nonneg:
            raise ValueError("kernel=localized divides by the sum of the weights, so it needs nonneg=true")
        if self.mode == "sgd" and weights == "amortized":
            raise ValueError("mode=sgd needs scores linear in the weights: use mode=full with weights=amortized")
        if not self.scorer.beta > 0:
            raise ValueError(f"beta must be > 0, got {self.scorer.beta}")

    # ---- scoring ------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Tensor:
        """The numbers that WARP learned: (M,) shared, (training lists, M) per query, (M, 1 + M + D) amortized."""
        return self.weighting.values

    @property
    def factors(self) -> Tensor:
        """Factors (M, D, k): metric r is F_r F_r'."""
        return self.scorer.factors

    @property
    def anchors(self) -> Tensor:
        """Anchors (M, D) of the metrics, as transformed rows."""
        return self.scorer.anchors

    @property
    def tau(self) -> Tensor:
        """Scales (M,) of the distances."""
        return self.scorer.tau

    def score(self, batch: Batch) -> Tensor:
        self._check_fitted()
        same = self.weighting.constant()
        if same is not None and batch.queries is not None and self.scorer.kernel == "localized":
            return self.scorer.query_scores(batch, same)
        features = self.scorer.features(batch)
        return self.scorer.combine(features, self.weighting.of(batch, features), batch)

    def _check_fitted(self) -> None:
        if len(self.factors) == 0:
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")

    def training_scores(self, x: Tensor, offsets: Tensor, query: Tensor, **given: Tensor) -> Tensor:
        """Scores (N,) of training lists with the weights that `weights="per_query"` learned for them from their labels.

        Use them to look at a fit, never to measure it. `query (Q,)` are the positions of the lists in the training set.
        """
        self._check_fitted()
        batch = self.inputs(x, offsets, query=query, **given)
        features = self.scorer.features(batch)
        return self.scorer.combine(features, self.weighting.learned(self.weights, batch, features), batch)

    def compiled(self, *, rank: int | None = None, tolerance: float | None = None, **options: Any) -> CompiledScorer:
        """A fast scorer of transformed rows, without the metrics that have weight 0; see `compile_scorer`.

        With `rank` or `tolerance` the metrics are truncated, with the mean and covariance of the training rows.
        """
        self._check_fitted()
        weights = self.weighting.constant()
        if weights is None or not self._is_compilable:
            raise ValueError("only distances from anchors, with weights that all lists share, have a compiled form")
        return compile_scorer(
            self.factors,
            self.scorer.shifts(),
            self.tau,
            weights,
            self.scorer.kernel,
            self.scorer.beta,
            rank=rank,
            tolerance=tolerance,
            mean=self.row_mean,
            covariance=self.row_covariance,
            **{"dtype": self.factors.dtype, **options},
        )

    @property
    def _is_compilable(self) -> bool:
        return not self.by_query and self.scorer.kernel != "localized" and self.weighting.constant() is not None

    def on_predict_start(self) -> None:
        self._check_fitted()
        if self._is_compilable:
            self.kept.compiled = self.compiled()

    def predict_step(self, batch: Batch, batch_index: int = 0) -> Tensor:
        if not hasattr(self.kept, "compiled"):
            return super().predict_step(batch, batch_index)
        self._check_vectors(batch.queries is not None)
        with self.scoring():
            return batch.at_entries(self.kept.compiled(batch.x))

    def on_predict_end(self) -> None:
        vars(self.kept).pop("compiled", None)

    def explain(self, x: Tensor, offsets: Tensor, pairs: Tensor, **given: Tensor) -> Tensor:
        """Why one document is ranked above another.

        Everything is computed in float64: the parts sum to the difference of the scores that the ranker gives in
        float64.

        Args:
            x: rows, as for a call of the ranker.
            offsets: (Q + 1,) where each list begins and ends.
            pairs: (P, 2) entries, first and second; both of one list.
            given: what else a call of the ranker takes.

        Returns:
            (P, M, D) what each metric and each transformed feature adds to score[first] - score[second].
        """
        self._check_fitted()
        wide = {name: part.double() if part.is_floating_point() else part for name, part in given.items()}
        batch = self.inputs(x.double(), offsets, **wide)
        lists = lists_of_pairs(pairs, offsets, len(batch.labels))
        scorer, weighting = deepcopy(self.scorer).double(), deepcopy(self.weighting).double()
        features = scorer.features(batch)
        terms = scorer.terms(features, weighting.of(batch, features), batch)
        return explain_differences(terms, batch.dense, scorer.factors, scorer.centres(batch, lists), pairs)

    # ---- learning -----------------------------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        store(self.scorer, factors=lists.zeros(0))

    def open(self, lists: TrainingLists) -> None:
        if self.mode == "sgd" and lists.world > 1:
            raise ValueError(
                f"mode=sgd takes one step after another, in one process, got {lists.world}: use mode=full on several"
            )
        if self.mode == "sgd" and self.scorer.kernel == "localized" and not lists.lists.has_queries:
            raise ValueError("mode=sgd needs scores linear in the weights: use mode=full with kernel=localized")

    def round(self, lists: TrainingLists, number: int) -> Round:
        if len(self.factors) == 0:
            return self._closed_form(lists)
        return self._sampled_round(lists, number) if self.mode == "sgd" else self._full_round(lists)

    def _closed_form(self, lists: TrainingLists) -> Round:
        """Metrics, anchors and scales in closed form; all weights are 1."""
        rows = lists.sample_rows(SAMPLE, self.options.seed)
        found = local_metrics(lists, self.options, rows[0])
        tau = distance_scale(found, rows, self.scale_by, one=lists.lists.has_queries)
        made = self.weighting.profiles_of(lists, rows.shape[1])
        made["values"] = self.weighting.first(len(lists), *found.factors.shape[:2])
        store(self.weighting, live=(found.factors != 0).any(2).any(0), **made)
        covariance = rows.T.cov(correction=0).view(rows.shape[1], -1)
        store(self, sources=found.sources, row_mean=rows.mean(0), row_covariance=covariance)
        self.scale.zero_()
        self.step.zero_()
        store(self.scorer, anchors=found.anchors, tau=tau, factors=found.factors)
        return Round(done=False)

    def _full_round(self, lists: TrainingLists) -> Round:
        """One projected gradient step on the mean of the exact WARP loss over the lists that have different labels. The
        step is halved until the loss falls; if no step lowers the loss, the fit has converged."""
        scale, point = self._phi_scale(lists), self.weights.detach().clone()
        loss, gradient = getattr(self.kept, "slopes", None) or self._objective(lists, point, scale)
        if not gradient.any():
            return Round(done=True)
        limit = self.lr * point.abs().max() / gradient.abs().max()
        step = torch.where(self.step > 0, torch.minimum(2 * self.step, limit), limit)
        for _ in range(HALVINGS):
            new = self._projected(point - step * gradient).to(point.dtype)  # as it is stored
            new_loss, new_gradient = self._objective(lists, new, scale)
            if new_loss <= loss - 1e-4 * ((point - new) * gradient).sum() and new_loss < loss:
                break
            step = step / 2
        else:
            return Round(done=True)
        self.weights.copy_(new)
        self.scale.copy_(scale)
        self.step.copy_(step)
        self.kept.slopes = (new_loss, new_gradient)
        return Round(False, {"train/loss": new_loss})

    def _objective(self, lists: TrainingLists, values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Mean exact WARP loss of the training lists and its gradient in `values`."""
        features = self._training_features(lists)

        def slope(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            found = features(batch)
            with torch.enable_grad():
                point = values.clone().requires_grad_()
                scores = scale * self.scorer.combine(found, self.weighting.learned(point, batch, found), batch)
                losses = warp_loss(
                    scores,
                    batch.labels,
                    batch.offsets,
                    margin=self.margin,
                    negatives=self.negatives,
                    max_length=batch.max_length,
                    num_grades=batch.num_grades,
                    num_pairs=batch.num_pairs,
                )
                (gradient,) = torch.autograd.grad(losses.sum(), point)
            count = has_pairs(batch.labels, batch.offsets).sum()
            return losses.detach().double().sum(), gradient.double(), count.double()

        loss, gradient, count = lists.total(slope)
        return loss / count, gradient / count

    def _sampled_round(self, lists: TrainingLists, number: int) -> Round:
        """As many steps of the paper's Algorithm 2 as there are lists with different labels, drawn with replacement."""
        features, scale = self._training_features(lists), self._phi_scale(lists)
        generator = torch.Generator().manual_seed(self.options.seed + number)
        usable = torch.from_numpy(lists.lists.pairs).nonzero().flatten()
        drawn = usable[torch.randint(len(usable), (len(usable),), generator=generator)].to(lists.device)
        decay = 1 - (number - 1) / (self.rounds - 1)  # type: ignore[operator]
        step = self.lr * decay / (1 if self.weighting.each_list else len(usable))
        weights = self.weights.detach().clone()
        for batch in lists:
            here, _, _ = found_in(batch, drawn[:, None])
            rows = batch.query if self.weighting.each_list else slice(None)
            weights[rows] = sampled_warp(
                features(batch) * scale,
                batch.labels,
                batch.offsets,
                weights[rows],
                here,
                lr=torch.full((len(here),), step),
                margin=self.margin,
                negatives=self.negatives,
                nonneg=self.nonneg,
                generator=generator,
            )
        self.weights.copy_(weights)
        self.scale.copy_(scale)
        return Round(done=False)

    def _projected(self, weights: Tensor) -> Tensor:
        return self.weighting.projected(weights) if self.nonneg else weights

    def _phi_scale(self, lists: TrainingLists) -> Tensor:
        """1 / mean standard deviation of the kernel values over the training entries, so that steps and the margin mean
        the same on all data. Where scores are not linear in the weights: that of the scores with all weights 1."""
        if self.scale > 0:
            return self.scale.clone()
        features = self._training_features(lists)

        def sums(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            values = features(batch)
            if not self.scorer.is_linear(batch):
                values = self.scorer.combine(values, torch.ones_like(values[0]), batch)[:, None]
            values = values.double()
            return torch.full_like(values[:1].sum(0), len(values)), values.sum(0), values.square().sum(0)

        count, total, squares = lists.total(sums)
        deviation = (squares / count - (total / count).square()).clamp(min=0).sqrt().mean()
        return torch.where(deviation > 0, 1 / deviation, 1.0)

    def _training_features(self, lists: TrainingLists) -> Callable[[Batch], Tensor]:
        """`features` for the training batches in their order; kept from round to round if they are small enough."""
        numbers, places = lists.num_entries // lists.world * len(self.factors), count()
        if numbers * self.factors.itemsize > KEPT_BYTES:
            return self.scorer.features
        kept: list[Tensor] = vars(self.kept).setdefault("features", [])

        def features(batch: Batch) -> Tensor:
            place = next(places)
            if place == len(kept):
                kept.append(self.scorer.features(batch))
            return kept[place]

        return features


class GMML(LGMML):
    """Ranks by the distance from one anchor, or from the query vector where the data has them, under the one metric
    S^-1 #_t D of all training lists together (Zadeh, Hosseini & Sra, ICML 2016). It is fitted in closed form, in one
    round.

    Args:
        num_features: number of columns of the rows.
        high: relevant documents: half (labels in the upper half of the list), max (the highest label of the list), or
            positive (all labels above 0).
        t: position of the metric between the inverse of the similar scatter (0) and the dissimilar scatter (1).
        ridge: number added to the diagonals of both scatters.
        ridge_mode: whether the ridge is relative to the mean variance of each scatter, or absolute.
        solver: how the geometric mean is computed: auto, eigh, svd, dbase or gemm.
        anchor: virtual, the ideal document mu+ + kappa (mu+ - mu-); best, the best real document; or search, the best
            of real and virtual documents.
        kappa: how far the virtual anchor lies beyond the mean relevant document.
        anchor_candidates: maximum number of real documents that are tried.
        seed: random seed of the draw of anchor candidates.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank import RankingSet
        >>> x, labels = torch.tensor([[2.0, 3.0], [0.0, 3.0], [2.2, -3.0], [0.1, -3.0]]), torch.tensor([1.0, 0, 1, 0])
        >>> ranker = GMML(2, transform=None).fit(RankingSet(x, labels, torch.tensor([0, 4])))
        >>> labels[ranker.rank(x, torch.tensor([0, 4]))]
        tensor([1., 1., 0., 0.])
    """

    def __init__(
        self,
        num_features: int,
        high: str = "half",
        t: float = 0.5,
        ridge: float = 0.1,
        ridge_mode: str = "relative",
        solver: str = "auto",
        anchor: str = "virtual",
        kappa: float = 10.0,
        anchor_candidates: int = 30,
        seed: int = 0,
        transform: TransformOption = "standard",
    ):
        super().__init__(
            num_features,
            metrics=1,
            queries_per_metric=None,
            high=high,
            t=t,
            ridge=ridge,
            ridge_mode=ridge_mode,
            solver=solver,
            anchor=anchor,
            kappa=kappa,
            anchor_candidates=anchor_candidates,
            kernel="distance",
            tau=1.0,
            rounds=1,
            seed=seed,
            transform=transform,
        )

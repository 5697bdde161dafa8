"""L-GMML: local geometric-mean metrics that rank (Su, King & Lyu, SIGIR 2017), in closed form and by WARP."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sets import RankingSet
from torchrank.data.state import Derived, store
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, NotFittedError, check_choice, check_number
from torchrank.functional import ndcg
from torchrank.functional.losses import warp_loss
from torchrank.functional.ragged import by_column, has_pairs
from torchrank.rankers.core.kept import KEPT_BYTES, BatchMemory
from torchrank.rankers.core.ranker import Prepared, Ranker, TransformOption
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.lgmml.choice_of_settings import Setting, check_given, chosen_by_fit, settle
from torchrank.rankers.lgmml.compiled import CompiledScorer, compile_scorer
from torchrank.rankers.lgmml.grouped import CompiledGroups, GroupScorer
from torchrank.rankers.lgmml.kernels import KERNELS
from torchrank.rankers.lgmml.line_search import search_step
from torchrank.rankers.lgmml.sampled_warp import sampled_warp
from torchrank.rankers.lgmml.scorer import (
    SAMPLE,
    LocalScorer,
    check_scale,
    distance_scale,
    explain_differences,
    lists_of_pairs,
)
from torchrank.rankers.lgmml.weights import WEIGHTS, MetricWeights
from torchrank.solvers.local_metrics.drawn_lists import found_in
from torchrank.solvers.local_metrics.drawn_metrics import MetricOptions, local_metrics


class LGMML(Ranker):
    """Local geometric-mean metrics that rank, in closed form.

    With `groups="similar"` the training queries are divided into groups by where their documents lie, and each group
    has a metric M = S^-1 #_t D of its own: S is the scatter of the pairs of `high` documents, D that of the pairs of a
    high and a low document, both averaged over the pairs and shrunk towards the averages of all queries. A query is
    ranked by the metric of the nearest group, never by its labels: by the distance from the anchor mu+ + kappa delta,
    where delta = mu+ - mu- is the mean step from a low to a high document, or for kappa = inf by its limit, the linear
    score x' M delta / ||delta||_M. With query vectors, documents are ranked by their distance from the query. Options
    that are None, and `transform="auto"`, are chosen by the fit: see `torchrank.rankers.lgmml.choice_of_settings`.
    Where there are several groups, later rounds weigh the metric of the group and that of all queries by WARP.

    With `groups="random"`, the reading of Su, King & Lyu (SIGIR 2017) that is nearest to their experiments, each of M
    metrics is learned from lists drawn at random, and a document is scored by f(p) = sum_r weights_r phi(||p - a_r||_r
    / tau_r), for all queries alike. The first round is a complete ranker with all weights 1, and each later round is
    one WARP iteration on the weights. With query vectors, distances are measured from the query: f(p) = sum_r weights_r
    phi(||p - x_q||_r / tau). With `kernel="localized"`, f(p) = -(p - x_q)' M(q) (p - x_q), where M(q) is the sum of the
    metrics with the weights weights_r exp(-beta/2 ||x_q - a_r||_r / tau) (eq. 2 and 3; `beta=inf` takes the metric of
    the nearest anchor alone). Without query vectors, `localized` computes the weights at the document: f(p) = -sum_r
    w_r z_r^2 / sum_r w_r.

    Args:
        num_features: number of columns of the rows.
        groups: similar or random, see above.
        num_groups: number of groups of similar queries; None: chosen.
        alpha: a group of n lists is shrunk with weight n / (n + alpha); 0: not at all, inf: to one metric; None:
            chosen.
        gate: hard, the nearest group ranks a query; or soft, all groups do, by their shares in a mixture of Gaussians;
            None: chosen.
        metrics: number of metrics of groups="random"; None: 32.
        queries_per_metric: number of training lists that each metric of groups="random" is learned from; None: all.
        high: relevant documents: half (labels in the upper half of the list), max (the highest label of the list), or
            positive (all labels above 0).
        t: position of the metric between the inverse of the similar scatter (0) and the dissimilar scatter (1); None:
            chosen, or 0.5 with groups="random".
        ridge: number added to the diagonals of both scatters; None: chosen, or 0.1 with groups="random".
        ridge_mode: whether the ridge is relative to the mean variance of each scatter, or absolute.
        scatter: mean or sum over the pairs; groups="random" only.
        anchor: virtual, the ideal document mu+ + kappa (mu+ - mu-); with groups="random" also best, the best real
            document, or search, the best of real and virtual documents.
        kappa: how far the virtual anchor lies beyond the mean relevant document; None: chosen, or 10 with
            groups="random".
        anchor_candidates: maximum number of real documents that are tried for each metric.
        kernel: phi of groups="random", one of distance, rbf, laplace, paper and demo; or localized.
        beta: decay rate of rbf, laplace and localized.
        tau: scale of the distances of groups="random": their median, q95 or max over the training rows, or a number.
        weights: shared by all queries; with groups="random" also per_query, a row for each training query; or
            amortized, softplus of a linear function of the unlabelled documents of the list.
        fallback: weights of all other queries with weights="per_query": the mean of the rows, ones, or knn, the mean of
            the rows of the 10 training queries whose documents have the most similar features.
        nonneg: whether negative weights are set to 0.
        mode: full, a projected gradient step that lowers the mean loss over all lists; or sgd (groups="random"), as
            many sampled steps as there are lists, with a step size that falls to 0 over the rounds.
        margin: margin of WARP.
        negatives: what a document is compared with in WARP: lower, documents with a lower label; or zero, documents
            with label 0.
        lr: mode="full": largest change of a weight in a round, as a share of the largest weight; mode="sgd": step size
            times the number of lists.
        rounds: maximum number of rounds; 1: the closed form alone.
        seed: random seed of all draws.
        transform: feature transform, see `make_transform`; auto: chosen among standard and quantile, or standard with
            groups="random".

    Example:
        >>> from torchrank.data import synthetic_splits
        >>> sets = synthetic_splits(num_queries=60, num_features=10)
        >>> ranker = LGMML(10, num_groups=2, alpha=20.0, rounds=1).fit(sets["train"], sets["val"])
        >>> len(ranker.factors), ranker.findings["chosen"]["groups"]  # of all queries, and of two groups
        (3, 2)
    """

    takes = frozenset({"corpus", "queries"})
    sources: Tensor  # (M, lists) training lists of each metric
    row_mean: Tensor  # (D,) of the training rows
    row_covariance: Tensor  # (D, D)
    scale: Tensor  # 1 / mean standard deviation of the kernel values over the training entries; 0 = not yet known
    step: Tensor  # length with which the next full step is tried first

    def __init__(
        self,
        num_features: int,
        groups: str = "similar",
        num_groups: int | None = None,
        alpha: float | None = None,
        gate: str | None = None,
        metrics: int | None = None,
        queries_per_metric: int | None = 40,
        high: str = "half",
        t: float | None = None,
        ridge: float | None = None,
        ridge_mode: str = "relative",
        scatter: str = "mean",
        anchor: str = "virtual",
        kappa: float | None = None,
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
        transform: TransformOption = "auto",
    ):
        check_choice(("similar", "random"), groups=groups)
        super().__init__(num_features, "standard" if (groups, transform) == ("random", "auto") else transform, rounds)
        self.transform = chosen_by_fit(self.transform)
        self.options = MetricOptions(
            metrics=32 if metrics is None else metrics,
            queries_per_metric=queries_per_metric,
            high=high,
            t=0.5 if t is None else t,
            ridge=0.1 if ridge is None else ridge,
            ridge_mode=ridge_mode,
            scatter=scatter,
            anchor=anchor,
            kappa=10.0 if kappa is None else kappa,
            anchor_candidates=anchor_candidates,
            seed=seed,
        )
        self.groups = groups
        self.choice: Setting | None = None
        self.given = {"groups": num_groups, "alpha": alpha, "t": t, "ridge": ridge, "gate": gate, "kappa": kappa}
        self.scorer: LocalScorer = GroupScorer() if groups == "similar" else LocalScorer(kernel, beta)
        self.scale_by = check_scale(tau)
        self.nonneg, self.mode, self.margin, self.negatives, self.lr = nonneg, mode, margin, negatives, lr
        self._check(kernel, beta, weights, fallback)
        self._check_groups(
            {
                "metrics": (metrics, None),
                "queries_per_metric": (queries_per_metric, 40),
                "scatter": (scatter, "mean"),
                "anchor": (anchor, "virtual"),
                "kernel": (kernel, "distance"),
                "weights": (weights, "shared"),
                "mode": (mode, "full"),
            }
        )
        self.register_buffer("sources", torch.zeros(0, 0, dtype=torch.int64))
        for name in ("row_mean", "row_covariance", "scale", "step"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self.weighting: MetricWeights = WEIGHTS[weights](fallback)

    def _check(self, kernel: str, beta: float, weights: str, fallback: str) -> None:
        check_choice((*KERNELS, "localized"), kernel=kernel)
        check_choice(WEIGHTS, weights=weights)
        check_choice(("mean", "ones", "knn"), fallback=fallback)
        check_choice(("full", "sgd"), mode=self.mode)
        check_choice(("lower", "zero"), negatives=self.negatives)
        check_number("> 0" if self.mode == "sgd" else "> 0 and < 1", lr=self.lr)
        if kernel == "localized" and not self.nonneg:
            raise ValueError("kernel=localized divides by the sum of the weights, so it needs nonneg=true")
        if self.mode == "sgd" and weights == "amortized":
            raise ValueError("mode=sgd needs scores linear in the weights: use mode=full with weights=amortized")
        if not beta > 0:
            raise ValueError(f"beta must be > 0, got {beta}")

    def _check_groups(self, of_random: dict[str, tuple[object, object]]) -> None:
        """Refuse options of the other kind of groups: `of_random` are given and default values."""
        for name in ("groups", "alpha", "gate"):
            if self.groups == "random" and self.given[name] is not None:
                option = "num_groups" if name == "groups" else name
                raise ValueError(f"{option}={self.given[name]} belongs to groups=similar, got groups=random")
        for name, (value, default) in of_random.items():
            if self.groups == "similar" and value != default:
                raise ValueError(f"{name}={value} belongs to groups=random: set groups=random too")
        check_given(self.given)

    def check_set(self, lists: RankingSet) -> None:
        super().check_set(lists)
        if self.scorer.kernel == "localized" and self.options.queries_per_metric == 1 and not lists.has_queries:
            raise DataError(
                "lgmml_query (kernel=localized, queries_per_metric=1) ranks by the distance from the query, but these "
                "lists have no query vectors: use model=lgmml, or give queries="
            )

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

    def entry_bytes(self, width: int) -> int:
        return super().entry_bytes(width) + 64 * self.options.metrics  # its kernel values

    def score(self, batch: Batch) -> Tensor:
        self._check_fitted()
        same = self.weighting.constant()
        if same is not None and batch.queries is not None and self.scorer.kernel == "localized":
            return self.scorer.query_scores(batch, same)
        return self._weighed(self.scorer.features(batch), batch)

    def validation_scores(self, batch: Batch) -> Tensor:
        """Scores (N,) as `score` computes them; during a fit the kernel values of the lists are kept, since the metrics
        do not change after the first round."""
        whole = self.weighting.constant() is not None and batch.queries is not None
        if not hasattr(self.kept, "derived") or (whole and self.scorer.kernel == "localized"):
            return self.score(batch)
        self._check_fitted()
        memory = self._memory()
        features = memory.find(batch)
        if features is None:
            features = self.scorer.features(batch)
            memory.keep(batch, features)
        return self._weighed(features, batch)

    def _memory(self) -> BatchMemory:
        """The kernel values of the fit so far; none are left if the metrics have changed."""
        memory: BatchMemory = self.kept.derived("memory", self._metrics(), lambda: BatchMemory(KEPT_BYTES))
        return memory

    def _metrics(self) -> list[Tensor]:
        """Everything that kernel values depend on, beside the lists."""
        return [*self.scorer.parameters(), *self.scorer.buffers()]

    def _weighed(self, features: Tensor, batch: Batch) -> Tensor:
        return self.scorer.combine(features, self.weighting.of(batch, features), batch)

    def _check_fitted(self) -> None:
        if len(self.factors) == 0:
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit first")

    @property
    def has_groups(self) -> bool:
        return isinstance(self.scorer, GroupScorer) and len(self.tau) > 1

    def groups_of(self, batch: Batch) -> Tensor:
        """The group (Q,) with the largest share in each list."""
        assert isinstance(self.scorer, GroupScorer)
        return self.scorer.shares(batch)[:, 1:].argmax(1)  # metric 0 is that of all lists

    def training_scores(self, x: Tensor, offsets: Tensor, query: Tensor, **given: Tensor) -> Tensor:
        """Scores (N,) of training lists with the weights that `weights="per_query"` learned for them from their labels.

        Use them to look at a fit, never to measure it. `query (Q,)` are the positions of the lists in the training set.
        """
        self._check_fitted()
        batch = self.inputs(x, offsets, query=query, **given)
        features = self.scorer.features(batch)
        return self.scorer.combine(features, self.weighting.learned(self.weights, batch, features), batch)

    def compiled(
        self, *, rank: int | None = None, tolerance: float | None = None, **options: Any
    ) -> CompiledScorer | CompiledGroups:
        """A fast scorer of transformed rows, without the metrics that have weight 0; see `compile_scorer`.

        With `rank` or `tolerance` the metrics are truncated, with the mean and covariance of the training rows. With
        groups of similar queries it takes the offsets of whole lists too, see `CompiledGroups`.
        """
        self._check_fitted()
        weights = self.weighting.constant()
        if isinstance(self.scorer, GroupScorer) and not self.by_query:
            return CompiledGroups(self.scorer, self.weights)
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
        return (
            self.groups == "random"
            and not self.by_query
            and self.scorer.kernel != "localized"
            and self.weighting.constant() is not None
        )

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
        there = {name: part for name, part in given.items() if part is not None}
        wide = {name: part.double() if part.is_floating_point() else part for name, part in there.items()}
        return self.parts_of(self.inputs(x.double(), offsets, **wide), pairs)

    def parts_of(self, batch: Batch, pairs: Tensor) -> Tensor:
        """`explain` for entries of a batch of transformed rows in float64."""
        self._check_fitted()
        lists = lists_of_pairs(pairs, batch.offsets, len(batch.labels))
        scorer, weighting = deepcopy(self.scorer).double(), deepcopy(self.weighting).double()
        features = scorer.features(batch)
        terms = scorer.terms(features, weighting.of(batch, features), batch)
        return explain_differences(terms, scorer.forms(batch, pairs, lists), pairs)

    # ---- the choice of settings ---------------------------------------------------------------------------------

    def settle(self, train: RankingSet, val: RankingSet | None, prepared: Prepared) -> None:
        """Choose the options that were not given, and the transform."""
        if self.groups == "random":
            return
        self.choice, self.findings = settle(self.transform, self.given, self.options, train, val, prepared)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"choice": None if self.choice is None else asdict(self.choice)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.choice = None if state["choice"] is None else Setting(**state["choice"])

    # ---- learning -----------------------------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        store(self.scorer, factors=lists.zeros(0))

    def open(self, lists: TrainingLists) -> None:
        self.kept.derived = Derived()
        if self.mode == "sgd" and lists.world > 1:
            raise ValueError(
                f"mode=sgd takes one step after another, in one process, got {lists.world}: use mode=full on several"
            )
        if self.mode == "sgd" and self.scorer.kernel == "localized" and not lists.lists.has_queries:
            raise ValueError("mode=sgd needs scores linear in the weights: use mode=full with kernel=localized")

    def round(self, lists: TrainingLists, number: int) -> Round:
        if len(self.factors) == 0:
            return self._closed_form(lists) if self.groups == "random" else self._group_form(lists)
        return self._sampled_round(lists, number) if self.mode == "sgd" else self._full_round(lists)

    def _group_form(self, lists: TrainingLists) -> Round:
        """Groups of similar queries, their metrics and scales in closed form; those of the groups have weight 1."""
        setting = cast(Setting, self.choice)
        draft = deepcopy(cast(GroupScorer, self.scorer))
        first = draft.fit(lists, setting, replace(self.options, t=setting.t, ridge=setting.ridge))
        self.scale.zero_()
        self.step.zero_()
        store(self.weighting, values=first)
        found = dict(draft.named_buffers()) | dict(draft.named_parameters())
        factors = found.pop("factors")
        store(self.scorer, **found, factors=factors)  # factors last: with them it is fitted
        if len(self.weights) == 1:
            return self._ended("one metric per query leaves nothing to weigh")
        return Round(False, findings=self.findings)

    def _ended(self, reason: str) -> Round:
        return Round(True, findings=self.findings | {"ended": reason})

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
        """One projected gradient step on the mean of the exact WARP loss over the lists that have different labels. If
        no step lowers the loss by a ten-thousandth, the fit has converged."""
        scale, point = self._phi_scale(lists), self.weights.detach().clone()
        known: Any = getattr(self.kept, "slopes", None) or self._objective(lists, point, scale=scale)
        loss, gradient = known
        if not gradient.any():
            return self._ended("the WARP loss has no slope")
        limit = self.lr * point.abs().max() / gradient.abs().max()
        found = search_step(
            point,
            loss,
            gradient,
            torch.where(self.step > 0, torch.minimum(self.step, limit), limit),
            evaluate=partial(self._objective, lists, scale=scale),
            project=lambda new: self._projected(new).to(point.dtype),  # as it is stored
        )
        if found is None:
            return self._ended("no step lowers the WARP loss")
        if self.groups == "similar" and not self._gains(lists, point, found.point):
            return self._ended("a WARP round did not raise NDCG@10 of the training lists")
        self.weights.copy_(found.point)
        self.scale.copy_(scale)
        self.kept.scaled = True
        self.step.copy_(found.length)
        self.kept.slopes = None if found.slopes is None else (found.value, found.slopes)
        ended = {"ended": "a WARP round hardly lowered the loss"} if found.small else {}
        return Round(found.small, {"train/loss": found.value}, findings=self.findings | ended)

    def _gains(self, lists: TrainingLists, old: Tensor, new: Tensor) -> bool:
        """Whether NDCG@10 of the training lists is larger with the new weights than with the old ones."""
        features = self._training_features(lists)

        def gain(batch: Batch) -> Tensor:
            scores = features(batch) @ torch.stack((old, new), 1).to(self.factors.dtype)
            values = by_column(ndcg, scores, batch.labels, batch.offsets, k=10, empty=0.0).double()
            return (values[:, 1] - values[:, 0]).sum()

        return bool(lists.total(gain) > 1e-9)

    def _objective(
        self, lists: TrainingLists, values: Tensor, with_slopes: bool = True, *, scale: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Mean exact WARP loss of the training lists, and its gradient in `values`."""
        features = self._training_features(lists)

        def sums(batch: Batch) -> tuple[Tensor, ...]:
            found = features(batch)
            with torch.set_grad_enabled(with_slopes):
                point = values.clone().requires_grad_(with_slopes)
                scores = scale * self.scorer.combine(found, self.weighting.learned(point, batch, found), batch)
                losses = warp_loss(
                    scores,
                    batch.labels,
                    batch.lists,
                    margin=self.margin,
                    negatives=self.negatives,
                )
                slopes = torch.autograd.grad(losses.sum(), point) if with_slopes else ()
            count = has_pairs(batch.labels, batch.offsets).sum()
            return (losses.detach().double().sum(), count.double(), *(each.double() for each in slopes))

        loss, count, *slopes = lists.total(sums)
        return loss / count, slopes[0] / count if slopes else None

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
        self.kept.scaled = True
        return Round(done=False)

    def _projected(self, weights: Tensor) -> Tensor:
        return self.weighting.projected(weights) if self.nonneg else weights

    def _phi_scale(self, lists: TrainingLists) -> Tensor:
        """1 / mean standard deviation of the kernel values over the training entries, so that steps and the margin mean
        the same on all data. Where scores are not linear in the weights: that of the scores with all weights 1."""
        if getattr(self.kept, "scaled", False) or self.scale > 0:
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
        """`features` for the training batches in their order; kept from round to round as far as there is room."""
        memory, places = self._memory(), count()
        kept: list[Tensor] = self.kept.derived("training", self._metrics(), list)

        def features(batch: Batch) -> Tensor:
            place = next(places)
            if place < len(kept):
                return kept[place]
            found = self.scorer.features(batch)
            if place == len(kept) and memory.reserve(found.numel() * found.element_size()):
                kept.append(found)
            return found

        return features

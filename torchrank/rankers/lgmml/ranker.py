"""L-GMML: local geometric-mean metrics that rank (Su, King & Lyu, SIGIR 2017), in closed form and by WARP."""

from collections.abc import Callable
from copy import deepcopy
from itertools import count
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.kernels import KERNELS
from torchrank.functional.losses import warp_loss
from torchrank.functional.ragged import has_pairs
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.lgmml.compiled import CompiledScorer, compile_scorer
from torchrank.rankers.lgmml.explain import explain_differences, lists_of_pairs
from torchrank.rankers.lgmml.scorer import LocalScorer
from torchrank.rankers.lgmml.start import SAMPLE, check_scale, closed_form, distance_scale
from torchrank.rankers.lgmml.weights import WEIGHTS, MetricWeights
from torchrank.solvers.local_metrics.closed_form import MetricOptions
from torchrank.solvers.local_metrics.sources import found_in
from torchrank.solvers.local_metrics.warp import sampled_warp

KEPT_BYTES = 2**32  # kernel values of the training entries are kept up to this size, else computed in every round
HALVINGS = 30


class LGMML(RoundRanker):
    """Scores by weighted kernels of the distances to M anchors, each under a metric of its own:
    f(p) = sum_r weights_r phi(||p - a_r||_r / tau_r), higher is more relevant.

    The first round is a complete ranker with all weights 1, in closed form: metric r is the geometric mean S^-1 #_t D
    of the scatter of `queries_per_metric` drawn lists (`high` documents among each other, and against the low ones,
    each with `ridge`), its anchor the best real document (`best`), or the ideal one mu+ + kappa (mu+ - mu-)
    (`virtual`), or the better of both (`search`). Each later round is one WARP iteration on the weights: `full`, a
    projected gradient step that lowers the mean loss over all lists and changes no weight by more than `lr` times the
    largest; `sgd`, as many sampled steps as there are lists, of size `lr` / lists, falling to 0 over the rounds.

    `weights`: `shared` by all queries; `per_query`, a row for each training query, and for every other query the
    `fallback` (mean of the rows, ones, or the mean of the 10 nearest training queries by their documents' features);
    `amortized`, softplus of a linear function of the unlabelled documents of the list.

    With query vectors distances are those from the query: f(p) = sum_r weights_r phi(||p - x_q||_r / tau). With
    `kernel="localized"` f(p) = -(p - x_q)' M(q) (p - x_q), where M(q) is the sum of the metrics with the weights
    weights_r exp(-beta/2 ||x_q - a_r||_r / tau) (eq. 2 and 3; `beta=inf` takes the nearest anchor's metric alone).
    Without query vectors `localized` weighs at the document, and f(p) = -sum_r w_r z_r^2 / sum_r w_r.
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
        exclude_self: bool = False,
        distance: str = "mahalanobis",
        drop_query_constant: bool = False,
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
        transform: str | dict | list | None = "standard",
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
            exclude_self=exclude_self,
            distance=distance,
            drop_query_constant=drop_query_constant,
            seed=seed,
        )
        self.scorer, self.scale_by = LocalScorer(kernel, beta), check_scale(tau)
        self.nonneg, self.mode, self.margin, self.negatives, self.lr = nonneg, mode, margin, negatives, lr
        self._check(weights, fallback)
        self.register_buffer("sources", torch.zeros(0, 0, dtype=torch.int64))
        for name in ("row_mean", "row_covariance", "scale", "step"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self.weighting: MetricWeights = WEIGHTS[weights](fallback)
        self._compiled: tuple[CompiledScorer, ...] = ()
        self._forget()

    def _check(self, weights: str, fallback: str) -> None:
        chosen = {
            "kernel": (self.scorer.kernel, (*KERNELS, "localized")),
            "weights": (weights, tuple(WEIGHTS)),
            "fallback": (fallback, ("mean", "ones", "knn")),
            "mode": (self.mode, ("full", "sgd")),
            "negatives": (self.negatives, ("lower", "zero")),
        }
        for name, (value, choices) in chosen.items():
            if value not in choices:
                raise ValueError(f"unknown {name}={value!r}: choose one of {', '.join(choices)}")
        if self.scorer.kernel == "localized" and not self.nonneg:
            raise ValueError("kernel=localized divides by the sum of the weights: it needs nonneg=true")
        if self.mode == "sgd" and weights == "amortized":
            raise ValueError("mode=sgd needs scores linear in what is learned: use mode=full with weights=amortized")
        if self.scorer.beta <= 0 or self.lr <= 0 or (self.mode == "full" and self.lr >= 1):
            raise ValueError(f"beta={self.scorer.beta} and lr={self.lr} must be positive, lr below 1 in mode=full")

    # ---- scoring ------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Tensor:
        """What WARP learned: (M,) shared, (training lists, M) per query, (M, 1 + M + D) amortized."""
        return self.weighting.values

    @property
    def factors(self) -> Tensor:
        """(M, D, k): metric r is F_r F_r'."""
        return self.scorer.factors

    @property
    def anchors(self) -> Tensor:
        return self.scorer.anchors

    @property
    def tau(self) -> Tensor:
        return self.scorer.tau

    def score(self, batch: Batch) -> Tensor:
        if len(self.factors) == 0 and self._trainer is not None and self._trainer.sanity_checking:
            return torch.zeros_like(batch.labels)  # Lightning looks at validation lists before the first round
        self._check_fitted()
        same = self.weighting.constant()
        if same is not None and batch.queries is not None and self.scorer.kernel == "localized":
            return self.scorer.query_scores(batch, same)
        return self._score(batch, self.scorer.features(batch))

    def _check_fitted(self) -> None:
        if len(self.factors) == 0:
            raise ValueError(f"this {type(self).__name__} is not fitted: it has no metric before its first round")

    def _score(self, batch: Batch, features: Tensor) -> Tensor:
        return self.scorer.combine(features, self.weighting.of(batch, features), batch)

    def training_scores(self, x: Tensor, offsets: Tensor, query: Tensor, **given: Tensor) -> Tensor:
        """Scores of training lists with the rows that `weights="per_query"` learned for them from their labels: to look
        at a fit, never to measure it. `query (Q,)` are their positions in the training set."""
        batch = self.inputs(x, offsets, query=query, **given)
        features = self.scorer.features(batch)
        return self.scorer.combine(features, self.weighting.learned(self.weights, batch, features), batch)

    def compiled(self, *, rank: int | None = None, tolerance: float | None = None, **options: Any) -> CompiledScorer:
        """A scorer of transformed rows that does nothing else, without the metrics of weight 0; see `compile_scorer`.

        With `rank` or `tolerance` the metrics are truncated, by the mean and covariance of the training rows."""
        self._check_fitted()
        weights = self.weighting.constant()
        if weights is None or self.scorer.kernel == "localized" or self.by_query:
            raise ValueError("only distances from anchors, in weights that all lists share, have a compiled form")
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

    def on_predict_start(self) -> None:
        slow = self.by_query or self.scorer.kernel == "localized" or self.weighting.constant() is None
        self._compiled = () if slow else (self.compiled(),)  # in a tuple it is no part of the checkpoint

    def predict_step(self, batch: Batch, batch_index: int) -> Tensor:
        if not self._compiled:
            return super().predict_step(batch, batch_index)
        with self.scoring():
            scores = self._compiled[0](batch.x)
        return batch.at_entries(scores)

    def explain(self, x: Tensor, offsets: Tensor, pairs: Tensor, **given: Tensor) -> Tensor:
        """What each metric and each (transformed) feature adds to score[first] - score[second], for entries
        `pairs (P, 2)` of one list, (P, M, D). All is computed in float64: the parts sum to the difference of the scores
        that the ranker and the rows give in float64."""
        wide = {name: part.double() if part.is_floating_point() else part for name, part in given.items()}
        batch = self.inputs(x.double(), offsets, **wide)
        lists = lists_of_pairs(pairs, offsets, len(batch.labels))
        scorer, weighting = deepcopy(self.scorer).double(), deepcopy(self.weighting).double()
        features = scorer.features(batch)
        terms = scorer.terms(features, weighting.of(batch, features), batch)
        rows: Any = batch.flat().x
        return explain_differences(terms, rows, scorer.factors, scorer.centres(batch, lists), pairs)

    # ---- learning -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.resize("scorer.factors", (0,))

    def on_fit_start(self) -> None:
        self._forget()
        super().on_fit_start()

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self._forget()

    def _forget(self) -> None:
        self._training: list[Tensor] | None = None  # kernel values of this process's batches, in their order
        self._latest: tuple[Tensor, Tensor, Tensor] | None = None  # weights, loss and gradient after the last round

    def round(self) -> bool:
        if len(self.factors) == 0:
            self._closed_form()
            return False
        return self._sampled_round() if self.mode == "sgd" else self._full_round()

    def _closed_form(self) -> None:
        """Metrics, anchors and scales; all weights are 1."""
        rows = self.sample_rows(SAMPLE, self.options.seed)
        found = closed_form(self, self.options, rows)
        train = self.data.sets["train"]
        made = {
            "scorer.factors": found.factors,
            "scorer.anchors": found.anchors,
            "scorer.tau": distance_scale(found, rows, self.scale_by, one=train.has_queries),
            "sources": found.sources,
            "weighting.live": (found.factors != 0).any(2).any(0),
            "row_mean": rows.mean(0),
            "row_covariance": rows.T.cov(correction=0).view(rows.shape[1], -1),
            "weighting.values": self.weighting.first(len(train), *found.factors.shape[:2]),
            **self.weighting.profiles_of(self),
        }
        self.store(made)
        self.scale.zero_()
        self.step.zero_()

    def _full_round(self) -> bool:
        """One projected gradient step on the mean of the exact WARP loss over the lists that have different labels, of
        half the length until the loss falls; converged where no step lowers it."""
        scale, point = self._phi_scale(), self.weights.detach().clone()
        if self._latest is None or not torch.equal(self._latest[0], point):
            self._latest = (point, *self._objective(point, scale))
        _, loss, gradient = self._latest
        if not gradient.any():
            return True
        limit = self.lr * point.abs().max() / gradient.abs().max()
        step = torch.where(self.step > 0, torch.minimum(2 * self.step, limit), limit)
        for _ in range(HALVINGS):
            new = self._projected(point - step * gradient)
            new_loss, new_gradient = self._objective(new, scale)
            if new_loss <= loss - 1e-4 * ((point - new) * gradient).sum() and new_loss < loss:
                break
            step = step / 2
        else:
            return True
        self._latest = (new, new_loss, new_gradient)
        self.log("train/loss", new_loss, prog_bar=True)
        self.weights.copy_(new)
        self.scale.copy_(scale)
        self.step.copy_(step)
        return False

    def _objective(self, values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Mean exact WARP loss of the training lists and its gradient in `values`."""
        features = self._training_features()

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
            lists = has_pairs(batch.labels, batch.offsets).sum()
            return losses.detach().double().sum(), gradient.double(), lists.double()

        loss, gradient, lists = self.total(slope)
        return loss / lists, gradient / lists

    def _sampled_round(self) -> bool:
        """As many steps of the paper's Algorithm 2 as there are lists with different labels, drawn with replacement."""
        if self.trainer.world_size > 1:
            raise ValueError("mode=sgd makes one step after another, in one process: use mode=full on several")
        if self.scorer.kernel == "localized" and not self.data.sets["train"].has_queries:
            raise ValueError("mode=sgd needs scores linear in the weights: use mode=full with kernel=localized")
        features, scale = self._training_features(), self._phi_scale()
        generator = torch.Generator().manual_seed(self.options.seed + self.trainer.current_epoch)
        usable = torch.from_numpy(self.data.sets["train"].pairs).nonzero().flatten()
        drawn = usable[torch.randint(len(usable), (len(usable),), generator=generator)].to(self.device)
        decay = 1 - (self.trainer.current_epoch - 1) / (self.rounds - 1)  # type: ignore[operator]
        step = self.lr * decay / (1 if self.weighting.each_list else len(usable))
        weights = self.weights.detach().clone()
        for batch in self.batches():
            lists, _, _ = found_in(batch, drawn[:, None])
            rows = batch.query if self.weighting.each_list else slice(None)
            weights[rows] = sampled_warp(
                features(batch) * scale,
                batch.labels,
                batch.offsets,
                weights[rows],
                lists,
                lr=torch.full((len(lists),), step),
                margin=self.margin,
                negatives=self.negatives,
                nonneg=self.nonneg,
                generator=generator,
            )
        self.weights.copy_(weights)
        self.scale.copy_(scale)
        return False

    def _projected(self, weights: Tensor) -> Tensor:
        return self.weighting.projected(weights) if self.nonneg else weights

    def _phi_scale(self) -> Tensor:
        """1 / mean deviation of the kernel values over the training entries, so that step and margin have one meaning
        for all data; of the scores with all weights 1, where these are not linear in the weights."""
        if self.scale > 0:
            return self.scale.clone()
        features = self._training_features()

        def sums(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
            values = features(batch)
            if not self.scorer.is_linear(batch):
                values = self.scorer.combine(values, torch.ones_like(values[0]), batch)[:, None]
            values = values.double()
            return torch.full_like(values[:1].sum(0), len(values)), values.sum(0), values.square().sum(0)

        count, total, squares = self.total(sums)
        deviation = (squares / count - (total / count).square()).clamp(min=0).sqrt().mean()
        return torch.where(deviation > 0, 1 / deviation, 1.0)

    def _training_features(self) -> Callable[[Batch], Tensor]:
        """`features` for the training batches in their order, kept from round to round where they are small enough."""
        places = count()
        train = self.data.sets["train"]
        numbers = int(train.lengths.sum()) // self.trainer.world_size * len(self.factors)
        if self._training is None and numbers * self.factors.itemsize <= KEPT_BYTES:
            self._training = []

        def features(batch: Batch) -> Tensor:
            place = next(places)
            if self._training is None:
                return self.scorer.features(batch)
            if place == len(self._training):
                self._training.append(self.scorer.features(batch))
            return self._training[place]

        return features

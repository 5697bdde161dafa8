"""LGMMLNet: L-GMML with everything trainable, started from the closed form."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.sets import RankingSet
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import check_choice
from torchrank.functional.ragged import per_entry
from torchrank.rankers.core.own import name_of
from torchrank.rankers.core.ranker import Prepared, TransformOption
from torchrank.rankers.lgmml.choice_of_settings import Setting, check_given, chosen_by_fit, settle
from torchrank.rankers.lgmml.compiled import CompiledScorer, compile_scorer
from torchrank.rankers.lgmml.grouped import GroupScorer
from torchrank.rankers.lgmml.scorer import (
    SAMPLE,
    check_scale,
    distance_forms,
    distance_scale,
    explain_differences,
    lists_of_pairs,
)
from torchrank.rankers.neural.local import LocalMetricScorer
from torchrank.rankers.neural.ranker import NeuralRanker
from torchrank.solvers.local_metrics.drawn_metrics import LocalMetrics, MetricOptions, local_metrics
from torchrank.solvers.local_metrics.groups import query_points, shares_of

CHOSEN = ("num_groups", "alpha", "gate", "t", "ridge", "kappa")  # options of the closed form that a fit chooses


class LGMMLNet(NeuralRanker):
    """L-GMML with everything trainable, by gradient, with any loss of the library.

    With `groups="similar"` it starts from the closed form of `LGMML` for groups of similar queries, whose settings the
    fit chooses, gate included: f(p) = sum_r share_r (weights_r phi(||F_r' p - b_r|| / tau_r) + u_r . p), where share_r
    is 1 for the metric of all queries and the share of the list in a group for the others. Groups stay as they are.

    With `groups="random"` it starts from metrics of lists drawn at random, with weights 1 and u = 0:
    f(p) = sum_r weights_r phi(||F_r' p - b_r|| / tau_r) + u . p.

    Args:
        num_features: number of columns of the rows.
        groups: similar or random.
        metrics: number of metrics of groups="random"; None: 32.
        rank: number of leading directions of each metric that are kept; None: all.
        kernel: phi, one of distance, rbf, laplace, paper and demo.
        beta: decay rate of rbf and laplace.
        tau: scale of the distances at the start: their median, q95 or max over the training rows, or a number.
        linear: whether there are linear terms.
        freeze: parts that are not trained: metrics, anchors, tau, weights, linear. With all of them frozen, the ranker
            is `LGMML` after its first round.
        closed_form: options of `LGMML` for the start: {"num_groups": 6, "alpha": 50} with groups="similar", or
            {"kappa": 3, "queries_per_metric": 20} with groups="random".
        loss: a key of `torchrank.functional.LOSSES`; or your own function, or its dotted name, as in `NeuralRanker`.
        loss_options: options of the loss, such as {"k": 10} of lambdarank.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.
        seed: random seed of the draws of lists and of anchor candidates.
        transform: feature transform, see `make_transform`; auto: chosen among standard and quantile, or standard with
            groups="random".

    Example:
        >>> from torchrank.data import synthetic_splits
        >>> sets = synthetic_splits(num_queries=30, num_features=10)
        >>> ranker = LGMMLNet(10, rank=3, closed_form={"num_groups": 2})
        >>> ranker.fit(sets["train"], epochs=2).scorer.factors.shape
        torch.Size([3, 10, 3])
    """

    takes = frozenset({"corpus"})
    scorer: LocalMetricScorer

    def __init__(
        self,
        num_features: int,
        groups: str = "similar",
        metrics: int | None = None,
        rank: int | None = None,
        kernel: str = "distance",
        beta: float = 2.0,
        tau: str | float = "median",
        linear: bool = True,
        freeze: list[str] | tuple[str, ...] = (),
        closed_form: dict[str, Any] | None = None,
        loss: str | Callable[..., Tensor] = "lambdarank",
        loss_options: dict[str, Any] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: str | dict[str, Any] = "Adam",
        scheduler: str | dict[str, Any] | None = None,
        seed: int = 0,
        transform: TransformOption = "auto",
    ):
        check_choice(("similar", "random"), groups=groups)
        if groups == "similar" and metrics is not None:
            raise ValueError(f"metrics={metrics} belongs to groups=random: set groups=random too")
        count, start = 32 if metrics is None else metrics, dict(closed_form or {})
        options = {"metrics": count, "rank": rank, "kernel": kernel, "beta": beta, "linear": linear}
        transform = "standard" if (groups, transform) == ("random", "auto") else transform
        function, loss = loss, loss if isinstance(loss, str) else name_of(loss)  # hyper-parameters hold names
        super().__init__(
            num_features, "local", function, transform, options, loss_options, lr, weight_decay, optimizer, scheduler
        )
        self.transform = chosen_by_fit(self.transform)
        self.groups = groups
        self.choice: Setting | None = None
        self.given: dict[str, Any] = {}
        if groups == "similar":
            self.given = {name.removeprefix("num_"): start.pop(name, None) for name in CHOSEN}
            check_given(self.given)
        self.options = MetricOptions(metrics=count, seed=seed, **start)
        self.scale_by = check_scale(tau)
        parts = {"metrics": "factors", "anchors": "shifts", "tau": "log_tau", "weights": "weights", "linear": "linear"}
        if unknown := set(freeze) - parts.keys():
            raise ValueError(f"cannot freeze {', '.join(sorted(unknown))}: choose from {', '.join(parts)}")
        parameters = dict(self.scorer.named_parameters())
        for name in freeze:
            if parts[name] in parameters:
                parameters[parts[name]].requires_grad_(False)
        self.step_token = torch.nn.Parameter(torch.empty(0))  # there is a gradient even if everything is frozen

    def settle(self, train: RankingSet, val: RankingSet | None, prepared: Prepared) -> None:
        """Choose the options of the closed form that were not given, and the transform."""
        if self.groups == "similar":
            self.choice, self.findings = settle(self.transform, self.given, self.options, train, val, prepared)

    def start(self, lists: TrainingLists) -> None:
        """Start from the closed form, in the directions with most of the mean squared distance from the anchor."""
        super().start(lists)
        rows = lists.sample_rows(SAMPLE, self.options.seed)
        if self.groups == "similar":
            self._start_groups(lists, rows)
        else:
            found = local_metrics(lists, self.options, rows[0])
            self._write(found, rows, torch.ones(len(found.factors)))
            if self.scorer.linear is not None:
                self.scorer.linear.zero_()

    def _start_groups(self, lists: TrainingLists, rows: Tensor) -> None:
        """The scores of the closed form: in the linear limit by the linear terms, and the metrics have weight 0."""
        setting, form = cast(Setting, self.choice), GroupScorer().to(lists.device).double()
        first = form.fit(lists, setting, replace(self.options, t=setting.t, ridge=setting.ridge)).to(form.tau)
        is_linear = form.is_linear_limit and self.scorer.linear is not None
        kappa = self.options.kappa if form.is_linear_limit else setting.kappa
        found = LocalMetrics(form.factors.data, form.anchors + kappa * form.deltas, torch.zeros(0))
        tau = distance_scale(found, rows, self.scale_by)
        self._write(found, rows, torch.zeros_like(first) if is_linear else first * tau / form.tau)
        store(self.scorer, centres=form.centres, width=form.width)
        if self.scorer.linear is not None:
            store(self.scorer, linear=(first / form.tau)[:, None] * form.slopes * is_linear)

    def _write(self, found: LocalMetrics, rows: Tensor, weights: Tensor) -> None:
        gaps = rows.mean(0) - found.anchors  # (M, D)
        moments = rows.T.cov(correction=0).view(rows.shape[1], -1) + gaps[:, :, None] * gaps[:, None]
        turn = torch.linalg.eigh(found.factors.mT @ moments @ found.factors).eigenvectors.flip(-1)
        rank = self.scorer.factors.shape[2]
        factors = found.factors @ turn[:, :, :rank]
        largest = factors.gather(1, factors.abs().argmax(1, keepdim=True))
        factors = factors * torch.where(largest < 0, -1.0, 1.0)  # rounding must not decide the signs of directions
        missing = rank - factors.shape[2]  # directions of features that never vary
        shifts = torch.einsum("mdk,md->mk", factors, found.anchors)
        self.scorer.live.copy_((found.factors != 0).any(2).any(0))
        store(
            self.scorer,
            factors=pad(factors, (0, missing)),
            shifts=pad(shifts, (0, missing)),
            log_tau=distance_scale(found, rows, self.scale_by).log(),
            weights=weights,
        )

    def _shares(self, batch: Batch) -> Tensor:
        """The share (Q, M) of each metric in each list, in float64."""
        shares = shares_of(query_points(batch), self.scorer.centres.double(), self.scorer.width.double())
        return shares if len(self.scorer.weights) == 1 else pad(shares, (1, 0), value=1.0)

    @property
    def has_groups(self) -> bool:
        return self.groups == "similar" and len(self.scorer.weights) > 1

    def groups_of(self, batch: Batch) -> Tensor:
        """The group (Q,) with the largest share in each list."""
        return self._shares(batch)[:, 1:].argmax(1)  # metric 0 is that of all lists

    def score(self, batch: Batch) -> Tensor:
        if self.groups == "random":
            return super().score(batch)
        terms, shares = self.scorer.terms(batch.x), self._shares(batch)  # type: ignore[arg-type]
        if self.scorer.linear is not None:
            terms = terms + batch.x @ (self.scorer.linear * self.scorer.live).T.to(batch.x.dtype)
        terms = batch.at_entries(terms)
        return (terms * per_entry(shares, batch.offsets, len(terms)).to(terms.dtype)).sum(1)

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) + self.step_token.sum()

    def compiled(self, **options: Any) -> CompiledScorer:
        """A fast scorer of transformed rows, see `compile_scorer`. With `rank` or `tolerance`, give the `mean` and the
        `covariance` of such rows too."""
        scorer = self.scorer
        if self.groups == "similar":
            raise ValueError("only groups=random has a compiled form: with groups a score depends on the list")
        return compile_scorer(
            (scorer.factors * scorer.live[:, None]).detach(),
            scorer.shifts.detach(),
            scorer.log_tau.detach().exp(),
            scorer.weights.detach(),
            scorer.kernel,
            scorer.beta,
            linear=None if scorer.linear is None else (scorer.linear * scorer.live).detach(),
            **{"dtype": scorer.factors.dtype, **options},
        )

    def on_predict_start(self) -> None:
        if self.groups == "random":
            self.kept.compiled = self.compiled()

    def predict_step(self, batch: Batch, batch_index: int = 0) -> Tensor:
        if not hasattr(self.kept, "compiled"):
            return super().predict_step(batch, batch_index)
        return batch.at_entries(self.kept.compiled(batch.x))

    def on_predict_end(self) -> None:
        vars(self.kept).pop("compiled", None)

    def explain(self, x: Tensor, offsets: Tensor, pairs: Tensor, **given: Tensor) -> Tensor:
        """Why one document is ranked above another, as in `LGMML.explain`: (P, M + 1, D), with the linear term last."""
        return self.parts_of(self.inputs(x.double(), offsets, **given), pairs)

    @torch.no_grad()
    def parts_of(self, batch: Batch, pairs: Tensor) -> Tensor:
        """`explain` for entries of a batch of transformed rows in float64."""
        lists_of_pairs(pairs, batch.offsets, len(batch.labels))
        rows, scorer = batch.dense, deepcopy(self.scorer).double()
        terms, own = scorer.terms(rows), torch.ones(len(pairs), len(scorer.weights), dtype=torch.float64)
        if self.groups == "similar":
            shares = per_entry(self._shares(batch), batch.offsets, len(rows))
            terms, own = terms * shares, shares[pairs[:, 0]]
        form = distance_forms(rows, scorer.factors * scorer.live[:, None], scorer.shifts, pairs)
        parts = explain_differences(terms, form, pairs)
        slope = (
            torch.zeros_like(rows[:1])
            if scorer.linear is None
            else (scorer.linear * scorer.live).view(-1, len(rows[0]))
        )
        slope = own[:, :1] * slope if len(slope) == 1 else own @ slope
        return torch.cat((parts, ((rows[pairs[:, 0]] - rows[pairs[:, 1]]) * slope)[:, None]), 1)

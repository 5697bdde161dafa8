"""LGMMLNet: L-GMML with everything trainable, started from the closed form."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.rankers.lgmml.compiled import CompiledScorer, compile_scorer
from torchrank.rankers.lgmml.scorer import (
    SAMPLE,
    check_scale,
    distance_forms,
    distance_scale,
    explain_differences,
    lists_of_pairs,
)
from torchrank.rankers.neural import LocalMetricScorer, NeuralRanker
from torchrank.solvers.local_metrics.closed_form import MetricOptions, local_metrics


class LGMMLNet(NeuralRanker):
    """Scores documents by f(p) = sum_r weights_r phi(||F_r' p - b_r|| / tau_r) + u . p and is trained by gradient, with
    any loss of the library.

    Training starts from the closed form of `LGMML`: its metrics, anchors and `tau`, all weights 1, u = 0.

    Args:
        num_features: number of columns of the rows.
        metrics: number of metrics, M.
        rank: number of leading directions of each metric that are kept; None: all.
        kernel: phi, one of distance, rbf, laplace, paper and demo.
        beta: decay rate of rbf and laplace.
        tau: scale of the distances at the start: their median, q95 or max over the training rows, or a number.
        linear: whether there is a linear term u . p.
        freeze: parts that are not trained: metrics, anchors, tau, weights, linear. With all of them frozen, the ranker
            is `LGMML` after its first round.
        closed_form: options of `LGMML` for the start, such as {"kappa": 3, "queries_per_metric": 20}.
        loss: a key of `torchrank.functional.LOSSES`.
        loss_options: options of the loss, such as {"k": 10} of lambdarank.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.
        seed: random seed of the draws of lists and of anchor candidates.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import synthetic_splits
        >>> sets = synthetic_splits(num_queries=30, num_features=10)
        >>> ranker = LGMMLNet(10, metrics=4, rank=3, closed_form={"queries_per_metric": 5})
        >>> ranker.fit(sets["train"], epochs=2).scorer.factors.shape
        torch.Size([4, 10, 3])
    """

    takes = frozenset({"corpus"})
    scorer: LocalMetricScorer

    def __init__(
        self,
        num_features: int,
        metrics: int = 32,
        rank: int | None = None,
        kernel: str = "distance",
        beta: float = 2.0,
        tau: str | float = "median",
        linear: bool = True,
        freeze: list[str] | tuple[str, ...] = (),
        closed_form: dict[str, Any] | None = None,
        loss: str = "lambdarank",
        loss_options: dict[str, Any] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: str | dict[str, Any] = "Adam",
        scheduler: str | dict[str, Any] | None = None,
        seed: int = 0,
        transform: str | dict[str, Any] | list[Any] | None = "standard",
    ):
        options = {"metrics": metrics, "rank": rank, "kernel": kernel, "beta": beta, "linear": linear}
        super().__init__(
            num_features, "local", loss, transform, options, loss_options, lr, weight_decay, optimizer, scheduler
        )
        self.options = MetricOptions(metrics=metrics, seed=seed, **(closed_form or {}))
        self.scale_by = check_scale(tau)
        parts = {"metrics": "factors", "anchors": "shifts", "tau": "log_tau", "weights": "weights", "linear": "linear"}
        if unknown := set(freeze) - parts.keys():
            raise ValueError(f"cannot freeze {', '.join(sorted(unknown))}: choose from {', '.join(parts)}")
        parameters = dict(self.scorer.named_parameters())
        for name in freeze:
            if parts[name] in parameters:
                parameters[parts[name]].requires_grad_(False)
        self.step_token = torch.nn.Parameter(torch.empty(0))  # there is a gradient even if everything is frozen

    def start(self, lists: TrainingLists) -> None:
        """Start from the closed form, in the directions with most of the mean squared distance from the anchor."""
        super().start(lists)
        rows = lists.sample_rows(SAMPLE, self.options.seed)
        found = local_metrics(lists, self.options, rows[0])
        gaps = rows.mean(0) - found.anchors  # (M, D)
        moments = rows.T.cov(correction=0).view(rows.shape[1], -1) + gaps[:, :, None] * gaps[:, None]
        turn = torch.linalg.eigh(found.factors.mT @ moments @ found.factors).eigenvectors.flip(-1)
        count = min(self.scorer.factors.shape[2], turn.shape[2])
        factors = found.factors @ turn[:, :, :count]
        self.scorer.live.copy_((found.factors != 0).any(2).any(0))
        self.scorer.factors.zero_()
        self.scorer.shifts.zero_()
        self.scorer.factors[:, :, :count] = factors.to(self.scorer.factors.dtype)
        shifts = torch.einsum("mdk,md->mk", factors, found.anchors)
        self.scorer.shifts[:, :count] = shifts.to(self.scorer.shifts.dtype)
        self.scorer.log_tau.copy_(distance_scale(found, rows, self.scale_by).log())
        self.scorer.weights.fill_(1.0)
        if self.scorer.linear is not None:
            self.scorer.linear.zero_()

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) + self.step_token.sum()

    def compiled(self, **options: Any) -> CompiledScorer:
        """A fast scorer of transformed rows, see `compile_scorer`. With `rank` or `tolerance`, give the `mean` and the
        `covariance` of such rows too."""
        scorer = self.scorer
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
        self.kept.compiled = self.compiled()

    def predict_step(self, batch: Batch, batch_index: int = 0) -> Tensor:
        if not hasattr(self.kept, "compiled"):
            return super().predict_step(batch, batch_index)
        return batch.at_entries(self.kept.compiled(batch.x))

    def on_predict_end(self) -> None:
        vars(self.kept).pop("compiled", None)

    def explain(self, x: Tensor, offsets: Tensor, pairs: Tensor, **given: Tensor) -> Tensor:
        """Why one document is ranked above another, as in `LGMML.explain`: (P, M + 1, D), with the linear term last."""
        batch, scorer = self.inputs(x.double(), offsets, **given), deepcopy(self.scorer).double()
        lists_of_pairs(pairs, offsets, len(batch.labels))
        rows = batch.dense
        form = distance_forms(rows, scorer.factors * scorer.live[:, None], scorer.shifts, pairs)
        parts = explain_differences(scorer.terms(rows), form, pairs)
        slope = torch.zeros_like(rows[0]) if scorer.linear is None else scorer.linear * scorer.live
        return torch.cat((parts, ((rows[pairs[:, 0]] - rows[pairs[:, 1]]) * slope)[:, None]), 1)

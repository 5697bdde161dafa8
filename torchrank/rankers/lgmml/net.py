"""LGMMLNet: L-GMML with everything trainable, started from the closed form."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.rankers.lgmml.compiled import CompiledScorer, compile_scorer
from torchrank.rankers.lgmml.explain import explain_differences, lists_of_pairs
from torchrank.rankers.lgmml.start import SAMPLE, check_scale, closed_form, distance_scale
from torchrank.rankers.neural import LocalMetricScorer, NeuralRanker
from torchrank.solvers.local_metrics.closed_form import MetricOptions


class LGMMLNet(NeuralRanker):
    """f(p) = sum_r weights_r phi(||F_r' p - b_r|| / tau_r) + u . p, trained by gradient with any loss of the library.

    Starts from the closed form of `LGMML` (whose options of the same names go into `closed_form`): the `rank` leading
    directions of each metric, anchors, `tau`, weights 1, u = 0. The names in `freeze` (metrics, anchors, tau, weights,
    linear) stay where they are; with all of them it is `LGMML` after its first round.
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
        closed_form: dict | None = None,
        loss: str = "lambdarank",
        loss_options: dict | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        seed: int = 0,
        transform: str | dict | list | None = "standard",
    ):
        options = {"metrics": metrics, "rank": rank, "kernel": kernel, "beta": beta, "linear": linear}
        super().__init__(num_features, "local", loss, transform, options, loss_options, lr, weight_decay)
        self.options = MetricOptions(metrics=metrics, seed=seed, **(closed_form or {}))
        self.scale_by = check_scale(tau)
        parts = {"metrics": "factors", "anchors": "shifts", "tau": "log_tau", "weights": "weights", "linear": "linear"}
        if unknown := set(freeze) - parts.keys():
            raise ValueError(f"cannot freeze {', '.join(sorted(unknown))}: choose among {', '.join(parts)}")
        parameters = dict(self.scorer.named_parameters())
        for name in freeze:
            if parts[name] in parameters:
                parameters[parts[name]].requires_grad_(False)
        self.step_token = torch.nn.Parameter(torch.empty(0))  # there is a gradient also where all is frozen

    def prepare(self) -> None:
        """The closed form, in the directions that hold most of the mean squared distance from the anchor."""
        rows = self.sample_rows(SAMPLE, self.options.seed)
        found = closed_form(self, self.options, rows)
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
        """The fast form for transformed rows, see `compile_scorer`; a `rank` or `tolerance` takes the `mean` and the
        `covariance` of such rows with it."""
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
        self._compiled = (self.compiled(),)  # in a tuple it is no part of the checkpoint

    def predict_step(self, batch: Batch, batch_index: int) -> Tensor:
        scores = self._compiled[0](batch.x)
        return batch.at_entries(scores)

    def explain(self, x: Tensor, offsets: Tensor, pairs: Tensor, **given: Tensor) -> Tensor:
        """As `LGMML.explain`, (P, M + 1, D): the last row is the linear term."""
        batch, scorer = self.inputs(x.double(), offsets, **given), deepcopy(self.scorer).double()
        lists_of_pairs(pairs, offsets, len(batch.labels))
        rows: Any = batch.flat().x
        parts = explain_differences(
            scorer.terms(rows), rows, scorer.factors * scorer.live[:, None], scorer.shifts, pairs
        )
        slope = torch.zeros_like(rows[0]) if scorer.linear is None else scorer.linear * scorer.live
        return torch.cat((parts, ((rows[pairs[:, 0]] - rows[pairs[:, 1]]) * slope)[:, None]), 1)

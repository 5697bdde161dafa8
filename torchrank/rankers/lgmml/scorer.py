"""Scores by kernels of the distances to anchors, each under a metric of its own: the model of L-GMML."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.kernels import KERNELS
from torchrank.functional.ragged import per_entry, segment_forms
from torchrank.rankers.lgmml.compiled import CompiledMetrics


class LocalScorer(nn.Module):
    """Kernel values of the entries under M metrics, and scores from them and weights. The parameters are closed form.

    Weights are (M,), or (Q, M) where the lists of a batch differ.
    """

    factors: nn.Parameter  # (M, D, k): metric r is F_r F_r'
    anchors: nn.Parameter  # (M, D)
    tau: nn.Parameter  # (M,)

    def __init__(self, kernel: str, beta: float):
        super().__init__()
        self.kernel, self.beta = kernel, beta
        for name in ("factors", "anchors", "tau"):
            self.register_parameter(name, nn.Parameter(torch.zeros(0), requires_grad=False))
        self._kept: dict[str, tuple[list, Any]] = {}

    def distances(self, batch: Batch) -> Tensor:
        """Distance (N, M) of each entry from each anchor, or under each metric from the query vector of its list."""
        if batch.queries is None:
            found = self._bank("anchors").distances(batch.x)  # type: ignore[arg-type]
            return batch.at_entries(found)
        return self._bank("origin").distances(self._gaps(batch))

    def features(self, batch: Batch) -> Tensor:
        """Kernel values (N, M) of the entries: what the weights multiply. For `localized` without query vectors, whose
        score is not linear in the weights, the scaled distances."""
        distances = self.distances(batch)
        if self.kernel != "localized":
            return KERNELS[self.kernel](distances / self.tau, self.beta)
        if batch.queries is None:
            return distances / self.tau
        return -per_entry(self.nearness(batch.queries), batch.offsets, len(distances)) * distances.square()

    def nearness(self, queries: Tensor, weights: Tensor | None = None) -> Tensor:
        """exp(-beta/2 ||x_q - a_r||_r / tau) of each query and metric, (Q, M), divided by the largest of a query (among
        the metrics that have a weight, where `weights (M,)` are given)."""
        return self._near(self._bank("anchors").distances(queries) / self.tau, weights)

    def _near(self, scaled: Tensor, weights: Tensor | None) -> Tensor:
        """exp(-beta/2 z) over the largest of a row: never all 0, also when beta is inf."""
        counted = scaled if weights is None else torch.where(weights != 0, scaled, torch.inf)
        farther = (scaled - counted.amin(1, keepdim=True)).clamp(min=0)
        return torch.where(farther == 0, 1.0, torch.exp(-self.beta / 2 * farther))

    def is_linear(self, batch: Batch) -> bool:
        """Whether scores are linear in the weights."""
        return self.kernel != "localized" or batch.queries is not None

    def combine(self, features: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        """Scores (N,) from kernel values (N, M) and weights."""
        weights = weights.to(features.dtype)
        if weights.dim() == 1 and self.is_linear(batch):
            return features @ weights
        return self.terms(features, weights, batch).sum(1)

    def terms(self, features: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        """What each metric adds to the score of each entry, (N, M)."""
        own = weights if weights.dim() == 1 else per_entry(weights, batch.offsets, len(features))
        if self.is_linear(batch):
            return features * own
        near = own * self._near(features, own)
        return -near * features.square() / near.sum(1, keepdim=True).clamp(min=torch.finfo(near.dtype).tiny)

    def query_scores(self, batch: Batch, weights: Tensor) -> Tensor:
        """`localized` scores -(p - x_q)' M(q) (p - x_q) with one metric formed for each query: no cost grows with M."""
        metrics = self._made("metrics", lambda: self.factors @ self.factors.mT)  # (M, D, D)
        near = self.nearness(batch.queries, weights) * weights.to(metrics.dtype)  # type: ignore[arg-type]
        own = (near @ metrics.flatten(1)).unflatten(1, metrics.shape[1:])
        return -segment_forms(self._gaps(batch).to(own.dtype), own, batch.offsets)

    def centres(self, batch: Batch, lists: Tensor) -> Tensor:
        """Images under the factors of what distances are from: anchors (M, k), or queries of these lists (P, M, k)."""
        if batch.queries is None:
            return self.shifts()
        return torch.einsum("mdk,pd->pmk", self.factors.double(), batch.queries[lists].double())

    def shifts(self) -> Tensor:
        """F_r' a_r, (M, k)."""
        return torch.einsum("mdk,md->mk", self.factors.double(), self.anchors.double())

    def _gaps(self, batch: Batch) -> Tensor:
        rows: Any = batch.flat().x
        return rows - per_entry(batch.queries, batch.offsets, len(rows))  # type: ignore[arg-type]

    def _bank(self, around: str) -> CompiledMetrics:
        """Distances from the anchors or from the origin."""

        def make() -> CompiledMetrics:
            shifts = self.shifts() if around == "anchors" else self.factors.new_zeros(self.factors.shape[::2])
            return CompiledMetrics(self.factors, shifts, dtype=self.factors.dtype)

        return self._made(around, make)

    def _made(self, name: str, make: Callable) -> Any:
        """Something made of factors and anchors, made again when one of these has changed."""
        state = [(tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in (self.factors, self.anchors)]
        if name not in self._kept or self._kept[name][0] != state:
            self._kept[name] = (state, make())
        return self._kept[name][1]

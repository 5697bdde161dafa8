"""Scores by kernels of the distances to anchors, each under a metric of its own: the model of L-GMML."""

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import Derived
from torchrank.functional.ragged import list_ids, per_entry, segment_forms
from torchrank.rankers.lgmml.compiled import CompiledMetrics
from torchrank.rankers.lgmml.kernels import KERNELS
from torchrank.solvers.local_metrics.drawn_metrics import LocalMetrics

SAMPLE = 10_000  # training rows from which scales are taken
QUANTILES = {"median": 0.5, "q95": 0.95, "max": 1.0}


class LocalScorer(nn.Module):
    """Kernel values of the entries under M metrics, and scores from these values and weights. Its parameters are set in
    closed form.

    Weights are (M,), or (Q, M) where the lists of a batch have different ones.
    """

    factors: nn.Parameter  # (M, D, k): metric r is F_r F_r'
    anchors: nn.Parameter  # (M, D)
    tau: nn.Parameter  # (M,)

    def __init__(self, kernel: str, beta: float):
        super().__init__()
        self.kernel, self.beta = kernel, beta
        for name in ("factors", "anchors", "tau"):
            self.register_parameter(name, nn.Parameter(torch.zeros(0), requires_grad=False))
        self.derived = Derived()

    def distances(self, batch: Batch) -> Tensor:
        """Distances (N, M) of the entries from each anchor, or under each metric from the query of their list."""
        if batch.queries is None:
            found = self._bank("anchors").distances(batch.x)  # type: ignore[arg-type]
            return batch.at_entries(found)
        return self._bank("origin").distances(self._gaps(batch))

    def features(self, batch: Batch) -> Tensor:
        """Kernel values (N, M) of the entries, which the weights multiply. For `localized` without query vectors, whose
        scores are not linear in the weights: the scaled distances."""
        distances = self.distances(batch)
        if self.kernel != "localized":
            return KERNELS[self.kernel](distances / self.tau, self.beta)
        if batch.queries is None:
            return distances / self.tau
        return -per_entry(self.nearness(batch.queries), batch.offsets, len(distances)) * distances.square()

    def nearness(self, queries: Tensor, weights: Tensor | None = None) -> Tensor:
        """exp(-beta/2 ||x_q - a_r||_r / tau) of each query and metric (Q, M), divided by the largest one of the query;
        with `weights (M,)`, by the largest one of a metric with a non-zero weight."""
        return self._near(self._bank("anchors").distances(queries) / self.tau, weights)

    def _near(self, scaled: Tensor, weights: Tensor | None) -> Tensor:
        """exp(-beta/2 z) divided by the largest value of each row, so that no row is all 0, even for beta=inf."""
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
        """The term (N, M) that each metric adds to the score of each entry."""
        own = weights if weights.dim() == 1 else per_entry(weights, batch.offsets, len(features))
        if self.is_linear(batch):
            return features * own
        near = own * self._near(features, own)
        return -near * features.square() / near.sum(1, keepdim=True).clamp(min=torch.finfo(near.dtype).tiny)

    def query_scores(self, batch: Batch, weights: Tensor) -> Tensor:
        """`localized` scores -(p - x_q)' M(q) (p - x_q), with one metric formed for each query: no cost per entry grows
        with M."""
        metrics = self.derived("metrics", [self.factors], lambda: self.factors @ self.factors.mT)  # (M, D, D)
        near = self.nearness(batch.queries, weights) * weights.to(metrics.dtype)  # type: ignore[arg-type]
        own = (near @ metrics.flatten(1)).unflatten(1, metrics.shape[1:])
        return -segment_forms(self._gaps(batch).to(own.dtype), own, batch.offsets)

    def forms(self, batch: Batch, pairs: Tensor, lists: Tensor) -> Tensor:
        """How the difference of two documents is divided over the features, see `explain_differences`; the pairs are of
        these lists (P,), and distances are measured from the anchors or from the queries of the lists."""
        shifts = self.shifts()
        if batch.queries is not None:
            shifts = torch.einsum("mdk,pd->pmk", self.factors.double(), batch.queries[lists].double())
        return distance_forms(batch.dense, self.factors, shifts, pairs)

    def shifts(self) -> Tensor:
        """F_r' a_r, (M, k)."""
        return torch.einsum("mdk,md->mk", self.factors.double(), self.anchors.double())

    def _gaps(self, batch: Batch) -> Tensor:
        """Differences (N, D) of the entries and the query vectors of their lists."""
        rows = batch.dense
        return rows - per_entry(batch.queries, batch.offsets, len(rows))  # type: ignore[arg-type]

    def _bank(self, around: str) -> CompiledMetrics:
        """The metrics in a form that computes distances from the anchors, or from the origin."""

        def make() -> CompiledMetrics:
            shifts = self.shifts() if around == "anchors" else self.factors.new_zeros(self.factors.shape[::2])
            return CompiledMetrics(self.factors, shifts, dtype=self.factors.dtype)

        return self.derived(around, [self.factors, self.anchors], make)


def check_scale(by: str | float) -> str | float:
    """The option `tau`, which must be the name of a quantile or a positive number."""
    if isinstance(by, str) and by not in QUANTILES:
        raise ValueError(f"unknown tau={by!r}: choose one of {', '.join(QUANTILES)} or a number")
    if not isinstance(by, str) and not 0 < by < torch.inf:
        raise ValueError(f"tau must be > 0 and finite, got {by}")
    return by


def distance_scale(found: LocalMetrics, rows: Tensor, by: str | float, *, one: bool = False) -> Tensor:
    """tau (M,): a quantile of the distances of `rows` from each anchor (with `one`, from all anchors), or a number."""
    if not isinstance(by, str):
        return found.anchors.new_full((len(found.anchors),), by)
    shifts = torch.einsum("mdk,md->mk", found.factors, found.anchors)
    distances = CompiledMetrics(found.factors, shifts, dtype=torch.float64).distances(rows)
    distances = distances.flatten()[:, None] if one else distances
    ordered, place = distances.sort(0).values, QUANTILES[by] * (len(distances) - 1)
    low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    tau = torch.lerp(low, high, place - int(place)).expand(len(found.anchors))
    return torch.where(tau > 0, tau, 1.0)


def distance_forms(rows: Tensor, factors: Tensor, shifts: Tensor, pairs: Tensor) -> Tensor:
    """(a - b)_j [F_r (F_r' (a + b) - 2 shift_r)]_j (P, M, D) for documents a and b, which sum to the difference of
    their squared distances ||F_r' x - shift_r||^2. `shifts` are (M, k), or (P, M, k) where lists have different
    ones."""
    first, second = pairs.unbind(1)
    gap, both = rows[first] - rows[second], rows[first] + rows[second]
    image = torch.einsum("mdk,pmk->pmd", factors, torch.einsum("mdk,pd->pmk", factors, both) - 2 * shifts)
    return gap[:, None] * image


def explain_differences(terms: Tensor, form: Tensor, pairs: Tensor) -> Tensor:
    """Contributions (P, M, D) that sum to the score differences, first minus second, of the entries `pairs (P, 2)`.

    `terms (N, M)` sum to the scores. The difference of a term is split over the features in proportion to `form
    (P, M, D)`; where that sums to 0, it is split equally.
    """
    first, second = pairs.unbind(1)
    total = form.sum(-1, keepdim=True)
    share = torch.where(total == 0, 1 / form.shape[-1], form / torch.where(total == 0, 1.0, total))
    return (terms[first] - terms[second])[:, :, None] * share


def lists_of_pairs(pairs: Tensor, offsets: Tensor, num_entries: int) -> Tensor:
    """The list (P,) of each pair of entries; a pair of two lists is refused."""
    lists = list_ids(offsets, num_entries)[pairs]
    if (lists[:, 0] != lists[:, 1]).any():
        pair = int((lists[:, 0] != lists[:, 1]).int().argmax())
        first, second = lists[pair].tolist()
        raise ValueError(f"both entries of a pair must be in one list, got lists {first} and {second} for pair {pair}")
    return lists[:, 0]

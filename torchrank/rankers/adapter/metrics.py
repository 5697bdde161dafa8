"""Adapters that are metrics: W in closed form (GMML) or of cutting planes (MLR, R-MLR), around the identity.

Every round is a whole fit with other settings, from which validation chooses; both sides are mapped by the root of W.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, check_number
from torchrank.functional.ragged import per_entry, segment_sum
from torchrank.functional.spd import gmml
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.metric.cutting_plane import CutRounds, Oracle
from torchrank.solvers.metric_scores import add_metric_psi, centred_rows, fills_table, metric_scores, table_places

if TYPE_CHECKING:
    from torchrank.rankers.adapter.ranker import Adapter

RIDGES = [10.0, 3.0, 1.0, 0.3, 0.1, 0.03]
STRENGTHS = [1.0, 10.0, 100.0, 1e3, 1e4]


class GeometricMeans(nn.Module):
    """W = (S + r I)^-1 #_t (D + r I), where S sums (q - d)(q - d)' over the relevant documents d of each query q, and D
    over all others; both are divided by their mean eigenvalue. A larger ridge r is nearer to the identity.

    Args:
        t: position between the inverse of S (0) and D (1).
        ridge: of each round.
    """

    def __init__(self, t: float = 0.5, ridge: float | list[float] | None = None):
        super().__init__()
        check_number(">= 0 and <= 1", t=t)
        self.t, self.path = t, list(ridge) if isinstance(ridge, list) else RIDGES if ridge is None else [ridge]
        for each in self.path:
            check_number("> 0", ridge=each)

    def start(self, adapter: Adapter, lists: TrainingLists) -> None:
        """There is nothing to remember."""

    def open(self, adapter: Adapter, lists: TrainingLists) -> None:
        """Both scatters, which are the same in every round."""
        adapter.kept.scatters = query_scatters(lists)

    def metric(self, adapter: Adapter, lists: TrainingLists, number: int) -> tuple[Tensor, Round]:
        """The metric of the `number`-th setting, from 0."""
        ridge = self.path[number]
        eye = torch.eye(adapter.num_features, dtype=torch.float64, device=lists.device)
        similar, dissimilar = (scatter + ridge * eye for scatter in adapter.kept.scatters)
        found = gmml(similar, dissimilar, self.t)
        done = number + 1 == len(self.path)
        return found / found.diagonal().mean(), Round(done, findings={"ridge": ridge, "t": self.t})


def query_scatters(lists: TrainingLists) -> tuple[Tensor, Tensor]:
    """Scatters (D, D) of the differences of queries from relevant and from other documents, each query counting once.

    They are sums of products of matrices, however many documents a list has, and have a mean eigenvalue of 1.
    """
    width = lists.lists.num_features

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        relevant = batch.labels > 0
        counts = segment_sum(torch.stack((relevant, ~relevant), 1).double(), batch.offsets)
        both = (counts > 0).all(1)
        shares = torch.where(both[:, None], 1 / counts.clamp(min=1), 0.0)
        weights = per_entry(shares, batch.offsets, len(batch.labels))
        weights = torch.stack((weights[:, 0] * relevant, weights[:, 1] * ~relevant))
        for target, each in zip(into, weights, strict=True):
            add_differences(batch, each, target)

    similar, dissimilar = lists.total(add, into=(lists.zeros(width, width), lists.zeros(width, width)))
    if not float(similar.trace()) > 0:
        raise DataError("no training query has both relevant and other documents: there is nothing to learn from")
    return similar / similar.diagonal().mean(), dissimilar / dissimilar.diagonal().mean()


def add_differences(batch: Batch, weights: Tensor, into: Tensor) -> None:
    """into (D, D) += the sum over entries of weight (q - d)(q - d)'."""
    rows, queries = centred_rows(batch)
    if not fills_table(batch):
        gaps = batch.at_entries(rows) - per_entry(queries, batch.offsets, len(weights))
        into += gaps.T @ (weights[:, None] * gaps)
        return
    table = weights.new_zeros(batch.num_lists * len(rows)).index_add_(0, table_places(batch), weights)
    table = table.view(batch.num_lists, len(rows))
    cross = queries.T @ (table @ rows)
    into += rows.T @ (table.sum(0)[:, None] * rows) + queries.T @ (table.sum(1)[:, None] * queries) - cross - cross.T


class CuttingPlanes(nn.Module):
    """MLR, or with `robust` R-MLR, whose regulariser is 0 at the identity: C = 0 changes nothing.

    Args:
        width: numbers of a vector.
        robust: whether most features shall stay as they are, by `lam` times the norms of the rows of W - I.
        measure: auc, map, mrr, precision or ndcg.
        k: cut-off of precision and ndcg; None: 3.
        C: weight of the hinge in each round.
        lam: weight of the norms of the rows.
        eps: a fit ends when its minimum is known to within C eps.
        cuts: most cuts of a fit.
    """

    def __init__(
        self,
        width: int,
        robust: bool,
        measure: str = "map",
        k: int | None = None,
        C: float | list[float] | None = None,
        lam: float = 0.1,
        eps: float = 1e-2,
        cuts: int = 50,
    ):
        super().__init__()
        self.path = list(C) if isinstance(C, list) else STRENGTHS if C is None else [C]
        check_number(">= 0", lam=lam, **{f"C[{place}]": each for place, each in enumerate(self.path)})
        options = {"regulariser": "l21" if robust else "fro", "lam": lam, "eps": eps, "stabilise": 0.3}
        strengths = [each for each in self.path if each > 0] or STRENGTHS[:1]
        self.cuts = CutRounds((width, width), Oracle.make(measure, k, 1), strengths, cuts, options)

    def start(self, adapter: Adapter, lists: TrainingLists) -> None:
        """Forget all cuts."""
        self.cuts.start(lists, (adapter.num_features, adapter.num_features))

    def open(self, adapter: Adapter, lists: TrainingLists) -> None:
        """There is nothing to prepare."""

    def metric(self, adapter: Adapter, lists: TrainingLists, number: int) -> tuple[Tensor, Round]:
        """The metric of the `number`-th C, from 0."""
        eye, C = torch.eye(adapter.num_features, dtype=torch.float64, device=lists.device), self.path[number]
        done = number + 1 == len(self.path)
        if C == 0:
            return eye, Round(done, findings={"C": 0.0})
        place = sum(each > 0 for each in self.path[:number])
        plane, found = self.cuts.advance(lists, place, metric_scores, add_metric_psi, eye)
        self.cuts.write(plane)
        return plane.best, found._replace(done=done)

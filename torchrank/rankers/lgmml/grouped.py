"""Scores by the metrics of a list's path: of its group of similar queries, and of all queries."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrank.data.batch import Batch, unlabelled
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.functional.ragged import per_entry
from torchrank.rankers.lgmml.choice_of_settings import Setting
from torchrank.rankers.lgmml.far_anchors import deviations_of, far_scores
from torchrank.rankers.lgmml.scorer import LocalScorer, distance_forms
from torchrank.solvers.linear.scores import query_vectors
from torchrank.solvers.local_metrics.drawn_metrics import MetricOptions
from torchrank.solvers.local_metrics.groups import (
    Averages,
    averages,
    find_centres,
    nearest_centre,
    points_of,
    query_points,
    shares_of,
    shrink,
    solve_factors,
    sum_groups,
    within,
)


class GroupScorer(LocalScorer):
    """How much nearer than the mean relevant document an entry is to the anchor of each metric on the path of its list,
    in standard deviations of the training scores. Metric 0 is that of all lists and the others are those of the groups;
    with one group there is one metric.

    An anchor lies at mu+ + kappa (mu+ - mu-). In the limit of kappa to infinity the scores are linear,
    (x - mu+)' M delta / ||delta||_M with delta = mu+ - mu-. With query vectors the scores are minus the distances from
    the query. A list without labels is enough to know its group.
    """

    deltas: nn.Parameter  # (M, D) mu+ - mu-; `anchors` hold mu+
    kappa: Tensor  # ()
    centres: Tensor  # (C, D) of the groups
    width: Tensor  # () variance of the points of a group for the soft gate; 0: hard gate

    def __init__(self) -> None:
        super().__init__("distance", 1.0)
        self.register_parameter("deltas", nn.Parameter(torch.zeros(0), requires_grad=False))
        for name in ("kappa", "centres", "width"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def shares(self, batch: Batch) -> Tensor:
        """The share (Q, M) of each metric in each list: 1 for that of all lists, the gate for those of the groups."""
        found = shares_of(query_points(batch), self.centres.double(), self.width.double()).to(self.tau.dtype)
        return found if len(self.tau) == 1 else pad(found, (1, 0), value=1.0)

    def features(self, batch: Batch) -> Tensor:
        shares = per_entry(self.shares(batch), batch.offsets, len(batch.labels))
        return shares * self.nearness_of(batch, shares) / self.tau

    def nearness_of(self, batch: Batch, shares: Tensor) -> Tensor:
        """The scores (N, M) under each metric, before they are scaled; where a share is 0 they may be anything."""
        if batch.queries is not None:
            wide = batch._replace(x=batch.x.to(dtype=self.tau.dtype), queries=batch.queries.to(self.tau.dtype))
            return -self.distances(wide)
        rows, slopes, reach = batch.dense.to(self.tau.dtype), self.slopes, self.reach
        along = rows @ slopes.T - (self.anchors * slopes).sum(1)
        if self.is_linear_limit:
            return along
        squares = torch.zeros_like(along)
        for metric, factor in enumerate(self.factors):
            here = (shares[:, metric] > 0).nonzero().flatten()
            squares[here, metric] = ((rows[here] - self.anchors[metric]) @ factor).square().sum(1)
        return far_scores(along, squares, reach)

    @property
    def is_linear_limit(self) -> bool:
        """Whether kappa is infinite."""
        return self.derived("limit", [self.kappa], lambda: bool(self.kappa.isinf()))

    @property
    def slopes(self) -> Tensor:
        """M delta / ||delta||_M (M, D)."""
        return self.derived("slopes", [self.factors, self.deltas], lambda: self._solved()[0])

    @property
    def reach(self) -> Tensor:
        """The distance (M,) of each anchor from mu+, kappa ||delta||_M."""
        return self.derived("reach", [self.factors, self.deltas, self.kappa], lambda: self._solved()[1])

    def _solved(self) -> tuple[Tensor, Tensor]:
        factors = self.factors.double()
        images = torch.einsum("mdk,md->mk", factors, self.deltas.double())
        sizes = torch.linalg.vector_norm(images, dim=1)
        units = images / torch.where(sizes > 0, sizes, 1.0)[:, None]
        reach = torch.where(self.kappa.isinf(), torch.inf, self.kappa.double() * sizes)
        return torch.einsum("mdk,mk->md", factors, units).to(self.tau.dtype), reach.to(self.tau.dtype)

    def forms(self, batch: Batch, pairs: Tensor, lists: Tensor) -> Tensor:
        if batch.queries is not None:
            return super().forms(batch, pairs, lists)
        rows = batch.dense
        if self.is_linear_limit:
            return (rows[pairs[:, 0]] - rows[pairs[:, 1]])[:, None] * self.slopes
        anchors = self.anchors + self.kappa * self.deltas
        return distance_forms(rows, self.factors, torch.einsum("mdk,md->mk", self.factors, anchors), pairs)

    # ---- in closed form -----------------------------------------------------------------------------------------

    def fit(self, lists: TrainingLists, setting: Setting, options: MetricOptions) -> Tensor:
        """Learn groups, metrics and scales by this setting, in three passes over the lists.

        Returns:
            The first weights (M,): 1 for the metrics of the groups, 0 for that of all lists.
        """
        points = points_of(lists)
        centres = find_centres(points, setting.groups, options.seed)
        (sums,) = sum_groups(lists, [nearest_centre(points, centres)], [len(centres)], options.high)
        whole = averages(sums.added())
        found = shrink(sums, whole, setting.alpha)
        if len(centres) > 1:
            found = Averages(*(torch.cat(parts) for parts in zip(whole, found, strict=True)))
        soft = within(points, centres) if setting.gate == "soft" else torch.zeros(())
        factors = solve_factors(found, options)
        kappa, scale = torch.tensor(setting.kappa), torch.ones(len(factors))
        store(self, tau=scale, kappa=kappa, centres=centres, width=soft)
        store(self, anchors=found.high, deltas=found.delta, factors=factors)
        if len(centres) > 1:
            store(self, tau=deviations_of(lists, self._weighted))
        return torch.tensor([0.0] * (len(factors) > 1) + [1.0] * len(centres), dtype=torch.float64)

    def _weighted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The scores (N, M) of the entries under each metric, and the shares of their lists in it."""
        shares = per_entry(self.shares(batch), batch.offsets, len(batch.labels))
        return self.nearness_of(batch, shares).double(), shares.double()


class CompiledGroups(nn.Module):
    """The scores of a `GroupScorer` without query vectors. In the linear limit they take one product per document,
    since every list has one slope; with a finite kappa the scorer itself computes them.

    Args:
        scorer: a fitted scorer.
        weights: (M,) of its metrics.
    """

    weights: Tensor  # (M,)
    slopes: Tensor  # (M, D)
    constants: Tensor  # (M,)
    centres: Tensor  # (C, D)
    width: Tensor  # ()

    def __init__(self, scorer: GroupScorer, weights: Tensor):
        super().__init__()
        self.exact = None if scorer.is_linear_limit else deepcopy(scorer)
        self.register_buffer("weights", weights.detach().clone())
        slopes = weights.double()[:, None] * scorer.slopes.double() / scorer.tau.double()[:, None]
        self.register_buffer("slopes", slopes)
        self.register_buffer("constants", (slopes * scorer.anchors.double()).sum(1))
        self.register_buffer("centres", scorer.centres.double().clone())
        self.register_buffer("width", scorer.width.double().clone())

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Scores (N,) of transformed rows (N, D) of whole lists."""
        if self.exact is not None:
            batch = unlabelled(x, offsets)
            return self.exact.combine(self.exact.features(batch), self.weights, batch)
        shares = shares_of(query_vectors(x, offsets), self.centres, self.width)
        shares = shares if len(self.slopes) == 1 else pad(shares, (1, 0), value=1.0)
        own = per_entry(shares @ self.slopes, offsets, len(x))
        return ((x.double() * own).sum(1) - per_entry(shares @ self.constants, offsets, len(x))).to(x.dtype)

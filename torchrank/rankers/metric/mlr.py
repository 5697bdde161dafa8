"""MLR: metric learning to rank by a structural SVM (McFee & Lanckriet, ICML 2010), solved to a certificate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import Derived, store
from torchrank.data.training import TrainingLists
from torchrank.errors import ConvergenceWarning, check_choice, check_integer, check_number
from torchrank.rankers.core.ranker import TransformOption, warn
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.core.selection import keep_nearest
from torchrank.rankers.metric import DistanceRanker
from torchrank.rankers.metric.cutting_plane import CutRounds, Oracle
from torchrank.solvers.metric_scores import add_diagonal_psi, add_metric_psi, metric_scores

FORMS = ("trace", "fro", "l21", "diagonal")
ROUNDING = 1e-12  # share of the largest eigenvalue of an anchor that may lie below 0
KEPT = 2**23  # with at most so many entries, lists are made once and not in every round


class MLR(DistanceRanker):
    """Ranks by the distance from the query under a metric W: s = -(q - x)' W (q - x), and minimises over W >= 0

        Omega(W) + C mean over queries of max_y [1 - measure(y) - <W, psi(y*) - psi(y)>]

    where y runs over all rankings of the query's list and y* puts all relevant entries first. Lists with only one class
    do not count. A round is one cut. The fit ends when the upper bound (the objective of `metric`, the best W so far)
    and the lower bound of the minimum differ by at most C eps. W = 0 is the minimum when C is small, and with precision
    and ndcg often at every C: `neighbours` and `anchor` are remedies. With an anchor C may be 0: W is the anchor then.

    Args:
        num_features: number of columns of the rows.
        measure: auc, map, mrr, precision or ndcg.
        k: cut-off of precision and ndcg; None: 3.
        C: weight of the hinge; larger fits the training lists more. A list makes a path: each round is a whole fit of
            at most `rounds` cuts that starts with all cuts of the fits before it, and validation chooses one of them.
            The released MATLAB code divides Omega by D: this C is D times its C.
        regulariser: trace (Omega = tr W: low rank), fro (|W|_F^2 / 2), l21 (tr W + lam sum of row norms: features drop
            out, R-MLR), or diagonal (the trace of a diagonal W). With an anchor, fro is |W - anchor|_F^2 / 2, and l21
            adds lam times the sum of the row norms of W - anchor to that: features keep their rows of the anchor.
        lam: weight of the row norms of l21.
        threshold: lowest relevant grade, or sweep: the mean over all thresholds that split a list.
        eps: the fit ends when the minimum is known to within C eps.
        stabilise: how far the next probe goes from the best point towards the minimum under the cuts; 1 is the paper's
            algorithm.
        neighbours: learn only from this many nearest relevant entries of each query, and from three times as many
            nearest others; None: learn from all entries.
        anchor: with regulariser="fro" or "l21", a multiple of the identity, or a positive semi-definite matrix as
            nested lists, to which W is pulled and where the fit starts; None: W is pulled to 0.
        rounds: maximum number of cuts; on a path, for each C.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data.relevance import SameClass
        >>> from torchrank.data.sets import RankingSet
        >>> x = torch.tensor([[0.0, 5.0], [0.1, -3.0], [1.0, 4.0], [1.1, -4.0]])
        >>> classes = torch.tensor([0, 0, 1, 1])  # the first feature tells them apart
        >>> points = RankingSet(x, SameClass(classes, classes, ("a", "b"), own=torch.arange(4)), queries=x)
        >>> ranker = MLR(2, C=10.0, transform=None).fit(points)
        >>> ranked = ranker.rank(x, torch.tensor([0, 4]), queries=torch.tensor([[0.05, 9.0]]))
        >>> ranker.certificate.proved, classes[ranked]
        (True, tensor([0, 0, 1, 1]))
    """

    certified = True
    metric: nn.Parameter  # (D, D), or (D,) with regulariser="diagonal", of the transformed features

    def __init__(
        self,
        num_features: int,
        measure: str = "map",
        k: int | None = None,
        C: float | list[float] = 1.0,
        regulariser: str = "trace",
        lam: float = 1.0,
        threshold: float | str = 1,
        eps: float = 1e-3,
        stabilise: float = 0.3,
        neighbours: int | None = None,
        anchor: float | list[list[float]] | None = None,
        rounds: int = 200,
        transform: TransformOption = "standard",
    ):
        super().__init__(num_features, transform, max(1, len(C)) if isinstance(C, list) else rounds)
        self.is_path = isinstance(C, list)
        self.certified = not self.is_path
        self.regulariser, self.neighbours, self.anchor = regulariser, neighbours, anchor
        self._check(lam, threshold)
        options = {"regulariser": regulariser, "lam": lam, "eps": eps, "stabilise": stabilise}
        oracle, anchored = Oracle.make(measure, k, threshold), anchor is not None
        self.cuts = CutRounds(self._shape(), oracle, C, rounds, options, anchored)
        self.metric = nn.Parameter(torch.zeros(self._shape(), dtype=torch.float64), requires_grad=False)
        self.derived = Derived()

    def _check(self, lam: float, threshold: float | str) -> None:
        check_choice(FORMS, regulariser=self.regulariser)
        check_number(">= 0", lam=lam)
        check_integer(">= 1", neighbours=self.neighbours)
        if self.neighbours is not None and threshold == "sweep":
            raise ValueError("neighbours cannot be combined with threshold=sweep: set a number")
        if self.anchor is not None and self.regulariser not in ("fro", "l21"):
            wanted = "fro, |W - anchor|^2 / 2, or l21, which adds the row norms of W - anchor"
            raise ValueError(f"anchor needs regulariser={wanted}, got regulariser={self.regulariser}")
        try:
            finite = bool(torch.tensor(self.anchor or 0.0, dtype=torch.float64, device="cpu").isfinite().all())
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise ValueError(f"anchor must be a finite number or a matrix as nested lists, got {self.anchor!r}")

    def _shape(self) -> tuple[int, ...]:
        width = self.transform.num_outputs
        return (width,) if self.regulariser == "diagonal" else (width, width)

    # ---- scoring ------------------------------------------------------------------------------------------------

    @property
    def components(self) -> Tensor:  # type: ignore[override]
        """L (r, D) with W = L'L, in float64, of the transformed features; the strongest direction comes first."""
        return self.derived("components", [self.metric], lambda: metric_components(self.metric.detach()))

    def get_mahalanobis_matrix(self) -> Tensor:
        """The metric W (D, D) of the transformed features."""
        return self.metric.detach().diag() if self.metric.dim() == 1 else self.metric.detach().clone()

    # ---- learning -----------------------------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        self.check_queries(lists.lists.has_queries)
        anchor = self._anchored()
        if anchor is not None:
            check_metric(anchor)
        store(self, metric=lists.zeros(*self._shape()) if anchor is None else anchor)
        self.cuts.start(lists, self._shape(), anchor)

    def open(self, lists: TrainingLists) -> None:
        self.kept.learned_from = self._learned_from(lists)

    def _anchored(self) -> Tensor | None:
        if self.anchor is None:
            return None
        shape, given = self._shape(), torch.tensor(self.anchor, dtype=torch.float64)
        anchor = given * torch.eye(*shape, dtype=torch.float64) if given.dim() == 0 else given
        if anchor.shape != shape or not torch.equal(anchor, anchor.T):
            found = "one that is not symmetric" if anchor.shape == shape else f"{tuple(anchor.shape)}"
            raise ValueError(f"anchor must be a number or a symmetric matrix {shape}, got {found}")
        return anchor

    def _learned_from(self, lists: TrainingLists) -> TrainingLists:
        """The lists, or the neighbourhood of the query in each; made once unless they have too many entries."""
        if self.neighbours is not None:
            return lists.changed(self._near)
        few = lists.lists.is_shared and lists.num_entries <= KEPT
        return lists.changed(lambda batch: batch) if few else lists

    def _near(self, batch: Batch) -> Batch:
        return keep_nearest(batch, self.neighbours or 0, float(self.cuts.oracle.threshold))

    def round(self, lists: TrainingLists, number: int) -> Round:
        add = add_diagonal_psi if self.metric.dim() == 1 else add_metric_psi
        anchor = self._anchored()
        plane, found = self.cuts.advance(self.kept.learned_from, number, metric_scores, add, anchor)
        self.metric.copy_(plane.best)
        self.cuts.write(plane)
        findings = dict(found.findings)
        if self.regulariser == "l21" and anchor is not None:
            same = int((self.metric == anchor.to(self.metric)).all(1).sum())
            findings["features unchanged"] = f"{same} of {len(self.metric)}"
        elif self.regulariser in ("l21", "diagonal"):
            dropped = int((self.get_mahalanobis_matrix() == 0).all(1).sum())
            findings["features dropped"] = f"{dropped} of {len(self.metric)}"
        if not self.metric.any():
            findings["metric"] = "W = 0"
        return found._replace(findings=findings)

    def close(self, limit: str) -> None:
        super().close(limit)
        if not self.metric.any():
            warn(f"W = 0 is the best metric found: all distances are 0. {self._advice(limit)}", ConvergenceWarning)

    def _advice(self, limit: str) -> str:
        if self.cuts.lists == 0:
            return "No training list has both relevant and other entries."
        if not self.converged:
            return f"Raise {limit}."
        oracle = self.cuts.oracle
        if oracle.measure in ("precision", "ndcg"):
            return (
                f"With measure={oracle.measure} this can happen at every C (now {self.cuts.C[-1]:g}): use auc, map or "
                "mrr, or try neighbours=10, anchor=1 with regulariser=fro, or LowRankMLR."
            )
        lower = f" or lower lam (now {self.cuts.options['lam']:g})" if self.regulariser == "l21" else ""
        return f"Raise C (now {self.cuts.C[-1]:g}){lower}."


@torch.inference_mode(False)  # they are kept: scores may be differentiated after a test in inference mode
def metric_components(metric: Tensor) -> Tensor:
    """L (r, D) with W = L'L, from the positive eigenvalues of W (D, D), or of a diagonal (D,); the largest comes first.

    The columns of features whose rows of W are 0 are exactly 0.
    """
    live = metric.nonzero().flatten() if metric.dim() == 1 else metric.any(1).nonzero().flatten()
    block = metric[live].diag() if metric.dim() == 1 else metric[live][:, live]
    values, vectors = torch.linalg.eigh(block)
    kept = values > len(values) * torch.finfo(values.dtype).eps * values.abs().max() if len(values) else values > 0
    order = values.argsort(descending=True, stable=True)  # of equal ones the first: the components of I are I
    found: Tensor = (vectors * values.clamp(min=0).sqrt())[:, order[kept[order]]].T
    return found.new_zeros(len(found), len(metric)).index_copy(1, live, found)


def check_metric(anchor: Tensor) -> None:
    """Refuse a symmetric matrix that is no metric: with eigenvalues below 0, beyond rounding."""
    values = torch.linalg.eigvalsh(anchor)
    if values[0] < -ROUNDING * values[-1].abs():
        found = f"one with the eigenvalue {float(values[0]):.3g}"
        raise ValueError(f"anchor must be positive semi-definite, got {found}: give a metric, such as 1 (the identity)")


class RMLR(MLR):
    """R-MLR, robust metric learning to rank (Lim, McFee & Lanckriet, ICML 2013): MLR with Omega(W) = tr W + lam sum of
    the norms of the rows of W, so that noise features get rows that are exactly 0.

    With an anchor it is Omega(W) = |W - anchor|_F^2 / 2 + lam sum of the norms of the rows of W - anchor: features that
    do not help keep their rows of the anchor exactly, and with C = 0 all do.

    Args:
        num_features: number of columns of the rows.
        measure: auc, map, mrr, precision or ndcg.
        k: cut-off of precision and ndcg; None: 3.
        C: weight of the hinge, or a list of them for a path, as in `MLR`.
        lam: weight of the row norms; a larger one keeps fewer features.
        threshold: lowest relevant grade, or sweep: the mean over all thresholds that split a list.
        eps: the fit ends when the minimum is known to within C eps.
        stabilise: how far the next probe goes towards the minimum under the cuts, as in `MLR`.
        neighbours: learn only from the nearest entries of each query, as in `MLR`.
        anchor: a multiple of the identity, or a positive semi-definite matrix as nested lists, as in `MLR`; C may be 0
            then. None: rows that do not help are 0.
        rounds: maximum number of cuts; on a path, for each C.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data.relevance import SameClass
        >>> from torchrank.data.sets import RankingSet
        >>> x = torch.tensor([[0.0, 1.0], [0.0, -1.0], [2.0, 1.0], [2.0, -1.0]])
        >>> classes = torch.tensor([0, 0, 1, 1])
        >>> points = RankingSet(x, SameClass(classes, classes, ("a", "b"), own=torch.arange(4)), queries=x)
        >>> RMLR(2, C=10.0, lam=0.1, transform=None).fit(points).findings
        {'features dropped': '1 of 2'}
        >>> RMLR(2, C=0.0, anchor=1.0, transform=None).fit(points).metric.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        num_features: int,
        measure: str = "map",
        k: int | None = None,
        C: float | list[float] = 1.0,
        lam: float = 1.0,
        threshold: float | str = 1,
        eps: float = 1e-3,
        stabilise: float = 0.3,
        neighbours: int | None = None,
        anchor: float | list[list[float]] | None = None,
        rounds: int = 200,
        transform: TransformOption = "standard",
    ):
        super().__init__(
            num_features, measure, k, C, "l21", lam, threshold, eps, stabilise, neighbours, anchor, rounds, transform
        )

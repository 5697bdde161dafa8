"""MLR: metric learning to rank by a structural SVM (McFee & Lanckriet, ICML 2010), solved to a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.metric.cutting_plane import CutRounds, Oracle, is_positive
from torchrank.rankers.metric.distance import DistanceRanker
from torchrank.solvers.cutting_plane.psi import add_diagonal_psi, add_metric_psi, metric_scores
from torchrank.solvers.nearest import keep_nearest

FORMS = ("trace", "fro", "l21", "diagonal")
KEPT = 2**23  # entries of lists that are made once, not in every round


class MLR(DistanceRanker, RoundRanker):
    """Ranks by the distance from the query under a metric W: s = -(q - x)' W (q - x), and minimises over W >= 0

        Omega(W) + C mean over queries of max_y [1 - measure(y) - <W, psi(y*) - psi(y)>]

    where y runs over all rankings of the query's list and y* puts all relevant entries first. `measure` is auc, map,
    mrr, precision or ndcg (the last two at `k`, 3 by default). `regulariser`: `trace` (Omega = tr W: low rank), `fro`
    (|W|_F^2 / 2), `l21` (tr W + lam sum of row norms: features drop out, R-MLR), `diagonal` (the trace of a diagonal
    W). The released MATLAB code divides Omega by D: this C is D times its C. Relevant is a label of `threshold` or
    more; `sweep` takes the mean over all thresholds that part a list. Lists with one class only do not count.

    A round is one cut. It ends when the upper bound (of `metric`, the best W so far) and the lower bound of the
    minimum are within C eps. `stabilise` is how far the next probe goes from the best point towards the minimum under
    the cuts; 1 is the paper's algorithm. A list of C makes a path: a round is a whole fit of at most `rounds` cuts,
    started with all cuts of the ones before, and validation chooses among them.

    W = 0 is the minimum when C is small, with precision and ndcg often at every C. Remedies: `neighbours=r` learns from
    the r nearest relevant entries of each query and the 3 r nearest others only; `anchor=a` pulls towards a times the
    identity (or towards a matrix, as nested lists) by |W - anchor|_F^2 / 2, with `regulariser="fro"`.
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
        discount: str = "letor",
        eps: float = 1e-3,
        stabilise: float = 0.3,
        neighbours: int | None = None,
        anchor: float | list[list[float]] | None = None,
        rounds: int = 200,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(num_features, transform, max(1, len(C)) if isinstance(C, list) else rounds)
        self.is_path = isinstance(C, list)
        self.certified = not self.is_path
        self.regulariser, self.neighbours, self.anchor = regulariser, neighbours, anchor
        self._check(lam, threshold)
        oracle = Oracle.make(measure, k, threshold, discount)
        self.cuts = CutRounds(
            self._shape(), oracle, regulariser=regulariser, lam=lam, C=C, eps=eps, stabilise=stabilise, cuts=rounds
        )
        self.metric = nn.Parameter(torch.zeros(self._shape(), dtype=torch.float64), requires_grad=False)
        self._kept: tuple[Any, Tensor] | None = None

    def _check(self, lam: float, threshold: float | str) -> None:
        if self.regulariser not in FORMS:
            raise ValueError(f"unknown regulariser={self.regulariser!r}: choose one of {', '.join(FORMS)}")
        if lam != 0 and not is_positive(lam):
            raise ValueError(f"lam={lam!r} weighs the norms of the rows: a finite number that is not negative")
        some = self.neighbours
        if some is not None and (not isinstance(some, int) or some < 1):
            raise ValueError(f"neighbours={some!r} has to be an integer, 1 at least")
        if some is not None and threshold == "sweep":
            raise ValueError("neighbours are those of one threshold: threshold=sweep is refused beside them")
        if self.anchor is not None and self.regulariser != "fro":
            raise ValueError(f"an anchor has regulariser=fro, |W - anchor|^2 / 2, not {self.regulariser}")
        try:
            torch.tensor(self.anchor or 0.0, dtype=torch.float64)
        except (TypeError, ValueError):
            raise ValueError(f"anchor={self.anchor!r} has to be a number, or a matrix as nested lists") from None

    def _shape(self) -> tuple[int, ...]:
        width = self.transform.num_outputs
        return (width,) if self.regulariser == "diagonal" else (width, width)

    # ---- scoring ------------------------------------------------------------------------------------------------

    @property
    def components(self) -> Tensor:
        """L (r, D) with W = L'L, in float64, of the transformed features; the strongest direction first."""
        state = (self.metric.data_ptr(), self.metric._version, self.metric.shape)
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, metric_components(self.metric.detach()))
        return self._kept[1]

    def get_mahalanobis_matrix(self) -> Tensor:
        """W (D, D)."""
        return self.metric.detach().diag() if self.metric.dim() == 1 else self.metric.detach().clone()

    # ---- learning -----------------------------------------------------------------------------------------------

    def inputs_sized(self) -> None:
        if self.metric.shape != self._shape():
            self.resize("metric", self._shape())

    def prepare(self) -> None:
        self.check_queries(self.data.sets["train"].has_queries)
        self.resize("metric", self._shape())
        self._anchored()
        self.cuts.prepare(self, self._shape())

    def _anchored(self) -> Tensor | None:
        if self.anchor is None:
            return None
        shape, given = self._shape(), torch.tensor(self.anchor, dtype=torch.float64)
        anchor = given * torch.eye(*shape, dtype=torch.float64) if given.dim() == 0 else given
        if anchor.shape != shape or not torch.equal(anchor, anchor.T):
            raise ValueError(f"anchor is {tuple(anchor.shape)}: give a number, or a symmetric matrix {shape}, finite")
        return anchor

    def batches(self) -> Iterator[Batch]:
        """The training lists, or of each the neighbourhood of its query; kept, where they are not too many."""
        train, threshold = self.data.sets["train"], self.cuts.oracle.threshold
        lists = super().batches()
        if self.neighbours is not None:
            lists = (keep_nearest(batch, self.neighbours, float(threshold)) for batch in lists)
        few = train.is_shared and train.lengths.sum() <= KEPT
        return self.cuts.batches(lists, few or self.neighbours is not None)

    def round(self) -> bool:
        add = add_diagonal_psi if self.metric.dim() == 1 else add_metric_psi
        plane, done = self.cuts.advance(self, metric_scores, add, self._anchored())
        self.metric.copy_(plane.best)
        self.cuts.write(self, plane)
        if self.regulariser in ("l21", "diagonal"):
            dropped = int((self.get_mahalanobis_matrix() == 0).all(1).sum())
            self.findings = self.findings | {"features dropped": f"{dropped} of {len(self.metric)}"}
        if not self.metric.any():
            self.findings = self.findings | {"metric": "W = 0"}
        return done

    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.cuts.forget()
        if not self.metric.any():
            rank_zero_warn(f"W = 0 is the best metric found: all distances are 0. {self._advice()}")

    def _advice(self) -> str:
        if self.cuts.lists == 0:
            return "No training list has both relevant and other entries."
        if not self.converged:
            return f"Raise {self.limit()}."
        oracle = self.cuts.oracle
        if oracle.measure in ("precision", "ndcg"):
            return (
                f"With measure={oracle.measure} that can be so at every C (now {self.cuts.C[-1]:g}): use auc, map or "
                "mrr, or try neighbours=10, anchor=1 with regulariser=fro, or LowRankMLR."
            )
        lower = f" or lower lam, now {self.cuts.options['lam']:g}" if self.regulariser == "l21" else ""
        return f"Raise C, now {self.cuts.C[-1]:g}{lower}."


def metric_components(metric: Tensor) -> Tensor:
    """L (r, D) with W = L'L, from the positive eigenvalues of W (D, D), or of a diagonal (D,); largest first.

    Features with a row of 0 have a column of 0, exactly.
    """
    live = metric.nonzero().flatten() if metric.dim() == 1 else metric.any(1).nonzero().flatten()
    block = metric[live].diag() if metric.dim() == 1 else metric[live][:, live]
    values, vectors = torch.linalg.eigh(block)
    kept = values > len(values) * torch.finfo(values.dtype).eps * values.abs().max() if len(values) else values > 0
    found = (vectors * values.clamp(min=0).sqrt())[:, kept].flip(1).T
    return found.new_zeros(len(found), len(metric)).index_copy(1, live, found)

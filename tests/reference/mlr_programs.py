"""The training problems of MLR, R-MLR, SVM-map and RankSVM as convex programmes, solved by an interior-point method.

min Omega(W) + C mean_q max_y [Delta(y*, y) - <W, delta psi(q, y)>] over W in the cone: one slack for each list,
rankings added as constraints where brute force over all interleavings finds them violated.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import cvxpy
import numpy as np

from tests.reference import mlr as plain
from tests.reference.measures import blocks
from torchrank import RankingSet


@dataclass(frozen=True)
class Program:
    """One training problem. `regulariser`: trace, fro, l21, diagonal, linear; `anchor` (D, D) is the centre of fro, and
    of l21, which is fro plus lam times the norms of the rows of W - anchor then."""

    lists: list[tuple[np.ndarray | None, np.ndarray, list[np.ndarray]]]  # query, rows, relevance for each threshold
    C: float
    regulariser: str
    measure: str
    k: int | None = None
    lam: float = 0.0
    anchor: np.ndarray | None = None

    @property
    def model(self) -> str:
        return self.regulariser if self.regulariser in ("diagonal", "linear") else "metric"

    @property
    def shape(self) -> tuple[int, ...]:
        width = self.lists[0][1].shape[1]
        return (width, width) if self.model == "metric" else (width,)

    def omega(self, w: np.ndarray) -> float:
        """The regulariser, outside of the cone too."""
        return float(self._omega(w).value)

    def _omega(self, w):
        if self.regulariser == "diagonal":
            return cvxpy.sum(w)
        if self.regulariser in ("linear", "fro"):
            return cvxpy.sum_squares(w - (0 if self.anchor is None else self.anchor)) / 2
        if self.regulariser == "l21" and self.anchor is not None:
            change = w - self.anchor
            return cvxpy.sum_squares(change) / 2 + self.lam * cvxpy.sum(cvxpy.norm(change, 2, axis=1))
        rows = self.lam * cvxpy.sum(cvxpy.norm(w, 2, axis=1)) if self.regulariser == "l21" else 0
        return cvxpy.trace(w) + rows

    def hinges(self, w: np.ndarray) -> list[tuple[int, float, np.ndarray, float]]:
        """Of each list and threshold: which list, its weight in the mean, delta psi and Delta of the worst ranking."""
        found = []
        for q, (query, rows, thresholds) in enumerate(self.lists):
            phi = np.array([plain.feature_map(query, row, self.model) for row in rows]).reshape(len(rows), -1)
            for relevant in thresholds:
                c, loss = plain.most_violated_plain(phi @ w.ravel(), relevant, self.measure, self.k)
                found.append((q, 1 / len(thresholds) / len(self.lists), c @ phi, loss))
        return found

    def value(self, w: np.ndarray) -> float:
        """F(W), exact."""
        return self.omega(w) + self.C * sum(
            weight * max(0.0, loss - psi @ w.ravel()) for _, weight, psi, loss in self.hinges(w)
        )

    def minimum(self, tolerance: float = 1e-8, rounds: int = 100) -> tuple[float, np.ndarray]:
        """The least F and where, with a lower bound as near as `tolerance` (relative)."""
        best, upper, lower = np.zeros(self.shape), np.inf, -np.inf
        w, cuts = best, []
        for _ in range(rounds):
            worst = self.hinges(w)
            value = self.omega(w) + self.C * sum(a * max(0.0, loss - psi @ w.ravel()) for _, a, psi, loss in worst)
            if value < upper:
                best, upper = w, value
            if upper - lower <= tolerance * max(1.0, upper):
                return upper, best
            cuts += [(number, *cut[1:]) for number, cut in enumerate(worst)]
            w, lower = self._reduced(cuts, len(worst))
        raise AssertionError(f"the reference did not converge: {lower} .. {upper}")

    def _reduced(self, cuts: list, slacks: int) -> tuple[np.ndarray, float]:
        """The programme over the rankings found so far; its minimum is a lower bound of F."""
        w = cvxpy.Variable(self.shape, PSD=True) if self.model == "metric" else cvxpy.Variable(self.shape)
        xi = cvxpy.Variable(slacks, nonneg=True)
        psi, losses = np.array([cut[2] for cut in cuts]), np.array([cut[3] for cut in cuts])
        which = np.eye(slacks)[[cut[0] for cut in cuts]]
        weights = np.array([cut[1] for cut in cuts[:slacks]])
        flat = cvxpy.vec(w, order="C") if self.model == "metric" else w
        constraints = [which @ xi >= losses - psi @ flat] + ([w >= 0] if self.model == "diagonal" else [])
        program = cvxpy.Problem(cvxpy.Minimize(self._omega(w) + self.C * (weights @ xi)), constraints)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")  # short of 1e-10
            program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        return _in_cone(w.value, self.model), program.value


def _in_cone(w: np.ndarray, model: str) -> np.ndarray:
    if model == "linear":
        return w
    if model == "diagonal":
        return np.maximum(w, 0)
    values, vectors = np.linalg.eigh((w + w.T) / 2)
    return (vectors * np.maximum(values, 0)) @ vectors.T


def lists_of(ranking_set: RankingSet, threshold: float | str = 1) -> list:
    """The lists of a set with both classes; "sweep": at every threshold 1, 2, .. that splits the list."""
    batch = ranking_set[:].flat()
    rows, labels = batch.x.double().numpy(), batch.labels.numpy()
    queries = [None] * batch.num_lists if batch.queries is None else batch.queries.double().numpy()
    found = []
    for query, block in zip(queries, blocks(batch.offsets), strict=True):
        grades = range(1, 1 + int(labels.max())) if threshold == "sweep" else [threshold]
        splits = [labels[block] >= grade for grade in grades]
        splits = [relevant for relevant in splits if relevant.any() and not relevant.all()]
        if splits:
            found.append((query, rows[block], splits))
    return found

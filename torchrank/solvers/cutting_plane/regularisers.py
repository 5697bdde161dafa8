"""Regularisers Omega of cutting planes: their value, the bound that the dual gives, and the step of ADMM.

With weights a_R >= 0 of the cuts, sum a_R <= C, the gradient A = sum a_R Psi_R and the gain a.M (M the losses of the
cuts), the reduced problem is at least a.M + min_W Omega(W) - <A, W> over the cone. All arrays are float64 on the host.
"""

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dsyevd

from torchrank.errors import check_choice

Array = NDArray[np.float64]
Rows = NDArray[np.bool_]  # (D,) which rows, and columns

RELAXATION = 1.6  # over-relaxation of ADMM


def eigenvalues(a: Array) -> Array:
    """Eigenvalues of a symmetric matrix, ascending."""
    values: Array = dsyevd(a, compute_v=0)[0]
    return values


def shrink_spectrum(a: Array, threshold: float) -> Array:
    """V max(lambda - threshold, 0) V' of a matrix whose symmetric part is V lambda V'."""
    values, vectors, _ = dsyevd((a + a.T) / 2)
    kept = int(np.searchsorted(values, threshold, side="right"))
    factor: Array = vectors[:, kept:] * np.sqrt(values[kept:] - threshold)
    return factor @ factor.T


def least_around(anchor: Array, gradient: Array) -> float:
    """The minimum of |W - W0|^2 / 2 - <A, W - W0> over positive semi-definite W, for a semi-definite W0 = `anchor` and
    a `gradient` A.

    It lies at X_+, the positive eigenvalues of X = W0 + A. Of two formulas for it the one is taken that keeps the
    digits: (|X_-|^2 - |A|^2) / 2 where A is short, and (|W0|^2 - |X_+|^2) / 2 + <A, W0> where it is long.
    """
    values, centre, change = eigenvalues(anchor + gradient), np.square(anchor).sum(), np.square(gradient).sum()
    if change <= centre:
        return float(np.square(np.minimum(values, 0.0)).sum() - change) / 2
    return float((centre - np.square(np.maximum(values, 0.0)).sum()) / 2 + (gradient * anchor).sum())


class Regulariser:
    """The regulariser Omega. ADMM splits W = Z, for l21 also V = Z; `u (splits, *shape)` are the scaled multipliers."""

    splits = 1

    def value(self, w: Array) -> float:
        raise NotImplementedError

    def bound(self, gain: float, room: float, gradient: Array, multiplier: Array | None = None) -> float:
        """The largest lower bound that the weights a give when they are scaled by a factor of 0..room, with the gain
        a.M and the gradient sum a_R Psi_R at factor 1, and the `row_multiplier` where there is one."""
        raise NotImplementedError

    def prox(self, v: Array, rho: float) -> Array:
        """argmin over the cone of Omega(Z) + rho/2 |Z - v|^2."""
        raise NotImplementedError

    def step(self, w: Array, z: Array, u: Array, rho: float) -> tuple[Array, Array]:
        """Z and the multipliers after the (relaxed) W of this step."""
        v = w + u[0]
        new = self.prox(v, rho)
        return new, (v - new)[None]

    def row_multiplier(self, z: Array, u: Array, rho: float) -> Array | None:
        """The multiplier of the split that carries the norms of the rows."""
        return None

    def candidate(self, z: Array, u: Array, rho: float) -> Array:
        """The point of the cone that Z stands for."""
        return z

    def without(self, w: Array, point: Array) -> Array:
        """W without the features that `point` does not use; W itself where Omega drops none."""
        return w

    def between(self, point: Array, w: Array, share: float) -> Array:
        """What lies `share` of the way from W to `point`."""
        return share * point + (1 - share) * w


class Trace(Regulariser):
    """tr W over positive semi-definite W: A <= I in the dual."""

    def value(self, w: Array) -> float:
        return float(np.trace(w))

    def prox(self, v: Array, rho: float) -> Array:
        return shrink_spectrum(v, 1 / rho)

    def largest(self, gradient: Array) -> float:
        """The largest eigenvalue, which is at most 1 in the dual."""
        return float(eigenvalues(gradient)[-1])

    def bound(self, gain: float, room: float, gradient: Array, multiplier: Array | None = None) -> float:
        top = self.largest(_without_rows(gradient, multiplier))
        return gain * min(room, 1 / top if top > 0 else math.inf) if gain > 0 else 0.0


class Diagonal(Trace):
    """sum w over vectors w >= 0: the trace on a diagonal metric."""

    def value(self, w: Array) -> float:
        return float(w.sum())

    def prox(self, v: Array, rho: float) -> Array:
        return np.maximum(v - 1 / rho, 0.0)

    def largest(self, gradient: Array) -> float:
        return float(gradient.max())

    def without(self, w: Array, point: Array) -> Array:
        return w * (point > 0)


class Frobenius(Regulariser):
    """|W - W0|_F^2 / 2 over positive semi-definite W, where W0 = `anchor`, or 0."""

    def __init__(self, anchor: Array | None = None) -> None:
        self.anchor = anchor

    def value(self, w: Array) -> float:
        return float(np.square(w if self.anchor is None else w - self.anchor).sum() / 2)

    def prox(self, v: Array, rho: float) -> Array:
        target = rho * v if self.anchor is None else rho * v + self.anchor
        return shrink_spectrum(target / (1 + rho), 0.0)

    def bound(self, gain: float, room: float, gradient: Array, multiplier: Array | None = None) -> float:
        if self.anchor is None:
            square = float(np.square(np.maximum(eigenvalues(gradient), 0)).sum())
            scale = min(room, gain / square) if square > 0 else room
            return scale * gain - scale * scale * square / 2 if gain > 0 else 0.0
        scale = min(room, 1.0)
        least = least_around(self.anchor, _without_rows(scale * gradient, multiplier))
        return scale * (gain - float((gradient * self.anchor).sum())) + least


class GroupSparse(Regulariser):
    """tr W + lam sum of the norms of the rows, over positive semi-definite W (R-MLR; Lim, McFee & Lanckriet 2013).
    With an `anchor` W0 it is |W - W0|_F^2 / 2 + lam sum of the norms of the rows of W - W0.

    A second split V = Z carries the norms, of V - W0. Its multiplier is a matrix B with rows of norm at most lam; then
    lam sum of the norms >= <B, W - W0> = <(B + B')/2, W - W0>, and what is left is the bound of `trace`, or `fro`, for
    the gradient A - (B + B')/2. Where V - W0 is 0, the rows and columns of the candidate are those of W0. The block of
    the others is that of Z, moved above the least block that keeps the whole semi-definite; where W0 does not join the
    two, such as 0 or the identity, that is 0, and nothing moves.
    """

    splits = 2

    def __init__(self, lam: float, anchor: Array | None = None) -> None:
        self.lam, self.anchor = lam, anchor
        self.centre: Any = 0.0 if anchor is None else anchor
        self.rest = Trace() if anchor is None else Frobenius(anchor)

    def value(self, w: Array) -> float:
        return self.rest.value(w) + self.lam * float(np.sqrt(np.square(w - self.centre).sum(1)).sum())

    def _rows(self, z: Array, u: Array, rho: float) -> tuple[Array, Array]:
        """rho (Z - W0 - U_V), and the norms (D, 1) of its rows: where they are at most lam, V is W0."""
        point = rho * (z - self.centre - u[1])
        return point, np.sqrt(np.square(point).sum(1, keepdims=True))

    def row_multiplier(self, z: Array, u: Array, rho: float) -> Array:
        """B: the rows of rho (Z - W0 - U_V) clipped to norm lam."""
        point, norms = self._rows(z, u, rho)
        inside = norms <= self.lam
        return point * np.where(inside, 1.0, self.lam / np.where(inside, 1.0, norms))

    def step(self, w: Array, z: Array, u: Array, rho: float) -> tuple[Array, Array]:
        rows = z - u[1] - self.row_multiplier(z, u, rho) / rho
        relaxed = RELAXATION * rows + (1 - RELAXATION) * z
        points = np.stack((w, relaxed)) + u
        new = self.rest.prox((points[0] + points[1]) / 2, 2 * rho)
        return new, points - new

    @cached_property
    def _root(self) -> Array:
        """G with W0 = G'G."""
        values, vectors, _ = dsyevd(self.centre)
        root: Array = (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return root

    def _only(self, w: Array, kept: Rows) -> Array:
        """W with these features alone; the others as in W0."""
        block = np.ix_(kept, kept)
        point: Array = np.zeros_like(w) + self.centre
        if not point[np.ix_(~kept, kept)].any():
            point[block] = w[block]
            return point
        span, lengths, _ = np.linalg.svd(self._root[:, ~kept], full_matrices=False)
        part = span[:, lengths > len(span) * np.finfo(lengths.dtype).eps * lengths[0]].T @ self._root[:, kept]
        least = part.T @ part
        point[block] = least + shrink_spectrum(w[block] - least, 0.0)
        return point

    def candidate(self, z: Array, u: Array, rho: float) -> Array:
        return self._only(z, self._rows(z, u, rho)[1][:, 0] > self.lam)

    def without(self, w: Array, point: Array) -> Array:
        return self._only(w, (point != self.centre).any(1))

    def between(self, point: Array, w: Array, share: float) -> Array:
        """Entries that are those of W0 in both are those of W0, to the bit."""
        between: Array = self.centre + (share * (point - self.centre) + (1 - share) * (w - self.centre))
        return between

    def bound(self, gain: float, room: float, gradient: Array, multiplier: Array | None = None) -> float:
        longest = 0.0 if multiplier is None else math.sqrt(np.square(multiplier).sum(1).max())
        stretch = self.lam / longest if longest > 0 else math.inf  # by which B may be scaled
        return max(0.0, self.rest.bound(gain, min(room, stretch), gradient, multiplier))


class Linear(Regulariser):
    """|w|^2 / 2 over all vectors: the dual is a quadratic program over the simplex, solved exactly without ADMM."""

    def value(self, w: Array) -> float:
        return float(np.square(w).sum() / 2)


REGULARISERS: dict[str, type[Regulariser]] = {
    "trace": Trace,
    "fro": Frobenius,
    "l21": GroupSparse,
    "diagonal": Diagonal,
    "linear": Linear,
}


def make_regulariser(regulariser: str = "trace", lam: float = 0.0, anchor: torch.Tensor | None = None) -> Regulariser:
    """The regulariser of this name; `lam` belongs to `l21`, `anchor (D, D)`, semi-definite, to `fro` and `l21`."""
    check_choice(REGULARISERS, regulariser=regulariser)
    if anchor is not None and regulariser not in ("fro", "l21"):
        raise ValueError(f"anchor needs regulariser='fro' or 'l21', got {regulariser!r}")
    centre = None if anchor is None else anchor.detach().double().cpu().numpy()
    if regulariser == "l21":
        if lam < 0:
            raise ValueError(f"lam must be >= 0, got {lam}")
        return GroupSparse(lam, centre)
    if regulariser == "fro":
        return Frobenius(centre)
    return REGULARISERS[regulariser]()


def _without_rows(gradient: Array, multiplier: Array | None) -> Array:
    """A - (B + B')/2."""
    return gradient if multiplier is None else gradient - (multiplier + multiplier.T) / 2

"""The reduced problem of a cutting plane with a linear regulariser, by a primal-dual interior point method.

    primal  min <I, W> + C xi    over W in the cone, xi >= 0, <Psi_R, W> + xi - x_R = M_R, x_R >= 0
    dual    max a.M              over a_R >= 0, sum a_R + rest = C, sum a_R Psi_R + S = I, S in the cone

where I is the unit of the cone. The empty cut (0, 0) has the slack xi and the weight `rest`; it is the last one here.
Interior points of both are known, so every step is feasible and gives both bounds.
Directions are those of Helmberg, Rendl, Vanderbei & Wolkowicz 1996 with Mehrotra's corrector. It takes about ten steps
whatever the cuts, where ADMM may take a thousand on correlated features; each step costs R matrix products.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtri

from torchrank.solvers.cutting_plane.regularisers import eigenvalues

Array = NDArray[np.float64]

STEPS = 80  # at most
SHORT = 0.95  # share of the way to the boundary that a step goes


class Semidefinite:
    """The cone of matrices: W = GG' and S = LL' are positive definite."""

    def __init__(self, w: Array, s: Array) -> None:
        self.w, self.root = w, _cholesky(w)
        self.root_inverse: Array = dtrtri(self.root, lower=1)[0]
        self.low_inverse: Array = dtrtri(_cholesky(s), lower=1)[0]
        self.inverse: Array = self.low_inverse.T @ self.low_inverse

    def scaled(self, psi: Array) -> Array:
        """L^-1 Psi_R G, flattened: their inner products are <Psi_R, W Psi_T S^-1>."""
        return (self.low_inverse @ (psi @ self.root)).reshape(len(psi), -1)

    def product(self, a: Array, b: Array) -> Array:
        """The symmetric part of a b S^-1."""
        full = a @ b @ self.inverse
        return (full + full.T) / 2

    def reach(self, primal: Array, dual: Array) -> tuple[float, float]:
        """How far W can go along `primal`, and S along `dual`."""
        return _reach_of_matrix(self.root_inverse, primal), _reach_of_matrix(self.low_inverse, dual)


class Orthant:
    """The cone of vectors: W and S are positive."""

    def __init__(self, w: Array, s: Array) -> None:
        self.w, self.s, self.inverse = w, s, 1 / s

    def scaled(self, psi: Array) -> Array:
        return psi * np.sqrt(self.w * self.inverse)

    def product(self, a: Array, b: Array) -> Array:
        return a * b * self.inverse

    def reach(self, primal: Array, dual: Array) -> tuple[float, float]:
        return _reach(self.w, primal), _reach(self.s, dual)


Cone = Semidefinite | Orthant


class Point(NamedTuple):
    """An interior point of both problems."""

    w: Array  # (*shape)
    s: Array  # (*shape)
    slack: Array  # (R + 1,) x, and xi
    weights: Array  # (R + 1,) a, and rest

    def complementarity(self) -> float:
        """The value of the primal minus that of the dual, divided by the number of products that make it up."""
        return float((self.w * self.s).sum() + self.slack @ self.weights) / (len(self.w) + len(self.slack))

    def stepped(self, direction: "Point", primal: float, dual: float) -> "Point":
        """The point so far along a direction."""
        w, slack = self.w + primal * direction.w, self.slack + primal * direction.slack
        return Point(w, self.s + dual * direction.s, slack, self.weights + dual * direction.weights)


Move = tuple[Point, float, float]  # a direction, and how far the primal and the dual can follow it


def interior_point(psi: Array, loss: Array, C: float, tolerance: float) -> tuple[Array, Array, float]:
    """(W, weights, complementarity) of the reduced problem of cuts `psi (R, *shape)`, `loss (R,)`.

    Ends when W is within `tolerance` of the minimum, or when rounding allows no further step.

    >>> w, weights, _ = interior_point(np.array([[[3.0]]]), np.array([1.0]), C=2.0, tolerance=1e-9)
    >>> print(w.round(6), weights.round(6))  # w + 2 max(0, 1 - 3 w)
    [[0.333333]] [0.333333]
    """
    cone = Semidefinite if psi.ndim == 3 else Orthant
    unit = np.eye(psi.shape[1]) if psi.ndim == 3 else np.ones(psi.shape[1])
    flat, point = psi.reshape(len(psi), -1), _first_point(psi, loss, unit, C)
    for _ in range(STEPS):
        hinge = max(0.0, float((loss - flat @ point.w.ravel()).max()))
        if float((unit * point.w).sum()) + C * hinge - float(point.weights[:-1] @ loss) <= tolerance:
            break
        try:
            direction, primal, dual = _mehrotra(psi, flat, loss, cone(point.w, point.s), point)
        except np.linalg.LinAlgError:
            break
        new = point.stepped(direction, min(1.0, SHORT * primal), min(1.0, SHORT * dual))
        new = _consistent(flat, loss, unit, C, new.w, new.slack[-1], new.weights[:-1])
        if new.slack.min() <= 0 or new.weights[-1] <= 0:
            break
        point = new
    return point.w, point.weights[:-1], point.complementarity()


def _consistent(flat: Array, loss: Array, unit: Array, C: float, w: Array, xi: float, weights: Array) -> Point:
    """The point with these W, xi and weights; what follows from them is computed anew, so that rounding does not
    accumulate."""
    s = unit - (weights @ flat).reshape(unit.shape)
    return Point(w, s, np.append(flat @ w.ravel() + xi - loss, xi), np.append(weights, C - weights.sum()))


def _first_point(psi: Array, loss: Array, unit: Array, C: float) -> Point:
    """Small equal weights, and a small multiple of the unit."""
    count, flat, size = len(psi), psi.reshape(len(psi), -1), len(unit)
    total = psi.sum(0)
    top = float(eigenvalues(total)[-1] if psi.ndim == 3 else total.max())
    weights = np.full(count, min(C / count, 1 / top if top > 0 else math.inf) / 2)
    traces = np.abs(flat @ unit.ravel()).max()
    w = unit * min(C / (size + count + 1), 1 / traces if traces > 0 else math.inf)
    xi = 1.0 + max(0.0, float((loss - flat @ w.ravel()).max()))
    return _consistent(flat, loss, unit, C, w, xi, weights)


def _mehrotra(psi: Array, flat: Array, loss: Array, cone: Cone, now: Point) -> Move:
    """A first direction to the optimum tells what to aim at; the second one goes there, with second-order terms."""
    scaled = cone.scaled(psi)
    ratio = now.slack / now.weights
    normal = scaled @ scaled.T + ratio[-1]
    normal[np.diag_indices(len(loss))] += ratio[:-1]
    factor = _cholesky(normal)
    first, primal, dual = _direction(flat, factor, loss, cone, now, 0.0, (0.0, 0.0))
    ahead = now.stepped(first, min(primal, 1.0), min(dual, 1.0))
    before = now.complementarity()
    aim = before * min(1.0, max(ahead.complementarity() / before, 0.0)) ** 3
    aim = aim if min(primal, dual) > 0.1 else before / 2
    second = cone.product(first.w, first.s), first.slack * first.weights
    gaps = (aim - second[1]) / now.weights
    right = loss - flat @ (aim * cone.inverse - second[0]).ravel() + gaps[:-1] - gaps[-1]
    return _direction(flat, factor, right, cone, now, aim, second)


def _direction(
    flat: Array, factor: Array, right: Array, cone: Cone, now: Point, aim: float, products: tuple[Any, Any]
) -> Move:
    """The Newton direction to complementarity `aim`, to which the expected products of the changes of W and S, and of
    slack and weights add."""
    cuts = dpotrs(factor, right, lower=1)[0]
    weights, s = np.append(cuts, -cuts.sum()), -(cuts @ flat).reshape(now.w.shape)
    w = aim * cone.inverse - now.w - cone.product(now.w, s) - products[0]
    slack = (aim - now.slack * weights - products[1]) / now.weights - now.slack
    primal, dual = cone.reach(w, s)
    primal, dual = min(primal, _reach(now.slack, slack)), min(dual, _reach(now.weights, weights))
    return Point(w, s, slack, weights), primal, dual


def _cholesky(a: Array) -> Array:
    factor, info = dpotrf(a, lower=1, clean=1)
    if info:
        raise np.linalg.LinAlgError
    return np.asarray(factor)


def _reach(values: Array, direction: Array) -> float:
    """How far positive values can go along a direction until the first one is 0."""
    share = float((-direction / values).max())
    return 1 / share if share > 0 else math.inf


def _reach_of_matrix(inverse_root: Array, direction: Array) -> float:
    """How far a positive definite matrix can go until it is singular, given the inverse of its root."""
    lowest = float(eigenvalues(inverse_root @ direction @ inverse_root.T)[0])
    return -1 / lowest if lowest < 0 else math.inf

"""The reduced problem of a cutting plane with a linear regulariser, by a primal-dual interior point method.

    primal  min <I, W> + C xi    over W in the cone, xi >= 0, <Psi_R, W> + xi - x_R = M_R, x_R >= 0
    dual    max a.M              over a_R >= 0, sum a_R + rest = C, sum a_R Psi_R + S = I, S in the cone

where I is the unit of the cone. Interior points of both are known, so every step is feasible and gives both bounds.
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
        return _reach(self.root_inverse, primal), _reach(self.low_inverse, dual)


class Orthant:
    """The cone of vectors: W and S are positive."""

    def __init__(self, w: Array, s: Array) -> None:
        self.w, self.s, self.inverse = w, s, 1 / s

    def scaled(self, psi: Array) -> Array:
        return psi * np.sqrt(self.w * self.inverse)

    def product(self, a: Array, b: Array) -> Array:
        return a * b * self.inverse

    def reach(self, primal: Array, dual: Array) -> tuple[float, float]:
        return _way(self.w, primal), _way(self.s, dual)


Cone = Semidefinite | Orthant


class Point(NamedTuple):
    """An interior point of both problems."""

    w: Array  # (*shape)
    s: Array  # (*shape)
    slack: Array  # (R,) x
    weights: Array  # (R,) a
    xi: float
    rest: float

    def complement(self) -> float:
        """The value of the primal minus that of the dual."""
        return float((self.w * self.s).sum() + self.slack @ self.weights) + self.xi * self.rest


class Move(NamedTuple):
    """A direction, and how far it can be followed."""

    point: Point
    primal: float
    dual: float


def interior_point(psi: Array, loss: Array, C: float, tolerance: float) -> tuple[Array, Array, float]:
    """(W, weights, complementarity per term) of the reduced problem of cuts `psi (R, *shape)`, `loss (R,)`.

    Ends when W is within `tolerance` of the minimum, or when rounding allows no further step.

    >>> w, weights, _ = interior_point(np.array([[[3.0]]]), np.array([1.0]), C=2.0, tolerance=1e-9)
    >>> print(w.round(6), weights.round(6))  # w + 2 max(0, 1 - 3 w)
    [[0.333333]] [0.333333]
    """
    cone = Semidefinite if psi.ndim == 3 else Orthant
    unit = np.eye(psi.shape[1]) if psi.ndim == 3 else np.ones(psi.shape[1])
    flat, point = psi.reshape(len(psi), -1), _inside(psi, loss, unit, C)
    terms = len(unit) + len(loss) + 1
    for _ in range(STEPS):
        hinge = max(0.0, float((loss - flat @ point.w.ravel()).max()))
        if float((unit * point.w).sum()) + C * hinge - float(point.weights @ loss) <= tolerance:
            break
        try:
            move = _mehrotra(psi, flat, loss, cone(point.w, point.s), point, terms)
        except np.linalg.LinAlgError:
            break
        new = _moved(flat, loss, unit, C, point, move)
        if new.slack.min() <= 0 or new.rest <= 0:
            break
        point = new
    return point.w, point.weights, point.complement() / terms


def _inside(psi: Array, loss: Array, unit: Array, C: float) -> Point:
    """A first point: small equal weights, and a small multiple of the unit."""
    count, flat, size = len(psi), psi.reshape(len(psi), -1), len(unit)
    total = psi.sum(0)
    top = float(eigenvalues(total)[-1] if psi.ndim == 3 else total.max())
    weights = np.full(count, min(C / count, 1 / top if top > 0 else math.inf) / 2)
    traces = np.abs(flat @ unit.ravel()).max()
    w = unit * min(C / (size + count + 1), 1 / traces if traces > 0 else math.inf)
    products = flat @ w.ravel()
    xi = 1.0 + max(0.0, float((loss - products).max()))
    s = unit - (weights @ flat).reshape(unit.shape)
    return Point(w, s, products + xi - loss, weights, xi, C - float(weights.sum()))


def _mehrotra(psi: Array, flat: Array, loss: Array, cone: Cone, now: Point, terms: int) -> Move:
    """A first direction to the optimum tells what to aim at; the second one goes there, with second-order terms."""
    scaled = cone.scaled(psi)
    normal = scaled @ scaled.T + now.xi / now.rest
    normal[np.diag_indices(len(loss))] += now.slack / now.weights
    factor = _cholesky(normal)
    first = _direction(flat, factor, loss, cone, now, 0.0, (0.0, 0.0, 0.0))
    ahead = _stepped(now, first.point, min(first.primal, 1.0), min(first.dual, 1.0))
    before = now.complement() / terms
    aim = before * min(1.0, max(ahead.complement() / terms / before, 0.0)) ** 3
    aim = aim if min(first.primal, first.dual) > 0.1 else before / 2
    way = first.point
    curved, slack, xi = cone.product(way.w, way.s), way.slack * way.weights, way.xi * way.rest
    right = loss - flat @ (aim * cone.inverse - curved).ravel() + (aim - slack) / now.weights - (aim - xi) / now.rest
    return _direction(flat, factor, right, cone, now, aim, (curved, slack, xi))


def _direction(
    flat: Array, factor: Array, right: Array, cone: Cone, now: Point, aim: float, products: tuple[Any, Any, float]
) -> Move:
    """The Newton direction to complementarity `aim`, to which the expected products of the changes of W and S, of x and
    a, and of xi and rest add."""
    weights = dpotrs(factor, right, lower=1)[0]
    s = -(weights @ flat).reshape(now.w.shape)
    total = float(weights.sum())
    w = aim * cone.inverse - now.w - cone.product(now.w, s) - products[0]
    slack = (aim - now.slack * weights - products[1]) / now.weights - now.slack
    xi = (aim + now.xi * total - products[2]) / now.rest - now.xi
    primal, dual = cone.reach(w, s)
    primal = min(primal, _way(now.slack, slack), now.xi / -xi if xi < 0 else math.inf)
    dual = min(dual, _way(now.weights, weights), now.rest / total if total > 0 else math.inf)
    return Move(Point(w, s, slack, weights, xi, -total), primal, dual)


def _stepped(now: Point, way: Point, primal: float, dual: float) -> Point:
    w, slack, xi = now.w + primal * way.w, now.slack + primal * way.slack, now.xi + primal * way.xi
    return Point(w, now.s + dual * way.s, slack, now.weights + dual * way.weights, xi, now.rest + dual * way.rest)


def _moved(flat: Array, loss: Array, unit: Array, C: float, now: Point, move: Move) -> Point:
    """The next point; what follows from W, xi and the weights is recomputed, so that rounding does not accumulate."""
    new = _stepped(now, move.point, min(1.0, SHORT * move.primal), min(1.0, SHORT * move.dual))
    s = unit - (new.weights @ flat).reshape(unit.shape)
    return new._replace(s=s, slack=flat @ new.w.ravel() + new.xi - loss, rest=C - float(new.weights.sum()))


def _cholesky(a: Array) -> Array:
    factor, info = dpotrf(a, lower=1, clean=1)
    if info:
        raise np.linalg.LinAlgError
    return np.asarray(factor)


def _reach(inverse_root: Array, way: Array) -> float:
    lowest = float(eigenvalues(inverse_root @ way @ inverse_root.T)[0])
    return -1 / lowest if lowest < 0 else math.inf


def _way(values: Array, way: Array) -> float:
    """How far positive values can go along `way` until the first one is 0."""
    share = float((-way / values).max())
    return 1 / share if share > 0 else math.inf

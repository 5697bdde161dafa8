"""The reduced problem of a cutting plane: min Omega(W) + C max(0, max_R M_R - <W, Psi_R>) over a cone.

It is solved by the method that suits the regulariser, always with both bounds. ADMM (Boyd et al. 2011) uses
over-relaxation and adapts rho: W carries the cuts, Z the cone and Omega. At every fifth step a point of the cone gives
an upper bound and the weights of the cuts a lower one; these end the search. The products of the cuts with W and U
follow from those with Z and from the Gram matrix, so that a step reads the cuts only twice.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs

from torchrank.solvers.cutting_plane.interior_point import interior_point
from torchrank.solvers.cutting_plane.regularisers import RELAXATION, Diagonal, Linear, Regulariser, Trace

Array = NDArray[np.float64]

RIDGE = 1e-13  # share of the mean diagonal; keeps the systems solvable where cuts are equal
ROUNDING = 1e-13  # share of a gradient entry by which rounding may hide that it is the lowest one
CHECK = 5  # steps between two looks at the bounds
ADAPT = 10  # steps before rho is first adapted; then twice as many each time, or ADMM would not converge
STEPS = 2000  # of ADMM, at most
FEW = 20  # steps of ADMM before the interior point method takes over
RECENT = 4  # cuts that had a weight in so many rounds probably have one now


# ---- quadratic programs over a simplex ---------------------------------------------------------------------------


class ActiveSet:
    """Minimises a'Ha/2 - q'a over a >= 0, sum a = total, for one H and many q one after another.

    The equations of the positive weights are solved; a weight that would become negative leaves, and the weight with
    the lowest entry of the gradient joins (Nocedal & Wright, algorithm 16.3). The factors of the last system are kept,
    so that a new q with the same positive weights costs two products. Of equal entries the one with the smallest index
    joins.

    >>> solver = ActiveSet(np.eye(3), 1.0, np.array([1.0, 0.0, 0.0]))
    >>> solver.minimum(np.array([0.0, 2.0, 1.5]))
    array([0.  , 0.75, 0.25])
    """

    def __init__(self, hessian: Array, total: float, weights: Array) -> None:
        count = len(hessian)
        unit = float(np.trace(hessian)) / max(count, 1) or 1.0
        self.hessian, self.total, self.unit = hessian, total, unit
        self.system = np.full((count + 1, count + 1), unit)  # the last row: the weights add up to the total
        self.system[:count, :count] = hessian
        self.system[range(count), range(count)] += RIDGE * unit
        self.system[count, count] = 0.0
        self.weights = weights.copy()
        self._factorise(np.flatnonzero(weights > 0))

    def _factorise(self, support: NDArray[np.intp]) -> None:
        self.support = support
        rows = np.append(support, len(self.hessian))
        self.factors, self.pivots, _ = dgetrf(self.system[rows[:, None], rows], overwrite_a=True)

    def minimum(self, linear: Array) -> Array:
        """The weights (R,) for this q. Stops at a feasible point, after 20 changes for each weight at the latest."""
        joined = -1
        for _ in range(20 * len(linear) + 20):
            support = self.support
            shifted = linear[support] - linear[support].max()  # a shift changes no minimum, and saves digits
            right = np.append(shifted, self.unit * self.total)
            target = dgetrs(self.factors, self.pivots, right)[0][:-1]
            if target.min() >= 0:
                weights = np.zeros_like(linear)
                weights[support] = target * (self.total / (target.sum() or self.total))  # rounding may have moved it
                self.weights = weights
                gradient = self.hessian @ weights - linear
                joined = int(gradient.argmin())
                level = gradient[support].min()
                if gradient[joined] >= level - ROUNDING * (abs(level) + abs(float(linear[joined]))):
                    return weights
                self._factorise(np.sort(np.append(support, joined)))
            elif self._leave(target) == joined:
                return self.weights  # what joined left at once: only rounding remains
        return self.weights

    def _leave(self, target: Array) -> int | None:
        """Move towards the target until a weight is 0 and leaves. Returns its index if that was no move at all."""
        now = self.weights[self.support]
        blocked = np.flatnonzero(target < 0)
        shares = now[blocked] / (now[blocked] - target[blocked])
        first = int(shares.argmin())
        share, place = shares[first], blocked[first]
        moved = np.maximum(now + share * (target - now), 0.0)
        moved[place] = 0.0
        self.weights[self.support] = moved
        gone = int(self.support[place])
        self._factorise(np.delete(self.support, place))
        return gone if share == 0 else None


# ---- the reduced problem -----------------------------------------------------------------------------------------


class Cuts(NamedTuple):
    """The cuts of a reduced problem."""

    psi: Array  # (R, n) flat
    loss: Array  # (R,)
    gram: Array  # (R, R)


class Reduced(NamedTuple):
    """The state of ADMM, and the best point and bounds found so far."""

    z: Array  # (*shape)
    u: Array  # (splits, *shape)
    rho: float  # 0: not chosen yet
    alpha: Array  # (R,)
    point: Array  # (*shape)
    upper: float
    lower: float


def solve_reduced(
    cuts: Cuts, start: Reduced, regulariser: Regulariser, C: float, tolerance: float, idle: Array
) -> Reduced:
    """A solution with upper - lower <= tolerance, unless steps or digits run out; both bounds hold then too.

    `linear` is a quadratic program over the simplex, solved exactly. The others resume ADMM from `start`. Where that is
    slow, as on correlated features, `trace` and `diagonal`, which are linear in W, end with an interior point method,
    which was 30 times as fast as a general conic solver on matrices of 46 features.
    """
    if isinstance(regulariser, Linear):
        return _exact(cuts, start, regulariser, C)
    if not isinstance(regulariser, Trace):
        return admm(cuts, start, regulariser, C, tolerance)
    solution = admm(cuts, start, regulariser, C, tolerance, FEW)
    if solution.upper - solution.lower <= tolerance:
        return solution
    return _interior(cuts, solution, regulariser, C, tolerance, idle)


def _exact(cuts: Cuts, start: Reduced, regulariser: Linear, C: float) -> Reduced:
    alpha = simplex(cuts, start.alpha, C).minimum(np.append(cuts.loss, 0.0))[:-1]
    w = (alpha @ cuts.psi).reshape(start.z.shape)
    upper = regulariser.value(w) + C * hinge(cuts, w)
    scale = min(1.0, C / alpha.sum()) if alpha.any() else 1.0
    lower = scale * float(alpha @ cuts.loss) - scale * scale * regulariser.value(w)
    return start._replace(alpha=alpha, point=w, upper=upper, lower=lower)


def _interior(cuts: Cuts, start: Reduced, regulariser: Trace, C: float, tolerance: float, idle: Array) -> Reduced:
    """Solve with the recent cuts first, then also with those that are violated, until none is."""
    shape, chosen = start.z.shape, idle < RECENT
    while True:
        used = np.flatnonzero(chosen)
        psi, loss = cuts.psi[used], cuts.loss[used]
        w, weights, complement = interior_point(psi.reshape(-1, *shape), loss, C, tolerance / 2)
        gradient = (weights @ psi).reshape(shape)
        lower = regulariser.bound(float(weights @ loss), C / float(weights.sum()), gradient)
        violations = cuts.loss - cuts.psi @ w.ravel()
        upper = regulariser.value(w) + C * max(0.0, float(violations.max()))
        more = ~chosen & (violations > max(0.0, float(violations[used].max())))
        if upper - lower <= tolerance or not more.any():
            break
        chosen = chosen | more
    alpha = np.zeros_like(cuts.loss)
    alpha[used] = np.where(weights > math.sqrt(complement * C), weights, 0.0)
    solution = start._replace(alpha=alpha, lower=max(lower, start.lower))
    solution = solution._replace(point=w, upper=upper) if upper < start.upper else solution
    return _with_zeros(cuts, solution, w, gradient, C, tolerance) if isinstance(regulariser, Diagonal) else solution


def _with_zeros(cuts: Cuts, solution: Reduced, w: Array, gradient: Array, C: float, tolerance: float) -> Reduced:
    """A diagonal with exact zeros, where that is as good: at the minimum a weight or the slack of its bound is 0. The
    other weights grow by what the binding cuts lose, which is next to nothing."""
    rest, binding = w * (w / w.sum() > 1 - gradient), solution.alpha > 0
    had, has = cuts.psi[binding] @ w, cuts.psi[binding] @ rest
    rest = rest * np.max(had[has > 0] / has[has > 0], initial=1.0)
    upper = float(rest.sum()) + C * hinge(cuts, rest)
    return solution._replace(point=rest, upper=upper) if upper - solution.lower <= tolerance else solution


def hinge(cuts: Cuts, w: Array) -> float:
    """The largest violation of a cut at W, or 0."""
    return max(0.0, float((cuts.loss - cuts.psi @ w.ravel()).max(initial=0.0)))


def admm(
    cuts: Cuts, start: Reduced, regulariser: Regulariser, C: float, tolerance: float, max_steps: int = STEPS
) -> Reduced:
    """Resume from `start` until upper - lower <= tolerance. Both bounds also hold when `max_steps` end the search."""
    solver = simplex(cuts, start.alpha, C)
    shape, psi = start.z.shape, cuts.psi
    first_rho = float(np.sqrt(np.trace(cuts.gram) / max(len(cuts.loss), 1))) * min(1.0, C) or 1.0
    z, u, rho = start.z, start.u, start.rho or first_rho
    at_z, at_u = psi @ z.ravel(), psi @ u[0].ravel()
    best = start._replace(upper=np.inf, lower=-np.inf)
    adapt = ADAPT
    for step in range(1, max_steps + 1):
        at_y = at_z - at_u
        alpha = solver.minimum(np.append(rho * (cuts.loss - at_y), 0.0))[:-1]
        gradient = (alpha @ psi).reshape(shape)
        w = z - u[0] + gradient / rho
        at_relaxed = RELAXATION * (at_y + cuts.gram @ alpha / rho) + (1 - RELAXATION) * at_z
        old = z
        z, u = regulariser.step(RELAXATION * w + (1 - RELAXATION) * z, z, u, rho)
        at_z = psi @ z.ravel()
        at_u = at_u + at_relaxed - at_z
        if step % CHECK == 0 or step == max_steps:
            total = float(alpha.sum())
            room, multiplier = C / total if total > 0 else 1.0, regulariser.row_multiplier(z, u, rho)
            lower = regulariser.bound(float(alpha @ cuts.loss), room, gradient, multiplier)
            point = regulariser.candidate(z, u, rho)
            upper = regulariser.value(point) + C * hinge(cuts, point)
            if upper < best.upper:
                best = best._replace(point=point, upper=upper)
            best = best._replace(lower=max(best.lower, lower))
            if best.upper - best.lower <= tolerance:
                break
        if step == adapt:
            factor = _balance(w, z, old, u)
            rho, u, at_u = rho * factor, u / factor, at_u / factor
            adapt = 2 * adapt
    return best._replace(z=z, u=u, rho=rho, alpha=alpha)


def simplex(cuts: Cuts, alpha: Array, C: float) -> ActiveSet:
    """The weights of the cuts, with the empty cut (0, 0) at the end so that they add up to C."""
    count = len(alpha)
    hessian = np.zeros((count + 1, count + 1))
    hessian[:count, :count] = cuts.gram
    used = np.maximum(alpha, 0.0)
    used = used * min(1.0, C / used.sum()) if used.any() else used
    return ActiveSet(hessian, C, np.append(used, max(C - used.sum(), 0.0)))


def _balance(w: Array, z: Array, old: Array, u: Array) -> float:
    """Factor for rho that balances the relative residuals of W = Z and of the multipliers; 1 where they are close."""
    primal = np.linalg.norm(w - z) * np.linalg.norm(u[0])
    dual = np.linalg.norm(z - old) * np.linalg.norm(z)
    if primal == dual:  # also where both are 0
        return 1.0
    factor = float(np.clip(np.sqrt(primal / dual), 0.2, 5.0)) if dual > 0 else 5.0  # Z may stay at 0
    return 1.0 if 0.5 <= factor <= 2 else factor

"""The reduced problem of a cutting plane: min Omega(W) + C max(0, max_R M_R - <W, Psi_R>) over a cone, by ADMM.

Boyd et al. 2011, with over-relaxation and adapted rho. W carries the cuts, Z the cone and Omega. Each fifth step a
point of the cone gives an upper bound and the weights of the cuts a lower one, which end the search. The products of
the cuts with W and U follow from those with Z and from the Gram matrix, so that a step reads the cuts only twice.
"""

from typing import NamedTuple

import numpy as np

from torchrank.solvers.cutting_plane.active_set import ActiveSet, Array
from torchrank.solvers.cutting_plane.regularisers import RELAXATION, Regulariser

CHECK = 5  # steps from one look at the bounds to the next
ADAPT = 10  # steps to the first look at rho; twice as many to each next one, or it keeps ADMM from converging
STEPS = 2000


class Cuts(NamedTuple):
    """What the reduced problem is made of."""

    psi: Array  # (R, n) flat
    loss: Array  # (R,)
    gram: Array  # (R, R)


class Reduced(NamedTuple):
    """Where ADMM stands, and the best point and bound it has found."""

    z: Array  # (*shape)
    u: Array  # (splits, *shape)
    rho: float  # 0: not chosen yet
    alpha: Array  # (R,)
    point: Array  # (*shape)
    upper: float
    lower: float
    steps: int


def hinge(cuts: Cuts, w: Array) -> float:
    return max(0.0, float((cuts.loss - cuts.psi @ w.ravel()).max(initial=0.0)))


def admm(
    cuts: Cuts, start: Reduced, regulariser: Regulariser, C: float, tolerance: float, max_steps: int = STEPS
) -> Reduced:
    """Goes on from `start` until upper - lower <= tolerance. With `max_steps` spent both bounds still hold."""
    solver = simplex(cuts, start.alpha, C)
    shape, psi = start.z.shape, cuts.psi
    z, u, rho = start.z, start.u, start.rho or _first_rho(cuts, C)
    at_z, at_u = psi @ z.ravel(), psi @ u[0].ravel()
    best = start._replace(upper=np.inf, lower=-np.inf)
    adapt = ADAPT
    for step in range(1, max_steps + 1):
        at_y = at_z - at_u
        full = solver.minimum(np.append(rho * (cuts.loss - at_y), 0.0))
        alpha = full[:-1]
        slope = (alpha @ psi).reshape(shape)
        w = z - u[0] + slope / rho
        at_relaxed = RELAXATION * (at_y + cuts.gram @ alpha / rho) + (1 - RELAXATION) * at_z
        old = z
        z, u = regulariser.step(RELAXATION * w + (1 - RELAXATION) * z, z, u, rho)
        at_z = psi @ z.ravel()
        at_u = at_u + at_relaxed - at_z
        if step % CHECK == 0 or step == max_steps:
            best = _look(best, cuts, regulariser, C, alpha, slope, z, u, rho)
            if best.upper - best.lower <= tolerance:
                break
        if step == adapt:
            factor = _balance(w, z, old, u)
            rho, u, at_u = rho * factor, u / factor, at_u / factor
            adapt = 2 * adapt
    return best._replace(z=z, u=u, rho=rho, alpha=alpha, steps=step)


def simplex(cuts: Cuts, alpha: Array, C: float) -> ActiveSet:
    """The weights of the cuts, with the empty cut (0, 0) at the end so that they add up to C."""
    count = len(alpha)
    hessian = np.zeros((count + 1, count + 1))
    hessian[:count, :count] = cuts.gram
    used = np.maximum(alpha, 0.0)
    used = used * min(1.0, C / used.sum()) if used.any() else used
    return ActiveSet(hessian, C, np.append(used, max(C - used.sum(), 0.0)))


def _first_rho(cuts: Cuts, C: float) -> float:
    return float(np.sqrt(np.trace(cuts.gram) / max(len(cuts.loss), 1))) * min(1.0, C) or 1.0


def _look(
    best: Reduced,
    cuts: Cuts,
    regulariser: Regulariser,
    C: float,
    alpha: Array,
    slope: Array,
    z: Array,
    u: Array,
    rho: float,
) -> Reduced:
    """The bounds of this step, where they are better than those before."""
    total = float(alpha.sum())
    lower = regulariser.bound(float(alpha @ cuts.loss), C / total if total > 0 else 1.0, slope, z, u, rho)
    point = regulariser.candidate(z, u, rho)
    upper = regulariser.value(point) + C * hinge(cuts, point)
    if upper < best.upper:
        best = best._replace(point=point, upper=upper)
    return best._replace(lower=max(best.lower, lower))


def _balance(w: Array, z: Array, old: Array, u: Array) -> float:
    """Factor of rho that evens out the relative residuals of W = Z and of the multipliers; 1 where they are near."""
    primal = np.linalg.norm(w - z) * np.linalg.norm(u[0])
    dual = np.linalg.norm(z - old) * np.linalg.norm(z)
    if primal == dual:  # also where both are 0
        return 1.0
    factor = float(np.clip(np.sqrt(primal / dual), 0.2, 5.0)) if dual > 0 else 5.0  # Z may stay at 0
    return 1.0 if 0.5 <= factor <= 2 else factor

"""The reduced problem of a cutting plane by the method that suits the regulariser, always with both bounds."""

import math

import numpy as np

from torchrank.solvers.cutting_plane.active_set import Array
from torchrank.solvers.cutting_plane.admm import Cuts, Reduced, admm, hinge, simplex
from torchrank.solvers.cutting_plane.interior_point import interior_point
from torchrank.solvers.cutting_plane.regularisers import Diagonal, Linear, Regulariser, Trace

FEW = 20  # steps of ADMM before the interior point method takes over
RECENT = 4  # cuts with a weight in the last rounds: those that probably have one now


def solve_reduced(
    cuts: Cuts, start: Reduced, regulariser: Regulariser, C: float, tolerance: float, idle: Array
) -> Reduced:
    """Upper - lower <= tolerance, unless steps or digits run out; both bounds hold then too.

    `linear` is a quadratic program over the simplex, solved exactly. The others go on from `start` by ADMM. Where it
    is slow, as on correlated features, `trace` and `diagonal` end with an interior point method, being linear in W.
    """
    if isinstance(regulariser, Linear):
        return _exact(cuts, start, regulariser, C)
    if not isinstance(regulariser, Trace | Diagonal):
        return admm(cuts, start, regulariser, C, tolerance)
    found = admm(cuts, start, regulariser, C, tolerance, FEW)
    return found if found.upper - found.lower <= tolerance else _interior(cuts, found, regulariser, C, tolerance, idle)


def _exact(cuts: Cuts, start: Reduced, regulariser: Linear, C: float) -> Reduced:
    alpha = simplex(cuts, start.alpha, C).minimum(np.append(cuts.loss, 0.0))[:-1]
    w = (alpha @ cuts.psi).reshape(start.z.shape)
    upper = regulariser.value(w) + C * hinge(cuts, w)
    scale = min(1.0, C / alpha.sum()) if alpha.any() else 1.0
    lower = scale * float(alpha @ cuts.loss) - scale * scale * regulariser.value(w)
    return start._replace(alpha=alpha, point=w, upper=upper, lower=lower)


def _interior(cuts: Cuts, start: Reduced, regulariser: Regulariser, C: float, tolerance: float, idle: Array) -> Reduced:
    """With the recent cuts first, then also with those that are violated, until none is."""
    shape, chosen = start.z.shape, idle < RECENT
    while True:
        used = np.flatnonzero(chosen)
        psi, loss = cuts.psi[used], cuts.loss[used]
        w, weights, complement = interior_point(psi.reshape(-1, *shape), loss, C, tolerance / 2)
        slope = (weights @ psi).reshape(shape)
        lower = regulariser.bound(float(weights @ loss), C / float(weights.sum()), slope, w, slope[None], 1.0)
        violations = cuts.loss - cuts.psi @ w.ravel()
        upper = regulariser.value(w) + C * max(0.0, float(violations.max()))
        more = ~chosen & (violations > max(0.0, float(violations[used].max())))
        if upper - lower <= tolerance or not more.any():
            break
        chosen = chosen | more
    alpha = np.zeros_like(cuts.loss)
    alpha[used] = np.where(weights > math.sqrt(complement * C), weights, 0.0)
    found = start._replace(alpha=alpha, lower=max(lower, start.lower))
    found = found._replace(point=w, upper=upper) if upper < start.upper else found
    return _with_zeros(cuts, found, w, slope, C, tolerance) if isinstance(regulariser, Diagonal) else found


def _with_zeros(cuts: Cuts, found: Reduced, w: Array, slope: Array, C: float, tolerance: float) -> Reduced:
    """A diagonal with exact zeros, where that is as good: of each weight and what its bound has left one is 0 at the
    minimum. The others grow by what the cuts that bind lose, next to nothing."""
    rest, binding = w * (w / w.sum() > 1 - slope), found.alpha > 0
    had, has = cuts.psi[binding] @ w, cuts.psi[binding] @ rest
    rest = rest * np.max(had[has > 0] / has[has > 0], initial=1.0)
    upper = float(rest.sum()) + C * hinge(cuts, rest)
    return found._replace(point=rest, upper=upper) if upper - found.lower <= tolerance else found

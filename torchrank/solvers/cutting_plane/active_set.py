"""Quadratic programs over a simplex by a primal active-set method: the weights of the cuts of a cutting plane."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs

Array = NDArray[np.float64]

RIDGE = 1e-13  # share of the mean diagonal; keeps the systems solvable where cuts are equal
ROUNDING = 1e-13  # share of a slope by which rounding may hide that it is the lowest one


class ActiveSet:
    """Minimises a'Ha/2 - q'a over a >= 0, sum a = total, for one H and many q one after another.

    The equations of the positive weights are solved; a weight that would become negative leaves, and the weight with
    the lowest slope joins (Nocedal & Wright, algorithm 16.3). The factors of the last system are kept, so that a new q
    with the same positive weights costs two products. Of equal slopes the one with the smallest index joins.

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
        self._take(np.flatnonzero(weights > 0))

    def _take(self, support: NDArray[np.intp]) -> None:
        self.support = support
        rows = np.append(support, len(self.hessian))
        self.factors, self.pivots, _ = dgetrf(self.system[rows[:, None], rows], overwrite_a=True)

    def minimum(self, linear: Array) -> Array:
        """The weights (R,) for this q. Stops at a feasible point, after 20 changes for each weight at the latest."""
        joined = -1
        for _ in range(20 * len(linear) + 20):
            support = self.support
            own = linear[support] - linear[support].max()  # a shift changes no minimum, and saves digits
            right = np.append(own, self.unit * self.total)
            target = dgetrs(self.factors, self.pivots, right)[0][:-1]
            if target.min() >= 0:
                weights = np.zeros_like(linear)
                weights[support] = target * (self.total / (target.sum() or self.total))  # rounding may have moved it
                self.weights = weights
                slopes = self.hessian @ weights - linear
                joined = int(slopes.argmin())
                level = slopes[support].min()
                if slopes[joined] >= level - ROUNDING * (abs(level) + abs(float(linear[joined]))):
                    return weights
                self._take(np.sort(np.append(support, joined)))
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
        self._take(np.delete(self.support, place))
        return gone if share == 0 else None

"""The domination objective typed again, plainly: all pairs of every list, and scipy's solver for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.optimize import minimize

Delta = Callable[[float, float], float]  # labels of i and of the dominated j -> margin between them


def margins_of(labels: np.ndarray, delta: Delta | None) -> np.ndarray:
    """delta of all pairs (n, n)."""
    found = [delta(a, b) if delta and b < a else 0.0 for a in labels for b in labels]
    return np.array(found).reshape(len(labels), len(labels))


def list_loss(scores: np.ndarray, labels: np.ndarray, margins: np.ndarray) -> tuple[float, np.ndarray]:
    """sum_i log(1 + sum_{j: y_j < y_i} exp(f_j - f_i + margin_ij)) of one list, and its slopes: all pairs (n, n)."""
    terms = np.where(labels[:, None] > labels, scores - scores[:, None] + margins, -np.inf)
    top = np.maximum(terms.max(1, initial=0.0), 0.0)
    losses = top + np.log(np.exp(-top) + np.exp(terms - top[:, None]).sum(1))
    shares = np.exp(terms - losses[:, None])
    return losses.sum(), shares.sum(0) - shares.sum(1)


class Objective:
    """F(w) = sum of the losses of the lists + l1 |w|_1 + l2 |w|^2."""

    def __init__(self, x, labels, offsets, l1=0.0, l2=0.0, delta: Delta | None = None):
        self.x, self.labels = np.asarray(x, dtype=np.float64), np.asarray(labels, dtype=np.float64)
        self.blocks = [slice(a, b) for a, b in pairwise(np.asarray(offsets).tolist())]
        self.margins = [margins_of(self.labels[block], delta) for block in self.blocks]
        self.l1, self.l2 = l1, l2

    def loss(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = 0.0, np.zeros(self.x.shape[1])
        for block, margins in zip(self.blocks, self.margins, strict=True):
            value, slopes = list_loss(self.x[block] @ w, self.labels[block], margins)
            total += value
            gradient += self.x[block].T @ slopes
        return total, gradient

    def __call__(self, w: np.ndarray) -> float:
        return self.loss(w)[0] + self.l1 * np.abs(w).sum() + self.l2 * (w @ w)

    def lambda_max(self) -> float:
        return float(np.abs(self.loss(np.zeros(self.x.shape[1]))[1]).max())

    def violation(self, w: np.ndarray) -> float:
        """The largest distance of a coordinate from its optimality condition."""
        found = []
        for r, slope in enumerate(self.loss(w)[1] + 2 * self.l2 * w):
            if w[r] > 0:
                found.append(abs(slope + self.l1))
            elif w[r] < 0:
                found.append(abs(slope - self.l1))
            else:
                found.append(max(abs(slope) - self.l1, 0.0))
        return max(found)

    def minimum(self) -> tuple[float, np.ndarray]:
        """By L-BFGS-B on w = u - v with u, v >= 0, where |w| is the sum of u and v."""
        width = self.x.shape[1]

        def split(z):
            w = z[:width] - z[width:]
            value, gradient = self.loss(w)
            slope = gradient + 2 * self.l2 * w
            return value + self.l1 * z.sum() + self.l2 * (w @ w), np.concatenate([slope, -slope]) + self.l1

        options = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 20_000, "maxfun": 20_000, "maxcor": 30}
        bounds = [(0, None)] * (2 * width)
        solved = minimize(split, np.zeros(2 * width), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        w = solved.x[:width] - solved.x[width:]
        return self(w), w

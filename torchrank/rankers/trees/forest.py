"""Trees as flat arrays, and what they add to the scores of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Forest(NamedTuple):
    """All nodes of all trees: node i goes to `left[i]` where x[feature[i]] <= threshold[i], otherwise to `right[i]`.

    A leaf leads to itself and has the value that it adds to the score. The values have the precision in which the
    engine adds them.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    roots: np.ndarray

    @property
    def depth(self) -> int:
        """The most decisions on the way to a leaf."""
        here, depth = self.roots, -1
        while len(here):
            inner = here[self.left[here] != here]
            here, depth = np.concatenate((self.left[inner], self.right[inner])), depth + 1
        return max(depth, 0)

    def added_to(self, scores: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Scores (N,) and the values of all trees for the rows (N, D), tree by tree as engines add them.

        Rows are divided at every node, so that a row is read once for every decision on its way, and not as a whole.

        >>> stump = Forest(*map(np.array, ([1, 0, 0], [0.5, 0, 0], [1, 1, 2], [2, 1, 2], [0, 4, 8], [0])))
        >>> join([leaf(1.0), stump]).added_to(np.zeros(2), np.array([[9.0, 0.5], [9.0, 0.6]]))
        array([5., 9.])
        """
        scores, left, right = scores.copy(), self.left.tolist(), self.right.tolist()
        waiting: list[tuple[int, np.ndarray]] = [(root, np.arange(len(x))) for root in self.roots[::-1].tolist()]
        while waiting:
            node, rows = waiting.pop()
            if left[node] == node:
                scores[rows] += self.value[node]
                continue
            below = x[:, self.feature[node]][rows] <= self.threshold[node]
            waiting += [(right[node], rows[~below]), (left[node], rows[below])]
        return scores


def leaf(value: float, dtype: type = np.float64) -> Forest:
    """A tree that adds the same value to all scores."""
    nothing = np.zeros(1, dtype=np.int64)
    return Forest(nothing, np.zeros(1), nothing, nothing, np.array([value], dtype=dtype), nothing)


def join(forests: Iterable[Forest]) -> Forest:
    """The trees of several forests, in their order."""
    every = list(forests)
    starts = np.cumsum([0, *(len(each.feature) for each in every)])[:-1].tolist()
    moved = [
        each._replace(left=each.left + start, right=each.right + start, roots=each.roots + start)
        for each, start in zip(every, starts, strict=True)
    ]
    return Forest(*map(np.concatenate, zip(*moved, strict=True)))

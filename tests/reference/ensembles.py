"""Ensembles in plain numpy: standardised means, and greedy selection by brute force."""

from itertools import pairwise

import numpy as np


def standardised(scores, offsets):
    """Mean 0 and deviation 1 in every list; 0 where all scores of a list are equal."""
    found = np.zeros(len(scores))
    for a, b in pairwise(offsets):
        own = np.asarray(scores[a:b], dtype=np.float64)
        if b > a and own.max() > own.min():
            found[a:b] = (own - own.mean()) / own.std()
    return found


def mean(every, offsets, weights=None):
    """The weighted mean of the standardised scores (M, N) of the members."""
    weights = np.ones(len(every)) if weights is None else np.asarray(weights, dtype=np.float64)
    return sum(w * standardised(each, offsets) for w, each in zip(weights, every, strict=True)) / weights.sum()


def ndcg(scores, labels, offsets, k=10):
    """Mean over the lists that have a relevant document; equal scores in the order of the file."""
    found = []
    for a, b in pairwise(offsets):
        gains = 2.0 ** labels[a:b] - 1
        discounts = 1 / np.log2(np.arange(2, b - a + 2))
        order = np.argsort(-scores[a:b], kind="stable")
        ideal = (np.sort(gains)[::-1] * discounts)[:k].sum()
        if ideal > 0:
            found.append((gains[order] * discounts)[:k].sum() / ideal)
    return np.mean(found)


def greedy(every, labels, offsets, steps):
    """Numbers of times that each member is taken: every step tries all of them; the best of all bags counts."""
    bag, bags = [], []
    for _ in range(steps):
        tried = [ndcg(mean(every[[*bag, m]], offsets), labels, offsets) for m in range(len(every))]
        best = next(m for m, value in enumerate(tried) if value >= max(tried) - 1e-12)
        bag = [*bag, best]
        bags.append((tried[best], bag))
    top = max(value for value, _ in bags)
    chosen = next(bag for value, bag in bags if value >= top - 1e-12)
    return np.bincount(chosen, minlength=len(every))

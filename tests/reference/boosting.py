"""RankBoost and AdaRank typed again, plainly: D over explicit pairs, every threshold tried, one list at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.reference import measures as reference


def draw(seed, *, grades=4, real=False, longest=8):
    """Lists of 0..`longest` documents with tied features (one continuous, one constant), some without a pair.

    Rankers keep rows in float32, so all values are of 32 bits: the loops see the same numbers.
    """
    random = np.random.default_rng(seed)
    lengths = np.append(random.integers(0, longest + 1, 10), [1, 5])
    offsets = np.concatenate([[0], lengths.cumsum()])
    x = random.integers(0, 5, (offsets[-1], 5)) / 4 - 0.5
    x[:, 1] = random.normal(size=len(x))
    x[:, 3] = 1.0
    noisy = 2 * x[:, 0] - 2 * x[:, 2] + 0.3 * x[:, 1] + 0.7 * random.normal(size=len(x))
    labels = np.digitize(noisy, np.linspace(-1, 1, grades - 1)).astype(float)
    if real:
        labels = labels / 3 + 0.1
    labels[-5:] = labels[-1]  # a list with one label
    return x.astype(np.float32).astype(np.float64), labels, offsets


def crucial_pairs(labels, offsets) -> list[tuple[int, int, int]]:
    """(list, loser, winner) for all pairs of documents of one list with different labels."""
    return [
        (q, i, j)
        for q, (first, last) in enumerate(itertools.pairwise(offsets))
        for i in range(first, last)
        for j in range(first, last)
        if labels[i] < labels[j]
    ]


def rankboost(
    x, labels, offsets, rounds, *, pair_weight="uniform", allow_negative=True, alpha="approximate", edges=None
):
    """Rounds of (feature, threshold, alpha, Z), the exponential loss after each round by D_1, and the last D.

    `edges[f]` are the thresholds to try, by default all values of the feature among the documents that have a pair.
    """
    pairs = crucial_pairs(labels, offsets)
    q, low, high = (np.array(part) for part in zip(*pairs, strict=True))
    start = np.full(len(pairs), 1 / len(pairs))
    if pair_weight == "query":
        counts = np.bincount(q)
        start = 1 / (counts[q] * np.count_nonzero(counts))
    paired = np.isin(np.arange(len(x)), np.concatenate([low, high]))
    weights, scores, found, losses = start.copy(), np.zeros(len(x)), [], []
    for _ in range(rounds):
        best = (-math.inf, 0, 0.0, 0.0)
        for f in range(x.shape[1]):
            tried = sorted(set(x[paired, f])) if edges is None else sorted(set(edges[f]))
            for theta in reversed(tried):
                h = (x[:, f] > theta).astype(float)
                r = float(np.sum(weights * (h[high] - h[low])))
                value = abs(r) if allow_negative else r
                if value > best[0] + 1e-12:
                    best = (value, f, theta, r)
        _, f, theta, r = best
        h = (x[:, f] > theta).astype(float)
        step = h[high] - h[low]
        if alpha == "exact":
            smooth = 1 / (2 * len(pairs))
            a = 0.5 * math.log((weights[step > 0].sum() + smooth) / (weights[step < 0].sum() + smooth))
        else:
            r = min(max(r, -1 + 1e-10), 1 - 1e-10)
            a = 0.5 * math.log((1 + r) / (1 - r))
        weights = weights * np.exp(-a * step)
        z = weights.sum()
        weights /= z
        scores += a * h
        found.append((f, theta, a, z))
        losses.append(float(np.sum(start * np.exp(scores[low] - scores[high]))))
    return found, losses, weights


def potentials(weights, labels, offsets) -> np.ndarray:
    """Mass of the pairs in which a document wins minus that of those in which it loses."""
    found = np.zeros(len(labels))
    for weight, (_, i, j) in zip(weights, crucial_pairs(labels, offsets), strict=True):
        found[j] += weight
        found[i] -= weight
    return found


def quality(scores, labels, offsets, measure, ties) -> np.ndarray:
    """The measure of every list, nan without a relevant document; ties="average" tries all orders of equal scores."""
    values = []
    for first, last in itertools.pairwise(offsets):
        s, y = list(map(float, scores[first:last])), list(map(float, labels[first:last]))
        orders = [reference.stable_order(s)] if ties == "stable" else list(reference.tie_orders(s))
        values.append(np.mean([ranked(y, order, measure) for order in orders]))
    return np.array(values)


def ranked(labels, order, measure) -> float:
    places = [-float(order.index(i)) for i in range(len(labels))]
    family, _, cut = measure.partition("@")
    function = reference.average_precision if family == "map" else reference.ndcg
    return function(places, labels, k=int(cut) if cut else None)


def adarank(
    x,
    labels,
    offsets,
    rounds,
    *,
    measure,
    ties="stable",
    both_directions=False,
    exclude_repeat=True,
    tol=1e-5,
    patience=10,
):
    """Rounds of (column, alpha, mean training measure); columns D.. are the negated features."""
    columns = np.concatenate([x, -x], axis=1) if both_directions else x
    single = np.stack([quality(c, labels, offsets, measure, ties) for c in columns.T], axis=1)
    used = ~np.isnan(single[:, 0])
    single = single[used]
    before, scores, order = np.zeros(len(single)), np.zeros(len(x)), None
    out: set[int] = set()
    found: list[tuple[int, float, float]] = []
    for t in range(rounds):
        p = np.exp(-before) / np.exp(-before).sum() if t else np.full(len(single), 1 / len(single))
        best = (-math.inf, -1)
        for c in range(columns.shape[1]):
            value = float(p @ single[:, c])
            if c not in out and value > best[0] + 1e-12:
                best = (value, c)
        c = best[1]
        if c < 0:
            break
        a = 0.5 * math.log(float(p @ (1 + single[:, c])) / max(float(p @ (1 - single[:, c])), 1e-12))
        scores = scores + a * columns[:, c]
        now = quality(scores, labels, offsets, measure, ties)[used]
        found.append((c, a, float(now.mean())))
        still = t > 0 and np.abs(now - before).max() <= 1e-12
        new_order = [reference.stable_order(list(scores[i:j])) for i, j in itertools.pairwise(offsets)]
        if not exclude_repeat:
            if still and new_order == order:
                break
        else:
            out = out | {c} if still else set()
            means = [mean for *_, mean in found]
            if t + 1 > patience and max(means[-patience:]) < max(means[:-patience]) + tol:
                break
        before, order = now, new_order
    return found

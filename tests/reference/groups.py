"""Metrics of groups of similar queries typed again, plainly, in numpy: one pair, one list, one document at a time.

A list is a tuple `(rows, labels)`, its rows as the transform made them. What is not said here in a formula is said in
the docstring of `LGMML`.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from scipy.linalg import fractional_matrix_power, inv, sqrtm
from scipy.stats import multivariate_normal

from tests.reference.local_metrics import high_and_low
from tests.reference.measures import blocks, ndcg
from torchrank import RankingSet

List = tuple[np.ndarray, np.ndarray]


# --- groups ---


def squared(point: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.array([((point - centre) ** 2).sum() for centre in centres])


def spread(points: np.ndarray, centres: np.ndarray) -> float:
    """The sum of the squared distances of the points from their nearest centre."""
    return math.fsum(squared(point, centres).min() for point in points)


def least_spread(points: np.ndarray, count: int) -> float:
    """That of the best division of a few points into groups, by trying them all."""
    best = math.inf
    for cells in itertools.product(range(count), repeat=len(points)):
        groups = [points[np.array(cells) == cell] for cell in set(cells)]
        best = min(best, sum(((group - group.mean(0)) ** 2).sum() for group in groups))
    return best


def kmeans(points: np.ndarray, count: int, starts: int = 20) -> np.ndarray:
    """The centres with the least spread that scipy finds from many starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a start that loses a group
        found = [kmeans2(points, count, iter=100, minit="++", rng=np.random.default_rng(s))[0] for s in range(starts)]
    return min(found, key=lambda centres: spread(points, centres))


def posterior(point: np.ndarray, centres: np.ndarray, width: float) -> np.ndarray:
    """The shares of Gaussians that are equally likely and have variance `width` in every direction; 0: the nearest."""
    if width == 0:
        return np.eye(len(centres))[int(np.argmin(squared(point, centres)))]
    logs = np.array([multivariate_normal(centre, width).logpdf(point) for centre in centres])
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


# --- sums and averages ---


class Sums(NamedTuple):
    similar: np.ndarray
    dissimilar: np.ndarray
    pairs: tuple[int, int]
    means: np.ndarray  # (2, D)
    lists: int


def sums(lists: Sequence[List], width: int, high: str = "half") -> Sums:
    """Over all pairs of the lists that have both kinds of documents."""
    similar, dissimilar, means = np.zeros((width, width)), np.zeros((width, width)), np.zeros((2, width))
    similar_pairs = dissimilar_pairs = used = 0
    for rows, labels in lists:
        highs, lows = high_and_low(labels, high) if len(labels) else ([], [])
        if len(highs) == 0 or len(lows) == 0:
            continue
        used += 1
        means += np.stack([rows[highs].mean(0), rows[lows].mean(0)])
        for i, j in itertools.combinations(highs, 2):
            similar += np.outer(rows[i] - rows[j], rows[i] - rows[j])
            similar_pairs += 1
        for i, j in itertools.product(highs, lows):
            dissimilar += np.outer(rows[i] - rows[j], rows[i] - rows[j])
            dissimilar_pairs += 1
    return Sums(similar, dissimilar, (similar_pairs, dissimilar_pairs), means, used)


class Averages(NamedTuple):
    similar: np.ndarray
    dissimilar: np.ndarray
    high: np.ndarray
    delta: np.ndarray


def averages(found: Sums) -> Averages:
    means = found.means / max(found.lists, 1)
    similar, dissimilar = (part / max(n, 1) for part, n in zip(found[:2], found.pairs, strict=True))
    return Averages(similar, dissimilar, means[0], means[0] - means[1])


def shrunk(own: Sums, whole: Averages, alpha: float) -> Averages:
    """Towards all lists, with weight n / (n + alpha) for what is the group's own."""
    share = 0.0 if math.isinf(alpha) else own.lists / (own.lists + alpha) if own.lists else 0.0
    known = (*(n > 0 for n in own.pairs), own.lists > 0, own.lists > 0)
    parts = zip(averages(own), whole, known, strict=True)
    return Averages(*(share * mine + (1 - share) * all_ if knows else all_ for mine, all_, knows in parts))


# --- metrics and scores ---


def metric(found: Averages, t: float, ridge: float, live: np.ndarray) -> np.ndarray:
    """S^-1/2 (S^1/2 D S^1/2)^t S^-1/2 on the live features, 0 on the others."""
    size = len(live)
    similar, dissimilar = (part[np.ix_(live, live)] for part in found[:2])
    similar = similar + ridge * np.trace(similar) / size * np.eye(size)
    dissimilar = dissimilar + ridge * np.trace(dissimilar) / size * np.eye(size)
    root = np.real(sqrtm(similar))
    middle = np.real(fractional_matrix_power(root @ dissimilar @ root, t))
    whole = np.zeros_like(found.similar)
    whole[np.ix_(live, live)] = inv(root) @ middle @ inv(root)
    return whole


def live_features(dissimilar: np.ndarray) -> np.ndarray:
    """The features that differ in some pair of a high and a low document."""
    return np.flatnonzero(np.diag(dissimilar) > 0)


def length(metric: np.ndarray, vector: np.ndarray) -> float:
    return math.sqrt(vector @ metric @ vector)


def linear_score(metric: np.ndarray, found: Averages, row: np.ndarray) -> float:
    return float((row - found.high) @ metric @ found.delta) / length(metric, found.delta)


def finite_score(metric: np.ndarray, found: Averages, kappa: float, row: np.ndarray) -> float:
    """||mu+ - a|| - ||x - a|| in decimals, of which so many are taken that none is lost."""
    with localcontext() as context:
        context.prec = 80
        exact = [[Decimal(float(value)) for value in line] for line in metric]

        def measure(vector):
            lines = (sum(m * v for m, v in zip(line, vector, strict=True)) for line in exact)
            return sum(v * product for v, product in zip(vector, lines, strict=True)).sqrt()

        step = [Decimal(kappa) * Decimal(float(d)) for d in found.delta]
        away = [Decimal(float(x)) - Decimal(float(h)) - s for x, h, s in zip(row, found.high, step, strict=True)]
        return float(measure(step) - measure(away))


class Model(NamedTuple):
    """Metric 0 is that of all lists, the others are those of the groups; with one group there is one metric."""

    centres: np.ndarray
    width: float
    metrics: list[np.ndarray]
    found: list[Averages]
    deviations: np.ndarray
    weights: np.ndarray
    kappa: float


def query_point(rows: np.ndarray, query: np.ndarray | None) -> np.ndarray:
    return rows.mean(0) if query is None else query


def own_score(model: Model, r: int, row: np.ndarray, query: np.ndarray | None) -> float:
    if query is not None:
        return -length(model.metrics[r], row - query)
    if math.isinf(model.kappa):
        return linear_score(model.metrics[r], model.found[r], row)
    return finite_score(model.metrics[r], model.found[r], model.kappa, row)


def shares(model: Model, rows: np.ndarray, query: np.ndarray | None) -> np.ndarray:
    """Of all metrics in a list, by where it lies."""
    if len(model.metrics) == 1:
        return np.ones(1)
    return np.concatenate([[1.0], posterior(query_point(rows, query), model.centres, model.width)])


def fit(
    lists: Sequence[List], *, groups=1, alpha=math.inf, t=0.5, ridge=0.1, gate="hard", kappa=math.inf, high="half",
    queries=None, centres=None,
) -> Model:  # fmt: skip
    """The closed form; `centres`: those of other lists."""
    width, queries = lists[0][0].shape[1], [None] * len(lists) if queries is None else queries
    points = np.array([query_point(rows, query) for (rows, _), query in zip(lists, queries, strict=True)])
    if centres is None:
        centres = points.mean(0, keepdims=True) if groups == 1 else kmeans(points, groups)
    cells = [int(np.argmin(squared(point, centres))) for point in points]
    whole = averages(sums(lists, width, high))
    found = [whole]
    if len(centres) > 1:
        own = [[each for each, cell in zip(lists, cells, strict=True) if cell == g] for g in range(len(centres))]
        found += [shrunk(sums(some, width, high), whole, alpha) for some in own]
    live = live_features(whole.dissimilar)
    metrics = [metric(each, t, ridge, live) for each in found]
    variance = spread(points, centres) / points.size if gate == "soft" else 0.0
    model = Model(centres, variance, metrics, found, np.ones(len(found)), np.array([0.0, *[1] * len(centres)]), kappa)
    if len(found) == 1:
        return model._replace(weights=np.ones(1))
    return model._replace(deviations=deviations(model, lists, queries))


def deviations(model: Model, lists: Sequence[List], queries: Sequence[np.ndarray | None]) -> np.ndarray:
    """Of the scores of each metric over all entries, which count by the share of the metric in their list."""
    found = []
    for r in range(len(model.metrics)):
        values, counts = [], []
        for (rows, _), query in zip(lists, queries, strict=True):
            values += [own_score(model, r, row, query) for row in rows]
            counts += [shares(model, rows, query)[r]] * len(rows)
        mean = np.average(values, weights=counts)
        found.append(math.sqrt(np.average((np.array(values) - mean) ** 2, weights=counts)))
    return np.array(found)


def scores(model: Model, rows: np.ndarray, query: np.ndarray | None = None) -> np.ndarray:
    """Of the documents of one list."""
    factors = model.weights * shares(model, rows, query) / model.deviations
    used = [r for r in range(len(factors)) if factors[r] != 0]
    return np.array([sum(factors[r] * own_score(model, r, row, query) for r in used) for row in rows])


# --- lists to compare on ---


def world(seed: int, num_lists: int = 24, *, queries: bool = False, width: int = 4) -> RankingSet:
    """Three kinds of lists, in three places, that need other weights. One list is of one label, one is short."""
    draw = np.random.default_rng(seed)
    x, labels, centres = [], [], []
    for q in range(num_lists):
        kind = q % 3
        centre = 1.3 * np.eye(width)[kind] + 0.2 * draw.normal(size=width)
        rows = centre + draw.normal(size=(1 if q == 7 else draw.integers(5, 11), width))
        signal = [1, -1, 0.4][kind] * rows[:, 3] + 0.5 * rows[:, 1] + 0.5 * draw.normal(size=len(rows))
        if queries:
            signal = 2 - ((rows - centre) ** 2 @ np.roll([3, 1, 0.1, 0.3], kind))
        x.append(rows)
        labels.append((signal > 0) * 1.0 + (signal > 1) + (signal > 1.5) if q != 5 else 0.0 * signal)
        centres.append(centre)
    offsets = torch.tensor(np.cumsum([0, *map(len, x)]))
    given = {"index": torch.arange(int(offsets[-1])), "queries": torch.tensor(np.array(centres)).float()}
    rows = torch.tensor(np.concatenate(x)).float()
    return RankingSet(rows, torch.tensor(np.concatenate(labels)).float(), offsets, **given if queries else {})


def given_of(ranking_set, dtype=torch.float64) -> dict:
    given = {"index": ranking_set.index, "queries": ranking_set.queries}
    return {name: part.to(dtype) if part.is_floating_point() else part for name, part in given.items()
            if part is not None}  # fmt: skip


@torch.no_grad()
def scored(ranker, ranking_set) -> np.ndarray:
    dtype = ranker.factors.dtype
    return ranker(ranking_set.x.to(dtype), ranking_set.offsets, **given_of(ranking_set, dtype)).double().numpy()


def plain_lists(ranking_set, rows=None) -> list[List]:
    rows = ranking_set.x.double().numpy() if rows is None else rows
    return [(rows[block], ranking_set.labels.numpy()[block]) for block in blocks(ranking_set.offsets)]


def mean_ndcg(ranker, ranking_set) -> float:
    found = scored(ranker, ranking_set)
    labels, cuts = ranking_set.labels.numpy(), blocks(ranking_set.offsets)
    return float(np.nanmean([ndcg(found[block].tolist(), labels[block].tolist(), k=10) for block in cuts]))

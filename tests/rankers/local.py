"""Fits of local metrics in tests, and their scores typed again plainly."""

import math

import numpy as np
import torch

from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import GMML, LGMML, RankingDataModule
from torchrank.data.corpus import CorpusSet, Judged

SMALL = {"metrics": 4, "queries_per_metric": 3, "rounds": 1}
WEIGHTS = {
    "shared": {"weights": "shared"},
    "mean": {"weights": "per_query", "fallback": "mean"},
    "ones": {"weights": "per_query", "fallback": "ones"},
    "knn": {"weights": "per_query", "fallback": "knn"},
    "amortized": {"weights": "amortized"},
}


def fit(folder, module=None, make=LGMML, precision="32-true", callbacks=(), **options):
    ranker = make(FEATURES, **({} if make is GMML else SMALL) | options)
    module = data() if module is None else module
    runner = trainer(folder, ranker.rounds, precision=precision, callbacks=list(callbacks), monitor=None)
    runner.fit(ranker, datamodule=module)
    return ranker.eval()


def moved(**sets) -> RankingDataModule:
    """The data of `small` with some of its sets replaced."""
    return RankingDataModule.from_sets(**{"train": lists(0), "val": lists(1), "test": lists(2)} | sets)


def rows_of(ranker, ranking_set):
    """Transformed rows in float64, with the float32 rounding that resident sets have."""
    return ranker.transform(ranking_set.x.float(), ranking_set.offsets).double().numpy()


def split(values, offsets):
    return [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


KERNELS = {
    "paper": lambda z, beta: -z * math.exp(-z),
    "demo": lambda z, beta: z * math.exp(-z),
    "rbf": lambda z, beta: math.exp(-beta / 2 * z * z),
    "laplace": lambda z, beta: math.exp(-beta / 2 * z),
    "distance": lambda z, beta: -z,
}


def plain_distance(factor, row, centre):
    return math.sqrt(float((row - centre) @ factor @ factor.T @ (row - centre)))


def plain_scores(ranker, rows, weights, kernel, beta=2.0, query=None):
    """Scores of the rows of one list under the weights (M,), one document at a time."""
    factors, anchors, tau = (part.double().numpy() for part in (ranker.factors, ranker.anchors, ranker.tau))
    scores = []
    for row in rows:
        z = [plain_distance(f, row, a if query is None else query) / t
             for f, a, t in zip(factors, anchors, tau, strict=True)]  # fmt: skip
        if kernel != "localized":
            scores.append(sum(w * KERNELS[kernel](v, beta) for w, v in zip(weights, z, strict=True)))
            continue
        near = z if query is None else [
            plain_distance(f, query, a) / t for f, a, t in zip(factors, anchors, tau, strict=True)
        ]  # fmt: skip
        shares = np.array([w * math.exp(-beta / 2 * (v - min(near))) for w, v in zip(weights, near, strict=True)])
        squares = np.square(np.array(z) * (1 if query is None else tau))
        scores.append(-(shares @ squares) / (shares.sum() if query is None else 1))
    return np.array(scores)


def judged(seed, num_rows=20, num_queries=10) -> CorpusSet:
    """Points that are queries of their own; who is relevant to whom is drawn, neither mutual nor transitive."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(num_rows, FEATURES)).astype(np.float32)
    rows, grades, counts = [], [], []
    for query in range(num_queries):
        near = np.argsort(np.abs(x[:, 0] - x[query, 0]) + draw.normal(size=num_rows) * 0.3)
        own = [row for row in near if row != query][: draw.integers(2, 6)]
        rows += own
        grades += draw.integers(1, 3, len(own)).tolist()
        counts.append(len(own))
    relevance = Judged.make(np.array(rows), np.array(grades), np.array(counts))
    return CorpusSet(torch.from_numpy(x), torch.from_numpy(x[:num_queries]), relevance, own=torch.arange(num_queries))


def with_queries(folder, **options):
    sets = {"train": judged(0), "val": judged(1), "test": judged(2)}
    return fit(folder, RankingDataModule.from_sets(**sets, batch_documents=50), **options)

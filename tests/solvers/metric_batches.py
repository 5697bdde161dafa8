"""Small batches of every kind for the tests of scores and of sums of feature maps, and rankings of their lists."""

import numpy as np
import torch

from tests.reference.measures import blocks
from tests.reference.mlr import coefficients_of
from torchrank import RankingSet
from torchrank.data.batch import make_batch
from torchrank.data.relevance import Judged, SameClass

WIDTH = 4


def points(seed: int, count: int = 14) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=(count, WIDTH)), dtype=torch.float32)


def classes(seed: int = 0):
    """Points that rank each other; the fourth class has one point, which has no relevant entry."""
    codes = torch.tensor([0, 1, 2, 1, 0, 0, 2, 2, 1, 0, 3, 1, 2, 0])
    x = points(seed)
    return RankingSet(x, SameClass(codes, codes, tuple("abcd"), own=torch.arange(14)), queries=x)[:]


def judged(seed: int = 1):
    """One of the points as a query, two others outside of the corpus; relevance is not mutual."""
    x, queries = points(seed), points(seed + 100, 3)
    queries[1] = x[5]
    own = torch.tensor([14, 5, 14])
    relevance = Judged.make(np.array([3, 9, 0, 1, 2, 13]), np.ones(6), np.array([2, 3, 1]), 14, own=own)
    return RankingSet(x, relevance, queries=queries)[:]


def candidates(seed: int = 2, lengths=(0, 1, 5, 9, 0, 14, 3), corpus: int = 14, repeated: bool = False):
    """Query vectors of their own with candidates from one corpus, in no order; empty lists, lists of one class."""
    rng = np.random.default_rng(seed)
    index = np.concatenate([rng.integers(0, corpus, n) if repeated else rng.permutation(corpus)[:n] for n in lengths])
    labels = rng.integers(0, 2, len(index)).astype(np.float32)
    labels[-3:] = 1
    given = torch.tensor(labels), torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
    x, queries = points(seed, corpus), points(seed + 100, len(lengths))
    return make_batch(x, *given, index=torch.tensor(index), queries=queries)


def no_list():
    return candidates(6)._replace(
        labels=torch.zeros(0), offsets=torch.zeros(1, dtype=torch.int64), index=torch.zeros(0, dtype=torch.int64),
        queries=torch.zeros(0, WIDTH), query=torch.zeros(0, dtype=torch.int64), max_length=0, num_pairs=0,
    )  # fmt: skip


BATCHES = {
    "classes": classes,
    "judged": judged,
    "candidates": candidates,
    "most candidates": lambda: candidates(4, [13] * 7),
    "rows twice": lambda: candidates(7, [8, 4, 6, 5, 8], 7, repeated=True),
    "few of a large corpus": lambda: candidates(8, [8, 0, 6, 5, 8], 400, repeated=True),
    "flat": lambda: candidates(3).flat(),
    "flat classes": lambda: classes(5).flat(),
    "no list": no_list,
}


def plain_lists(batch):
    """Of each list with both classes: its number, its entries, query, rows, which are relevant, and a random order."""
    rng = np.random.default_rng(9)
    rows, labels = batch.flat().x.double().numpy(), batch.labels.numpy()
    queries = [None] * batch.num_lists if batch.queries is None else batch.queries.double().numpy()
    for number, (query, block) in enumerate(zip(queries, blocks(batch.offsets), strict=True)):
        relevant = labels[block] == 1
        if relevant.any() and not relevant.all():
            yield number, block, query, rows[block], relevant, list(rng.permutation(len(relevant)))


def coefficients(batch) -> torch.Tensor:
    """Those of the rankings of `plain_lists`."""
    found = np.zeros(len(batch.labels))
    for _, block, _, _, relevant, order in plain_lists(batch):
        found[block] = coefficients_of(order, relevant)
    return torch.tensor(found)


def moved(batch, by: float, grid: float | None = None):
    """All points moved, exactly where they lie on a grid of `1 / grid`; in float64."""
    x, queries = batch.x.double(), batch.queries.double()
    if grid is not None:
        x, queries = (x * grid).round() / grid, (queries * grid).round() / grid
    return batch._replace(x=x + by, queries=queries + by)

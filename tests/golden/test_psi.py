"""Scores and sums of MLR and SVM-map against the double sum over pairs (eq. 3) and X' S X (eq. 5)."""

import numpy as np
import pytest
import torch

from torchrank.data.batch import make_batch
from torchrank.data.corpus import CorpusSet, Judged, SameClass
from torchrank.solvers.cutting_plane import psi

from . import mlr_reference as plain
from .reference import blocks

WIDTH = 4
ADD = {"metric": psi.add_metric_psi, "diagonal": psi.add_diagonal_psi, "linear": psi.add_linear_psi}


def points(seed: int, count: int = 14) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=(count, WIDTH)), dtype=torch.float32)


def classes(seed: int = 0):
    """Points that rank each other; the fourth class has one point, which has no relevant entry."""
    codes = torch.tensor([0, 1, 2, 1, 0, 0, 2, 2, 1, 0, 3, 1, 2, 0])
    x = points(seed)
    return CorpusSet(x, x, SameClass(codes, codes, tuple("abcd")), own=torch.arange(14))[:]


def judged(seed: int = 1):
    """Some of the points as queries, others not in the corpus; relevance is not mutual."""
    x, queries = points(seed), points(seed + 100, 3)
    queries[1] = x[5]
    relevance = Judged.make(np.array([3, 9, 0, 1, 2, 13]), np.ones(6), np.array([2, 3, 1]))
    return CorpusSet(x, queries, relevance, own=torch.tensor([14, 5, 14]))[:]


def candidates(seed: int = 2, share: float = 0.3):
    """Query vectors of their own with candidates from one corpus, in no order; empty lists, lists of one class."""
    rng = np.random.default_rng(seed)
    lengths = np.array([0, 1, 5, 9, 0, 14, 3]) if share < 0.5 else np.full(7, 13)
    index = np.concatenate([rng.permutation(14)[:length] for length in lengths])
    labels = rng.integers(0, 2, len(index)).astype(np.float32)
    labels[-3:] = 1
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
    given = torch.tensor(labels), offsets
    return make_batch(points(seed), *given, index=torch.tensor(index), queries=points(seed + 100, 7))


def flat(seed: int = 3):
    return candidates(seed).flat()


BATCHES = {
    "classes": classes,
    "judged": judged,
    "candidates": candidates,
    "most candidates": lambda: candidates(4, 0.9),
    "flat": flat,
    "flat classes": lambda: classes(5).flat(),
    "no list": lambda: candidates(6)._replace(
        labels=torch.zeros(0), offsets=torch.zeros(1, dtype=torch.int64), index=torch.zeros(0, dtype=torch.int64),
        queries=torch.zeros(0, WIDTH), query=torch.zeros(0, dtype=torch.int64), max_length=0, num_pairs=0,
    ),
}  # fmt: skip


def plain_lists(batch):
    """Of each list with both classes: its entries, query, rows, which are relevant, and a random order."""
    rng = np.random.default_rng(9)
    rows, labels = batch.flat().x.double().numpy(), batch.labels.numpy()
    queries = [None] * batch.num_lists if batch.queries is None else batch.queries.double().numpy()
    for query, block in zip(queries, blocks(batch.offsets), strict=True):
        relevant = labels[block] == 1
        if relevant.any() and not relevant.all():
            yield block, query, rows[block], relevant, list(rng.permutation(len(relevant)))


def coefficients(batch) -> torch.Tensor:
    c = np.zeros(len(batch.labels))
    for block, _, _, relevant, order in plain_lists(batch):
        c[block] = plain.coefficients_of(order, relevant)
    return torch.tensor(c)


@pytest.mark.parametrize("model", ADD)
@pytest.mark.parametrize("kind", BATCHES)
def test_psi_is_the_double_sum(kind, model):
    """Added to what is there already; the lists are summed, not averaged."""
    batch = BATCHES[kind]()
    shape = (WIDTH, WIDTH) if model == "metric" else (WIDTH,)
    start = torch.randn(shape, dtype=torch.float64)
    into = start.clone()
    ADD[model](batch, coefficients(batch), into)
    expected = sum((plain.delta_psi(o, r, q, x, model) for _, q, x, r, o in plain_lists(batch)), np.zeros(shape))
    np.testing.assert_allclose(into - start, expected, atol=1e-12)
    if model == "metric":
        np.testing.assert_allclose(into - start, (into - start).T, atol=1e-13)


@pytest.mark.parametrize("kind", BATCHES)
def test_rows_alone(kind):
    """Without query vectors the linear model sees the rows as they are."""
    batch = BATCHES[kind]()._replace(queries=None)
    into, weight = torch.zeros(WIDTH, dtype=torch.float64), torch.randn(WIDTH, dtype=torch.float64)
    psi.add_linear_psi(batch, coefficients(batch), into)
    expected = sum((plain.delta_psi(o, r, None, x, "linear") for _, _, x, r, o in plain_lists(batch)), np.zeros(WIDTH))
    np.testing.assert_allclose(into, expected, atol=1e-12)
    rows = batch.flat().x.double()
    np.testing.assert_allclose(psi.linear_scores(batch, weight), rows @ weight, atol=1e-12)


@pytest.mark.parametrize("kind", ["classes", "judged", "candidates", "most candidates"])
def test_psi_is_factored(kind):
    """X' S X with the query vectors below the corpus."""
    batch = BATCHES[kind]()
    stacked = torch.cat([batch.x, batch.queries]).double().numpy()
    into, expected = torch.zeros(WIDTH, WIDTH, dtype=torch.float64), np.zeros((WIDTH, WIDTH))
    psi.add_metric_psi(batch, coefficients(batch), into)
    starts = batch.offsets.tolist()
    for block, _, _, relevant, order in plain_lists(batch):
        own = len(batch.x) + starts.index(block.start) + starts.count(block.start) - 1  # empty lists start there too
        expected += plain.factored_psi(order, relevant, own, batch.index.numpy()[block], stacked)
    np.testing.assert_allclose(into, expected, atol=1e-12)


def test_a_query_of_the_corpus_may_be_its_row():
    """With q in X, S has rows and columns of the points alone."""
    batch = classes()
    expected = np.zeros((WIDTH, WIDTH))
    starts = batch.offsets.tolist()
    for block, _, _, relevant, order in plain_lists(batch):
        own = starts.index(block.start)
        expected += plain.factored_psi(order, relevant, own, batch.index.numpy()[block], batch.x.double().numpy())
    into = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    psi.add_metric_psi(batch, coefficients(batch), into)
    np.testing.assert_allclose(into, expected, atol=1e-12)


@pytest.mark.parametrize("kind", BATCHES)
def test_scores(kind):
    """Minus the squared distance under a matrix, a diagonal or its factor (in the type of the rows), or w.|q - x|."""
    batch = BATCHES[kind]()
    rng = np.random.default_rng(3)
    factor = rng.normal(size=(2, WIDTH))
    metric, diagonal, weight = factor.T @ factor, rng.random(WIDTH), rng.normal(size=WIDTH)
    rows = batch.flat().x.double().numpy()
    queries = np.repeat(batch.queries.double().numpy(), batch.offsets.diff().numpy(), axis=0)
    expected = {
        "metric": [-(gap @ metric @ gap) for gap in queries - rows],
        "diagonal": [-(gap @ np.diag(diagonal) @ gap) for gap in queries - rows],
        "components": [-sum((factor @ gap) ** 2) for gap in queries - rows],
        "linear": [weight @ abs(gap) for gap in queries - rows],
    }
    found = {
        "metric": psi.metric_scores(batch, torch.tensor(metric)),
        "diagonal": psi.metric_scores(batch, torch.tensor(diagonal)),
        "components": psi.component_scores(batch, torch.tensor(factor)),
        "linear": psi.linear_scores(batch, torch.tensor(weight)),
    }
    for name, scores in found.items():
        assert scores.dtype == (torch.float32 if name == "components" else torch.float64)
        close = {"rtol": 1e-5, "atol": 1e-5} if name == "components" else {"atol": 1e-12}
        np.testing.assert_allclose(scores, expected[name], **close, err_msg=name)


@pytest.mark.parametrize("kind", ["classes", "candidates", "flat"])
def test_scores_and_psi_are_one_bilinear_form(kind):
    """<W, sum of c phi> = sum of c times score, also far from the origin."""
    batch = BATCHES[kind]()
    batch = batch._replace(x=batch.x + 64, queries=batch.queries + 64)
    metric = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    metric, c = metric @ metric.T, coefficients(batch)
    into = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    psi.add_metric_psi(batch, c, into)
    assert (metric * into).sum().item() == pytest.approx((c * psi.metric_scores(batch, metric)).sum().item(), rel=1e-9)


@pytest.mark.parametrize("model", ADD)
@pytest.mark.parametrize("shared", [True, False])
def test_psi_is_additive_over_lists(model, shared):
    whole = candidates(7)
    whole = whole if shared else whole.flat()
    c = coefficients(whole)
    shape = (WIDTH, WIDTH) if model == "metric" else (WIDTH,)
    once, twice = torch.zeros(2, *shape, dtype=torch.float64)
    ADD[model](whole, c, once)
    for first, last in ((0, 3), (3, 7)):
        entries = slice(int(whole.offsets[first]), int(whole.offsets[last]))
        part = make_batch(
            whole.x if shared else whole.x[entries],
            whole.labels[entries],
            whole.offsets[first : last + 1] - entries.start,
            index=whole.index[entries] if shared else None,
            queries=whole.queries[first:last],
        )
        ADD[model](part, c[entries], twice)
    np.testing.assert_allclose(once, twice, atol=1e-13)

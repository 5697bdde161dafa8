"""Sums of feature maps of MLR and SVM-map against the double sum over pairs (eq. 3) and X' S X (eq. 5)."""

import numpy as np
import pytest
import torch

from tests.reference import mlr as plain
from tests.solvers.metric_batches import BATCHES, WIDTH, candidates, classes, coefficients, moved, plain_lists
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.solvers import metric_scores as scores

ADD = {"metric": scores.add_metric_psi, "diagonal": scores.add_diagonal_psi, "linear": scores.add_linear_psi}
SCORES = {"metric": scores.metric_scores, "diagonal": scores.metric_scores, "linear": scores.linear_scores}


def shape_of(model: str) -> tuple[int, ...]:
    return (WIDTH, WIDTH) if model == "metric" else (WIDTH,)


def summed(model: str, batch, given: torch.Tensor) -> torch.Tensor:
    into = torch.zeros(shape_of(model), dtype=torch.float64)
    ADD[model](batch, given, into)
    return into


@pytest.mark.parametrize("model", ADD)
@pytest.mark.parametrize("kind", BATCHES)
def test_psi_is_the_double_sum(kind, model):
    """Added to what is there already; the lists are summed, not averaged."""
    batch, shape = BATCHES[kind](), shape_of(model)
    start = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    into = start.clone()
    ADD[model](batch, coefficients(batch), into)
    expected = sum((plain.delta_psi(o, r, q, x, model) for _, _, q, x, r, o in plain_lists(batch)), np.zeros(shape))
    np.testing.assert_allclose(into - start, expected, atol=1e-12)
    if model == "metric":
        np.testing.assert_allclose(into - start, (into - start).T, atol=1e-13)


@pytest.mark.parametrize("kind", BATCHES)
def test_without_query_vectors_the_linear_model_sees_the_rows_as_they_are(kind):
    batch = BATCHES[kind]()._replace(queries=None)
    found, zero = summed("linear", batch, coefficients(batch)), np.zeros(WIDTH)
    expected = sum((plain.delta_psi(o, r, None, x, "linear") for _, _, _, x, r, o in plain_lists(batch)), zero)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    sparse = batch._replace(x=SparseRows.from_dense(batch.x))
    torch.testing.assert_close(summed("linear", sparse, coefficients(batch)), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["classes", "judged", "candidates", "most candidates", "rows twice"])
def test_psi_is_factored(kind):
    """X' S X with the query vectors below the corpus."""
    batch = BATCHES[kind]()
    stacked = torch.cat([batch.x, batch.queries]).double().numpy()
    expected = np.zeros((WIDTH, WIDTH))
    for number, block, _, _, relevant, order in plain_lists(batch):
        own = len(batch.x) + number
        expected += plain.factored_psi(order, relevant, own, batch.index.numpy()[block], stacked)
    np.testing.assert_allclose(summed("metric", batch, coefficients(batch)), expected, atol=1e-12)


def test_a_query_of_the_corpus_may_be_its_row():
    """With q in X, S has rows and columns of the points alone."""
    batch = classes()
    expected = np.zeros((WIDTH, WIDTH))
    for own, block, _, _, relevant, order in plain_lists(batch):
        expected += plain.factored_psi(order, relevant, own, batch.index.numpy()[block], batch.x.double().numpy())
    np.testing.assert_allclose(summed("metric", batch, coefficients(batch)), expected, atol=1e-12)


@pytest.mark.parametrize("model", ADD)
@pytest.mark.parametrize("kind", BATCHES)
def test_scores_and_psi_are_one_bilinear_form(kind, model):
    """<W, sum of c phi> = sum of c times score, also far from the origin."""
    batch = moved(BATCHES[kind](), 64)
    root = torch.tensor(np.random.default_rng(3).normal(size=(WIDTH, WIDTH)))
    weights = {"metric": root @ root.T, "diagonal": root[0].abs(), "linear": root[0]}[model]
    given = coefficients(batch)
    product, total = (weights * summed(model, batch, given)).sum(), (given * SCORES[model](batch, weights)).sum()
    assert product.item() == pytest.approx(total.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("model", ADD)
@pytest.mark.parametrize("form", ["corpus", "most of the corpus", "own rows"])
def test_psi_is_additive_over_lists_and_batches_may_be_empty(model, form):
    whole = candidates(7, [13] * 7) if form == "most of the corpus" else candidates(7)
    whole = whole.flat() if form == "own rows" else whole
    given, shared = coefficients(whole), whole.index is not None
    parts = torch.zeros(shape_of(model), dtype=torch.float64)
    for first, last in ((0, 3), (3, 3), (3, 7)):
        entries = slice(int(whole.offsets[first]), int(whole.offsets[last]))
        part = make_batch(
            whole.x if shared else whole.x[entries],
            whole.labels[entries],
            whole.offsets[first : last + 1] - entries.start,
            index=whole.index[entries] if shared else None,
            queries=whole.queries[first:last],
        )
        ADD[model](part, given[entries], parts)
        assert SCORES[model](part, torch.ones(shape_of(model)).double()).shape == (entries.stop - entries.start,)
    np.testing.assert_allclose(summed(model, whole, given), parts, atol=1e-12)


@pytest.mark.parametrize("model", ["metric", "diagonal"])
@pytest.mark.parametrize("kind", ["classes", "candidates", "flat"])
def test_points_far_from_the_origin_keep_their_digits(kind, model):
    near, far = (moved(BATCHES[kind](), by, grid=64) for by in (0.0, 2.0**30))
    given = coefficients(near)
    torch.testing.assert_close(summed(model, far, given), summed(model, near, given), rtol=0, atol=1e-6)

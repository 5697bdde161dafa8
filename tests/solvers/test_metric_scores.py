"""Scores under a metric, its components or a linear model, beside a loop over the entries."""

import numpy as np
import pytest
import torch

from tests.solvers.metric_batches import BATCHES, WIDTH, moved
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.errors import DataError
from torchrank.solvers.metric_scores import add_linear_psi, component_scores, fills_table, linear_scores, metric_scores


@pytest.mark.parametrize("kind", BATCHES)
def test_a_table_is_used_where_lists_hold_much_of_the_corpus(kind):
    assert fills_table(BATCHES[kind]()) == (kind not in ("few of a large corpus", "flat", "flat classes"))


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores(kind, dtype):
    """Minus the squared distance under a matrix, a diagonal or its factor (in the type of the rows), or w.|q - x|."""
    batch = BATCHES[kind]()
    batch = batch._replace(x=batch.x.to(dtype), queries=batch.queries.to(dtype))
    rng = np.random.default_rng(3)
    factor = rng.normal(size=(2, WIDTH))
    metric, diagonal, weight = factor.T @ factor, rng.random(WIDTH), rng.normal(size=WIDTH)
    rows = batch.flat().x.double().numpy()
    gaps = np.repeat(batch.queries.double().numpy(), batch.offsets.diff().numpy(), axis=0) - rows
    expected = {
        "metric": [-(gap @ metric @ gap) for gap in gaps],
        "diagonal": [-(gap @ np.diag(diagonal) @ gap) for gap in gaps],
        "components": [-sum((factor @ gap) ** 2) for gap in gaps],
        "linear": [weight @ abs(gap) for gap in gaps],
    }
    found = {
        "metric": metric_scores(batch, torch.tensor(metric)),
        "diagonal": metric_scores(batch, torch.tensor(diagonal)),
        "components": component_scores(batch, torch.tensor(factor)),
        "linear": linear_scores(batch, torch.tensor(weight)),
    }
    for name, scores in found.items():
        assert scores.dtype == (dtype if name == "components" else torch.float64)
        close = {"rtol": 1e-6, "atol": 1e-6} if scores.dtype == torch.float32 else {"atol": 1e-12}
        np.testing.assert_allclose(scores, expected[name], **close, err_msg=name)


@pytest.mark.parametrize("kind", BATCHES)
def test_without_query_vectors_linear_scores_are_those_of_the_rows(kind):
    batch = BATCHES[kind]()._replace(queries=None)
    weight = torch.tensor(np.random.default_rng(4).normal(size=WIDTH))
    expected = batch.flat().x.double() @ weight
    np.testing.assert_allclose(linear_scores(batch, weight), expected, atol=1e-12)
    sparse = batch._replace(x=SparseRows.from_dense(batch.x))
    np.testing.assert_allclose(linear_scores(sparse, weight), expected, atol=1e-12)


def test_differences_from_the_query_are_taken_a_chunk_at_a_time():
    """More of them than a chunk holds: in scores, and in the sum over lists of what they are multiplied with."""
    draw, count = np.random.default_rng(4), 2**20 + 5
    x, queries = (torch.tensor(draw.normal(size=(rows, WIDTH))) for rows in (count, 2))
    weight, coefficients, into = (torch.tensor(draw.normal(size=size)) for size in (WIDTH, count, WIDTH))
    batch = make_batch(x, torch.zeros(count), torch.tensor([0, 7, count]), queries=queries)
    gaps = (torch.cat((queries[:1] - x[:7], queries[1:] - x[7:]))).abs()
    torch.testing.assert_close(linear_scores(batch, weight), gaps @ weight, rtol=0, atol=1e-13)
    expected = into + coefficients @ gaps
    add_linear_psi(batch, coefficients, into)
    torch.testing.assert_close(into, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("lists", "rows", "width"), [(1, 7, 1), (3, 101, 4), (17, 60, 13), (40, 300, 34)])
def test_float32_scores_are_exact_but_for_their_rounding(lists, rows, width):
    """Far from the origin, with equal rows, near ones, and rows equal to the query."""
    draw = np.random.default_rng(0)
    x, queries = (torch.tensor(draw.normal(size=(n, width)) + 100, dtype=torch.float32) for n in (rows, lists))
    x[rows // 2], x[1], queries[0] = x[-1], x[-2], x[-2]
    x[2] = x[3] + 1e-4
    components = torch.tensor(draw.normal(size=(width, width)))
    offsets, index = torch.arange(lists + 1) * rows, torch.arange(rows).repeat(lists)
    whole = make_batch(x, torch.zeros(len(index)), offsets, index=index, queries=queries)
    scores = component_scores(whole, components).view(lists, rows)
    gaps = queries[:, None].double().numpy() - x.double().numpy()
    np.testing.assert_allclose(scores, -np.square(gaps @ components.numpy().T).sum(2), rtol=1e-7, atol=0)
    assert torch.equal(scores[:, rows // 2], scores[:, -1]) and torch.equal(scores[:, 1], scores[:, -2])
    one = make_batch(x, torch.zeros(rows), offsets[:2], index=index[:rows], queries=queries[-1:])
    assert torch.equal(component_scores(one, components), scores[-1])
    torch.testing.assert_close(component_scores(whole.flat(), components).view(lists, rows), scores, rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", ["classes", "candidates", "few of a large corpus", "flat"])
def test_points_far_from_the_origin_keep_their_digits(kind):
    near, far = (moved(BATCHES[kind](), by, grid=64) for by in (0.0, 2.0**30))
    root = torch.tensor(np.random.default_rng(1).normal(size=(WIDTH, WIDTH)))
    for metric in (root @ root.T, root[0].square()):
        torch.testing.assert_close(metric_scores(far, metric), metric_scores(near, metric), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["most candidates", "few of a large corpus", "flat"])
def test_component_scores_have_gradients(kind):
    batch = moved(BATCHES[kind](), 0.0)
    components = torch.randn(2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda given: component_scores(batch, given), components.requires_grad_())


def test_lists_without_query_vectors_are_refused():
    batch = BATCHES["flat"]()._replace(queries=None)
    for scores, model in ((metric_scores, torch.eye(WIDTH)), (component_scores, torch.eye(WIDTH))):
        with pytest.raises(DataError, match="distances need query vectors, but these lists have none"):
            scores(batch, model.double())

"""Scores and sums of feature maps, beside double loops over entries and pairs."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.solvers.cutting_plane import psi
from torchrank.solvers.cutting_plane.psi import (
    add_diagonal_psi,
    add_linear_psi,
    add_metric_psi,
    component_scores,
    linear_scores,
    metric_scores,
)

D = 4
FORMS = ["whole corpus", "few of the corpus", "own rows"]


def make(form, seed=0, lists=5):
    """Lists in every form; in the first two a row may stand in a list twice."""
    draw = np.random.default_rng(seed)
    corpus = 7 if form == "whole corpus" else 400
    lengths = draw.integers(0, 9, lists) if form != "whole corpus" else draw.integers(4, 9, lists)
    offsets = torch.tensor(np.concatenate([[0], lengths.cumsum()]))
    index = torch.tensor(draw.integers(0, corpus, lengths.sum()))
    x, queries = (torch.tensor(draw.normal(size=(n, D)) + 3) for n in (corpus, lists))
    labels = torch.tensor(draw.integers(0, 2, lengths.sum())).float()
    batch = make_batch(x, labels, offsets, index=index, queries=queries)
    return batch.flat() if form == "own rows" else batch


def entries(batch):
    """(query vector, row) of every entry, by list."""
    flat, bounds = batch.flat().x.numpy(), batch.offsets.tolist()
    return [(q, [(batch.queries[q].numpy(), flat[e]) for e in range(bounds[q], bounds[q + 1])])
            for q in range(batch.num_lists)]  # fmt: skip


def random_rankings(batch, draw):
    """y (P, N) of +-1 for a random ranking of each list, and the coefficients of delta psi that it gives."""
    coefficients, rankings, bounds = np.zeros(len(batch.labels)), [], batch.offsets.tolist()
    for a, b in pairwise(bounds):
        relevant = [e for e in range(a, b) if batch.labels[e] > 0]
        others = [e for e in range(a, b) if batch.labels[e] == 0]
        place = dict(zip(range(a, b), draw.permutation(b - a), strict=True))
        pairs = [(i, j, 1 if place[i] < place[j] else -1) for i in relevant for j in others]
        rankings.append(pairs)
        for i, j, y in pairs:  # psi(y*) has 1 where psi(y) has y
            coefficients[i] += (1 - y) / len(pairs)
            coefficients[j] -= (1 - y) / len(pairs)
    return rankings, torch.tensor(coefficients)


def metric_map(q, x):
    return -np.outer(q - x, q - x)


@pytest.mark.parametrize("form", FORMS)
def test_the_table_is_used_where_lists_hold_much_of_the_corpus(form):
    assert psi._dense(make(form)) == (form == "whole corpus")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_metric_psi_is_the_double_sum_and_x_s_x(form, seed):
    """Eq. 3, over pairs; and eq. 5, X' S X with S of the coefficients, on queries and rows as one matrix."""
    batch, draw = make(form, seed), np.random.default_rng(seed)
    rankings, coefficients = random_rankings(batch, draw)
    flat, double = batch.flat().x.numpy(), np.zeros((D, D))
    for q, pairs in enumerate(rankings):
        query = batch.queries[q].numpy()
        for i, j, y in pairs:
            double += (1 - y) * (metric_map(query, flat[i]) - metric_map(query, flat[j])) / len(pairs)
    points = np.concatenate([batch.queries.numpy(), flat])
    bounds, num_lists = batch.offsets.tolist(), batch.num_lists
    s = np.zeros((len(points), len(points)))
    for q in range(num_lists):
        for e in range(bounds[q], bounds[q + 1]):
            unit = np.zeros(len(points))
            unit[q], unit[num_lists + e] = 1, -1
            s -= coefficients[e].item() * np.outer(unit, unit)
    found = torch.ones(D, D, dtype=torch.float64)
    add_metric_psi(batch, coefficients, found)
    np.testing.assert_allclose(found.numpy() - 1, double, atol=1e-11)
    np.testing.assert_allclose(found.numpy() - 1, points.T @ s @ points, atol=1e-11)
    diagonal = torch.zeros(D, dtype=torch.float64)
    add_diagonal_psi(batch, coefficients, diagonal)
    np.testing.assert_allclose(diagonal.numpy(), np.diag(double), atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [2**22, 8])
def test_linear_psi_and_scores(form, chunk, monkeypatch):
    monkeypatch.setattr(psi, "CHUNK_NUMBERS", chunk)
    draw = np.random.default_rng(1)
    batch, w = make(form), draw.normal(size=D)
    coefficients, weight = torch.tensor(draw.normal(size=len(batch.labels))), torch.tensor(w)
    for with_queries in (True, False):
        given = batch if with_queries else batch._replace(queries=None)
        maps = [abs(q - x) if with_queries else x for _, part in entries(batch) for q, x in part]
        np.testing.assert_allclose(linear_scores(given, weight).numpy(), np.array(maps) @ w, atol=1e-12)
        found = torch.ones(D, dtype=torch.float64)
        add_linear_psi(given, coefficients, found)
        np.testing.assert_allclose(found.numpy() - 1, coefficients.numpy() @ np.array(maps), atol=1e-11)
        if not with_queries:
            sparse = given._replace(x=SparseRows.from_dense(given.x))
            same = torch.ones(D, dtype=torch.float64)
            add_linear_psi(sparse, coefficients, same)
            torch.testing.assert_close(same, found)
            torch.testing.assert_close(linear_scores(sparse, weight), linear_scores(given, weight))


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_minus_squared_distances(form):
    batch, draw = make(form), np.random.default_rng(2)
    components = draw.normal(size=(2, D))
    metric, diagonal = components.T @ components, draw.random(D)
    pairs = [pair for _, part in entries(batch) for pair in part]
    expected = [-(q - x) @ metric @ (q - x) for q, x in pairs]
    np.testing.assert_allclose(metric_scores(batch, torch.tensor(metric)).numpy(), expected, atol=1e-11)
    np.testing.assert_allclose(component_scores(batch, torch.tensor(components)).numpy(), expected, atol=1e-11)
    expected = [-(diagonal * (q - x) ** 2).sum() for q, x in pairs]
    np.testing.assert_allclose(metric_scores(batch, torch.tensor(diagonal)).numpy(), expected, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_psi_gives_the_sum_of_scores(form):
    """<W, Psi> = sum of c s, for every model."""
    batch, draw = make(form), np.random.default_rng(3)
    _, coefficients = random_rankings(batch, draw)
    root = torch.tensor(draw.normal(size=(D, D)))
    for add, scores, model in (
        (add_metric_psi, metric_scores, root @ root.T),
        (add_diagonal_psi, metric_scores, root[0].abs()),
        (add_linear_psi, linear_scores, root[0]),
    ):
        found = torch.zeros_like(model)
        add(batch, coefficients, found)
        torch.testing.assert_close((found * model).sum(), (coefficients * scores(batch, model)).sum())


def test_sums_add_over_lists_and_batches_may_be_empty():
    batch, draw = make("whole corpus"), np.random.default_rng(4)
    _, coefficients = random_rankings(batch, draw)
    for add, shape in ((add_metric_psi, (D, D)), (add_diagonal_psi, (D,)), (add_linear_psi, (D,))):
        whole, parts = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        add(batch, coefficients, whole)
        for a, b in ((0, 2), (2, 2), (2, 5)):
            ends = batch.offsets[a : b + 1]
            here = slice(int(ends[0]), int(ends[-1]))
            part = make_batch(batch.x, batch.labels[here], ends - ends[0], index=batch.index[here],
                              queries=batch.queries[a:b])  # fmt: skip
            add(part, coefficients[here], parts)
            assert metric_scores(part, torch.eye(D).double()).shape == (here.stop - here.start,)
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("form", FORMS)
def test_points_far_from_the_origin_keep_their_digits(form):
    batch = make(form)
    near = batch._replace(x=(batch.x * 64).round() / 64, queries=(batch.queries * 64).round() / 64)  # exact when moved
    far = near._replace(x=near.x + 2.0**30, queries=near.queries + 2.0**30)
    root = torch.tensor(np.random.default_rng(1).normal(size=(D, D)))
    _, coefficients = random_rankings(near, np.random.default_rng(2))
    for metric, add in ((root @ root.T, add_metric_psi), (root[0].square(), add_diagonal_psi)):
        scores, moved = metric_scores(near, metric), metric_scores(far, metric)
        torch.testing.assert_close(moved, scores, rtol=0, atol=1e-6)
        sums, others = torch.zeros_like(metric), torch.zeros_like(metric)
        add(near, coefficients, sums)
        add(far, coefficients, others)
        torch.testing.assert_close(others, sums, rtol=0, atol=1e-6)


def test_component_scores_have_gradients():
    for form in FORMS:
        batch = make(form)
        components = torch.randn(2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert torch.autograd.gradcheck(lambda c, b=batch: component_scores(b, c), components.requires_grad_())


def test_lists_without_query_vectors_are_refused():
    batch = make("own rows")._replace(queries=None)
    with pytest.raises(ValueError, match="distances are from query vectors"):
        metric_scores(batch, torch.eye(D).double())

"""The bound of the curvature against loops, and against the curvature itself at many points."""

import itertools

import numpy as np
import pytest
import torch

from tests.golden.domination_reference import Objective
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.functional.ragged import dominating, segment_sum
from torchrank.solvers.domination.curvature import add_curvature

LENGTHS, FEATURES = [5, 1, 8, 0, 12], 6


def rows(seed, zeros=0.5):
    """Lists with zeros, columns that are full in a list, one that is constant in every list, and negative ones."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(sum(LENGTHS), FEATURES)) * (random.random((sum(LENGTHS), FEATURES)) > zeros)
    x[:, 1] = np.repeat([0.0, 1.0, 2.0, 3.0, -1.0], LENGTHS)
    x[:, 2] = 3 + random.random(len(x))
    x[:, 3] = -np.abs(x[:, 3])
    return x, random.integers(0, 3, len(x)).astype(float)


def batch_of(x, labels, sparse):
    x = torch.tensor(x)
    offsets = torch.tensor([0, *np.cumsum(LENGTHS)])
    return make_batch(SparseRows.from_dense(x) if sparse else x, torch.tensor(labels), offsets)


def bound_of(batch, bound, models=None, topics=1):
    counts = segment_sum(dominating(batch.labels, batch.offsets).double(), batch.offsets)
    models = torch.zeros_like(batch.query) if models is None else models
    into = torch.zeros(topics, FEATURES, dtype=torch.float64)
    add_curvature(batch, into, models, counts, bound)
    return into


def by_hand(x, labels, bound):
    found, starts = np.zeros((len(LENGTHS), FEATURES)), np.cumsum([0, *LENGTHS])
    for q, (a, b) in enumerate(itertools.pairwise(starts)):
        if a == b:
            continue
        above = np.sum(labels[a:b] > labels[a:b].min())
        for r in range(FEATURES):
            column = x[a:b, r]
            size = (column.max() - column.min()) ** 2 / 4 if bound == "range" else max(column**2)
            found[q, r] = above * size
    return found


@pytest.mark.parametrize("bound", ["range", "square"])
@pytest.mark.parametrize("sparse", [False, True])
def test_sums_over_lists(bound, sparse):
    x, labels = rows(0)
    expected = by_hand(x, labels, bound)
    batch = batch_of(x, labels, sparse)
    np.testing.assert_allclose(bound_of(batch, bound)[0], expected.sum(0), rtol=1e-12)
    np.testing.assert_allclose(bound_of(batch, bound, batch.query, len(LENGTHS)), expected, rtol=1e-12)
    assert bound == "square" or bound_of(batch, bound)[0, 1] == 0  # the same within each list
    parts = sum(bound_of(batch_of_list(x, labels, q, sparse), bound) for q in range(len(LENGTHS)))
    torch.testing.assert_close(parts, bound_of(batch, bound))


def batch_of_list(x, labels, q, sparse):
    a, b = np.cumsum([0, *LENGTHS])[q : q + 2]
    one = torch.tensor(x[a:b])
    return make_batch(
        SparseRows.from_dense(one) if sparse else one, torch.tensor(labels[a:b]), torch.tensor([0, b - a])
    )


@pytest.mark.parametrize("bound", ["range", "square"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("margin", [False, True])
def test_it_bounds_the_curvature_everywhere(bound, sparse, margin):
    """By differences of the gradient over all pairs at small and large weights; the range bound is never the larger."""
    x, labels = rows(1)
    batch = batch_of(x, labels, sparse)
    limit, delta = bound_of(batch, bound)[0].numpy(), (lambda a, b: 0.8 * (a - b)) if margin else None
    assert (bound_of(batch, "range") <= bound_of(batch, "square") + 1e-12).all()
    reference, random, tightest = Objective(x, labels, batch.offsets, delta=delta), np.random.default_rng(2), 0.0
    for scale in (0.0, 0.3, 1.0, 3.0, 10.0) * 4:
        w = scale * random.normal(size=FEATURES)
        for r in range(FEATURES):
            step = 1e-5 * np.eye(FEATURES)[r]
            curvature = (reference.loss(w + step)[1][r] - reference.loss(w - step)[1][r]) / 2e-5
            assert curvature <= limit[r] * (1 + 1e-6) + 1e-6
            tightest = max(tightest, curvature / limit[r]) if limit[r] > 0 else tightest
    assert tightest > (0.4 if bound == "range" else 0.05)  # and not by far too much


def test_zeros_that_are_not_stored_count():
    """Two documents, one with x = 4: without the zero the range would be 0 and the square bound the same as ever."""
    x = SparseRows.from_dense(torch.tensor([[4.0], [0.0]]))
    batch = make_batch(x, torch.tensor([1.0, 0.0]), torch.tensor([0, 2]))
    for bound, expected in (("range", 4.0), ("square", 16.0)):
        into = torch.zeros(1, 1, dtype=torch.float64)
        add_curvature(batch, into, torch.tensor([0]), torch.ones(1, dtype=torch.float64), bound)
        assert into.item() == expected
    stored = SparseRows(torch.tensor([4.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 1, 2]), 1)
    into = torch.zeros(1, 1, dtype=torch.float64)
    add_curvature(batch._replace(x=stored), into, torch.tensor([0]), torch.ones(1, dtype=torch.float64), "range")
    assert into.item() == 4.0


def test_a_column_that_stands_twice_is_its_sum():
    x = SparseRows(torch.tensor([2.0, 2.0]), torch.tensor([0, 0]), torch.tensor([0, 2, 2]), 1)
    batch = make_batch(x, torch.tensor([1.0, 0.0]), torch.tensor([0, 2]))
    into = torch.zeros(1, 1, dtype=torch.float64)
    add_curvature(batch, into, torch.tensor([0]), torch.ones(1, dtype=torch.float64), "range")
    assert into.item() == 4.0  # 4 and 0


@pytest.mark.parametrize("bound", ["range", "square"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_shared_corpus_has_the_range_of_all_its_rows(bound, sparse):
    x, labels = rows(3)
    flat = batch_of(x, labels, sparse)
    index = torch.arange(len(labels))
    shared = flat._replace(index=index)
    found, own = bound_of(shared, bound), bound_of(flat, bound)
    assert (found >= own - 1e-12).all()
    counts = segment_sum(dominating(flat.labels, flat.offsets).double(), flat.offsets)
    size = (x.max(0) - x.min(0)) ** 2 / 4 if bound == "range" else (x**2).max(0)
    np.testing.assert_allclose(found[0], float(counts.sum()) * size, rtol=1e-12)

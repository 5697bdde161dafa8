"""The bound on the curvature against loops, against covariances, and against the curvature itself at many points."""

import itertools

import numpy as np
import pytest
import torch

from tests.reference.domination import Objective
from tests.solvers.domination import coordinate_problems
from tests.solvers.domination.coordinate_problems import problem, steepness_of
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.functional.ragged import dominating, segment_sum
from torchrank.solvers.domination.curvature import add_curvature, corpus_curvature

LENGTHS, FEATURES = [5, 1, 8, 0, 12], 6


def rows(seed, zeros=0.5):
    """Lists with zeros, columns that are full in a list, one that is constant in every list, and negative ones."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(sum(LENGTHS), FEATURES)) * (random.random((sum(LENGTHS), FEATURES)) > zeros)
    x[:, 1] = np.repeat([0.0, 1.0, 2.0, 3.0, -1.0], LENGTHS)
    x[:, 2] = 3 + random.random(len(x))
    x[:, 3] = -np.abs(x[:, 3])
    return x, random.integers(0, 3, len(x)).astype(float)


def form_of(x, sparse):
    return SparseRows.from_dense(torch.tensor(x)) if sparse else torch.tensor(x)


def batch_of(x, labels, sparse):
    return make_batch(form_of(x, sparse), torch.tensor(labels), torch.tensor([0, *np.cumsum(LENGTHS)]))


def bound_of(batch, models=None, topics=1):
    counts = segment_sum(dominating(batch.labels, batch.offsets).double(), batch.offsets)
    models = torch.zeros_like(batch.query) if models is None else models
    into = torch.zeros(topics, FEATURES, dtype=torch.float64)
    add_curvature(batch.x, batch.offsets, into, models, counts)
    return into


def by_hand(x, labels):
    found, starts = np.zeros((len(LENGTHS), FEATURES)), np.cumsum([0, *LENGTHS])
    for q, (a, b) in enumerate(itertools.pairwise(starts)):
        if a == b:
            continue
        above = np.sum(labels[a:b] > labels[a:b].min())
        for r in range(FEATURES):
            column = x[a:b, r]
            found[q, r] = above * (column.max() - column.min()) ** 2 / 4
    return found


@pytest.mark.parametrize("sparse", [False, True])
def test_bounds_are_sums_over_lists(sparse):
    x, labels = rows(0)
    expected = by_hand(x, labels)
    batch = batch_of(x, labels, sparse)
    np.testing.assert_allclose(bound_of(batch)[0], expected.sum(0), rtol=1e-12)
    np.testing.assert_allclose(bound_of(batch, batch.query, len(LENGTHS)), expected, rtol=1e-12)
    assert bound_of(batch)[0, 1] == 0  # the same within each list
    parts = sum(bound_of(batch_of_list(x, labels, q, sparse)) for q in range(len(LENGTHS)))
    torch.testing.assert_close(parts, bound_of(batch))


def batch_of_list(x, labels, q, sparse):
    a, b = np.cumsum([0, *LENGTHS])[q : q + 2]
    return make_batch(form_of(x[a:b], sparse), torch.tensor(labels[a:b]), torch.tensor([0, b - a]))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("margin", [False, True])
def test_it_bounds_the_curvature_everywhere(sparse, margin):
    """By differences of the gradient over all pairs at small and large weights."""
    x, labels = rows(1)
    batch = batch_of(x, labels, sparse)
    limit, delta = bound_of(batch)[0].numpy(), (lambda a, b: 0.8 * (a - b)) if margin else None
    reference, random, tightest = Objective(x, labels, batch.offsets, delta=delta), np.random.default_rng(2), 0.0
    for scale in (0.0, 0.3, 1.0, 3.0, 10.0) * 4:
        w = scale * random.normal(size=FEATURES)
        for r in range(FEATURES):
            step = 1e-5 * np.eye(FEATURES)[r]
            curvature = (reference.loss(w + step)[1][r] - reference.loss(w - step)[1][r]) / 2e-5
            assert curvature <= limit[r] * (1 + 1e-6) + 1e-6
            tightest = max(tightest, curvature / limit[r]) if limit[r] > 0 else tightest
    assert tightest > 0.4  # and it is not far above


def test_zeros_that_are_not_stored_count():
    """Two documents, one with x = 4: without the zero the range would be 0."""
    labels, offsets = torch.tensor([1.0, 0.0]), torch.tensor([0, 2])
    absent = SparseRows.from_dense(torch.tensor([[4.0], [0.0]]))
    stored = SparseRows(torch.tensor([4.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 1, 2]), 1)
    assert [steepness_of(make_batch(x, labels, offsets)).item() for x in (absent, stored)] == [4.0, 4.0]


def test_a_column_that_occurs_twice_in_a_row_counts_as_its_sum():
    x = SparseRows(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([0, 0, 0]), torch.tensor([0, 2, 3]), 1)
    assert steepness_of(make_batch(x, torch.tensor([0.0, 1.0]), torch.tensor([0, 2]))).item() == 4.0  # (5 - 1)^2 / 4
    x = SparseRows(torch.tensor([2.0, 2.0]), torch.tensor([0, 0]), torch.tensor([0, 2, 2]), 1)
    assert steepness_of(make_batch(x, torch.tensor([1.0, 0.0]), torch.tensor([0, 2]))).item() == 4.0  # 4 and 0


# ---- features that move together --------------------------------------------------------------------------------


def plain_bound(x, block):
    """B (D,) of one list."""
    found = np.zeros(x.shape[1])
    for start in range(0, x.shape[1], block):
        part = x[:, start : start + block]
        low, high = part.min(0), part.max(0)
        tried = []
        for centre in ((low + high) / 2, 0 * low):
            widest = ((part - centre) ** 2).max(0) * (high > low)
            used = widest > 0
            tau = (((part - centre) ** 2)[:, used] / widest[used]).sum(1).max()
            tried.append(max(tau, 1.0) * widest)
        found[start : start + block] = min(tried, key=np.sum)
    return found


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("block", [1, 2, 5, 8, 20])
@pytest.mark.parametrize("share", [0.1, 0.9, 1.0])
def test_bounds_of_blocks_typed_again_and_above_every_covariance(share, block, sparse):
    x, labels, offsets = problem(seed=11, share=share)
    found = steepness_of(coordinate_problems.batch_of(x, labels, offsets, sparse), block)[0].numpy()
    expected, random = np.zeros(x.shape[1]), np.random.default_rng(0)
    for a, b in itertools.pairwise(offsets):
        count, each = (labels[a:b] > labels[a:b].min()).sum(), plain_bound(x[a:b], block)
        expected += count * each
        for _ in range(20):
            shares = random.dirichlet(np.full(b - a, 0.3))
            centred = x[a:b] - shares @ x[a:b]
            for start in range(0, x.shape[1], block):
                part = slice(start, start + block)
                gap = np.diag(each[part]) - centred[:, part].T @ (shares[:, None] * centred[:, part])
                assert np.linalg.eigvalsh(gap).min() >= -1e-12
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# ---- a shared corpus --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_a_corpus_has_the_bound_of_a_list_of_all_its_rows(sparse, block):
    x, _ = rows(3)
    found = corpus_curvature(form_of(x, sparse), block)[0].numpy()
    np.testing.assert_allclose(found, plain_bound(x, block), rtol=1e-12)
    if block == 1:
        np.testing.assert_allclose(found, (x.max(0) - x.min(0)) ** 2 / 4, rtol=1e-12)
        for a, b in itertools.pairwise(np.cumsum([0, *LENGTHS])):  # no smaller than that of a list of some of them
            assert a == b or (found >= plain_bound(x[a:b], 1) - 1e-12).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("block", [1, 3])
def test_a_corpus_without_rows_has_no_curvature(sparse, block):
    assert corpus_curvature(form_of(np.zeros((0, 4)), sparse), block).tolist() == [[0.0] * 4]

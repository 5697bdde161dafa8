"""Lists for coordinate descent: sums that are kept stay exact, for every form of the data."""

import numpy as np
import pytest
import torch

from tests.solvers.domination.coordinate_problems import (
    FEATURES,
    MATRIX,
    PENALTIES,
    batch_of,
    loss,
    objective,
    problem,
    setting,
    steepness_of,
    zeros,
)
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.solvers.domination.coordinate_descent import coordinate_lists, coordinate_step, coordinate_sweep
from torchrank.solvers.domination.penalised import Penalty

# ---- sums that are kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", ["none", "entry", "matrix"])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_kept_sums_stay_those_of_the_scores(scale, margin):
    """A thousand moves up and down, alone and together, by as much as the scores are large."""
    x, labels, offsets = problem(seed=6)
    entry = 0.3 * torch.from_numpy(labels)
    given = {"none": None, "entry": entry, "matrix": MATRIX}[margin]
    lists, _ = setting(x, labels, offsets, sparse=True, margin=given)
    generator = torch.Generator().manual_seed(0)
    weight = scale * torch.randn(1, FEATURES, generator=generator, dtype=torch.float64)
    lists.refresh(weight)
    for step in range(1000):
        part = slice(step % FEATURES, min(step % FEATURES + 1 + step % 3, FEATURES))
        target = scale * torch.randn(1, part.stop - part.start, generator=generator, dtype=torch.float64)
        lists.move(lists.read(part), target - weight[:, part])
        weight[:, part] = target
    scores = x @ weight[0].numpy() - (entry.numpy() if margin == "entry" else 0)
    slopes = loss(scores, labels, offsets, MATRIX.numpy() if margin == "matrix" else None)[1]
    found = torch.cat([lists.gradient(lists.read(slice(r, r + 1))) for r in range(FEATURES)], 1)
    np.testing.assert_allclose(found[0].numpy(), x.T @ slopes, atol=1e-12 * max(scale, 10))


def test_a_sum_whose_largest_term_falls_far_is_computed_again():
    """The first document falls from 800 to -5: differences would leave 0 of the others (true log Z 3.89)."""
    x = np.array([[1.0, 0.0]] + [[0.0, 1.0]] * 49)
    x = np.concatenate((x, [[0.0, 0.0]]))
    labels, offsets = np.array([0.0] * 50 + [1.0]), np.array([0, 51])
    lists, _ = setting(x, labels, offsets, sparse=True)
    lists.refresh(torch.tensor([[800.0, 0.0]], dtype=torch.float64))
    lists.move(lists.read(slice(0, 1)), torch.tensor([[-805.0]], dtype=torch.float64))
    assert lists.below[0, 1].item() == pytest.approx(np.log(49 + np.exp(-5)), rel=1e-14)
    lists.refresh(torch.tensor([[20.0, 0.0]], dtype=torch.float64))
    for _ in range(100):  # and in small steps
        lists.move(lists.read(slice(0, 1)), torch.tensor([[-0.25]], dtype=torch.float64))
    assert lists.below[0, 1].item() == pytest.approx(np.log(49 + np.exp(-5)), rel=1e-13)


@pytest.mark.parametrize("scale", [1e3, 1e-3])
def test_features_of_any_size(scale):
    data, penalty = problem(seed=7, scale=scale), Penalty(0.0, 0.0)
    weights = []
    for sparse in (False, True):
        lists, steepness = setting(*data, sparse=sparse)
        weight = zeros()
        weight[0, 1] = 1e3 / scale  # scores of 1e3 on the way
        for _ in range(30):
            before = objective(weight, penalty, *data)
            weight = coordinate_sweep(lists, weight, penalty, steepness, range(FEATURES))
            assert objective(weight, penalty, *data) <= before * (1 + 1e-12)
        weights.append(weight)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-7, atol=1e-9 / scale)


# ---- forms of the data ------------------------------------------------------------------------------------------


def topics(seed=0, number=3, documents=20):
    random = np.random.default_rng(seed)
    x = random.normal(size=(documents, FEATURES)) * (random.random((documents, FEATURES)) < 0.4)
    labels = (x @ random.normal(size=(FEATURES, number)) > 0.5).T.astype(float)  # (T, n)
    return x, labels


def topic_batches(x, labels, *, sparse, shared):
    """One batch for each topic, as large corpora come."""
    rows = torch.from_numpy(x)
    rows = SparseRows.from_dense(rows) if sparse else rows
    index, offsets = torch.arange(len(x)) if shared else None, torch.tensor([0, len(x)])
    return [
        make_batch(rows, torch.from_numpy(row), offsets, index=index, query=torch.tensor([t]))
        for t, row in enumerate(labels)
    ]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("block", [1, 3])
def test_topics_side_by_side_are_models_by_themselves(block, shared, sparse):
    x, labels = topics()
    penalty = Penalty(0.3, 0.1)
    batches = topic_batches(x, labels, sparse=sparse, shared=shared)
    lists = coordinate_lists(batches, [None] * len(batches), len(batches))
    steepness = torch.cat([steepness_of(batch, block=block) for batch in batches])
    weight = zeros(models=3)
    steepness[1, 2:4] = 0  # these stay 0
    for _ in range(4):
        weight = coordinate_sweep(lists, weight, penalty, steepness, range(0, FEATURES, block), block=block)
    for t, row in enumerate(labels):
        alone, each = setting(x, row, np.array([0, len(x)]), sparse=not sparse, block=block)
        expected, each = zeros(), torch.where(steepness[[t]] > 0, each, 0.0)
        for _ in range(4):
            expected = coordinate_sweep(alone, expected, penalty, each, range(0, FEATURES, block), block=block)
        torch.testing.assert_close(weight[[t]], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_lists_in_several_batches_and_on_several_processes(sparse):
    x, labels, offsets = problem(seed=8)
    whole, steepness = setting(x, labels, offsets, sparse=sparse)
    cuts = [(0, 4), (4, 4), (4, 9)]  # one is empty
    batches = [
        batch_of(x[offsets[a] : offsets[b]], labels[offsets[a] : offsets[b]], offsets[a : b + 1] - offsets[a], sparse)
        ._replace(num_grades=3)
        for a, b in cuts
    ]  # fmt: skip
    parts = coordinate_lists(batches, [None] * len(batches))
    weights = [coordinate_sweep(lists, zeros(), PENALTIES[3], steepness, range(FEATURES)) for lists in (whole, parts)]
    torch.testing.assert_close(*weights, rtol=1e-12, atol=1e-12)
    alone = [coordinate_lists([batch], [None]) for batch in batches]
    weight = zeros()
    for lists in alone:
        lists.refresh(weight)
    for r in range(FEATURES):  # each process moves its own scores by the same step
        part = slice(r, r + 1)
        total = sum(lists.gradient(lists.read(part)) for lists in alone)
        now = weight.clone()
        for lists in alone:
            now = weight.clone()
            coordinate_step(lists, now, part, PENALTIES[3], steepness[:, part], reduce=lambda _, total=total: total)
        weight = now
    torch.testing.assert_close(weight, weights[0], rtol=1e-12, atol=1e-12)


def test_real_valued_labels():
    x, labels, offsets = problem(seed=9, grades=5)
    labels = labels / 3
    weights = [
        coordinate_sweep(lists, zeros(), Penalty(0.1, 0.0), steepness, range(FEATURES))
        for lists, steepness in (setting(x, labels, offsets, sparse=sparse) for sparse in (False, True))
    ]
    torch.testing.assert_close(*weights, rtol=1e-12, atol=1e-12)
    assert weights[0].abs().max() > 0.1


def test_a_sparse_step_reads_its_column_only():
    """The rows are never multiplied during a step: only `refresh` asks for them."""
    x, labels, offsets = problem(seed=10)
    lists, steepness = setting(x, labels, offsets, sparse=True)
    weight = zeros()
    lists.refresh(weight)
    lists.batch = lists.batch._replace(x=None)
    for r in range(FEATURES):
        coordinate_step(lists, weight, slice(r, r + 1), PENALTIES[1], steepness[:, r : r + 1])
    assert weight.any()

"""Coordinate descent: every update lowers the objective, the end is the optimum, sums that are kept stay exact."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.functional.domination import dominating, domination_slopes
from torchrank.functional.ragged import segment_sum
from torchrank.solvers.coordinate import coordinate_lists, coordinate_step, coordinate_sweep, useful_blocks
from torchrank.solvers.curvature import add_curvature
from torchrank.solvers.fista import fista_start, fista_step
from torchrank.solvers.penalty import Penalty

FEATURES = 8
PENALTIES = [Penalty(0.0, 0.0), Penalty(1.5, 0.0), Penalty(0.0, 0.7), Penalty(0.8, 0.4)]
MATRIX = torch.tensor([[0.0, 0, 0], [0.4, 0, 0], [1.1, 0.2, 0]], dtype=torch.float64)


def problem(*, grades=3, scale=1.0, seed=0, share=0.5):
    """Lists of 1..12 documents; a feature that is 0 everywhere, one constant in each list, one a copy of another."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(random.integers(1, 13, 9))))
    x = random.normal(size=(offsets[-1], FEATURES)) * (random.random((offsets[-1], FEATURES)) < share)
    labels = np.clip(np.round(x[:, 1] - x[:, 2] + random.normal(size=len(x)) + grades / 2), 0, grades - 1)
    x[:, 3], x[:, 6] = 0, x[:, 5]
    x[:, 4] = np.repeat(random.normal(size=9), np.diff(offsets))
    return scale * x, labels, offsets


def loss(scores, labels, offsets, matrix=None):
    """Summed over lists, and the slope at every score: the double loop."""
    total, slopes = 0.0, np.zeros(len(scores))
    for start, stop in pairwise(offsets):
        for i in range(start, stop):
            below = [j for j in range(start, stop) if labels[j] < labels[i]]
            margin = [0.0 if matrix is None else matrix[int(labels[i]), int(labels[j])] for j in below]
            gaps = np.array([0.0] + [scores[j] - scores[i] + m for j, m in zip(below, margin, strict=True)])
            value = gaps.max() + np.log(np.exp(gaps - gaps.max()).sum())
            shares = np.exp(gaps - value)
            total += value
            slopes[below] += shares[1:]
            slopes[i] -= shares[1:].sum()
    return total, slopes


def objective(weight, penalty, x, labels, offsets):
    w = weight[0].numpy()
    return loss(x @ w, labels, offsets)[0] + penalty.l1 * np.abs(w).sum() + penalty.l2 * (w**2).sum()


def batch_of(x, labels, offsets, sparse):
    rows = torch.from_numpy(x)
    return make_batch(
        SparseRows.from_dense(rows) if sparse else rows, torch.from_numpy(labels), torch.from_numpy(offsets)
    )


def setting(x, labels, offsets, *, sparse, bound="range", block=1, margin=None):
    batch = batch_of(x, labels, offsets, sparse)
    lists = coordinate_lists([batch], lambda _: margin)
    return lists, steepness_of(batch, bound, block)


def steepness_of(batch, bound="range", block=1):
    counts = segment_sum(dominating(batch.labels, batch.offsets).double(), batch.offsets)
    steepness = torch.zeros(1, batch.x.shape[1], dtype=torch.float64)
    add_curvature(batch, steepness, torch.zeros_like(batch.query), counts, bound, block=block)
    return steepness


def zeros(features=FEATURES, models=1):
    return torch.zeros(models, features, dtype=torch.float64)


# ---- every update -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bound", ["range", "square"])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_update_lowers_the_objective_also_after_100_sweeps(penalty, bound, sparse):
    data = problem()
    lists, steepness = setting(*data, sparse=sparse, bound=bound)
    weight, order = zeros(), range(FEATURES)
    for sweeps in (2, 100):
        for _ in range(sweeps):
            weight = coordinate_sweep(lists, weight, penalty, steepness, order)
        value = objective(weight, penalty, *data)
        for r in order:
            coordinate_step(lists, weight, slice(r, r + 1), penalty, steepness[:, r : r + 1])
            before, value = value, objective(weight, penalty, *data)
            assert value <= before + 1e-13 * before


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bound", ["range", "square"])
@pytest.mark.parametrize("block", [2, 3, 8])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_update_of_a_block_lowers_the_objective(penalty, block, bound, sparse):
    data = problem(seed=1)
    lists, steepness = setting(*data, sparse=sparse, bound=bound, block=block)
    weight = zeros()
    lists.refresh(weight)
    value = first = objective(weight, penalty, *data)
    for _ in range(30):
        for start in range(0, FEATURES, block):
            part = slice(start, min(start + block, FEATURES))
            coordinate_step(lists, weight, part, penalty, steepness[:, part])
            before, value = value, objective(weight, penalty, *data)
            assert value <= before + 1e-13 * before
    assert value < 0.9 * first


@pytest.mark.parametrize("sparse", [False, True])
def test_copies_moved_together_without_tau_raise_the_objective_and_with_tau_do_not(sparse):
    x, labels, offsets = problem(seed=2)
    data = 5 * (x[:, [1]] + 0.01 * np.random.default_rng(0).normal(size=(len(x), 12))), labels, offsets
    penalty, part, risen = Penalty(0.0, 0.0), slice(0, 12), {}
    for block in (1, 12):  # the bounds of single features are what tau = 1 would use
        lists, steepness = setting(*data, sparse=sparse, block=block)
        weight = zeros(12)
        lists.refresh(weight)
        values = [objective(weight, penalty, *data)]
        for _ in range(20):
            coordinate_step(lists, weight, part, penalty, steepness)
            values.append(objective(weight, penalty, *data))
        risen[block] = (np.diff(values) > 1e-12 * values[0]).sum()
    assert risen[1] > 3 and risen[12] == 0


@pytest.mark.parametrize("penalty", PENALTIES)
def test_features_without_slope_stay_or_go_to_zero(penalty):
    for sparse in (False, True):
        lists, steepness = setting(*problem(), sparse=sparse)
        assert steepness[0, 3] == 0 and steepness[0, 4] == 0
        start = zeros()
        start[0, 3:5] = 2.0
        weight = coordinate_sweep(lists, start, penalty, steepness, useful_blocks(start, steepness))
        assert (weight[0, 3:5] == (0.0 if penalty.l1 + penalty.l2 > 0 else 2.0)).all()


def test_blocks_without_slope_are_left_out():
    steepness = setting(*problem(), sparse=True)[1]
    assert useful_blocks(zeros(), steepness) == [0, 1, 2, 5, 6, 7]
    assert useful_blocks(zeros(), steepness, block=4) == [0, 4]
    drawn = [useful_blocks(zeros(), steepness, 1, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and sorted(drawn[0]) == [0, 1, 2, 5, 6, 7]


# ---- the optimum ------------------------------------------------------------------------------------------------


def converged(lists, steepness, penalty, block=1, sweeps=1000):
    weight = zeros()
    for _ in range(sweeps):
        before = weight
        weight = coordinate_sweep(lists, weight, penalty, steepness, range(0, FEATURES, block), block=block)
        if (weight - before).abs().max() < 1e-8:
            break
    return weight


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("block", [1, 3])
def test_end_with_l2_is_that_of_scipy(block, sparse):
    data, penalty = problem(seed=3), Penalty(0.0, 0.7)
    x, labels, offsets = data

    def smooth(w):
        value, slopes = loss(x @ w, labels, offsets)
        return value + 0.7 * w @ w, x.T @ slopes + 1.4 * w

    best = minimize(smooth, np.zeros(FEATURES), jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-10})
    weight = converged(*setting(*data, sparse=sparse, block=block), penalty, block)
    assert objective(weight, penalty, *data) == pytest.approx(best.fun, rel=1e-10)
    np.testing.assert_allclose(weight[0].numpy(), best.x, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("penalty", [PENALTIES[1], PENALTIES[3]])
def test_end_with_l1_is_that_of_fista_and_has_exact_zeros(penalty, sparse):
    data = problem(seed=4)
    x, labels, offsets = data

    def slopes(weight):
        found, at_scores = domination_slopes(torch.from_numpy(x) @ weight[0], *map(torch.from_numpy, (labels, offsets)))
        return found.sum()[None], (at_scores @ torch.from_numpy(x))[None]

    lists, steepness = setting(*data, sparse=sparse)
    state = fista_start(zeros())
    for _ in range(150):
        state = fista_step(state, lambda w: slopes(w)[0], slopes, penalty, steepness)
    weight = converged(lists, steepness, penalty)
    assert objective(weight, penalty, *data) == pytest.approx(objective(state.point, penalty, *data), rel=1e-9)
    gradient = torch.from_numpy(x.T @ loss(x @ weight[0].numpy(), labels, offsets)[1])
    assert penalty.violation(weight, gradient[None]).max() < 1e-5
    assert (weight == 0).sum() >= 2


@pytest.mark.parametrize("sparse", [False, True])
def test_from_the_largest_l1_on_all_weights_are_zero(sparse):
    data = problem(seed=5)
    x, labels, offsets = data
    largest = np.abs(x.T @ loss(np.zeros(len(x)), labels, offsets)[1]).max()
    lists, steepness = setting(*data, sparse=sparse)
    for share, zero in ((1.0 + 1e-12, True), (0.99, False)):
        weight = coordinate_sweep(lists, zeros(), Penalty(share * largest, 0.0), steepness, range(FEATURES))
        assert (weight == 0).all().item() is zero


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


def test_a_sum_whose_largest_term_falls_far_is_made_anew():
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
    lists = coordinate_lists(batches, lambda _: None, len(batches))
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
    parts = coordinate_lists(batches, lambda _: None)
    weights = [coordinate_sweep(lists, zeros(), PENALTIES[3], steepness, range(FEATURES)) for lists in (whole, parts)]
    torch.testing.assert_close(*weights, rtol=1e-12, atol=1e-12)
    alone = [coordinate_lists([batch], lambda _: None) for batch in batches]
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
    labels = labels / 3 - 0.5
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


# ---- bounds -----------------------------------------------------------------------------------------------------


def plain_bound(x, bound, block):
    """B (D,) of one list."""
    found = np.zeros(x.shape[1])
    for start in range(0, x.shape[1], block):
        part = x[:, start : start + block]
        low, high = part.min(0), part.max(0)
        centres = [0 * low] if bound == "square" else [(low + high) / 2, 0 * low]
        tried = []
        for centre in centres:
            widest = ((part - centre) ** 2).max(0) * ((high > low) if bound == "range" else 1)
            used = widest > 0
            tau = (((part - centre) ** 2)[:, used] / widest[used]).sum(1).max()
            tried.append(max(tau, 1.0) * widest)
        found[start : start + block] = min(tried, key=np.sum)
    return found


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bound", ["range", "square"])
@pytest.mark.parametrize("block", [1, 2, 5, 8, 20])
@pytest.mark.parametrize("share", [0.1, 0.9, 1.0])
def test_bounds_typed_again_and_above_every_covariance(share, block, bound, sparse):
    x, labels, offsets = problem(seed=11, share=share)
    found = steepness_of(batch_of(x, labels, offsets, sparse), bound, block)[0].numpy()
    expected, random = np.zeros(FEATURES), np.random.default_rng(0)
    for a, b in pairwise(offsets):
        count, each = (labels[a:b] > labels[a:b].min()).sum(), plain_bound(x[a:b], bound, block)
        expected += count * each
        for _ in range(20):
            shares = random.dirichlet(np.full(b - a, 0.3))
            centred = x[a:b] - shares @ x[a:b]
            for start in range(0, FEATURES, block):
                part = slice(start, start + block)
                gap = np.diag(each[part]) - centred[:, part].T @ (shares[:, None] * centred[:, part])
                assert np.linalg.eigvalsh(gap).min() >= -1e-12
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_column_that_stands_twice_in_a_row_counts_as_its_sum():
    rows = SparseRows(torch.tensor([2.0, 3.0, 1.0]), torch.tensor([0, 0, 0]), torch.tensor([0, 2, 3]), 1)
    labels, offsets = torch.tensor([0.0, 1.0]), torch.tensor([0, 2])
    assert steepness_of(make_batch(rows, labels, offsets)).item() == 4.0  # (5 - 1)^2 / 4

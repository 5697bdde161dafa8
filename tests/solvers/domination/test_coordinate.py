"""Coordinate descent: every update lowers the objective, the end is the optimum."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.solvers.domination.coordinate_problems import FEATURES, PENALTIES, loss, objective, problem, setting, zeros
from torchrank.functional import Lists
from torchrank.functional.losses.domination import DominationGradient
from torchrank.solvers.domination.coordinate_descent import coordinate_step, coordinate_sweep, useful_blocks
from torchrank.solvers.domination.penalised import Penalty, fista_start, fista_step

# ---- every update -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_update_lowers_the_objective_also_after_100_sweeps(penalty, sparse):
    data = problem()
    lists, steepness = setting(*data, sparse=sparse)
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
@pytest.mark.parametrize("block", [2, 3, 8])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_every_update_of_a_block_lowers_the_objective(penalty, block, sparse):
    data = problem(seed=1)
    lists, steepness = setting(*data, sparse=sparse, block=block)
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
    held = zeros()
    held[0, 3] = 1.0  # a weight to lose
    assert useful_blocks(held, steepness) == [0, 1, 2, 3, 5, 6, 7]


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
@pytest.mark.parametrize("penalty", [PENALTIES[1], pytest.param(PENALTIES[3], marks=pytest.mark.slow)])
def test_end_with_l1_is_that_of_fista_and_has_exact_zeros(penalty, sparse):
    data = problem(seed=4)
    x, labels, offsets = data
    domination = DominationGradient(torch.from_numpy(labels), Lists.of(offsets, labels=labels))

    def slopes(weight):
        found, at_scores = domination.loss_and_gradient(torch.from_numpy(x) @ weight[0])
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

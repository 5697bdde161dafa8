"""FISTA against scipy on logistic problems, problems side by side, what a step promises; rounds of several steps."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

from torchrank.solvers.domination.penalised import (
    Fista,
    Penalty,
    Solving,
    fista_start,
    fista_step,
    fista_steps,
    lbfgs_steps,
)
from torchrank.solvers.linear.lbfgs import TRIALS

ROWS, FEATURES = 40, 7


def logistic(seed, unit=1.0):
    random = np.random.default_rng(seed)
    a = random.normal(size=(ROWS, FEATURES)) * np.logspace(0, np.log10(unit), FEATURES)
    y = np.sign(a @ random.normal(size=FEATURES) / a.std() + random.normal(size=ROWS))
    return a * y[:, None]


def plain(rows, w, l1, l2):
    return np.logaddexp(0, -rows @ w).sum() + l1 * np.abs(w).sum() + l2 * w @ w


def solved(rows, l1, l2):
    def split(z):
        w = z[:FEATURES] - z[FEATURES:]
        slope = -rows.T @ expit(-rows @ w) + 2 * l2 * w
        return np.logaddexp(0, -rows @ w).sum() + l1 * z.sum() + l2 * w @ w, np.concatenate([slope, -slope]) + l1

    options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 10_000, "maxfun": 100_000}
    start, bounds = np.zeros(2 * FEATURES), [(0, None)] * (2 * FEATURES)
    found = minimize(split, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return found.x[:FEATURES] - found.x[FEATURES:]


def problem(many):
    """T logistic losses of `many (T, n, D)` as FISTA takes them, and the bound of their curvature by coordinate."""
    stacked = torch.tensor(np.array(many))

    def slopes(points):
        margins = torch.einsum("tnd,td->tn", stacked, points)
        gradients = torch.einsum("tnd,tn->td", stacked, -torch.sigmoid(-margins))
        return torch.logaddexp(-margins, torch.zeros_like(margins)).sum(1), gradients

    return slopes, stacked.square().sum(1) / 4


def run(slopes, scale, penalty, steps):
    state = fista_start(torch.zeros_like(scale))
    for _ in range(steps):
        state = fista_step(state, lambda w: slopes(w)[0], slopes, penalty, scale)
    return state.point


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.1), (1.0, 0.0), (0.5, 0.2), (3.0, 0.0)])
@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_it_finds_the_minimum_of_scipy(l1, l2, unit):
    rows = logistic(1, unit)
    slopes, scale = problem([rows])
    found = run(slopes, scale, Penalty(l1, l2), 600)[0].numpy()
    best = solved(rows, l1, l2)
    assert plain(rows, found, l1, l2) <= plain(rows, best, l1, l2) * (1 + 1e-10)
    violation = Penalty(l1, l2).violation(torch.tensor(found), slopes(torch.tensor(found)[None])[1][0])
    assert violation.max() < 1e-6 * unit


def test_problems_side_by_side_are_problems_of_their_own():
    """Though they share backtracking: each keeps its own curvature, momentum and restarts."""
    many = [logistic(seed, 10.0**seed) for seed in range(4)]
    slopes, scale = problem(many)
    l1 = torch.tensor([[0.1], [1.0], [0.0], [40.0]]).double()
    together = run(slopes, scale, Penalty(l1, 0.05), 50)
    for t, rows in enumerate(many):
        one, own = problem([rows])
        torch.testing.assert_close(together[t], run(one, own, Penalty(float(l1[t]), 0.05), 50)[0], rtol=1e-7, atol=1e-9)


def test_every_step_is_below_its_bound_and_the_curvature_is_bounded():
    """Backtracking never needs more than twice the true bound: D times the largest curvature along a coordinate."""
    slopes, scale = problem([logistic(0)])
    state, penalty = fista_start(torch.zeros_like(scale)), Penalty(0.5, 0.0)
    for _ in range(100):
        before = state
        state = fista_step(before, lambda w: slopes(w)[0], slopes, penalty, scale)
        loss, gradient = slopes(before.ahead)
        used = state.curvature / 0.95
        move = state.point - before.ahead
        bound = loss + (gradient * move).sum(1) + (used * scale * move.square()).sum(1) / 2
        assert slopes(state.point)[0] <= bound + 1e-10 and used <= 2 * FEATURES


@pytest.mark.parametrize("constant", [0.0, 1e8])
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.1), (1.0, 0.0)])
def test_it_stays_at_the_minimum(constant, l1, l2):
    """Where losses agree in all digits but the last: steps that are too long would leave it again and again."""
    slopes, scale = problem([logistic(1, 1000.0)])
    penalty, state = Penalty(l1, l2), fista_start(torch.zeros_like(scale))

    def raised(w):
        value, gradient = slopes(w)
        return value + constant, gradient

    for step in range(300):
        state = fista_step(state, lambda w: raised(w)[0], raised, penalty, scale)
        assert step < 100 or penalty.violation(state.point, slopes(state.point)[1]).max() < 1e-9


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_losses_that_are_not_finite_are_refused(broken):
    """And do not make steps shorter for ever."""
    slopes, scale = problem([logistic(0)])

    def wrong(w):
        value, gradient = slopes(w)
        return torch.where(w.any(1), broken, value), gradient  # from the second step on

    state = fista_step(fista_start(torch.zeros_like(scale)), lambda w: wrong(w)[0], wrong, Penalty(0.1, 0.0), scale)
    with pytest.raises(ValueError, match=r"FISTA: the loss is (nan|inf)"):
        fista_step(state, lambda w: wrong(w)[0], wrong, Penalty(0.1, 0.0), scale)


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_problem_without_slopes_ends(l2):
    """No coordinate has any: the point stays, or goes to 0 under a penalty, and nothing is tried for ever."""
    slopes, scale = problem([0 * logistic(0)])
    state = fista_step(fista_start(torch.ones_like(scale)), lambda w: slopes(w)[0], slopes, Penalty(0.0, l2), scale)
    assert (state.point == (0.0 if l2 else 1.0)).all()


def test_momentum_restarts_where_it_points_uphill():
    def quadratic(w):
        return w.square().sum(1) / 2, w

    def step(point, ahead):
        state = Fista(*torch.tensor([[[point]], [[ahead]]]).double(), torch.tensor([5.0]), torch.tensor([1.0]))
        one = torch.ones(1, 1, dtype=torch.float64)
        return fista_step(state, lambda w: quadratic(w)[0], quadratic, Penalty(0.0, 0.0), one)

    for point, ahead in ((1.0, -3.0), (-1.0, 3.0)):  # beyond the minimum
        new = step(point, ahead)
        assert new.point.item() == 0 and new.momentum.item() == 1 and torch.equal(new.ahead, new.point)
    onward = step(1.0, 0.5)  # on its way
    expected = (1 + (1 + 4 * 25) ** 0.5) / 2
    assert onward.momentum.item() == pytest.approx(expected)
    assert onward.ahead.item() == pytest.approx(0 + (5 - 1) / expected * (0 - 1))


def test_a_coordinate_without_slope_goes_to_zero():
    rows = logistic(2)
    rows[:, 3] = 0
    slopes, scale = problem([rows])
    for penalty in (Penalty(0.1, 0.0), Penalty(0.0, 0.1)):
        state = fista_start(torch.ones_like(scale))
        for _ in range(5):
            state = fista_step(state, lambda w: slopes(w)[0], slopes, penalty, scale)
        assert state.point[0, 3] == 0 and (state.point[0, :3] != 0).all()


# ---- rounds of steps --------------------------------------------------------------------------------------------


def nothing(scale):
    """A solver that has not made a step."""
    return Solving(torch.zeros_like(scale), scale[:0], scale[:0])


@pytest.mark.parametrize("solver", ["fista", "lbfgs"])
def test_rounds_of_few_steps_are_one_round_of_many(solver):
    """What is kept between two rounds is all that a solver needs."""
    slopes, scale = problem([logistic(seed, 10.0) for seed in range(3)])
    penalty = Penalty(0.0, 0.1)

    def steps(state, count):
        if solver == "fista":
            return fista_steps(state, count, lambda w: slopes(w)[0], slopes, penalty, scale)
        return lbfgs_steps(state, count, slopes, penalty, tolerance=1e-9)

    whole, parts = steps(nothing(scale), 12), nothing(scale)
    for count in (1, 4, 7):
        parts = steps(parts, count)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
    assert not torch.equal(steps(parts.restarted(), 1).weight, steps(parts, 1).weight)


def test_lbfgs_steps_end_at_the_minimum_of_all_problems():
    many = [logistic(seed, 10.0) for seed in range(3)]
    slopes, scale = problem(many)
    penalty = Penalty(0.0, 0.1)
    found = lbfgs_steps(nothing(scale), 200, slopes, penalty, tolerance=1e-7).weight
    assert penalty.worst(found, slopes(found)[1]) <= 1e-7
    for rows, point in zip(many, found.numpy(), strict=True):
        assert plain(rows, point, 0.0, 0.1) <= plain(rows, solved(rows, 0.0, 0.1), 0.0, 0.1) * (1 + 1e-12)


def test_lbfgs_steps_that_do_not_help_are_not_repeated():
    """At the lowest point of a kink no step is taken, and no slope is below the tolerance."""
    calls = []

    def slopes(w):
        calls.append(1)
        return w.abs().sum(1), torch.where(w >= 0, 1.0, -1.0).double()

    start = nothing(torch.zeros(1, 4).double())
    assert torch.equal(lbfgs_steps(start, 20, slopes, Penalty(0.0, 0.0), 1e-9).weight, start.weight)
    assert len(calls) == 1 + TRIALS  # one line search

"""Quadratic programs over the simplex against all supports, and against scipy."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from torchrank.solvers.cutting_plane.reduced_problem import ActiveSet


def problem(seed, count, rank):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, rank))
    return rows @ rows.T, random.normal(size=count) * 2


def value(hessian, linear, a):
    return a @ hessian @ a / 2 - linear @ a


def by_supports(hessian, linear, total):
    """The best of the stationary points of all supports that have no negative weight."""
    best = np.inf
    for size in range(1, len(linear) + 1):
        for support in map(list, combinations(range(len(linear)), size)):
            system = np.ones((size + 1, size + 1))
            system[:size, :size], system[size, size] = hessian[np.ix_(support, support)], 0
            a = np.zeros(len(linear))
            a[support] = np.linalg.lstsq(system, np.append(linear[support], total))[0][:size]
            if a.min() >= -1e-9 and abs(a.sum() - total) < 1e-9 * total:
                best = min(best, value(hessian, linear, a))
    return best


def first(count, total):
    return total * np.eye(count)[0]


@pytest.mark.parametrize("total", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("rank", [2, 5, 8])
def test_it_is_the_best_of_all_supports(rank, total):
    for seed in range(6):
        hessian, linear = problem(seed, 6, rank)
        a = ActiveSet(hessian, total, first(6, total)).minimum(linear)
        assert a.min() >= 0 and a.sum() == pytest.approx(total, rel=1e-10)
        assert value(hessian, linear, a) == pytest.approx(by_supports(hessian, linear, total), rel=1e-8, abs=1e-10)


def test_it_has_the_minimum_of_scipy():
    hessian, linear = problem(3, 25, 10)
    a = ActiveSet(hessian, 4.0, first(25, 4.0)).minimum(linear)
    found = minimize(
        lambda a: value(hessian, linear, a),
        np.full(25, 4 / 25),
        jac=lambda a: hessian @ a - linear,
        bounds=[(0, None)] * 25,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 4, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert value(hessian, linear, a) <= found.fun + 1e-10
    assert value(hessian, linear, a) == pytest.approx(found.fun, rel=1e-7)


def test_slopes_of_positive_weights_are_equal_and_the_lowest():
    hessian, linear = problem(11, 60, 200)
    a = ActiveSet(hessian, 30.0, first(60, 30.0)).minimum(linear * 40)
    slopes = hessian @ a - linear * 40
    assert np.ptp(slopes[a > 0]) < 1e-9
    assert slopes.min() > slopes[a > 0].min() - 1e-9


def test_many_questions_in_a_row_are_answered_like_one_by_one():
    hessian, linear = problem(2, 12, 12)
    warm = ActiveSet(hessian, 3.0, first(12, 3.0))
    random = np.random.default_rng(0)
    for _ in range(40):
        linear = linear + 0.3 * random.normal(size=12)
        cold = ActiveSet(hessian, 3.0, first(12, 3.0)).minimum(linear)
        np.testing.assert_allclose(warm.minimum(linear), cold, atol=1e-9)


def test_equal_rows_and_rows_of_zeros_are_no_trouble():
    hessian, linear = problem(5, 5, 5)
    twice = np.r_[0:5, 0:5, 0:5]
    best = value(hessian, linear, ActiveSet(hessian, 2.0, first(5, 2.0)).minimum(linear))
    many, longer = hessian[np.ix_(twice, twice)], linear[twice]
    a = ActiveSet(many, 2.0, first(15, 2.0)).minimum(longer)
    assert a.min() >= 0 and a.sum() == pytest.approx(2)
    assert value(many, longer, a) == pytest.approx(best, rel=1e-8)
    zeros = ActiveSet(np.zeros((4, 4)), 2.0, first(4, 2.0)).minimum(np.array([0.0, 1.0, 1.0, 0.5]))
    assert value(np.zeros((4, 4)), np.array([0.0, 1.0, 1.0, 0.5]), zeros) == -2


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3])
def test_weights_add_up_to_the_total_where_the_slopes_are_of_another_size(scale):
    for seed in range(20):
        hessian, linear = problem(seed, 8, 3)
        a = ActiveSet(hessian * scale**2, 1e-3, first(8, 1e-3)).minimum(linear / scale)
        assert a.min() >= 0 and a.sum() == pytest.approx(1e-3, rel=1e-12)


def test_of_equal_ones_the_first_joins():
    solver = ActiveSet(np.ones((4, 4)), 1.0, first(4, 1.0))
    np.testing.assert_array_equal(solver.minimum(np.array([0.0, 9.0, 0.0, 9.0])).round(12) > 0, [0, 1, 0, 0])

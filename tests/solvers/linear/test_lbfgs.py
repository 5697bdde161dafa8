"""L-BFGS against scipy, on convex functions with known kinds of trouble, for one function and for many at once."""

import numpy as np
import pytest
import scipy.optimize
import torch
from torch.nn.functional import softplus

from torchrank.solvers.linear import lbfgs
from torchrank.solvers.linear.lbfgs import (
    ROUNDING,
    TRIALS,
    LineSearch,
    lbfgs_start,
    lbfgs_step,
    many_lbfgs,
)


def logistic(seed: int, condition: float, l2: float = 0.01):
    random = np.random.default_rng(seed)
    x = random.normal(size=(60, 8)) * np.logspace(0, np.log10(condition), 8)
    rows = torch.tensor(x * np.sign(x @ random.normal(size=8) + random.normal(size=60))[:, None])

    def objective(w):
        margin = rows @ w
        slopes = -(rows * torch.sigmoid(-margin)[:, None]).mean(0)
        return softplus(-margin).mean() + l2 / 2 * w @ w, slopes + l2 * w

    return objective


def bowl(seed: int, condition: float, constant: float = 0.0):
    """A quadratic with known minimum: `constant`, at the point of all ones."""
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(8, 8)))
    matrix = torch.tensor(turn * np.logspace(0, -np.log10(condition), 8) @ turn.T)

    def objective(w):
        slopes = matrix @ (w - 1)
        return (w - 1) @ slopes / 2 + constant, slopes

    return objective


def quartic(w):
    """No curvature at the minimum."""
    return (w**4).sum(), 4 * w**3


def hinges(w):
    """Flat beyond the margin."""
    short = (1 - w).clamp(min=0)
    return (short * short).sum(), -2 * short


def steep(w):
    """Slopes of 10^43 at the start."""
    return (w.exp() + (-w).exp()).sum(), w.exp() - (-w).exp()


def run(objective, start, tolerance, steps=300):
    """Steps until no slope is above the tolerance, none of which may raise the value; and how many evaluations."""
    calls = []

    def counted(w):
        calls.append(1)
        return objective(w)

    state = lbfgs_start(start)
    value, gradient = counted(state.point)
    for _ in range(steps):
        if gradient.abs().max() <= tolerance:
            break
        before, (state, value, gradient) = value, lbfgs_step(state, counted, value, gradient)[:3]
        assert value <= before + ROUNDING * abs(before)
    again = objective(state.point)
    assert torch.equal(again[0], value) and torch.equal(again[1], gradient)  # those of the point
    return state.point, value.item(), gradient.abs().max().item(), len(calls)


def zeros(size=8):
    return torch.zeros(size, dtype=torch.float64)


# ---- one function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("condition", [1, 10, 100, 1000])
def test_it_finds_the_minimum_of_scipy_and_never_rises(seed, condition):
    objective = logistic(seed, condition)
    point, value, slope, calls = run(objective, zeros(), 1e-9)

    def plain(w):
        found, gradient = objective(torch.from_numpy(w))
        return found.item(), gradient.numpy()

    best = scipy.optimize.minimize(plain, np.zeros(8), jac=True, method="BFGS", options={"gtol": 1e-10})
    assert slope <= 1e-9 and calls < 250
    assert value == pytest.approx(best.fun, rel=1e-10)
    np.testing.assert_allclose(point.numpy(), best.x, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("condition", "calls"), [(1, 4), (100, 50), (1e4, 300)])
def test_a_quadratic_is_solved_to_its_known_minimum(seed, condition, calls):
    point, value, slope, made = run(bowl(seed, condition), zeros(), 1e-9)
    assert slope <= 1e-9 and 0 <= value <= 1e-9**2 * condition * 8 and made <= calls
    torch.testing.assert_close(point, torch.ones_like(point), rtol=0, atol=1e-8 * condition)


@pytest.mark.parametrize("seed", range(5))
def test_values_that_agree_in_all_digits_do_not_hide_the_minimum(seed):
    """A constant of 10^8 leaves 10^-8 of the value: the slopes still fall to a tenth of what the value could show."""
    point, value, slope, _ = run(bowl(seed, 10.0, constant=1e8), zeros(), 1e-7)
    assert slope <= 1e-7 and value == 1e8
    torch.testing.assert_close(point, torch.ones_like(point), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("objective", "start", "lowest"),
    [(quartic, 3.0, 0.0), (hinges, -40.0, 0.0), (hinges, 2.0, 0.0), (steep, 100.0, 16.0)],
)
def test_functions_that_are_flat_or_steep(objective, start, lowest):
    _, value, slope, _ = run(objective, zeros() + start, 1e-9, steps=800)
    assert slope <= 1e-9 and value == pytest.approx(lowest, abs=1e-11)


@pytest.mark.parametrize("objective", [bowl(0, 100.0), logistic(0, 10.0)])
def test_at_the_minimum_it_stays(objective):
    """Also when asked for more than the precision gives."""
    best, value, *_ = run(objective, zeros(), 0.0, steps=100)
    point, again, _, calls = run(objective, best, 0.0, steps=3)
    assert again <= value + ROUNDING * abs(value) and calls <= 1 + 3 * 2 * TRIALS
    torch.testing.assert_close(point, best, rtol=0, atol=1e-7)


def test_a_function_without_slope_is_done_in_one_evaluation():
    def constant(w):
        return torch.tensor(3.0, dtype=torch.float64), torch.zeros_like(w)

    point, value, slope, calls = run(constant, zeros() + 2, -1.0, steps=1)
    assert calls == 2 and value == 3 and slope == 0 and (point == 2).all()


def test_without_a_step_that_helps_the_state_is_returned_as_it_is():
    def kink(w):
        return w.abs().sum(), torch.where(w >= 0, 1.0, -1.0).double()

    state = lbfgs_start(zeros())
    given = kink(state.point)
    found = lbfgs_step(state, kink, *given)
    assert found[0] is state and found[1] is given[0] and found[2] is given[1]


def test_a_memory_that_misleads_is_dropped():
    """Its direction leads nowhere: the step is the first one of a fresh start."""
    objective, fresh = bowl(1, 10.0), lbfgs_start(zeros())
    value, gradient = objective(fresh.point)
    wrong = torch.zeros_like(fresh.moves)
    wrong[-1, 0] = 1e-200
    misled = fresh._replace(moves=wrong, changes=1e200 * wrong)
    found, expected = (lbfgs_step(state, objective, value, gradient) for state in (misled, fresh))
    assert all(torch.equal(one, other) for one, other in zip(found[0], expected[0], strict=True))


def test_rows_of_the_memory_that_rounding_has_spoiled_are_as_if_not_there():
    """In the middle or newest, they neither hide older rows nor set the scale of the direction."""
    random = torch.Generator().manual_seed(0)
    moves = torch.randn(2, 6, 5, generator=random, dtype=torch.float64)
    matrix = torch.randn(5, 5, generator=random, dtype=torch.float64)
    changes = moves @ (matrix @ matrix.T)
    gradient = torch.randn(2, 5, generator=random, dtype=torch.float64)
    moves[:, :2] = changes[:, :2] = 0  # unused

    def direction(kept, spoiled):
        blank = dict.fromkeys(LineSearch._fields) | {
            "gradient": gradient,
            "moves": moves.clone(),
            "changes": changes.clone(),
        }
        blank["moves"][:, spoiled] = -changes[:, spoiled]
        return lbfgs._inverse_hessians_times(
            LineSearch(**blank | {"moves": blank["moves"][:, kept], "changes": blank["changes"][:, kept]}),
            lbfgs.unscaled,
        )

    for spoiled in ([3], [5], [3, 4], [4, 5]):
        others = [row for row in range(6) if row not in spoiled]
        torch.testing.assert_close(direction(list(range(6)), spoiled), direction(others, []), rtol=1e-12, atol=0)


# ---- many functions ---------------------------------------------------------------------------------------------


def test_steps_of_each_function_are_its_own():
    """Bowls of very different curvature, one of them done at the start; those that are done are no longer asked for."""
    random = torch.Generator().manual_seed(0)
    factors = torch.randn(6, 8, 5, generator=random).double() * torch.logspace(-2, 2, 6).double()[:, None, None]
    target = torch.randn(6, 8, generator=random).double()
    target[2] = 0  # its minimum is the start
    asked = []

    def objectives(points, numbers):
        asked.append(len(numbers))
        rest = torch.bmm(factors[numbers], points[:, :, None])[:, :, 0] - target[numbers]
        slopes = rest + rest**3 + 1e-3 * rest
        value = (rest**2 / 2 + rest**4 / 4 + 5e-4 * rest**2).sum(1) + 1e-3 * points.square().sum(1)
        return value, torch.bmm(factors[numbers].mT, slopes[:, :, None])[:, :, 0] + 2e-3 * points

    found = many_lbfgs(objectives, torch.zeros(6, 5).double(), tolerance=1e-8)
    assert found.max_gradient.max() <= 1e-8 and (found.point[2] == 0).all()
    assert asked[0] == 6 and asked[1] == 5 and asked[-1] < 3 and len(asked) < 300
    for m in range(6):
        one = torch.tensor([m])
        value = scipy.optimize.minimize(
            lambda v, one=one: objectives(torch.tensor(v)[None], one)[0].item(), np.zeros(5)
        ).fun
        assert found.value[m] <= value + 1e-12


def test_many_functions_are_solved_as_each_would_be_alone():
    functions = [logistic(seed, condition) for seed in range(3) for condition in (1, 30, 300)]
    functions += [bowl(0, 1e3), quartic, hinges]

    def objectives(points, numbers):
        found = [functions[number](point) for point, number in zip(points, numbers.tolist(), strict=True)]
        return tuple(map(torch.stack, zip(*found, strict=True)))

    start = torch.zeros(len(functions), 8, dtype=torch.float64) - 1
    together = many_lbfgs(objectives, start, tolerance=1e-8, memory=10)
    for number, function in enumerate(functions):
        point, value, slope, _ = run(function, start[number], 1e-8)
        assert torch.equal(together.point[number], point)
        assert together.value[number] == value and together.max_gradient[number] == slope <= 1e-8


def test_evaluations_are_limited():
    calls = []

    def objectives(points, numbers):
        calls.append(1)
        return (points**4).sum(1), 4 * points**3

    found = many_lbfgs(objectives, torch.ones(2, 3, dtype=torch.float64), tolerance=1e-30, evaluations=7)
    assert len(calls) == 8 and (found.value < 6).all()  # and that of the start


def test_functions_of_no_variables_are_done():
    found = many_lbfgs(lambda points, numbers: (points.sum(1), points), torch.zeros(3, 0, dtype=torch.float64))
    assert found.point.shape == (3, 0) and (found.max_gradient == 0).all()

"""L-BFGS against scipy's, on a convex function with a known kind of trouble: bad conditioning."""

import numpy as np
import pytest
import scipy.optimize
import torch

from torchrank.solvers.linear.lbfgs import ROUNDING, lbfgs_start, lbfgs_step


def logistic(seed: int, condition: float):
    random = np.random.default_rng(seed)
    x = random.normal(size=(60, 8)) * np.logspace(0, np.log10(condition), 8)
    y = np.sign(x @ random.normal(size=8) + random.normal(size=60))

    def objective(w: np.ndarray):
        margin = y * (x @ w)
        value = np.logaddexp(0, -margin).mean() + 0.005 * w @ w
        return value, -(x * (y / (1 + np.exp(margin)))[:, None]).mean(0) + 0.01 * w

    return objective


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("condition", [1, 10, 100])
def test_it_finds_the_minimum_of_scipy_and_never_rises(seed, condition):
    reference = logistic(seed, condition)

    def objective(w):
        value, gradient = reference(w.numpy())
        return torch.tensor(value), torch.from_numpy(gradient)

    state = lbfgs_start(torch.zeros(8, dtype=torch.float64))
    value, gradient = objective(state.point)
    for _ in range(300):
        state, new_value, gradient = lbfgs_step(state, objective, value, gradient)
        assert new_value <= value * (1 + ROUNDING)
        value = new_value
        if gradient.abs().max() < 1e-9:
            break
    best = scipy.optimize.minimize(reference, np.zeros(8), jac=True, method="BFGS", options={"gtol": 1e-10})
    assert value.item() == pytest.approx(best.fun, rel=1e-10)
    np.testing.assert_allclose(state.point.numpy(), best.x, atol=1e-6)


def test_at_the_minimum_it_stays():
    def objective(w):
        return (w * w).sum(), 2 * w

    state = lbfgs_start(torch.zeros(3, dtype=torch.float64))
    new, value, _ = lbfgs_step(state, objective, *objective(state.point))
    assert value == 0 and not new.point.any()

"""Steps, gains and certificates of the elastic net, each against a search over one coordinate."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from torchrank.solvers.domination.penalty import Penalty

PENALTIES = [(0.0, 0.0), (0.7, 0.0), (0.0, 0.4), (0.5, 0.3), (5.0, 0.0)]
CASES = [(w, g, b) for w in (-1.2, 0.0, 0.3) for g in (-2.0, -0.4, 0.0, 0.6, 3.0) for b in (0.2, 1.0, 7.0)]


def tensors(*numbers):
    return (torch.tensor([number], dtype=torch.float64) for number in numbers)


def model(move, w, g, b, l1, l2):
    return g * move + b / 2 * move**2 + l1 * abs(w + move) + l2 * (w + move) ** 2


@pytest.mark.parametrize(("l1", "l2"), PENALTIES)
def test_a_step_minimises_its_model(l1, l2):
    for w, g, b in CASES:
        found = Penalty(l1, l2).prox(*tensors(w, g, b)).item()
        value = model(found - w, w, g, b, l1, l2)
        searched = minimize_scalar(model, args=(w, g, b, l1, l2), tol=1e-14)
        best = min(searched.fun, model(-w, w, g, b, l1, l2))
        assert value <= best + 1e-12, (w, g, b)
        assert value <= model(found - w + 1e-5, w, g, b, l1, l2) and value <= model(found - w - 1e-5, w, g, b, l1, l2)


def test_the_three_cases_of_the_l1_step():
    """As section 8 of the thesis' correction writes them: to 0, to the positive and to the negative side."""
    l1 = 0.7
    for w, g, b in CASES:
        if abs(g - b * w) <= l1:
            expected = 0.0
        elif b * w - g > l1:
            expected = w - (g + l1) / b
        else:
            expected = w - (g - l1) / b
        found = Penalty(l1, 0.0).prox(*tensors(w, g, b)).item()
        assert found == pytest.approx(expected, abs=1e-14) and (expected != 0 or found == 0)


@pytest.mark.parametrize(("l1", "l2"), PENALTIES)
def test_without_a_slope_penalised_weights_go_to_zero(l1, l2):
    """Whatever rounding left in the gradient; without a penalty they stay."""
    found = Penalty(l1, l2).prox(*tensors(1.5, 1e-9, 0.0)).item()
    assert found == (1.5 if l1 == l2 == 0 else 0.0)
    assert Penalty(l1, l2).gain(*tensors(1e-9, 0.0)).item() == 0


@pytest.mark.parametrize(("l1", "l2"), PENALTIES)
def test_the_gain_is_the_fall_of_the_model_from_zero(l1, l2):
    for _, g, b in CASES:
        move = Penalty(l1, l2).prox(*tensors(0.0, g, b)).item()
        gain = Penalty(l1, l2).gain(*tensors(g, b)).item()
        assert gain == pytest.approx(-model(move, 0.0, g, b, l1, l2), abs=1e-14)
        assert (gain == 0) == (abs(g) <= l1)


@pytest.mark.parametrize(("l1", "l2"), PENALTIES)
def test_the_violation_is_the_steepest_way_down(l1, l2):
    """By one-sided differences of g w + penalty(w): how fast the better of the two directions falls."""
    for w, g, _ in CASES:
        sides = [(g * side * 1e-7 + l1 * (abs(w + side * 1e-7) - abs(w)) + l2 * ((w + side * 1e-7) ** 2 - w * w)) / 1e-7
                 for side in (-1, 1)]  # fmt: skip
        violation = Penalty(l1, l2).violation(*tensors(w, g)).item()
        assert violation == pytest.approx(max(0.0, -min(sides)), abs=1e-6)


def test_problems_side_by_side():
    random = np.random.default_rng(0)
    point, gradient, steepness = (torch.tensor(random.normal(size=(3, 5))) for _ in range(3))
    l1, l2 = torch.tensor([[[0.1], [0.0], [2.0]], [[0.0], [0.3], [1.0]]]).double()
    steepness, together = steepness.abs(), Penalty(l1, l2)
    for t in range(3):
        alone = Penalty(float(l1[t]), float(l2[t]))
        torch.testing.assert_close(together(point)[t], alone(point[t]))
        torch.testing.assert_close(together.gain(gradient, steepness)[t], alone.gain(gradient[t], steepness[t]))
        torch.testing.assert_close(together.violation(point, gradient)[t], alone.violation(point[t], gradient[t]))
        found = together.prox(point, gradient, steepness)[t]
        torch.testing.assert_close(found, alone.prox(point[t], gradient[t], steepness[t]))


def test_its_value():
    assert Penalty(2.0, 3.0)(torch.tensor([[1.0, -2.0], [0.0, 0.5]])).tolist() == [2 * 3 + 3 * 5, 1 + 0.75]

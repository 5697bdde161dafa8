"""Steps, gains and certificates of the elastic net, against a search over one coordinate; features that are added."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from torchrank.solvers.domination.penalised import Penalty, take_in

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


def test_the_worst_violation_is_that_of_all_problems_or_of_some_coordinates():
    point, gradient = torch.tensor([[0.0, 1.0], [2.0, 0.0]]).double(), torch.tensor([[3.0, -1.0], [0.0, 4.5]]).double()
    penalty = Penalty(torch.tensor([[1.0], [2.0]]).double(), 0.0)
    assert penalty.violation(point, gradient).tolist() == [[2.0, 0.0], [2.0, 2.5]]
    assert penalty.worst(point, gradient) == 2.5
    assert penalty.worst(point, gradient, torch.tensor([[True, True], [True, False]])) == 2.0
    assert penalty.worst(point, gradient, torch.tensor([[False, True], [False, False]])) == 0.0


# ---- features that are added ------------------------------------------------------------------------------------


def plain_choice(chosen, gains, count):
    """The features of one model after `count` more, by sorting their gains."""
    free = [r for r in range(len(gains)) if not chosen[r] and gains[r] > 0]
    return set(np.flatnonzero(chosen)) | set(sorted(free, key=lambda r: -gains[r])[:count])


@pytest.mark.parametrize("count", [1, 3, 100])
def test_the_largest_gains_of_each_model_are_added_and_nothing_is_lost(count):
    random = np.random.default_rng(1)
    gradient, chosen = random.normal(size=(4, 9)), random.random((4, 9)) < 0.3
    curvature = random.random((4, 9)) * (random.random((4, 9)) < 0.8)
    l1 = torch.tensor([[0.0], [0.3], [0.9], [50.0]]).double()
    given = [torch.tensor(part) for part in (chosen, gradient, curvature)]
    before = given[0].clone()
    found = take_in(*given, Penalty(l1, 0.2), count)
    assert torch.equal(given[0], before)  # on a copy
    for t in range(4):
        reach = np.maximum(np.abs(gradient[t]) - float(l1[t]), 0) ** 2
        gains = np.where(curvature[t] > 0, reach / (2 * (curvature[t] + 0.4)), 0.0)
        assert set(np.flatnonzero(found[t])) == plain_choice(chosen[t], gains, count)
    assert torch.equal(found[3], before[3])  # no gain is above 0

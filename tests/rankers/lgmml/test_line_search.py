"""Steps down a slope, against what a plain loop over lengths finds."""

import pytest
import torch

from torchrank.rankers.lgmml.line_search import SHARE, TOLERANCE, search_step


def free(point):
    return point


class Function:
    """Counts how often it is asked, and for slopes."""

    def __init__(self, value):
        self.value, self.asked = value, []

    def __call__(self, point, slopes):
        self.asked.append(slopes)
        point = point.detach().requires_grad_()
        value = self.value(point)
        return value.detach(), torch.autograd.grad(value, point)[0] if slopes else None


def bowl(point):
    return (point.square() * torch.tensor([1.0, 10.0], dtype=torch.float64)).sum() + 1


def kinks(point):
    return (point - 0.3).abs().sum() + 2 * (point.sum() - 1).clamp(min=0) + 0.1


@pytest.mark.parametrize("value", [bowl, kinks])
@pytest.mark.parametrize("length", [1e-3, 0.1, 3.0, 1e4])
def test_a_step_lowers_the_value_by_a_share_of_what_the_slope_promises(value, length):
    function, start = Function(value), torch.tensor([1.3, 0.9], dtype=torch.float64)
    before, slopes = function(start, True)
    found = search_step(start, before, slopes, torch.tensor(length).double(), evaluate=function, project=free)
    assert found.value == value(found.point)
    assert found.value <= before - SHARE * ((start - found.point) * slopes).sum() and found.value < before
    assert function.asked[1] and not any(function.asked[2:])  # slopes of the first trial alone
    trials = len(function.asked) - 1
    torch.testing.assert_close(found.point, start - slopes * (found.length / 2 if trials == 1 else found.length))
    assert (found.slopes is None) == (trials > 1)


def test_descent_to_the_minimum_in_few_evaluations():
    """From round to round, with the length of the last one."""
    function, point = Function(bowl), torch.tensor([3.0, 1.0], dtype=torch.float64)
    length, rounds, small = torch.tensor(1.0).double(), 0, False
    value, slopes = function(point, True)
    while not small:
        found = search_step(point, value, slopes, length, evaluate=function, project=free)
        if found is None:
            break
        point, value, slopes, length, small = found
        slopes, rounds = function(point, True)[1] if slopes is None else slopes, rounds + 1
    assert value < 1 + 20 * TOLERANCE and len(function.asked) <= 3 * rounds + 5


def test_projected_steps_stay_where_they_may():
    function = Function(lambda point: (point + 1).square().sum())
    start = torch.tensor([2.0, 0.0])
    found = search_step(
        start, *function(start, True), torch.tensor(0.5), evaluate=function, project=lambda new: new.clamp(min=0)
    )
    assert found.point.tolist() == [0.0, 0.0]
    start = torch.zeros(2)  # the corner is the minimum
    assert search_step(start, *function(start, True), found.length, evaluate=function,
                       project=lambda new: new.clamp(min=0)) is None  # fmt: skip


def test_no_step_is_found_where_the_slope_lies_or_values_are_not_numbers():
    start = torch.ones(2)
    uphill = Function(lambda point: -point.sum())
    value, slopes = uphill(start, True)
    assert search_step(start, value, -slopes, torch.tensor(1.0), evaluate=uphill, project=free) is None
    assert len(uphill.asked) < 20  # no more than a small decrease needs
    nothing = Function(lambda point: point.sum() * torch.nan)
    assert search_step(start, torch.tensor(1.0), slopes, torch.tensor(1.0), evaluate=nothing, project=free) is None


def test_a_small_decrease_is_said_to_be_one():
    function, start = Function(lambda point: 1e6 + point.sum()), torch.ones(1, dtype=torch.float64)
    found = search_step(start, *function(start, True), torch.tensor(1.0).double(), evaluate=function, project=free)
    assert found.small and found.value < function.value(start)

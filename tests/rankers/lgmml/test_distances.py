"""Distances under metrics that are trained: the staircase form is the plain one, in values, gradients and fits."""

import pytest
import torch

from tests.rankers.small import FEATURES, lists
from torchrank import LGMMLNet
from torchrank.rankers.lgmml import distances
from torchrank.rankers.lgmml.distances import anchor_distances, staircase_distances


def plain(x, factors, shifts):
    return torch.linalg.vector_norm(torch.einsum("nd,mdk->nmk", x, factors) - shifts, dim=2)


def problem(metrics, width, rank, rows, dtype=torch.float64):
    draw = torch.Generator().manual_seed(metrics + width)
    shapes = {
        "x": (rows, width),
        "factors": (metrics, width, rank),
        "shifts": (metrics, rank),
        "slopes": (rows, metrics),
    }
    return [torch.randn(shape, generator=draw, dtype=dtype) for shape in shapes.values()]


def with_gradients(function, x, factors, shifts, slopes):
    parameters = [factors.clone().requires_grad_(), shifts.clone().requires_grad_()]
    found = function(x, *parameters)
    return found.detach(), *torch.autograd.grad(found, parameters, slopes)


@pytest.mark.parametrize(("metrics", "width", "rank", "rows"), [
    (1, 1, 1, 5), (3, 7, 7, 60), (2, 40, 40, 700), (5, 40, 21, 200), (300, 3, 3, 20), (4, 6, 6, 24),
])  # fmt: skip
def test_values_and_gradients_are_those_of_the_plain_form(metrics, width, rank, rows, monkeypatch):
    monkeypatch.setattr(distances, "NUMBERS", 2**12)  # several chunks, the last one shorter
    x, factors, shifts, slopes = problem(metrics, width, rank, rows)
    shifts[0] = factors[0].T @ x[1]  # a row at its anchor
    assert distances._pays(x, factors)
    found, expected = (with_gradients(each, x, factors, shifts, slopes) for each in (anchor_distances, plain))
    assert float(found[0][1, 0]) < 1e-12
    slopes[1, 0] = 0  # there the direction of the slope is rounding noise
    found, expected = (with_gradients(each, x, factors, shifts, slopes) for each in (anchor_distances, plain))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_in_single_precision_distances_are_equal_to_1e_5():
    x, factors, shifts, _ = problem(3, 136, 136, 600, torch.float32)
    expected = plain(x.double(), factors.double(), shifts.double())
    torch.testing.assert_close(anchor_distances(x, factors, shifts).double(), expected, rtol=1e-5, atol=0)


def test_metrics_and_directions_without_a_slope_have_a_gradient_of_exactly_0():
    x, factors, shifts, slopes = problem(3, 5, 5, 50, torch.float32)
    factors[:, 2], factors[:, :, 4], shifts[:, 4], slopes[:, 1] = 0, 0, 0, 0
    x[:, 2] = 0
    x[3] = 0
    shifts[2] = 0  # row 3 is exactly at the anchor of metric 2
    _, by_factors, by_shifts = with_gradients(anchor_distances, x, factors, shifts, slopes)
    zeros = by_factors[1], by_factors[:, 2], by_factors[:, :, 4], by_shifts[1], by_shifts[:, 4]
    assert all((part == 0).all() for part in zeros) and by_factors.isfinite().all()


def test_its_gradient_has_a_gradient():
    x, factors, shifts, _ = problem(2, 3, 3, 12)
    wide = torch.cat([factors, -shifts[:, None]], 1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda given: staircase_distances(x, given), wide)


@pytest.mark.parametrize("options", [
    {"groups": "random", "metrics": 3, "closed_form": {"queries_per_metric": 3}},
    {"closed_form": {"num_groups": 2, "alpha": 2.0, "high": "positive", "kappa": 3.0}},
], ids=["random", "similar"])  # fmt: skip
def test_a_fit_takes_the_steps_of_the_plain_form(options, monkeypatch):
    train, test, found = lists(0), lists(2), []
    for rows in (distances.ROWS, 10**9):
        monkeypatch.setattr(distances, "ROWS", rows)
        ranker = LGMMLNet(FEATURES, transform="standard", **options).double().fit(train, epochs=3)
        found.append(ranker.double()(test.x.double(), test.offsets))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)

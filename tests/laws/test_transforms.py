"""Transforms as a part of larger networks: their gradients are those of finite differences, and never NaN."""

import numpy as np
import pytest
import torch

from torchrank.data import make_transform
from torchrank.data.transforms import TRANSFORMS

OFFSETS = torch.tensor([0, 5, 5, 6, 16, 24])
OPTIONS = [*TRANSFORMS, ["log1p", "query_minmax"]]


def fitted(option, seed=0):
    draw = np.random.default_rng(seed)
    train = torch.tensor(draw.integers(0, 5, (60, 3)) + draw.random((60, 3)) * (option != "singhal"))
    return make_transform(option, 3).fit(train, torch.tensor([0, 20, 60])), train


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_gradients_are_those_of_finite_differences(option):
    transform, _ = fitted(option)
    draw = np.random.default_rng(1)
    x = torch.tensor(1.2 + draw.random((24, 3)) * 2)
    weights = torch.tensor(draw.normal(size=transform(x, OFFSETS).shape))

    def total(rows):
        return (weights * transform(rows, OFFSETS)).sum()

    for _ in range(3):  # what a call before leaves in freed memory is no part of the next one
        rows = x.clone().requires_grad_()
        total(rows).backward()
        for row, column in [(0, 0), (4, 2), (5, 1), (10, 0), (23, 2)]:
            step = torch.zeros_like(x)
            step[row, column] = 1e-7
            slope = (total(x + step) - total(x - step)) / 2e-7
            assert rows.grad[row, column].item() == pytest.approx(slope.item(), abs=1e-5)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_gradients_are_finite_at_zeros_equal_rows_and_ends(option):
    transform, train = fitted(option)
    x = torch.cat([train.amin(0, keepdim=True), train.amax(0, keepdim=True), torch.zeros(2, 3), torch.ones(2, 3) * 9])
    x = x.requires_grad_()
    transform(x, torch.tensor([0, 4, 6])).square().sum().backward()
    assert x.grad.isfinite().all()


def test_minima_in_freed_memory_change_no_gradient():
    x = torch.tensor(np.random.default_rng(0).random((40, 10, 8)))
    transform, offsets, weights = make_transform("query_minmax", 8), torch.arange(0, 401, 10), x.flip(1).flatten(0, 1)
    for _ in range(5):
        left = [x.amin(1).clone() for _ in range(50)]
        del left
        rows = x.flatten(0, 1).requires_grad_()
        (found,) = torch.autograd.grad((transform(rows, offsets) * weights).sum(), rows)
        parts = x.clone().requires_grad_()
        low, high = parts.amin(1, keepdim=True), parts.amax(1, keepdim=True)
        (expected,) = torch.autograd.grad((((parts - low) / (high - low)).flatten(0, 1) * weights).sum(), parts)
        torch.testing.assert_close(found, expected.flatten(0, 1))


def test_the_slope_of_log1p_at_zero_is_one():
    x = torch.tensor([[0.0], [-1.0], [3.0]], requires_grad=True)
    make_transform("log1p", 1)(x, torch.tensor([0, 3])).sum().backward()
    assert x.grad.flatten().tolist() == [1.0, 0.5, 0.25]

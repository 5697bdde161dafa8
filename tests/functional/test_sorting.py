"""Stable orders against numpy's lexsort."""

import numpy as np
import pytest
import torch

from torchrank.functional.sorting import order_within, sort_marked


@pytest.mark.parametrize("lists", [1, 2, 1000])
@pytest.mark.parametrize("descending", [True, False])
def test_scores_that_differ_in_their_last_bits(lists, descending):
    draw = np.random.default_rng(0)
    values, ids = 1 + draw.integers(-4, 5, 8000) * 2.0**-52, np.sort(draw.integers(0, lists, 8000))
    expected = np.lexsort((np.arange(8000), -values if descending else values, ids))
    found = order_within(torch.tensor(values), torch.tensor(ids), lists, descending=descending)
    np.testing.assert_array_equal(found, expected)


def check_rows(rows):
    marks, before = torch.rand(rows.shape) < 0.4, rows.clone()
    order, marked = sort_marked(rows, marks)
    expected = np.argsort(-rows.numpy(), axis=1, kind="stable")  # -0.0 and 0.0 are equal
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(marked, np.take_along_axis(marks.numpy(), expected, 1))
    assert order.dtype == marked.dtype == torch.int64
    assert torch.equal(rows, before)


ROWS = {
    "ordinary": lambda draw, shape: draw.normal(size=shape),
    "ties": lambda draw, shape: draw.integers(-3, 4, shape) * 0.5,
    "one value": lambda draw, shape: np.full(shape, -7.25),
    "last bits": lambda draw, shape: 1 + draw.integers(-4, 5, shape) * 2.0**-52,
    "last bits below 0": lambda draw, shape: -1 + draw.integers(-4, 5, shape) * 2.0**-52,
    "signs of 0": lambda draw, shape: draw.choice([0.0, -0.0, 5e-324, -5e-324], shape),
    "ends": lambda draw, shape: draw.choice([np.inf, -np.inf, 1.7976931348623157e308, -1.7976931348623157e308], shape),
    "all sizes": lambda draw, shape: draw.normal(size=shape) * 10.0 ** draw.integers(-300, 300, shape),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (4, 1), (5, 2), (20, 17), (3, 1024), (2, 1025)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_are_sorted_stably(kind, shape, dtype):
    with np.errstate(over="ignore", under="ignore"):
        rows = torch.tensor(ROWS[kind](np.random.default_rng(1), shape)).to(dtype)
    check_rows(rows)


def test_one_row_that_needs_its_last_bits_among_others():
    rows = np.random.default_rng(2).normal(size=(50, 64))
    rows[31, 40] = np.nextafter(rows[31, 7], np.inf)
    check_rows(torch.tensor(rows))


def test_columns_of_a_wider_tensor():
    rows = torch.randn(6, 20, dtype=torch.float64)[:, 3:14]
    check_rows(rows)
    check_rows(rows.T)

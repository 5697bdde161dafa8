"""Stable orders against numpy's: scores that differ in their last bits, signs of 0, the ends of the numbers."""

import numpy as np
import pytest
import torch

from torchrank.functional.sorting import order_within, sort_marked

ROWS = {
    "ties": lambda draw, shape: draw.integers(-3, 4, shape) * 0.5,
    "last bits": lambda draw, shape: draw.choice([-1, 1], shape) + draw.integers(-4, 5, shape) * 2.0**-52,
    "signs of 0": lambda draw, shape: draw.choice([0.0, -0.0, 5e-324, -5e-324], shape),
    "ends": lambda draw, shape: draw.choice([np.inf, -np.inf, 1.7976931348623157e308, -1.7976931348623157e308], shape),
    "all sizes": lambda draw, shape: draw.normal(size=shape) * 10.0 ** draw.integers(-300, 300, shape),
}
each_kind = pytest.mark.parametrize("kind", ROWS)


@each_kind
@pytest.mark.parametrize("lists", [1, 2, 1000])
@pytest.mark.parametrize("descending", [True, False])
def test_entries_are_sorted_stably_inside_their_list(kind, lists, descending):
    draw = np.random.default_rng(0)
    values, ids = ROWS[kind](draw, 8000), np.sort(draw.integers(0, lists, 8000))
    expected = np.lexsort((np.arange(8000), -values if descending else values, ids))
    found = order_within(torch.tensor(values), torch.tensor(ids), lists, descending=descending)
    np.testing.assert_array_equal(found, expected)


@each_kind
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (4, 1), (20, 17), (3, 1024), (2, 1025)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_are_sorted_stably_with_their_marks(kind, shape, dtype):
    with np.errstate(over="ignore", under="ignore"):
        rows = torch.tensor(ROWS[kind](np.random.default_rng(1), shape)).to(dtype)
    for given in (rows, rows.T) if rows.shape[1] < 100 else (rows,):
        marks, before = torch.rand(given.shape) < 0.4, given.clone()
        order, marked = sort_marked(given, marks)
        expected = np.argsort(-given.numpy(), axis=1, kind="stable")  # -0.0 and 0.0 are equal
        np.testing.assert_array_equal(order, expected)
        np.testing.assert_array_equal(marked, np.take_along_axis(marks.numpy(), expected, 1))
        assert torch.equal(given, before)

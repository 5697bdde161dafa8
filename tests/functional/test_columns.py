"""Measures of many columns of scores against one call per column, and the first of the largest values."""

import itertools

import numpy as np
import pytest
import torch

from tests.reference import measures as reference
from torchrank import functional as F
from torchrank.functional.ragged import SAME, by_column, first_largest

MEASURES = [
    ("ndcg", {"k": 3, "empty": 0.0}),
    ("average_precision", {"threshold": 2}),
    ("reciprocal_rank", {}),
    ("auc", {}),
    ("all_pairs_error", {"ties": "error"}),
]


def batch(seed, width):
    """Columns of scores with many ties, of lists of which some are empty."""
    _, labels, offsets = reference.random_batch(seed, lists=25)
    scores = np.random.default_rng(seed).integers(-4, 5, (len(labels), width)) / 4
    return torch.tensor(scores), torch.tensor(labels), torch.tensor(offsets)


@pytest.mark.parametrize(("name", "options"), MEASURES, ids=str)
def test_columns_are_measured_as_if_each_were_alone(name, options):
    scores, labels, offsets = batch(0, width=7)
    found = by_column(getattr(F, name), scores, labels, offsets, **options)
    assert found.shape == (25, 7) and found.dtype == scores.dtype
    for column in range(7):
        expected = reference.per_list(getattr(reference, name), scores[:, column], labels, offsets, **options)
        np.testing.assert_allclose(found[:, column], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_sort_is_shared_by_the_columns_of_a_block(dtype):
    scores, labels, offsets = batch(1, width=6)
    calls = []

    def counted(*arguments, **options):
        calls.append(len(arguments[0]))
        return F.ndcg(*arguments, **options)

    found = by_column(counted, scores, labels, offsets.to(dtype))
    assert calls == [scores.numel()]
    copies = 2**18 // scores.numel() + 1
    again = by_column(counted, scores.repeat(1, copies), labels, offsets.to(dtype))
    assert len(calls) == 3 and sum(calls[1:]) == copies * scores.numel()
    torch.testing.assert_close(again, found.repeat(1, copies), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("lists", "width"), [(0, 3), (2, 3), (0, 0), (2, 0)])
def test_columns_without_entries(lists, width):
    scores, labels, offsets = torch.zeros(0, width), torch.zeros(0), torch.zeros(lists + 1, dtype=torch.int64)
    assert by_column(F.ndcg, scores, labels, offsets, empty=0.0).tolist() == [[0.0] * width] * lists
    assert by_column(F.ndcg, scores, labels, offsets).shape == (lists, width)


def plain_first_largest(values):
    """Of the values within 1e-12 of the largest the first."""
    return next(place for place, value in enumerate(values) if value >= max(values) - SAME)


def test_the_first_of_the_largest_values():
    rng = np.random.default_rng(2)
    for rows, width in itertools.product((1, 4), (1, 2, 30)):
        values = rng.integers(0, 4, (rows, width)) + rng.choice([0, 3e-13, 1e-9], (rows, width))
        tensor = torch.tensor(values)
        assert first_largest(tensor, dim=1).tolist() == [plain_first_largest(row) for row in values.tolist()]
        assert first_largest(tensor, dim=0).tolist() == [plain_first_largest(column) for column in values.T.tolist()]
        assert first_largest(tensor).item() == plain_first_largest(values.flatten().tolist())


def test_rounding_does_not_decide_which_value_is_the_largest():
    assert first_largest(torch.tensor([0.1 + 0.2, 0.3, 0.0], dtype=torch.float64)) == 0
    assert first_largest(torch.tensor([0.3, 0.1 + 0.2, 0.0], dtype=torch.float64)) == 0
    assert first_largest(torch.tensor([0.3, 0.3 + 1e-9], dtype=torch.float64)) == 1
    assert first_largest(torch.tensor([-torch.inf, -torch.inf])) == 0
    assert first_largest(torch.tensor([-torch.inf, -5.0, torch.inf])) == 2

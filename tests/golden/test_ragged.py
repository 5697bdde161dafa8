"""`pad` and `unpad` against loops, their law, and sorting and segment sums against plain Python."""

import numpy as np
import pytest
import torch

from torchrank.functional import pad, ragged, unpad

from . import reference


def batch():
    return reference.random_batch(30, lists=40)


@pytest.mark.parametrize("fill", [0, -1, float("inf")])
@pytest.mark.parametrize("max_length", [None, 12, 15])
@pytest.mark.parametrize("columns", [None, 3])
def test_pad_is_the_loop(columns, max_length, fill):
    scores, _, offsets = batch()
    values = scores if columns is None else np.arange(len(scores) * columns, dtype=np.float64).reshape(-1, columns)
    padded, mask = pad(torch.tensor(values), torch.tensor(offsets), max_length=max_length, fill=fill)
    expected, expected_mask = reference.pad(values, offsets, max_length=max_length, fill=fill)
    assert mask.dtype == torch.bool
    np.testing.assert_array_equal(padded.numpy(), expected)
    np.testing.assert_array_equal(mask.numpy(), expected_mask)


@pytest.mark.parametrize("columns", [None, 2])
def test_unpad_is_the_loop_and_takes_any_mask(columns):
    rng = np.random.default_rng(31)
    padded = rng.normal(size=(9, 7) if columns is None else (9, 7, columns))
    mask = rng.random((9, 7)) < 0.4
    mask[3] = False
    values, offsets = unpad(torch.tensor(padded), torch.tensor(mask))
    expected, expected_offsets = reference.unpad(padded, mask)
    np.testing.assert_array_equal(values.numpy(), expected)
    np.testing.assert_array_equal(offsets.numpy(), expected_offsets)
    assert offsets.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_unpad_undoes_pad(dtype):
    scores, _, offsets = batch()
    values, offsets = torch.tensor(8 * scores).to(dtype), torch.tensor(offsets)
    again, again_offsets = unpad(*pad(values, offsets))
    assert again.dtype == dtype
    assert torch.equal(again, values) and torch.equal(again_offsets, offsets)


@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]])
def test_pad_of_nothing(offsets):
    padded, mask = pad(torch.zeros(0), torch.tensor(offsets))
    assert padded.shape == mask.shape == (len(offsets) - 1, 0)
    values, again = unpad(padded, mask)
    assert values.shape == (0,) and again.tolist() == offsets


def test_gradients_pass_through_both():
    _, _, offsets = batch()
    values = torch.linspace(-1, 1, int(offsets[-1]), dtype=torch.float64, requires_grad=True)
    weights = torch.arange(len(values), dtype=torch.float64)
    padded, mask = pad(values, torch.tensor(offsets), fill=7)
    again, _ = unpad(padded * 3, mask)
    (again * weights).sum().backward()
    assert torch.equal(values.grad, 3 * weights)


@pytest.mark.parametrize("max_length", [None, 12])
def test_sorting_within_lists(max_length):
    scores, _, offsets = batch()
    order, places = [], np.zeros(len(scores), dtype=np.int64)
    for block in reference.blocks(offsets):
        best_first = [block.start + i for i in reference.stable_order(scores[block])]
        order += best_first
        places[best_first] = np.arange(1, len(best_first) + 1)
    given = torch.tensor(scores), torch.tensor(offsets)
    np.testing.assert_array_equal(ragged.sort_within(*given, max_length=max_length).numpy(), order)
    np.testing.assert_array_equal(ragged.ranks(*given).numpy(), places)


def test_pairs_are_those_of_the_double_loop():
    _, labels, offsets = batch()
    expected = {
        (block.start + i, block.start + j)
        for block in reference.blocks(offsets)
        for i, j in reference.ordered_pairs(labels[block])
    }
    for num_pairs in (None, len(expected)):
        better, worse = ragged.pairs(torch.tensor(labels), torch.tensor(offsets), num_pairs=num_pairs)
        found = list(zip(better.tolist(), worse.tolist(), strict=True))
        assert len(found) == len(expected) and set(found) == expected


def test_segments():
    scores, _, offsets = batch()
    values, flat = torch.tensor(scores), torch.tensor(offsets)
    blocks = [scores[block] for block in reference.blocks(offsets)]
    ids = [q for q, block in enumerate(blocks) for _ in block]
    assert ragged.list_ids(flat, len(scores)).tolist() == ids
    sums = [block.sum() for block in blocks]
    np.testing.assert_allclose(ragged.segment_sum(values, flat), sums, rtol=1e-12, atol=1e-12)
    cumulated = np.concatenate([np.cumsum(block) for block in blocks])
    np.testing.assert_allclose(ragged.segment_cumsum(values, flat), cumulated, rtol=1e-12, atol=1e-9)
    softmax = np.concatenate([np.exp(reference.log_softmax(block)) for block in blocks if len(block)])
    np.testing.assert_allclose(ragged.segment_softmax(values, flat), softmax, rtol=1e-12, atol=1e-15)
    full = [q for q, block in enumerate(blocks) if len(block)]
    for function, plain in (
        (ragged.segment_max, np.max),
        (ragged.segment_min, np.min),
        (ragged.segment_logsumexp, np.logaddexp.reduce),
    ):
        expected = [plain(blocks[q]) for q in full]
        np.testing.assert_allclose(function(values, flat)[full], expected, rtol=1e-12, atol=1e-12)

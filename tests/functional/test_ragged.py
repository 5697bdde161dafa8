"""Operations on flat lists against plain Python and numpy, list by list."""

import itertools

import numpy as np
import pytest
import torch

from tests.reference.losses import log_softmax
from tests.reference.measures import blocks, ordered_pairs, random_batch, stable_order
from torchrank.functional import Lists, pad, unpad
from torchrank.functional.measures.pairs import ascents
from torchrank.functional.ragged import (
    levels_within,
    list_ids,
    pairs,
    ranks,
    row_blocks,
    runs,
    segment_cumsum,
    segment_forms,
    segment_gram,
    segment_logsumexp,
    segment_max,
    segment_min,
    segment_softmax,
    segment_sum,
    sort_within,
)

OFFSETS = torch.tensor([0, 3, 3, 4, 11, 11])


def split(values, offsets=OFFSETS):
    return [values[a:b] for a, b in itertools.pairwise(offsets.tolist())]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.int8])
@pytest.mark.parametrize("descending", [True, False])
def test_sort_within_is_stable(dtype, descending):
    values = torch.tensor([3, -1, 3, 0, 5, -7, 5, 2, 5, -7, 0]).to(dtype)
    order = sort_within(values, OFFSETS, descending=descending)
    sign = -1 if descending else 1
    expected = [
        a + i
        for (a, b) in itertools.pairwise(OFFSETS.tolist())
        for i in sorted(range(b - a), key=lambda i, a=a: sign * values[a + i].item())
    ]
    assert order.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lists", [1, 300])
def test_sort_within_large(dtype, lists):
    draw = np.random.default_rng(0)
    offsets = torch.tensor([0, *np.sort(draw.integers(0, 20_000, lists - 1)), 20_000])
    values = torch.tensor(draw.normal(size=20_000).round(2) * 10.0 ** draw.integers(-30, 30, 20_000), dtype=dtype)
    values[::7] = 0.0
    values[::14] = -0.0
    values[5], values[6] = torch.inf, -torch.inf
    ids = list_ids(offsets, 20_000).numpy()
    assert np.array_equal(sort_within(values, offsets), np.lexsort((np.arange(20_000), -values.numpy(), ids)))


def test_ranks_and_levels():
    values = torch.tensor([1.5, 2, 1.5, 9, 0, 0, -1, 4, 4, 4, 0])
    expected = np.concatenate([np.argsort(np.argsort(-v.numpy(), kind="stable")) + 1 for v in split(values)])
    assert np.array_equal(ranks(values, OFFSETS), expected)
    levels = np.concatenate([np.unique(v.numpy(), return_inverse=True)[1] for v in split(values) if len(v)])
    assert np.array_equal(levels_within(values, OFFSETS), levels)


def test_segments():
    values = torch.randn(11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lists = split(values)
    for found, function, empty in [
        (segment_sum(values, OFFSETS), torch.sum, 0.0),
        (segment_max(values, OFFSETS), torch.max, -torch.inf),
        (segment_min(values, OFFSETS), torch.min, torch.inf),
        (segment_logsumexp(values, OFFSETS), lambda v: v.logsumexp(0), -torch.inf),
    ]:
        expected = torch.stack([function(v) if len(v) else torch.tensor(empty, dtype=v.dtype) for v in lists])
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(segment_softmax(values, OFFSETS), torch.cat([v.softmax(0) for v in lists]))
    torch.testing.assert_close(segment_cumsum(values, OFFSETS), torch.cat([v.cumsum(0) for v in lists]))
    whole = torch.arange(11)
    assert torch.equal(segment_cumsum(whole, OFFSETS), torch.cat([v.cumsum(0) for v in split(whole)]))
    matrix = torch.stack([values, 2 * values], 1)
    torch.testing.assert_close(segment_sum(matrix, OFFSETS), torch.stack([v.sum(0) for v in split(matrix)]))


def test_one_list_does_not_cost_another_its_digits():
    values, offsets = torch.tensor([1e300, 1e300, 1.0, 1e-5], dtype=torch.float64), torch.tensor([0, 2, 4])
    assert segment_sum(values, offsets)[1].item() == 1.00001
    assert segment_cumsum(values, offsets)[3].item() == 1.00001


@pytest.mark.parametrize("function", [segment_sum, segment_logsumexp, segment_softmax, segment_cumsum])
def test_segments_are_differentiable(function):
    values = torch.randn(11, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 3, 4, 11])
    torch.autograd.gradcheck(lambda v: function(v, offsets), values)


@pytest.mark.parametrize("real", [False, True])
def test_operations_on_lists_with_all_that_can_go_wrong(real):
    """Empty lists, one entry, ties, -0.0, scores of the order of 1e4."""
    scores, labels, offsets = random_batch(30, lists=40, real=real)
    parts, (values, flat) = blocks(offsets), (torch.tensor(scores), torch.tensor(offsets))
    order = [part.start + i for part in parts for i in stable_order(scores[part])]
    places = np.empty(len(scores), dtype=np.int64)
    places[order] = np.concatenate([np.arange(1, part.stop - part.start + 1) for part in parts])
    assert sort_within(values, flat).tolist() == order
    np.testing.assert_array_equal(ranks(values, flat), places)
    expected = {(part.start + i, part.start + j) for part in parts for i, j in ordered_pairs(labels[part])}
    found = list(zip(*(side.tolist() for side in pairs(torch.tensor(labels), flat)), strict=True))
    assert len(found) == len(expected) and set(found) == expected
    assert list_ids(flat, len(scores)).tolist() == [q for q, part in enumerate(parts) for _ in scores[part]]
    sums = [scores[part].sum() for part in parts]
    np.testing.assert_allclose(segment_sum(values, flat), sums, rtol=1e-12, atol=1e-12)
    softmax = np.concatenate([np.exp(log_softmax(scores[part])) for part in parts if len(scores[part])])
    np.testing.assert_allclose(segment_softmax(values, flat), softmax, rtol=1e-12, atol=1e-15)


def test_runs():
    first, after = runs(torch.tensor([1, 1, 2, 2, 2, 2, 3, 3, 1, 1, 1]), OFFSETS)
    assert first.tolist() == [0, 0, 2, 3, 4, 4, 6, 6, 8, 8, 8]
    assert after.tolist() == [2, 2, 3, 4, 6, 6, 8, 8, 11, 11, 11]


def test_ascents():
    levels = torch.randint(0, 6, (11,), generator=torch.Generator().manual_seed(1))
    rising, different = ascents(levels, Lists.of(OFFSETS), 6)
    for q, one in enumerate(split(levels)):
        two = list(itertools.combinations(one.tolist(), 2))
        assert rising[q] == sum(a < b for a, b in two) and different[q] == sum(a != b for a, b in two)


# --- padded lists ---


def pad_by_loop(values: np.ndarray, offsets, *, fill=0.0):
    lengths = [block.stop - block.start for block in blocks(offsets)]
    width = max(lengths, default=0)
    padded = np.full((len(lengths), width, *values.shape[1:]), fill, dtype=values.dtype)
    mask = np.zeros((len(lengths), width), dtype=bool)
    for q, length in enumerate(lengths):
        for place in range(length):
            padded[q, place] = values[offsets[q] + place]
            mask[q, place] = True
    return padded, mask


def unpad_by_loop(padded: np.ndarray, mask: np.ndarray):
    values, offsets = [], [0]
    for row, present in zip(padded, mask, strict=True):
        values += [value for value, here in zip(row, present, strict=True) if here]
        offsets.append(len(values))
    return np.array(values, dtype=padded.dtype).reshape(-1, *padded.shape[2:]), np.array(offsets)


@pytest.mark.parametrize("fill", [0, -1, float("inf")])
@pytest.mark.parametrize("columns", [None, 3])
def test_pad_is_the_loop(columns, fill):
    scores, _, offsets = random_batch(30, lists=40)
    values = scores if columns is None else np.arange(len(scores) * columns, dtype=np.float64).reshape(-1, columns)
    padded, mask = pad(torch.tensor(values), torch.tensor(offsets), fill=fill)
    expected, expected_mask = pad_by_loop(values, offsets, fill=fill)
    assert mask.dtype == torch.bool
    np.testing.assert_array_equal(padded.numpy(), expected)
    np.testing.assert_array_equal(mask.numpy(), expected_mask)


@pytest.mark.parametrize("columns", [None, 2])
def test_unpad_is_the_loop_and_takes_any_mask(columns):
    rng = np.random.default_rng(31)
    padded = rng.normal(size=(9, 7) if columns is None else (9, 7, columns))
    mask = rng.random((9, 7)) < 0.4
    mask[3] = False
    expected, expected_offsets = unpad_by_loop(padded, mask)
    for dtype in (torch.bool, torch.int64, torch.float32):  # masks of transformers are numbers
        values, offsets = unpad(torch.tensor(padded), torch.tensor(mask).to(dtype))
        np.testing.assert_array_equal(values.numpy(), expected)
        np.testing.assert_array_equal(offsets.numpy(), expected_offsets)
        assert offsets.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("columns", [None, 2])
def test_unpad_undoes_pad(dtype, columns):
    scores, _, offsets = random_batch(30, lists=40)
    values, offsets = torch.tensor(8 * scores).to(dtype), torch.tensor(offsets)
    values = values if columns is None else torch.stack([values] * columns, 1)
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
    values = torch.randn(11, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda v: unpad(*pad(v, OFFSETS))[0], values)
    padded, mask = pad(values, OFFSETS, fill=7)
    weights = torch.arange(11, dtype=torch.float64)
    (unpad(padded * 3, mask)[0] * weights).sum().backward()
    assert torch.equal(values.grad, 3 * weights)


# --- products of rows ---

RAGGED = [
    [0, 3, 3, 4, 11, 11],
    [0],
    [0, 0, 0],
    [0, 100],
    [0, 31, 63, 96],
    [0, 0, 500, 500, 501, 533, 565, 565],
    [0, *range(7, 700, 7)],
]


@pytest.mark.parametrize("offsets", RAGGED, ids=lambda offsets: f"{len(offsets) - 1} lists")
@pytest.mark.parametrize("numbers", [2**24, 1, 7000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_the_rows_of_each_list(offsets, numbers, dtype, monkeypatch):
    monkeypatch.setattr("torchrank.functional.ragged.BLOCK_NUMBERS", numbers)
    draw, count, width = np.random.default_rng(0), offsets[-1], 3
    x, matrices = draw.normal(size=(count, width)), draw.normal(size=(len(offsets) - 1, width, width))
    bounds = torch.tensor(offsets)
    gram = segment_gram(torch.tensor(x, dtype=dtype), bounds)
    forms = segment_forms(torch.tensor(x, dtype=dtype), torch.tensor(matrices, dtype=dtype), bounds)
    assert gram.shape == matrices.shape and forms.shape == (count,) and gram.dtype == forms.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for number, (a, b) in enumerate(itertools.pairwise(offsets)):
        sums = sum((np.outer(row, row) for row in x[a:b]), np.zeros((width, width)))
        np.testing.assert_allclose(gram[number], sums, rtol=tolerance, atol=tolerance * max(b - a, 1))
        for i in range(a, b):
            form = x[i] @ matrices[number] @ x[i]
            np.testing.assert_allclose(forms[i], form, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("offsets", RAGGED, ids=lambda offsets: f"{len(offsets) - 1} lists")
def test_row_blocks_hold_every_row_once(offsets):
    bounds = torch.tensor(offsets)
    ids, seen, room = list_ids(bounds, offsets[-1]), [], 0
    for lists, rows, inside in row_blocks(bounds, offsets[-1], 4):
        assert (ids[rows] == lists[:, None])[inside].all()
        seen += rows[inside].tolist()
        room += rows.numel()
    assert sorted(seen) == list(range(offsets[-1]))
    assert room <= 1.25 * offsets[-1] + 32 * (len(offsets) + 1)


def test_products_keep_to_their_list():
    """What fills up the last block of a list is another list's row: not even inf may reach it."""
    x = torch.ones(40, 2)
    x[5:] = torch.inf
    offsets = torch.tensor([0, 5, 40])
    assert segment_gram(x, offsets)[0].tolist() == [[5, 5], [5, 5]]
    assert segment_forms(x, torch.eye(2).expand(2, 2, 2), offsets)[:5].tolist() == [2] * 5


def test_gradients_of_products():
    x = torch.randn(11, 2, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(5, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: segment_gram(x, OFFSETS), (x,))
    assert torch.autograd.gradcheck(lambda x, a: segment_forms(x, a, OFFSETS), (x, matrices))


# ---- running sums ---------------------------------------------------------------------------------------------------

RUNS = [[], [0], [1, 0, 3], [33], [0, 32, 0, 0, 31, 64, 65, 1, 0], [1251, 3, 500, 0]]


@pytest.mark.parametrize("lengths", RUNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_sums_keep_the_digits_of_every_list(lengths, dtype):
    offsets = torch.tensor([0, *np.cumsum(lengths).astype(int)])
    sizes = 10.0 ** np.random.default_rng(0).integers(-12, 13, len(lengths))  # lists of very different sizes
    values = np.random.default_rng(1).normal(size=int(offsets[-1])) * np.repeat(sizes, lengths)
    values = torch.tensor(values, dtype=dtype)
    exact = values.double().numpy().astype(np.longdouble)
    bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    expected = np.concatenate([np.zeros(0), *(exact[a:b].cumsum() for a, b in bounds)])
    absolute = np.concatenate([np.zeros(0), *(abs(exact[a:b]).cumsum() for a, b in bounds)])
    found = segment_cumsum(values, offsets)
    assert found.dtype == dtype and found.shape == values.shape
    assert (abs(found.numpy() - expected) <= 16 * torch.finfo(dtype).eps * absolute).all()


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_own_list_and_behind_its_place(bad):
    offsets, values = torch.tensor([0, 100, 230, 300]), torch.ones(300)
    values[150] = bad
    found = segment_cumsum(values, offsets)
    expected = torch.cat([part.cumsum(0) for part in values.tensor_split(offsets[1:-1])])
    assert torch.equal(found.nan_to_num(7.5), expected.nan_to_num(7.5))


@pytest.mark.parametrize("lengths", RUNS[3:], ids=str)
def test_gradients_of_running_sums(lengths):
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    values = torch.randn(int(offsets[-1]), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = values.flip(0)
    rows = values.clone().requires_grad_()
    (found,) = torch.autograd.grad((weights * segment_cumsum(rows, offsets)).sum(), rows)
    parts = weights.tensor_split(offsets[1:-1])
    expected = torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts])  # every entry is in all later sums
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

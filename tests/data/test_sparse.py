"""SparseRows against dense numpy."""

import itertools

import numpy as np
import pytest
import torch

from torchrank.data import SparseRows
from torchrank.errors import DataError


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


DTYPES = [torch.float32, torch.float64]


def random_rows(seed: int, rows: int = 23, features: int = 11, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator, dtype=dtype)
    x[torch.rand(rows, features, generator=generator) < 0.7] = 0
    x[3] = 0  # a row without entries
    return x


def shuffled(rows: SparseRows, seed: int) -> SparseRows:
    """The same rows with their entries in another order inside each row."""
    keys = rows.row_ids() + torch.rand(len(rows.values), generator=torch.Generator().manual_seed(seed))
    order = keys.argsort()
    return SparseRows(rows.values[order], rows.columns[order], rows.row_offsets, rows.num_features)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [torch.int64, torch.int32])
@pytest.mark.parametrize("width", [None, 0, 1, 5])
@pytest.mark.parametrize("block", [2**18, 7])
def test_products_are_those_of_the_dense_matrix(dtype, columns, width, block, monkeypatch):
    monkeypatch.setattr("torchrank.data.sparse.BLOCK", block)
    x = random_rows(0, dtype=dtype)
    rows = shuffled(SparseRows.from_dense(x), 1)
    rows = SparseRows(rows.values, rows.columns.to(columns), rows.row_offsets, rows.num_features)
    shape = lambda n: (n,) if width is None else (n, width)  # noqa: E731
    w, v = torch.randn(shape(11), dtype=dtype), torch.randn(shape(23), dtype=dtype)
    np.testing.assert_allclose((rows @ w).numpy(), x.numpy() @ w.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((rows.T @ v).numpy(), x.numpy().T @ v.numpy(), rtol=1e-4, atol=1e-5)


def test_product_takes_the_dtype_of_the_dense_side():
    x = random_rows(1, dtype=torch.float32)
    w = torch.randn(11, dtype=torch.float64)
    product = SparseRows.from_dense(x) @ w
    assert product.dtype == torch.float64
    np.testing.assert_allclose(product.numpy(), x.double().numpy() @ w.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [2**18, 7])
def test_gradients_first_and_second(block, monkeypatch):
    monkeypatch.setattr("torchrank.data.sparse.BLOCK", block)
    rows = SparseRows.from_dense(random_rows(2))
    for shape in [(11,), (11, 3)]:
        w = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda w: rows @ w, (w,))
        assert torch.autograd.gradgradcheck(lambda w: (rows @ w) ** 2, (w,))
    v = torch.randn(23, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: rows.T @ v, (v,))


def test_rows_can_be_sliced_and_indexed():
    x = random_rows(3)
    rows = SparseRows.from_dense(x)
    for part in [slice(0, 0), slice(2, 9), slice(20, 99), slice(None), slice(9, 2), slice(-3, None)]:
        assert torch.equal(rows[part].dense(), x[part])
    index = torch.tensor([5, 5, 3, 0, 22])
    assert torch.equal(rows[index].dense(), x[index])
    assert torch.equal(rows[index[:0]].dense(), x[index[:0]])
    assert rows[2:9].values.untyped_storage().data_ptr() == rows.values.untyped_storage().data_ptr()
    with pytest.raises(ValueError, match="step 1"):
        rows[::2]


def test_a_repeated_column_counts_as_its_sum():
    rows = SparseRows(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0]), torch.tensor([0, 3]), 2)
    assert rows.dense().tolist() == [[4.0, 3.0]]
    assert (rows @ torch.tensor([1.0, 10.0])).tolist() == [34.0]


def test_no_rows_and_no_entries():
    rows = SparseRows.from_dense(torch.zeros(0, 4))
    assert rows.shape == (0, 4) and (rows @ torch.ones(4)).shape == (0,)
    assert (rows.T @ torch.ones(0)).tolist() == [0.0] * 4
    assert (SparseRows.from_dense(torch.zeros(2, 4)) @ torch.ones(4)).tolist() == [0.0, 0.0]


def test_runs_on_meta_so_products_neither_synchronise_nor_stay_on_the_host():
    rows = SparseRows.from_dense(random_rows(4)).to("meta")
    assert (rows @ torch.randn(11, 2, device="meta")).shape == (23, 2)
    assert (rows.T @ torch.randn(23, device="meta")).shape == (11,)
    assert rows.dense().shape == (23, 11)


def test_moves_and_casts():
    rows = SparseRows.from_dense(random_rows(5)).to(dtype=torch.float32)
    assert rows.dtype == torch.float32 and rows.columns.dtype == torch.int64
    assert rows.device == torch.device("cpu") and len(rows) == 23


def test_shapes_that_do_not_fit_are_refused_with_numbers():
    rows = SparseRows.from_dense(torch.eye(3))
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(4,\)"):
        rows @ torch.ones(4)
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(2,\)"):
        rows.T @ torch.ones(2)
    with pytest.raises(DataError, match=r"\(2,\) and \(3,\)"):
        SparseRows(torch.ones(2), torch.arange(3), torch.tensor([0, 2]), 3)


def test_blocks_are_the_rows_one_after_another(monkeypatch):
    monkeypatch.setattr("torchrank.data.sparse.BLOCK", 7)
    rows = SparseRows.from_dense(random_rows(0))
    starts, blocks = zip(*rows.blocks(), strict=True)
    assert len(blocks) > 5 and list(starts) == np.cumsum([0, *map(len, blocks[:-1])]).tolist()
    assert torch.equal(torch.cat([block.dense() for block in blocks]), rows.dense())


def test_a_row_longer_than_a_block_and_rows_without_entries(monkeypatch):
    monkeypatch.setattr("torchrank.data.sparse.BLOCK", 3)
    x = torch.zeros(9, 10, dtype=torch.float64)
    x[2], x[5, 3], x[8, 1:3] = torch.arange(1.0, 11.0), 2.0, 4.0
    rows, w, v = SparseRows.from_dense(x), torch.randn(10, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    np.testing.assert_allclose((rows @ w).numpy(), x.numpy() @ w.numpy(), rtol=1e-12)
    np.testing.assert_allclose((rows.T @ v).numpy(), x.numpy().T @ v.numpy(), rtol=1e-12)


@pytest.mark.parametrize("places", [torch.int64, torch.int32])
def test_transposed_rows_are_the_columns_of_the_dense_matrix(places):
    x = random_rows(6)
    x[:, 4] = 0  # a column without entries
    rows = shuffled(SparseRows.from_dense(x), 1)
    columns = SparseRows(rows.values, rows.columns.to(places), rows.row_offsets, rows.num_features).transposed()
    assert columns.shape == (11, 23) and columns.columns.dtype == places
    assert np.array_equal(columns.dense().numpy(), x.T.numpy())
    for first, last in itertools.pairwise(columns.row_offsets.tolist()):
        assert (columns.columns[first:last].diff() > 0).all()


def test_the_transpose_is_the_same_by_counting_and_by_sorting():
    for x in (random_rows(8), torch.zeros(3, 2), torch.zeros(0, 4)):
        rows = shuffled(SparseRows.from_dense(x), 2)
        rows = SparseRows(rows.values, rows.columns // 2, rows.row_offsets, rows.num_features)  # columns stand twice
        one, other = rows._counted(), rows._sorted()
        assert torch.equal(one.columns, other.columns) and torch.allclose(one.values, other.values)
        assert torch.equal(one.row_offsets, other.row_offsets) and one.shape == other.shape


def test_the_transpose_adds_a_column_that_stands_twice():
    values, places = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([1, 0, 1, 1])
    columns = SparseRows(values, places, torch.tensor([0, 3, 4]), 3).transposed()
    assert columns.dense().tolist() == [[2.0, 0.0], [5.0, 8.0], [0.0, 0.0]] and len(columns.values) == 3


def test_the_transpose_without_rows():
    columns = SparseRows.from_dense(torch.zeros(0, 4)).transposed()
    assert columns.shape == (4, 0) and (columns @ torch.ones(0)).tolist() == [0.0] * 4

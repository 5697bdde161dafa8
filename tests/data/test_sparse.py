"""SparseRows against dense numpy."""

import numpy as np
import pytest
import torch

from torchrank.data import SparseRows


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
def test_products_are_those_of_the_dense_matrix(dtype, columns, width):
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


def test_gradients_first_and_second():
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
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        SparseRows(torch.ones(2), torch.arange(3), torch.tensor([0, 2]), 3)

"""Sparse rows in three tensors that can be sliced and indexed, which torch's own CSR tensors cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, issparse
from torch import Tensor

from torchrank.errors import DataError
from torchrank.functional.arrays import is_frame, to_numpy, to_offsets, to_tensor
from torchrank.functional.ragged import entries_of

BLOCK = 2**18  # entries of a product that are converted to the dtype of the dense side at a time: they fit in a cache


@dataclass(eq=False)  # not frozen: Lightning's precisions rebuild it
class SparseRows:
    """An (n, D) matrix stored by rows: the entries of row i are `row_offsets[i]:row_offsets[i + 1]`.

    The columns of a row may be in any order; values of a repeated column are added up. Products take the dtype of the
    dense side and are differentiable in it, twice if needed; on the host they need no memory that grows with the
    entries.

    Args:
        values: (nnz,) the stored values.
        columns: (nnz,) the column of each value, int64, or int32 to save memory.
        row_offsets: (n + 1,) where each row begins and ends, int64.
        num_features: the number of columns, D.

    Example:
        >>> rows = SparseRows.from_dense(torch.tensor([[0., 2., 0.], [1., 0., 3.]]))
        >>> rows @ torch.tensor([1., 10., 100.])
        tensor([ 20., 301.])
        >>> rows.T @ torch.tensor([1., 1.])
        tensor([1., 2., 3.])
        >>> rows[torch.tensor([1, 1])].dense()
        tensor([[1., 0., 3.],
                [1., 0., 3.]])
    """

    values: Tensor
    columns: Tensor
    row_offsets: Tensor
    num_features: int

    def __post_init__(self) -> None:
        if self.values.shape != self.columns.shape or self.values.dim() != 1:
            shapes = f"{tuple(self.values.shape)} and {tuple(self.columns.shape)}"
            raise DataError(f"values and columns must be two vectors of the same length, got {shapes}")
        if self.row_offsets.dim() != 1 or len(self.row_offsets) == 0:
            found = tuple(self.row_offsets.shape)
            raise DataError(f"row_offsets must hold one number more than there are rows, got shape {found}")

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseRows:
        """The non-zero entries of a dense matrix (n, D)."""
        rows, columns = x.nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=len(x))
        return cls(x[rows, columns], columns, to_offsets(counts), x.shape[1])

    @classmethod
    def from_scipy(cls, x: Any) -> SparseRows:
        """The stored entries of a matrix of scipy.sparse (n, D), of any format. Memory is shared where it can be."""
        rows = x.tocsr()
        if len(rows.shape) != 2:
            raise DataError(f"sparse rows must be a matrix (n, D), got shape {rows.shape}")
        columns = torch.from_numpy(rows.indices)
        return cls(_floats(rows.data, "x"), columns, torch.from_numpy(rows.indptr).long(), rows.shape[1])

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), self.num_features))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def T(self) -> SparseColumns:
        """The transpose, for products `rows.T @ v`."""
        return SparseColumns(self)

    def __matmul__(self, w: Tensor) -> Tensor:
        """`rows @ w` for w (D,) or (D, C), without the (nnz, C) products in memory."""
        if w.dim() not in (1, 2) or w.shape[0] != self.num_features:
            raise ValueError(f"rows {tuple(self.shape)} cannot be multiplied by a tensor of shape {tuple(w.shape)}")
        product = _multiply(w if w.dim() == 2 else w[:, None], self)
        return product if w.dim() == 2 else product[:, 0]

    @classmethod
    def cat(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """The rows of all parts, one part after the other."""
        offsets = to_offsets(torch.cat([part.row_offsets.diff() for part in parts]))
        values, columns = torch.cat([part.values for part in parts]), torch.cat([part.columns for part in parts])
        return cls(values, columns, offsets, parts[0].num_features)

    def __getitem__(self, rows: slice | Tensor) -> SparseRows:
        """Consecutive rows as views (`rows[i:j]`), or copies of the rows of an index; both read nnz on the host."""
        if isinstance(rows, slice):
            return self._slice(*rows.indices(len(self)))
        entries, offsets = entries_of(self.row_offsets, rows)
        return replace(self, values=self.values[entries], columns=self.columns[entries], row_offsets=offsets)

    def _slice(self, start: int, stop: int, step: int) -> SparseRows:
        if step != 1:
            raise ValueError(f"rows can be sliced with step 1 only, got step {step}: use an index tensor")
        offsets = self.row_offsets[start : max(start, stop) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        values, columns = self.values[first:last], self.columns[first:last]
        return replace(self, values=values, columns=columns, row_offsets=offsets - first)

    def blocks(self) -> Iterator[tuple[int, SparseRows]]:
        """(first row, consecutive rows) of about `BLOCK` entries on the host. On other devices cutting would
        synchronise, so there is one block."""
        if self.device.type != "cpu" or len(self.values) <= BLOCK:
            yield 0, self
            return
        cuts = torch.searchsorted(self.row_offsets, torch.arange(0, len(self.values), BLOCK))
        starts = sorted(set(cuts.tolist()))
        for first, last in pairwise([*starts, len(self)]):
            yield first, self[first:last]

    def transposed(self) -> SparseRows:
        """The columns as rows (D, n), a copy with ascending entries. Repeated entries are added up.

        Example:
            >>> columns = SparseRows.from_dense(torch.tensor([[0., 2., 0.], [1., 4., 3.]])).transposed()
            >>> columns[1:2].columns, columns[1:2].values
            (tensor([0, 1]), tensor([2., 4.]))
        """
        return self._counted() if self.device.type == "cpu" else self._sorted()

    def _counted(self) -> SparseRows:
        """The transpose by SciPy's counting sort: the fastest way on the host, without extra memory."""
        found = csr_array(_host_parts(self, self.values.dtype), shape=self.shape).tocsc()
        found.sum_duplicates()
        values, rows, offsets = map(torch.from_numpy, (found.data, found.indices, found.indptr))
        return SparseRows(values, rows.to(self.columns.dtype), offsets.long(), len(self))

    def _sorted(self) -> SparseRows:
        """The transpose by sorting the entries, on any device."""
        columns, order = self.columns.sort(stable=True)
        rows, values = (part.index_select(0, order) for part in (self.row_ids(columns.dtype), self.values))
        new = (columns.diff(prepend=columns[:1] - 1) != 0) | (rows.diff(prepend=rows[:1] - 1) != 0)
        values = values.new_zeros(int(new.sum())).index_add_(0, new.cumsum(0) - 1, values)
        counts = torch.bincount(columns[new], minlength=self.num_features)
        return SparseRows(values, rows[new], to_offsets(counts), len(self))

    def row_ids(self, dtype: torch.dtype = torch.int64) -> Tensor:
        """The row of every stored entry (nnz,)."""
        rows = torch.arange(len(self), device=self.device, dtype=dtype)
        return torch.repeat_interleave(rows, self.row_offsets.diff(), output_size=len(self.values))

    def dense(self) -> Tensor:
        """The same matrix as an ordinary (n, D) tensor."""
        flat = self.values.new_zeros(len(self) * self.num_features)
        return flat.index_add_(0, self.row_ids() * self.num_features + self.columns, self.values).view(self.shape)

    def with_values(self, values: Tensor) -> SparseRows:
        """The same rows and columns with other values (nnz,)."""
        return replace(self, values=values)

    def pin_memory(self) -> SparseRows:
        """The same rows in memory from which a CUDA device copies without keeping anybody waiting."""
        values, columns, offsets = (part.pin_memory() for part in (self.values, self.columns, self.row_offsets))
        return replace(self, values=values, columns=columns, row_offsets=offsets)

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> SparseRows:
        """The same rows on a device; `dtype` is that of the values."""
        values = self.values.to(device=device, dtype=dtype, non_blocking=non_blocking)
        columns, offsets = (part.to(device, non_blocking=non_blocking) for part in (self.columns, self.row_offsets))
        return replace(self, values=values, columns=columns, row_offsets=offsets)


def as_rows(x: Any, name: str = "x") -> Tensor | SparseRows:
    """Features (n, D) as a tensor, or as `SparseRows` if they are a matrix of scipy.sparse; tensors stay as they are.

    >>> as_rows(np.array([[1, 2]], dtype=np.int8)), as_rows(csr_array([[0.0, 2.0]])).shape
    (tensor([[1., 2.]]), torch.Size([1, 2]))
    """
    if isinstance(x, Tensor | SparseRows):
        return x
    if issparse(x):
        return SparseRows.from_scipy(x)
    rows = _floats(x, name)
    if rows.ndim != 2:
        raise DataError(f"expected {name} (n, D), one row per entry, got an array of shape {tuple(rows.shape)}")
    return rows.contiguous()  # data frames hold columns; rows are read faster and summed in one order


def _floats(x: Any, name: str) -> Tensor:
    """Numbers as floats: integers of 8 and 16 bits as float32, of more bits as float64."""
    array = None if is_frame(x) or isinstance(x, Sequence) else to_numpy(x)
    if array is not None and array.dtype.kind in "iub" and array.dtype.itemsize <= 2:
        return torch.from_numpy(array.astype(np.float32))
    found = to_tensor(x, name)
    return found if found.is_floating_point() else found.to(torch.float64)


@dataclass(frozen=True, eq=False)
class SparseColumns:
    """The transpose of `rows`: `rows.T @ v` for v (n,) or (n, C)."""

    rows: SparseRows

    def __matmul__(self, v: Tensor) -> Tensor:
        if v.dim() not in (1, 2) or v.shape[0] != len(self.rows):
            shape = (self.rows.num_features, len(self.rows))
            raise ValueError(f"columns {shape} cannot be multiplied by a tensor of shape {tuple(v.shape)}")
        product = _multiply_transposed(v if v.dim() == 2 else v[:, None], self.rows)
        return product if v.dim() == 2 else product[:, 0]


class _Product(torch.autograd.Function):
    """rows @ w; its backward is the other product, so that both can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, rows: SparseRows) -> Tensor:
        ctx.rows = rows
        if w.shape[1] == 0:  # embedding_bag fails on it with several threads
            return w.new_zeros(len(rows), 0)
        # embedding_bag is fastest in float32 (its backward is slow), MKL's CSR product by far in float64
        wide = w.dtype == torch.float64 and w.device.type == "cpu" and _has_mkl()
        if wide and len(rows.values):
            return torch.cat([_csr(block, w.dtype) @ w for _, block in rows.blocks()])
        return _bags(rows, w)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _multiply_transposed(gradient, ctx.rows), None


class _TransposedProduct(torch.autograd.Function):
    """rows.T @ v; its backward is the other product."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, rows: SparseRows) -> Tensor:
        ctx.rows = rows
        if v.device.type == "cpu" and v.dtype in (torch.float32, torch.float64):
            return _transposed_on_host(rows, v)
        sums = v.new_zeros(v.shape[1], rows.num_features)  # one column at a time: an (nnz, C) product is slower
        for first, block in rows.blocks():
            values, columns, lengths = block.values.to(v.dtype), block.columns.long(), block.row_offsets.diff()
            for place, column in enumerate(v[first : first + len(block)].unbind(1)):
                spread = torch.repeat_interleave(column, lengths, output_size=len(values))
                sums[place].scatter_add_(0, columns, spread.mul_(values))
        return sums.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _multiply(gradient, ctx.rows), None


_multiply: Callable[[Tensor, SparseRows], Tensor] = _Product.apply
_multiply_transposed: Callable[[Tensor, SparseRows], Tensor] = _TransposedProduct.apply
_has_mkl: Callable[[], bool] = torch.backends.mkl.is_available


def _transposed_on_host(rows: SparseRows, v: Tensor) -> Tensor:
    """rows.T @ v by SciPy, which reads the rows as columns of the transpose: faster than torch's scatter_add."""
    right, sums = v.detach().numpy(), v.new_zeros(rows.num_features, v.shape[1])
    for first, block in rows.blocks():
        found = csr_array(_host_parts(block, v.dtype), shape=block.shape).T @ right[first : first + len(block)]
        sums += torch.from_numpy(found)
    return sums


def _host_parts(rows: SparseRows, dtype: torch.dtype) -> tuple[np.ndarray, ...]:
    """Values, columns and offsets for SciPy, which would copy indices of two dtypes into the wider one."""
    short = len(rows.values) < 2**31
    offsets = rows.row_offsets.to(rows.columns.dtype) if short else rows.row_offsets
    return tuple(part.detach().numpy() for part in (rows.values.to(dtype), rows.columns, offsets))


def _bags(rows: SparseRows, w: Tensor) -> Tensor:
    offsets, weights = rows.row_offsets.to(rows.columns.dtype), rows.values.to(w.dtype)
    return F.embedding_bag(rows.columns, w, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)


def _csr(rows: SparseRows, dtype: torch.dtype) -> Tensor:
    """The rows as torch's CSR tensor, which cannot be sliced but multiplies fast; MKL reads 32-bit indices."""
    places, values = (rows.row_offsets.int(), rows.columns.int()), rows.values.to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that these tensors are in beta
        return torch.sparse_csr_tensor(*places, values, size=rows.shape, check_invariants=False)

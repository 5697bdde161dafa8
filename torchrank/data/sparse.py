"""Rows that are mostly zero, held in three tensors that can be sliced and indexed (torch's own CSR tensors cannot)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(eq=False)  # not frozen: Lightning's precisions rebuild it
class SparseRows:
    """An (n, D) matrix by rows: the entries of row i are `row_offsets[i]:row_offsets[i + 1]`.

    Columns may stand in any order inside a row; a column that stands twice counts as its sum. Products take the dtype
    of the dense side and are differentiable in it, twice if needed.

    >>> rows = SparseRows.from_dense(torch.tensor([[0., 2., 0.], [1., 0., 3.]]))
    >>> rows @ torch.tensor([1., 10., 100.])
    tensor([ 20., 301.])
    >>> rows.T @ torch.tensor([1., 1.])
    tensor([1., 2., 3.])
    """

    values: Tensor  # (nnz,)
    columns: Tensor  # (nnz,) int64, or int32 to save memory
    row_offsets: Tensor  # (n + 1,) int64
    num_features: int

    def __post_init__(self):
        if self.values.shape != self.columns.shape or self.values.dim() != 1:
            shapes = f"{tuple(self.values.shape)} and {tuple(self.columns.shape)}"
            raise ValueError(f"values and columns must be two vectors of one length, got {shapes}")
        if self.row_offsets.dim() != 1 or len(self.row_offsets) == 0:
            raise ValueError(f"row_offsets must hold one number more than there are rows, got {self.row_offsets.shape}")

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseRows:
        """The nonzero entries of a dense matrix."""
        rows, columns = x.nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=len(x))
        return cls(x[rows, columns], columns, F.pad(counts.cumsum(0), (1, 0)), x.shape[1])

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
        return SparseColumns(self)

    def __matmul__(self, w: Tensor) -> Tensor:
        """`rows @ w` for w (D,) or (D, C), without the (nnz, C) products in memory."""
        if w.dim() not in (1, 2) or w.shape[0] != self.num_features:
            raise ValueError(f"rows {tuple(self.shape)} cannot be multiplied by a tensor of shape {tuple(w.shape)}")
        product = _Product.apply(w if w.dim() == 2 else w[:, None], self)
        return product if w.dim() == 2 else product[:, 0]

    def __getitem__(self, rows: slice | Tensor) -> SparseRows:
        """Consecutive rows as views (`rows[i:j]`), or copies of the rows of an index; both read nnz on the host."""
        if isinstance(rows, slice):
            return self._slice(*rows.indices(len(self)))
        lengths = self.row_offsets.diff()[rows]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        nnz = int(offsets[-1])  # the one synchronisation: the size of the result depends on the data
        shift = self.row_offsets[:-1][rows] - offsets[:-1]
        entries = torch.repeat_interleave(shift, lengths, output_size=nnz) + torch.arange(nnz, device=self.device)
        return replace(self, values=self.values[entries], columns=self.columns[entries], row_offsets=offsets)

    def _slice(self, start: int, stop: int, step: int) -> SparseRows:
        if step != 1:
            raise ValueError(f"rows can be sliced with step 1 only, got step {step}: use an index tensor")
        offsets = self.row_offsets[start : max(start, stop) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        values, columns = self.values[first:last], self.columns[first:last]
        return replace(self, values=values, columns=columns, row_offsets=offsets - first)

    def row_ids(self) -> Tensor:
        """The row of every stored entry (nnz,)."""
        rows = torch.arange(len(self), device=self.device)
        return torch.repeat_interleave(rows, self.row_offsets.diff(), output_size=len(self.values))

    def dense(self) -> Tensor:
        """The same matrix as an ordinary (n, D) tensor."""
        flat = self.values.new_zeros(len(self) * self.num_features)
        return flat.index_add_(0, self.row_ids() * self.num_features + self.columns, self.values).view(self.shape)

    def with_values(self, values: Tensor) -> SparseRows:
        """The same places with other values (nnz,)."""
        return replace(self, values=values)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> SparseRows:
        """Move to a device; `dtype` is that of the values."""
        values = self.values.to(device=device, dtype=dtype)
        columns, offsets = self.columns.to(device=device), self.row_offsets.to(device=device)
        return replace(self, values=values, columns=columns, row_offsets=offsets)


@dataclass(frozen=True, eq=False)
class SparseColumns:
    """The transpose of `rows`: `rows.T @ v` for v (n,) or (n, C)."""

    rows: SparseRows

    def __matmul__(self, v: Tensor) -> Tensor:
        if v.dim() not in (1, 2) or v.shape[0] != len(self.rows):
            shape = (self.rows.num_features, len(self.rows))
            raise ValueError(f"columns {shape} cannot be multiplied by a tensor of shape {tuple(v.shape)}")
        values, columns, row_ids = self.rows.values.to(v.dtype), self.rows.columns.long(), self.rows.row_ids()

        def times(column: Tensor) -> Tensor:  # one column at a time: an (nnz, C) product is slower and larger
            return v.new_zeros(self.rows.num_features).scatter_add(0, columns, values * column[row_ids])

        if v.dim() == 1:
            return times(v)
        return torch.stack([times(c) for c in v.unbind(1)], 1) if v.shape[1] else v.new_zeros(self.rows.num_features, 0)


class _Product(torch.autograd.Function):
    """rows @ w. embedding_bag is the fastest forward, but its backward is 20 times slower than a scatter."""

    @staticmethod
    def forward(ctx, w: Tensor, rows: SparseRows) -> Tensor:
        ctx.rows = rows
        if w.shape[1] == 0:  # embedding_bag fails on it when it runs on several threads
            return w.new_zeros(len(rows), 0)
        offsets, weights = rows.row_offsets.to(rows.columns.dtype), rows.values.to(w.dtype)
        return F.embedding_bag(
            rows.columns, w, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.T @ gradient, None

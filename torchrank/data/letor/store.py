"""Gathers rows of unknown number and width in little more memory than the result needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from torchrank.data.letor.form import Rows
from torchrank.data.sparse import SparseRows

SPARSE_BELOW = 0.25  # share of present features, for the result
HELD_DENSE_ABOVE, HELD_SPARSE_BELOW = 0.5, 0.4  # while reading; at 0.5 both forms take the same memory
CHUNK = 1 << 22  # cells converted at a time


def _physical_memory() -> int:
    """Bytes of memory of this machine; no limit where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows, or a system without these names
        return sys.maxsize


MACHINE = _physical_memory()


class Growing:
    """An array that grows at its end. It allocates room for the whole file at once: untouched memory costs nothing.

    If that was not enough, and to widen or shrink it, the room is resized, which moves no large array. So do not keep
    what `extend` or `filled` returned across such a call.
    """

    def __init__(self, dtype: type, *width: int):
        self.room: np.ndarray = np.empty((0, *width), dtype)
        self.size = 0

    def extend(self, count: int, share: float) -> np.ndarray:
        """The next `count` cells, for the caller to fill; `share` is the part of the file that is read then."""
        start, self.size = self.size, self.size + count
        expected = max(self.size, int(self.size / max(share, 1e-3) * (1.2 if share < 1 else 1)))
        if not start:
            self.room = np.empty((expected, *self.room.shape[1:]), self.room.dtype)
        elif self.size > len(self.room):
            self._resize(min(expected, self.size + self.size // 4), *self.room.shape[1:])  # resizing touches memory
        return self.room[start : self.size]

    def append(self, block: np.ndarray, share: float) -> None:
        """Add a block at the end."""
        self.extend(len(block), share)[:] = block

    def shrink(self, size: int) -> None:
        """Keep the first `size` cells and free the others."""
        self.size = size
        self._resize(size, *self.room.shape[1:])

    def widen(self, width: int) -> None:
        """Add columns of zeros. The last rows move first, so that none is overwritten before it has moved."""
        narrow = self.room.shape[1]
        self._resize(self.size, width)
        for start, stop in reversed([*_chunks(self.size, width)]):
            rows = self.room.reshape(-1)[start * narrow : stop * narrow].reshape(stop - start, narrow).copy()
            self.room[start:stop, :narrow] = rows
            self.room[start:stop, narrow:] = 0

    def _resize(self, *shape: int) -> None:
        self.room.resize(shape, refcheck=False)

    @property
    def filled(self) -> np.ndarray:
        """The array without the spare room."""
        return self.room[: self.size]


class FeatureStore:
    """The features of all rows: dense, or sparse if less than 25% are present.

    While reading, they are held in the form that takes less memory, whatever the result will be. Two thresholds keep
    the form from changing back and forth. A conversion frees its source chunk by chunk, the last rows first, so that
    both forms are never in memory as a whole.
    """

    def __init__(self, num_features: int | None, sparse: bool | None):
        self.fixed, self.sparse = num_features is not None, sparse
        self.num_features = num_features or 0
        self.num_rows = self.present = 0
        self.dense: Growing | None = None
        self._clear()

    @property
    def dense_size(self) -> int:
        """Bytes of all rows as a dense array."""
        return 4 * self.num_rows * self.num_features

    def add(self, rows: Rows, share: float) -> None:
        """Add a block; MemoryError if the caller wants a dense array that does not fit into this machine."""
        if not self.fixed:
            self.num_features = max(self.num_features, int(rows.columns.max(initial=-1)) + 1)
        self.num_rows += len(rows.counts)
        self.present += len(rows.values)
        if self.sparse is False and self.dense_size > MACHINE:
            raise MemoryError
        self._choose(share)
        if self.dense is None:
            self._add_sparse(rows.counts, rows.columns, rows.values, share)
            return
        if self.dense.room.shape[1] < self.num_features:
            self.dense.widen(self.num_features)
        scatter(self.dense.extend(len(rows.counts), share), rows.counts, rows.columns, rows.values)

    def finish(self) -> Tensor | SparseRows:
        """All rows, dense or sparse as the caller chose, otherwise by the share of present features."""
        sparse = self.present < SPARSE_BELOW * self.num_rows * self.num_features if self.sparse is None else self.sparse
        if sparse and self.dense is not None:
            self._to_sparse(self.dense, 1.0)
        elif not sparse and self.dense is None:
            self._to_dense(1.0)
        if self.dense is not None:
            return torch.from_numpy(self.dense.filled)
        offsets = np.concatenate(([0], np.cumsum(self.counts.filled)))
        values, columns, bounds = map(torch.from_numpy, (self.values.filled, self.columns.filled, offsets))
        return SparseRows(values, columns, bounds, self.num_features)

    def _choose(self, share: float) -> None:
        """Choose the form that is held, before there is room for new rows, which may be wider."""
        places = self.num_rows * self.num_features
        if self.dense is None and not self.sparse and self.present > HELD_DENSE_ABOVE * places:
            self._to_dense(share)
        elif self.dense is not None and self.present < HELD_SPARSE_BELOW * places:
            self._to_sparse(self.dense, share)

    def _clear(self) -> None:
        self.values, self.columns, self.counts = Growing(np.float32), Growing(np.int32), Growing(np.int64)

    def _add_sparse(self, counts: np.ndarray, columns: np.ndarray, values: np.ndarray, share: float) -> None:
        """Add rows to the sparse form, without explicit zeros."""
        if not values.all():
            kept = values != 0
            counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
            columns, values = columns[kept], values[kept]
        for part, block in ((self.counts, counts), (self.columns, columns), (self.values, values)):
            part.append(block, share)

    def _to_dense(self, share: float) -> None:
        counts = self.counts.filled
        bounds = np.concatenate(([0], np.cumsum(counts)))
        self.dense = Growing(np.float32, self.num_features)
        room = self.dense.extend(len(counts), share)
        for start, stop in reversed([*_chunks(*room.shape)]):
            columns, values = self.columns.filled[bounds[start] :], self.values.filled[bounds[start] :]
            scatter(room[start:stop], counts[start:stop], columns, values)
            self.columns.shrink(bounds[start])
            self.values.shrink(bounds[start])
        self._clear()

    def _to_sparse(self, dense: Growing, share: float) -> None:
        counts = self.counts.extend(dense.size, share)
        chunks = [*_chunks(*dense.filled.shape)]
        for start, stop in chunks:
            counts[start:stop] = np.count_nonzero(dense.filled[start:stop], axis=1)
        bounds = np.concatenate(([0], np.cumsum(counts)))
        columns, values = self.columns.extend(bounds[-1], share), self.values.extend(bounds[-1], share)
        for start, _ in reversed(chunks):
            rows = dense.filled[start:]
            row, column = rows.nonzero()
            tokens = slice(bounds[start], bounds[start] + len(row))
            columns[tokens], values[tokens] = column, rows[row, column]
            dense.shrink(start)
        self.dense = None


def _chunks(num_rows: int, width: int) -> Iterator[tuple[int, int]]:
    """The first row, and the row after the last one, of parts of about `CHUNK` cells."""
    step = max(1, CHUNK // max(width, 1))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def scatter(room: np.ndarray, counts: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
    """Write rows of (column, value) into `room` (R, D), zeros elsewhere; columns ascend in each row."""
    if values.size == room.size:  # every cell has a value, in order
        room[:] = values.reshape(room.shape)
        return
    room[:] = 0
    starts = np.arange(len(counts)) * room.shape[1]
    room.reshape(-1)[np.repeat(starts, counts) + columns] = values


def seen_before(values: np.ndarray) -> np.ndarray:
    """Whether an earlier value is the same (N,).

    Example:
        >>> seen_before(np.array([7, 5, 7, 7]))
        array([False, False,  True,  True])
    """
    seen = np.ones(len(values), dtype=bool)
    seen[np.unique(values, return_index=True)[1]] = False
    return seen


def reorder(x: Tensor | SparseRows, order: np.ndarray) -> Tensor | SparseRows:
    """The rows in another order; dense rows are reordered in place, a few columns at a time."""
    if isinstance(x, SparseRows):
        return x[torch.from_numpy(order)]
    rows = x.numpy()
    for column in range(0, rows.shape[1], 16):
        rows[:, column : column + 16] = rows[order, column : column + 16]
    return x

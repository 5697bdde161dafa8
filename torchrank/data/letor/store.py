"""Where rows of unknown number and width are gathered, in little more memory than the result needs."""

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
CHUNK = 1 << 22  # places converted at a time
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize  # bytes


class Growing:
    """An array that grows at its end. Room is made for the whole file at once: memory nobody wrote to costs nothing.

    Where that was not enough, and to widen or shrink it, the room is resized, which moves no large array: so do not
    keep what `extend` or `filled` gave over such a call.
    """

    def __init__(self, dtype: type, *width: int):
        self.room: np.ndarray = np.empty((0, *width), dtype)
        self.size = 0

    def extend(self, count: int, share: float) -> np.ndarray:
        """The next `count` places, to be filled; `share` of the file is read after them."""
        start, self.size = self.size, self.size + count
        expected = max(self.size, int(self.size / max(share, 1e-3) * (1.2 if share < 1 else 1)))
        if not start:
            self.room = np.empty((expected, *self.room.shape[1:]), self.room.dtype)
        elif self.size > len(self.room):
            self._resize(min(expected, self.size + self.size // 4), *self.room.shape[1:])  # this room is written to
        return self.room[start : self.size]

    def append(self, block: np.ndarray, share: float) -> None:
        self.extend(len(block), share)[:] = block

    def shrink(self, size: int) -> None:
        self.size = size
        self._resize(size, *self.room.shape[1:])

    def widen(self, width: int) -> None:
        """More columns, which are 0. The last rows move first, so that none is written over before it has moved."""
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
        return self.room[: self.size]


class FeatureStore:
    """Features of all rows: dense, or sparse where less than 25% are present.

    On the way they are held in the form that takes less memory, whatever the result will be. Between two changes of
    the form the file must have grown by a good part, so that no file makes it go to and fro; what is changed is given
    back chunk by chunk, the last rows first, so that the two forms are never there at once.
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
        """MemoryError when the caller wants a dense array that this machine cannot hold."""
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
        """All rows; without a choice of the caller the share of present features decides."""
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
        """The form for what is held, before room is made for rows that may be wider."""
        places = self.num_rows * self.num_features
        if self.dense is None and not self.sparse and self.present > HELD_DENSE_ABOVE * places:
            self._to_dense(share)
        elif self.dense is not None and self.present < HELD_SPARSE_BELOW * places:
            self._to_sparse(self.dense, share)

    def _clear(self) -> None:
        self.values, self.columns, self.counts = Growing(np.float32), Growing(np.int32), Growing(np.int64)

    def _add_sparse(self, counts: np.ndarray, columns: np.ndarray, values: np.ndarray, share: float) -> None:
        """A zero that is written out is the same as none, so none is kept."""
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
    """First and last row, exclusively, of parts of about `CHUNK` places."""
    step = max(1, CHUNK // max(width, 1))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def scatter(room: np.ndarray, counts: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
    """Write rows of (column, value) into `room` (R, D), zero elsewhere; columns ascend in each row."""
    if values.size == room.size:  # as many as there are places, each once: all places in order
        room[:] = values.reshape(room.shape)
        return
    room[:] = 0
    starts = np.arange(len(counts)) * room.shape[1]
    room.reshape(-1)[np.repeat(starts, counts) + columns] = values


def reorder(x: Tensor | SparseRows, order: np.ndarray) -> Tensor | SparseRows:
    """The rows in another order; dense ones in place, a few columns at a time."""
    if isinstance(x, SparseRows):
        return x[torch.from_numpy(order)]
    rows = x.numpy()
    for column in range(0, rows.shape[1], 16):
        rows[:, column : column + 16] = rows[order, column : column + 16]
    return x

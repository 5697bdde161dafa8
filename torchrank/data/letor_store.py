"""Where rows of unknown number and width are gathered, in little more memory than the result needs."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from torchrank.data.letor_form import Rows
from torchrank.data.sparse import SparseRows

SPARSE_BELOW = 0.25  # share of present features
CHUNK = 16_384  # rows converted at a time


class Growing:
    """An array that grows at its end. Room is made for the whole file at once: memory nobody wrote to costs nothing."""

    def __init__(self, dtype: type, *width: int):
        self.room: np.ndarray = np.empty((0, *width), dtype)
        self.size = 0

    def extend(self, count: int, share: float) -> np.ndarray:
        """The next `count` places, to be filled; `share` of the file is read after them."""
        size = self.size + count
        if size > len(self.room):
            room = np.empty((max(size, int(size / max(share, 1e-3) * 1.2)), *self.room.shape[1:]), self.room.dtype)
            room[: self.size] = self.filled
            self.room = room
        start, self.size = self.size, size
        return self.room[start:size]

    def append(self, block: np.ndarray, share: float) -> None:
        self.extend(len(block), share)[:] = block

    @property
    def filled(self) -> np.ndarray:
        return self.room[: self.size]


class FeatureStore:
    """Features of all rows: dense, or sparse where less than 25% are present.

    With `sparse=None` the running share decides. Sparse turns dense on the way, dense turns sparse only at the end, so
    that no file makes it go to and fro.
    """

    def __init__(self, num_features: int | None, sparse: bool | None):
        self.fixed, self.sparse = num_features is not None, sparse
        self.num_features = num_features or 0
        self.num_rows = self.present = 0
        self.dense = Growing(np.float32, self.num_features) if sparse is False else None
        self.values, self.columns, self.counts = Growing(np.float32), Growing(np.int32), Growing(np.int64)

    def add(self, rows: Rows, share: float) -> None:
        width = self.num_features if self.fixed else max(self.num_features, int(rows.columns.max(initial=-1)) + 1)
        if self.dense is not None and width > self.num_features:
            self._widen(width, share)
        self.num_features = width
        self.num_rows += len(rows.counts)
        self.present += len(rows.values)
        if self.dense is None and self.sparse is None and not self._is_sparse():
            self._to_dense(share)
        if self.dense is not None:
            scatter(self.dense.extend(len(rows.counts), share), rows.counts, rows.columns, rows.values)
        else:
            self._add_sparse(rows.counts, rows.columns, rows.values, share)

    def finish(self) -> Tensor | SparseRows:
        """All rows; without a choice of the caller the share of present features decides."""
        sparse = self._is_sparse() if self.sparse is None else self.sparse
        if sparse and self.dense is not None:
            dense, self.dense = self.dense.filled, None
            for start in range(0, len(dense), CHUNK):
                part = dense[start : start + CHUNK]
                row, column = part.nonzero()
                counts = np.bincount(row, minlength=len(part))
                self._add_sparse(counts, column.astype(np.int32), part[row, column], (start + len(part)) / len(dense))
        elif not sparse and self.dense is None:
            self._to_dense(1.0)
        if self.dense is not None:
            return torch.from_numpy(self.dense.filled)
        offsets = np.concatenate(([0], np.cumsum(self.counts.filled)))
        values, columns, bounds = map(torch.from_numpy, (self.values.filled, self.columns.filled, offsets))
        return SparseRows(values, columns, bounds, self.num_features)

    def _is_sparse(self) -> bool:
        return self.present < SPARSE_BELOW * self.num_rows * self.num_features

    def _add_sparse(self, counts: np.ndarray, columns: np.ndarray, values: np.ndarray, share: float) -> None:
        """A zero that is written out is the same as none, so none is kept."""
        if not values.all():
            kept = values != 0
            counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
            columns, values = columns[kept], values[kept]
        for part, block in ((self.counts, counts), (self.columns, columns), (self.values, values)):
            part.append(block, share)

    def _widen(self, width: int, share: float) -> None:
        narrow, self.dense = cast(Growing, self.dense), Growing(np.float32, width)
        room = self.dense.extend(narrow.size, share)
        room[:, : narrow.filled.shape[1]] = narrow.filled
        room[:, narrow.filled.shape[1] :] = 0

    def _to_dense(self, share: float) -> None:
        self.dense = Growing(np.float32, self.num_features)
        counts, columns, values = self.counts.filled, self.columns.filled, self.values.filled
        bounds = np.concatenate(([0], np.cumsum(counts)))
        room = self.dense.extend(len(counts), share)
        for start in range(0, len(counts), CHUNK):
            stop = min(start + CHUNK, len(counts))
            tokens = slice(bounds[start], bounds[stop])
            scatter(room[start:stop], counts[start:stop], columns[tokens], values[tokens])
        self.values, self.columns, self.counts = Growing(np.float32), Growing(np.int32), Growing(np.int64)


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

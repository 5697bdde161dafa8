"""What every format is read into and written from: the rows of a file piece by piece, and what is known of them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from torchrank.errors import DataError


class Piece(NamedTuple):
    """Consecutive rows; the features of row r are the next `counts[r]` of `columns` and `values`, the others are 0."""

    labels: np.ndarray  # (R,)
    queries: pl.Series  # (R,) text
    documents: pl.Series | None  # (R,) text
    comments: pl.Series | None  # (R,) text, where it says more than the document id
    counts: np.ndarray  # (R,)
    columns: np.ndarray  # (T,) from 0, ascending in each row
    values: np.ndarray  # (T,) float32 or float64
    weights: np.ndarray | None = None  # (R,)
    positions: np.ndarray | None = None  # (R,)

    def dense(self, width: int, dtype: np.dtype[Any]) -> np.ndarray:
        """All features (R, width)."""
        with np.errstate(over="ignore"):
            values = self.values.astype(dtype, copy=False)
        if len(bad := np.flatnonzero(~np.isfinite(values))):
            raise DataError(f"the value {self.values[bad[0]]!r} does not fit {dtype}: use --dtype float64")
        x = np.zeros((len(self.counts), width), dtype)
        x.reshape(-1)[np.repeat(np.arange(len(self.counts)) * width, self.counts) + self.columns] = values
        return x

    def take(self, kept: np.ndarray) -> Piece:
        """The rows that are True in `kept` (R,)."""
        tokens, mask = np.repeat(kept, self.counts), pl.Series(kept)
        documents, comments = (None if each is None else each.filter(mask) for each in (self.documents, self.comments))
        features = self.counts[kept], self.columns[tokens], self.values[tokens]
        beside = (None if each is None else each[kept] for each in (self.weights, self.positions))
        return Piece(self.labels[kept], self.queries.filter(mask), documents, comments, *features, *beside)


class Layout(NamedTuple):
    """What is known of all rows before the first one is written."""

    features: tuple[str, ...]  # their names
    named: bool  # whether the source has names for them
    documents: bool
    comments: bool
    dtype: np.dtype[Any]
    sparse: bool  # whether the source is: zeros are then left out where the target allows it
    weights: bool = False
    positions: bool = False

    @property
    def width(self) -> int:
        return len(self.features)


class Source(NamedTuple):
    """A file to convert: its layout, and a function that reads its pieces."""

    layout: Layout
    read: Callable[[], Iterator[Piece]]


def from_dense(
    x: np.ndarray,
    labels: np.ndarray,
    queries: pl.Series,
    documents: pl.Series | None,
    comments: pl.Series | None,
    weights: np.ndarray | None = None,
    positions: np.ndarray | None = None,
) -> Piece:
    """A piece of dense rows (R, D)."""
    features = np.full(len(x), x.shape[1]), np.tile(np.arange(x.shape[1]), len(x)), x.reshape(-1)
    return Piece(labels, queries, documents, comments, *features, weights, positions)


def real(single: bool) -> np.dtype[Any]:
    """float32 or float64."""
    return np.dtype(np.float32) if single else np.dtype(np.float64)


def generic_names(width: int) -> tuple[str, ...]:
    """Names of features that have none: f1, f2, ...; the numbers are those of a LETOR file."""
    return tuple(f"f{number}" for number in range(1, width + 1))


def fits_float32(values: np.ndarray) -> bool:
    """Whether float32 holds every digit of these numbers (float64): its shortest text is theirs.

    Example:
        >>> fits_float32(np.array([0.1, 3.0, 1e-30])), fits_float32(np.array([0.1234567891]))
        (True, False)
    """
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    other = single.astype(np.float64) != values
    short = pl.Series(single[other]).cast(pl.String).cast(pl.Float64).to_numpy()
    return bool((short == values[other]).all())


def decoded(texts: list[bytes]) -> pl.Series:
    """Texts of a file; bytes that are not UTF-8 are shown as `\\xff`."""
    return pl.Series([text.decode(errors="backslashreplace") for text in texts], dtype=pl.String)

"""Tables: csv, parquet and Arrow files, one row per document, with the columns label, query, document and comment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from torchrank.data.formats.pieces import Layout, Piece, Source, fits_float32, from_dense, real
from torchrank.data.sources.frames import COMMENT, DOCUMENT, Columns, count_rows, find_columns, kind_of, read_batches
from torchrank.errors import DataError

LABEL, QUERY, WEIGHT, POSITION = "label", "query", "weight", "position"
CELLS = 2**20  # of a batch that is written
EXACT = (pl.Float32, pl.Int8, pl.Int16, pl.UInt8, pl.UInt16, pl.Boolean)  # types that float32 holds


def table_source(
    path: Path,
    *,
    label: str,
    query: str,
    document: str | None,
    features: Sequence[str] | None,
    missing: float | None,
    digits: bool,
    weight: str | None = None,
    position: str | None = None,
) -> Source:
    """A table; csv files are read once to see if float32 holds every digit (`digits`), and again to convert them."""
    named = {"label": label, "query": query, "document": document, "weight": weight, "position": position}
    columns = find_columns(path, **named, features=features)  # type: ignore[arg-type]
    if not count_rows(path, columns):
        raise DataError(f"{path}: the table has no rows, expected one document per row")
    single = all(kind in EXACT for kind in columns.types)
    if kind_of(path) == "csv":
        batches = (frame for frame, _ in read_batches(path, columns, missing=missing)) if digits else ()
        single = digits and all(
            fits_float32(frame.select(columns.features).to_numpy().reshape(-1)) for frame in batches
        )
    dtype, texts = real(single), (columns.document is not None, columns.comment is not None)
    layout = Layout(columns.features, True, *texts, dtype, False, weight is not None, position is not None)
    return Source(layout, lambda: _pieces(path, columns, missing, dtype))


def _pieces(path: Path, columns: Columns, missing: float | None, dtype: np.dtype[Any]) -> Iterator[Piece]:
    for frame, _ in read_batches(path, columns, missing=missing):
        documents, comments = (None if name is None else frame[name] for name in (columns.document, columns.comment))
        labels, x = frame[columns.label].to_numpy(), frame.select(columns.features).to_numpy().astype(dtype)
        beside = (None if name is None else frame[name].to_numpy() for name in (columns.weight, columns.position))
        if len(frame):
            yield from_dense(x, labels, frame[columns.query], documents, comments, *beside)


# ---- writing ---------------------------------------------------------------------------------------------------------


def frames(pieces: Iterable[Piece], layout: Layout) -> Iterator[pl.DataFrame]:
    """The rows as data frames of a moderate size."""
    step = max(1, CELLS // layout.width)
    for piece in pieces:
        bounds = np.concatenate(([0], np.cumsum(piece.counts)))
        for start in range(0, len(piece.labels), step):
            rows, tokens = slice(start, start + step), slice(bounds[start], bounds[min(start + step, len(bounds) - 1)])
            part = piece._replace(counts=piece.counts[rows], columns=piece.columns[tokens], values=piece.values[tokens])
            yield _frame(part, rows, layout)


def _frame(piece: Piece, rows: slice, layout: Layout) -> pl.DataFrame:
    texts = {QUERY: piece.queries, DOCUMENT: piece.documents, COMMENT: piece.comments}
    columns = {LABEL: pl.Series(piece.labels[rows].astype(np.float64))}
    columns |= {name: texts[name][rows] for name in _ids(layout)}  # type: ignore[index]
    numbers = {WEIGHT: piece.weights, POSITION: piece.positions}
    columns |= {name: pl.Series(numbers[name][rows]).cast(kind) for name, kind in _numbers(layout).items()}  # type: ignore[index]
    x = pl.DataFrame(piece.dense(layout.width, layout.dtype), schema=list(layout.features))
    return pl.concat([pl.DataFrame(columns), x], how="horizontal")


def _ids(layout: Layout) -> list[str]:
    return [QUERY, *([DOCUMENT] if layout.documents else []), *([COMMENT] if layout.comments else [])]


def _numbers(layout: Layout) -> dict[str, type[pl.DataType]]:
    return ({WEIGHT: pl.Float64} if layout.weights else {}) | ({POSITION: pl.Int64} if layout.positions else {})


def check_names(layout: Layout) -> None:
    """Refuse features that are called as the other columns of a table are."""
    for name in (LABEL, *_ids(layout), *_numbers(layout)):
        if name in layout.features:
            raise DataError(f"a feature is called {name!r}, as the column of that name: rename it by --feature-names")


def csv_text(pieces: Iterable[Piece], layout: Layout, separator: str) -> Iterator[bytes]:
    """A csv file piece by piece, with its header; labels that are integers have no fraction."""
    header = True
    for frame in frames(pieces, layout):
        label = frame[LABEL].cast(pl.String).str.strip_suffix(".0")
        text = frame.with_columns(label.alias(LABEL)).write_csv(separator=separator, include_header=header)
        yield text.encode()
        header = False


def write_frames(file: IO[bytes], pieces: Iterable[Piece], layout: Layout, kind: str) -> None:
    """Write a parquet or Arrow file batch by batch."""
    kinds: dict[str, Any] = {LABEL: pl.Float64, **dict.fromkeys(_ids(layout), pl.String), **_numbers(layout)}
    number = pl.Float32 if layout.dtype == np.float32 else pl.Float64
    schema = pl.Schema({**kinds, **dict.fromkeys(layout.features, number)})

    def batches(columns: object, predicate: object, rows: object, size: object) -> Iterator[pl.DataFrame]:
        return frames(pieces, layout)

    lazy = register_io_source(batches, schema=schema)
    if kind == "parquet":
        lazy.sink_parquet(file, row_group_size=max(1024, 2 * CELLS // layout.width))
    else:
        lazy.sink_ipc(file, compression="zstd")

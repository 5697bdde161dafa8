"""LETOR / svmlight text, LightGBM's libsvm text with a side file, and TREC qrels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from torchrank.data.formats.pieces import (
    Layout,
    Piece,
    Source,
    decoded,
    fits_float32,
    generic_names,
    real,
)
from torchrank.data.letor import parsed, tell_changes
from torchrank.data.letor.files import beside, check_width, read_lengths, side_file
from torchrank.data.letor.form import Form, Rows, document_id
from torchrank.data.letor.store import SPARSE_BELOW
from torchrank.errors import DataError


def letor_source(path: Path, form: Form, query_file: str | None, *, digits: bool) -> Source:
    """A LETOR file; it is read once to learn its layout, and again to convert it.

    Args:
        path: the file.
        form: the options of the reader, with `whole`.
        query_file: the side file of qid="file".
        digits: whether to look if float32 holds every digit of the values; otherwise they are float64.
    """
    lengths = read_lengths(side_file(path, query_file)) if form.qid == "file" else None
    width, rows, present, filled, clipped = form.num_features or 0, 0, 0, 0, 0
    documents, comments, single = False, False, digits
    for block, _ in parsed(path, form):
        width = max(width, int(block.columns.max(initial=-1)) + 1)
        rows, present = rows + len(block.labels), present + len(block.values)
        filled, clipped = filled + block.filled, clipped + block.clipped
        documents = documents or any(block.documents or ())
        comments = comments or any(document_id(comment) != comment for comment in block.documents or ())
        single = single and fits_float32(block.values)
    _check_size(path, rows, width, lengths)
    given = beside(path, rows)
    check_width(path, width, form.num_features)
    tell_changes(str(path), form, rows, 0, 0, filled, clipped)
    sparse = present < SPARSE_BELOW * rows * width
    numbers = {name: name in given for name in ("weights", "positions")}
    layout = Layout(generic_names(width), False, documents, comments, real(single), sparse, **numbers)
    return Source(layout, lambda: _pieces(path, form, lengths, layout, given))


def _check_size(path: Path, rows: int, width: int, lengths: list[int] | None) -> None:
    if not rows or not width:
        raise DataError(f"{path}: {rows} rows with {width} features, expected lines like '2 qid:10 1:0.5 2:7'")
    if lengths is not None and sum(lengths) != rows:
        told = f"the {len(lengths)} list lengths of the side file sum to {sum(lengths)}"
        raise DataError(f"{path}: the file has {rows} rows, but {told}")


def _pieces(
    path: Path, form: Form, lengths: list[int] | None, layout: Layout, given: dict[str, Any]
) -> Iterator[Piece]:
    bounds, first = np.cumsum(lengths or [0]), 0
    for rows, _ in parsed(path, form):
        places = np.arange(first, first + len(rows.labels))
        first += len(places)
        numbers = np.searchsorted(bounds, places, side="right") + 1
        queries = pl.Series(numbers).cast(pl.String) if rows.queries is None else decoded(rows.queries)
        if len(places):
            numbered: dict[str, Any] = {name: numbers[places] for name, numbers in given.items()}
            texts = _texts(rows, layout)
            yield Piece(rows.labels, queries, *texts, rows.counts, rows.columns, rows.values, **numbered)


def _texts(rows: Rows, layout: Layout) -> tuple[pl.Series | None, pl.Series | None]:
    """Document ids and whole comments, as far as the file has any."""
    if not layout.documents:
        return None, None
    comments = rows.documents or [b""] * len(rows.labels)
    ids = decoded([document_id(comment) for comment in comments] if layout.comments else comments)
    return ids, decoded(comments) if layout.comments else None


# ---- writing ---------------------------------------------------------------------------------------------------------


def letor_text(pieces: Iterable[Piece], layout: Layout, *, queries: bool = True) -> Iterator[bytes]:
    """A LETOR file piece by piece, without query ids and comments for LightGBM."""
    for number, piece in enumerate(pieces):
        yield letor_lines(piece, layout, first=number == 0, queries=queries)


def letor_lines(piece: Piece, layout: Layout, *, first: bool, queries: bool = True) -> bytes:
    """The lines of one piece; `first` if it is the first one of its file."""
    parts: list[Any] = [_text(piece.labels)]
    if queries:
        parts += [pl.lit(" qid:"), _words("query", piece.queries)]
    parts.append(_features(piece, layout, first))
    texts = piece.comments if piece.comments is not None else piece.documents
    if queries and texts is not None:
        _refuse(texts.str.contains("[\r\n]"), texts, "comment", "a line break")
        parts.append((pl.lit(" # ") + texts).replace(" # ", ""))
    lines = pl.select(pl.concat_str(parts).alias("line"))["line"]
    return "".join(f"{line}\n" for line in lines).encode()


def _features(piece: Piece, layout: Layout, first: bool) -> pl.Series:
    """The tokens of each row; the first row of a file tells the number of features by its last token."""
    kept = piece.values != 0 if layout.sparse else np.ones(len(piece.values), bool)
    rows = np.repeat(np.arange(len(piece.counts)), piece.counts)[kept]
    numbers = {"column": piece.columns[kept] + 1, "value": _text(piece.values[kept])}
    token = pl.concat_str(pl.lit(" "), pl.col("column").cast(pl.String), pl.lit(":"), pl.col("value"))
    tokens = pl.DataFrame({"row": rows, **numbers}).select("row", token.alias("text"))
    lines = tokens.group_by("row", maintain_order=True).agg(pl.col("text").str.join(""))
    every = pl.DataFrame({"row": np.arange(len(piece.counts))}).join(lines, on="row", how="left", maintain_order="left")
    found = every["text"].fill_null("")
    last = piece.columns[: piece.counts[0]][kept[: piece.counts[0]]]
    if first and (not len(last) or last[-1] != layout.width - 1):
        found[0] = f"{found[0]} {layout.width}:0"
    return found


def _text(numbers: np.ndarray) -> pl.Series:
    """The shortest text from which each number is read back exactly, in its own precision."""
    return pl.Series(numbers).cast(pl.String).str.strip_suffix(".0")


def _words(what: str, ids: pl.Series) -> pl.Series:
    _refuse(ids.str.contains(r"[\s#]") | (ids == ""), ids, f"{what} id", "white space, a '#', or nothing at all")
    return ids


def _refuse(bad: pl.Series, texts: pl.Series, what: str, why: str) -> None:
    if bad.any():
        raise DataError(f"the {what} {texts.filter(bad)[0]!r} contains {why}, which this format cannot hold")


def with_sides(pieces: Iterable[Piece], layout: Layout, sides: dict[str, list[bytes]]) -> Iterator[Piece]:
    """The pieces, while the lines of the files beside a LETOR file, by their endings, are appended to `sides`."""
    sides.update({ending: [] for ending, there in side_endings(layout) if there})
    for piece in pieces:
        for ending, lines in sides.items():
            lines.append(side_lines(piece, ending))
        yield piece


def side_endings(layout: Layout) -> tuple[tuple[str, bool], ...]:
    """The endings of files of weights and positions, and whether there are any."""
    return (".weight", layout.weights), (".position", layout.positions)


def side_lines(piece: Piece, ending: str) -> bytes:
    """The weights or positions of a piece, one per line."""
    numbers = piece.weights if ending == ".weight" else piece.positions
    return "".join(f"{text}\n" for text in _text(numbers)).encode()  # type: ignore[arg-type]


def list_lengths(pieces: Iterable[Piece], lengths: list[int]) -> Iterator[Piece]:
    """The pieces, while the lengths of their lists are appended to `lengths`; lists must be contiguous."""
    seen: set[str] = set()
    last = None
    for piece in pieces:
        runs = piece.queries.rle().struct.unnest()
        for length, query in zip(runs["len"].to_list(), runs["value"].to_list(), strict=True):
            if query == last:
                lengths[-1] += length
                continue
            if query in seen:
                told = "which a file of list lengths cannot hold: convert it to .npz first, which joins them"
                raise DataError(f"the rows of query {query!r} are not contiguous, {told}")
            seen.add(query)
            lengths.append(length)
            last = query
        yield piece


def qrels_text(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """Lines `query 0 document label`; documents without ids are numbered from 1 within their query."""
    counts: dict[str, int] = {}
    for piece in pieces:
        if bad := next((label for label in piece.labels.tolist() if label != int(label)), None):
            raise DataError(f"the label {bad!r} is not an integer, which TREC qrels need")
        documents = piece.documents
        if documents is None:
            documents = pl.Series([_next(counts, query) for query in piece.queries], dtype=pl.String)
        parts: list[Any] = [_words("query", piece.queries), pl.lit(" 0 "), _words("document", documents), pl.lit(" ")]
        lines = pl.select(pl.concat_str([*parts, _text(piece.labels)]).alias("line"))["line"]
        yield "".join(f"{line}\n" for line in lines).encode()


def _next(counts: dict[str, int], query: str) -> str:
    counts[query] = counts.get(query, 0) + 1
    return str(counts[query])

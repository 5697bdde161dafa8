"""From lines of LETOR / svmlight text to arrays, fast: it refuses everything unusual.

All `index:value` tokens of a block go through a CSV engine as lines `index,value`. Engines are lenient, so every byte
that cannot be part of a number is first made unreadable, and the number of colons must equal the number of rows that
come back. A block that is refused is read again by `letor/exact.py`, which finds the error and its line.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from torchrank.data.letor.exact import parse_exact
from torchrank.data.letor.form import LARGEST, NUMBER, Form, Rows

SPACE, NUMERIC = b" \t\r\v\f\n", b"0123456789+-.eENUL"  # the letters also spell NULL
CSV = bytes(10 if c in SPACE else 44 if c == ord(":") else c if c in NUMERIC else ord("!") for c in range(256))


def parse(block: bytes, form: Form, where: str, first_line: int) -> Rows:
    """The rows of whole lines; an error names `where` and the line, counted from `first_line`."""
    rows = parse_fast(block, form)
    return parse_exact(block, form, where, first_line) if rows is None else rows


def parse_fast(block: bytes, form: Form) -> Rows | None:
    """The rows; None if anything is unusual, for `parse_exact` to decide."""
    lines = _cut(block, form.heads)
    if lines is None:
        return None
    labels, queries, tokens = _labels(lines.labels, form), _queries(lines, form), _tokens(lines.features, form)
    if labels is None or queries is None or tokens is None:
        return None
    documents = [form.document(c) for c in lines.comments] if b"#" in block and form.qid != "comment" else None
    return Rows(labels, None if form.qid == "file" else queries, documents, *tokens)


class _Lines(NamedTuple):
    """The parts of the lines that are not blank."""

    labels: list[bytes]
    seconds: list[bytes]  # the second token, which holds the query, if two tokens come before the features
    features: list[bytes]
    comments: list[bytes]


def _cut(block: bytes, heads: int) -> _Lines | None:
    """The parts as texts only: thousands of small lists would cost a fifth of the time in the garbage collector."""
    lines = _Lines([], [], [], [])
    comment, commented = b"", b"#" in block
    for line in block.split(b"\n"):
        if commented:
            line, _, comment = line.partition(b"#")
        parts = line.split(None, heads)
        if len(parts) > heads:
            lines.features.append(parts[heads].rstrip())
        elif len(parts) == heads:
            lines.features.append(b"")
        elif parts:
            return None
        else:
            continue
        lines.labels.append(parts[0])
        lines.comments.append(comment)
        if heads == 2:
            lines.seconds.append(parts[1])
    return lines


def _labels(tokens: list[bytes], form: Form) -> np.ndarray | None:
    known = {token: float(token) if NUMBER.fullmatch(token) else np.nan for token in set(tokens)}  # a file has few
    labels = form.numbers([known[token] for token in tokens])
    refused = form.unjudged == "error" and (labels < 0).any()
    return None if refused or not np.isfinite(labels).all() else labels


def _queries(lines: _Lines, form: Form) -> list[bytes] | None:
    """The query id of each row, [] with a side file; None if one is missing."""
    if form.qid == "comment":
        queries = [comment.strip() for comment in lines.comments]
        return queries if all(queries) else None
    if not all(token.startswith(b"qid:") and len(token) > 4 for token in set(lines.seconds)):
        return None
    return [token[4:] for token in lines.seconds]


def _tokens(features: list[bytes], form: Form) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int] | None:
    """Counts (R,), columns (T,), values (T,), and how many values were filled and clipped."""
    text = b"\n".join([*features, b""]).translate(CSV)
    commas = np.frombuffer(text, dtype=np.uint8) == ord(",")
    filled = text.count(b",NULL\n") if form.missing != "error" and b"N" in text else 0
    if filled:
        text = text.replace(b",NULL\n", b",%r\n" % float(form.missing))
    found = _engine(text.lstrip(b"\n"), int(np.count_nonzero(commas)))
    if found is None:
        return None
    columns, values = found[0], form.numbers(found[1])
    clipped = 0
    if not np.isfinite(values).all():  # infinite, never nan: the letters of "nan" were made unreadable
        if form.sentinel == "error":
            return None
        beyond = np.isinf(values)
        limit = np.copysign(LARGEST, values[beyond]) if form.sentinel == "clip" else form.sentinel
        values[beyond], clipped = limit, int(beyond.sum())
    if len(columns) and (columns.min() < 1 or columns.max() > form.last_index):
        return None
    if width := _full_width(features, columns):
        return np.full(len(features), width), columns - 1, values, filled, clipped
    bounds = accumulate((len(feature) + 1 for feature in features), initial=0)
    counts = np.array([np.count_nonzero(commas[a:b]) for a, b in pairwise(bounds)], dtype=np.int64)
    ordered = _ascending(counts, columns - 1, values)
    return ordered and (counts, *ordered, filled, clipped)


def _full_width(features: list[bytes], columns: np.ndarray) -> int:
    """D if every row has the indices 1..D in order, otherwise 0.

    The indices of all R rows are 1..D, R times over, and every row begins with a 1. There are R ones, so each row has
    exactly one and ends with D. This saves counting the tokens of each row.
    """
    width, rest = divmod(len(columns), max(len(features), 1))
    if rest or not width or not all(feature.startswith(b"1:") for feature in features):
        return 0
    return width if (columns.reshape(-1, width) == np.arange(1, width + 1, dtype=np.int32)).all() else 0


def _engine(text: bytes, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Indices (T,) and values (T,) of lines `index,value` with `count` commas in total; None if any is in doubt.

    Every row that is kept has an index and a value, so it has a comma. There are as many commas as rows, so it has
    exactly one, and a row that was left out has none: it was blank, from a run of spaces.
    """
    if not count:
        return None if text else (np.empty(0, np.int32), np.empty(0))
    if b"+" in text and (text.startswith(b"+") or b"\n+" in text):  # the engine reads +1 as an index
        return None
    try:
        frame = pl.read_csv(text, has_header=False, schema={"index": pl.Int32, "value": pl.Float64}, quote_char=None)
    except pl.exceptions.PolarsError:
        return None
    if frame["index"].null_count():
        frame = frame.drop_nulls("index")
    if len(frame) != count or frame["value"].null_count():
        return None
    return frame["index"].to_numpy(), frame["value"].to_numpy()


def _ascending(counts: np.ndarray, columns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Columns and values with the columns of each row ascending; None if a column occurs twice in a row."""
    starts = np.cumsum(counts)[:-1]
    rising = columns[1:] > columns[:-1]
    rising[starts[(starts > 0) & (starts < len(columns))] - 1] = True
    if rising.all():
        return columns, values
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((columns, rows))
    columns, values = columns[order], values[order]
    return None if ((columns[1:] == columns[:-1]) & (rows[1:] == rows[:-1])).any() else (columns, values)

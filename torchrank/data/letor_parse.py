"""From lines of LETOR / svmlight text to arrays: a fast way that refuses what it is not sure of, and an exact way.

The fast way hands all `index:value` tokens of a block to a CSV engine as lines `index,value`. Engines are lenient, so
every byte that has no place in a number is first made unreadable, and the number of colons must equal the number of
rows that come back. A block that the fast way refuses is read again token by token, which finds the error and its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, NoReturn

import numpy as np
import polars as pl

LARGEST = float(np.finfo(np.float32).max)
LARGEST_INDEX = 2**31 - 1
NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
DOCUMENT = re.compile(rb"docid\s*=\s*(\S+)")
SPACE, NUMERIC = b" \t\r\v\f\n", b"0123456789+-.eENUL"  # the letters are those of NULL
CSV = bytes(10 if c in SPACE else 44 if c == ord(":") else c if c in NUMERIC else ord("!") for c in range(256))


@dataclass(frozen=True)
class Form:
    """What `read_letor` was told about the file."""

    qid: str = "token"
    num_features: int | None = None
    unjudged: str | float = "error"
    missing: str | float = "error"
    sentinel: str = "error"

    @property
    def heads(self) -> int:
        """Tokens before the features."""
        return 2 if self.qid == "token" else 1

    @property
    def last_index(self) -> int:
        return LARGEST_INDEX if self.num_features is None else self.num_features


class Rows(NamedTuple):
    """Rows of a block; the features of row r are the next `counts[r]` of `columns` and `values`."""

    labels: np.ndarray  # (R,) float32
    queries: list[bytes] | None  # None: they stand in a side file
    documents: list[bytes] | None  # None: no comments
    counts: np.ndarray  # (R,) int64
    columns: np.ndarray  # (T,) int32, from 0, ascending in each row
    values: np.ndarray  # (T,) float32
    filled: int  # NULLs that were replaced
    clipped: int  # values beyond float32 that were clipped


def parse(block: bytes, form: Form, where: str, first_line: int) -> Rows:
    """The rows of whole lines; an error names `where` and the line, counted from `first_line`."""
    rows = parse_fast(block, form)
    return parse_exact(block, form, where, first_line) if rows is None else rows


def document_id(comment: bytes) -> bytes:
    """LETOR's `docid = X inc = ...` gives X, any other comment is the id itself.

    >>> document_id(b"docid = GX000-00-0000000 inc = 1 prob = 0.0246906"), document_id(b" page 7 ")
    (b'GX000-00-0000000', b'page 7')
    """
    found = DOCUMENT.match(comment.strip())
    return found[1] if found else comment.strip()


# the fast way


def parse_fast(block: bytes, form: Form) -> Rows | None:
    """The rows, or None when anything is unusual: then `parse_exact` decides."""
    lines, comments = _without_comments(block)
    fields = [line.split(None, form.heads) for line in lines]
    if not all(fields):  # blank lines
        comments = comments and [comment for comment, field in zip(comments, fields, strict=True) if field]
        fields = [field for field in fields if field]
    if any(len(field) < form.heads for field in fields):
        return None
    labels, queries = _labels(fields, form), _queries(fields, comments, form)
    features = [field[form.heads].rstrip() if len(field) > form.heads else b"" for field in fields]
    tokens = _tokens(features, form)
    if labels is None or queries is None or tokens is None:
        return None
    documents = [document_id(c) for c in comments] if comments and form.qid != "comment" else None
    return Rows(labels, queries or None, documents, *tokens)


def _without_comments(block: bytes) -> tuple[list[bytes], list[bytes] | None]:
    lines = block.split(b"\n")
    if b"#" not in block:
        return lines, None
    parts = [line.partition(b"#") for line in lines]
    return [part[0] for part in parts], [part[2] for part in parts]


class _Labels(dict):
    """Each label that was seen and its number; a file has few, so nearly all are looked up."""

    def __missing__(self, token: bytes) -> float:
        self[token] = float(token) if NUMBER.fullmatch(token) else np.nan
        return self[token]


def _labels(fields: list[list[bytes]], form: Form) -> np.ndarray | None:
    known = _Labels()
    labels = _single([known[field[0]] for field in fields])
    refused = form.unjudged == "error" and (labels == -1).any()
    return None if refused or not np.isfinite(labels).all() else labels


def _queries(fields: list[list[bytes]], comments: list[bytes] | None, form: Form) -> list[bytes] | None:
    """The query id of each row, none for a side file; None where one is missing."""
    if form.qid == "file":
        return []
    if form.qid == "comment":
        queries = [comment.strip() for comment in comments or []]
        return queries if len(queries) == len(fields) and all(queries) else None
    tokens = [field[1] for field in fields]
    if not all(token.startswith(b"qid:") and len(token) > 4 for token in set(tokens)):
        return None
    return [token[4:] for token in tokens]


def _tokens(features: list[bytes], form: Form) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int] | None:
    text = b"\n".join(features).translate(CSV)
    commas = np.frombuffer(text, dtype=np.uint8) == ord(",")
    bounds = accumulate((len(feature) + 1 for feature in features), initial=0)
    counts = np.array(
        [np.count_nonzero(commas[a:b]) for a, b in pairwise(bounds)], dtype=np.int64
    )  # SIMD, unlike count
    pair = _engine(text.strip(b"\n"), int(counts.sum()))
    if pair is None:
        return None
    columns, doubles, nulls = pair
    filled = 0
    if nulls is not None:
        if form.missing == "error":
            return None
        filled, doubles = int(nulls.sum()), np.where(nulls, form.missing, doubles)
    values = _single(doubles)
    clipped = 0
    if not np.isfinite(values).all():
        clipped = int(np.isinf(values).sum())
        if form.sentinel == "error" or np.isnan(values).any():
            return None
        values = np.clip(values, -LARGEST, LARGEST)
    if len(columns) and (columns.min() < 1 or columns.max() > form.last_index):
        return None
    ordered = _ascending(counts, columns - 1, values)
    return ordered and (counts, *ordered, filled, clipped)


def _engine(text: bytes, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Indices (T,), values (T,) and which are NULL (None: no one) of lines `index,value`; None when any is in doubt."""
    if not count:
        return None if text else (np.empty(0, np.int32), np.empty(0), None)
    if b"+" in text and (text.startswith(b"+") or b"\n+" in text):  # the engine reads +1 as an index
        return None
    try:
        frame = pl.read_csv(
            text, has_header=False, schema={"index": pl.Int32, "value": pl.Float64}, quote_char=None, null_values="NULL"
        )
    except pl.exceptions.PolarsError:
        return None
    if frame["index"].null_count():  # blank lines from runs of spaces; if it was more, the count is wrong
        frame = frame.drop_nulls("index")
    nulls = frame["value"].null_count()
    # An empty value is a null as well. A line with two colons or none breaks one of the counts.
    if len(frame) != count or nulls != (text.count(b"NULL") if b"N" in text else 0):
        return None
    columns = frame["index"].to_numpy()
    if not nulls:
        return columns, frame["value"].to_numpy(), None
    return columns, frame["value"].fill_null(0.0).to_numpy(), frame["value"].is_null().to_numpy()


def _ascending(counts: np.ndarray, columns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Columns and values with the columns of each row ascending; None when a column stands twice in a row."""
    starts = np.cumsum(counts)[:-1]
    rising = columns[1:] > columns[:-1]
    rising[starts[(starts > 0) & (starts < len(columns))] - 1] = True
    if rising.all():
        return columns, values
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((columns, rows))
    columns, values = columns[order], values[order]
    return None if ((columns[1:] == columns[:-1]) & (rows[1:] == rows[:-1])).any() else (columns, values)


def _single(numbers: np.ndarray | list[float]) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(numbers, dtype=np.float64).astype(np.float32)


# the exact way


def parse_exact(block: bytes, form: Form, where: str, first_line: int) -> Rows:
    """The same rows, one token at a time; the first thing that is wrong is raised with its line."""
    labels, queries, documents, counts, columns, values = [], [], [], [], [], []
    filled = clipped = 0
    for number, line in enumerate(block.split(b"\n"), first_line):
        body, _, comment = line.partition(b"#")
        tokens = body.split()
        if not tokens:
            continue
        wrong = _complain(f"{where}, line {number}")
        labels.append(_exact_label(tokens[0], form, wrong))
        queries.append(_exact_query(tokens, comment, form, wrong))
        documents.append(document_id(comment))
        row: dict[int, float] = {}
        for token in tokens[form.heads :]:
            column, text = _exact_index(token, form, row, wrong)
            row[column], was_null, was_beyond = _exact_value(text, token, form, wrong)
            filled, clipped = filled + was_null, clipped + was_beyond
        counts.append(len(row))
        for column in sorted(row):
            columns.append(column)
            values.append(row[column])
    return Rows(
        _single(labels),
        None if form.qid == "file" else queries,
        documents if b"#" in block and form.qid != "comment" else None,
        np.array(counts, dtype=np.int64),
        np.array(columns, dtype=np.int32),
        _single(values),
        filled,
        clipped,
    )


def show(token: bytes) -> str:
    """A token as it is quoted in a message: readable, on one line, not longer than 60 characters."""
    text = ascii(token.decode(errors="backslashreplace"))
    return text if len(text) <= 60 else text[:57] + "..."


Complain = Callable[[str], NoReturn]


def _complain(place: str) -> Complain:
    def wrong(message: str) -> NoReturn:
        raise ValueError(f"{place}: {message}")

    return wrong


def _exact_label(token: bytes, form: Form, wrong: Complain) -> float:
    label = float(token) if NUMBER.fullmatch(token) else np.nan
    if not np.isfinite(_single([label])[0]):
        wrong(f"label {show(token)}: expected a finite number as the first token of a row")
    if label == -1 and form.unjudged == "error":
        wrong(
            f"label {show(token)} means that the document is unjudged: expected a judged one. Set unjudged=drop "
            "(data.unjudged=drop) to leave such documents out, or unjudged=0 to count them as label 0"
        )
    return label


def _exact_query(tokens: list[bytes], comment: bytes, form: Form, wrong: Complain) -> bytes:
    if form.qid == "token":
        found = tokens[1] if len(tokens) > 1 else b""
        if not found.startswith(b"qid:") or len(found) == 4:
            wrong(
                f"second token {show(found)}: expected the query as 'qid:ID'. If it stands in the comment set "
                "qid=comment (data.qid=comment), if in a .query or .group file set qid=file (data.qid=file)"
            )
        return found[4:]
    if form.qid == "comment" and not comment.strip():
        wrong("comment '': expected the query id after '#', because qid=comment")
    return comment.strip() if form.qid == "comment" else b""


def _exact_index(token: bytes, form: Form, row: dict[int, float], wrong: Complain) -> tuple[int, bytes]:
    """The column, counted from 0, and the text of the value."""
    index, colon, text = token.partition(b":")
    if index == b"qid":
        wrong(f"token {show(token)}: expected index:value; with qid={form.qid} a row has no other qid: token")
    if not colon or not index.isdigit():
        wrong(f"token {show(token)}: expected index:value with a whole number from 1 as index")
    number = int(index) if len(index.lstrip(b"0")) < 11 else LARGEST_INDEX + 1
    if number == 0:
        wrong(f"token {show(token)}: expected an index from 1: indices count from 1, a zero-based file must be shifted")
    if number > form.last_index:
        wrong(
            f"token {show(token)}: index {number} is larger than the number of features {form.last_index}, "
            "which is that of the training file unless num_features is set"
            if form.num_features is not None
            else f"token {show(token)}: expected an index of at most {LARGEST_INDEX}"
        )
    if number - 1 in row:
        wrong(f"token {show(token)}: index {number} stands twice in this row, expected each index once")
    return number - 1, text


def _exact_value(text: bytes, token: bytes, form: Form, wrong: Complain) -> tuple[float, bool, bool]:
    """The value, whether it was NULL, and whether it was beyond float32."""
    if text == b"NULL":
        if form.missing == "error":
            wrong(
                f"token {show(token)}: expected a number. Set missing=0 (data.missing=0), or another number, "
                "to fill the NULLs of this file"
            )
        return float(form.missing), True, False
    if not NUMBER.fullmatch(text):
        wrong(f"token {show(token)}: expected a finite decimal number as value, found {show(text)}")
    value = float(text)
    if np.isfinite(_single([value])[0]):
        return value, False, False
    if form.sentinel == "error":
        wrong(
            f"token {show(token)}: the value does not fit float32 (largest {LARGEST:.7g}); Istella writes 1.797e308 "
            "for a missing feature. Set sentinel=clip (data.sentinel=clip) to clip such values to the largest"
        )
    return float(np.copysign(LARGEST, value)), False, True

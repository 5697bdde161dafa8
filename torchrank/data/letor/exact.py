"""From lines of LETOR / svmlight text to arrays, token by token: slow, but it says what is wrong and where."""

from __future__ import annotations

import numpy as np

from torchrank.data.letor.form import LARGEST, LARGEST_INDEX, NUMBER, Form, Rows, show
from torchrank.errors import DataError


def parse_exact(block: bytes, form: Form, where: str, first_line: int) -> Rows:
    """The rows of whole lines; the first error is raised with its line, counted from `first_line`."""
    labels, queries, documents, counts, columns, values = [], [], [], [], [], []
    filled = clipped = 0
    for number, line in enumerate(block.split(b"\n"), first_line):
        body, _, comment = line.partition(b"#")
        tokens = body.split()
        if not tokens:
            continue
        row: dict[int, float] = {}
        try:
            labels.append(_exact_label(tokens[0], form))
            queries.append(_exact_query(tokens, comment, form))
            documents.append(form.document(comment))
            for token in tokens[form.heads :]:
                column, text = _exact_index(token, form, row)
                row[column], was_null, was_beyond = _exact_value(text, token, form)
                filled, clipped = filled + was_null, clipped + was_beyond
        except DataError as error:
            raise DataError(f"{where}, line {number}: {error}") from None
        counts.append(len(row))
        for column in sorted(row):
            columns.append(column)
            values.append(row[column])
    return Rows(
        form.numbers(labels),
        None if form.qid == "file" else queries,
        documents if b"#" in block and form.qid != "comment" else None,
        np.array(counts, dtype=np.int64),
        np.array(columns, dtype=np.int32),
        form.numbers(values),
        filled,
        clipped,
    )


def _exact_label(token: bytes, form: Form) -> float:
    label = float(form.numbers([float(token) if NUMBER.fullmatch(token) else np.nan])[0])
    if not np.isfinite(label):
        table = token.startswith((b"PAR1", b"ARROW1")) or b"," in token
        hint = ". This looks like a table: read it with data=table, or convert it (torchrank convert)" if table else ""
        raise DataError(f"label {show(token)}: expected a finite number as the first token of a row{hint}")
    if label < 0 and form.unjudged == "error":
        raise DataError(
            f"label {show(token)} means that the document is unjudged, expected a judged one. Set unjudged=drop "
            "(data.unjudged=drop) to drop such documents, or unjudged=0 to give them label 0"
        )
    return label


def _exact_query(tokens: list[bytes], comment: bytes, form: Form) -> bytes:
    if form.qid == "token":
        found = tokens[1] if len(tokens) > 1 else b""
        if not found.startswith(b"qid:") or len(found) == 4:
            raise DataError(
                f"second token {show(found)}: expected the query as 'qid:ID'. If it is in the comment, set qid=comment "
                "(data.qid=comment); if in a .query or .group file, set qid=file (data.qid=file)"
            )
        return found[4:]
    if form.qid == "comment" and not comment.strip():
        raise DataError("comment '': expected the query id after '#', because qid=comment")
    return comment.strip() if form.qid == "comment" else b""


def _exact_index(token: bytes, form: Form, row: dict[int, float]) -> tuple[int, bytes]:
    """The column, counted from 0, and the text of the value."""
    index, colon, text = token.partition(b":")
    if index == b"qid":
        raise DataError(
            f"token {show(token)}: expected index:value; with qid={form.qid} a row cannot have another qid: token"
        )
    if not colon or not index.isdigit():
        raise DataError(f"token {show(token)}: expected index:value with an integer index from 1")
    number = int(index) if len(index.lstrip(b"0")) < 11 else LARGEST_INDEX + 1
    if number == 0:
        raise DataError(f"token {show(token)}: expected an index from 1; a zero-based file must be shifted by 1")
    if number > LARGEST_INDEX:
        raise DataError(f"token {show(token)}: expected an index of at most {LARGEST_INDEX}")
    if number > form.last_index:
        raise DataError(
            f"token {show(token)}: index {number} is larger than the number of features {form.last_index}, that of the "
            f"training file unless data.num_features is set: set data.num_features={number} or more"
        )
    if number - 1 in row:
        raise DataError(f"token {show(token)}: index {number} occurs twice in this row, expected each index once")
    return number - 1, text


def _exact_value(text: bytes, token: bytes, form: Form) -> tuple[float, bool, bool]:
    """The value, whether it was NULL, and whether it was beyond float32."""
    if text == b"NULL":
        if form.missing == "error":
            raise DataError(
                f"token {show(token)}: expected a number. Set missing=0 (data.missing=0), or another number, "
                "to replace the NULLs of this file"
            )
        return float(form.missing), True, False
    if not NUMBER.fullmatch(text):
        raise DataError(f"token {show(token)}: expected a finite decimal number as value, found {show(text)}")
    value = float(text)
    if np.isfinite(form.numbers([value])[0]):
        return value, False, False
    if form.sentinel == "error":
        raise DataError(
            f"token {show(token)}: the value does not fit float32 (largest {LARGEST:.7g}); Istella writes 1.797e308 "
            "for a missing feature. Set sentinel=0 (data.sentinel=0), or another number, to replace such values, or "
            "sentinel=clip to clip them to the largest"
        )
    return float(np.copysign(LARGEST, value) if form.sentinel == "clip" else form.sentinel), False, True

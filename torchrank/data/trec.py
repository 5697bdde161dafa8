"""TREC runs and relevance judgements (qrels), as trec_eval reads them.

A run has lines `query Q0 document rank score tag`, qrels have lines `query 0 document grade`. Tokens are separated by
white space; blank lines and lines that begin with '#' do not count; files may be compressed by gzip or zstd. As in
trec_eval the order of a run is that of its scores, the written ranks do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from torchrank.data.letor.files import read_blocks, read_lines
from torchrank.data.letor.form import NUMBER, show
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError

RUN = ("query", "Q0", "document", "rank", "score", "tag")
QRELS = ("query", "0", "document", "grade")
SPACES, ENDS = re.compile(rb"[ \t\v\f]+"), re.compile(rb" ?\r?\n ?")


@dataclass(frozen=True)
class Qrels:
    """Judged documents of each query, laid end to end. Queries and documents are in the order of the file.

    Args:
        query_ids: (Q,) the id of each query.
        document_ids: (M,) the id of each judged document.
        labels: (M,) its grade, float32; trec_eval counts negative grades as unjudged.
        offsets: (Q + 1,) where the documents of each query begin and end.
        name: of the file, for messages.
        lines: (M,) the place of each document among the lines of the file that count, from 0.
    """

    query_ids: Sequence[str]
    document_ids: Sequence[str]
    labels: Tensor
    offsets: Tensor
    name: str = ""
    lines: Tensor | None = None

    def __len__(self) -> int:
        return len(self.query_ids)


@dataclass(frozen=True)
class TrecRun:
    """Retrieved documents of each query, laid end to end. Queries and documents are in the order of the file.

    Args:
        query_ids: (Q,) the id of each query.
        document_ids: (N,) the id of each retrieved document.
        scores: (N,) its score, float64.
        offsets: (Q + 1,) where the documents of each query begin and end.
        name: of the file, for messages.
    """

    query_ids: Sequence[str]
    document_ids: Sequence[str]
    scores: Tensor
    offsets: Tensor
    name: str = ""

    def __len__(self) -> int:
        return len(self.query_ids)

    def judge(self, qrels: Qrels, *, complete: bool = False) -> JudgedRun:
        """The run with the grades of its documents; 0 for documents without one and for negative grades.

        Args:
            qrels: the judgements.
            complete: count queries of the qrels without results too, as empty lists (trec_eval's -c). By default the
                queries that both files have count, as in trec_eval.

        Returns:
            Lists in the order of the queries of the qrels.
        """
        run = _frame(self.query_ids, self.document_ids, self.scores, self.offsets, "score")
        known = _frame(qrels.query_ids, qrels.document_ids, qrels.labels.clamp(min=0), qrels.offsets, "label")
        found, judged = set(self.query_ids), set(qrels.query_ids)
        queries = [query for query in qrels.query_ids if complete or query in found]
        if not queries:
            raise DataError(
                f"{self.name} and {qrels.name} have no query in common: expected the same query ids in both"
            )
        places = pl.DataFrame(
            {"query": queries, "place": np.arange(len(queries))}, schema_overrides={"query": pl.String}
        )
        run = run.join(places, on="query").join(known, on=("query", "document"), how="left", maintain_order="left")
        run = run.with_columns(pl.col("label").fill_null(0)).sort("place", maintain_order=True)
        known = known.join(places, on="query").sort("place", maintain_order=True)
        order = run["document"].rank("dense", descending=True)
        return JudgedRun(
            queries,
            run["document"].to_list(),
            _tensor(run["score"]),
            _tensor(run["label"]),
            _offsets(run["place"], len(queries)),
            _tensor(order.cast(pl.Int64)),
            (_tensor(known["label"]), _offsets(known["place"], len(queries))),
            [query for query in self.query_ids if query not in judged],
            [query for query in qrels.query_ids if query not in found],
            self.name,
        )


@dataclass(frozen=True)
class JudgedRun:
    """The documents that a run retrieved with their grades, and all judged documents of its queries.

    `torchrank.functional.evaluate(**judged.lists, measures=..., convention="trec")` gives the numbers of trec_eval.

    Args:
        query_ids: (Q,) the id of each query.
        document_ids: (N,) the id of each retrieved document.
        scores: (N,) its score.
        labels: (N,) its grade from 0, 0 if it was not judged.
        offsets: (Q + 1,) where the documents of each query begin and end.
        tiebreak: (N,) documents with equal scores come in ascending order of it: by id, descending.
        judged: labels (M,) and offsets (Q + 1,) of all judged documents, retrieved or not.
        unjudged_queries: queries of the run that the qrels do not have; they are left out.
        missing_queries: queries of the qrels without results.
        name: of the run.
    """

    query_ids: Sequence[str]
    document_ids: Sequence[str]
    scores: Tensor
    labels: Tensor
    offsets: Tensor
    tiebreak: Tensor
    judged: tuple[Tensor, Tensor]
    unjudged_queries: Sequence[str] = field(default=())
    missing_queries: Sequence[str] = field(default=())
    name: str = ""

    def __len__(self) -> int:
        return len(self.query_ids)

    @property
    def lists(self) -> dict[str, Any]:
        """The arguments of `evaluate` by name: scores, labels, offsets, tiebreak and judged."""
        return {name: vars(self)[name] for name in ("scores", "labels", "offsets", "tiebreak", "judged")}

    def to_set(self) -> RankingSet:
        """The retrieved documents as lists with one feature, their score."""
        ids = {"query_ids": self.query_ids, "document_ids": self.document_ids, "name": self.name}
        return RankingSet(self.scores[:, None].float(), self.labels, self.offsets, **ids)  # type: ignore[arg-type]


def read_run(path: str | Path) -> TrecRun:
    """Read a TREC run: lines `query Q0 document rank score tag`.

    Args:
        path: the file, plain or compressed by gzip or zstd.

    Returns:
        A `TrecRun` with `query_ids`, `document_ids`, `scores` and `offsets`; `run.judge(qrels)` joins it with qrels. A
        line that is wrong, and a document that occurs twice for a query, raise a `DataError` with file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     _ = file.write("q1 Q0 d7 1 2.5 bm25\\nq1 Q0 d2 2 1.5 bm25\\nq2 Q0 d2 1 0.5 bm25\\n")
        ...     file.flush()
        ...     run = read_run(file.name)
        >>> run.query_ids, run.document_ids, run.scores.tolist(), run.offsets.tolist()
        (['q1', 'q2'], ['d7', 'd2', 'd2'], [2.5, 1.5, 0.5], [0, 2, 3])
    """
    queries, documents, values, offsets, _ = _read(Path(path), RUN)
    return TrecRun(queries, documents, values, offsets, Path(path).name)


def read_qrels(path: str | Path) -> Qrels:
    """Read relevance judgements: lines `query 0 document grade`.

    Args:
        path: the file, plain or compressed by gzip or zstd.

    Returns:
        `Qrels` with `query_ids`, `document_ids`, `labels` and `offsets`. A line that is wrong, and a document that is
        judged twice for a query, raise a `DataError` with file and line.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     _ = file.write("q1 0 d2 1\\nq1 0 d7 0\\nq1 0 d9 2\\n")
        ...     file.flush()
        ...     qrels = read_qrels(file.name)
        >>> qrels.query_ids, qrels.document_ids, qrels.labels.tolist(), qrels.offsets.tolist()
        (['q1'], ['d2', 'd7', 'd9'], [1.0, 0.0, 2.0], [0, 3])
    """
    queries, documents, values, offsets, lines = _read(Path(path), QRELS)
    return Qrels(queries, documents, values.float(), offsets, Path(path).name, lines)


def _read(path: Path, form: tuple[str, ...]) -> tuple[list[str], list[str], Tensor, Tensor, Tensor]:
    """Query ids (Q,), document ids (N,), values (N,), offsets (Q + 1,) and lines (N,), grouped by query."""
    text = b"".join(block.text for block in read_blocks(path))
    frame = _parse_fast(text, form)
    frame = _parse_exact(path, form) if frame is None else frame
    if not len(frame):
        raise DataError(f"{path}: the file has no lines '{' '.join(form)}'")
    if frame.select(pl.struct("query", "document").is_duplicated().any()).item():
        _refuse_duplicates(path, form)
    grouped = frame.with_row_index("line").group_by("query", maintain_order=True).agg("document", "value", "line")
    lengths = grouped["document"].list.len().to_numpy().astype(np.int64)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))))
    flat = grouped.drop("query").explode("document", "value", "line")
    numbers = _tensor(flat["value"]), offsets, _tensor(flat["line"].cast(pl.Int64))
    return grouped["query"].to_list(), flat["document"].to_list(), *numbers


def _parse_fast(text: bytes, form: tuple[str, ...]) -> pl.DataFrame | None:
    """Queries, documents and values; None if anything is unusual, for `_parse_exact` to decide."""
    text = ENDS.sub(b"\n", SPACES.sub(b" ", text)).lstrip(b"\n ")
    if not text or text.startswith(b"#") or b"\n#" in text or b"\0" in text:
        return None
    names = [str(column) for column in range(len(form))]
    try:
        frame = pl.read_csv(
            text,
            has_header=False,
            separator=" ",
            schema=dict.fromkeys(names, pl.String),
            quote_char=None,
        )
    except pl.exceptions.PolarsError:
        return None
    value = _value_place(form)
    frame = frame.select(
        pl.col("0").alias("query"),
        pl.col("2").alias("document"),
        pl.col(str(value)).cast(pl.Float64, strict=False).alias("value"),
        pl.col(names[-1]).alias("last"),
    )
    frame = frame.filter(pl.col("query").is_not_null())  # blank lines
    there = pl.all_horizontal(pl.col("document", "last").is_not_null())
    good = pl.col("value").is_finite().fill_null(False) & there
    return frame if frame.select(good.all()).item() else None


def _parse_exact(path: Path, form: tuple[str, ...]) -> pl.DataFrame:
    """The same line by line: slow, but it says what is wrong and where."""
    queries, documents, values = [], [], []
    for number, tokens in _token_lines(path):
        if len(tokens) != len(form):
            raise DataError(
                f"{path}, line {number}: expected {len(form)} tokens '{' '.join(form)}', found {len(tokens)}: "
                f"{show(b' '.join(tokens))}"
            )
        text = tokens[_value_place(form)]
        if not NUMBER.fullmatch(text) or not np.isfinite(float(text)):
            raise DataError(f"{path}, line {number}: {form[_value_place(form)]} {show(text)}: expected a finite number")
        queries.append(_decoded(tokens[0]))
        documents.append(_decoded(tokens[2]))
        values.append(float(text))
    schema = {"query": pl.String, "document": pl.String, "value": pl.Float64}
    return pl.DataFrame({"query": queries, "document": documents, "value": values}, schema=schema)


def _token_lines(path: Path) -> list[tuple[int, list[bytes]]]:
    """The number and the tokens of each line that counts."""
    lines = ((number, line) for number, line in read_lines(path) if line and not line.startswith(b"#"))
    return [(number, line.split()) for number, line in lines]


def _refuse_duplicates(path: Path, form: tuple[str, ...]) -> None:
    seen: dict[tuple[bytes, bytes], int] = {}
    for number, tokens in _token_lines(path):
        first = seen.setdefault((tokens[0], tokens[2]), number)
        if first != number:
            query, document = show(tokens[0]), show(tokens[2])
            raise DataError(
                f"{path}, line {number}: document {document} of query {query} is in line {first} already: expected it "
                "once"
            )


def _value_place(form: tuple[str, ...]) -> int:
    return 4 if form is RUN else 3


def _decoded(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _frame(
    query_ids: Sequence[str], document_ids: Sequence[str], values: Tensor, offsets: Tensor, name: str
) -> pl.DataFrame:
    queries = pl.Series("query", list(query_ids), dtype=pl.String)
    owner = np.repeat(np.arange(len(query_ids)), offsets.diff().numpy())
    documents = pl.Series("document", list(document_ids), dtype=pl.String)
    return pl.DataFrame([queries.gather(owner), documents, pl.Series(name, values.numpy())])


def _offsets(places: pl.Series, count: int) -> Tensor:
    lengths = np.bincount(places.to_numpy(), minlength=count)
    return torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))


def _tensor(values: pl.Series) -> Tensor:
    return torch.from_numpy(values.to_numpy().copy())

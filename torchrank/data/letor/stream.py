"""Reads a LETOR file of any size in pieces of whole lists, in the memory of a block and of the longest list."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchrank.data.letor import check_form, parsed, settle_unjudged, tell_changes
from torchrank.data.letor.files import STDIN, read_lengths, side_file
from torchrank.data.letor.form import Form, Rows, show
from torchrank.data.letor.store import FeatureStore
from torchrank.data.letor.strings import Strings
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError


def stream_letor(
    source: str | Path | BinaryIO,
    *,
    num_features: int,
    qid: str = "token",
    query_file: str | Path | None = None,
    sparse: bool | None = None,
    unjudged: str | float = "error",
    missing: str | float = "error",
    sentinel: str | float = "error",
) -> Iterator[RankingSet]:
    """Read the lists of a LETOR file piece by piece; together the pieces are what `read_letor` returns.

    Args:
        source: the file, plain or compressed by gzip or zstd, or an open binary stream such as `sys.stdin.buffer`.
        num_features: the number of features of every piece; a larger index is an error.
        qid: where the query id is: "token", "comment" or "file", as in `read_letor`.
        query_file: the side file of qid="file"; by default the path with .query or .group added.
        sparse: True for `SparseRows`, False for dense rows; by default as the first piece suggests.
        unjudged: what to do with documents of a negative label, such as -1: "drop" them, or a label such as 0.
        missing: the value of `NULL`.
        sentinel: the value of numbers beyond float32, or "clip".

    Returns:
        Sets of whole lists, in the order of the file. The rows of a query must be contiguous.

    Example:
        >>> from io import BytesIO
        >>> text = b"2 qid:a 1:0.5\\n0 qid:a 2:1\\n1 qid:b 1:1\\n"
        >>> [(list(piece.query_ids), piece.x.tolist()) for piece in stream_letor(BytesIO(text), num_features=2)]
        [(['a'], [[0.5, 0.0], [0.0, 1.0]]), (['b'], [[1.0, 0.0]])]
    """
    form = Form(qid, num_features, unjudged, missing, sentinel)
    check_form(form, query_file)
    source = Path(source) if isinstance(source, str) else source
    cutter = _Cutter(source, form, _lengths(source, query_file) if qid == "file" else None)
    name = source.name if isinstance(source, Path) else STDIN
    for rows in cutter.pieces():
        features = FeatureStore(num_features, sparse)
        features.add(rows, 1.0)
        x = features.finish()
        sparse = not isinstance(x, torch.Tensor)
        yield _set(rows, x, name)


def _lengths(source: Path | BinaryIO, query_file: str | Path | None) -> np.ndarray:
    if query_file is None and not isinstance(source, Path):
        raise ValueError("qid=file needs a file, beside which the list lengths are: stdin has none")
    side = side_file(source, query_file) if isinstance(source, Path) else Path(str(query_file))
    return np.array(read_lengths(side), dtype=np.int64)


def _set(rows: Rows, x: object, name: str) -> RankingSet:
    """The rows of whole lists as a set; document ids are None if no row has one."""
    queries = rows.queries or []
    starts = [0, *(place for place, (a, b) in enumerate(pairwise(queries), 1) if a != b)]
    documents = rows.documents if rows.documents is not None and any(rows.documents) else None
    return RankingSet(
        x,
        torch.from_numpy(rows.labels),
        torch.tensor([*starts, len(queries)]),
        query_ids=Strings.join(queries[place] for place in starts),
        document_ids=None if documents is None else Strings.join(documents),
        name=name,
    )


class _Cutter:
    """Cuts the rows of a file into pieces of whole lists, and counts what was changed in them."""

    def __init__(self, source: Path | BinaryIO, form: Form, lengths: np.ndarray | None):
        self.source, self.form = source, form
        self.where = str(source) if isinstance(source, Path) else STDIN
        self.bounds = None if lengths is None else np.cumsum(lengths)  # of the lists of a side file
        self.rows = self.unjudged = self.filled = self.clipped = 0
        self.waiting: list[Rows] = []  # of the last list, which may continue
        self.seen: set[bytes] = set()  # query ids of whole lists
        self.dropped: set[bytes] = set()  # query ids of dropped rows

    def pieces(self, features: bool = True) -> Iterator[Rows]:
        for rows, _ in parsed(self.source, self.form):
            rows = self._settled(self._named(rows if features else _without_features(rows)))
            if len(rows.labels):
                cut = self._last_start(rows.queries or [])
                if cut is None:
                    self.waiting.append(rows)
                else:
                    whole, self.waiting = [*self.waiting, _part(rows, 0, cut)], [_part(rows, cut, len(rows.labels))]
                    yield from self._joined(whole)
        yield from self._joined(self.waiting)
        self._finish()

    def _named(self, rows: Rows) -> Rows:
        """The rows with query ids, also where they are in a side file: the numbers of the lists from 1."""
        first, self.rows = self.rows, self.rows + len(rows.labels)
        if self.bounds is None:
            return rows
        numbers = np.searchsorted(self.bounds, np.arange(first, self.rows), side="right") + 1
        return rows._replace(queries=[b"%d" % number for number in numbers.tolist()])

    def _settled(self, rows: Rows) -> Rows:
        judged = rows.labels >= 0
        self.filled, self.clipped = self.filled + rows.filled, self.clipped + rows.clipped
        if not judged.all():
            self.unjudged += int((~judged).sum())
            self.dropped.update(compress(rows.queries or [], ~judged) if self.form.unjudged == "drop" else ())
        return settle_unjudged(rows, judged, self.form)

    def _last_start(self, queries: list[bytes]) -> int | None:
        """Where the last list of the block begins; None if all its rows continue the list that is waiting."""
        last = queries[-1]
        if queries[0] == last and all(query == last for query in queries):
            return None if self.waiting and (self.waiting[-1].queries or [b""])[-1] == last else 0
        return next(place for place in range(len(queries) - 1, 0, -1) if queries[place - 1] != last)

    def _joined(self, parts: list[Rows]) -> Iterator[Rows]:
        parts = [part for part in parts if len(part.labels)]
        if not parts:
            return
        rows = parts[0] if len(parts) == 1 else _join(parts)
        queries = rows.queries or []
        for query in [queries[0], *(b for a, b in pairwise(queries) if a != b)]:
            if query in self.seen:
                raise DataError(
                    f"{self.where}: the rows of query {show(query)} are not contiguous: sort the file by query, since "
                    "scores are in the order of its rows"
                )
            self.seen.add(query)
        yield rows

    def _finish(self) -> None:
        if not self.rows:
            raise DataError(f"{self.where}: the file has no rows, expected lines like '2 qid:10 1:0.5 2:7'")
        if self.bounds is not None and (len(self.bounds) == 0 or self.bounds[-1] != self.rows):
            total = self.bounds[-1] if len(self.bounds) else 0
            raise DataError(
                f"{self.where}: the file has {self.rows} rows, but the {len(self.bounds)} list lengths of the side "
                f"file sum to {total}"
            )
        lost = len(self.dropped - self.seen)
        tell_changes(self.where, self.form, self.rows, self.unjudged, lost, self.filled, self.clipped)
        if not self.seen:
            raise DataError(f"{self.where}: all {self.rows} rows have label -1, so unjudged=drop leaves none")


def _without_features(rows: Rows) -> Rows:
    return rows._replace(counts=np.zeros_like(rows.counts), columns=rows.columns[:0], values=rows.values[:0])


def _part(rows: Rows, first: int, last: int) -> Rows:
    """Rows first..last-1 of a block."""
    start, stop = int(rows.counts[:first].sum()), int(rows.counts[:last].sum())
    return rows._replace(
        labels=rows.labels[first:last],
        queries=rows.queries and rows.queries[first:last],
        documents=rows.documents and rows.documents[first:last],
        counts=rows.counts[first:last],
        columns=rows.columns[start:stop],
        values=rows.values[start:stop],
    )


def _join(parts: list[Rows]) -> Rows:
    """The rows of several blocks as one."""
    documents = None
    if any(part.documents is not None for part in parts):
        documents = [d for part in parts for d in (part.documents or [b""] * len(part.labels))]
    return Rows(
        np.concatenate([part.labels for part in parts]),
        [query for part in parts for query in part.queries or []],
        documents,
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.values for part in parts]),
        sum(part.filled for part in parts),
        sum(part.clipped for part in parts),
    )


def stream_labels(
    source: Path,
    *,
    qid: str = "token",
    query_file: str | Path | None = None,
    unjudged: str | float = "error",
    missing: str | float = 0.0,
    sentinel: str | float = "clip",
) -> tuple[list[str], list[str] | None, Tensor, Tensor]:
    """Query ids (Q,), document ids (N,) if there are any, labels (N,) and offsets (Q + 1,) of a file of any size.

    Features are read, and kept for no longer than a block.
    """
    form = Form(qid, None, unjudged, missing, sentinel)
    check_form(form, query_file)
    pieces = list(_Cutter(source, form, _lengths(source, query_file) if qid == "file" else None).pieces(features=False))
    rows = pieces[0] if len(pieces) == 1 else _join(pieces)
    queries = [text.decode(errors="backslashreplace") for text in rows.queries or []]
    starts = [0, *(place for place, (a, b) in enumerate(pairwise(queries), 1) if a != b)]
    documents = rows.documents if rows.documents is not None and any(rows.documents) else None
    names = None if documents is None else [text.decode(errors="backslashreplace") for text in documents]
    offsets = torch.tensor([*starts, len(queries)])
    return [queries[place] for place in starts], names, torch.from_numpy(rows.labels), offsets

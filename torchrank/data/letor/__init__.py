"""Reads LETOR / svmlight files: MSLR-WEB, LETOR 3 and 4, Yahoo! LTRC, Istella, Yandex, libsvm with a side file.

One row is one document: `label qid:ID index:value ... # comment`. The exact grammar: tokens are separated by white
space, a comment runs from '#' to the end of the line, and blank lines do not count. Numbers are decimal (`-1.5e3`,
`.5`, `1.`; not `nan`, `inf`, `0x1`, `1_000`). Indices are integers from 1 in any order, each at most once in a row; the
value of an absent index is 0. A value becomes float32 as by `numpy.float32(float(token))`.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchrank.data.letor.fast import parse
from torchrank.data.letor.files import (
    KINDS,
    STDIN,
    Block,
    beside,
    line_with,
    number_file,
    read_blocks,
    read_lengths,
    side_file,
)
from torchrank.data.letor.form import LARGEST, Form, Rows
from torchrank.data.letor.store import FeatureStore, Growing, reorder, seen_before
from torchrank.data.letor.strings import Strings
from torchrank.data.relevance import Explicit
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError, DataWarning

THREADS = 2  # one splits lines while the CSV engine, which has threads of its own, parses another block
CHOICES = {
    "qid": ("token", "comment", "file"),
    "unjudged": ("error", "drop", "a number"),
    "missing": ("error", "a number"),
    "sentinel": ("error", "clip", "a number"),
}


def read_letor(
    path: str | Path,
    *,
    qid: str = "token",
    query_file: str | Path | None = None,
    num_features: int | None = None,
    sparse: bool | None = None,
    unjudged: str | float = "error",
    missing: str | float = "error",
    sentinel: str | float = "error",
) -> RankingSet:
    """Read the lists of a LETOR / svmlight file, `label qid:ID index:value ... # comment` on each line.

    Comments become document ids; of `docid = X inc = 1` only X. Rows of a query need not be contiguous. Files
    `path.weight` and `path.position` beside it, with one number per row as LightGBM has them, are read as well.

    Args:
        path: the file, plain or compressed by gzip or zstd.
        qid: where the query id is: in the `qid:` "token", in the "comment" (Yandex), or in a side "file" of list
            lengths, which numbers the queries from 1.
        query_file: the side file; by default the path with .query or .group added.
        num_features: the number of features, a larger index is an error; by default the largest index.
        sparse: True for `SparseRows`, False for a dense array; by default sparse if less than 25% of the values are
            present.
        unjudged: what to do with documents of a negative label, such as -1: "drop" them, or a label such as 0.
        missing: the value of `NULL`.
        sentinel: the value of numbers beyond float32 (Istella's 1.797e308 means "none"), such as 0; "clip" clips them
            to the largest float32, 3.4e38.

    Returns:
        The lists, in the order in which their queries first appear. Everything that was changed is counted in a
        `DataWarning`; everything that is wrong raises a `DataError` with file, line and token.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        ...     _ = file.write("2 qid:a 1:0.5 3:7 # first\\n0 qid:a 2:1 # second\\n1 qid:b 1:1\\n")
        ...     file.flush()
        ...     lists = read_letor(file.name)
        >>> lists.x.tolist(), lists.labels.tolist(), lists.offsets.tolist()
        ([[0.5, 0.0, 7.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [2.0, 0.0, 1.0], [0, 2, 3])
        >>> list(lists.query_ids), list(lists.document_ids)
        (['a', 'b'], ['first', 'second', ''])
    """
    path = Path(path)
    form = Form(qid, num_features, unjudged, missing, sentinel)
    check_form(form, query_file)
    lengths = read_lengths(side_file(path, query_file)) if qid == "file" else None
    gathered = _Gathered(form, sparse)
    try:
        for rows, share in parsed(path, form):
            gathered.add(rows, share)
        return gathered.finish(path, lengths)
    except MemoryError as error:
        if sparse:
            raise
        raise DataError(_too_large(path, form, gathered.features)) from error


def side_files(path: Path, options: Mapping[str, Any]) -> list[Path]:
    """The other files on which the lists of a LETOR file depend, given the options of `read_letor`."""
    sides = [side_file(path, options.get("query_file"))] if options.get("qid") == "file" else []
    return sides + [side for what in KINDS if (side := number_file(path, f".{what}")) is not None]


def check_form(form: Form, query_file: str | Path | None) -> None:
    for name, choices in CHOICES.items():
        value = vars(form)[name]
        number = "a number" in choices and not isinstance(value, str) and abs(value) <= LARGEST
        if not number and (value not in choices or value == "a number"):
            raise ValueError(f"unknown {name}={value!r}: choose one of {', '.join(choices)}")
    if not isinstance(form.unjudged, str) and not form.unjudged >= 0:
        raise ValueError(f"unjudged must be drop or a label of 0 or more, got {form.unjudged}")
    if form.num_features is not None and form.num_features < 1:
        raise ValueError(f"num_features must be >= 1, or None for the largest index, got {form.num_features}")
    if query_file is not None and form.qid != "file":
        raise ValueError(f"query_file={str(query_file)!r} is read with qid=file only, got qid={form.qid}")


def _too_large(path: Path, form: Form, features: FeatureStore) -> str:
    width, size = features.num_features, features.dense_size / 2**30
    if form.num_features is None:
        asking = f"{path}, line {line_with(path, width)}: index {width}"
    else:
        asking = f"{path}: num_features={width}"
    return (
        f"{asking} needs a dense array of {width} features by at least {features.num_rows} rows, {size:.1f} GiB, more "
        "than the memory of this machine. Expected smaller indices, or set sparse=True (data.sparse=true)"
    )


def parsed(source: Path | BinaryIO, form: Form) -> Iterator[tuple[Rows, float]]:
    """Blocks of rows in order, each with the share of the file that is read; two blocks are parsed at a time."""
    where = str(source) if isinstance(source, Path) else STDIN

    def work(block: Block) -> tuple[Rows, float]:
        return parse(block.text, form, where, block.first_line), block.share

    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[tuple[Rows, float]]] = deque()
        for block in read_blocks(source):
            waiting.append(pool.submit(work, block))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Gathered:
    """The rows of all blocks so far, and the counts of what was changed in them."""

    def __init__(self, form: Form, sparse: bool | None):
        self.form = form
        self.features = FeatureStore(form.num_features, sparse)
        self.labels, self.query, self.judged = Growing(np.float32), Growing(np.int64), Growing(np.bool_)
        self.numbers: dict[bytes, int] = {}  # query id -> its number, by first appearance
        self.documents: list[list[bytes] | int] = []  # the ids of a block, or its number of rows without ids
        self.dropped: set[bytes] = set()  # query ids of dropped rows
        self.filled = self.clipped = self.lost = 0  # values, values, queries

    def add(self, rows: Rows, share: float) -> None:
        judged = rows.labels >= 0
        self.judged.append(judged, share)
        self.filled, self.clipped = self.filled + rows.filled, self.clipped + rows.clipped
        if not judged.all() and self.form.unjudged == "drop":
            self.dropped.update(compress(rows.queries or [], ~judged))
        rows = settle_unjudged(rows, judged, self.form)
        self.labels.append(rows.labels, share)
        self.documents.append(len(rows.labels) if rows.documents is None else rows.documents)
        if rows.queries is not None:
            numbers = self.numbers
            self.query.append(np.array([numbers.setdefault(q, len(numbers)) for q in rows.queries], np.int64), share)
        self.features.add(rows, share)

    def finish(self, path: Path, lengths: list[int] | None) -> RankingSet:
        if not self.judged.size:
            raise DataError(f"{path}: the file has no rows, expected lines like '2 qid:10 1:0.5 2:7'")
        given = beside(path, self.judged.size)
        if self.form.unjudged == "drop":
            given = {name: numbers[self.judged.filled] for name, numbers in given.items()}
        query, ids = self._from_rows() if lengths is None else self._from_side_file(path, lengths)
        self._warn(path)
        if not len(query):
            raise DataError(f"{path}: all {self.judged.size} rows have label -1, so unjudged=drop leaves none")
        if not self.features.num_features:
            raise DataError(f"{path}: {len(query)} rows without any feature, expected lines like '2 qid:10 1:0.5 2:7'")
        x, labels, documents = self.features.finish(), torch.from_numpy(self.labels.filled), self._documents()
        return joined(str(path), query, x, labels, ids, documents, **given)

    def _from_rows(self) -> tuple[np.ndarray, list[bytes]]:
        self.lost = len(self.dropped - self.numbers.keys())
        return self.query.filled, list(self.numbers)

    def _from_side_file(self, path: Path, lengths: list[int]) -> tuple[np.ndarray, list[bytes]]:
        if sum(lengths) != self.judged.size:
            raise DataError(
                f"{path}: the file has {self.judged.size} rows, but the {len(lengths)} list lengths of the side file "
                f"sum to {sum(lengths)}"
            )
        query = np.repeat(np.arange(len(lengths)), lengths)
        if self.form.unjudged == "drop":
            query = query[self.judged.filled]
        places, query = np.unique(query, return_inverse=True)  # a list may have lost all its rows
        self.lost = len(lengths) - len(places)
        return query, [b"%d" % (place + 1) for place in places]

    def _documents(self) -> list[bytes] | None:
        """None when no row has a comment with something in it."""
        if not any(any(block) for block in self.documents if isinstance(block, list)):
            return None
        return [d for block in self.documents for d in ([b""] * block if isinstance(block, int) else block)]

    def _warn(self, path: Path) -> None:
        unjudged = self.judged.size - int(self.judged.filled.sum())
        tell_changes(str(path), self.form, self.judged.size, unjudged, self.lost, self.filled, self.clipped)


def joined(
    where: str,
    query: np.ndarray,
    x: Tensor | SparseRows,
    labels: Tensor,
    ids: list[bytes],
    documents: list[bytes] | None,
    *,
    feature_names: Sequence[str] | None = None,
    weights: np.ndarray | None = None,
    positions: np.ndarray | None = None,
) -> RankingSet:
    """A set with one list per query; rows of a query that are not contiguous are joined, with a warning.

    Args:
        where: the file.
        query: (n,) the number of the query of each row, by first appearance.
        x: (n, D) features, which may be reordered in place.
        labels: (n,).
        ids: (Q,) the ids of the queries.
        documents: (n,) the ids of the documents.
        feature_names: (D,) names of the features.
        weights: (n,) of the rows.
        positions: (n,) of the rows.
    """
    if (query[1:] < query[:-1]).any():
        order = np.argsort(query, kind="stable")
        split = len(np.unique(query[1:][(np.diff(query) != 0) & seen_before(query)[1:]]))
        _tell(
            f"{where}: the rows of {split} of {len(ids)} queries are not contiguous; they were joined into one list "
            "per query"
        )
        query, x, labels = query[order], reorder(x, order), labels[torch.from_numpy(order)]
        documents = documents and [documents[i] for i in order]
        weights, positions = (each if each is None else each[order] for each in (weights, positions))
    return RankingSet(
        x,
        Explicit(labels, torch.from_numpy(np.concatenate(([0], np.cumsum(np.bincount(query, minlength=len(ids))))))),
        query_ids=Strings.join(ids),
        document_ids=Strings.join(documents) if documents else None,
        name=Path(where).name,
        feature_names=feature_names,
        weights=weights,
        positions=positions,
    )


def tell_changes(where: str, form: Form, rows: int, unjudged: int, lost: int, filled: int, clipped: int) -> None:
    """Warn of everything that was changed in the rows of a file."""
    if unjudged and form.unjudged == "drop":
        also = f"; {lost} queries lost all their rows" if lost else ""
        _tell(f"{where}: {unjudged} of {rows} rows have label -1 and were dropped (unjudged=drop){also}")
    elif unjudged:
        _tell(f"{where}: {unjudged} of {rows} rows have label -1 and got label {form.unjudged}")
    if filled:
        _tell(f"{where}: {filled} NULL values were replaced by {form.missing} (missing)")
    if clipped:
        became = f"clipped to {LARGEST:.7g}" if form.sentinel == "clip" else f"replaced by {form.sentinel}"
        _tell(f"{where}: {clipped} values beyond float32 were {became} (sentinel={form.sentinel})")


def _tell(message: str) -> None:
    warnings.warn(message, DataWarning, stacklevel=5)


def settle_unjudged(rows: Rows, judged: np.ndarray, form: Form) -> Rows:
    """The rows without those of a negative label, or with another label for them."""
    if judged.all():
        return rows
    if form.unjudged != "drop":
        return rows._replace(labels=np.where(judged, rows.labels, np.float32(form.unjudged)))
    places, tokens = np.flatnonzero(judged), np.repeat(judged, rows.counts)
    return rows._replace(
        labels=rows.labels[judged],
        queries=rows.queries and [rows.queries[i] for i in places],
        documents=rows.documents and [rows.documents[i] for i in places],
        counts=rows.counts[judged],
        columns=rows.columns[tokens],
        values=rows.values[tokens],
    )

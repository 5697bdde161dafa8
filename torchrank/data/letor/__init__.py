"""Reads LETOR / svmlight files: MSLR-WEB, LETOR 3 and 4, Yahoo! LTRC, Istella, Yandex, libsvm with a side file.

One row is one document: `label qid:ID index:value ... # comment`. The grammar, so that nobody has to guess:
tokens are separated by white space, a comment runs from '#' to the line's end, blank lines do not count; numbers are
decimal (`-1.5e3`, `.5`, `1.`; no `nan`, `inf`, `0x1`, `1_000`), indices are whole numbers from 1 in any order, each at
most once in a row, and one that is absent is 0. A value becomes float32 as `numpy.float32(float(token))` would make it.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from torchrank.data.letor.fast import parse
from torchrank.data.letor.files import Block, line_with, read_blocks, read_lengths, side_file
from torchrank.data.letor.form import LARGEST, Form, Rows
from torchrank.data.letor.store import FeatureStore, Growing, reorder
from torchrank.data.sets import RankingSet
from torchrank.data.strings import Strings

THREADS = 2  # one cuts lines while the engine, which has threads of its own, parses another block
CHOICES = {
    "qid": ("token", "comment", "file"),
    "unjudged": ("error", "drop", "a number"),
    "missing": ("error", "a number"),
    "sentinel": ("error", "clip", "a number"),
}


class DataWarning(UserWarning):
    """Something in the data was changed, with the number of places."""


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
    """The lists of a file, plain, gzip or zstd, in the order in which their queries first appear.

    qid: where the query id stands: the `qid:` token, the comment (Yandex) or a side `file` of list lengths
        (`query_file`, or the path with .query or .group added; queries are then numbered from 1).
    num_features: a larger index is an error; without it the largest index counts.
    sparse: `SparseRows` (True), a dense array (False), or by the share of present features: below 25% is sparse.
    unjudged: what becomes of documents with label -1: "drop" them or give them a label, e.g. 0.
    missing: the number that stands for `NULL`.
    sentinel: the number that stands for values beyond float32 (Istella's 1.797e308 means "none"), e.g. 0; "clip" clips
        them to float32's largest number, 3.4e38.

    Comments become document ids, of `docid = X inc = 1` only X. What is changed is counted in a `DataWarning`; what is
    wrong raises ValueError with file, line and token.

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
    _check(form, query_file)
    lengths = read_lengths(side_file(path, query_file)) if qid == "file" else None
    gathered = _Gathered(form, sparse)
    try:
        for rows, share in _parsed(path, form):
            gathered.add(rows, share)
        return gathered.finish(path, lengths)
    except MemoryError as error:
        if sparse:
            raise
        raise ValueError(_too_large(path, form, gathered.features)) from error


def _check(form: Form, query_file: str | Path | None) -> None:
    for name, choices in CHOICES.items():
        value = vars(form)[name]
        number = "a number" in choices and not isinstance(value, str) and abs(value) <= LARGEST
        if not number and (value not in choices or value == "a number"):
            raise ValueError(f"{name}={value!r}: expected {' or '.join(choices)}")
    if form.unjudged == -1:
        raise ValueError(f"unjudged={form.unjudged}: expected drop or another label than -1, which means unjudged")
    if form.num_features is not None and form.num_features < 1:
        raise ValueError(f"num_features={form.num_features}: expected a number from 1, or None for the largest index")
    if query_file is not None and form.qid != "file":
        raise ValueError(f"query_file={str(query_file)!r} is only read with qid='file', but qid={form.qid!r}")


def _too_large(path: Path, form: Form, features: FeatureStore) -> str:
    width, size = features.num_features, features.dense_size / 2**30
    if form.num_features is None:
        asking = f"{path}, line {line_with(path, width)}: index {width}"
    else:
        asking = f"{path}: num_features={width}"
    return (
        f"{asking} asks for a dense array of {width} features by at least {features.num_rows} rows, {size:.1f} GiB, "
        "which this machine cannot hold. Expected smaller indices, or set sparse=True (data.sparse=true)"
    )


def _parsed(path: Path, form: Form) -> Iterator[tuple[Rows, float]]:
    """Blocks of rows in order, and the share of the file up to their end; two blocks are parsed at a time."""
    total = path.stat().st_size

    def work(block: Block) -> tuple[Rows, int]:
        return parse(block.text, form, str(path), block.first_line), block.place

    def result(rows: Rows, place: int) -> tuple[Rows, float]:
        progress.update(place - progress.n)
        return rows, place / max(total, 1)

    with (
        ThreadPoolExecutor(THREADS) as pool,
        tqdm(total=total, desc=f"read {path.name}", unit="B", unit_scale=True, delay=2) as progress,
    ):
        waiting: deque = deque()
        for block in read_blocks(path):
            waiting.append(pool.submit(work, block))
            if len(waiting) > THREADS:
                yield result(*waiting.popleft().result())
        while waiting:
            yield result(*waiting.popleft().result())


class _Gathered:
    """The rows of all blocks so far, and the counts of what was changed in them."""

    def __init__(self, form: Form, sparse: bool | None):
        self.form = form
        self.features = FeatureStore(form.num_features, sparse)
        self.labels, self.query, self.judged = Growing(np.float32), Growing(np.int64), Growing(np.bool_)
        self.numbers: dict[bytes, int] = {}  # query id -> place of its first appearance
        self.documents: list[list[bytes] | int] = []  # ids of a block, or how many rows had none
        self.dropped: set[bytes] = set()  # query ids of rows that were
        self.filled = self.clipped = self.lost = 0  # values, values, queries

    def add(self, rows: Rows, share: float) -> None:
        judged = rows.labels != -1
        self.judged.append(judged, share)
        self.filled, self.clipped = self.filled + rows.filled, self.clipped + rows.clipped
        if not judged.all() and self.form.unjudged == "drop":
            self.dropped.update(compress(rows.queries or [], ~judged))
            rows = _drop(rows, judged)
        elif not judged.all():
            rows = rows._replace(labels=np.where(judged, rows.labels, np.float32(self.form.unjudged)))
        self.labels.append(rows.labels, share)
        self.documents.append(len(rows.labels) if rows.documents is None else rows.documents)
        if rows.queries is not None:
            numbers = self.numbers
            self.query.append(np.array([numbers.setdefault(q, len(numbers)) for q in rows.queries], np.int64), share)
        self.features.add(rows, share)

    def finish(self, path: Path, lengths: list[int] | None) -> RankingSet:
        if not self.judged.size:
            raise ValueError(f"{path}: no rows in this file: expected lines like '2 qid:10 1:0.5 2:7'")
        query, ids = self._from_rows() if lengths is None else self._from_side_file(path, lengths)
        self._warn(path)
        if not len(query):
            raise ValueError(f"{path}: all {self.judged.size} rows have label -1, so unjudged=drop leaves none")
        if not self.features.num_features:
            raise ValueError(f"{path}: no feature in {len(query)} rows: expected rows like '2 qid:10 1:0.5 2:7'")
        x, labels, documents = self.features.finish(), torch.from_numpy(self.labels.filled), self._documents()
        if (query[1:] < query[:-1]).any():
            order = np.argsort(query, kind="stable")
            split = len(np.unique(query[1:][(np.diff(query) != 0) & _seen_before(query)[1:]]))
            _tell(
                f"{path}: the rows of {split} of {len(ids)} queries are not contiguous; each was rejoined into one list"
            )
            query, x, labels = query[order], reorder(x, order), labels[torch.from_numpy(order)]
            documents = documents and [documents[i] for i in order]
        offsets = np.concatenate(([0], np.cumsum(np.bincount(query, minlength=len(ids)))))
        return RankingSet(
            x,
            labels,
            torch.from_numpy(offsets),
            query_ids=Strings.join(ids),
            document_ids=Strings.join(documents) if documents else None,
            name=path.name,
        )

    def _from_rows(self) -> tuple[np.ndarray, list[bytes]]:
        self.lost = len(self.dropped - self.numbers.keys())
        return self.query.filled, list(self.numbers)

    def _from_side_file(self, path: Path, lengths: list[int]) -> tuple[np.ndarray, list[bytes]]:
        if sum(lengths) != self.judged.size:
            raise ValueError(
                f"{path}: {self.judged.size} rows, but the {len(lengths)} list lengths of the side file sum to "
                f"{sum(lengths)}: expected the same number"
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
        if unjudged and self.form.unjudged == "drop":
            lost = f", {self.lost} queries lost all their rows" if self.lost else ""
            _tell(f"{path}: {unjudged} of {self.judged.size} rows have label -1 and were dropped (unjudged=drop){lost}")
        elif unjudged:
            _tell(f"{path}: {unjudged} of {self.judged.size} rows have label -1 and got label {self.form.unjudged}")
        if self.filled:
            _tell(f"{path}: {self.filled} values NULL were filled with {self.form.missing}")
        if self.clipped:
            sentinel = self.form.sentinel
            became = f"clipped to {LARGEST:.7g}" if sentinel == "clip" else f"replaced by {sentinel}"
            _tell(f"{path}: {self.clipped} values beyond float32 were {became} (sentinel={sentinel})")


def _tell(message: str) -> None:
    warnings.warn(message, DataWarning, stacklevel=4)


def _seen_before(query: np.ndarray) -> np.ndarray:
    """Whether an earlier row has the same query (N,)."""
    seen = np.ones(len(query), dtype=bool)
    seen[np.unique(query, return_index=True)[1]] = False
    return seen


def _drop(rows: Rows, judged: np.ndarray) -> Rows:
    tokens = np.repeat(judged, rows.counts)
    places = np.flatnonzero(judged)
    return rows._replace(
        labels=rows.labels[judged],
        queries=rows.queries and [rows.queries[i] for i in places],
        documents=rows.documents and [rows.documents[i] for i in places],
        counts=rows.counts[judged],
        columns=rows.columns[tokens],
        values=rows.values[tokens],
    )

"""Reads the published files of RCV1-v2: documents as stemmed words or as weighted vectors, and who has which topic.

A token file holds `.I 2286`, `.W`, then lines of words, for each document. A vector file holds one document per line:
`2286  864:0.0497 1523:0.044 ...`, word numbers from 1. A topic file holds lines `E11 2286 1`. All may be compressed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from torchrank.data.letor.fast import parse
from torchrank.data.letor.files import read_blocks
from torchrank.data.letor.form import Form, show
from torchrank.data.letor.store import FeatureStore
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.strings import Strings

LARGEST_ID = 2**24  # a document number is read as a float32, which holds smaller whole numbers exactly


def read_tokens(path: str | Path, *, vocabulary: str, min_count: int = 2) -> RankingSet:
    """One list of all documents of a token file, in the order of the file, as counts of words; ids are their numbers.

    The columns are the words that occur `min_count` times or more in the file `vocabulary` beside it, in alphabetical
    order: the training file is read once more for every other one, so that each can be cached by itself.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "train.dat"
    >>> _ = path.write_text(".I 7\\n.W\\noil price oil\\n\\n.I 9\\n.W\\nprice\\n")
    >>> lists = read_tokens(path, vocabulary="train.dat")
    >>> lists.x.dense(), list(lists.document_ids)
    (tensor([[2., 1.],
            [0., 1.]]), ['7', '9'])
    """
    path = Path(path)
    places = _vocabulary(path.with_name(vocabulary), min_count)
    counts, columns, ends, ids = array("f"), array("i"), array("q", [0]), array("q")
    for document, words in read_documents(path):
        found = sorted(Counter(places[word] for word in words if word in places).items())
        columns.extend(column for column, _ in found)
        counts.extend(count for _, count in found)
        ends.append(len(columns))
        ids.append(document)
    values, entries, offsets = (torch.from_numpy(np.array(part)) for part in (counts, columns, ends))
    x = SparseRows(values, entries, offsets, len(places))
    return _one_list(x, np.array(ids), path)


def _vocabulary(path: Path, min_count: int) -> dict[bytes, int]:
    counts: Counter[bytes] = Counter()
    for _, words in read_documents(path):
        counts.update(words)
    words = sorted(word for word, count in counts.items() if count >= min_count)
    if not words:
        raise ValueError(f"{path}: none of {len(counts)} words occurs {min_count} times: lower data.min_count")
    return {word: place for place, word in enumerate(words)}


def read_documents(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Number and words of each document of a token file; what is out of place is refused with its line."""
    lines: dict[int, int] = {}  # where each document starts
    document = -1
    words: list[bytes] | None = None
    for number, line in _lines(path):
        if line.startswith(b".I"):
            if document >= 0:
                yield document, _written(words, document, f"{path}, line {number}")
            words, document = None, _number(line[2:].strip(), f"{path}, line {number}")
            if document in lines:
                raise ValueError(f"{path}, line {number}: document {document} stands in line {lines[document]} already")
            lines[document] = number
        elif line == b".W" and document >= 0 and words is None:
            words = []
        elif line and words is not None and line != b".W":
            words += line.split()
        elif line:
            raise ValueError(f"{path}, line {number}: {show(line)} before '.I <number>' and one '.W': fetch it again")
    if document < 0:
        raise ValueError(f"{path}: no document in this file: expected lines '.I <number>', '.W' and words")
    yield document, _written(words, document, f"{path}, at its end")


def _written(words: list[bytes] | None, document: int, where: str) -> list[bytes]:
    if words is None:
        raise ValueError(f"{where}: document {document} has no line '.W': the file is cut off, fetch it again")
    return words


def read_vectors(path: str | Path, *, num_features: int) -> RankingSet:
    """One list of all documents of a vector file, in the order of the file; column j is word number j + 1."""
    path = Path(path)
    features, ids, form = FeatureStore(num_features, sparse=True), [], Form("file", num_features)
    total = path.stat().st_size
    with tqdm(total=total, desc=f"read {path.name}", unit="B", unit_scale=True, delay=2) as progress:
        for block in read_blocks(path):
            rows = parse(block.text, form, str(path), block.first_line)
            features.add(rows, block.place / total)
            ids.append(rows.labels.astype(np.int64))
            wrong = np.flatnonzero((rows.labels != ids[-1]) | (ids[-1] < 0) | (ids[-1] >= LARGEST_ID))
            if len(wrong):
                line = [n for n, text in enumerate(block.text.split(b"\n"), block.first_line) if text.strip()][wrong[0]]
                raise ValueError(f"{path}, line {line}: {rows.labels[wrong[0]]:g} is no document number, expected one")
            progress.update(block.place - progress.n)
    if not features.num_rows:
        raise ValueError(f"{path}: no document in this file: expected lines like '2286  864:0.0497 1523:0.044'")
    documents = np.concatenate(ids)
    again = np.ones(len(documents), dtype=bool)
    again[np.unique(documents, return_index=True)[1]] = False
    if again.any():
        document = int(documents[again][0])
        places = [n for n, line in _lines(path) if line.split(None, 1)[:1] == [b"%d" % document]]
        raise ValueError(f"{path}, line {places[1]}: document {document} stands in line {places[0]} already")
    x: SparseRows = features.finish()  # type: ignore[assignment]
    return _one_list(x, documents, path)


def _one_list(x: SparseRows, documents: np.ndarray, path: Path) -> RankingSet:
    ids = Strings.join(b"%d" % number for number in documents.tolist())
    return RankingSet(x, torch.zeros(len(x)), torch.tensor([0, len(x)]), document_ids=ids, name=path.name)


class Topics(NamedTuple):
    """Who has which topic, as pairs."""

    names: list[str]
    topic: np.ndarray  # (J,) place in `names`
    document: np.ndarray  # (J,) number


def read_topics(path: Path) -> Topics:
    """The pairs of a topic file; a pair with 0 instead of 1 does not count."""
    names: dict[bytes, int] = {}
    topic, document = array("q"), array("q")
    for number, line in _lines(path):
        cells = line.split()
        if cells and (len(cells) != 3 or cells[2] not in (b"0", b"1")):
            raise ValueError(
                f"{path}, line {number}: {show(line)}: expected a topic, a document and 1, as 'E11 2286 1'"
            )
        if cells:
            place, found = names.setdefault(cells[0], len(names)), _number(cells[1], f"{path}, line {number}")
            if cells[2] == b"1":
                topic.append(place)
                document.append(found)
    return Topics([name.decode(errors="backslashreplace") for name in names], np.array(topic), np.array(document))


def _number(token: bytes, where: str) -> int:
    if not token.isdigit() or len(token) > 9 or int(token) >= LARGEST_ID:
        raise ValueError(f"{where}: document {show(token)}: expected a whole number below {LARGEST_ID}")
    return int(token)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and text of each line, with a progress bar if it takes longer than two seconds."""
    with tqdm(total=path.stat().st_size, desc=f"read {path.name}", unit="B", unit_scale=True, delay=2) as progress:
        for block in read_blocks(path):
            for number, line in enumerate(block.text.split(b"\n"), block.first_line):
                yield number, line.strip()
            progress.update(block.place - progress.n)

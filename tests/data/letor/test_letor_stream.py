"""Pieces of a LETOR file, joined, are what `read_letor` returns: rows, labels, lists, ids, warnings and errors."""

import gzip
import io
import os
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from torchrank.data import letor
from torchrank.data.letor import read_letor
from torchrank.data.letor.files import read_blocks
from torchrank.data.letor.stream import stream_letor
from torchrank.errors import DataError

DATA = os.environ.get("TORCHRANK_DATA")


def rows_of(pieces):
    """Rows, labels, query id of each row, ids of queries and documents of all pieces."""
    x, labels, lists, queries, documents = [], [], [], [], []
    for piece in pieces:
        x += (piece.x.dense() if piece.is_sparse else piece.x).tolist()
        labels += piece.labels.tolist()
        lists += piece.lengths.tolist()
        queries += list(piece.query_ids)
        documents += [""] * len(piece.labels) if piece.document_ids is None else list(piece.document_ids)
    return x, labels, lists, queries, documents


def caught(call):
    """What a call returns, or the text of its error; and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = call()
        except DataError as error:
            found = str(error)
    return found, [str(each.message) for each in told]


def random_text(generator, kind):
    """Rows with blank lines, comments, -1, NULL, huge values, absent features and lists of 1 to 7 rows."""
    lines = ["# a header", ""]
    for query in range(generator.integers(1, 9)):
        for row in range(generator.integers(1, 8)):
            present = np.flatnonzero(generator.random(6) < generator.choice([0.1, 0.6, 1.0])) + 1
            values = generator.choice(["0", "1.5", "-2e-3", "NULL", "1.797e308", "7"], len(present))
            features = " ".join(f"{index}:{value}" for index, value in zip(present, values, strict=True))
            comment = (
                f" # q{query}" if kind == "comment" else generator.choice(["", f" # d{row}", f" #docid = G{row} inc"])
            )
            qid = f"qid:q{query} " if kind == "token" else ""
            lines += [f"{generator.choice([-1, 0, 2, 3.5])} {qid}{features}{comment}", *[""] * generator.integers(0, 2)]
    return "\n".join(lines) + generator.choice(["", "\n", "\r\n"])


@pytest.mark.parametrize("kind", ["token", "comment", "file"])
@pytest.mark.parametrize("seed", range(12))
def test_pieces_are_the_rows_of_read_letor(tmp_path, monkeypatch, kind, seed):
    generator = np.random.default_rng([seed, len(kind)])
    text, path = random_text(generator, kind), tmp_path / "data.txt"
    path.write_bytes(gzip.compress(text.encode()) if seed % 3 == 0 else text.encode())
    rows = sum(bool(line.partition("#")[0].strip()) for line in text.splitlines())
    lengths = [*([2] * (rows // 2)), *([1] * (rows % 2))] + [1] * (seed == 11)  # a wrong side file too
    (tmp_path / "data.txt.query").write_text("\n".join(map(str, lengths)))
    options = {"qid": kind, "missing": 0.5, "sentinel": ["clip", 3.0][seed % 2], "unjudged": ["drop", 0][seed // 2 % 2]}
    options |= {"num_features": 6, "sparse": [None, False, True][seed % 3]}
    expected = caught(lambda: rows_of([read_letor(path, **options)]))
    for size in (1, 7, 50, 1 << 20):
        monkeypatch.setattr(letor, "read_blocks", partial(read_blocks, size=size))
        assert caught(lambda: rows_of(stream_letor(path, **options))) == expected
    assert isinstance(expected[0], tuple) or expected[1] or kind == "file"


@pytest.mark.parametrize(
    "text", ["", "\n \n# nothing\n", "-1 qid:a 1:1\n", "1 qid:a 7:1\n", "1 qid:a 1:x\n", "1 1:1\n"]
)
def test_errors_are_those_of_read_letor(tmp_path, text):
    path = tmp_path / "data.txt"
    path.write_text(text)
    for unjudged in ("error", "drop"):
        options = {"num_features": 6, "unjudged": unjudged}
        expected = caught(partial(read_letor, path, **options))
        assert caught(lambda given=options: list(stream_letor(path, **given))) == expected
        assert isinstance(expected[0], str)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_stream_is_read_to_its_end_and_stays_open(compress):
    text = b"1 qid:a 1:1\n0 qid:a 2:1\n1 qid:b 2:5\n"
    reading, writing = os.pipe()  # small enough for the buffer of a pipe
    with os.fdopen(writing, "wb") as file:
        file.write(compress(text))
    for stream in (io.BytesIO(compress(text)), os.fdopen(reading, "rb")):
        assert rows_of(stream_letor(stream, num_features=2))[:3] == ([[1, 0], [0, 1], [0, 5]], [1, 0, 1], [2, 1])
        assert not stream.closed
        stream.close()


def test_a_query_that_comes_back_is_refused(monkeypatch):
    text = b"1 qid:a 1:1\n0 qid:b 2:1\n1 qid:a 2:5\n"
    for size in (1, 20, 1000):
        monkeypatch.setattr(letor, "read_blocks", partial(read_blocks, size=size))
        with pytest.raises(DataError, match="stdin: the rows of query 'a' are not contiguous: sort the file"):
            list(stream_letor(io.BytesIO(text), num_features=2))


def test_a_side_file_needs_a_path():
    with pytest.raises(ValueError, match="stdin has none"):
        list(stream_letor(io.BytesIO(b"1 1:1\n"), num_features=1, qid="file"))


@pytest.mark.skipif(not DATA, reason="TORCHRANK_DATA is not set")
@pytest.mark.parametrize("size", [1000, 1 << 16])
def test_real_files(monkeypatch, size):
    files = {
        "MQ2008/Fold1/vali.txt": {"num_features": 46},
        "lightgbm-lambdarank/rank.test": {"num_features": 300, "qid": "file"},
    }
    for name, options in files.items():
        expected = rows_of([read_letor(Path(DATA, name), **options)])
        monkeypatch.setattr(letor, "read_blocks", partial(read_blocks, size=size))
        assert rows_of(stream_letor(Path(DATA, name), **options)) == expected
        monkeypatch.setattr(letor, "read_blocks", read_blocks)

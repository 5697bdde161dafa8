"""Formats of ranking data, and the conversion of one into another.

Text and tables are read and written piece by piece: LETOR files in the memory of a piece, tables with what polars reads
ahead. npz files and caches hold whole sets. Numbers keep their value: text is the shortest that is read back exactly,
and binary files hold float32 if that holds every digit of the source, float64 otherwise.
"""

from __future__ import annotations

import gzip
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from torchrank.data.cache import open_folder, save_folder
from torchrank.data.formats.arrays import gather, read_npz, set_source, write_npz
from torchrank.data.formats.frames import check_names, csv_text, table_source, write_frames
from torchrank.data.formats.pieces import Piece, Source
from torchrank.data.formats.text import letor_source, letor_text, list_lengths, qrels_text, with_sides
from torchrank.data.letor.form import Form
from torchrank.data.sources.names import read_names
from torchrank.errors import DataWarning, check_choice
from torchrank.files import write_atomically

SUFFIXES = {
    "letor": (".txt", ".letor", ".svm", ".svmlight", ".libsvm", ".dat"),
    "lightgbm": (),  # a LETOR file without qid:, known by FILE.query or FILE.group beside it
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "npz": (".npz",),
    "cache": (".torchrank",),
    "qrels": (".qrels",),
}
TABLES, TEXT, BINARY = ("csv", "parquet", "arrow"), ("letor", "csv", "qrels"), ("parquet", "arrow", "npz", "cache")
COMPRESSED = (".gz", ".zst")


class Columns(NamedTuple):
    """The columns of a table that is read."""

    label: str = "label"
    query: str = "query"
    document: str | None = None
    features: Sequence[str] | None = None
    weight: str | None = None
    position: str | None = None


DEFAULT = Columns()


class Converted(NamedTuple):
    """What was written."""

    source: str  # format
    target: str
    queries: int
    documents: int
    features: int
    dtype: str


def format_of(path: str, *, reading: bool) -> str:
    """The format that the name of a file tells.

    Example:
        >>> format_of("train.txt.gz", reading=True), format_of("out.parquet", reading=False)
        ('letor', 'parquet')
    """
    name = path.lower().rstrip("/")
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    if reading and any(Path(path + side).is_file() for side in (".query", ".group")):
        return "lightgbm"
    if reading and Path(path).is_dir():
        return "cache"
    found = next((kind for kind, suffixes in SUFFIXES.items() if name.endswith(suffixes)), None)
    if found is None:
        option = "--from" if reading else "--to"
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        what = "stdin" if path == "-" and reading else "stdout" if path == "-" else path
        names = ", ".join(SUFFIXES)
        raise ValueError(f"{what}: the format is not known by its name ({known}): set {option} to one of {names}")
    return found


def open_source(
    path: Path,
    kind: str,
    columns: Columns = DEFAULT,
    *,
    qid: str = "token",
    query_file: str | None = None,
    missing: str | float = "error",
    num_features: int | None = None,
    digits: bool = False,
) -> Source:
    """A file of a format, with the layout of its rows.

    Args:
        path: the file.
        kind: its format, a key of `SUFFIXES`.
        columns: the columns of a table.
        qid: where a LETOR file has its query ids, as in `read_letor`.
        query_file: the side file of LightGBM files.
        missing: the value of NULL and of empty cells; an error by default.
        num_features: the number of features of a LETOR file; by default its largest index.
        digits: whether to look if float32 holds every digit of a text; otherwise its numbers are float64.
    """
    check_choice(SUFFIXES, format=kind)
    if kind == "qrels":
        raise ValueError(f"{path}: TREC qrels hold no features, so they can only be written; see torchrank evaluate")
    if not path.exists():
        raise FileNotFoundError(f"not found: {path}")
    if kind in ("letor", "lightgbm"):
        check_choice(("token", "comment", "file"), qid=qid)
        form = Form("file" if kind == "lightgbm" else qid, num_features, -1.0, missing, whole=True)
        return letor_source(path, form, query_file, digits=digits)
    if kind in TABLES:
        filled = None if isinstance(missing, str) else missing
        return table_source(path, **columns._asdict(), missing=filled, digits=digits)
    return set_source(read_npz(path) if kind == "npz" else open_folder(path))


def convert(
    path: Path,
    out: str,
    source: str,
    target: str,
    *,
    columns: Columns = DEFAULT,
    qid: str = "token",
    query_file: str | None = None,
    missing: str | float = "error",
    num_features: int | None = None,
    feature_names: str | None = None,
    dtype: str = "auto",
) -> Converted:
    """Convert a file into another format; the target is written whole or not at all.

    Args:
        path: the file to read.
        out: the file to write, or - for stdout.
        source: the format of the first, a key of `SUFFIXES`.
        target: the format of the second.
        columns: the columns of a table that is read.
        qid: where a LETOR file has its query ids, as in `read_letor`.
        query_file: the side file of LightGBM files.
        missing: the value of NULL and of empty cells; an error by default.
        num_features: the number of features of a LETOR file; by default its largest index.
        feature_names: a file with one name per line.
        dtype: float32, float64, or auto: float32 if it holds every digit.

    Returns:
        What was written.
    """
    check_choice(SUFFIXES, target=target)
    check_choice(("auto", "float32", "float64"), dtype=dtype)
    reader: dict[str, Any] = {"qid": qid, "query_file": query_file, "missing": missing, "num_features": num_features}
    opened = open_source(path, source, columns, **reader, digits=dtype == "auto" and target in BINARY)
    layout = opened.layout
    if dtype != "auto":
        layout = layout._replace(dtype=np.dtype(dtype))
    if feature_names is not None:
        layout = layout._replace(features=read_names(feature_names, None, layout.width), named=True)
    counts = _Counts()
    _write(out, target, Source(layout, lambda: counts.count(opened.read())), str(path))
    return Converted(source, target, len(counts.queries), counts.documents, layout.width, str(layout.dtype))


class _Counts:
    """Counts the rows and queries that go by."""

    def __init__(self) -> None:
        self.documents, self.queries = 0, set[str]()

    def count(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            self.documents += len(piece.labels)
            self.queries.update(piece.queries.unique())
            yield piece


def _write(out: str, target: str, source: Source, where: str) -> None:
    layout = source.layout
    if target in TABLES:
        check_names(layout)
    sides: dict[str, list[bytes]] = {}
    if target == "letor":
        _write_text(out, letor_text(with_sides(source.read(), layout, sides), layout))
        _write_sides(out, sides)
    elif target == "qrels":
        _write_text(out, qrels_text(source.read()))
    elif target == "csv":
        _write_text(out, csv_text(source.read(), layout, "\t" if ".tsv" in out.lower() else ","))
    elif out == "-":
        raise ValueError(f"{target} cannot be written to stdout: choose one of {', '.join(TEXT)}, or name a file")
    elif target == "lightgbm":
        lengths: list[int] = []
        pieces = with_sides(list_lengths(source.read(), lengths), layout, sides)
        _write_text(out, letor_text(pieces, layout, queries=False))
        _write_sides(out, sides)
        write_atomically(Path(f"{out}.query"), lambda file: file.writelines(b"%d\n" % length for length in lengths))
    elif target in ("parquet", "arrow"):
        write_atomically(Path(out), lambda file: write_frames(file, source.read(), layout, target))
    else:
        lists = gather(where, source.read(), layout)
        lists.name = Path(out).name
        if target == "npz":
            write_atomically(Path(out), lambda file: write_npz(file, lists))
        else:
            save_folder(Path(out), lists)


def _write_sides(out: str, sides: dict[str, list[bytes]]) -> None:
    """The weights and positions of a LETOR file, in files beside it as LightGBM has them."""
    if out == "-" and sides:
        kinds = " and ".join(f"{ending[1:]}s" for ending in sides)
        warnings.warn(f"{kinds} go to files beside a LETOR file, which stdout cannot have", DataWarning, stacklevel=4)
    for ending in () if out == "-" else (".weight", ".position"):
        if ending in sides:
            write_atomically(Path(f"{out}{ending}"), partial(_write_lines, sides[ending]))
        else:
            Path(f"{out}{ending}").unlink(missing_ok=True)  # that of an older file would be read with this one


def _write_lines(lines: list[bytes], file: IO[bytes]) -> None:
    file.writelines(lines)


def _write_text(out: str, texts: Iterator[bytes]) -> None:
    if out == "-":
        for text in texts:
            sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return
    write_atomically(Path(out), lambda file: _compressed(out, file)(texts))


def _compressed(out: str, file: IO[bytes]) -> Callable[[Iterable[bytes]], Any]:
    """A function that writes texts to a file, compressed as the name of the file tells."""

    def through(stream: Any) -> Callable[[Iterable[bytes]], None]:
        def write(texts: Iterable[bytes]) -> None:
            with stream:
                for text in texts:
                    stream.write(text)

        return write

    if out.lower().endswith(".gz"):
        return through(gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename=""))
    if out.lower().endswith(".zst"):
        try:
            import zstandard
        except ImportError as error:
            raise ImportError("writing .zst files needs zstandard: pip install 'torchrank-ltr[zstd]'") from error
        return through(zstandard.ZstdCompressor().stream_writer(file, closefd=False))
    return file.writelines

"""Tables in csv, parquet and Arrow files through polars: their columns, and their rows in batches."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from torchrank.data.letor.files import check_compressed, read_blocks, read_lines
from torchrank.data.sources.limits import check_expansion
from torchrank.errors import DataError

DOCUMENT, COMMENT = "document", "comment"  # columns of these names are not features by default
DAMAGED = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, OverflowError, MemoryError)  # of polars
SAMPLE = 1000  # the first rows of a csv file tell columns of numbers from columns of text
BATCH = 2**21  # cells of a batch
WIDEST = 2**18  # columns: each takes polars some kilobytes, whatever the number of rows
ZLIB = "x\x01"  # polars would expand it; the other beginnings of zlib are not UTF-8
MAGIC = {b"PAR1": "parquet", b"ARRO": "arrow", b"\xff\xff\xff\xff": "stream"}


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and what they mean."""

    label: str
    query: str
    document: str | None
    comment: str | None
    features: tuple[str, ...]
    ignored: tuple[str, ...]  # columns without numbers, where the features were not named
    types: tuple[pl.DataType, ...]  # of the features; text in a csv file
    weight: str | None = None
    position: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(name for name in (self.query, self.document, self.comment) if name is not None)

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(name for name in (self.label, self.weight, self.position) if name is not None)


def find_columns(
    path: Path,
    *,
    label: str = "label",
    query: str = "query",
    document: str | None = None,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    position: str | None = None,
) -> Columns:
    """The columns of a table; `features` are by default all other columns of numbers.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.csv")
        >>> _ = path.write_text("query,label,bm25,url\\n7,1,0.5,http://a.b\\n")
        >>> columns = find_columns(path)
        >>> columns.features, columns.ignored, columns.document
        (('bm25',), ('url',), None)
    """
    schema = _schema(path)
    document = DOCUMENT if document is None and DOCUMENT in schema and DOCUMENT not in (label, query) else document
    named = [
        ("label", label),
        ("query", query),
        ("document", document),
        ("weight", weight),
        ("position", position),
        *(("features", each) for each in features or ()),
    ]
    if len(schema) == 1 and "qid:" in next(iter(schema)):
        raise DataError(f"{path}: these are rows of a LETOR file, not of a table: use data=files (read_letor)")
    for option, name in named:
        if name is not None and name not in schema:
            raise DataError(f"{path}: no column {name!r} (data.{option}); the columns are {_some(list(schema))}")
    names = [name for _, name in named if name is not None]
    if (twice := _repeated(names)) is not None:
        raise DataError(
            f"{path}: the column {twice!r} is named twice among label, query, document, weight, position and features"
        )
    comment = COMMENT if COMMENT in schema and COMMENT not in names and schema[COMMENT] == pl.String else None
    rest = [name for name in schema if name not in (label, query, document, comment, weight, position)]
    chosen = dict.fromkeys(features if features is not None else (name for name in rest if _numeric(schema[name])))
    if not chosen:
        raise DataError(f"{path}: no column of features, beside {label!r} and {query!r} expected columns of numbers")
    ignored = () if features is not None else tuple(name for name in rest if name not in chosen)
    types = tuple(schema[name] for name in chosen)
    return Columns(label, query, document, comment, tuple(chosen), ignored, types, weight, position)


def _some(names: Sequence[str]) -> str:
    """The first names, for messages."""
    return ", ".join(map(repr, names[:20])) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")


def _repeated(names: Sequence[str]) -> str | None:
    """The first name that is there already."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def count_rows(path: Path, columns: Columns) -> int:
    """The rows of a table, blank lines of a csv file included; more cells than such a file can hold are refused."""
    with _located(path):
        rows = int(_scan(path).select(pl.len()).collect().item())
    check_expansion(path, 4 * rows * len(columns.features), path.stat().st_size)
    return rows


def read_batches(path: Path, columns: Columns, *, missing: float | None = None) -> Iterator[tuple[pl.DataFrame, int]]:
    """The rows of a table in batches: label, ids as text, features as numbers; and how many cells were filled.

    Args:
        path: the file.
        columns: its columns.
        missing: the value of cells that are empty, null or NaN; by default they are an error.
    """
    rows = max(1, BATCH // (len(columns.features) + 3))
    with _located(path):
        wanted = _scan(path).select(*columns.numbers, *columns.ids, *columns.features)
    first = 1
    for frame in _collect(path, wanted, rows):
        with _located(path):
            frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines of a csv file
            numbers = _numbers(frame.select(columns.numbers), path, first, None)[0]
            _check_beside(numbers, columns, path, first)
            ids = [_texts(frame[name], path, first, needed=name == columns.query) for name in columns.ids]
            features, filled = _numbers(frame.select(columns.features), path, first, missing)
            table = pl.concat([numbers, pl.DataFrame(ids), features], how="horizontal")
        first += len(frame)
        yield table, filled


# ---- files -----------------------------------------------------------------------------------------------------------


def kind_of(path: Path) -> str:
    """What the first bytes of a file tell: parquet, arrow, stream (of Arrow batches) or csv."""
    with path.open("rb") as file:
        return MAGIC.get(file.read(4), "csv")


def _scan(path: Path) -> pl.LazyFrame:
    kind = kind_of(path)
    if kind == "parquet":
        return pl.scan_parquet(path, glob=False)
    if kind == "arrow":
        return pl.scan_ipc(path)
    if kind == "stream":
        return pl.read_ipc_stream(path).lazy()
    names, separator = _header(path)
    schema = dict.fromkeys(names, pl.String)
    lazy = pl.scan_csv(path, separator=separator, schema=schema, glob=False, infer_schema=False)
    return lazy.rename(str.strip)


@contextmanager
def _located(path: Path) -> Iterator[None]:
    """Errors of polars, and its panics, which are no `Exception`, as one line with the name of the file."""
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the data
        kind = kind_of(path)
        told = str(error).partition("\n")[0][:200] or type(error).__name__
        if kind == "csv" and (uneven := _uneven(path)):
            raise DataError(f"{path}: {uneven}") from error
        raise DataError(f"{path} cannot be read as {kind}: {told}") from error


def _header(path: Path) -> tuple[list[str], str]:
    """The names of the columns of a csv file, as they are in its text, and what separates them."""
    text = next((text for block in read_blocks(path) if (text := block.text.lstrip(b"\r\n"))), b"")
    try:
        first = text.partition(b"\n")[0].removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a csv file of UTF-8 text, nor parquet or Arrow ({error})") from error
    if "\r" in first:
        raise DataError(f"{path}: a carriage return in the header: save the file with lines that end in \\n or \\r\\n")
    if first.startswith(ZLIB):
        raise DataError(f"{path}: the text is compressed by zlib: use gzip or zstd")
    separator = next((each for each in ",\t;" if each in first), ",")
    _check_width(path, first.count(separator) + 1)
    found = _split(first, separator)
    names = [name.strip() for name in found]
    if not names:
        raise DataError(f"{path}: the file is empty, expected a header and one document per line")
    _check_named(path, names)
    if (twice := _repeated(names)) is not None:
        raise DataError(f"{path}: two columns are called {twice!r}, expected different names in the header")
    return found, separator


def _check_width(path: Path, width: int) -> None:
    if width > WIDEST:
        raise DataError(
            f"{path}: {width} columns, expected at most {WIDEST} in a table: write rows that wide as a LETOR file, "
            "which holds the values that are not 0"
        )


def _check_named(path: Path, names: list[str]) -> None:
    if "" in names:
        place = names.index("") + 1
        raise DataError(f"{path}: column {place} of the header has no name: name it (pandas: to_csv(index=False))")


def _split(line: str, separator: str) -> list[str]:
    """The cells of a line. A carriage return in a cell, which `csv` refuses, is part of its text."""
    return next(csv.reader([line.replace("\r", " ")], delimiter=separator), [])


def _schema(path: Path) -> dict[str, pl.DataType]:
    """The type of each column; of a csv file Float64, or String if none of the first cells is a number."""
    if not path.is_file():
        raise FileNotFoundError(f"not found: {path}")
    check_compressed(path)
    with _located(path):
        lazy = _scan(path)
        if kind_of(path) != "csv":
            schema = dict(lazy.collect_schema())
            _check_width(path, len(schema))
            _check_named(path, list(schema))
            return schema
        cells = next(_collect(path, lazy.head(SAMPLE), SAMPLE), pl.DataFrame(schema=lazy.collect_schema()))
        text = {each.name for each in cells if each.null_count() < len(each) and _read(each).null_count() == len(each)}
    return {name: pl.String() if name in text else pl.Float64() for name in cells.columns}


def _collect(path: Path, lazy: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    with _located(path):
        yield from lazy.collect_batches(chunk_size=rows, maintain_order=True)


def _uneven(path: Path) -> str:
    """What is wrong with the first line that has more cells than the header; empty if there is none."""
    names, separator = _header(path)
    for number, line in read_lines(path):
        cells = _split(line.decode(errors="replace"), separator)
        if len(cells) > len(names):
            return f"line {number} has {len(cells)} cells, but the header has {len(names)}"
    return ""


# ---- cells -----------------------------------------------------------------------------------------------------------


def _numeric(kind: pl.DataType) -> bool:
    return kind.is_numeric() or kind == pl.Boolean


def _numbers(frame: pl.DataFrame, path: Path, first: int, missing: float | None) -> tuple[pl.DataFrame, int]:
    """The columns as finite numbers, and how many were filled; an error names row and column of the first bad cell.

    Args:
        frame: columns of numbers, truth values, or text that can be read as numbers.
        path: for messages.
        first: the number of the first row.
        missing: the value of cells that are null or NaN; None refuses them.
    """
    columns, filled, bad = [], 0, []
    for cells in frame:
        if not _numeric(cells.dtype) and cells.dtype != pl.String:
            raise DataError(f"{path}: column {cells.name!r} is of type {cells.dtype}, expected numbers")
        numbers = _read(cells)
        if place := _first_bad(cells, numbers, missing is None):
            bad.append((place[0], cells.name, place[1]))
        filled += numbers.null_count()
        columns.append(numbers if missing is None else numbers.fill_null(missing))
    if bad:
        row, name, problem = min(bad, key=lambda each: each[0])
        raise DataError(f"{path}, row {first + row}, column {name!r}: {problem}")
    return pl.DataFrame(columns), filled


def _check_beside(numbers: pl.DataFrame, columns: Columns, path: Path, first: int) -> None:
    """Refuse weights below 0, and positions that are not integers of 0 or more."""
    wanted = {columns.weight: "a weight of 0 or more", columns.position: "a position, an integer of 0 or more"}
    for name in columns.numbers[1:]:
        cells = numbers[name]
        wrong = (cells < 0) | ((cells != cells.floor()) & (name == columns.position))
        if wrong.any():
            row = int(wrong.arg_true()[0])
            raise DataError(f"{path}, row {first + row}, column {name!r}: {cells[row]!r}, expected {wanted[name]}")


def _read(cells: pl.Series) -> pl.Series:
    """The cells as numbers, null where there is none; NaN means that there is none."""
    if cells.dtype == pl.String:
        return cells.str.strip_chars().cast(pl.Float64, strict=False).fill_nan(None)
    if cells.dtype.is_float():
        return cells.fill_nan(None)
    return cells if cells.dtype.is_integer() else cells.cast(pl.Float64)


def _first_bad(cells: pl.Series, numbers: pl.Series, refuse_missing: bool) -> tuple[int, str] | None:
    """The first cell that cannot be used, and what is wrong with it."""
    infinite = numbers.is_infinite() if numbers.dtype.is_float() else pl.repeat(False, len(numbers), eager=True)
    wrong = infinite.fill_null(False)
    if numbers.null_count() and (refuse_missing or cells.dtype == pl.String):
        given = cells.is_not_null() if cells.dtype == pl.String else pl.repeat(False, len(cells), eager=True)
        text = given & ~cells.cast(pl.String).str.strip_chars().str.to_lowercase().is_in(["nan", ""])
        wrong = wrong | (numbers.is_null() & (text | refuse_missing))
    row = wrong.arg_max()
    if row is None or not wrong[row]:
        return None
    found = cells[row]
    if numbers[row] is not None or (isinstance(found, str) and found.strip().lower() not in ("nan", "")):
        return row, f"{found!r} is not a finite number"
    told = "the value is missing, expected a number"
    return row, f"{told}. Set missing=0 (data.missing=0), or another number, to fill the features that are missing"


def _texts(cells: pl.Series, path: Path, first: int, *, needed: bool) -> pl.Series:
    """Ids as text. Integers that another tool has stored as real numbers are integers again."""
    if cells.dtype.is_float() and (cells == cells.floor()).all():
        cells = cells.cast(pl.Int64)
    try:
        found = cells.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: column {cells.name!r} is of type {cells.dtype}, expected text or integers") from error
    if needed and (absent := found.is_null() | (found == "").fill_null(True)).any():
        row = first + int(absent.arg_true()[0])
        raise DataError(f"{path}, row {row}, column {cells.name!r}: the query id is missing")
    return found.fill_null("")

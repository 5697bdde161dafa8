"""Files read again, plainly and without the code of torchrank: what the readers have to find."""

import csv
import gzip
import io
import json
import re
import zipfile
from typing import Any

import numpy as np

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
Values = dict[str, Any]
RETURN = "\ue000"  # stands for a carriage return, at which csv would end a line


class RefusedError(Exception):
    """The plain reader finds no values in a file."""


def number(text: str) -> float:
    """A finite number, in ASCII."""
    if not NUMBER.fullmatch(text) or not np.isfinite(value := float(text)):
        raise RefusedError(f"number {text!r}")
    return value


def unpacked(data: bytes) -> bytes:
    """The text of a file that may be compressed by gzip or zstd."""
    import zstandard

    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.decompress(data)
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            return _frames(data, zstandard)
    except (OSError, EOFError, zstandard.ZstdError, Exception) as error:
        raise RefusedError(str(error)) from error
    return data


def _frames(data: bytes, zstandard: Any) -> bytes:
    found = b""
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        found += frame.decompress(data)
        if not frame.eof:
            raise RefusedError("incomplete")
        data = frame.unused_data
    return found


def trec(data: bytes, width: int, value: int) -> Values:
    """Tokens of a TREC run (6, 4) or of qrels (4, 3), grouped by query in the order of their first lines."""
    text = unpacked(data).removeprefix(b"\xef\xbb\xbf")
    groups: dict[str, dict[str, float]] = {}
    for line in text.split(b"\n"):
        tokens = line.split()
        if not tokens or line.strip().startswith(b"#"):
            continue
        if len(tokens) != width:
            raise RefusedError(f"{len(tokens)} tokens")
        query, document = (tokens[place].decode(errors="backslashreplace") for place in (0, 2))
        group = groups.setdefault(query, {})
        if document in group:
            raise RefusedError("twice")
        group[document] = number(tokens[value].decode(errors="backslashreplace"))
    if not groups:
        raise RefusedError("empty")
    lengths = [len(group) for group in groups.values()]
    return {
        "queries": list(groups),
        "documents": [document for group in groups.values() for document in group],
        "values": [each for group in groups.values() for each in group.values()],
        "offsets": np.concatenate(([0], np.cumsum(lengths))),
    }


def table(data: bytes) -> Values:
    """A csv file with the columns label, query and document; others with a number in a cell are features."""
    try:
        text = unpacked(data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RefusedError(str(error)) from error
    text = re.sub("\r(?!\n)", RETURN, text)  # only a line feed ends a line
    lines = text.replace("\r\n", "\n").split("\n")
    first = next((line for line in lines if line.strip()), "").strip()
    separator = next((each for each in ",\t;" if each in first), ",")
    rows = list(csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=separator, strict=True))
    names, rows = [name.strip() for name in rows[0]], [row for row in rows[1:] if any(cell for cell in row)]
    if any(len(row) != len(names) for row in rows) or len(set(names)) != len(names) or not rows:
        raise RefusedError("uneven, or two columns of one name")
    columns = {name: [row[place].replace(RETURN, "\r") for row in rows] for place, name in enumerate(names)}
    return grouped(columns)


def grouped(columns: dict[str, list[Any]]) -> Values:
    """Columns of a table as lists: the rows of a query together, in the order of their first ones."""
    if missing := {"label", "query"} - set(columns):
        raise RefusedError(f"no {missing}")
    ids = ("label", "query", "document", "comment")
    features = [name for name, cells in columns.items() if name not in ids and any(map(_is_number, cells))]
    order: dict[str, list[int]] = {}
    for row, query in enumerate(columns["query"]):
        if query in (None, ""):
            raise RefusedError("no query")
        order.setdefault(str(query), []).append(row)
    rows = [row for own in order.values() for row in own]
    found = {name: [_cell(columns[name][row]) for row in rows] for name in (*features, "label")}
    return {
        "x": np.array([[found[name][place] for name in features] for place in range(len(rows))], dtype=np.float32),
        "labels": np.array(found["label"], dtype=np.float32),
        "offsets": np.concatenate(([0], np.cumsum([len(own) for own in order.values()]))),
        "queries": list(order),
        "documents": [str(columns["document"][row] or "") for row in rows] if "document" in columns else None,
        "names": features,
    }


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) or (isinstance(cell, str) and bool(NUMBER.fullmatch(cell.strip())))


def _cell(cell: Any) -> float:
    if isinstance(cell, str):
        return number(cell.strip())
    if cell is None or not np.isfinite(cell):
        raise RefusedError("missing")
    return float(cell)


def arrays(data: bytes) -> Values:
    """The arrays of an npz file."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
        return {name: np.lib.format.read_array(io.BytesIO(content)) for name, content in files.items()}
    except Exception as error:
        raise RefusedError(str(error)) from error


def parquet(data: bytes) -> Values:
    """A parquet file, read by pyarrow."""
    import pyarrow.parquet

    try:
        found = pyarrow.parquet.read_table(io.BytesIO(data), page_checksum_verification=False)
        return grouped({name: found[name].to_pylist() for name in found.column_names})
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(str(error)) from error


def arrow(data: bytes) -> Values:
    """An Arrow file or stream, read by pyarrow."""
    import pyarrow.ipc

    try:
        opened = pyarrow.ipc.open_file if data.startswith(b"ARROW1") else pyarrow.ipc.open_stream
        with opened(io.BytesIO(data)) as reader:
            found = reader.read_all()
        found.validate(full=True)
        return grouped({name: found[name].to_pylist() for name in found.column_names})
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(str(error)) from error


def results(data: bytes) -> Values:
    """The content of a results.json."""
    try:
        found = json.loads(data.decode())
    except Exception as error:
        raise RefusedError(str(error)) from error
    if not isinstance(found, dict):
        raise RefusedError("no object")
    return found

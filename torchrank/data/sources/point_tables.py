"""Tables of points with class labels: csv, npz and mat files, and the sets that scikit-learn contains."""

import csv
import math
import re
import struct
import zlib
from pathlib import Path
from typing import IO
from zipfile import ZipFile, is_zipfile

import numpy as np
import polars

from torchrank.data.sources.limits import check_expansion
from torchrank.errors import DataError

Points = tuple[np.ndarray, np.ndarray]  # features (n, D) and classes (n,)

NESTED = ("cell", "struct", "object", "opaque", "function")  # never read: they nest as deep as they like
NESTED_CLASSES = (1, 2, 3, 16, 17)  # the same in a mat file
SPARSE, COMPLEX = 5, 0x800  # a class, and a flag beside it
MATRIX, COMPRESSED = 14, 15  # the types of elements of a mat file
PARTS = (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18)  # the types of parts of arrays: numbers and text
SCIKIT_LEARN = ("wine", "breast_cancer", "wdbc", "iris", "digits")


def read_points(path: str | Path, *, label: str = "last", header: bool | None = None) -> Points:
    """The features and classes of the points in a file. A feature that is not a finite number is an error.

    Args:
        path: a csv file; or an npz or mat file with the arrays x and y, or fea and gnd.
        label: the class column of a csv file: "last", "first" or its name.
        header: whether line 1 of a csv file names the columns. By default it does if it contains `label`, or if it has
            no number and a class that no other line has.

    Returns:
        Features (n, D) in float32, and classes (n,).

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "points.csv"
        >>> _ = path.write_text("kind,a,b\\nred,1,2\\nblue,3,4\\n")
        >>> read_points(path, label="kind")
        (array([[1., 2.],
               [3., 4.]], dtype=float32), array(['red', 'blue'], dtype='<U4'))
    """
    path = Path(path)
    if path.suffix.lower() in (".npz", ".mat"):
        x, classes = _two(read_arrays(path), path)
        if path.suffix.lower() == ".mat" and np.shape(classes) == (1, np.shape(x)[0]):
            classes = classes.T  # a mat file has no vectors, only rows and columns
    else:
        x, classes = _read_csv(path, label, header)
    return _features(np.asarray(x), path), _classes(np.asarray(classes), len(x), path)


def _features(x: np.ndarray, path: Path) -> np.ndarray:
    if x.ndim != 2 or x.dtype.kind not in "buif":
        raise DataError(f"{path}: features are {x.dtype} of shape {x.shape}, expected a table (n, D) of numbers")
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    for point, feature in np.argwhere(~np.isfinite(x))[:1]:
        raise DataError(f"{path}: feature {feature + 1} of point {point + 1} is {x[point, feature]}: fill it first")
    return x


def _classes(classes: np.ndarray, count: int, path: Path) -> np.ndarray:
    if classes.shape not in ((count,), (count, 1)):
        raise DataError(
            f"{path}: {count} points have classes of shape {classes.shape}, expected ({count},) or ({count}, 1), one "
            "class for each point (take the argmax of one-hot rows)"
        )
    classes = classes.reshape(-1)
    if classes.dtype.kind not in "biufU":
        raise DataError(f"{path}: classes are of type {classes.dtype}, expected integers or text")
    if classes.dtype.kind != "f":
        return classes
    whole = (np.abs(classes) < 2.0**63) & (classes == np.floor(classes))
    for point in np.flatnonzero(~whole)[:1]:
        raise DataError(f"{path}: class {classes[point]} of point {point + 1}: expected integers or text")
    return classes.astype(np.int64)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz or mat file, by name.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "points.npz"
        >>> np.savez(path, y=[1, 2])
        >>> read_arrays(path)
        {'y': array([1, 2])}
    """
    kind, load, advice = "npz", _read_npz, "Write it with numpy.savez, without objects"
    if path.suffix.lower() == ".mat":
        kind, load, advice = "mat", _read_mat, "Write it with MATLAB's save -v7 or scipy.io.savemat"
    try:
        return load(path)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged file makes its reader raise almost anything
        raise DataError(f"{path} cannot be read as {kind} ({error}). {advice}") from error


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        if not is_zipfile(file):
            raise DataError("not a zip archive")
        with ZipFile(file) as archive:
            members = archive.infolist()
            check_expansion(path, sum(member.file_size for member in members), path.stat().st_size)
            for member in members:
                with archive.open(member) as stream:
                    _check_header(stream, member.file_size, member.filename)
        file.seek(0)
        return dict(np.load(file, allow_pickle=False))


def _check_header(stream: IO[bytes], size: int, name: str) -> None:
    """Refuse an array whose header tells another size than its data has, before memory is taken for it."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{name} is of version {version} of npy")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject or not dtype.itemsize or math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise DataError(f"{name} has {size} bytes, but its header tells {dtype} of shape {shape}")


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat, whosmat

    _check_elements(path)
    found = {name: (shape, kind in NESTED) for name, shape, kind in whosmat(path)}
    arrays = loadmat(path, variable_names=[name for name, (_, nested) in found.items() if not nested])
    objects = {name: np.broadcast_to(np.array(None), shape) for name, (shape, nested) in found.items() if nested}
    return {name: value for name, value in (arrays | objects).items() if not name.startswith("__")}


def _check_elements(path: Path) -> None:
    """Refuse a mat file whose compressed elements expand out of proportion, or whose arrays are not laid out as such:
    the reader of scipy would end the process."""
    data = path.read_bytes()
    if 0 in data[:4]:  # version 4, which has neither
        return
    order, place, expanded = ">" if data[126:128] == b"MI" else "<", 128, 0
    while place + 8 <= len(data):
        kind, size = struct.unpack(f"{order}II", data[place : place + 8])
        content = data[place + 8 : place + 8 + size]
        if kind == COMPRESSED:
            content = _decompressed(path, content, expanded)
            expanded += len(content)
        if kind in (COMPRESSED, MATRIX):
            _check_parts(content[8:] if kind == COMPRESSED else content, order)
        place += 8 + size


def _decompressed(path: Path, rest: bytes, before: int) -> bytes:
    """The content of an element of a mat file, unless it expands out of proportion together with those before it."""
    stream, pieces, size = zlib.decompressobj(), [], before
    while rest:
        pieces.append(stream.decompress(rest, 1 << 20))
        size += len(pieces[-1])
        check_expansion(path, size, path.stat().st_size, 0)
        rest = stream.unconsumed_tail
    return b"".join(pieces)


def _check_parts(content: bytes, order: str) -> None:
    """Refuse an array with a part of unknown type, with one that is longer than the array, or with too few."""
    if len(content) < 16:
        raise DataError(f"an array has {len(content)} bytes, but its flags take 16")
    (flags,) = struct.unpack(f"{order}I", content[8:12])
    if flags & 0xFF in NESTED_CLASSES:
        return
    place, parts, expected = 16, 0, 3 + bool(flags & COMPLEX) + 2 * (flags & 0xFF == SPARSE)  # sizes, name, values
    while place + 8 <= len(content):
        kind, size = struct.unpack(f"{order}II", content[place : place + 8])
        kind, size = (kind & 0xFFFF, 0) if kind >> 16 else (kind, size)  # a short part lies in its own header
        if kind not in PARTS or place + 8 + size > len(content):
            raise DataError(f"a part of an array has the unknown type {kind}, or {size} bytes that are not there")
        place, parts = place + 8 + size + -size % 8, parts + 1
    if parts < expected:
        raise DataError(f"an array has {parts} parts, expected {expected}")


def _two(arrays: dict[str, np.ndarray], path: Path) -> Points:
    for features, classes in (("x", "y"), ("X", "y"), ("fea", "gnd")):
        if features in arrays and classes in arrays:
            return arrays[features], arrays[classes]
    raise DataError(f"{path}: expected arrays x and y (or fea and gnd), found {', '.join(sorted(arrays)) or 'none'}")


def _read_csv(path: Path, label: str, header: bool | None) -> Points:
    """A table of numbers and one class column."""
    table = _cells(path)
    first = [cell or "" for cell in table.row(0)[1:]]
    column = _class_column(path, first, label, header)
    name = table.columns[column + 1]
    for row in np.flatnonzero(table[name].is_null().to_numpy()).tolist():
        if row or header is False:
            place = f"column {column + 1} of {len(first)}"
            raise DataError(f"{path}, line {table['line'][row]}: the class ({place}) is missing")
    if header is None:
        header = label not in ("first", "last") or _is_header(path, first, column, table[name][1:].to_list())
    table = table.slice(int(header))
    if table.is_empty():
        raise DataError(f"{path}: no points below the header")
    line, classes, values = table["line"], table[name], table.drop("line", name)
    coded = classes.cast(polars.Float64, strict=False).fill_null(0.0).to_numpy()  # names count as 0
    for row in np.flatnonzero(np.isfinite(coded) & (coded != np.floor(coded)))[:1].tolist():
        raise DataError(
            f"{path}, line {line[row]}: {classes[row]} (column {column + 1} of {len(first)}) is not a class, expected "
            "integers or text: set data.label to first, last or the name of the class column"
        )
    numbers = values.select(polars.all().cast(polars.Float64, strict=False))
    for row, place in np.argwhere(~np.isfinite(numbers.to_numpy()))[:1].tolist():
        advice = "" if row or header else "; set data.header=true if this line names the columns"
        found = "missing" if values[row, place] is None else repr(values[row, place])
        raise DataError(f"{path}, line {line[row]}: feature {place + 1} is {found}, expected a finite number{advice}")
    return numbers.to_numpy(), classes.to_numpy().astype(str)


def _cells(path: Path) -> polars.DataFrame:
    """The cells of a csv file as text, without its blank lines; the column `line` numbers the lines."""
    text = _read_text(path)
    start = text.rfind("\n", 0, len(text) - len(text.lstrip())) + 1  # of the first line that is not blank
    first = re.sub('"[^"]*"', "", text[start:].partition("\n")[0].strip())
    separator = next((s for s in ",\t; " if s in first), None)
    if separator is None:
        raise DataError(f"{path}: no comma, tab, semicolon or space in the first line, expected one point per line")
    try:
        table = polars.read_csv(text[start:].encode(), separator=separator, has_header=False, infer_schema=False)
    except polars.exceptions.PolarsError as error:
        reason = _uneven(text, separator) or str(error).partition("\n")[0]
        raise DataError(f"{path}: not a table of equally long lines separated by {separator!r}: {reason}") from error
    table = table.select(polars.all().str.strip_chars()).with_row_index("line", offset=1 + text.count("\n", 0, start))
    table = table.filter(~polars.all_horizontal(polars.exclude("line").is_null()))
    if table.is_empty():
        raise DataError(f"{path}: the file is empty, expected one point per line")
    return table


def _uneven(text: str, separator: str) -> str:
    """What is wrong with the first line that has more cells than the first one; empty if there is none."""
    lines = csv.reader(text.splitlines(), delimiter=separator)
    try:
        lengths = [(lines.line_num, len(cells)) for cells in lines if any(cell.strip() for cell in cells)]
    except csv.Error:  # a cell that is too long
        return ""
    width = lengths[0][1]
    return next((f"line {line} has {length} cells, not {width}" for line, length in lengths if length > width), "")


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        raise DataError(f"{path}: the file is compressed by gzip: decompress it first")
    try:
        return content.decode("utf-8-sig")  # without the byte order mark that some programs write
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file is not UTF-8 text ({error}): save it as UTF-8, npz or mat") from error


def _class_column(path: Path, cells: list[str], label: str, header: bool | None) -> int:
    if label in ("first", "last"):
        return 0 if label == "first" else len(cells) - 1
    if label not in cells or header is False:
        why = "data.header=false" if label in cells else f"the columns of line 1 are {cells}"
        raise ValueError(f"{path}: data.label must be first, last or a name in line 1, got {label!r}, but {why}")
    return cells.index(label)


def _is_header(path: Path, cells: list[str], column: int, others: list[str | None]) -> bool:
    """Whether the first line names the columns: it has no number, and a class that no other line has."""
    numbers = any(_is_number(cell) for place, cell in enumerate(cells) if place != column)
    if numbers and cells[column] not in others:
        raise DataError(
            f"{path}: no other line has the class {cells[column]!r} of the first line, which may be a header or a "
            "point: set data.header=true or data.header=false"
        )
    return cells[column] not in others


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def read_scikit_learn(name: str) -> Points:
    """The features and class names of a set that scikit-learn contains.

    Example:
        >>> x, classes = read_scikit_learn("wine")
        >>> x.shape, sorted(set(classes.tolist()))
        ((178, 13), ['class_0', 'class_1', 'class_2'])
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(f"data.source={name} needs scikit-learn: pip install 'torchrank-ltr[points]'") from error
    bunch = getattr(datasets, "load_breast_cancer" if name == "wdbc" else f"load_{name}")()
    return bunch.data.astype(np.float32), bunch.target_names[bunch.target].astype(str)

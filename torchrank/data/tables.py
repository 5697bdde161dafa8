"""Tables of class-labelled points: csv, npz, mat files and scikit-learn's own sets."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars

Points = tuple[np.ndarray, np.ndarray]  # features (n, D) and classes (n,)

SCIKIT_LEARN = ("wine", "breast_cancer", "wdbc", "iris", "digits")


def read_table(path: str | Path, *, label: str = "last") -> Points:
    """Features (n, D) float32 and classes (n,) of a csv, npz or mat file; `label` is the class column of a csv file.

    An npz or mat file holds the arrays x and y, or fea and gnd. A value that is no finite number is an error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "points.csv"
    >>> _ = path.write_text("kind,a,b\\nred,1,2\\nblue,3,4\\n")
    >>> read_table(path, label="kind")
    (array([[1., 2.],
           [3., 4.]], dtype=float32), array(['red', 'blue'], dtype='<U4'))
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Points]] = {".npz": _read_npz, ".mat": _read_mat}
    x, classes = readers[path.suffix](path) if path.suffix in readers else _read_csv(path, label)
    x, classes = np.asarray(x), np.asarray(classes).reshape(-1)
    if x.ndim != 2 or len(x) != len(classes):
        raise ValueError(f"{path}: features {x.shape} and {len(classes)} classes; expected (n, D) and n")
    if classes.dtype.kind == "f":
        if not np.array_equal(classes, np.floor(classes)):
            wrong = classes[classes != np.floor(classes)][0]
            raise ValueError(f"{path}: class {wrong} is not a class label; expected whole numbers or text")
        classes = classes.astype(np.int64)
    x = x.astype(np.float32)
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        point, feature = bad[0]
        raise ValueError(f"{path}: feature {feature + 1} of point {point + 1} is {x[point, feature]}; fill it first")
    return x, classes


def _read_npz(path: Path) -> Points:
    with np.load(path, allow_pickle=False) as arrays:
        return _two(dict(arrays), path)


def _read_mat(path: Path) -> Points:
    from scipy.io import loadmat

    return _two({name: value for name, value in loadmat(path).items() if not name.startswith("__")}, path)


def _two(arrays: dict[str, np.ndarray], path: Path) -> Points:
    for features, classes in (("x", "y"), ("X", "y"), ("fea", "gnd")):
        if features in arrays and classes in arrays:
            return arrays[features], arrays[classes]
    raise ValueError(f"{path}: arrays x and y (or fea and gnd) expected, found {', '.join(sorted(arrays)) or 'none'}")


def _read_csv(path: Path, label: str) -> Points:
    """A table of numbers and one class column. Its first line is a header if it names `label` or holds no number."""
    with open(path, encoding="utf-8") as file:
        first = file.readline().strip()
    separator = next((s for s in ",\t; " if s in first), ",")
    try:
        table = polars.read_csv(path, separator=separator, has_header=False, infer_schema=False)
    except polars.exceptions.PolarsError as error:
        raise ValueError(f"{path} is not a table of equally long lines separated by {separator!r}: {error}") from error
    cells = [cell.strip().strip('"') for cell in first.split(separator)]
    column = _class_column(path, cells, label)
    numeric = [_is_number(cell) for place, cell in enumerate(cells) if place != column]
    header = label not in ("first", "last") or not any(numeric)
    table = table.select(polars.all().str.strip_chars()).with_row_index("line", offset=1).slice(int(header))
    table = table.filter(~polars.all_horizontal(polars.exclude("line").is_null()))  # blank lines
    line, classes = table["line"], table[table.columns[column + 1]]
    values = table.drop("line", classes.name)
    numbers = values.select(polars.all().cast(polars.Float64, strict=False))
    for row, place in np.argwhere(numbers.select(polars.all().is_null()).to_numpy())[:1].tolist():
        found = values[row, place]
        raise ValueError(f"{path}, line {line[row]}: feature {place + 1} is {found!r}, a number was expected")
    for row in np.flatnonzero(classes.is_null().to_numpy())[:1].tolist():
        raise ValueError(f"{path}, line {line[row]}: the class is missing")
    return numbers.to_numpy(), classes.to_numpy().astype(str)


def _class_column(path: Path, cells: list[str], label: str) -> int:
    if label in ("first", "last"):
        return 0 if label == "first" else len(cells) - 1
    if label not in cells:
        raise ValueError(f"{path}: no column {label!r} among {cells}; data.label is first, last or one of these")
    return cells.index(label)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def read_scikit_learn(name: str) -> Points:
    """Features and class names of one of scikit-learn's own sets.

    >>> x, classes = read_scikit_learn("wine")
    >>> x.shape, sorted(set(classes.tolist()))
    ((178, 13), ['class_0', 'class_1', 'class_2'])
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(f"data.source={name} is part of scikit-learn: pip install 'torchrank[points]'") from error
    load = {
        "wine": datasets.load_wine,
        "breast_cancer": datasets.load_breast_cancer,
        "wdbc": datasets.load_breast_cancer,
        "iris": datasets.load_iris,
        "digits": datasets.load_digits,
    }[name]
    bunch = load()
    return bunch.data.astype(np.float32), bunch.target_names[bunch.target].astype(str)

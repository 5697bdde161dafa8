"""Converts numpy arrays, pandas and polars data and Python lists to tensors, and `group` and `qid` to offsets.

Kinds of arrays are recognised by their attributes, so that no package has to be imported. Memory is shared if possible.

| given | becomes |
|---|---|
| float16, float32, float64 | the same dtype; Python floats and wider floats become float64 |
| integers of any width, bool | int64 (a `mask` stays bool) |
| missing values (None, NA, null, masked entries) | NaN |
| strings, dates, complex numbers, also in tensors | refused |
"""

import warnings
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from operator import ne
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from torchrank.errors import DataError

Array = Annotated[Any, "a tensor, a numpy array, a pandas, polars or Arrow column or table, or a list of numbers"]
VECTORS = frozenset(  # arguments for which a data frame with one column is that column
    (
        *("scores", "labels", "offsets", "classes", "query_classes", "tiebreak", "num_relevant"),
        *("total", "rank", "ranks", "ranks_v", "weights", "list_weights", "other"),
    )
)
USUAL = frozenset((torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool))
SINGLE = (torch.float16, torch.bfloat16, torch.float32)


def host(values: Tensor) -> np.ndarray | None:
    """CPU values as a numpy array. None on other devices, where reading waits, and in compiled graphs and under
    torch.func, where nothing may depend on values.

    >>> host(torch.ones(1)), host(torch.ones(1, device="meta"))
    (array([1.], dtype=float32), None)
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    try:
        plain = values.detach() if values.requires_grad else values
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    except RuntimeError:  # under torch.func, where .numpy() is not allowed
        return None


def wide(values: Tensor) -> Tensor:
    """`values` in the dtype in which sums are computed: float64, or float32 on a device without float64 (mps)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def narrow(values: Tensor) -> Tensor:
    """`values` in the dtype in which pairs are computed: float32 for values with no more digits, otherwise float64.

    >>> narrow(torch.ones(1, dtype=torch.bfloat16)).dtype, narrow(torch.ones(1, dtype=torch.int64)).dtype
    (torch.float32, torch.float64)
    """
    return values.float() if values.dtype in SINGLE else wide(values)


def result_dtype(scores: Tensor) -> torch.dtype:
    """The dtype of a result: that of the scores, float32 for half precision, torch's default for integers."""
    if not scores.is_floating_point():
        return torch.get_default_dtype()
    return torch.float32 if scores.dtype in SINGLE else scores.dtype


def to_offsets(group: Array = None, *, qid: Array = None) -> Tensor:
    """Offsets of lists from their sizes, or from the query id of every row.

    Args:
        group: number of entries of each list, `(Q,)`.
        qid: query id of each entry, `(N,)`, numbers or strings; the rows of a query must be together.

    Returns:
        Where the lists begin and end, `(Q + 1,)`: the entries of list q are `offsets[q]:offsets[q + 1]`.

    Example:
        >>> to_offsets([2, 0, 1]), to_offsets(qid=["a", "a", "b"])
        (tensor([0, 2, 2, 3]), tensor([0, 2, 3]))
    """
    if (group is None) == (qid is None):
        raise DataError("give group, the size of each list, or qid, the query id of each row: one of the two")
    if qid is not None:
        return lists_of(qid)[0]
    sizes = to_integers(group, "group")
    if sizes.device.type == "cpu" and (sizes < 0).any().tolist():
        raise DataError(f"group must hold sizes of lists, 0 or more, got {min(sizes.tolist())}")
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))


def lists_of(qid: Array) -> tuple[Tensor, list[Any]]:
    """Offsets `(Q + 1,)` of the runs of equal ids, and the id of each run. An id with two runs is refused.

    >>> lists_of([7, 7, 3])
    (tensor([0, 2, 3]), [7, 3])
    """
    starts, count, ids = _runs(qid)
    if len(set(ids)) < len(ids):
        seen: set[Any] = set()
        again = next(query for query in ids if query in seen or seen.add(query))  # type: ignore[func-returns-value]
        raise DataError(f"the rows of query {again!r} are not together in qid: sort the rows by query")
    return torch.tensor([*starts, count]), ids


def offsets_of(
    rows: int | None, offsets: Array = None, group: Array = None, qid: Array = None, mask: Array = None, *, what: str
) -> Tensor:
    """The offsets of lists from the one of the first three that is not None; `rows` is the number of entries, if known.

    >>> offsets_of(3, group=[1, 2], what="scores")
    tensor([0, 1, 3])
    """
    if (offsets is not None) + (group is not None) + (qid is not None) + (mask is not None) != 1:
        ways = {"offsets": offsets, "group": group, "qid": qid, "mask": mask}
        names = " and ".join(name for name, value in ways.items() if value is not None)
        got = f"got {names or 'none of them'}"
        raise DataError(
            "say which rows make up a list by one of offsets=[0, 2, 5], group=[2, 3] and "
            f"qid=['a', 'a', 'b', 'b', 'b'], {got}"
        )
    if offsets is not None:
        return to_integers(offsets, "offsets")
    bounds = to_offsets(group, qid=qid)
    if rows is not None and bounds.device.type == "cpu" and (total := int(bounds[-1])) != rows:
        sizes = f"the sizes in group sum to {total}" if qid is None else f"qid has {total} rows"
        raise DataError(f"{sizes}, but {what} has {rows}")
    return bounds


def to_integers(values: Array, name: str) -> Tensor:
    """`values (n,)` as a tensor of integers."""
    tensor = to_tensor(only_column(values, name), name)
    if len(tensor) == 0 and not isinstance(values, Tensor):
        tensor = tensor.long()  # an empty list has no dtype
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise DataError(f"{name} must be a vector of integers, got {kind} of shape {tuple(tensor.shape)}")
    return _usual(tensor, name)


def to_tensor(values: Array, name: str) -> Tensor:
    """Any array as a tensor; `name` is its name in messages.

    >>> to_tensor([[1, 2], [3, 4.5]], "x")
    tensor([[1.0000, 2.0000],
            [3.0000, 4.5000]], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{name} must hold real numbers, got {str(values.dtype).removeprefix('torch.')}")
        return values
    if is_frame(values):
        return _from_frame(values, name)
    if hasattr(values, "tocsr"):
        raise DataError(f"{name} is a sparse matrix: give a dense array, {name}.toarray()")
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return _from_sequence(values, name)
    if (array := to_numpy(values)) is None:
        raise DataError(
            f"{name} is {article(type(values).__name__)}: give a tensor, a numpy array, a pandas or polars series or "
            "data frame, or a list of numbers"
        )
    return _from_numpy(array, name)


def to_numpy(values: Array) -> Any:
    """The numpy array that an array of another package is or converts to; None if it has none."""
    if hasattr(values, "filled") and hasattr(values, "mask"):  # a masked array
        return values.astype("f8").filled(torch.nan)
    if hasattr(values, "__array_interface__"):
        return values if hasattr(values, "setflags") and values.shape else None  # otherwise one number
    if hasattr(values, "to_numpy"):  # pyarrow copies only on request
        return values.to_numpy(zero_copy_only=False) if hasattr(values, "to_pylist") else values.to_numpy()
    return values.__array__() if hasattr(values, "__array__") and not isinstance(values, type) else None


def is_frame(values: Array) -> bool:
    """Whether the values are a data frame of pandas or polars, or an Arrow table.

    >>> is_frame([1])
    False
    """
    return hasattr(values, "columns") and (hasattr(values, "to_numpy") or hasattr(values, "column_names"))


def columns_of(values: Array) -> tuple[str, ...] | None:
    """The names of the columns of a data frame; None if the names are numbers, or if this is not a data frame."""
    if not is_frame(values):
        return None
    names = list(values.columns if hasattr(values, "to_numpy") else values.column_names)
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def only_column(values: Array, name: str) -> Array:
    """The only column of a data frame; anything else is returned as it is."""
    if not is_frame(values):
        return values
    columns = _columns(values)
    if len(columns) != 1:
        raise DataError(f"{name} is a data frame with {len(columns)} columns: give one of its columns")
    return columns[0][1]


def as_argument(name: str, value: Array, device: torch.device | None, *, padded: bool = False) -> Tensor:
    """An argument of a function as a tensor of a common dtype, on `device` if it was an array; `(B, L)` if `padded`."""
    if isinstance(value, Tensor):
        return _usual(value, name) if name in VECTORS else to_tensor(value, name)
    tensor = to_tensor(only_column(value, name) if name in VECTORS else value, name).to(device)
    if name in VECTORS and tensor.ndim != 1 and not padded:
        raise DataError(
            f"{name} must be a vector, the entries of all lists one after another, got shape {tuple(tensor.shape)}"
        )
    return tensor.bool() if name == "mask" else tensor


def _usual(values: Tensor, name: str) -> Tensor:
    """Integers for which torch has few operations, such as int8 and uint32, become int64."""
    return to_tensor(values, name) if values.dtype in USUAL or values.is_complex() else values.long()


# ---------------------------------------------------------------------------------------------- conversions


def _columns(frame: Array) -> list[tuple[Any, Array]]:
    """The columns of a data frame with their names."""
    if hasattr(frame, "items"):  # pandas, in which a name may come twice
        return list(frame.items())
    if hasattr(frame, "get_columns"):  # polars
        return list(zip(frame.columns, frame.get_columns(), strict=True))
    return list(zip(frame.column_names, frame.columns, strict=True))  # Arrow


def _from_frame(frame: Array, name: str) -> Tensor:
    array = frame.to_numpy() if hasattr(frame, "to_numpy") else None
    if array is not None and array.dtype.kind in "fiub":
        return _from_numpy(array, name)
    columns = [to_tensor(column, f"column {label!r} of {name}") for label, column in _columns(frame)]
    return _stack(columns, dim=1) if columns else torch.empty(len(frame), 0, dtype=torch.float64)


def _from_numpy(array: Any, name: str) -> Tensor:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "O":
        return _from_sequence(array.tolist(), name)
    if kind not in "fiub":
        first = f", such as {array.ravel()[0].item()!r}" if array.size and kind != "V" else ""
        raise DataError(f"{name} must hold numbers, got an array of {array.dtype.name}{first}")
    if array.dtype.str[1:] == "u8" and array.size and array.max() >= 2**63:
        raise DataError(f"{name} must hold integers below 2**63, got {array.max()}")
    array = array.astype(f"f{min(size, 8)}" if kind == "f" else "i8", copy=False)  # in the native byte order
    if any(step < 0 or step % array.itemsize for step in array.strides):  # which torch cannot share
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no function writes to its input
        return torch.from_numpy(array)


def _from_sequence(values: Sequence[Any], name: str) -> Tensor:
    """The tensor of a list of numbers, or of a list of rows: lists, tuples, or arrays of any kind."""
    numbers, shape = list(values), [len(values)]
    while numbers and isinstance(numbers[0], list | tuple):
        shape.append(_one_length([len(row) if isinstance(row, list | tuple) else None for row in numbers], name))
        numbers = list(chain.from_iterable(numbers))
    plain = not numbers or isinstance(numbers[0], int | float)
    if not plain and (isinstance(numbers[0], Tensor) or hasattr(numbers[0], "__array__")) and numbers[0].ndim:
        rows = [to_tensor(row, name) for row in numbers]
        _one_length([len(row) for row in rows], name)
        return _stack(rows)
    if not plain and all(isinstance(each, Tensor) for each in numbers):
        return torch.stack(numbers)
    return _from_numbers(numbers, name).reshape(shape)


def _one_length(lengths: list[int | None], name: str) -> int:
    if (other := next((length for length in lengths if length != lengths[0]), lengths[0])) != lengths[0]:
        raise DataError(
            f"the rows of {name} have different lengths, {lengths[0]} and {'none' if other is None else other}: "
            "give the entries of all lists one after another, and the number of each list in group"
        )
    return lengths[0] or 0


def _from_numbers(values: list[Any], name: str) -> Tensor:
    kinds = set(map(type, values))
    if not kinds <= {int, float, bool}:
        values = [_number(value, place, name) for place, value in enumerate(values)]
        kinds = set(map(type, values))
    try:
        return torch.tensor(values, dtype=torch.int64 if kinds and float not in kinds else torch.float64)
    except (OverflowError, RuntimeError, ValueError) as error:
        raise DataError(f"{name} holds an integer that needs more than 64 bits: give smaller numbers") from error


def _number(value: Any, place: int, name: str) -> int | float:
    if is_missing(value):
        return torch.nan
    if isinstance(value, Integral) or type(value).__name__ in ("bool", "bool_"):
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    kind = "the string" if isinstance(value, str) else article(type(value).__name__)
    raise DataError(f"{name} must hold numbers, got {kind} {value!r:.40} at position {place}")


def is_missing(value: Any) -> bool:
    """Whether a value is None, NA, NaT or NaN.

    >>> is_missing(None), is_missing(0)
    (True, False)
    """
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _stack(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Stacks tensors of one shape, in float64 if their dtypes differ."""
    dtype = parts[0].dtype if len({part.dtype for part in parts}) == 1 else torch.float64
    return torch.stack([part.to(dtype) for part in parts], dim)


def _runs(qid: Array) -> tuple[list[int], int, list[Any]]:
    """Where runs of equal ids begin, the number of rows, and the id of each run."""
    qid = only_column(qid, "qid")
    array = qid if isinstance(qid, Tensor | Sequence) else to_numpy(qid)
    if array is None or isinstance(qid, str):
        raise DataError(f"qid is {article(type(qid).__name__)}: give a column with the query id of each row")
    if not isinstance(array, Tensor | Sequence) and array.dtype.kind in "fiub":
        array = _from_numpy(array, "qid")
    if not isinstance(array, Tensor):
        return _runs_of_list(list(array) if isinstance(array, Sequence) else array.tolist())
    if array.ndim != 1:
        raise DataError(f"qid must be a vector (N,), got shape {tuple(array.shape)}")
    starts = (array[1:] != array[:-1]).nonzero()[:, 0].add_(1).tolist()
    starts = [0, *starts] if len(array) else []
    ids = array[starts].tolist()
    _check_ids(ids, starts)
    return starts, len(array), ids


def _runs_of_list(ids: list[Any]) -> tuple[list[int], int, list[Any]]:
    if not set(map(type, ids)) <= {str, int}:
        _check_ids(ids, range(len(ids)))
    starts = [0, *(place for place, new in enumerate(map(ne, ids[1:], ids), 1) if new)] if ids else []
    return starts, len(ids), [ids[start] for start in starts]


def _check_ids(ids: list[Any], rows: Sequence[int]) -> None:
    for place, query in enumerate(ids):
        if is_missing(query):
            raise DataError(f"qid is missing in row {rows[place]}: every row needs the id of its query")
        if isinstance(query, list | dict | set):
            raise DataError(f"qid must hold one id per row, got {query!r:.40} in row {rows[place]}")


def article(name: str) -> str:
    """The name of a type with its article.

    >>> article("int")
    'an int'
    """
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

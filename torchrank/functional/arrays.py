"""Arrays in, tensors out: what numpy, pandas, polars and Python lists hold, as tensors, and lists by `group` or `qid`.

Arrays are told by what they can do, so that none of their packages is imported. Conversion shares memory where it can.

| given | becomes |
|---|---|
| float16, float32, float64 | the same dtype; Python floats and wider floats become float64 |
| integers of any width, bool | int64 (a `mask` stays bool) |
| missing values (None, NA, null, masked entries) | NaN |
| strings, dates, complex numbers, also in tensors | refused |
"""

import inspect
import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import wraps
from itertools import chain
from numbers import Integral, Real
from operator import ne
from types import UnionType
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from torchrank.errors import DataError

R = TypeVar("R")
Array = Any  # a tensor, numpy array, pandas or polars series or data frame, or Python list
VECTORS = frozenset(  # arguments for which a data frame with one column is that column
    (
        *("scores", "labels", "offsets", "classes", "query_classes", "tiebreak", "num_relevant"),
        *("total", "rank", "ranks", "ranks_v", "weights", "list_weights", "other"),
    )
)
FEW = frozenset((torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool))
GROUPS = (  # what the docstring of every function on lists says about them
    "    group: number of entries of each list, `(Q,)`; in place of offsets.",
    "    qid: query id of each entry, `(N,)`, with the rows of a query together; in place of offsets.",
)


def takes_arrays(function: Callable[..., R]) -> Callable[..., R]:
    """Lets a function of tensors take arrays, and `group` or `qid` where it takes offsets.

    Arguments that are annotated as tensors are converted; calls with tensors only go straight to the function.

    >>> @takes_arrays
    ... def last(values: Tensor, offsets: Tensor) -> Tensor:
    ...     '''Args:
    ...         offsets: where the lists begin and end, `(Q + 1,)`.
    ...     '''
    ...     return values[offsets[1:] - 1]
    >>> last([5, 6, 7], group=[2, 1]), inspect.signature(last)
    (tensor([6, 7]), <Signature (values: torch.Tensor, offsets: torch.Tensor | None = None, *, group: Any = None, qid: Any = None) -> torch.Tensor>)
    """  # noqa: E501
    signature = inspect.signature(function)
    names = tuple(signature.parameters)
    tensors = frozenset(name for name, each in signature.parameters.items() if _is_tensor(each.annotation))
    positional = sum(each.kind != each.KEYWORD_ONLY for each in signature.parameters.values())
    needed = [name in tensors and each.default is each.empty for name, each in signature.parameters.items()]
    leading = [*needed, False].index(False)
    others = tensors.difference(names[:leading]) | {"group", "qid"}

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> R:
        for each in arguments[:leading]:
            if not isinstance(each, Tensor) or each.dtype not in FEW:
                break
        else:
            if len(arguments) == leading and others.isdisjoint(options):
                return function(*arguments, **options)
        if len(arguments) > positional or any([name in options for name in names[: len(arguments)]]):
            return function(*arguments, **options)  # which says what is wrong
        return function(**_converted(names, tensors, names[:leading], arguments, options))

    if "offsets" in tensors:
        call.__signature__ = _with_groups(signature)  # type: ignore[attr-defined]
        call.__doc__ = _explain_groups(function.__doc__ or "")
    return call


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
    """Offsets `(Q + 1,)` of the runs of equal ids, and the id of each run. An id that comes back later is refused.

    >>> lists_of([7, 7, 3])
    (tensor([0, 2, 3]), [7, 3])
    """
    starts, count, ids = _runs(qid)
    if len(set(ids)) < len(ids):
        seen: set[Any] = set()
        again = next(each for each in ids if each in seen or seen.add(each))  # type: ignore[func-returns-value]
        raise DataError(f"the rows of query {again!r} are not together in qid: sort the rows by query")
    return torch.tensor([*starts, count]), ids


def offsets_of(rows: int, offsets: Array = None, group: Array = None, qid: Array = None, *, what: str) -> Tensor:
    """The offsets of `rows` entries from whichever of the three is given.

    >>> offsets_of(3, group=[1, 2], what="scores")
    tensor([0, 1, 3])
    """
    given = [name for name, value in (("offsets", offsets), ("group", group), ("qid", qid)) if value is not None]
    if len(given) != 1:
        got = f"got {' and '.join(given)}" if given else "got none of them"
        raise DataError(
            "say which rows make up a list by one of offsets=[0, 2, 5], group=[2, 3] and "
            f"qid=['a', 'a', 'b', 'b', 'b'], {got}"
        )
    if offsets is not None:
        return to_integers(offsets, "offsets")
    found = to_offsets(group, qid=qid)
    if found.device.type == "cpu" and (total := int(found[-1])) != rows:
        sizes = f"the sizes in group sum to {total}" if qid is None else f"qid has {total} rows"
        raise DataError(f"{sizes}, but {what} has {rows}")
    return found


def to_integers(values: Array, name: str) -> Tensor:
    """`values (n,)` as a tensor of integers."""
    found = to_tensor(only_column(values, name), name)
    if len(found) == 0 and not isinstance(values, Tensor):
        found = found.long()  # an empty list has no dtype
    if found.ndim != 1 or found.is_floating_point() or found.dtype == torch.bool:
        kind = str(found.dtype).removeprefix("torch.")
        raise DataError(f"{name} must be a vector of integers, got {kind} of shape {tuple(found.shape)}")
    return _usual(found, name)


def to_tensor(values: Array, name: str) -> Tensor:
    """Any array as a tensor; `name` is what messages call it.

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
    """The numpy array in or behind an array of another package; None if there is none."""
    if hasattr(values, "filled") and hasattr(values, "mask"):  # a masked array
        return values.astype("f8").filled(torch.nan)
    if hasattr(values, "__array_interface__"):
        return values if hasattr(values, "setflags") and values.shape else None  # otherwise one number
    if hasattr(values, "to_numpy"):  # pyarrow copies only if it is told so
        return values.to_numpy(zero_copy_only=False) if hasattr(values, "to_pylist") else values.to_numpy()
    return values.__array__() if hasattr(values, "__array__") and not isinstance(values, type) else None


def is_frame(values: Array) -> bool:
    """Whether it is a data frame of pandas or polars, or an Arrow table.

    >>> is_frame([1])
    False
    """
    return hasattr(values, "columns") and (hasattr(values, "to_numpy") or hasattr(values, "column_names"))


def columns_of(values: Array) -> tuple[str, ...] | None:
    """The names of the columns of a data frame; None if they are numbers, or if it is no data frame."""
    if not is_frame(values):
        return None
    names = list(values.columns if hasattr(values, "to_numpy") else values.column_names)
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def only_column(values: Array, name: str) -> Array:
    """The column of a data frame that has one; anything else as it is."""
    if not is_frame(values):
        return values
    columns = _columns(values)
    if len(columns) != 1:
        raise DataError(f"{name} is a data frame with {len(columns)} columns: give one of its columns")
    return columns[0][1]


# ---------------------------------------------------------------------------------------------- the decorator


def _is_tensor(annotation: Any) -> bool:
    return annotation is Tensor or (isinstance(annotation, UnionType) and Tensor in get_args(annotation))


def _with_groups(signature: inspect.Signature) -> inspect.Signature:
    """The signature with group and qid at its end; offsets have a default if no required argument follows them."""
    parameters = dict(signature.parameters)
    after = list(parameters)[list(parameters).index("offsets") + 1 :]
    if all(parameters[name].kind == inspect.Parameter.KEYWORD_ONLY for name in after):
        parameters["offsets"] = parameters["offsets"].replace(default=None, annotation=Tensor | None)
    for name in ("group", "qid"):
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Array)
    return signature.replace(parameters=list(parameters.values()))


def _explain_groups(text: str) -> str:
    """The docstring with group and qid after the line that explains offsets."""
    lines = inspect.cleandoc(text).split("\n")
    place = next((number for number, line in enumerate(lines, 1) if line.startswith("    offsets:")), None)
    return text if place is None else "\n".join([*lines[:place], *GROUPS, *lines[place:]])


def _converted(
    names: tuple[str, ...],
    tensors: frozenset[str],
    required: tuple[str, ...],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> dict[str, Any]:
    """The arguments of a call by name: arrays as tensors, on the device of the first tensor, and lists as offsets."""
    given = dict(zip(names, arguments, strict=False)) | options
    device = next((each.device for each in given.values() if isinstance(each, Tensor)), None)
    three = [given.pop(name, None) for name in ("offsets", "group", "qid") if "offsets" in tensors]
    found = {
        name: _argument(name, value, device) if name in tensors and (value is not None or name in required) else value
        for name, value in given.items()
    }
    if three and names[0] in found:
        found["offsets"] = offsets_of(len(found[names[0]]), *three, what=names[0]).to(device)
    return found


def _argument(name: str, value: Any, device: torch.device | None) -> Any:
    if isinstance(value, Tensor):
        return _usual(value, name) if name in VECTORS else to_tensor(value, name)
    found = to_tensor(only_column(value, name) if name in VECTORS else value, name).to(device)
    if name in VECTORS and found.ndim != 1:
        raise DataError(
            f"{name} must be a vector, the entries of all lists one after another, got shape {tuple(found.shape)}"
        )
    return found.bool() if name == "mask" else found


def _usual(values: Tensor, name: str) -> Tensor:
    """Integers that torch has few operations of, such as int8 and uint32, as int64."""
    return to_tensor(values, name) if values.dtype in FEW or values.is_complex() else values.long()


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
    array = array.astype(f"f{min(size, 8)}" if kind == "f" else "i8", copy=False)  # in the byte order of the machine
    if any(step < 0 or step % array.itemsize for step in array.strides):  # which torch cannot share
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no function writes to its input
        return torch.from_numpy(array)


def _from_sequence(values: Sequence[Any], name: str) -> Tensor:
    """A list of numbers, or of rows: lists, tuples, or arrays of any kind."""
    numbers, shape = list(values), [len(values)]
    while numbers and isinstance(numbers[0], list | tuple):
        shape.append(_one_length([len(row) if isinstance(row, list | tuple) else None for row in numbers], name))
        numbers = list(chain.from_iterable(numbers))
    plain = not numbers or isinstance(numbers[0], int | float)
    if not plain and (isinstance(numbers[0], Tensor) or hasattr(numbers[0], "__array__")) and numbers[0].ndim:
        rows = [to_tensor(row, name) for row in numbers]
        _one_length([len(row) for row in rows], name)
        return _stack(rows)
    if numbers and all(isinstance(each, Tensor) for each in numbers):
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
    """Tensors of one shape beside each other, in float64 if their dtypes differ."""
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
    for place, each in enumerate(ids):
        if is_missing(each):
            raise DataError(f"qid is missing in row {rows[place]}: every row needs the id of its query")
        if isinstance(each, list | dict | set):
            raise DataError(f"qid must hold one id per row, got {each!r:.40} in row {rows[place]}")


def article(name: str) -> str:
    """The name of a type with its article.

    >>> article("int")
    'an int'
    """
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

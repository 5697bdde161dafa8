"""Save and load a `RankingSet` as a folder of `.npy` files, with a description of them for the manifest."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrank.data.batch import grades_of
from torchrank.data.letor.strings import Strings
from torchrank.data.relevance import Explicit
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.progress import bar

Plain = dict[str, Any]  # of plain values, which JSON can hold
SMALL = 1 << 20  # bytes of a file whose checksum is verified whenever it is opened
FLOATS, INTEGERS = (np.float32, np.float64, np.float16), (np.int64, np.int32)
NUMBERS = (*FLOATS, *INTEGERS, np.int16, np.int8, np.uint8, np.bool_)
KINDS: dict[str, tuple[Any, ...]] = {  # the files of a cache, and what they may hold
    "x": FLOATS,
    "values": FLOATS,
    "columns": INTEGERS,
    "row_offsets": (np.int64,),
    "labels": NUMBERS,
    "offsets": (np.int64,),
    "query_ids": (np.uint8,),
    "query_ids_offsets": (np.int64,),
    "document_ids": (np.uint8,),
    "document_ids_offsets": (np.int64,),
    "weights": FLOATS,
    "positions": (np.int64,),
}
ROWS = ("x", "values", "columns")
TICK = 50 * 10**6  # ns: two changes of a file that are closer may have the same time


class DamagedError(ValueError):
    """The files of a cache are not those that were written, or belong to other data."""


def state(path: Path) -> list[int]:
    """Size, modification time, change time and inode of a file: at least one changes whenever it is written to."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def is_fresh(state: list[int], checked: int, span: int) -> bool:
    """Whether a file changed so shortly before `checked` that it may have changed again without a new state.

    A time far in the future comes from another clock: the next change would show.
    """
    return any(abs(checked - moment) < span for moment in state[1:3])


def read_all(paths: list[Path], what: str) -> Iterator[bytes]:
    """The content of the files piece by piece, with a progress bar if it takes longer than two seconds."""
    total = sum(path.stat().st_size for path in paths)
    with bar(total=total, desc=f"{what} {paths[0].name}", unit="B", unit_scale=True, leave=True) as progress:
        for path in paths:
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    yield piece
                    progress.update(len(piece))


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    value = 0
    for piece in read_all([path], "check"):
        value = zlib.crc32(piece, value)
    return value


def save_set(folder: Path, lists: RankingSet) -> Plain:
    """Write the arrays of a set; returns their description, which `load_set` takes."""
    files = {}
    for name, array in _arrays(lists).items():
        _save(folder / f"{name}.npy", array)
        description = {"shape": list(array.shape), "dtype": str(array.dtype)}
        files[name] = {**description, **_check(folder / f"{name}.npy")}
    known = ("name", "num_features", "feature_names")
    return {"files": files, **{part: getattr(lists, part) for part in known}}


def _save(path: Path, array: np.ndarray) -> None:
    """Write an .npy file to the disk. `numpy.save` does not notice if the last bytes had no room there."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def check_set(folder: Path, description: Plain) -> Plain:
    """The description, with new states of files that were only copied or touched; raises `DamagedError` otherwise."""
    files = {name: known for name, known in description["files"].items() if name in KINDS}
    width = description["num_features"]
    files = {name: {**known, **_check_again(folder / f"{name}.npy", known, width)} for name, known in files.items()}
    return {**description, "files": files}


def _check(path: Path) -> Plain:
    before = state(path)
    return {"state": before, "checksum": checksum(path), "checked": time.time_ns()}


def _check_again(path: Path, known: Plain, width: int) -> Plain:
    """What is new about a file. A large file whose state is the known one is trusted without reading it."""
    found = state(path)
    trusted = found == known["state"] and not is_fresh(found, known["checked"], TICK)
    if trusted and found[0] > SMALL:
        return {}
    if found[0] != known["state"][0]:
        raise DamagedError(f"{path.name} is damaged: it has {found[0]} bytes, expected {known['state'][0]}")
    checked = _check(path)
    if checked["checksum"] != known["checksum"]:
        raise DamagedError(f"{path.name} is damaged: its checksum is wrong")
    if path.stem in ROWS:
        _check_rows(path.stem, _load(path, known), width)
    return {} if trusted else checked


def _arrays(lists: RankingSet) -> dict[str, np.ndarray]:
    arrays = {"labels": lists.labels.numpy(), "offsets": lists.offsets.numpy()}
    given = {"weights": lists.weights, "positions": lists.positions}
    arrays |= {name: each.numpy() for name, each in given.items() if each is not None}
    if isinstance(lists.x, SparseRows):
        for part in ("values", "columns", "row_offsets"):
            arrays[part] = vars(lists.x)[part].numpy()
    else:
        arrays["x"] = lists.x.numpy()
    for part, ids in (("query_ids", lists.query_ids), ("document_ids", lists.document_ids)):
        if ids is not None:
            texts = ids if isinstance(ids, Strings) else Strings.join(str(text).encode() for text in ids)
            arrays[part], arrays[f"{part}_offsets"] = texts.data, texts.offsets
    return arrays


def load_set(folder: Path, description: Plain) -> RankingSet:
    """The set, its arrays mapped copy-on-write: pages are read when they are used, and the files never change.

    Labels, offsets and ids are checked. Rows are checked only when `check_set` reads them: it would take seconds.
    """
    arrays = {name: _load(folder / f"{name}.npy", known) for name, known in description["files"].items()}

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name])

    def ids(name: str) -> Strings | None:
        if name not in arrays:
            return None
        _check_offsets(f"{name}_offsets", arrays[f"{name}_offsets"], len(arrays[name]))
        return Strings(arrays[name], arrays[f"{name}_offsets"])

    x: torch.Tensor | SparseRows
    if "x" in arrays:
        x = tensor("x")
    else:
        _check_offsets("row_offsets", arrays["row_offsets"], len(arrays["values"]))
        x = SparseRows(tensor("values"), tensor("columns"), tensor("row_offsets"), description["num_features"])
    labels = tensor("labels")
    lists = RankingSet(
        x,
        Explicit(labels, tensor("offsets"), num_grades=grades_of(labels)),  # which refuses labels that are not finite
        query_ids=ids("query_ids"),
        document_ids=ids("document_ids"),
        name=description["name"],
        feature_names=description.get("feature_names"),
        weights=tensor("weights") if "weights" in arrays else None,
        positions=tensor("positions") if "positions" in arrays else None,
    )
    if lists.num_features != description["num_features"]:
        raise DamagedError(f"it has {lists.num_features} features, expected {description['num_features']}")
    return lists


def _load(path: Path, known: Plain) -> np.ndarray:
    array = np.lib.format.open_memmap(path, mode="c")
    if list(array.shape) != known["shape"] or str(array.dtype) != known["dtype"]:
        raise DamagedError(
            f"{path.name} is damaged: it holds {array.dtype} {array.shape}, expected {known['dtype']} {known['shape']}"
        )
    if array.dtype not in KINDS[path.stem] or array.ndim != (2 if path.stem == "x" else 1):
        raise DamagedError(f"{path.name} is damaged: {array.dtype} {array.shape} is not what such a file holds")
    return array


def _check_rows(name: str, array: np.ndarray, width: int) -> None:
    """Refuse rows that are not finite, and columns that do not exist."""
    if not array.size:
        return
    low, high = torch.from_numpy(array).aminmax()  # both are NaN if any number is
    if not (low.isfinite() and high.isfinite()) or (name == "columns" and not 0 <= low <= high < width):
        raise DamagedError(f"{name}.npy is damaged: its values run over {low.item()}..{high.item()}")


def _check_offsets(name: str, offsets: np.ndarray, length: int) -> None:
    if offsets[:1].tolist() != [0] or offsets[-1] != length or (np.diff(offsets) < 0).any():
        raise DamagedError(f"{name}.npy is damaged: its numbers must ascend from 0 to {length}")

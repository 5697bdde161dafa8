"""Save and load a `RankingSet` as a folder of `.npy` files, with a description of them for the manifest."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrank.data.relevance import Explicit
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.strings import Strings
from torchrank.progress import bar

Plain = dict[str, Any]  # of plain values, which JSON can hold
SMALL = 1 << 20  # bytes of a file whose checksum is verified whenever it is opened
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
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
        description = {"shape": list(array.shape), "dtype": str(array.dtype)}
        files[name] = {**description, **_check(folder / f"{name}.npy")}
    known = ("name", "num_features", "num_grades", "feature_names")
    return {"files": files, **{part: getattr(lists, part) for part in known}}


def check_set(folder: Path, description: Plain) -> Plain:
    """The description, with new states of files that were only copied or touched; raises `DamagedError` otherwise."""
    files = {
        name: {**known, **_check_again(folder / f"{name}.npy", known)} for name, known in description["files"].items()
    }
    return {**description, "files": files}


def _check(path: Path) -> Plain:
    before = state(path)
    return {"state": before, "checksum": checksum(path), "checked": time.time_ns()}


def _check_again(path: Path, known: Plain) -> Plain:
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
    return {} if trusted else checked


def _arrays(lists: RankingSet) -> dict[str, np.ndarray]:
    arrays = {"labels": lists.labels.numpy(), "offsets": lists.offsets.numpy(), "pairs": lists.pairs}
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
    """The set, its arrays mapped copy-on-write: pages are read when they are used, and the files never change."""
    arrays = {name: _load(folder / f"{name}.npy", known) for name, known in description["files"].items()}

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name])

    def ids(name: str) -> Strings | None:
        return Strings(arrays[name], arrays[f"{name}_offsets"]) if name in arrays else None

    x: torch.Tensor | SparseRows
    if "x" in arrays:
        x = tensor("x")
    else:
        x = SparseRows(tensor("values"), tensor("columns"), tensor("row_offsets"), description["num_features"])
    return RankingSet(
        x,
        Explicit(tensor("labels"), tensor("offsets"), pairs=arrays["pairs"], num_grades=description["num_grades"]),
        query_ids=ids("query_ids"),
        document_ids=ids("document_ids"),
        name=description["name"],
        feature_names=description.get("feature_names"),
    )


def _load(path: Path, known: Plain) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    if list(array.shape) != known["shape"] or str(array.dtype) != known["dtype"]:
        raise DamagedError(
            f"{path.name} is damaged: it holds {array.dtype} {array.shape}, expected {known['dtype']} {known['shape']}"
        )
    return array

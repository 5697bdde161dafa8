"""A `RankingSet` as a folder of `.npy` files and the description of them that goes into the manifest."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch

from torchrank.data.lists import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.strings import Strings

ENDS = 1 << 19  # bytes at either end of a file that its checksum covers: a large file is not read to be opened


class DamagedError(ValueError):
    """The files of a cache are not those that were written, or not of these data."""


def save_set(folder: Path, lists: RankingSet) -> dict:
    """Write the arrays of a set; what comes back describes them and goes into `load_set`."""
    files = {}
    for name, array in _arrays(lists).items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
        size = (folder / f"{name}.npy").stat().st_size
        description = {"shape": list(array.shape), "dtype": str(array.dtype), "size": size}
        files[name] = {**description, "ends": _ends(folder / f"{name}.npy", size)}
    return {"files": files, "name": lists.name, "num_features": lists.num_features, "num_grades": lists.num_grades}


def _arrays(lists: RankingSet) -> dict[str, np.ndarray]:
    arrays = {"labels": lists.labels.numpy(), "offsets": lists.offsets.numpy(), "pairs": lists.pairs}
    if isinstance(lists.x, SparseRows):
        for part in ("values", "columns", "row_offsets"):
            arrays[part] = vars(lists.x)[part].numpy()
    else:
        arrays["x"] = lists.x.numpy()
    for part, tensor in (("index", lists.index), ("queries", lists.queries)):
        if tensor is not None:
            arrays[part] = tensor.numpy()
    for part, ids in (("query_ids", lists.query_ids), ("document_ids", lists.document_ids)):
        if ids is not None:
            texts = ids if isinstance(ids, Strings) else Strings.join(str(text).encode() for text in ids)
            arrays[part], arrays[f"{part}_offsets"] = texts.data, texts.offsets
    return arrays


def load_set(folder: Path, description: dict) -> RankingSet:
    """The set, its arrays mapped copy-on-write: pages are read when they are looked at, the files never change."""
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
        tensor("labels"),
        tensor("offsets"),
        index=tensor("index") if "index" in arrays else None,
        queries=tensor("queries") if "queries" in arrays else None,
        query_ids=ids("query_ids"),
        document_ids=ids("document_ids"),
        name=description["name"],
        pairs=arrays["pairs"],
        num_grades=description["num_grades"],
    )


def _load(path: Path, known: dict) -> np.ndarray:
    size = path.stat().st_size
    if size != known["size"]:
        raise DamagedError(f"{path.name} is damaged: it has {size} bytes, {known['size']} were written")
    if _ends(path, size) != known["ends"]:
        raise DamagedError(f"{path.name} is damaged: its checksum is wrong")
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if list(array.shape) != known["shape"] or str(array.dtype) != known["dtype"]:
        raise DamagedError(
            f"{path.name} is damaged: it holds {array.dtype} {array.shape}, expected {known['dtype']} {known['shape']}"
        )
    return array


def _ends(path: Path, size: int) -> int:
    """CRC-32 of the first and the last half megabyte."""
    with path.open("rb") as file:
        start = zlib.crc32(file.read(ENDS))
        file.seek(max(ENDS, size - ENDS))
        return zlib.crc32(file.read(ENDS), start)

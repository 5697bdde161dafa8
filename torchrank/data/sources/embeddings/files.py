"""Files of vectors, `.npy` or `.safetensors`, mapped: only what is used is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torchrank.errors import DataError

FLOATS = (torch.float16, torch.float32, torch.float64)
SUFFIXES = (".npy", ".safetensors")
CHECKED = 2**14  # rows at a time


def map_vectors(path: Path) -> Tensor:
    """The vectors (n, D) of a file, one in each row, in its type: float16, float32 or float64.

    Args:
        path: ends in `.npy` or `.safetensors`; the latter must hold one array. Nothing in it is executed.

    Returns:
        A tensor whose memory is the file. Writing to it does not change the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "vectors.npy")
        >>> np.save(path, np.ones((2, 3), dtype=np.float16))
        >>> map_vectors(path).shape
        torch.Size([2, 3])
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: expected vectors in a file that ends in {' or '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, expected a file of vectors")
    array = _mapped_npy(path) if path.suffix == ".npy" else _mapped_safetensors(path)
    if array.ndim != 2 or array.dtype not in FLOATS or 0 in array.shape:
        found = f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"
        raise DataError(f"{path}: expected a vector of float16, float32 or float64 in each row, found {found}")
    return array


def _mapped_npy(path: Path) -> Tensor:
    try:
        array: Any = np.load(path, mmap_mode="c", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: expected one array, found an archive: save it by numpy.save")
        return torch.from_numpy(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
    except TypeError:
        raise DataError(f"{path}: expected a vector of floats in each row, found {array.dtype}") from None
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read: {error}") from None


def _mapped_safetensors(path: Path) -> Tensor:
    try:
        file: Any = safe_open(path, "pt")
        names = list(file.keys())
        if len(names) == 1:
            tensor: Tensor = file.get_tensor(names[0])
            return tensor
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    raise DataError(f"{path}: expected one array, found {', '.join(sorted(names)) or 'none'}")


def check_vectors(rows: Tensor, where: str, what: str, start: int = 0) -> None:
    """Refuse vectors that are not finite, with the number of the first one.

    Args:
        rows: (n, D), read once.
        where: the words before the number of the row, such as `corpus.npy: row`.
        what: the words after it.
        start: the number of the first row.

    Example:
        >>> check_vectors(torch.tensor([[1.0], [torch.nan]]), "a.npy: row", "is not finite: embed this text again")
        Traceback (most recent call last):
        torchrank.errors.DataError: a.npy: row 1 is not finite: embed this text again
    """
    for place, part in enumerate(rows.split(CHECKED)):
        if not part.sum(dtype=torch.float64).isfinite() and not part.isfinite().all():
            row = start + place * CHECKED + int((~part.isfinite()).any(1).nonzero()[0])
            raise DataError(f"{where} {row} {what}")

"""Rows that the processes of one machine make together and hold once, in memory that they share."""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from torchrank.data.rows import Share


def shared_rows(count: int, width: int, share: Share) -> Tensor | None:
    """Float32 rows (count, width) in the same memory of all processes, not yet filled.

    The memory belongs to a file that has no name any more when this returns: it ends with the last process.

    Args:
        count: of the rows.
        width: numbers of a row.
        share: of this process.

    Returns:
        The rows; None in all processes if they are not on one machine, or if it has no room for such a file.

    Example:
        >>> shared_rows(3, 2, Share()).shape
        torch.Size([3, 2])
    """
    size, path = 4 * count * width, None
    if size == 0:
        return None
    number = torch.zeros(1, dtype=torch.int64)
    if share.rank == 0 and (path := _reserved(size)) is not None:
        number += int(path.name.rpartition("-")[2])
    number = share.reduce(number)
    memory = _opened(int(number), size)
    missing = share.reduce(torch.tensor([memory is None]).long())  # now all have opened it, or none will use it
    if path is not None:
        path.unlink()
    if memory is None or missing.any():
        return None
    return torch.frombuffer(memory, dtype=torch.float32).view(count, width)


def _places(number: int) -> Iterator[Path]:
    """Where the file may lie: in memory, or else where temporary files do."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if os.path.isdir(folder):
            yield Path(folder, f"torchrank-rows-{number}")


def _reserved(size: int) -> Path | None:
    """A new file whose bytes are all there: to write beyond what a disk holds would kill the process."""
    for path in _places(secrets.randbelow(2**62) + 1):
        with suppress(OSError, AttributeError):  # there is no posix_fallocate on some systems
            place = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(place, 0, size)
                return path
            except BaseException:
                path.unlink()
                raise
            finally:
                os.close(place)
    return None


def _opened(number: int, size: int) -> mmap.mmap | None:
    """The memory of the file, if it is on this machine."""
    for path in _places(number):
        with suppress(OSError), open(path, "r+b") as file:
            if os.fstat(file.fileno()).st_size == size:
                return mmap.mmap(file.fileno(), size)
    return None

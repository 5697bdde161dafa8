"""How far a compressed file may expand: far beyond any real data, and before a bomb takes the memory of the machine."""

import os
from collections.abc import Iterable, Iterator
from typing import Protocol

from torchrank.errors import DataError

VARIABLE = "TORCHRANK_MAX_MB"  # raises the limit
RATIO = 100  # text of rankings is compressed 5 to 20 times; gzip reaches 1,000, zstd more


def limit() -> int:
    """Bytes that every file may expand to, and that a line may have, however small the file is.

    Example:
        >>> limit() // 2**20
        256
    """
    given = os.environ.get(VARIABLE, "256")
    if not given.isdecimal() or len(given) > 12:
        raise ValueError(f"{VARIABLE} must be a number of megabytes, got {given[:60]!r}")
    return int(given) * 2**20


def check_expansion(where: object, expanded: int, compressed: int, whole: int | None = None) -> None:
    """Refuse a file that expands to more than `limit()` bytes and to more than 100 times its size.

    Args:
        where: the file.
        expanded: bytes that it has expanded to so far.
        compressed: bytes that were read for them.
        whole: bytes that all of it will expand to, as far as the file tells; by default `expanded`.

    Example:
        >>> check_expansion("train.npz", expanded=2**40, compressed=10**6)
        Traceback (most recent call last):
        torchrank.errors.DataError: train.npz: 1000000 bytes expand to 1099511627776 or more, over 100 times as many: \
if you trust the file, set TORCHRANK_MAX_MB=1048576 in the environment to read it
    """
    if expanded > max(limit(), RATIO * compressed):
        known = expanded if whole is None else max(expanded, whole)
        least = "" if whole is None or whole >= expanded else " or more"
        raise DataError(
            f"{where}: {compressed} bytes expand to {expanded} or more, over {RATIO} times as many: if you trust the "
            f"file, set {VARIABLE}={-(-known // 2**20)}{least} in the environment to read it"
        )


def check_line(where: str, line: int, length: int) -> None:
    """Refuse a line that does not end within `limit()` bytes."""
    if length > limit():
        raise DataError(
            f"{where}, line {line}: no line break in {length} bytes, expected one document per line: if you trust the "
            f"file, set {VARIABLE} in the environment to more than {limit() // 2**20} megabytes"
        )


class Counted(Protocol):
    """A stream that knows how many of its bytes were read."""

    count: int


def bounded(where: str, pieces: Iterable[bytes], source: Counted, whole: int) -> Iterator[bytes]:
    """The pieces of expanded data, until they are out of proportion to the bytes that were read for them."""
    expanded = 0
    for piece in pieces:
        expanded += len(piece)
        check_expansion(where, expanded, source.count, whole)
        yield piece

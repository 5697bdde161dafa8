"""The names of the features, given as a list or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchrank.data.letor.files import read_lines
from torchrank.errors import DataError


def folder_of(root: str | Path | None) -> str:
    """How a message names the folder that files are relative to."""
    return "the current folder" if root is None else f"data.root={root}"


def read_names(given: str | Path | Sequence[str], root: str | Path | None, count: int) -> tuple[str, ...]:
    """The names of `count` features.

    Args:
        given: the names, or a file with one name per line; blank lines do not count.
        root: the folder of the file; by default the current one.
        count: how many are expected.

    Example:
        >>> read_names(["bm25", "pagerank"], None, 2)
        ('bm25', 'pagerank')
    """
    where, names = "data.feature_names", given
    if isinstance(given, str | Path):
        path = Path("." if root is None else root) / given
        if not path.is_file():
            place = f"data.feature_names={given}, relative to {folder_of(root)}"
            raise FileNotFoundError(f"not found: {path} ({place})")
        where, names = str(path), [line.decode(errors="backslashreplace") for _, line in read_lines(path) if line]
    found = tuple(str(name).strip() for name in names)  # type: ignore[union-attr]
    if len(found) != count:
        raise DataError(f"{where}: {len(found)} names for {count} features, expected one name per feature")
    if repeated := next((name for place, name in enumerate(found) if name in found[:place]), None):
        raise DataError(f"{where}: the name {repeated!r} occurs twice, expected different names")
    return found

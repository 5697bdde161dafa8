"""Many short texts in two arrays, so that ids can be memory-mapped and are decoded only when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np


class Strings(Sequence[str]):
    """A sequence of texts: text i is the UTF-8 bytes `offsets[i]:offsets[i + 1]` of `data`.

    Bytes that are not UTF-8 are shown as `\\xff`.

    Args:
        data: (bytes,) all texts, uint8.
        offsets: (n + 1,) where each text begins and ends, int64.

    Example:
        >>> ids = Strings.join([b"GX000-00", b"", b"page 7"])
        >>> len(ids), ids[0], ids[-1], list(ids[1:])
        (3, 'GX000-00', 'page 7', ['', 'page 7'])
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray):
        self.data, self.offsets = data, offsets

    @classmethod
    def join(cls, texts: Iterable[bytes]) -> Strings:
        """The texts, given as UTF-8 bytes."""
        texts = list(texts)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), np.concatenate(([0], np.cumsum(lengths))))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        place = range(len(self))[place]  # negative places, and an IndexError beyond the end
        text: bytes = self.data[self.offsets[place] : self.offsets[place + 1]].tobytes()
        return text.decode(errors="backslashreplace")

    def __iter__(self) -> Iterator[str]:
        data, bounds = self.data.tobytes(), self.offsets.tolist()
        for start, stop in pairwise(bounds):
            yield data[start:stop].decode(errors="backslashreplace")

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(list(self), dtype=dtype if dtype is not None else str)

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 3 else ""
        return f"Strings([{', '.join(map(repr, self[:3]))}{more}], {len(self)} texts)"

"""What the two parsers of LETOR text share: the options, the rows they return, and the grammar of the tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
LARGEST_INDEX = 2**31 - 1
NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
DOCUMENT = re.compile(rb"docid\s*=\s*(\S+)")


@dataclass(frozen=True)
class Form:
    """The options of `read_letor` that describe the file."""

    qid: str = "token"
    num_features: int | None = None
    unjudged: str | float = "error"
    missing: str | float = "error"
    sentinel: str | float = "error"
    whole: bool = False  # keep whole comments and all digits: numbers in float64, for conversions

    def numbers(self, numbers: np.ndarray | list[float]) -> np.ndarray:
        """The numbers in the precision of the form; infinite if they do not fit."""
        return np.asarray(numbers, dtype=np.float64) if self.whole else single(numbers)

    def document(self, comment: bytes) -> bytes:
        """What is kept of a comment."""
        return comment.strip() if self.whole else document_id(comment)

    @property
    def heads(self) -> int:
        """The number of tokens before the features."""
        return 2 if self.qid == "token" else 1

    @property
    def last_index(self) -> int:
        """The largest index that is allowed."""
        return LARGEST_INDEX if self.num_features is None else self.num_features


class Rows(NamedTuple):
    """The rows of a block; the features of row r are the next `counts[r]` of `columns` and `values`."""

    labels: np.ndarray  # (R,) float32
    queries: list[bytes] | None  # None: they are in a side file
    documents: list[bytes] | None  # None: no comments
    counts: np.ndarray  # (R,) int64
    columns: np.ndarray  # (T,) int32, from 0, ascending in each row
    values: np.ndarray  # (T,) float32
    filled: int  # number of NULLs that were replaced
    clipped: int  # number of values beyond float32 that were clipped or replaced


def document_id(comment: bytes) -> bytes:
    """The document id in a comment: X in LETOR's `docid = X inc = ...`, otherwise the whole comment.

    Example:
        >>> document_id(b"docid = GX000-00-0000000 inc = 1 prob = 0.0246906"), document_id(b" page 7 ")
        (b'GX000-00-0000000', b'page 7')
    """
    found = DOCUMENT.match(comment.strip())
    return found[1] if found else comment.strip()


def show(token: bytes) -> str:
    """A token as messages quote it: readable, on one line, at most 60 characters long."""
    text = ascii(token.decode(errors="backslashreplace"))
    return text if len(text) <= 60 else text[:57] + "..."


def single(numbers: np.ndarray | list[float]) -> np.ndarray:
    """The numbers in float32, rounded by numpy; infinite if they do not fit."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(numbers, dtype=np.float64).astype(np.float32)

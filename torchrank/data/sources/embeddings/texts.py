"""The texts of a folder in BEIR's layout as a stream: `corpus.jsonl` and `queries.jsonl`, one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchrank.data.sources.limits import check_line, limit
from torchrank.errors import DataError
from torchrank.progress import bar

TEMPLATE = "{title} {text}"
EXPECTED = 'a JSON object such as {"_id": "7", "text": "..."}'
OPTIONAL = ("title",)  # fields that a line may lack


class Text(NamedTuple):
    """A text, and where it stands."""

    id: str
    text: str
    line: int  # from 1


class Survey(NamedTuple):
    """What a first look at all lines of a file tells."""

    texts: int
    checksum: str  # of all ids and texts, in their order
    empty: int  # texts without a character
    first_empty: int  # line of the first of them, 0 without one


def fields_of(template: str) -> list[str]:
    """The fields that a template names in braces; one without any is refused.

    Args:
        template: text with fields, such as `{title} {text}`.

    Returns:
        The names of the fields.

    Example:
        >>> fields_of("{title}: {text}")
        ['title', 'text']
    """
    fields = re.findall(r"\{(\w+)\}", template)
    if not fields:
        raise ValueError(f"the template of texts (--text) must name a field such as {{text}}, got {template!r}")
    return fields


def read_texts(path: Path, template: str = TEMPLATE) -> Iterator[Text]:
    """The texts of a file, one after the other; blank lines do not count.

    Args:
        path: the file.
        template: how the fields of a line become a text. An absent title is empty; spaces at the ends are removed.

    Returns:
        Id, text and line of each.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "corpus.jsonl")
        >>> _ = path.write_text('{"_id": 1, "title": "A", "text": "b c"}\\n{"_id": "x", "text": "d"}')
        >>> [(each.id, each.text) for each in read_texts(path)]
        [('1', 'A b c'), ('x', 'd')]
    """
    fields = fields_of(template)
    for number, line in read_lines(path):
        yield _text(line, f"{path}, line {number}", template, fields)._replace(line=number)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1; blank lines do not count.

    Args:
        path: of a text in UTF-8, with or without a mark of its byte order.

    Returns:
        Number and text of each.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "qrels.tsv")
        >>> _ = path.write_bytes(b"1 d1 1\\r\\n\\r\\n2 d1 1")
        >>> list(read_lines(path))
        [(1, '1 d1 1\\r\\n'), (3, '2 d1 1')]
    """
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, limit() + 1), b""), start=1):
            check_line(str(path), number, len(line))
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise DataError(f"{path}, line {number}: this is no text in UTF-8") from None
            if text.strip():
                yield number, text


def listed_ids(path: Path) -> list[str]:
    """The ids of a file that has one in each line.

    Args:
        path: such as `corpus.ids`.

    Returns:
        The ids, without spaces around them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "corpus.ids")
        >>> _ = path.write_text("007\\nd 2\\n\\n")
        >>> listed_ids(path)
        ['007', 'd 2']
    """
    return [line.strip() for _, line in read_lines(path)]


def _text(line: str, where: str, template: str, fields: list[str]) -> Text:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{where}: expected {EXPECTED}")
    name = found.get("_id")
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise DataError(f'{where}: expected a JSON object with "_id", a string or an integer')
    values = {field: _value(found, field, where) for field in fields}
    text = re.sub(r"\{(\w+)\}", lambda field: values[field[1]], template).strip()
    try:
        f"{name}{text}".encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a character, {error.object[error.start]!r}, which no model reads") from None
    return Text(str(name), text, 0)


def _value(found: dict[str, Any], field: str, where: str) -> str:
    value = found.get(field)
    if value is None and field in OPTIONAL:
        return ""
    if not isinstance(value, str):
        raise DataError(f'{where}: expected a JSON object with "{field}", a string')
    return value


class Checksum:
    """The SHA-256 of ids and texts in their order.

    Example:
        >>> checksum = Checksum()
        >>> checksum.add(Text("1", "a b", 1))
        >>> len(checksum.told())
        64
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, each: Text) -> None:
        self._hash.update(f"{len(each.id)} {each.id} {len(each.text)} {each.text}\n".encode())

    def told(self) -> str:
        return self._hash.hexdigest()


def survey_texts(path: Path, template: str = TEMPLATE) -> Survey:
    """Look at all lines of a file: each must have an id of its own and a text.

    Args:
        path: the file. Beside it `corpus.ids`, if it is there, must have the same ids in the same order.
        template: as in `read_texts`.

    Returns:
        Counts, and the checksum of all ids and texts. Memory is needed for 8 bytes per line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "queries.jsonl")
        >>> _ = path.write_text('{"_id": "1", "text": "b c"}\\n{"_id": "2", "text": ""}')
        >>> survey_texts(path)._replace(checksum="")
        Survey(texts=2, checksum='', empty=1, first_empty=2)
    """
    checksum, hashes, empty, first = Checksum(), array("q"), 0, 0
    for each in bar(read_texts(path, template), desc=f"checking {path.name}", unit=" texts"):
        checksum.add(each)
        hashes.append(hash(each.id))
        if not each.text:
            empty, first = empty + 1, first or each.line
    if not hashes:
        raise DataError(f"{path}: no text in it, expected in each line {EXPECTED}")
    _check_different(path, template, np.frombuffer(hashes, dtype=np.int64))
    _check_listed(path, template)
    return Survey(len(hashes), checksum.told(), empty, first)


def _check_different(path: Path, template: str, hashes: np.ndarray) -> None:
    """Refuse an id that occurs twice; equal hashes alone prove nothing."""
    values, counts = np.unique(hashes, return_counts=True)
    suspects = set(values[counts > 1].tolist())
    seen: dict[str, int] = {}
    for each in read_texts(path, template) if suspects else ():
        if hash(each.id) in suspects and seen.setdefault(each.id, each.line) != each.line:
            raise DataError(
                f"{path}, line {each.line}: the id {each.id!r} stands in line {seen[each.id]} as well, expected "
                "different ids"
            )


def _check_listed(path: Path, template: str) -> None:
    """Refuse a file of ids in another order: readers would take the vectors in its order."""
    listed = path.with_suffix(".ids")
    if not listed.is_file():
        return
    if listed_ids(listed) != [each.id for each in read_texts(path, template)]:
        raise DataError(
            f"{listed}: its ids are not those of {path.name} in their order, in which the vectors are written: move it "
            "away"
        )

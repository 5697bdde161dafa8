"""The bytes of a data file, plain or compressed, in blocks of whole lines; and the side file with the list lengths."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from torchrank.data.letor.form import LARGEST, NUMBER, show
from torchrank.data.sources.limits import bounded, check_line
from torchrank.errors import DataError
from torchrank.progress import bar

BLOCK = 4 << 20
ZSTD_PIECE = 1 << 12
WIDEST = 2**24  # features that a file may have without being asked for
STDIN = "stdin"  # the name of a stream, in messages
KINDS: dict[str, tuple[str, re.Pattern[bytes], Any]] = {  # of the numbers beside the rows: wanted, pattern, type
    "weight": ("finite number of 0 or more", re.compile(rb"\+?" + NUMBER.pattern.removeprefix(rb"[+-]?")), np.float64),
    "position": ("integer of 0 or more", re.compile(rb"[0-9]{1,15}(?:\.0*)?"), np.int64),
}
GZIP, ZSTD, BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Whole lines of a file."""

    text: bytes
    first_line: int  # from 1
    share: float  # how much of the file is read


def read_blocks(source: Path | BinaryIO, size: int = BLOCK) -> Iterator[Block]:
    """The file in blocks of whole lines, without a BOM; gzip and zstd are recognised by their first bytes.

    The source may also be an open stream such as `sys.stdin.buffer`, which is read to its end. A progress bar is shown
    on a terminal if it takes longer than two seconds.
    """
    name, total = (source.name, max(source.stat().st_size, 1)) if isinstance(source, Path) else (STDIN, None)
    shown = bar(total=total, desc=f"read {name}", unit="B", unit_scale=True, leave=True)
    with _open(source) as raw, shown as progress:
        pieces: list[bytes] = []  # of a line that is longer than a block
        line = 1
        for chunk in _chunks(raw, size, str(source) if isinstance(source, Path) else STDIN):
            read = raw.tell() if total else progress.n + len(chunk)
            cut = chunk.rfind(b"\n") + 1
            pieces.append(chunk[:cut] if cut else chunk)
            check_line(str(source) if isinstance(source, Path) else STDIN, line, sum(map(len, pieces)))
            if cut:
                block = b"".join(pieces)
                yield Block(block.removeprefix(BOM) if line == 1 else block, line, read / total if total else 1.0)
                line, pieces = line + block.count(b"\n"), [chunk[cut:]]
            progress.update(read - progress.n)
        if block := b"".join(pieces):
            yield Block(block.removeprefix(BOM) if line == 1 else block, line, 1.0)


@contextmanager
def _open(source: Path | BinaryIO) -> Iterator[Any]:
    if isinstance(source, Path):
        with source.open("rb") as raw:
            yield raw
        return
    buffered = BufferedReader(source)  # type: ignore[type-var]  # any stream that can be read into a buffer
    try:
        yield buffered
    finally:
        buffered.detach()  # the stream stays open


def _chunks(raw: Any, size: int, where: str) -> Iterator[bytes]:
    start = raw.peek(4)[:4]
    counted = _Counted(raw)
    opened = _plain(raw, size)
    if _is_compressed(start):
        texts = _zstd(counted, size) if start == ZSTD else _gzip(counted, size)
        opened = bounded(where, texts, counted, _announced(raw, start))
    try:
        yield from opened
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the data
        raise DataError(f"{where}: the compressed data is damaged or truncated: {error}. Get the file again") from error


def _is_compressed(start: bytes) -> bool:
    return start.startswith(GZIP) or start == ZSTD


def _announced(raw: Any, start: bytes) -> int:
    """The expanded size as the file itself tells it: in the header of the first zstd frame, or in the last bytes of
    gzip, modulo 2^32; 0 if it does not."""
    if start == ZSTD:
        zstandard = import_zstandard()
        try:
            return max(0, int(zstandard.frame_content_size(raw.peek(18)[:18])))
        except zstandard.ZstdError:  # told when it is read
            return 0
    if not raw.seekable():
        return 0
    place = raw.tell()
    raw.seek(max(place, raw.seek(0, os.SEEK_END) - 4))
    size = int.from_bytes(raw.read(4), "little")
    raw.seek(place)
    return size


def check_compressed(path: Path) -> None:
    """Expand a compressed file to its end and keep nothing: damage is an error, and so is too large a size."""
    with path.open("rb") as raw:
        if _is_compressed(raw.peek(4)[:4]):
            deque(_chunks(raw, BLOCK, str(path)), maxlen=0)


class _Counted:
    """A stream, and how many of its bytes were read."""

    def __init__(self, raw: Any):
        self.raw, self.count = raw, 0

    def read(self, size: int = -1) -> bytes:
        found: bytes = self.raw.read(size)
        self.count += len(found)
        return found


def _plain(raw: Any, size: int) -> Iterator[bytes]:
    while chunk := raw.read(size):
        yield chunk


def _gzip(raw: _Counted, size: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=raw) as stream:  # type: ignore[call-overload]  # all it needs is `read`
        yield from _plain(stream, size)


def _zstd(raw: _Counted, size: int) -> Iterator[bytes]:
    """The text frame by frame: the stream reader of zstandard accepts a truncated file.

    Four bytes can expand to 128 KB, so little is decompressed at a time.
    """
    zstandard = import_zstandard()
    frame = None
    rest, texts, length = b"", [], 0
    while chunk := rest or raw.read(min(size, ZSTD_PIECE)):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        try:
            text = frame.decompress(chunk)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        rest = frame.unused_data
        frame = None if frame.eof else frame
        texts.append(text)
        length += len(text)
        if length >= size:
            yield b"".join(texts)
            texts, length = [], 0
    if length:
        yield b"".join(texts)
    if frame is not None:
        raise EOFError("the last zstd frame is incomplete")


def import_zstandard() -> Any:
    """The package for .zst files."""
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("reading .zst files needs zstandard: pip install 'torchrank-ltr[zstd]'") from error
    return zstandard


def side_file(path: Path, query_file: str | Path | None) -> Path:
    """The file with the list lengths: the given one, or `path` with .query (LightGBM) or .group (XGBoost) added.

    For a compressed file `rank.train.gz` it may also be `rank.train.query` or `rank.train.group`.
    """
    if query_file is not None:
        return Path(query_file)
    names = [path.name, path.stem] if path.suffix in (".gz", ".zst") else [path.name]
    sides = [path.with_name(name + suffix) for name in names for suffix in (".query", ".group")]
    for side in sides:
        if side.is_file():
            return side
    raise FileNotFoundError(
        f"{path}: qid=file needs the list lengths in a file beside it, one number per line. Not found: "
        f"{' or '.join(side.name for side in sides)}"
    )


def number_file(path: Path, ending: str) -> Path | None:
    """The file of weights (ending ".weight") or positions (".position") beside a data file, as LightGBM has them."""
    names = [path.name, path.stem] if path.suffix in (".gz", ".zst") else [path.name]
    return next((side for name in names if (side := path.with_name(name + ending)).is_file()), None)


def read_numbers(path: Path, what: str) -> np.ndarray:
    """The weights ("weight", float64) or positions ("position", int64) of a file, one number per line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "train.txt.weight")
        >>> _ = path.write_text("1.5\\n0\\n")
        >>> read_numbers(path, "weight")
        array([1.5, 0. ])
    """
    wanted, right, kind = KINDS[what]
    tokens = [(line, token) for line, token in read_lines(path) if token]
    wrong = next((each for each in tokens if not right.fullmatch(each[1])), None)
    if wrong is None:
        numbers = np.array([token for _, token in tokens], dtype=bytes).astype(np.float64)
        beyond = np.flatnonzero(~(numbers < LARGEST))
        wrong = tokens[beyond[0]] if len(beyond) else None
    if wrong is not None:
        raise DataError(f"{path}, line {wrong[0]}: {what} {show(wrong[1])}: expected one {wanted}")
    return numbers.astype(kind)


def beside(path: Path, rows: int) -> dict[str, Any]:
    """The "weights" and "positions" in files beside a data file of so many rows, as far as there are any."""
    found: dict[str, Any] = {}
    for what in KINDS:
        if (side := number_file(path, f".{what}")) is not None:
            found[f"{what}s"] = read_numbers(side, what)
            if len(found[f"{what}s"]) != rows:
                count = len(found[f"{what}s"])
                raise DataError(f"{side}: {count} {what}s, but {path.name} has {rows} rows: expected one for each row")
    return found


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The number, from 1, and the text of each line, without white space around it."""
    for block in read_blocks(path):
        for number, line in enumerate(block.text.split(b"\n"), block.first_line):
            yield number, line.strip()


def line_with(path: Path, index: int) -> int:
    """The line, from 1, of the first row with this index; 0 if there is none."""
    token = re.compile(rb"\s0*%d:" % index)
    return next((line for line, text in read_lines(path) if token.search(text.partition(b"#")[0])), 0)


def check_width(path: Path, width: int, num_features: int | None) -> None:
    """Refuse a largest index that makes names, weights or dense rows of absurd sizes, unless it was asked for."""
    if num_features is None and width > WIDEST:
        raise DataError(
            f"{path}, line {line_with(path, width)}: index {width} makes rows of {width} features, over {WIDEST}: set "
            f"num_features={width} (data.num_features={width}) if the file is right"
        )


def read_lengths(path: Path) -> list[int]:
    """The list lengths of a .query or .group file, one integer per line."""
    lengths, total = [], 0
    for line, token in read_lines(path):
        if token and not (token.isdigit() and 0 < len(token) < 19 and int(token) > 0):
            raise DataError(f"{path}, line {line}: list length {show(token)}: expected one integer >= 1")
        if token:
            lengths.append(int(token))
            total += lengths[-1]
        if total >= 2**63:
            raise DataError(f"{path}, line {line}: the list lengths sum to {total}, expected the number of rows")
    return lengths

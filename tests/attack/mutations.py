"""Damaged copies of any file, for every attack: what disks, transfers, editors and forgers do to bytes."""

import re
import struct
from collections.abc import Callable, Iterator
from random import Random

NUMBERS = (b"0", b"-1", b"1e400", b"-1e400", b"nan", b"inf", b"2147483648", b"9223372036854775808", b"1" * 400, b"")
WORDS = (0, 1, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
PIECES = (b"\x00", b"\xff", b"\n", b"\r\n", b"\x1a", b"{", b"]", b'"', b":", b",", b"\xef\xbb\xbf", b"%s", b"../")


def mutations(data: bytes, seed: int) -> Iterator[bytes]:
    """Endless damaged copies of `data`, the same ones for the same seed; each differs from it in one to four places.

    Args:
        data: the whole file.
        seed: draws kinds and places.

    Returns:
        The copies: take as many as needed with `itertools.islice`.

    Example:
        >>> from itertools import islice
        >>> first, again = (list(islice(mutations(b"1 qid:1 1:0.5", seed=3), 100)) for _ in range(2))
        >>> first == again, b"1 qid:1 1:0.5" in first
        (True, False)
    """
    random = Random(seed)
    while True:
        damaged = data
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            damaged = random.choice(KINDS)(damaged, random)
        if damaged != data:
            yield damaged


def _place(data: bytes, random: Random) -> int:
    """A position; every other one is near the beginning or the end, where headers and footers are."""
    where = random.randrange(len(data) + 1)
    near = min(random.randrange(64), len(data))
    return random.choice((where, where, near, len(data) - near))


def _piece(data: bytes, random: Random) -> tuple[int, int]:
    start = _place(data, random)
    return start, min(len(data), start + random.choice((1, 2, 4, 8, 16, 64, 512, max(len(data) // 3, 1))))


def flip(data: bytes, random: Random) -> bytes:
    """One bit."""
    place = _place(data, random)
    return data[:place] + bytes(byte ^ 1 << random.randrange(8) for byte in data[place : place + 1]) + data[place + 1 :]


def overwrite(data: bytes, random: Random) -> bytes:
    """A piece becomes zeros, as after a crash, or other bytes."""
    start, stop = _piece(data, random)
    new = bytes(stop - start) if random.random() < 0.5 else random.randbytes(stop - start)
    return data[:start] + new + data[stop:]


def cut(data: bytes, random: Random) -> bytes:
    """The end is missing."""
    return data[: _place(data, random)]


def drop(data: bytes, random: Random) -> bytes:
    """A piece is missing."""
    start, stop = _piece(data, random)
    return data[:start] + data[stop:]


def insert(data: bytes, random: Random) -> bytes:
    """A byte, a mark or an escape too many."""
    place = _place(data, random)
    return data[:place] + random.choice((*PIECES, random.randbytes(random.randrange(1, 9)))) + data[place:]


def double(data: bytes, random: Random) -> bytes:
    """A piece occurs twice, or many times."""
    start, stop = _piece(data, random)
    return data[:stop] + data[start:stop] * random.choice((1, 1, 7)) + data[stop:]


def swap(data: bytes, random: Random) -> bytes:
    """Two pieces change places."""
    first, second = sorted(_piece(data, random) for _ in range(2))
    middle, last = max(first[1], second[0]), max(second[1], first[1])
    return data[: first[0]] + data[middle:last] + data[first[1] : middle] + data[first[0] : first[1]] + data[last:]


def renumber(data: bytes, random: Random) -> bytes:
    """A number in a text becomes another one: absurd, infinite, negative, or none at all."""
    found = [match.span() for match in re.finditer(rb"-?\d+(?:\.\d+)?", data[:100_000])]
    if not found:
        return flip(data, random)
    start, stop = random.choice(found)
    other = random.choice((*NUMBERS, b"%d" % random.randrange(100), data[start:stop] * 3))
    return data[:start] + other + data[stop:]


def word(data: bytes, random: Random) -> bytes:
    """A binary integer of 2, 4 or 8 bytes becomes another one, as in headers that tell sizes and offsets."""
    width, kind = random.choice(((2, "H"), (4, "I"), (8, "Q")))
    place = _place(data, random)
    new = struct.pack(random.choice("<>") + kind, random.choice(WORDS) % 2 ** (8 * width))
    return data[:place] + new + data[place + width :]


def shuffle_lines(data: bytes, random: Random) -> bytes:
    """Two lines change places."""
    lines = data.split(b"\n")
    first, second = random.randrange(len(lines)), random.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


KINDS: tuple[Callable[[bytes, Random], bytes], ...] = (
    flip,
    flip,
    overwrite,
    cut,
    drop,
    insert,
    double,
    swap,
    renumber,
    renumber,
    word,
    shuffle_lines,
)

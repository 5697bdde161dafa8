"""Any byte string gives data or a located error: the reader against a plain parser that shares no code with it."""

import tempfile
import warnings
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.attack.mutations import mutations
from torchrank.data import letor
from torchrank.data.letor.exact import parse_exact
from torchrank.data.letor.fast import parse_fast
from torchrank.data.letor.files import read_blocks
from torchrank.data.letor.form import Form
from torchrank.errors import DataError

DIGITS = set(b"0123456789")
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, zstd
BIG = np.finfo(np.float32).max


class RefusedError(Exception):
    """The plain parser's word for a bad row: the line."""


def plain_number(token: bytes) -> float:
    if not token or not set(token) <= DIGITS | set(b"+-.eE"):
        raise ValueError(token)
    return float(token)


def plain_value(token: bytes, options: dict) -> np.float32:
    if token == b"NULL" and "missing" in options:
        return np.float32(options["missing"])
    with np.errstate(over="ignore"):
        value = np.float32(plain_number(token))
    sentinel = options.get("sentinel")
    if np.isinf(value) and sentinel != "clip":
        if sentinel is None:
            raise ValueError(token)
        return np.float32(sentinel)
    return np.clip(value, -BIG, BIG)


def plain_row(line: bytes, options: dict):
    """(label, query, features) of a line; None for a blank one."""
    body, comment = line.split(b"#", 1) if b"#" in line else (line, b"")
    tokens = body.split()
    if not tokens:
        return None
    with np.errstate(over="ignore"):
        label = np.float32(plain_number(tokens.pop(0)))
    if np.isinf(label) or (label < 0 and "unjudged" not in options):
        raise ValueError
    if options.get("qid") == "comment":
        query = comment.strip()
    else:
        key, query = tokens.pop(0).split(b":", 1)
        if key != b"qid":
            raise ValueError
    if not query:
        raise ValueError
    features = {}
    for token in tokens:
        index, value = token.split(b":")
        if not index or not set(index) <= DIGITS or not 1 <= int(index) < 2**31 or int(index) in features:
            raise ValueError
        if int(index) > options.get("num_features", 2**31):
            raise ValueError
        features[int(index)] = plain_value(value, options)
    return label, query.decode(errors="backslashreplace"), features


def plain_read(data: bytes, options: dict) -> dict[str, list]:
    """query -> its rows, in order; raises RefusedError with the line number."""
    lists: dict[str, list] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            row = plain_row(line, options)
        except (ValueError, IndexError):
            raise RefusedError(number) from None
        if row is None or (row[0] < 0 and options.get("unjudged") == "drop"):
            continue
        label = np.float32(options["unjudged"]) if row[0] < 0 else row[0]
        lists.setdefault(row[1], []).append((label, row[2]))
    if not any(row for rows in lists.values() for _, row in rows) and (not lists or "num_features" not in options):
        raise RefusedError("empty")
    return lists


def our_lists(lists) -> dict[str, list]:
    found: dict[str, list] = {}
    offsets = lists.offsets.tolist()
    for query, start, stop in zip(lists.query_ids, offsets, offsets[1:], strict=False):
        rows = lists.x[start:stop]
        rows = (rows.dense() if lists.is_sparse else rows).numpy() if lists.num_features < 1000 else rows
        for entry in range(start, stop):
            if isinstance(rows, np.ndarray):
                row = {int(i) + 1: rows[entry - start, i] for i in np.flatnonzero(rows[entry - start])}
            else:  # too wide to be spread out
                one = rows[entry - start : entry - start + 1]
                row = {c + 1: v for c, v in zip(one.columns.tolist(), one.values.numpy(), strict=True)}
            found.setdefault(query, []).append((lists.labels.numpy()[entry], row))
    return found


def compare(data: bytes, options: dict, block: int = 1 << 22) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", letor.DataWarning)
        path = Path(folder, "data")
        path.write_bytes(data)
        try:
            expected = plain_read(data, options)
        except RefusedError as refused:
            with pytest.raises(DataError) as caught:
                letor.read_letor(path, **options)
            whole = refused.args[0] == "empty" or data.startswith(PACKED)  # an error of the file, not of a line
            place = f"{path}: " if whole else f"{path}, line {refused}: "
            assert str(caught.value).startswith(place)
            return
        with mock.patch.object(letor, "read_blocks", partial(read_blocks, size=block)):
            lists = letor.read_letor(path, **options)
    found = our_lists(lists)
    assert list(found) == list(expected)
    for query, rows in expected.items():
        nonzero = [(label, {i: v for i, v in row.items() if v != 0}) for label, row in rows]
        assert found[query] == nonzero
    width = max((i for rows in expected.values() for _, row in rows for i in row), default=0)
    assert lists.num_features == options.get("num_features", width) or options.get("unjudged") == "drop"


def ways_agree(data: bytes, options: dict) -> None:
    """Where the fast way answers, it says what the exact way says."""
    form = Form(**options)
    fast = parse_fast(data, form)
    if fast is not None:
        for ours, exact in zip(fast, parse_exact(data, form, "", 1), strict=True):
            assert (
                np.array_equal(ours or [], exact or [])
                if isinstance(ours, list | None)
                else np.array_equal(ours, exact)
            )


OPTIONS = st.sampled_from(
    [
        {},
        {},
        {"missing": 2.5},
        {"sentinel": "clip"},
        {"sentinel": -0.5},
        {"unjudged": "drop"},
        {"unjudged": 0.0},
        {"qid": "comment"},
        {"num_features": 5},
    ]
)
NUMBERS = st.one_of(
    st.integers(-3, 12).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda v: f"{v:.9g}"),
    st.decimals(-1000, 1000, places=12).map(str),
    st.sampled_from(
        [
            "NULL",
            "1.797e308",
            "1e39",
            "-1e400",
            "nan",
            "inf",
            ".5",
            "5.",
            ".",
            "+",
            "-",
            "1e",
            "1E5",
            "1e+05",
            "--1",
            "1_0",
            "0x1",
            "1.2.3",
            "00012",
            "1e-400",
            "-0",
            "\u0661",
            "1,5",
        ]
    ),
    st.text("0123456789.eE+-", max_size=30),
)
TOKENS = st.tuples(
    st.one_of(st.integers(1, 9), st.integers(-1, 800), st.sampled_from(["", "+1", "1.", "qid", "\u0663"])), NUMBERS
)
ROWS = st.tuples(
    st.sampled_from(["0", "1", "2", "4", "0.5", "-1", "-1.0", "x", "1e5", ""]),
    st.sampled_from([" ", " ", " ", "\t", "  ", " \r", "\v"]),
    st.sampled_from(["qid:1", "qid:2", "qid:1", "qid:é7", "qid:", "qid", "1:2"]),
    st.lists(TOKENS.map(lambda t: f"{t[0]}:{t[1]}"), max_size=6),
    st.sampled_from(["", "", " ", "# 7", "#docid = A inc = 1", '#1:2,"', "#", "\r", " \x00"]),
).map(lambda row: row[1].join([row[0], row[2], *row[3]]) + row[4])
GOOD_ROWS = st.tuples(
    st.integers(0, 4),
    st.integers(1, 3),
    st.dictionaries(st.integers(1, 40), st.floats(width=32, allow_nan=False, allow_infinity=False)),
).map(lambda row: f"{row[0]} qid:{row[1]} " + " ".join(f"{i}:{v!r}" for i, v in row[2].items()))
PIECES = st.sampled_from(["1", "2", "3", ":", ":", " ", " ", "NULL", ".", "-", "+", "e", "\t", "\n1 qid:1 ", "#"])
SOUP = st.lists(PIECES, max_size=14).map(lambda pieces: ("1 qid:1 " + "".join(pieces)).encode())
ENDS = st.sampled_from(["\n", "\n", "\r\n", "\n\n"])


def joined(rows) -> st.SearchStrategy[bytes]:
    return st.lists(st.tuples(rows, ENDS), max_size=6).map(lambda lines: "".join(a + b for a, b in lines).encode())


DAMAGED = st.builds(lambda data, seed: next(mutations(data, seed)), joined(GOOD_ROWS), st.integers(0, 2**32))


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=80), SOUP, joined(ROWS)), OPTIONS)
@example(b"\xef\xbb\xbf1 qid:1 1:2", {})
@example(b"1 qid:1 \xef\xbb\xbf1:2", {})
@example(b"1 qid:1 1\r:2", {})
@example(b"1 qid:1 1:2\r3:4", {})
@example(b"1 qid:1 1:2 \t 3:4\n1 qid:1 1:\n", {})
@example(b"1 qid:1 1:NULL 2: 3\n", {"missing": 2.5})
@example(b"-1.000000001 qid:1 5:1\n", {})
@example(b"1 qid:1 5 NULL:6\n", {"missing": 2.5})
@example(b"1 qid:1 5 :NULL\n", {"missing": 2.5})
@example(b"1 qid:1 7:1 5 1:2:NULL\n", {"missing": 2.5})
@example(b"1 qid:1 5 1:2:3 :4\n", {})
@example(b"1 qid:1 1:1 2:2\n0 qid:1 1:3 2:4\n", {})
@example(b"1 qid:1 1:1 2:2 1:3\n0 qid:1 2:4\n", {})
@example(b"1 qid:1 1:1 2:2 1:3 2:4\n0 qid:1 1:1 2:2 1:3 2:4\n", {})
@example(b"1 qid:1 1:1 2:2 1:3\n0 qid:1 1:4\n", {})
@example(b"1 qid:1 7:1 5 1:2:3\n", {})
def test_any_bytes(data, options):
    compare(data, options)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(joined(GOOD_ROWS), st.sampled_from([1, 7, 64, 1 << 22]))
def test_good_files_in_blocks_of_any_size(data, block):
    compare(data, {}, block)


@settings(max_examples=150, deadline=None)
@given(DAMAGED, OPTIONS)
def test_damaged_files(data, options):
    compare(data, options)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.one_of(SOUP, joined(ROWS), joined(GOOD_ROWS), DAMAGED), OPTIONS)
def test_the_fast_way_says_what_the_exact_way_says(data, options):
    ways_agree(data, options)


@pytest.mark.parametrize("pattern", [b"%b1:4", b"1%b:4", b"1:%b4", b"1:4%b", b"1:4%b4"])
def test_every_byte_around_a_number(pattern):
    """CSV engines trim, skip marks and take signs: no byte in a token may pass for what it is not."""
    for byte in range(256):
        compare(b"1 qid:1 " + pattern.replace(b"%b", bytes([byte])) + b" 3:1\n1 qid:1 1:1\n", {})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False, max_value=3e38, min_value=-3e38).map(repr),
            st.decimals(-10, 10, places=25).map(str),
        ),
        min_size=1,
    )
)
def test_numbers_are_rounded_as_numpy_rounds_them(tokens):
    row = b"1 qid:1 " + " ".join(f"{i}:{t}" for i, t in enumerate(tokens, 1)).encode()
    fast = parse_fast(row, Form())
    assert fast is not None
    assert np.array_equal(fast.values, np.array([np.float32(float(token)) for token in tokens]))

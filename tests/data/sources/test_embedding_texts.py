"""Texts as a stream, and rows that survive a kill at any moment, with a model that is typed here."""

import hashlib
import json
import os
import resource
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from torchrank.data.sources.embeddings import making as vectors
from torchrank.data.sources.embeddings.making import Rows, write_rows
from torchrank.data.sources.embeddings.texts import read_texts, survey_texts
from torchrank.errors import DataError, DataWarning

COUNT, CHUNK = 23, 5
WORK = {"model": "m", "dtype": "float32", "texts": "t"}


def line(name, **fields):
    return json.dumps({"_id": name, **fields}) + "\n"


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(line(f"d{number}", title="t", text="x" * number) for number in range(COUNT)))
    return path


class Model:
    """The vector of a text: its length, and its square; it counts the texts that it sees."""

    def __init__(self, fail_at=None):
        self.seen, self.fail_at = 0, fail_at

    def __call__(self, some):
        if self.fail_at is not None and self.seen + len(some) > self.fail_at:
            raise KeyboardInterrupt
        self.seen += len(some)
        return np.array([[len(text), len(text) ** 2] for text in some])


def wanted(dtype=np.float32):
    lengths = [len("t " + "x" * number) if number else 1 for number in range(COUNT)]
    return np.array([[each, each**2] for each in lengths], dtype=dtype)


def make(path, encode, *, survey=None, chunk=CHUNK, **work):
    survey = survey or survey_texts(path)
    rows = Rows(path.with_suffix(".npy"), WORK | {"texts": survey.checksum} | work, survey.texts)
    write_rows(rows, path, survey, encode, template="{title} {text}", chunk=chunk)
    return rows


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_texts_are_joined_as_the_template_says(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        b'\n{"_id": "a", "title": "A", "text": "{title} b"}\r\n  \n{"_id": 2, "title": null, "text": " c "}\n'
        + '{"_id": "é", "text": "\u2028ü", "more": 3}'.encode()
    )
    assert [tuple(each) for each in read_texts(path)] == [("a", "A {title} b", 2), ("2", "c", 4), ("é", "ü", 5)]
    assert [each.text for each in read_texts(path, "{text}")] == ["{title} b", "c", "ü"]
    assert [each.text for each in read_texts(path, "p: {title} | {text} {")] == [
        "p: A | {title} b {",
        "p:  |  c  {",
        "p:  | \u2028ü {",
    ]


def test_the_checksum_is_that_of_ids_and_texts(texts):
    digest = hashlib.sha256()
    for number in range(COUNT):
        text = f"t {'x' * number}".strip()
        digest.update(f"{len(f'd{number}')} d{number} {len(text)} {text}\n".encode())
    assert survey_texts(texts) == (COUNT, digest.hexdigest(), 0, 0)


GOOD = '{"_id": "1", "text": "a"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "corpus.jsonl: no text in it"),
        ("\n \n", "corpus.jsonl: no text in it"),
        (GOOD + "a b\n", "line 2: expected a JSON object"),
        (GOOD + "[1]\n", "line 2: expected a JSON object"),
        (GOOD + "[" * 100_000 + "\n", "line 2: expected a JSON object"),
        (GOOD + '{"_id": "2", "text": "a"', "line 2: expected a JSON object"),
        (GOOD.encode() + b"\xff\n", "line 2: this is no text in UTF-8"),
        (GOOD.encode("utf-16"), "line 1: this is no text in UTF-8"),
        ('{"text": "a"}', 'line 1: expected a JSON object with "_id"'),
        ('{"_id": null, "text": "a"}', 'line 1: expected a JSON object with "_id"'),
        ('{"_id": true, "text": "a"}', 'line 1: expected a JSON object with "_id"'),
        ('{"_id": "1"}', 'line 1: expected a JSON object with "text"'),
        ('{"_id": "1", "text": 3}', 'line 1: expected a JSON object with "text"'),
        ('{"_id": "1", "text": "a", "title": [1]}', 'line 1: expected a JSON object with "title"'),
        ('{"_id": "1", "text": "a \\ud800"}', "line 1: half a character"),
        (GOOD + '{"_id": 7, "text": "b"}\n' + '{"_id": 1, "text": "c"}', "line 3: the id '1' stands in line 1 as well"),
    ],
)
def test_bad_lines_are_told(tmp_path, content, message):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=r"corpus\.jsonl") as told:
        survey_texts(path)
    assert message in str(told.value)


def test_equal_hashes_are_no_equal_ids(tmp_path, monkeypatch):
    path = tmp_path / "corpus.jsonl"
    path.write_text(line("a", text="x") + line("b", text="y"))
    monkeypatch.setattr("torchrank.data.sources.embeddings.texts.hash", lambda _: 7, raising=False)
    assert survey_texts(path).texts == 2


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHRANK_MAX_MB", "0")
    (tmp_path / "corpus.jsonl").write_text(GOOD)
    with pytest.raises(DataError, match="line 1: no line break"):
        survey_texts(tmp_path / "corpus.jsonl")


def test_a_file_of_ids_must_have_the_same_order(texts):
    listed = texts.with_suffix(".ids")
    listed.write_text("\n".join(f"d{number}" for number in range(COUNT)))
    assert survey_texts(texts).texts == COUNT
    listed.write_text("\n".join(f"d{number}" for number in reversed(range(COUNT))))
    with pytest.raises(DataError, match=r"corpus\.ids: its ids are not those of corpus\.jsonl in their order"):
        survey_texts(texts)


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, CHUNK, COUNT, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_in_the_order_of_the_texts(texts, chunk, dtype):
    rows = make(texts, Model(), chunk=chunk, dtype=dtype)
    found = np.load(rows.target, allow_pickle=False)
    assert found.dtype == dtype and np.array_equal(found, wanted(dtype))
    assert sorted(path.name for path in texts.parent.iterdir()) == ["corpus.json", "corpus.jsonl", "corpus.npy"]
    record = json.loads((texts.parent / "corpus.json").read_text())
    assert record["sha256"] == hashlib.sha256(rows.target.read_bytes()).hexdigest() and record["rows"] == COUNT


def test_work_is_continued_after_the_last_whole_chunk(texts):
    with pytest.raises(KeyboardInterrupt):
        make(texts, Model(fail_at=12))
    assert not texts.with_suffix(".npy").exists()
    with texts.with_suffix(".npy.part").open("ab") as part:
        part.write(b"half a chunk" * 100)
    model = Model()
    assert make(texts, model).told() | {"out": ""} == {
        "out": "",
        "rows": COUNT,
        "width": 2,
        "dtype": "float32",
        "kept": 10,
        "encoded": 13,
    }
    assert model.seen == 13 and np.array_equal(np.load(texts.with_suffix(".npy")), wanted())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: {"model": "other"}, "begun with a different model"),
        (lambda path: {"dtype": "float16"}, "begun with a different dtype"),
        (lambda path: path.write_text(path.read_text().replace("xxx", "xxy")) and {}, "begun with a different texts"),
        (lambda path: path.with_suffix(".npy.part").write_bytes(b"\x93NUMPY") and {}, "it is damaged"),
        (lambda path: rewrite(path, done=11) or {}, "it is damaged"),
        (lambda path: rewrite(path, done=10**9) or {}, "it is damaged"),
        (lambda path: rewrite(path, width=3) or {}, "it is damaged"),
        (lambda path: rewrite(path, width="2") or {}, "it is damaged"),
    ],
)
def test_other_work_starts_over(texts, change, told):
    with pytest.raises(KeyboardInterrupt):
        make(texts, Model(fail_at=12))
    model, work = Model(), change(texts)
    with pytest.warns(DataWarning, match=told):
        rows = make(texts, model, **work)
    assert model.seen == COUNT and np.array_equal(np.load(rows.target), wanted(rows.dtype))


def rewrite(path, **changes):
    state = path.with_suffix(".npy.part.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | changes))


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b"[" * 100_000, b"\xff"])
def test_an_unreadable_state_starts_over(texts, content):
    with pytest.raises(KeyboardInterrupt):
        make(texts, Model(fail_at=12))
    texts.with_suffix(".npy.part.json").write_bytes(content)
    model = Model()
    make(texts, model)
    assert model.seen == COUNT and np.array_equal(np.load(texts.with_suffix(".npy")), wanted())


class Killed(BaseException):
    """The end of the process."""


@contextmanager
def killed_at(step):
    """End before the given call that touches the disk; tell whether there was one."""
    calls = {"count": 0, "reached": False}

    def counting(real):
        def call(*given, **options):
            calls["count"] += 1
            if calls["count"] > step:
                calls["reached"] = True
                raise Killed
            return real(*given, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors.os, "fsync", counting(os.fsync))
        patch.setattr(vectors, "write_atomically", counting(vectors.write_atomically))
        patch.setattr(vectors, "checksum_of", counting(vectors.checksum_of))
        for name in ("unlink", "replace", "open"):
            patch.setattr(Path, name, counting(getattr(Path, name)))
        with suppress(Killed):
            yield calls


def test_killed_at_any_moment(texts):
    before = texts.read_bytes()
    step, reached = 0, True
    while reached:
        for path in texts.parent.iterdir():
            path.unlink()
        texts.write_bytes(before)
        with killed_at(step) as calls:
            make(texts, Model(), chunk=7)
        reached, step = calls["reached"], step + 1
        target = texts.with_suffix(".npy")
        if target.exists():
            assert np.array_equal(np.load(target), wanted()), f"half-written after {step} steps"
        make(texts, Model(), chunk=7)
        assert np.array_equal(np.load(target), wanted())
        assert sorted(path.name for path in texts.parent.iterdir()) == ["corpus.json", "corpus.jsonl", "corpus.npy"]
    assert step > 20


def test_a_full_disk_is_told_and_the_rest_follows(texts):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (128 + 8 * 12, hard))  # the state has more bytes than this
        with pytest.raises(DataError, match=r"corpus\.npy\.part cannot be written: File too large"):
            make(texts, Model())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not texts.with_suffix(".npy").exists()
    assert np.array_equal(np.load(make(texts, Model()).target), wanted())


@pytest.mark.parametrize(
    "change", [lambda text: text.replace("xx", "xy"), lambda text: text * 2, lambda text: text[:400]]
)
def test_texts_that_change_on_the_way(texts, change):
    before, survey = texts.read_text(), survey_texts(texts)
    texts.write_text(change(before).rpartition("\n")[0])
    with pytest.raises(DataError, match=r"corpus\.jsonl: changed while it was read"):
        make(texts, Model(), survey=survey)
    assert not texts.with_suffix(".npy").exists()
    texts.write_text(before)  # what was made of other texts is not continued
    model = Model()
    make(texts, model)
    assert model.seen == COUNT and np.array_equal(np.load(texts.with_suffix(".npy")), wanted())


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.nan, "float32", "line 8: the vector of 'd7' is not finite"),
        (np.inf, "float16", "line 8: the vector of 'd7' is not finite"),
        (1e6, "float16", "line 8: the vector of 'd7' does not fit float16: take --dtype float32"),
    ],
)
def test_numbers_that_are_not_finite(texts, value, dtype, message):
    def model(some):
        return [[value if text == "t " + "x" * 7 else 1.0] for text in some]

    with pytest.raises(DataError) as told:
        make(texts, model, dtype=dtype)
    assert message in str(told.value) and not texts.with_suffix(".npy").exists()


def test_a_model_that_fails_or_gives_no_vectors(texts):
    def failing(some):
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(ValueError, match=r"corpus\.jsonl, lines 1 to 5: the model failed: CUDA out of memory"):
        make(texts, failing)
    for shape in ((CHUNK,), (CHUNK - 1, 2), (CHUNK, 0)):
        with pytest.raises(ValueError, match="expected a vector each"):
            make(texts, lambda some, shape=shape: np.zeros(shape))


def test_rows_of_another_width(texts):
    with pytest.raises(KeyboardInterrupt):
        make(texts, Model(fail_at=12))
    with pytest.raises(DataError, match="rows of 3 numbers after rows of 2"):
        make(texts, lambda some: np.zeros((len(some), 3)))

"""Rows of any width are gathered in little more memory than they need in the end."""

import subprocess
import sys

import numpy as np
import pytest

from torchrank.data.letor import read_letor
from torchrank.data.letor import store as letor_store
from torchrank.data.letor.form import Rows
from torchrank.data.letor.store import FeatureStore, Growing
from torchrank.errors import DataError

MEMORY = """
import sys
import numpy as np
from torchrank.data.letor.form import Rows
from torchrank.data.letor.store import FeatureStore
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
def rows(share):
    columns = np.tile(np.arange(0, 700, 1 / share).astype(np.int32), 1500)
    counts = np.full(1500, len(columns) // 1500)
    return Rows(np.zeros(1500, np.float32), None, None, counts, columns, np.ones(len(columns), np.float32), 0, 0)
blocks = [rows(float(sys.argv[1]))] * 10 + [rows(float(sys.argv[2]))] * 200
store = FeatureStore(None, None)
before = peak()
for number, block in enumerate(blocks, 1):
    store.add(block, number / len(blocks))
x = store.finish()
parts = (x.values, x.columns, x.row_offsets) if hasattr(x, "columns") else (x,)
print(peak() - before, sum(part.numpy().nbytes for part in parts) / 2**20)
"""


def random_rows(generator: np.random.Generator, num_rows: int, width: int, share: float) -> Rows:
    present = generator.random((num_rows, width)) < share
    columns = present.nonzero()[1].astype(np.int32)
    values = generator.integers(0, 9, len(columns)).astype(np.float32)  # zeros are written out as well
    return Rows(np.zeros(num_rows, np.float32), None, None, present.sum(axis=1), columns, values, 0, 0)


def spread(blocks: list[Rows], width: int) -> np.ndarray:
    """The rows as a plain array, one value at a time."""
    x = np.zeros((sum(len(rows.counts) for rows in blocks), width), np.float32)
    place = 0
    for rows in blocks:
        token = 0
        for count in rows.counts:
            for column, value in zip(
                rows.columns[token : token + count], rows.values[token : token + count], strict=True
            ):
                x[place, column] = value
            token, place = token + count, place + 1
    return x


@pytest.mark.parametrize("sparse", [None, True, False])
@pytest.mark.parametrize("fixed", [None, 60])
def test_gathers_what_was_added(monkeypatch, sparse, fixed):
    """In chunks of any size, by blocks whose width and density go up and down."""
    for seed in range(30):
        generator = np.random.default_rng(seed)
        monkeypatch.setattr(letor_store, "CHUNK", int(generator.integers(1, 300)))
        blocks = [
            random_rows(
                generator,
                int(generator.integers(0, 12)),
                int(generator.integers(1, 50)),
                generator.choice([0, 0.1, 0.9]),
            )
            for _ in range(int(generator.integers(1, 12)))
        ]
        store = FeatureStore(fixed, sparse)
        for number, rows in enumerate(blocks, 1):
            store.add(rows, number / len(blocks) * generator.choice([0.5, 1]))
        x = store.finish()
        width = fixed or max((int(rows.columns.max(initial=-1)) + 1 for rows in blocks), default=0)
        expected = spread(blocks, width)
        present = sum(len(rows.values) for rows in blocks)
        assert isinstance(x, letor_store.SparseRows) == (present < 0.25 * expected.size if sparse is None else sparse)
        assert np.array_equal((x.dense() if isinstance(x, letor_store.SparseRows) else x).numpy(), expected)


def test_growing():
    growing, expected = Growing(np.int64, 2), []
    for number in range(50):
        block = np.full((number % 7, 2), number)
        growing.append(block, 1.0 if number % 3 else 0.1)  # a share that is far off
        expected.extend(block.tolist())
        assert growing.filled.tolist() == expected
    growing.widen(5)
    assert growing.filled.tolist() == [[*row, 0, 0, 0] for row in expected]
    growing.shrink(3)
    assert growing.filled.tolist() == [[*row, 0, 0, 0] for row in expected[:3]]


def write_wide(path, num_rows: int, index: int) -> None:
    row = " ".join(f"{feature}:{feature}" for feature in range(1, 21))
    path.write_text(f"0 qid:a {row} # {index}:1\n\n" + f"0 qid:a {row}\n" * (num_rows - 1) + f"1 qid:x 1:1 {index}:1\n")


def test_one_large_index_late_in_a_file(tmp_path):
    write_wide(tmp_path / "wide", 60_000, 500_000)
    lists = read_letor(tmp_path / "wide")
    assert lists.is_sparse and lists.x.shape == (60_001, 500_000) and len(lists.x.values) == 60_000 * 20 + 2
    assert lists.x[60_000:].columns.tolist() == [0, 499_999]


@pytest.mark.parametrize("index", [500_000_000, 2**31 - 1])
def test_a_dense_array_that_does_not_fit(tmp_path, index):
    write_wide(tmp_path / "wide", 20_000, index)
    with pytest.raises(DataError) as caught:
        read_letor(tmp_path / "wide", sparse=False)
    size = 20_001 * index * 4 / 2**30
    for needle in (f"{tmp_path / 'wide'}, line 20002: index {index} ", f"{size:.1f} GiB", "20001 rows", "sparse"):
        assert needle in str(caught.value)
    with pytest.raises(DataError, match=f"num_features={index} ") as caught:
        read_letor(tmp_path / "wide", sparse=False, num_features=index)
    assert "line" not in str(caught.value)


def test_an_array_that_cannot_be_allocated(tmp_path, monkeypatch):
    def refuse(*_):
        raise MemoryError

    write_wide(tmp_path / "wide", 3, 24)
    monkeypatch.setattr(letor_store, "scatter", refuse)
    for sparse in (None, False):
        with pytest.raises(DataError, match=r"line 5: index 24 .*GiB"):
            read_letor(tmp_path / "wide", sparse=sparse)
    monkeypatch.setattr(FeatureStore, "_add_sparse", refuse)
    with pytest.raises(MemoryError):  # nothing that an option could help
        read_letor(tmp_path / "wide", sparse=True)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("shares", [("0.27", "0.2"), ("0.9", "0.2"), ("0.2", "0.4"), ("0.2", "0.9")])
def test_peak_memory(shares):
    """1.5 times the result and 256 MB, also where the share of present features crosses 25% on the way."""
    answer = subprocess.run([sys.executable, "-c", MEMORY, *shares], capture_output=True, text=True, check=True).stdout
    added, final = map(float, answer.split())
    assert added <= 1.5 * final + 256

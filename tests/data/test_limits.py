"""Small files that expand to huge ones are stopped by a limit, in the memory of that limit; it can be raised."""

import gzip
import io
import zipfile
from itertools import islice

import numpy as np
import pytest

from tests.attack.mutations import mutations
from torchrank.data.catalogue import load_splits
from torchrank.data.formats import convert, open_source
from torchrank.data.formats.arrays import read_npz
from torchrank.data.letor import read_letor
from torchrank.data.letor.stream import stream_letor
from torchrank.data.sources import frames
from torchrank.data.sources.point_tables import read_points
from torchrank.data.sources.tables import read_table
from torchrank.errors import DataError

BOMB = r"\d+ bytes expand to \d+ or more, over 100 times as many: .* set TORCHRANK_MAX_MB="


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setenv("TORCHRANK_MAX_MB", "1")


def packed(kind: str, data: bytes) -> bytes:
    if kind == "gzip":
        return gzip.compress(data)
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_bombs_of_text(tmp_path, monkeypatch, kind):
    path = tmp_path / "bomb.txt"
    path.write_bytes(packed(kind, b"0 qid:1 1:1\n" * 200_000))
    with pytest.raises(DataError, match=rf"^{path}: {BOMB}"):
        read_letor(path)
    monkeypatch.setenv("TORCHRANK_MAX_MB", "64")
    assert len(read_letor(path).labels) == 200_000


@pytest.mark.parametrize("kind", ["gzip", "zstd", "plain"])
def test_a_line_without_end(tmp_path, kind):
    path, text = (
        tmp_path / "bomb.txt",
        b"0 qid:1 1:1\n0 qid:1 " + np.random.default_rng(0).bytes(2_200_000).hex().encode(),
    )
    path.write_bytes(text if kind == "plain" else packed(kind, text))
    with pytest.raises(DataError, match=rf"^{path}, line 2: no line break in \d+ bytes.*TORCHRANK_MAX_MB"):
        read_letor(path)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_the_suggested_limit_is_enough_where_the_file_tells_its_size(tmp_path, monkeypatch, kind):
    path = tmp_path / "bomb.txt"
    path.write_bytes(packed(kind, b"0 qid:1 1:1\n" * 200_000 + np.random.default_rng(0).bytes(100).hex().encode()))
    with pytest.raises(DataError, match="set TORCHRANK_MAX_MB=3 in the environment"):
        read_letor(path)
    data = path.read_bytes()
    path.write_bytes(data + packed(kind, b"0 qid:1 1:1\n" * 200_000) + packed(kind, b"\n"))
    with pytest.raises(DataError, match=r"set TORCHRANK_MAX_MB=\d+( or more)? in the environment"):
        read_letor(path)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_bombs_of_csv(tmp_path, monkeypatch, kind):
    path = tmp_path / "bomb.csv"
    path.write_bytes(packed(kind, b"label,query,f\n" + b"0,1,1\n" * 200_000))
    with pytest.raises(DataError, match=rf"^{path}: {BOMB}"):
        read_table(path)
    monkeypatch.setenv("TORCHRANK_MAX_MB", "64")
    assert len(read_table(path).labels) == 200_000


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_of_absurd_sizes(tmp_path, monkeypatch, kind):
    """Rows that take no room in the file: all equal, in pages of run lengths or compressed."""
    import polars as pl

    path, rows = tmp_path / f"bomb.{kind}", 200_000
    table = pl.select(
        label=pl.repeat(0, rows), query=pl.repeat(1, rows), a=pl.repeat(1.0, rows), b=pl.repeat(2.0, rows)
    )
    table.write_parquet(path) if kind == "parquet" else table.write_ipc(path, compression="zstd")
    with pytest.raises(DataError, match=rf"^{path}: {BOMB}"):
        read_table(path)
    with pytest.raises(DataError, match=rf"^{path}: {BOMB}"):
        convert(path, str(tmp_path / "a.txt"), kind, "letor")
    monkeypatch.setenv("TORCHRANK_MAX_MB", "2")
    assert len(read_table(path).labels) == rows


def test_short_rows_below_a_wide_header(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("label,query," + ",".join(f"f{number}" for number in range(1000)) + "\n" + "1\n" * 1_000)
    with pytest.raises(DataError, match=rf"^{path}: {BOMB}"):
        read_table(path)


def test_very_wide_tables(tmp_path, monkeypatch):
    path = tmp_path / "wide.csv"
    path.write_text("label,query," + "f," * 300_000 + "f\n1,1\n")
    with pytest.raises(DataError, match=rf"^{path}: 300003 columns, expected at most 262144 in a table"):
        read_table(path)
    path.write_text(",".join(f"f{number}" for number in range(100_000)) + ",f7\n")
    with pytest.raises(DataError, match=rf"^{path}: two columns are called 'f7'"):
        read_table(path)
    path.write_text(",".join(f"f{number}" for number in range(3_000)) + "\n1,1\n")
    with pytest.raises(
        DataError, match=r"no column 'label' \(data.label\); the columns are .* \(3000 in all\)$"
    ) as told:
        read_table(path)
    assert len(str(told.value)) < 500
    import polars as pl

    monkeypatch.setattr(frames, "WIDEST", 100)
    pl.DataFrame({f"f{number}": [1] for number in range(101)}).write_parquet(path)
    with pytest.raises(DataError, match=r"101 columns, expected at most 100"):
        read_table(path)


def test_panics_of_polars_are_one_line(tmp_path, monkeypatch):
    """They are no `Exception`, so that nothing else would catch them."""
    import polars as pl

    def panics(*args, **options):
        raise pl.exceptions.PanicException("index out of bounds\nat some line")

    path = tmp_path / "a.parquet"
    pl.DataFrame({"label": [1], "query": [1], "f": [1.0]}).write_parquet(path)
    monkeypatch.setattr(pl.LazyFrame, "collect_batches", panics)
    with pytest.raises(DataError, match=rf"^{path} cannot be read as parquet: index out of bounds$"):
        read_table(path)


def member(shape: str, data: bytes = b"") -> bytes:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


@pytest.mark.parametrize("shape", ["(1099511627776,)", "(1099511627776, 1099511627776)", "(0, 1099511627776)", "(3,)"])
def test_headers_that_lie(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", member(shape, b"" if shape.startswith("(0") else bytes(8)))
    with pytest.raises(DataError, match=rf"^{tmp_path}/x.npz"):
        read_npz(tmp_path / "x.npz")


def test_bombs_of_arrays(tmp_path):
    from scipy.io import savemat

    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000))
    savemat(tmp_path / "x.mat", {"x": np.zeros((1000, 1000)), "y": np.zeros((1000, 1))}, do_compression=True)
    for name in ("x.npz", "x.mat"):
        with pytest.raises(DataError, match=BOMB):
            read_points(tmp_path / name)


@pytest.mark.parametrize("kind", ["npz", "mat"])
def test_mutated_arrays(tmp_path, kind):
    """The right values, or one line that names the file."""
    from scipy.io import savemat

    x, y, file = np.arange(12.0).reshape(4, 3), np.array([[1], [2], [1], [2]]), io.BytesIO()
    np.savez_compressed(file, x=x, y=y) if kind == "npz" else savemat(file, {"x": x, "y": y}, do_compression=True)
    path = tmp_path / f"points.{kind}"
    for damaged in islice(mutations(file.getvalue(), seed=4), 200):
        path.write_bytes(damaged)
        try:
            found = read_points(path)
        except DataError as error:
            assert str(path) in str(error)
        else:
            assert found[0].tolist() == x.tolist() and found[1].tolist() == [1, 2, 1, 2]


def test_indices_that_make_absurd_widths(tmp_path):
    """The reader keeps such rows sparse; whatever makes names or weights of them needs to be told."""
    path = tmp_path / "wide.txt"
    path.write_text("1 qid:1 1:1\n0 qid:1 2147483647:1\n")
    assert read_letor(path).num_features == 2**31 - 1
    told = rf"^{path}, line 2: index 2147483647 makes rows of 2147483647 features.*data.num_features=2147483647"
    with pytest.raises(DataError, match=told):
        convert(path, str(tmp_path / "a.npz"), "letor", "npz")
    with pytest.raises(DataError, match=told):
        open_source(path, "letor")
    with pytest.raises(DataError, match=told):
        load_splits("files", train=path, cache_dir=tmp_path)
    path.write_text("1 qid:1 1:1\n0 qid:1 16777216:1\n1 qid:2 1:1\n")
    assert load_splits("files", train=path, val=path, cache_dir=tmp_path)["train"].num_features == 2**24


@pytest.mark.parametrize("lengths", ["9" * 18 + "\n", "-1\n", "0\n", "1" * 5000 + "\n", "1e3\n"])
def test_list_lengths_of_absurd_sizes(tmp_path, lengths):
    path = tmp_path / "a.txt"
    path.write_text("1 1:1\n")
    (tmp_path / "a.txt.query").write_text(lengths * 40)
    for read in (
        lambda: read_letor(path, qid="file"),
        lambda: list(stream_letor(path, qid="file", num_features=1)),
        lambda: open_source(path, "lightgbm"),
    ):
        with pytest.raises(DataError, match=rf"^{path}.query, line \d+: (list length|the list lengths sum to)"):
            read()

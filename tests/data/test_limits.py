"""Small files that expand to huge ones are stopped by a limit, in the memory of that limit; it can be raised."""

import gzip
import io
import zipfile
from itertools import islice

import numpy as np
import pytest

from tests.attack.mutations import mutations
from torchrank.data.formats.arrays import read_npz
from torchrank.data.letor import read_letor
from torchrank.data.sources.point_tables import read_points
from torchrank.errors import DataError

BOMB = r"\d+ bytes expand to \d+ or more, over 100 times as many: .* set TORCHRANK_MAX_MB="


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setenv("TORCHRANK_MAX_MB", "4")


def packed(kind: str, data: bytes) -> bytes:
    if kind == "gzip":
        return gzip.compress(data)
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_bombs_of_text(tmp_path, monkeypatch, kind):
    path = tmp_path / "bomb.txt"
    path.write_bytes(packed(kind, b"0 qid:1 1:1\n" * 1_000_000))
    with pytest.raises(DataError, match=rf"^{path}: {BOMB}"):
        read_letor(path)
    monkeypatch.setenv("TORCHRANK_MAX_MB", "64")
    assert len(read_letor(path).labels) == 1_000_000


@pytest.mark.parametrize("kind", ["gzip", "zstd", "plain"])
def test_a_line_without_end(tmp_path, kind):
    path, text = (
        tmp_path / "bomb.txt",
        b"0 qid:1 1:1\n0 qid:1 " + np.random.default_rng(0).bytes(9_000_000).hex().encode(),
    )
    path.write_bytes(text if kind == "plain" else packed(kind, text))
    with pytest.raises(DataError, match=rf"^{path}, line 2: no line break in \d+ bytes.*TORCHRANK_MAX_MB"):
        read_letor(path)


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

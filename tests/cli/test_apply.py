"""`torchrank apply`: files of vectors are mapped by parts, and nothing is left after an error."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import torchrank
from torchrank.cli import main
from torchrank.export.adapters import streaming

WIDTH, ROWS = 6, 103


def vectors(dtype=np.float32):
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(dtype)


def matrix(seed):
    return np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)


@pytest.fixture
def adapter(tmp_path):
    """The folder of an adapter of a side, "query" if none is named."""

    def make(side="query", normalise=None):
        maps = {name: torch.from_numpy(matrix(seed)) for seed, name in enumerate(("query", "document"), start=1)}
        given = {name: map_ if side in (name, "both") else None for name, map_ in maps.items()}
        return str(torchrank.save_adapter(tmp_path / "adapter", **given, normalise=normalise, similarity="cosine"))

    return make


def written(path, array, order="C"):
    """A file of vectors by the suffix of its name."""
    if path.suffix == ".npy":
        np.save(path, np.asarray(array, order=order))
    else:
        save_file({"vectors": array}, path)
    return str(path)


def apply(*arguments):
    return main(["apply", *map(str, arguments)])


@pytest.mark.parametrize("batch", [1, 10, 103, 1000, None])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_files_are_mapped_by_parts(adapter, tmp_path, monkeypatch, batch, dtype, suffix):
    seen, check = [], streaming.check_vectors
    monkeypatch.setattr(streaming, "check_vectors", lambda rows, *given: (seen.append(len(rows)), check(rows, *given)))
    given = vectors(dtype)
    source, out = written(tmp_path / f"in{suffix}", given), tmp_path / "out.npy"
    assert apply(adapter(), source, "--out", out, *([] if batch is None else ["--batch", batch])) == 0
    found = np.load(out)
    assert found.dtype == dtype and max(seen) == min(batch or ROWS, ROWS) and sum(seen) == 2 * ROWS
    near = {np.float16: 4e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
    np.testing.assert_allclose(found, given.astype(np.float64) @ matrix(1).astype(np.float64), rtol=near, atol=near)


@pytest.mark.parametrize("array", [np.asfortranarray(vectors()), vectors(">f4")])
def test_arrays_by_columns_and_of_the_other_byte_order(adapter, tmp_path, array):
    np.save(tmp_path / "in.npy", array)
    assert apply(adapter(), tmp_path / "in.npy", "--out", tmp_path / "out.npy", "--batch", 7) == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), vectors() @ matrix(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("side", "asked", "seed"), [("query", None, 1), ("document", None, 2), ("both", "query", 1),
                                                     ("both", "document", 2), ("document", "document", 2)])  # fmt: skip
def test_sides(adapter, tmp_path, capsys, side, asked, seed):
    source, out = written(tmp_path / "in.npy", vectors()), tmp_path / "out.npy"
    options = [] if asked is None else ["--side", asked]
    assert apply(adapter(side, "images"), source, "--out", out, *options, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"vectors": source, "side": asked or side, "rows": ROWS, "dtype": "float32", "inputs": WIDTH,
                    "outputs": WIDTH, "out": str(out)}  # fmt: skip
    images = vectors().astype(np.float64) @ matrix(seed)
    np.testing.assert_allclose(np.load(out), images / np.linalg.norm(images, axis=1)[:, None], rtol=1e-5, atol=1e-6)


def spoiled(row, value):
    array = vectors()
    array[row] = value
    return array


@pytest.mark.parametrize(("array", "options", "told"), [
    (spoiled(71, np.nan), [], "in.npy: row 71 is not finite"),
    (spoiled(0, np.inf), [], "in.npy: row 0 is not finite"),
    (spoiled(102, 6e4).astype(np.float16), [], "in.npy: the image of row 102 does not fit into float16"),
    (vectors()[:, :5], [], "in.npy: vectors of 5 numbers, the adapter takes 6"),
    (vectors()[0], [], "in.npy: expected a vector of float16, float32 or float64 in each row"),
    (vectors()[:0], [], "in.npy: expected a vector of float16, float32 or float64 in each row"),
    (vectors().astype(int), [], "in.npy: expected a vector of float16, float32 or float64 in each row"),
    (vectors(), ["--side", "document"], "adapter maps query vectors only: document vectors stay as they are"),
    (vectors(), ["--batch", "0"], "batch must be >= 1"),
])  # fmt: skip
@pytest.mark.parametrize("there", [False, True])
def test_mistakes_are_one_line_and_leave_nothing(adapter, tmp_path, capsys, array, options, told, there):
    folder, source, out = adapter(), written(tmp_path / "in.npy", array), tmp_path / "out.npy"
    if there:
        out.write_bytes(b"before")
    before = sorted(tmp_path.iterdir())
    assert apply(folder, source, "--out", out, *(options or ["--batch", 10])) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1 and told in shown.err
    assert sorted(tmp_path.iterdir()) == before and (not there or out.read_bytes() == b"before")


def test_a_side_must_be_named_where_both_are_mapped(adapter, tmp_path, capsys):
    source = written(tmp_path / "in.npy", vectors())
    assert apply(adapter("both"), source, "--out", tmp_path / "out.npy") == 2
    assert "say which by --side query or --side document" in capsys.readouterr().err


def test_places_that_cannot_be_written_or_read(adapter, tmp_path, capsys, monkeypatch):
    folder, source = adapter(), written(tmp_path / "in.npy", vectors())
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "link.npy").symlink_to(source)
    before = (tmp_path / "in.npy").read_bytes()
    monkeypatch.chdir(tmp_path)
    for given, told in (
        ([folder, source, "--out", source], "or the input, got"),
        ([folder, source, "--out", "./in.npy"], "or the input, got"),
        ([folder, source, "--out", tmp_path / "link.npy"], "or the input, got"),
        ([folder, source, "--out", tmp_path / "folder.npy"], "not a folder"),
        ([folder, source, "--out", tmp_path / "out.txt"], "--out must end in .npy"),
        ([folder, tmp_path / "none.npy", "--out", "out.npy"], "none.npy: not found, expected a file of vectors"),
        ([folder, tmp_path / "in.txt", "--out", "out.npy"], "in.txt: expected vectors in a file that ends in .npy or"),
        ([tmp_path / "none", source, "--out", "out.npy"], "none: not the folder of an adapter"),
        ([tmp_path / "run", source, "--out", "out.npy"], f"torchrank export {tmp_path}/run --to FOLDER"),
    ):
        assert apply(*given) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1 and told in shown.err
    assert (tmp_path / "in.npy").read_bytes() == before and not (tmp_path / "out.npy").exists()


def test_an_interrupt_leaves_nothing(adapter, tmp_path, monkeypatch):
    folder, calls = adapter(), []
    written(tmp_path / "in.npy", vectors())

    def interrupted(own, *given):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return own(*given)

    own = streaming.SavedAdapter.apply
    monkeypatch.setattr(streaming.SavedAdapter, "apply", lambda *given: interrupted(own, *given))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        streaming.apply_to_file(
            torchrank.load_adapter(folder), tmp_path / "in.npy", tmp_path / "out.npy", "query", batch=10
        )
    assert sorted(tmp_path.iterdir()) == before


def test_info_tells_what_an_adapter_maps(adapter, capsys):
    folder = adapter("both", "vectors")
    assert main(["info", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": folder, "kind": "adapter", "side": "both", "inputs": WIDTH, "outputs": WIDTH, "normalise": "vectors",
        "similarity": "cosine", "use": f"torchrank apply {folder} vectors.npy --side query --out images.npy",
    }  # fmt: skip

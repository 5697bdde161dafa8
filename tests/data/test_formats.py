"""Conversions: round trips over all pairs of formats keep values, ids and comments, and equal what readers return."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import torchrank
from torchrank import RankingSet, read_letor, read_table
from torchrank.cli import main
from torchrank.data.cache import open_folder
from torchrank.data.formats.arrays import read_npz, write_npz

DATA = Path(os.environ.get("TORCHRANK_DATA", "nowhere"))
NAMES = {
    "letor": "a.txt",
    "lightgbm": "a.train",
    "csv": "a.csv",
    "parquet": "a.parquet",
    "arrow": "a.feather",
    "npz": "a.npz",
    "cache": "a.torchrank",
}
ODD = """\
2 qid:a 1:0.1 3:-1e-7 7:16777217 # first
0.5 qid:a 2:0.12345678901234566 # docid = D2 inc = 1 prob = 0.5

-1 qid:b
0 qid:ü-7 1:3.4e38 4:.5 5:1e-45 # page 7
1 qid:ü-7 6:1.
"""
SPARSE = "".join(f"{i % 3} qid:{i // 4} {i % 50 + 1}:{i / 7!r} 60:{i}\n" for i in range(40)) + "0 qid:99 1:0\n"


def convert(source: Path, target: Path, *options: str) -> Path:
    assert main(["convert", str(source), str(target), *options]) == 0
    return target


def read(kind: str, path: Path) -> RankingSet:
    if kind in ("letor", "lightgbm"):
        return read_letor(path, qid="file" if kind == "lightgbm" else "token", unjudged=77)
    if kind in ("npz", "cache"):
        return read_npz(path) if kind == "npz" else open_folder(path)
    return read_table(path, unjudged=77)


def content(lists: RankingSet, ids: bool) -> tuple:
    x = lists.x.dense() if lists.is_sparse else lists.x
    labels = torch.where(lists.labels == 77, -1, lists.labels).float()
    documents = None if lists.document_ids is None else list(lists.document_ids)
    return (
        x.float().tolist(),
        labels.tolist(),
        lists.offsets.tolist(),
        *((list(lists.query_ids), documents) if ids else ()),
    )


def sources(folder: Path) -> dict[str, Path]:
    found = {"odd": folder / "odd.txt", "sparse": folder / "sparse.txt"}
    found["odd"].write_text(ODD)
    found["sparse"].write_text(SPARSE)
    if (DATA / "MQ2008").is_dir():
        found["mq2008"] = folder / "mq2008.txt"
        lines = (DATA / "MQ2008" / "Fold1" / "vali.txt").read_text().splitlines(keepends=True)
        found["mq2008"].write_text("".join(lines[:300]))
    return found


@pytest.mark.filterwarnings("ignore:.*have label -1 and got label 77")
@pytest.mark.parametrize("kind", NAMES)
def test_every_format_to_every_format(tmp_path, kind):
    for name, source in sources(tmp_path).items():
        truth = read("letor", source)
        (tmp_path / name).mkdir()
        first = convert(source, tmp_path / name / NAMES[kind], "--to", kind)
        assert content(read(kind, first), kind != "lightgbm") == content(truth, kind != "lightgbm")
        for other in NAMES:
            (tmp_path / name / other).mkdir()
            second = convert(first, tmp_path / name / other / NAMES[other], "--from", kind, "--to", other)
            ids = "lightgbm" not in (kind, other)
            assert content(read(other, second), ids) == content(truth, ids), f"{name}: {kind} to {other}"


@pytest.mark.skipif(not (DATA / "lightgbm-lambdarank").is_dir(), reason="needs LightGBM's example")
def test_a_lightgbm_file_is_known_by_its_side_file(tmp_path):
    source = DATA / "lightgbm-lambdarank" / "rank.test"
    truth = content(read_letor(source, qid="file"), True)
    table = convert(source, tmp_path / "a.parquet")
    assert content(read_table(table), True) == truth
    again = convert(table, tmp_path / "rank.test", "--to", "lightgbm")
    assert content(read_letor(again, qid="file"), True) == truth
    assert (tmp_path / "rank.test.query").read_text() == (DATA / "lightgbm-lambdarank" / "rank.test.query").read_text()


def test_text_is_the_shortest_that_is_read_back_exactly(tmp_path):
    """Every digit of the source is kept, whether it is float32 or float64."""
    random = np.random.default_rng(0)
    numbers = np.concatenate((random.random(50), random.normal(size=50) * 1e-30, random.integers(2**40, size=50)))
    for dtype in (np.float32, np.float64):
        x = torch.from_numpy(numbers.astype(dtype).reshape(-1, 3))
        lists = RankingSet(x, torch.arange(50) / 7, torch.tensor([0, 20, 50]), query_ids=["1", "2"])
        with (tmp_path / "a.npz").open("wb") as file:
            write_npz(file, lists)
        for kind in NAMES:
            (tmp_path / f"{kind}{x.dtype}").mkdir()
            path = convert(tmp_path / "a.npz", tmp_path / f"{kind}{x.dtype}" / NAMES[kind], "--to", kind)
            back = read_npz(convert(path, tmp_path / "b.npz", "--from", kind))
            assert back.x.dtype == x.dtype and torch.equal(back.x, x), kind
            assert torch.equal(back.labels.float(), lists.labels.float())
    text = convert(tmp_path / "a.npz", tmp_path / "c.txt").read_text()
    assert f"1:{numbers[0]} 2:{numbers[1]}" in text


def test_comments_ids_and_features_survive_tables(tmp_path):
    (tmp_path / "a.txt").write_text(ODD)
    for kind in ("csv", "parquet", "arrow"):
        table = convert(tmp_path / "a.txt", tmp_path / NAMES[kind])
        text = convert(table, tmp_path / "b.txt").read_text()
        assert " # docid = D2 inc = 1 prob = 0.5\n" in text and text.count("#") == 3
        assert "2:0.12345678901234566" in text and "qid:ü-7" in text
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    convert(tmp_path / "a.txt", tmp_path / "c.parquet", "--feature-names", str(tmp_path / "names.txt"))
    npz = convert(tmp_path / "c.parquet", tmp_path / "c.npz")
    assert (
        read_npz(npz).feature_names
        == tuple("abcdefg")
        == open_folder(convert(npz, tmp_path / "c.torchrank")).feature_names
    )


def test_rows_that_are_not_contiguous_keep_their_order_or_are_joined(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("1 qid:1 1:1\n0 qid:2 1:2\n0 qid:1 1:3\n")
    table = convert(tmp_path / "a.txt", tmp_path / "a.csv")
    assert pl.read_csv(table)["f1"].to_list() == [1, 2, 3]
    assert read_npz(convert(table, tmp_path / "a.npz")).x.tolist() == [[1], [3], [2]]
    assert "the rows of 1 of 2 queries are not contiguous" in capsys.readouterr().err
    assert main(["convert", str(table), str(tmp_path / "l"), "--to", "lightgbm"]) == 2
    assert "rows of query '1' are not contiguous" in capsys.readouterr().err and not (tmp_path / "l").exists()


def test_the_columns_of_a_table_are_named(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("qid,grade,x,y,url\n7,2,1,5,u1\n8,0,2,6,u2\n")
    given = ["--label", "grade", "--query", "qid", "--document", "url", "--features", "y", "x", "--json"]
    text = convert(tmp_path / "a.csv", tmp_path / "a.txt", *given).read_text()
    assert text == "2 qid:7 1:5 2:1 # u1\n0 qid:8 1:6 2:2 # u2\n"
    assert json.loads(capsys.readouterr().out) == {
        "out": str(tmp_path / "a.txt"), "source": "csv", "target": "letor", "queries": 2, "documents": 2, "features": 2,
        "dtype": "float64",
    }  # fmt: skip
    qrels = convert(tmp_path / "a.csv", tmp_path / "a.qrels", *given).read_text()
    assert qrels == "7 0 u1 2\n8 0 u2 0\n"
    assert convert(tmp_path / "a.csv", tmp_path / "b.qrels", *given[:4]).read_text() == "7 0 1 2\n8 0 1 0\n"


def test_stdin_and_stdout(tmp_path, capsysbinary, monkeypatch):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1 qid:1 1:1\n"))
    with (tmp_path / "a.txt.gz").open("rb") as stream:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": stream}))
        assert main(["convert", "-", "-", "--from", "letor", "--to", "csv"]) == 0
    found = capsysbinary.readouterr()
    assert found.out == b"label,query,f1\n1,1,1.0\n" and b"1 documents of 1 queries" in found.err
    assert main(["convert", str(tmp_path / "a.txt.gz"), "-", "--to", "parquet"]) == 2


def test_compressed_text(tmp_path):
    (tmp_path / "a.txt").write_text(SPARSE)
    truth = content(read_letor(tmp_path / "a.txt"), True)
    for ending in ("gz", "zst"):
        assert content(read_letor(convert(tmp_path / "a.txt", tmp_path / f"b.txt.{ending}")), True) == truth
        assert content(read_table(convert(tmp_path / "a.txt", tmp_path / f"b.csv.{ending}")), True) == truth


@pytest.mark.parametrize(
    "name, text, out, message",
    [
        ("a.xyz", "1 qid:1 1:1\n", "b.txt", "the format is not known by its name"),
        ("a.txt", "1 qid:1 1:1\n", "b.xyz", "set --to to one of letor"),
        ("a.qrels", "1 0 d 1\n", "b.txt", "TREC qrels hold no features"),
        ("a.txt", "1 qid:1 1:x\n", "b.csv", "a.txt, line 1: token '1:x'"),
        ("a.txt", "1 qid:1 1:NULL\n", "b.csv", "missing=0"),
        ("a.txt", "", "b.csv", "0 rows with 0 features"),
        ("a.csv", "query,label,f\n1 2,1,1\n", "b.txt", "the query id '1 2' contains white space"),
        ("a.csv", "query,label,f\n1,0.5,1\n", "b.qrels", "the label 0.5 is not an integer"),
        ("a.csv", "query,label,f\n1,1,x\n", "b.parquet", "row 1, column 'f': 'x' is not a finite number"),
        ("a.csv", "query,label,f\n", "b.parquet", "the table has no rows"),
        ("a.csv", "qid,label,f\n1,1,1\n", "b.parquet", "no column 'query'"),
        ("a.npz", "nothing", "b.txt", "cannot be read as npz"),
        ("a.txt", "1 qid:1 1:1\n", "a.txt", "OUT must not be IN"),
        ("a.txt", "1 qid:1 1:1\n", "folder", "exists and is not a cache"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, capsys, name, text, out, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / name).write_text(text)
    to = ["--to", "cache"] if out == "folder" else []
    if message.startswith("row 1"):
        (tmp_path / name).write_text("query,label,f\n1,1,1\n2,1,x\n")
        message = message.replace("row 1", "row 2")
    assert main(["convert", str(tmp_path / name), str(tmp_path / out), *to]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name, "folder"})


def test_large_files_in_small_pieces(tmp_path, monkeypatch):
    """The size of the pieces changes nothing."""
    (tmp_path / "a.txt").write_text(SPARSE)
    files = {
        kind: convert(tmp_path / "a.txt", tmp_path / NAMES[kind], "--to", kind) for kind in ("csv", "parquet", "arrow")
    }
    monkeypatch.setattr("torchrank.data.letor.files.read_blocks.__defaults__", (300,))
    monkeypatch.setattr("torchrank.data.sources.frames.BATCH", 700)
    monkeypatch.setattr("torchrank.data.formats.frames.CELLS", 300)
    truth = content(torchrank.read_letor(tmp_path / "a.txt"), True)
    for kind, path in files.items():
        again = convert(tmp_path / "a.txt", tmp_path / f"again.{path.name}", "--to", kind)
        assert content(read_table(again), True) == content(read_table(path), True) == truth
        assert content(read_letor(convert(again, tmp_path / "b.txt")), True) == truth

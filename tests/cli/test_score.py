"""`torchrank score`: a checkpoint and a file of lists, by the command that users type."""

import gzip
import io
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.small import FEATURES, data, trainer
from torchrank import LambdaRank
from torchrank.cli import main
from torchrank.cli.shared.scoring import read_pieces
from torchrank.data import letor
from torchrank.data.letor.files import read_blocks


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    ranker, fit = LambdaRank(FEATURES, transform="query_minmax"), trainer(folder, 2)
    fit.fit(ranker, datamodule=data())
    fit.save_checkpoint(folder / "some.ckpt")
    return folder / "some.ckpt", ranker.eval()


def write(path, ids, seed=0, label="1"):
    """A file with these query ids, row by row, and its rows."""
    x = np.random.default_rng(seed).normal(size=(len(ids), FEATURES)).astype(np.float32)
    rows = (
        f"{label} qid:{q} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist()))
        for q, row in zip(ids, x, strict=True)
    )
    path.write_text("".join(f"{row} # doc{number}\n" for number, row in enumerate(rows)))
    return torch.from_numpy(x)


@pytest.mark.parametrize("label", ["1", "-1"])
def test_scores_are_in_the_order_of_the_file(checkpoint, tmp_path, monkeypatch, capsys, label):
    monkeypatch.setattr("torchrank.cli.shared.scoring.DOCUMENTS", 4)  # several batches
    x = write(tmp_path / "new.txt", "bbbaaaaaacc", label=label)
    assert main(["score", str(checkpoint[0]), str(tmp_path / "new.txt"), "--out", str(tmp_path / "scores.txt")]) == 0
    with torch.no_grad():
        expected = checkpoint[1](x, torch.tensor([0, 3, 9, 11]))
    assert torch.equal(torch.from_numpy(np.loadtxt(tmp_path / "scores.txt", dtype=np.float32)), expected)
    assert "LambdaRank scored 11 documents of 3 queries" in capsys.readouterr().out


def test_a_run_for_trec_eval(checkpoint, tmp_path):
    x = write(tmp_path / "new.txt", "bbba")
    main(["score", str(checkpoint[0]), str(tmp_path / "new.txt"), "--run", "--out", str(tmp_path / "new.run")])
    lines = [line.split() for line in (tmp_path / "new.run").read_text().splitlines()]
    order = checkpoint[1].rank(x, torch.tensor([0, 3, 4])).tolist()
    assert [(q, zero, d, int(r), name) for q, zero, d, r, _, name in lines] == [
        ("bbba"[row], "Q0", f"doc{row}", place, "LambdaRank") for row, place in zip(order, (1, 2, 3, 1), strict=True)
    ]
    scores = [float(line[4]) for line in lines]
    assert scores[:3] == sorted(scores[:3], reverse=True)


@pytest.mark.parametrize(
    ("ids", "add", "message"),
    [
        ("aba", "", "sort the file by query, since scores are in the order of its rows"),
        ("ab", f"1 qid:b {FEATURES + 1}:1\n", f"{FEATURES + 1}"),
        ("ab", "1 qid:b 1:x\n", "line 3"),
    ],
)
def test_bad_files_are_named_and_nothing_is_written(checkpoint, tmp_path, capsys, ids, add, message):
    file = tmp_path / "new.txt"
    write(file, ids)
    file.write_text(file.read_text() + add)
    assert main(["score", str(checkpoint[0]), str(file), "--out", str(tmp_path / "out.txt")]) == 2
    errors = capsys.readouterr().err
    assert message in errors and "new.txt" in errors and not (tmp_path / "out.txt").exists()


def test_a_file_that_is_no_checkpoint(tmp_path, capsys):
    write(tmp_path / "new.txt", "ab")
    file = str(tmp_path / "new.txt")
    assert main(["score", file, file, "--out", str(tmp_path / "out.txt")]) == 2
    assert "new.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "."], "--out must be a new file"),
        (["--out", "new.txt"], "--out must be a new file"),
        (["--out", "out.txt", "--device", "nowhere"], "on nowhere: "),
        (["--out", "out.txt", "--run"], "must not contain spaces, got document id 'two words'"),
    ],
)
def test_bad_places_devices_and_ids(checkpoint, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "new.txt", "ab")
    before = (tmp_path / "new.txt").read_text().replace("doc1", "two words")
    (tmp_path / "new.txt").write_text(before)
    assert main(["score", str(checkpoint[0]), "new.txt", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["new.txt"] and (tmp_path / "new.txt").read_text() == before


def test_documents_without_ids_are_numbered(checkpoint, tmp_path):
    write(tmp_path / "new.txt", "bba")
    text = "".join(line.partition(" #")[0] + "\n" for line in (tmp_path / "new.txt").read_text().splitlines())
    (tmp_path / "new.txt").write_text(text)
    link = tmp_path / "link.run"
    link.symlink_to(tmp_path / "new.run")
    assert main(["score", str(checkpoint[0]), str(tmp_path / "new.txt"), "--run", "--out", str(link)]) == 0
    lines = [line.split() for line in (tmp_path / "new.run").read_text().splitlines()]
    assert sorted((q, d) for q, _, d, *_ in lines) == [("a", "1"), ("b", "1"), ("b", "2")] and link.is_symlink()


def test_a_ranker_that_needs_query_vectors_is_refused():
    ranker = torchrank.Adapter(FEATURES)
    ranker.by_query = True  # as after a fit
    with pytest.raises(ValueError, match=r"ranks by query vectors, which new\.txt cannot hold: .* torchrank apply"):
        read_pieces("new.txt", ranker)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_topics", 3, "has one model per topic"),
        ("score", lambda self, batch: torch.full((len(batch.labels),), torch.nan), "scores are NaN"),
    ],
)
def test_models_that_cannot_score(checkpoint, tmp_path, monkeypatch, capsys, name, value, message):
    monkeypatch.setattr(LambdaRank, name, value)
    write(tmp_path / "new.txt", "ab")
    assert main(["score", str(checkpoint[0]), str(tmp_path / "new.txt"), "--out", str(tmp_path / "out.txt")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_files_of_any_size_are_scored_in_blocks(checkpoint, tmp_path, monkeypatch, capsys, size):
    """Several files, stdin and stdout, lists over the borders of blocks: the scores of the ranker on whole lists."""
    monkeypatch.setattr(letor, "read_blocks", partial(read_blocks, size=size))
    first, second = write(tmp_path / "a.txt", "bbbaaaaaacc"), write(tmp_path / "b.txt", "ddddb", seed=1)
    with torch.no_grad():
        expected = [checkpoint[1](first, torch.tensor([0, 3, 9, 11])), checkpoint[1](second, torch.tensor([0, 4, 5]))]
    (tmp_path / "b.gz").write_bytes(gzip.compress((tmp_path / "b.txt").read_bytes()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "b.gz").read_bytes())))
    assert main(["score", str(checkpoint[0]), str(tmp_path / "a.txt"), "-", "--json"]) == 0
    shown = capsys.readouterr()
    assert torch.equal(torch.tensor([float(line) for line in shown.out.split()]), torch.cat(expected))
    summary = json.loads(shown.err)
    assert (summary["documents"], summary["queries"], summary["ranker"], summary["out"]) == (16, 5, "LambdaRank", "-")
    arguments = [str(tmp_path / "a.txt"), str(tmp_path / "b.gz"), "--run", "--out", str(tmp_path / "out.run")]
    assert main(["score", str(checkpoint[0]), *arguments]) == 2
    assert "query b is in two of the files" in capsys.readouterr().err and not (tmp_path / "out.run").exists()

"""`torchrank evaluate` and `torchrank test`: the numbers of trec_eval, of `evaluate` and of a fit's own evaluation."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.test_trec import MEASURES, random_files, texts, trec_eval
from tests.rankers.small import FEATURES, lists
from torchrank import ListNet
from torchrank.cli import main
from torchrank.functional import evaluate


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A TREC run and its qrels, the same lists as LETOR files and scores; in the current folder."""
    monkeypatch.chdir(tmp_path)
    run, qrels = random_files(3)
    for name, text in zip(("a.run", "a.qrels"), texts(run, qrels), strict=True):
        (tmp_path / name).write_text(text)
    made = lists(4)
    bounds = made.offsets.tolist()
    rows = [(q, entry) for q in range(len(made)) for entry in range(bounds[q], bounds[q + 1])]
    labels = made.labels.tolist()
    (tmp_path / "lists.txt").write_text("".join(letor_row(q, labels[e], made.x[e].tolist(), e) for q, e in rows))
    (tmp_path / "scores.txt").write_text("".join(f"{value}\n" for value in made.x[:, 1].tolist()))
    return run, qrels, made


def letor_row(query, label, row, entry):
    features = " ".join(f"{index}:{value!r}" for index, value in enumerate(row, 1))
    return f"{label:g} qid:q{query} {features} # doc{entry}\n"


def told(capsys, *arguments):
    """The JSON document that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.peers
@pytest.mark.parametrize("complete", [False, True])
def test_a_run_has_the_measures_of_trec_eval(files, capsys, complete):
    expected = trec_eval(files[0], files[1])
    count = len(files[1]) if complete else len(expected)
    document = told(capsys, "evaluate", "a.run", "a.qrels", "--measures", *MEASURES, *["--complete"] * complete)
    found = document["conventions"]["trec"]["measures"]
    for ours, theirs in MEASURES.items():
        assert found[ours] == pytest.approx(sum(each[theirs] for each in expected.values()) / count, abs=1e-9)
    assert document["queries"] == count and any("without results in a.run: 2" in note for note in document["notes"])


def test_the_values_of_each_query(files, capsys):
    arguments = ["evaluate", "a.run", "a.qrels", "--measures", "map", "mrr", "--convention", "trec", "default"]
    assert main([*arguments, "--per-query", "-"]) == 0
    shown = capsys.readouterr()
    header, *rows = [line.split("\t") for line in shown.out.splitlines()]
    assert header == ["query", "trec/map", "trec/mrr", "default/map", "default/mrr"] and "trec" in shown.err
    means = told(capsys, *arguments)["conventions"]["default"]["measures"]
    assert np.nanmean([float(row[3]) for row in rows]) == pytest.approx(means["map"], abs=1e-12)
    assert main([*arguments, "--per-query", "out.tsv"]) == 0
    assert Path("out.tsv").read_text() == shown.out


def test_scores_against_letor_labels(files, capsys, monkeypatch):
    made = files[2]
    measures = ["ndcg@5", "map", "auc", "domination_error", "err@5"]
    given = {"measures": measures, "max_label": 2}
    expected = evaluate(made.x[:, 1], made.labels, made.offsets, **given)
    document = told(capsys, "evaluate", "scores.txt", "lists.txt", "--measures", *measures)
    for name, value in document["conventions"]["default"]["measures"].items():
        assert value == pytest.approx(expected[name].nanmean().item(), abs=1e-12)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("scores.txt").read_bytes())))
    assert told(capsys, "evaluate", "-", "lists.txt", "--measures", *measures)["conventions"] == document["conventions"]


def test_scores_in_the_order_of_qrels_whose_queries_are_mixed(files, capsys, tmp_path):
    (tmp_path / "mixed.qrels").write_text("b 0 x 0\na 0 x 1\nb 0 y 2\na 0 y -1\n")
    (tmp_path / "four.txt").write_text("3\n2\n1\n4\n")
    document = told(capsys, "evaluate", "four.txt", "mixed.qrels", "--measures", "mrr")
    assert document["conventions"]["default"]["measures"] == {"mrr": 0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scores.txt", "a.qrels"], "but a.qrels has"),
        (["a.run", "lists.txt"], "have no query in common"),
        (["a.run", "a.qrels", "--measures", "ndgc@5"], "unknown measure 'ndgc@5'"),
        (["a.run", "a.qrels", "--measures", "auc", "--convention", "trec"], "does not define 'auc'"),
        (["a.run", "a.qrels", "--convention", "terc"], "terc"),
        (["-", "-"], "only one of the two files"),
        (["a.run", "missing"], "file not found: missing"),
        (["a.run", "."], ". is a folder, expected a file"),
        (["scores.txt", "scores.txt"], "expected 4 tokens"),
    ],
)
def test_mistakes_are_told_in_one_line(files, capsys, arguments, message):
    assert main(["evaluate", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and not shown.out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run folder with a linear ranker."""
    from tests.rankers.small import data, trainer

    folder = tmp_path_factory.mktemp("run")
    ranker, fit = ListNet(FEATURES, rounds=5), trainer(folder / "checkpoints", 5)
    fit.fit(ranker, datamodule=data())
    return folder, ranker.eval()


def test_a_checkpoint_on_labelled_files(files, checkpoint, capsys):
    made, (folder, _) = files[2], checkpoint
    ranker = ListNet.load_from_checkpoint(folder / "checkpoints" / "best.ckpt", weights_only=True).eval()
    with torch.no_grad():
        scores = ranker(made.x, made.offsets)
    document = told(capsys, "test", str(folder), "lists.txt", "--convention", "default", "letor")
    assert document["queries"] == len(made) and document["documents"] == len(scores)
    for name, part in document["conventions"].items():
        expected = evaluate(scores, made.labels, made.offsets, measures=list(part["measures"]), convention=name)
        for each, value in part["measures"].items():
            assert value == pytest.approx(expected[each].nanmean().item(), abs=1e-9)
    assert "mrr" not in document["conventions"]["letor"]["measures"]
    assert main(["test", str(folder), "lists.txt", "lists.txt", "--per-query", "-", "--convention", "trec"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + 2 * len(made) and rows[1].startswith("lists.txt/q0\t")


def test_unjudged_documents(files, checkpoint, capsys, tmp_path):
    text = Path("lists.txt").read_text()
    first = text.splitlines()[0]
    (tmp_path / "new.txt").write_text("-1" + first[first.index(" ") :] + "\n" + text)
    assert main(["test", str(checkpoint[0]), "new.txt"]) == 2
    assert "means that the document is unjudged" in capsys.readouterr().err
    dropped = told(capsys, "test", str(checkpoint[0]), "new.txt", "--unjudged", "drop")
    assert dropped["conventions"] == told(capsys, "test", str(checkpoint[0]), "lists.txt")["conventions"]
    assert (
        told(capsys, "test", str(checkpoint[0]), "new.txt", "--unjudged", "0")["documents"] == dropped["documents"] + 1
    )

"""`torchrank explain`: a pair of documents of a file, or the importance of all features."""

import json

import pytest
import torch

from tests.cli.test_score import write
from tests.rankers.small import FEATURES, data, trainer
from torchrank import LambdaRank, explain, load, permutation_importance, read_letor
from torchrank.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    fit = trainer(folder, 2)
    fit.fit(LambdaRank(FEATURES), datamodule=data())
    fit.save_checkpoint(folder / "some.ckpt")
    write(folder / "new.txt", "abbbbccc", label="1")
    text = (folder / "new.txt").read_text().replace("1 qid:b", "0 qid:b", 2).replace("1 qid:c", "0 qid:c", 1)
    (folder / "new.txt").write_text(text)
    return folder


def told(folder, capsys, *arguments):
    assert main(["explain", str(folder / "some.ckpt"), str(folder / "new.txt"), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_best_two_documents_of_the_first_query_with_two(folder, capsys):
    ranker, x = load(folder / "some.ckpt"), write(folder / "copy.txt", "abbbbccc")
    order = ranker.rank(x[1:5], torch.tensor([0, 4]))[:2] + 1
    found = told(folder, capsys)
    assert found["documents"] == [f"doc{place}" for place in order.tolist()]
    expected = explain(ranker, x, torch.tensor([0, 1, 5, 8]), order)
    assert found["difference"] == pytest.approx(float(expected.difference))
    parts = {each["name"]: each["part"] for each in found["features"]}
    assert [parts[f"f{number + 1}"] for number in range(FEATURES)] == pytest.approx(expected.parts[0].tolist())


def test_named_documents_in_the_terminal_and_in_a_figure(folder, tmp_path, capsys):
    given = ["--query", "c", "--above", "doc7", "--below", "doc5"]
    found = told(folder, capsys, *given)
    assert found["documents"] == ["doc7", "doc5"] and found["pair"] == [2, 0]
    plot = ["--plot", str(tmp_path / "why.png"), "--top", "3"]
    assert main(["explain", str(folder / "some.ckpt"), str(folder / "new.txt"), *given, *plot]) == 0
    text = capsys.readouterr().out
    assert "doc7" in text and "residual" in text and "3 others" in text
    assert (tmp_path / "why.png").read_bytes()[1:4] == b"PNG"


def test_importance_of_all_features(folder, capsys):
    found = told(folder, capsys, "--importance", "--repeats", "3", "--measure", "map")
    lists = read_letor(folder / "new.txt", num_features=FEATURES)
    expected = permutation_importance(load(folder / "some.ckpt"), lists, "map", 3)
    assert found == expected.to_dict()
    assert main(["explain", str(folder / "some.ckpt"), str(folder / "new.txt"), "--importance", "--top", "2"]) == 0
    assert "Loss of ndcg@10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "z"], "has no query z"),
        (["--query", "a"], "has one document: there is no pair"),
        (["--above", "doc1"], "give both --above and --below"),
        (["--above", "doc1", "--below", "doc99"], "the query has no document doc99: its documents are doc1, doc2"),
        (["--importance", "--query", "b"], "leave out --query"),
        (["--importance", "--measure", "nonsense"], "nonsense"),
        (["--top", "0"], "--top must be >= 1"),
        (["--plot", "why.xyz"], "cannot plot to why.xyz"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(folder / "some.ckpt"), str(folder / "new.txt"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors and errors.count("\n") == 1 and not list(tmp_path.iterdir())

"""`torchrank export`: a checkpoint becomes a file that scores alike, or one line says why not."""

import json

import pytest
import torch

from tests.rankers.small import FEATURES, data, trainer
from torchrank import LambdaRank, RandomRanker
from torchrank.cli import main
from torchrank.export.reader import score


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    for name, ranker in {"some": LambdaRank(FEATURES), "random": RandomRanker(FEATURES)}.items():
        fit = trainer(folder, 1)
        fit.fit(ranker, datamodule=data())
        fit.save_checkpoint(folder / f"{name}.ckpt")
    return folder


def test_a_checkpoint_leaves(folder, tmp_path, capsys):
    assert main(["export", str(folder / "some.ckpt"), "--to", str(tmp_path / "model.json")]) == 0
    assert "LambdaRank of 6 features" in capsys.readouterr().out
    from torchrank import load

    x = torch.randn(4, FEATURES)
    expected = load(folder / "some.ckpt")(x, torch.tensor([0, 4])).tolist()
    assert score(json.loads((tmp_path / "model.json").read_text()), x.tolist()) == pytest.approx(expected, abs=1e-5)
    assert main(["export", str(folder / "some.ckpt"), "--to", str(tmp_path / "model.pt2"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "model.pt2").stat().st_size


@pytest.mark.parametrize(
    ("checkpoint", "arguments", "message"),
    [
        ("some.ckpt", ["--to", "model.txt"], "end it in .onnx, .pt2, .json"),
        ("some.ckpt", [], "name a checkpoint or run folder, and a file by --to"),
        ("random.ckpt", ["--to", "model.onnx"], "RandomRanker has learned nothing"),
        ("none.ckpt", ["--to", "model.onnx"], "checkpoint not found"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, monkeypatch, capsys, checkpoint, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder / checkpoint), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1 and not list(tmp_path.iterdir())


def test_the_table_of_forms(capsys):
    assert main(["export", "--table"]) == 0
    assert "| `RandomRanker` | no | no | no |" in capsys.readouterr().out
    assert main(["export", "--table", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["GBDTRanker"]["graphs"]

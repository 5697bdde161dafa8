"""`torchrank tune` from the command line to the winner's run folder, with worker processes."""

import json

import pytest

from tests.cli.running import SMALL
from torchrank.cli import main

pytest.importorskip("optuna")
LINE = ["tune", "model=singlefeature,random", *SMALL, "cpu_seconds=60", "folder=out"]


@pytest.mark.slow
def test_a_study_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*LINE, "trials=3"]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "out/study.json").read_text())
    assert [row["state"] for row in found["trials"]].count("complete") >= 2 and found["tests"] == {"winner": 1}
    for row in found["trials"]:
        if row["state"] == "complete":
            results = json.loads((tmp_path / "out" / row["folder"] / "results.json").read_text())
            assert "test" not in results and results["selection"]["value"] == row["value"]
            assert set(row["settings"]) == set(results["settings"]) & {
                key for key in results["settings"] if "model." in key
            }
    winner = json.loads((tmp_path / "out/winner/results.json").read_text())
    assert winner["selection"]["value"] == max(row["value"] or 0 for row in found["trials"])
    assert f"ndcg@10 {winner['test']['default']['measures']['ndcg@10']:.4f}" in shown
    before = (tmp_path / "out/winner/results.json").stat().st_mtime_ns
    assert main([*LINE, "trials=3", "--json"]) == 0  # resumed: nothing is left to do
    assert json.loads(capsys.readouterr().out)["test"] == winner["test"]
    assert (tmp_path / "out/winner/results.json").stat().st_mtime_ns == before
    assert main(["select", "out"]) == 0 and "validation measures" in capsys.readouterr().out
    assert main([*LINE, "trials=3", "seed=1"]) == 2 and "another study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("given", "cannot read 'given'"),
        ("model=glob(*)", "model=glob(*) is not a list of values"),
        ("data.fold=1,2", "data.fold must have one value"),
        ("model=lambdarnk", "unknown model=lambdarnk: did you mean lambdarank"),
        ("model.lrr=1", "unknown option model.lrr"),
        ("trials=0", "trials must be >= 1, got 0"),
        ("cpu_seconds=soon", "cpu_seconds must be"),
        ("prune=2", "prune must be true or false"),
        ("test=true", "the winner alone is tested"),
        ("trainer=ddp_cpu", "a trial is fitted in one process"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(given, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", given]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not list(tmp_path.iterdir())

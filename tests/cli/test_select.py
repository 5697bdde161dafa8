"""The `torchrank` command as a person types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.sweep import write_sweep
from torchrank import __version__
from torchrank.cli import main

ROOT = Path(__file__).parents[2]


def test_select_prints_and_writes_the_table(tmp_path, capsys):
    write_sweep(tmp_path)
    assert main(["select", str(tmp_path), "--measures", "ndcg@10", "map", "--convention", "letor"]) == 0
    out = capsys.readouterr().out
    for part in ("convention letor", "0.4666 ±0.0229 (0.4666) *", "0.4630 ±0.0227 (0.4630) ≈", "785 queries"):
        assert part in out, part
    assert "single loses" in out and "**" not in out
    assert "convention default" not in out and "ndcg@5" not in out
    assert "25 runs read; wrote table.md and table.json" in out
    assert json.loads((tmp_path / "table.json").read_text())["tables"][0]["measures"] == {"letor": ["ndcg@10", "map"]}
    assert main(["select", str(tmp_path), "--test-measure", "map"]) == 0
    assert "paired tests of map" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["select", "nowhere"], ["select", "."], ["select", ".", "--measures", "x"]])
def test_errors_are_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("torchrank select: error: ") and captured.err.count("\n") == 1 and not captured.out


def test_usage_errors_exit_with_2(capsys):
    for arguments in ([], ["selct"], ["select"], ["select", ".", "--wrong"]):
        assert main(arguments) == 2
    capsys.readouterr()


def test_version(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"torchrank {__version__}\n"


def test_select_needs_neither_torch_nor_hydra(tmp_path):
    write_sweep(tmp_path, folds=(1, 2))
    code = (
        "import sys; from torchrank.cli import main; main(sys.argv[1:]); "
        "sys.exit(sorted({'torch', 'hydra', 'pytorch_lightning', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code, "select", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_train_passes_the_overrides_on(monkeypatch):
    seen = []
    stub = type(sys)("torchrank.train")
    stub.main, stub.__file__ = lambda: seen.append(sys.argv), "train.py"
    monkeypatch.setitem(sys.modules, "torchrank.train", stub)
    monkeypatch.setattr(sys, "argv", ["torchrank"])
    overrides = ["-m", "experiment=table", "data.fold=1,2", "--cfg", "job", "+x=1", "~callbacks", "--help"]
    assert main(["train", *overrides]) == 0
    assert seen == [["train.py", *overrides]]

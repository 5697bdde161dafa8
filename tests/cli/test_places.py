"""Runs and tables work in every folder, under every name, on every stream."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import SMALL, quick_train, results, train
from tests.report.sweep import write_sweep
from torchrank.screen import quoted

ROOT = Path(__file__).parents[2]
FOLDER = "x[/b]y a=b,c 'q' \"ü\" \\"


def test_a_run_says_and_writes_the_folder_that_was_named(tmp_path):
    done = quick_train("model=random", *SMALL, f"hydra.run.dir={quoted(FOLDER)}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"Results in {tmp_path / FOLDER}" in done.stdout and results(tmp_path / FOLDER)["name"] == "random"
    assert f"Results in {tmp_path / FOLDER}" in (tmp_path / FOLDER / "train.log").read_text(encoding="utf-8")


def test_a_sweep_over_data_folders_keeps_them_apart(tmp_path):
    lines = [f"{document % 2} qid:{query} 1:{document}\n" for query in range(9) for document in range(3)]
    for name in ("a b", "c[d]"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t=.txt").write_text("".join(lines), encoding="utf-8")
    given = ["data=files", "data.root='a b','c[d]'", "data.train='t=.txt'", "conventions=[default,letor]"]
    done = train("-m", "model=random", *given, "hydra.sweep.dir=out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = [path.parent for path in (tmp_path / "out").rglob("results.json")]
    assert len(folders) == 2 and all(f"Results in {folder}" in done.stdout for folder in folders)
    sources = {results(folder)["source"]["train"] for folder in folders}
    assert sources == {str(tmp_path / name / "t=.txt") for name in ("a b", "c[d]")}


@pytest.mark.parametrize("stream", ["ascii", "closed", "early"])
def test_a_table_needs_no_good_stream(stream, tmp_path):
    write_sweep(tmp_path / "ü [x]", folds=(1,))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    environment = {name: value for name, value in os.environ.items() if name != "HOME"} | plain
    command = [sys.executable, "-m", "torchrank.cli", "select", "ü [x]"]
    shell = {"ascii": '"$@"', "closed": '"$@" >&- <&-', "early": '"$@" | true; exit ${PIPESTATUS[0]}'}[stream]
    done = subprocess.run(["bash", "-c", shell, "", *command], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0 and b"Traceback" not in done.stderr and not done.stderr, done.stderr
    assert (tmp_path / "ü [x]" / "table.md").exists()

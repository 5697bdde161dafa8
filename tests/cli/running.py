"""Runs of train.py for tests: as a process of their own, and quickly as a copy of this one."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import torchrank.run  # noqa: F401 (before this process is copied)
from torchrank.train import main

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [str(Path(sys.executable).with_name("torchrank")), "train"]  # the installed command
SMALL = ["data.num_queries=40", "data.mean_length=8.0", "data.num_features=20"]


def train(*arguments: str, cwd: Path, script: Sequence[str] = (str(ROOT / "train.py"),)) -> subprocess.CompletedProcess:
    command = [sys.executable, *script, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def quick_train(*arguments: str, cwd: Path) -> Done:
    """The same in a copy of this process, which has imported everything already."""
    child = multiprocessing.get_context("fork").Process(target=train_here, args=(arguments, cwd))
    child.start()
    child.join()
    return Done(child.exitcode, *((cwd / name).read_text() for name in ("stdout", "stderr")))


def train_here(arguments: Sequence[str], cwd: Path, script: str = "train.py") -> None:
    """A run in this process, which ends with it; what it prints goes to the files stdout and stderr."""
    torch.set_num_threads(1)  # a copied process has none of the threads that torch has started
    os.chdir(cwd)
    os.environ["COLUMNS"] = "200"
    for place, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
    sys.stdout, sys.stderr = (os.fdopen(place, "w", buffering=1) for place in (1, 2))
    sys.argv = [script, *arguments]
    main()


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())

"""Topics are shared out over processes: the weights and measures of one process, whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("topics.py")


def run(processes: int, folder: Path) -> dict:
    out = folder / f"{processes}.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(SCRIPT), str(out)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(out, weights_only=True)


def test_two_processes_learn_what_one_does(tmp_path):
    one, two = (run(processes, tmp_path) for processes in (1, 2))
    for name, fit in one.items():
        assert (fit["state"]["made"] > 0).all() and fit["state"]["weight"].shape == (4, 5)
        for key, tensor in fit["state"].items():
            torch.testing.assert_close(two[name]["state"][key], tensor, rtol=1e-12, atol=1e-14, msg=f"{name} {key}")
        mine, theirs = (found[name]["measured"]["test"]["default"]["measures"] for found in (one, two))
        assert theirs == pytest.approx(mine, abs=1e-12)

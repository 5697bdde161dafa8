"""1 = 2 = 3 processes: the same parameters and the same measures, with uneven shards and processes without lists."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.laws.rankers import CASES, KINDS

SCRIPT = Path(__file__).with_name("fits.py")
pytestmark = pytest.mark.distributed


def run(processes: int, folder: Path, names: Iterable[str] = ()) -> dict:
    """What the fits of these names have learned; without names, all of them."""
    out = folder / f"{processes}.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(SCRIPT), str(out), *names], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return run(1, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("processes", [2, 3])
def test_fits_do_not_depend_on_the_number_of_processes(one, processes, tmp_path):
    """All on two, the first of every kind of ranker on three."""
    some = [name for name in KINDS.values() if not CASES[name].one_process]
    for name, other in run(processes, tmp_path, some if processes == 3 else ()).items():
        assert other["epochs"] == one[name]["epochs"], name
        for key, value in one[name]["state"].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(other["state"][key], value, rtol=1e-10, atol=1e-10, msg=f"{name} {key}")
        for split in ("val", "test"):
            mine, theirs = one[name]["measured"][split]["default"], other["measured"][split]["default"]
            assert (mine["lists"], mine["empty"]) == (theirs["lists"], theirs["empty"]), name
            for measure, value in mine["measures"].items():
                assert theirs["measures"][measure] == pytest.approx(value, abs=1e-12), (name, split, measure)
                torch.testing.assert_close(
                    theirs["per_query"][measure], mine["per_query"][measure], equal_nan=True, rtol=0, atol=1e-12
                )


def test_fits_that_need_one_process_say_so(tmp_path):
    names = [name for name, case in CASES.items() if case.one_process]
    told = run(2, tmp_path, names)
    assert told.keys() == set(names) and all("one process" in message for message in told.values())

"""Every benchmark still runs, as a command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["losses", "measures", "data", "fits"])
def test_a_benchmark_runs(name, tmp_path):
    done = run(name, "--quick", "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows and all(row["case"] in done.stdout for row in rows)
    assert all(row["ours"] > 0 for row in rows)


@pytest.mark.slow
def test_another_checkout_is_measured_in_the_same_run(tmp_path):
    done = run("measures", "--quick", "--beside", ROOT, "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(row["new_over_old"] > 0 for row in json.loads((tmp_path / "rows.json").read_text())["rows"])


@pytest.mark.parametrize("given", ["measure", "--beside=tests"])
def test_a_name_or_a_checkout_that_is_none_is_told(given):
    done = run(given)
    assert done.returncode == 2 and (
        "no benchmark is called measure" in done.stderr or "no torchrank in" in done.stderr
    )

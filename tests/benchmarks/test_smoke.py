"""Every benchmark still runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
NOT_BENCHMARKS = {"quick", "mlr_plain"}  # code that benchmarks share
NEEDED = {"lgmml": "lightgbm", "localrank": "sklearn", "localrank_search": "sklearn", "measures": "pytrec_eval"}
NEEDED |= {"reader": "sklearn", "export": "onnxruntime"}
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_BENCHMARKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs(name, tmp_path):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick"]
    environment = {key: value for key, value in os.environ.items() if key != "TORCHRANK_DATA"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not list(tmp_path.iterdir())

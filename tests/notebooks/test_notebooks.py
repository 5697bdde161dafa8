"""Notebooks are stories: they import torchrank, define no algorithm, and are kept with what they showed."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAPERS = [path for path in NOTEBOOKS if not path.stem[0].isdigit()]


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def program(cell):
    lines = (line for line in cell["source"] if not line.startswith(("%", "!")))
    return ast.parse("".join(lines))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_defines_nothing_and_ran_to_its_end(path):
    cells = code_cells(path)
    kinds = {type(node) for cell in cells for node in ast.walk(program(cell))}
    if path.stem != "2_your_network":  # whose network and loss are the reader's own
        assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.While}
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell["outputs"]]
    assert shown and not [output for output in shown if output["output_type"] == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_from_torchrank_exists(path):
    found = [node for cell in code_cells(path) for node in program(cell).body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in found if node.module.startswith("torchrank")]
    assert ours
    for node in ours:
        module = __import__(node.module, fromlist=[name.name for name in node.names])
        assert all(hasattr(module, name.name) for name in node.names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_its_cells_are_short(path):
    assert path.stat().st_size < 1_000_000
    lengths = [len(cell["source"]) for cell in code_cells(path)[1:]]  # the first one has the imports
    assert not path.stem[0].isdigit() or max(lengths) <= 20


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_notebook_of_a_paper_says_first_what_to_run_first(path):
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown" and "experiment=" in "".join(first["source"])


@pytest.mark.skipif("TORCHRANK_NOTEBOOKS" not in os.environ, reason="make notebooks executes them")
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_notebook_of_a_paper_runs_without_data_and_without_sweeps(path, tmp_path):
    for module in ("matplotlib", "sklearn"):
        pytest.importorskip(module)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "train.py").symlink_to(ROOT / "train.py")
    environment = {name: value for name, value in os.environ.items() if name != "TORCHRANK_DATA"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "notebooks"))), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-m", "tests.notebooks.execute", str(path)]
    done = subprocess.run(command, cwd=tmp_path / "notebooks", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

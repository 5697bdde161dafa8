"""Notebooks are stories: they import torchrank, define no algorithm, and are kept with what they showed."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


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

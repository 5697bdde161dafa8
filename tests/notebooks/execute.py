"""Executes the code cells of a notebook here, without Jupyter: python -m tests.notebooks.execute FILE."""

import ast
import json
import subprocess
import sys
import types
from pathlib import Path


def pretend_ipython() -> None:
    """What notebooks import of IPython, which is not among the packages of the tests."""
    display, whole = types.ModuleType("IPython.display"), types.ModuleType("IPython")
    display.Markdown = str
    whole.display, whole.version_info = display, (9, 0)  # matplotlib asks for the version
    sys.modules |= {"IPython": whole, "IPython.display": display}


def python_of(source: str) -> ast.Module:
    """A cell without its magics (%), its commands (!) as calls."""
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    calls = [f"run({line[1:]!r}, shell=True, check=True)" if line.startswith("!") else line for line in lines]
    return ast.parse("\n".join(calls))


def main() -> None:
    pretend_ipython()
    names = {"run": subprocess.run}
    for number, cell in enumerate(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            tree, place = python_of("".join(cell["source"])), f"cell {number}"
            shown = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, place, "exec"), names)
            if shown is not None:
                value = eval(compile(ast.Expression(shown.value), place, "eval"), names)
                if hasattr(value, "savefig"):
                    value.savefig("figure.png", dpi=40)  # draws everything


if __name__ == "__main__":
    main()

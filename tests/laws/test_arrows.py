"""Who may import whom: functional <- solvers <- rankers <- train; data sees lists of functional, report no ranker."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "torchrank"

# room: what it may import of torchrank besides itself
ALLOWED = {
    "functional": ["errors"],
    "solvers": ["functional", "data", "errors"],
    "data": ["functional.arrays", "functional.lists", "functional.ragged", "errors", "files", "progress"],
    "metrics": ["functional", "errors"],
    "rankers": ["functional", "solvers", "metrics", "data", "errors", "files", "record", "progress"],
    "explanations": [
        "functional",
        "data",
        "solvers",
        "rankers",
        "export",
        "errors",
        "files",
        "record",
        "progress",
        "screen",
    ],
    "export": ["functional", "data", "rankers", "solvers", "errors", "files", "progress"],
    "report": ["record", "files", "progress", "screen"],
    "tuning": ["train", "run", "mistakes", "data", "rankers", "report", "record", "errors", "files", "screen"],
}
HYDRA = ("hydra", "omegaconf")
HEAVY = ("pytorch_lightning", "lightning", *HYDRA, "torchmetrics", "numpy", "scipy", "pandas", "polars", "pyarrow")
# third parties that a room must not import: functional has torch and numpy only, solvers know no Lightning and no files
REFUSED = {
    "functional": tuple(set(HEAVY) - {"numpy"}),
    "solvers": ("pytorch_lightning", "lightning", *HYDRA, "torchmetrics"),
    "data": HYDRA,
    "metrics": ("pytorch_lightning", "lightning", *HYDRA),
    "rankers": HYDRA,
    "report": (*HYDRA, "pytorch_lightning", "lightning"),
}


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: imports are absolute"
            # `from torchrank.functional import ragged` imports the module functional.ragged
            base = ROOT.parent.joinpath(*node.module.split("."))
            modules = {f"{node.module}.{alias.name}" for alias in node.names if (base / f"{alias.name}.py").exists()}
            found |= modules or {node.module}
    return found


def files(room: str) -> list[Path]:
    """The modules of a folder, or the module of this name."""
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] in (room, f"{room}.py")]


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_along_the_arrows(room):
    own = f"torchrank.{room}"
    allowed = [own, *(f"torchrank.{name}" for name in ALLOWED[room])]
    for path in files(room):
        for name in imports(path):
            if name.split(".")[0] == "torchrank":
                # the package itself holds names only and imports no room
                fits = name == "torchrank" or any(name == other or name.startswith(other + ".") for other in allowed)
                assert fits, f"{path.relative_to(ROOT)} imports {name}: {room} may import {ALLOWED[room] or 'nothing'}"


@pytest.mark.parametrize("room", REFUSED)
def test_rooms_keep_third_parties_out(room):
    for path in files(room):
        found = {name.split(".")[0] for name in imports(path)} & set(REFUSED[room])
        assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


@pytest.mark.parametrize("asked", ["--help", "--version", "modle=listnet", "model=lisnet"])
def test_train_answers_before_torch_is_imported(asked):
    code = (
        "import sys; sys.argv = ['train.py', sys.argv[1]]; from torchrank.train import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print({'torch', 'pytorch_lightning'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, asked], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_hydra_is_imported_by_train_its_messages_and_studies_alone():
    importers = [
        path.name for path in sorted(ROOT.rglob("*.py")) if any(name.split(".")[0] in HYDRA for name in imports(path))
    ]
    assert importers == ["mistakes.py", "run.py", "train.py", "configs.py", "worker.py"]


def test_the_command_line_starts_without_torch_and_hydra():
    code = "import sys; from torchrank.cli import main; main(['--help']); print({'torch', 'hydra'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert run.stdout.endswith("set()\n")


def test_there_is_no_utils_module():
    assert not [path for path in ROOT.rglob("*.py") if path.stem in ("utils", "helpers", "misc", "common")]


@pytest.mark.parametrize("module", ["torchrank", "torchrank.functional", "torchrank.functional.conventions"])
def test_functions_come_without_lightning(module):
    code = (
        f"import sys, {module}; print([m for m in ('pytorch_lightning', 'hydra', 'torchmetrics') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", sorted({path.parent for path in ROOT.rglob("*.py")}), ids=lambda path: path.name)
def test_no_folder_has_more_than_twenty_entries(folder):
    modules = [path for path in folder.glob("*.py") if not path.stem.startswith("__")]
    rooms = [path for path in folder.iterdir() if (path / "__init__.py").exists()]
    assert len(modules) + len(rooms) <= 20


def test_the_exported_names_are_those_that_type_checkers_see():
    """The lazy table and the imports of `TYPE_CHECKING` beside it say the same."""
    import torchrank

    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen.pop("functional") == "torchrank"
    assert seen == torchrank.EXPORTS
    for name in torchrank.__all__:
        assert getattr(torchrank, name) is not None


def test_functions_are_reachable_after_import_torchrank():
    code = "import torchrank; print(torchrank.functional.ndcg.__name__, torchrank.__version__)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert run.stdout.split()[0] == "ndcg"


def test_studies_are_imported_by_commands_alone():
    importers = {
        path.relative_to(ROOT).parts[0]
        for path in sorted(ROOT.rglob("*.py"))
        if any(name.startswith("torchrank.tuning") for name in imports(path))
    }
    assert importers == {"cli", "tuning"}

"""Runs the blocks of a page in order, in one folder and one namespace, in a copy of this process."""

import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from unittest import mock

import torch

from tests.docs.pages import ROOT, Block
from torchrank import cli, train

SERVER = multiprocessing.get_context("forkserver")  # its copies have none of the threads that other tests have started
SERVER.set_forkserver_preload(["tests.docs.running"])
SHELL = "|<>;&$`*"  # what only a shell understands
WARM = (train, "matplotlib.figure", "matplotlib.backends.backend_agg", "sklearn.neighbors", "lightgbm")
for name in WARM[1:]:  # imported once, before any copy of this process is made
    with suppress(ImportError):
        import_module(name)


def run_page(blocks: Sequence[Block], name: str, folder: Path) -> str | None:
    """Run the blocks; what was printed if one of them failed, otherwise None."""
    output = folder.parent / f"{folder.name}.txt"
    page = SERVER.Process(target=_run_here, args=(blocks, name, folder, output))
    with mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):  # for the server, if this starts it
        page.start()
    page.join()
    return None if page.exitcode == 0 else output.read_text()[-4000:]


def in_a_copy(work: Callable[[], int | None]) -> int | None:
    """The exit code of some work, done in a copy of this process, which has imported everything already."""
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(work()), daemon=False)
    child.start()
    child.join()
    return child.exitcode


def _run_here(blocks: Sequence[Block], name: str, folder: Path, output: Path) -> None:
    torch.set_num_threads(1)  # a copied process has none of the threads that torch has started
    os.chdir(folder)
    os.environ |= {"COLUMNS": "120", "MPLBACKEND": "Agg", "PYTHONPATH": f"{ROOT}:{folder}"}
    sys.path.insert(0, str(folder))  # modules that a page writes
    for place in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), place)
    sys.stdout, sys.stderr = (os.fdopen(place, "w", buffering=1) for place in (1, 2))
    known: dict = {"__name__": "__main__"}
    with shell() as run:
        for block in blocks:
            print(f"--- {name}:{block.line} ({block.language})")
            if block.language == "python":
                exec(compile("\n" * block.line + block.text, name, "exec"), known)
            elif code := run(block.text):
                sys.exit(code)


@contextmanager
def shell() -> Iterator[Callable[[str], int]]:
    """Runs shell blocks in a copy that was made before any Python block has run.

    Such a block may start threads, those of polars for example, and a copy that is made afterwards would wait for them.
    """
    own, theirs = multiprocessing.Pipe()

    def serve() -> None:
        own.close()
        with suppress(EOFError):
            while True:
                theirs.send(run_shell(theirs.recv()))

    server = multiprocessing.get_context("fork").Process(target=serve)
    server.start()
    theirs.close()

    def run(text: str) -> int:
        own.send(text)
        return own.recv()

    try:
        yield run
    finally:
        own.close()
        server.join()


def run_shell(text: str) -> int:
    """The exit code of a shell block: plain torchrank commands one by one, anything else by bash."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    commands = [shlex.split(line, comments=True) for line in lines] if not set(text) & set(SHELL) else []
    if not all(map(arguments_of, commands)) or not commands:
        return _bash(text)
    for command in commands:
        print("$", shlex.join(command))
        if code := in_a_copy(lambda command=command: _command(arguments_of(command))):
            return code
    return 0


def arguments_of(command: Sequence[str]) -> list[str] | None:
    """The arguments of `torchrank` that a command stands for, if it does."""
    if command[0] == "torchrank":
        return list(command[1:])
    return ["train", *command[2:]] if list(command[:2]) == ["python", "train.py"] else None


def _command(arguments: Sequence[str]) -> int:
    sys.argv = ["torchrank", *arguments]
    return cli.main(arguments)


def _bash(text: str) -> int:
    """Bash, to which `torchrank` and `python` are those of this test."""
    shims = 'torchrank() { "$PYTHON" -m torchrank.cli "$@"; }; python() { "$PYTHON" "$@"; }\n'
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(["bash", "-euo", "pipefail", "-c", shims + text], env=environment).returncode

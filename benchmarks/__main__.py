"""All benchmarks by one command, one timer, one table.

    python -m benchmarks [--quick] [--device cuda] [--threads 2] [--against REVISION] [--json FILE] [--plot FILE]
                         [--write docs/benchmarks.md] [name ...]
    python -m benchmarks --estimate [--machine NAME=bandwidth,f32,f64] [ranker ...]

Every ratio is torchrank / peer within one run: less is better. On one thread the CPU time of the process is measured,
so that other programs disturb little; with more threads or on a device the time that passes, which needs an idle
machine. `--against` measures the same rows with the sources of another revision, in processes that take turns. A
benchmark that fails is a row that says so, the others go on, and the exit code is 1. `--estimate` prints what a GPU
would take for a round and a validation of each ranker, by a roofline: see benchmarks/estimate.py.
"""

import argparse
import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.suite import Row

HERE = Path(__file__).parent
SHARED = {
    "__init__",
    "__main__",
    "suite",
    "plot",
    "page",
    "mlr_plain",
    "padded_losses",
    "estimate",
}  # no benchmarks of their own
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in SHARED)
BESIDE = {"same_results"}  # compare with another revision themselves
FAILED = "failed"
TURNS = 2  # of the processes of two revisions


def main() -> int:
    options = parse()
    os.environ |= dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)
    )  # before torch is imported
    if options.estimate:
        return estimate(options)
    from benchmarks.suite import machine

    run = machine() | {"device": options.device, "threads": options.threads}
    rows = beside_revision(options) if options.against else list(measured(options))
    report(rows, run, options)
    return 1 if any(row.name.endswith(f": {FAILED}") for row in rows) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"all without a name, or some of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the sizes (default: 1)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("TORCHRANK_DATA"), metavar="FOLDER",
        help="folder of data sets (default: TORCHRANK_DATA); rows that need one are left out without it",
    )  # fmt: skip
    parser.add_argument(
        "--scratch", type=Path, metavar="FOLDER", help="keep large inputs here for the next run (default: nowhere)"
    )
    parser.add_argument("--estimate", action="store_true", help="the roofline of rankers on GPUs, not the benchmarks")
    parser.add_argument(
        "--machine", action="append", default=[], metavar="NAME=BANDWIDTH,F32,F64",
        help="a further GPU for --estimate, in 10^12 bytes and operations per second",
    )  # fmt: skip
    parser.add_argument("--against", metavar="REVISION", help="compare with the sources of this revision of git")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios beside their bars")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE",
        help="keep the rows of each benchmark as PAGE/NAME.json (without .md), and make the tables of PAGE from them",
    )  # fmt: skip
    options = parser.parse_args()
    if options.estimate:
        return options
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.against and not is_revision(options.against):
        parser.error(f"git knows no revision {options.against} of {HERE.parent}")
    if options.write and not options.write.is_file():
        parser.error(f"there is no page {options.write}")
    options.names = options.names or NAMES
    return options


def estimate(options: argparse.Namespace) -> int:
    """Print the table of the roofline, row by row."""
    import torch

    from benchmarks.estimate import CASES, MACHINES, estimated, machine

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    unknown = set(options.names) - set(CASES)
    if unknown:
        print(f"no ranker is called {', '.join(sorted(unknown))}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    try:
        machines = MACHINES | dict(map(machine, options.machine))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for line in estimated(options.names or list(CASES), machines, 0.05 if options.quick else options.scale):
        print(line, flush=True)
    return 0


def is_revision(name: str) -> bool:
    asked = ["git", "-C", str(HERE), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    return subprocess.run(asked, stdout=subprocess.DEVNULL).returncode == 0


def measured(options: argparse.Namespace) -> Iterator["Row"]:
    """The rows of all benchmarks that were asked for; a peer that is not installed is a row that says so."""
    import pytorch_lightning  # noqa: F401  sets the level of its own log
    import torch

    from benchmarks.suite import MissingPeerError, Row, Setting

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    setting = Setting(options.quick, torch.device(options.device), options.threads, options.data, options.scale)
    setting = replace(setting, scratch=options.scratch, against=options.against)
    judged = not options.quick and options.scale == 1
    for name in options.names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            for row in importlib.import_module(f"benchmarks.{name}").rows(setting):
                yield replace(row, name=f"{name}: {row.name}", bar=row.bar if judged else None)
        except MissingPeerError as error:
            yield Row(f"{name}: not measured", note=str(error))
        except Exception as error:
            traceback.print_exc()
            yield Row(f"{name}: {FAILED}", note=f"{type(error).__name__}: {error}".splitlines()[0])


def beside_revision(options: argparse.Namespace) -> list["Row"]:
    """The best times of the sources of two revisions, whose processes take turns."""
    from benchmarks.suite import Row

    rows: list[Row] = []
    with worktree(options.against) as sources, tempfile.TemporaryDirectory() as folder:
        scratch = options.scratch or Path(folder)
        for name in options.names:
            if name in BESIDE:
                rows += measured(argparse.Namespace(**vars(options) | {"names": [name]}))
                continue
            turns = [[elsewhere(each, scratch, name, options) for each in (HERE.parent, sources)] for _ in range(TURNS)]
            ours, theirs = (best([*chain(*each)]) for each in zip(*turns, strict=True))
            for key, row in ours.items():
                old = theirs.get(key)
                note = told(row, old) if old else "the revision does not measure it"
                bar = None if options.quick or options.scale != 1 else row.earlier
                rows.append(Row(key, row.ours, row.unit, options.against, old and old.ours, bar, note))
    return rows


def told(row: "Row", old: "Row") -> str:
    """The notes of both revisions, if they are not the same."""
    return row.note if row.note == old.note else f"{row.note}; the earlier version: {old.note}"


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """The sources of a revision in a folder of their own, without its benchmarks."""
    git = ["git", "-C", str(HERE), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "sources")
        subprocess.run([*git, "add", "--quiet", "--detach", str(sources), revision], check=True)
        shutil.rmtree(sources / "benchmarks", ignore_errors=True)  # those of this checkout are to be imported
        try:
            yield sources
        finally:
            subprocess.run([*git, "remove", "--force", str(sources)], check=True)


def best(rows: Sequence["Row"]) -> dict[str, "Row"]:
    """The row with the smallest time of each name."""
    found: dict[str, Row] = {}
    for row in rows:
        known = found.get(row.name)
        if row.ours is not None and (known is None or known.ours is None or row.ours < known.ours):
            found[row.name] = row
    return found


def elsewhere(sources: Path, scratch: Path, name: str, options: argparse.Namespace) -> list["Row"]:
    """The rows measured in a process of its own, by the benchmarks of this checkout, with the sources of another."""
    from benchmarks.suite import Row

    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "rows.json")
        command = [sys.executable, "-c", "from benchmarks.__main__ import main; main()", name]
        command += ["--json", str(written), "--device", options.device, "--threads", str(options.threads)]
        command += ["--quick"] if options.quick else []
        command += ["--scale", str(options.scale), "--scratch", str(scratch.resolve())]
        command += ["--data", str(Path(options.data).resolve())] if options.data else []
        path = os.pathsep.join([str(sources), str(HERE.parent)])
        given = os.environ | {"PYTHONPATH": path}
        subprocess.run(command, check=True, cwd=folder, env=given, stdout=subprocess.DEVNULL)
        rows = json.loads(written.read_text())["rows"]
    return [Row(**{key: value for key, value in row.items() if key != "ratio"}) for row in rows]


def report(rows: list["Row"], run: dict, options: argparse.Namespace) -> None:
    from benchmarks.suite import table

    print(table(rows))
    missed = [row.name for row in rows if row.missed]
    print(f"\n{len(rows)} rows; {len(missed)} above their bar{': ' + '; '.join(missed) if missed else ''}")
    if options.quick:
        print("Tiny sizes: the ratios mean nothing, and none is judged.")
    if options.json:
        content = {"run": run, "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        from benchmarks.plot import draw

        draw(rows, options.plot)
    if options.write:
        from benchmarks.page import keep

        keep(rows, options.write, options.names, run, as_given(options))


def as_given(options: argparse.Namespace) -> list[str]:
    """The options that matter for a figure, as they would be typed."""
    given = ["--quick"] if options.quick else []
    given += ["--scale", f"{options.scale:g}"] if options.scale != 1 else []
    given += ["--device", options.device] if options.device != "cpu" else []
    given += ["--threads", str(options.threads)] if options.threads != 1 else []
    return given + (["--against", options.against] if options.against else [])


if __name__ == "__main__":
    sys.exit(main())

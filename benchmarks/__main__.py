"""All benchmarks by one command, one timer, one table.

    python -m benchmarks [--quick] [--device cuda] [--threads 2] [--against REVISION] [--json FILE] [--plot FILE]
                         [name ...]

Every ratio is torchrank / peer within one run: less is better. On one thread the CPU time of the process is measured,
so that other programs disturb little; with more threads or on a device the time that passes, which needs an idle
machine. `--against` measures the same rows with the sources of another revision, in processes that take turns.
"""

import argparse
import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.suite import Row

HERE = Path(__file__).parent
SHARED = {"__init__", "__main__", "suite", "plot", "mlr_plain"}  # no benchmarks of their own
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in SHARED)


def main() -> int:
    options = parse()
    os.environ |= dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads)
    )  # before torch is imported
    rows = list(measured(options))
    if options.against:
        rows = beside_revision(rows, options)
    report(rows, options)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"all without a name, or some of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("TORCHRANK_DATA"), metavar="FOLDER",
        help="folder of data sets (default: TORCHRANK_DATA); rows that need one are left out without it",
    )  # fmt: skip
    parser.add_argument("--against", metavar="REVISION", help="compare with the sources of this revision of git")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios beside their bars")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    options.names = options.names or NAMES
    return options


def measured(options: argparse.Namespace) -> Iterator["Row"]:
    """The rows of all benchmarks that were asked for; a peer that is not installed is a row that says so."""
    import torch

    from benchmarks.suite import MissingPeerError, Row, Setting

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    setting = Setting(options.quick, torch.device(options.device), options.threads, options.data)
    for name in options.names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            for row in importlib.import_module(f"benchmarks.{name}").rows(setting):
                yield replace(row, name=f"{name}: {row.name}", bar=None if options.quick else row.bar)
        except MissingPeerError as error:
            yield Row(f"{name}: not measured", note=str(error))


def beside_revision(rows: list["Row"], options: argparse.Namespace) -> list["Row"]:
    """The same rows, each beside the time of the revision's sources; both are measured once more in turn."""
    from benchmarks.suite import Row

    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "sources")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(sources), options.against], check=True)
        try:
            old = {row["name"]: row["ours"] for row in elsewhere(sources, options)}
            new = {row["name"]: row["ours"] for row in elsewhere(HERE.parent, options)}
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(sources)], check=True)
    best = [replace(row, ours=min(row.ours, new.get(row.name, row.ours))) for row in rows]
    return [Row(row.name, row.ours, row.unit, options.against, old.get(row.name)) for row in best]


def elsewhere(sources: Path, options: argparse.Namespace) -> list[dict]:
    """The rows measured in a process of its own, by the benchmarks of this checkout, with the sources of another."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "rows.json")
        command = [sys.executable, "-c", "from benchmarks.__main__ import main; main()", *options.names]
        command += ["--json", str(written), "--device", options.device, "--threads", str(options.threads)]
        command += ["--quick"] if options.quick else []
        command += ["--data", str(options.data)] if options.data else []
        path = os.pathsep.join([str(sources), str(HERE.parent)])
        subprocess.run(
            command, check=True, cwd=folder, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL
        )
        return json.loads(written.read_text())["rows"]


def report(rows: list["Row"], options: argparse.Namespace) -> None:
    from benchmarks.suite import machine, table

    print(table(rows))
    missed = [row.name for row in rows if row.missed]
    print(f"\n{len(rows)} rows; {len(missed)} above their bar{': ' + '; '.join(missed) if missed else ''}")
    if options.quick:
        print("Tiny sizes: the ratios mean nothing, and none is judged.")
    if options.json:
        content = {"machine": machine(), "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot:
        from benchmarks.plot import draw

        draw(rows, options.plot)


if __name__ == "__main__":
    sys.exit(main())

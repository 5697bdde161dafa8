"""All benchmarks by one command.

    python -m benchmarks [losses|measures|data|fits ...] [--quick] [--beside PATH] [--json FILE]

Every number is CPU time on one thread, the best of many turns. Ratios are torchrank / peer: less than 1 means that
torchrank is faster. `--beside PATH` measures the torchrank of the checkout at PATH in the same run, in a process of its
own that takes turns with this one, and prints new / old. A case that fails is a row that says so, the others go on, and
the exit code is 1.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.run import ONE_THREAD, Setting, as_json, every_row, header, line

NAMES = ("losses", "measures", "data", "fits")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of {', '.join(NAMES)}; all without a name")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--beside", type=Path, metavar="PATH", help="the checkout of another version of torchrank")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file, too")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.beside and not (options.beside / "torchrank" / "__init__.py").exists():
        parser.error(f"there is no torchrank in {options.beside}")
    os.environ |= ONE_THREAD  # before torch is imported
    data = os.environ.get("TORCHRANK_DATA")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(options.quick, Path(data) if data else None, Path(scratch))
        for name, row in every_row(options.names or list(NAMES), setting, options.beside):
            if name not in {seen for seen, _ in rows}:
                print(f"\n## {name}\n\n{header(bool(options.beside))}")
            print(line(row, bool(options.beside)), flush=True)
            rows.append((name, row))
    if options.json:
        options.json.write_text(as_json(rows))
    failed = [row.case for _, row in rows if row.note.startswith("failed: ")]
    print(f"{len(failed)} cases failed: {', '.join(failed)}" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

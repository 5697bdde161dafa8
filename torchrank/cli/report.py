"""`torchrank report`: one page of runs that opens in any browser, without network."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from torchrank.cli.shared import add_json, print_json

EXAMPLES = """
torchrank report runs/first --out report.html
torchrank report runs/first --importances --out report.html     # measured by shuffling features
torchrank report runs/single/files/listnet/* runs/single/files/gbdt/* --out two.html
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUNS", help="run folders, shown as they are, or sweeps, in which validation chooses"
    )
    parser.add_argument("--out", default="report.html", help="the page to write (default: report.html)")
    parser.add_argument("--title", default="", help="of the page; default: the names of the data")
    parser.add_argument(
        "--importances", action="store_true", help="measure importances by permutation: reads the data again, slow"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.cli.shared.learned import learned_of
    from torchrank.report.page.collect import collect
    from torchrank.report.page.page import write_page

    out = Path(options.out)
    if out.is_dir() or out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must be a file that ends in .html, got {options.out}")
    document = collect(options.runs, partial(learned_of, shuffled=options.importances))
    write_page(out, document, options.title)
    if options.json:
        print_json({"out": str(out), **brief(document)})
    else:
        rankers = sum(len(section["methods"]) for section in document["sections"])
        print(f"{counted(rankers, 'ranker')} of {counted(document['runs'], 'run')}: wrote {out}")


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def brief(document: dict[str, Any]) -> dict[str, Any]:
    """The document without the values of single queries, curves and configurations."""
    long = ("queries", "values", "methods")
    kept = ("name", "ranker", "folds", "seeds", "candidates", "chosen", "test", "val", "seconds", "memory", "findings")
    sections = [
        {name: value for name, value in section.items() if name not in long}
        | {"methods": [{name: method[name] for name in kept} for method in section["methods"]]}
        for section in document["sections"]
    ]
    return {**document, "sections": sections}

"""`torchrank select`: the table of a sweep, selected by validation."""

import argparse
from typing import Any

from torchrank.cli.shared import add_json, print_json
from torchrank.screen import console

EXAMPLES = """
torchrank select runs/mq2008
torchrank select runs/mq2008 --measures ndcg@10 map --convention letor
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="reads every results.json below it, writes table.md and table.json to it")
    parser.add_argument("--brief", action="store_true", help="print the measures only, and what locality gained")
    parser.add_argument("--measures", nargs="+", metavar="NAME", help="default: all in the files")
    parser.add_argument("--convention", nargs="+", metavar="NAME", help="default: all in the files")
    parser.add_argument("--test-measure", metavar="NAME", help="for the paired tests; default: that of selection")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.report import summary, tables

    shown = {"measures": options.measures, "conventions": options.convention, "test_measure": options.test_measure}
    document = summary.tabulate(options.folder, **shown)
    pages = tables.sheets(document)
    show(options, document, pages, tables.brief(document) if options.brief else pages)


def show(options: argparse.Namespace, document: dict[str, Any], pages: list[Any], shown: list[Any]) -> None:
    """Print the sheets or the document, and write table.md and table.json."""
    from torchrank.report import summary, tables

    summary.write(options.folder, document, pages)
    if options.json:
        print_json(document)
        return
    screen = console()
    for sheet in shown:
        tables.show(sheet, screen)
    print(f"{document['runs']} runs read; wrote table.md and table.json to {options.folder}")

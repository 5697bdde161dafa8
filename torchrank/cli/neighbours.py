"""`torchrank neighbours`: kNN errors of a sweep over metrics."""

import argparse

from torchrank.cli.select import show
from torchrank.cli.shared import add_json

EXAMPLES = """
torchrank neighbours runs/uci
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="reads every results.json below it, writes table.md and table.json to it")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.report import knn

    document = knn.tabulate_neighbours(options.folder)
    pages = knn.pages(document)
    show(options, document, pages, pages)

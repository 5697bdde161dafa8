"""`torchrank folds`: a file of lists, split by query into folds for cross-validation."""

import argparse
from pathlib import Path

from torchrank.cli.convert import add_source, open_options
from torchrank.cli.shared import add_json, print_json
from torchrank.screen import override

EXAMPLES = """
torchrank folds all.txt --out shop
torchrank folds clicks.parquet --folds 10 --out shop --seed 1
torchrank train -m data=folds data.root=shop data.fold=1,2,3,4,5 model=lambdarank
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE", help="lists in any format that torchrank convert reads")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="new folder for Fold1, Fold2, ...")
    parser.add_argument("--folds", type=int, default=5, help="number of folds, at least 3 (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="draws the parts (default: 0)")
    add_source(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.data.formats.folds import write_folds

    source = open_options(options)
    counts = write_folds(source, Path(options.out), options.folds, options.seed)
    if options.json:
        print_json({"out": options.out, "seed": options.seed, "folds": counts})
        return
    for number, fold in enumerate(counts, start=1):
        sizes = ", ".join(f"{queries} queries in {split}.txt" for split, queries in fold.items())
        print(f"{options.out}/Fold{number}: {sizes}")
    print(f"Use it with: torchrank train data=folds {override('data.root', options.out)} data.fold=1")

"""`torchrank convert`: ranking data from one format to another."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrank.cli.shared import add_json, print_json

if TYPE_CHECKING:
    from torchrank.data.formats.pieces import Source

EXAMPLES = """
torchrank convert train.txt train.parquet
torchrank convert clicks.csv clicks.txt.gz --label grade --query qid --features bm25 clicks
torchrank convert rank.train rank.train.npz               # a LightGBM file, with rank.train.query beside it
torchrank convert train.txt rank.train --to lightgbm      # writes rank.train and rank.train.query
torchrank convert test.parquet test.qrels                 # labels for trec_eval
zcat big.txt.gz | torchrank convert - - --from letor --to csv | head
"""
FORMATS = ("letor", "lightgbm", "csv", "parquet", "arrow", "npz", "cache", "qrels")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="the file to read, or - for stdin")
    parser.add_argument("target", metavar="OUT", help="the file to write, or - for stdout (letor, csv, qrels)")
    parser.add_argument("--to", choices=FORMATS, help="format of OUT; default: by its name")
    add_source(parser)
    parser.add_argument("--feature-names", metavar="FILE", help="names of the features, one per line")
    parser.add_argument(
        "--dtype", default="auto", choices=("auto", "float32", "float64"),
        help="of numbers in parquet, arrow, npz and cache (default: float32 if it holds every digit)",
    )  # fmt: skip
    add_json(parser)


def add_source(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that reads a data file in any format."""
    parser.add_argument("--from", dest="from_", choices=FORMATS, help="format of the data; default: by its name")
    parser.add_argument("--label", default="label", help="column of labels of a table that is read (default: label)")
    parser.add_argument("--query", default="query", help="its column of query ids (default: query)")
    parser.add_argument("--document", help="its column of document ids (default: document, if there is one)")
    parser.add_argument("--features", nargs="+", metavar="NAME", help="its features (default: all other numbers)")
    parser.add_argument("--weight", help="its column of weights of the documents (default: none)")
    parser.add_argument("--position", help="its column of positions, from 0 (default: none)")
    parser.add_argument("--qid", default="token", help="where LETOR has query ids: token, comment or file (FILE.query)")
    parser.add_argument("--query-file", metavar="FILE", help="list lengths of a LightGBM file (default: FILE.query)")
    parser.add_argument("--missing", type=float, help="the number to use for NULL and for empty cells")
    parser.add_argument("--num-features", type=int, help="features of a LETOR file (default: its largest index)")


def open_options(options: argparse.Namespace, **changed: Any) -> Source:
    """The data file that the arguments of `add_source` describe; some of them may be changed."""
    from torchrank.data.formats import Columns, format_of, open_source

    given = {name: value for name, value in {**vars(options), **changed}.items() if value is not None}
    kind = given.get("from_") or format_of(options.source, reading=True)
    columns = Columns(**{name: vars(options)[name] for name in Columns._fields})
    reader = {name: given[name] for name in ("qid", "query_file", "missing", "num_features") if name in given}
    return open_source(Path(options.source), kind, columns, **reader)


def run(options: argparse.Namespace) -> None:
    from torchrank.data.formats import Columns, convert, format_of

    source = options.from_ or format_of(options.source, reading=True)
    target = options.to or format_of(options.target, reading=False)
    out = Path(options.target)
    if options.target != "-" and out.exists() and Path(options.source).exists() and out.samefile(options.source):
        raise ValueError(f"OUT must not be IN, got {options.target} for both")
    with tempfile.TemporaryDirectory() as folder:
        path = _spool(Path(folder, "stdin")) if options.source == "-" else Path(options.source)
        found = convert(
            path,
            options.target,
            source,
            target,
            columns=Columns(**{name: vars(options)[name] for name in Columns._fields}),
            qid=options.qid,
            query_file=options.query_file,
            missing="error" if options.missing is None else options.missing,
            num_features=options.num_features,
            feature_names=options.feature_names,
            dtype=options.dtype,
        )
    told = sys.stderr if options.target == "-" else sys.stdout
    if options.json:
        print_json({"out": options.target, **found._asdict()}, told)
        return
    sizes = f"{found.documents} documents of {found.queries} queries with {found.features} features"
    print(f"{found.source} -> {found.target}: {sizes}: {options.target}", file=told)


def _spool(path: Path) -> Path:
    """Stdin as a file, since a conversion reads its source twice."""
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path

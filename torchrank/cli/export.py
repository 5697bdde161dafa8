"""`torchrank export`: a fitted ranker as ONNX graph, torch program or JSON."""

import argparse

from torchrank.cli.shared import add_json, add_ranker, load_ranker, print_json

EXAMPLES = """
torchrank export runs/single/files/listnet/2026-01-31_12-00-00 --to model.onnx
torchrank export best.ckpt --to model.pt2
torchrank export best.ckpt --to model.json      # weights, rules or trees in plain numbers
torchrank export runs/adapter --to adapter      # the maps of an adapter, in a folder of this name
torchrank export --table                        # which ranker has which form, and why not
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_ranker(parser)
    checkpoint = next(action for action in parser._actions if action.dest == "checkpoint")
    checkpoint.nargs, checkpoint.default = "?", None
    parser.add_argument(
        "--to",
        metavar="FILE",
        help="model.onnx, model.pt2 or model.json: the suffix is the format; a folder for an adapter",
    )
    parser.add_argument("--table", action="store_true", help="print which ranker can be exported to which format")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.export.table import FORMS, export_table

    if options.table:
        forms = {name: each._asdict() for name, each in FORMS.items()}
        print_json(forms) if options.json else print(export_table())
        return
    if options.checkpoint is None or options.to is None:
        raise ValueError("name a checkpoint or run folder, and a file by --to model.onnx, model.pt2 or model.json")
    ranker = load_ranker(options)
    path = ranker.export(options.to)
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    told = {"ranker": type(ranker).__name__, "num_features": ranker.num_features, "file": str(path), "bytes": size}
    if options.json:
        print_json(told)
    else:
        checked = ", checked against the ranker" if path.is_file() else ""
        print(f"{told['ranker']} of {ranker.num_features} features: {path} ({size:,} bytes){checked}")

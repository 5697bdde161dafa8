"""The `torchrank` command: `train` is train.py, `score` applies a checkpoint to a file, `select` and `neighbours` print
the tables of a sweep."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrank import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; an error is one line on stderr and exit code 2.

    >>> main(["select", "no/such/folder"])
    2
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "train":
        return _train(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        (_score if options.command == "score" else _tabulate)(options)
    except (ValueError, OSError) as error:
        print(f"torchrank: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrank", description="Learning to rank on PyTorch.")
    parser.add_argument("--version", action="version", version=f"torchrank {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train", add_help=False, help="run train.py; Hydra overrides follow, such as model=listnet")
    score = commands.add_parser("score", help="score the documents of a file with a checkpoint")
    score.add_argument("checkpoint", help="best.ckpt or last.ckpt of a run")
    score.add_argument("file", help="lists in LETOR / svmlight format; labels are ignored")
    score.add_argument("--out", required=True, help="file to write: one score per line, in the order of the input")
    score.add_argument("--run", action="store_true", help="write a run for trec_eval instead, with document ids")
    score.add_argument("--qid", default="token", help="where the query ids are: token, comment or file (FILE.query)")
    score.add_argument("--missing", type=float, help="the number to use for NULL")
    score.add_argument("--sentinel", type=_clip, help="the number to use for values beyond float32, or clip")
    score.add_argument("--device", default="cpu", help="device to score on, such as cuda")
    select = commands.add_parser("select", help="select by validation in a sweep, print and write its table")
    select.add_argument("folder", help="reads every results.json below it, writes table.md and table.json to it")
    select.add_argument("--brief", action="store_true", help="print the measures only, and what locality gained")
    select.add_argument("--measures", nargs="+", metavar="NAME", help="default: all in the files")
    select.add_argument("--convention", nargs="+", metavar="NAME", help="default: all in the files")
    select.add_argument("--test-measure", metavar="NAME", help="for the paired tests; default: that of selection")
    near = commands.add_parser(
        "neighbours", help="print kNN errors of a sweep, selected by test (as published) and by validation"
    )
    near.add_argument("folder", help="reads every results.json below it, writes table.md and table.json to it")
    return parser


def _clip(text: str) -> float | str:
    return text if text == "clip" else float(text)


def _score(options: argparse.Namespace) -> None:
    from torchrank.files import write_atomically
    from torchrank.rankers.core.checkpoints import load
    from torchrank.scoring import read_rows, run_lines, score_lines, scores_of

    out = Path(options.out)
    if out.exists() and (not out.is_file() or out.samefile(options.file)):
        raise ValueError(f"--out must be a new file or one to overwrite, not a folder or the input, got {out}")
    try:
        ranker = load(options.checkpoint).to(options.device)
    except (ImportError, KeyError, RuntimeError, AssertionError) as error:  # also for an unknown device
        raise ValueError(f"cannot load {options.checkpoint} on {options.device}: {error}") from error
    given = {"qid": options.qid, "missing": options.missing, "sentinel": options.sentinel}
    lists = read_rows(options.file, ranker, **{name: value for name, value in given.items() if value is not None})
    scores = scores_of(ranker, lists)
    lines = run_lines(lists, scores, type(ranker).__name__) if options.run else score_lines(scores)
    write_atomically(out, lambda file: file.writelines(f"{line}\n".encode() for line in lines))
    print(f"{type(ranker).__name__} scored {len(scores)} documents of {len(lists)} queries: {options.out}")


def _tabulate(options: argparse.Namespace) -> None:
    from rich.console import Console

    from torchrank.report import knn, summary, tables

    if options.command == "select":
        shown = {"measures": options.measures, "conventions": options.convention, "test_measure": options.test_measure}
        document = summary.tabulate(options.folder, **shown)
        pages = tables.sheets(document)
    else:
        document = knn.tabulate_neighbours(options.folder)
        pages = knn.pages(document)
    console = Console(width=None if sys.stdout.isatty() else 160)  # a file or pipe has no width
    brief = options.command == "select" and options.brief
    for sheet in tables.brief(document) if brief else pages:
        tables.show(sheet, console)
    summary.write(options.folder, document, pages)
    print(f"{document['runs']} runs read; wrote table.md and table.json to {options.folder}")


def _train(overrides: list[str]) -> int:
    from torchrank.train import __file__ as script
    from torchrank.train import main as train

    # Hydra reads the overrides there, and Lightning starts further processes with it
    sys.argv = [script, *overrides]
    train()
    return 0


if __name__ == "__main__":
    sys.exit(main())

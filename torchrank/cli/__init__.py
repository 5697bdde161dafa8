"""The `torchrank` command. Each command is a module of its name here, imported when it is called."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from torchrank import __version__
from torchrank.screen import discard, one_line, settle_streams, told

COMMANDS = {  # by what one wants to do; each is a module with EXAMPLES, `configure(parser)` and `run(options)`
    "Learn": {
        "train": "fit a ranker, test it, and write its run folder",
        "tune": "search for the settings of one or more models by validation, test the winner once",
        "leaderboard": "tune and test every ranker that fits the data on all folds: tables, tests, costs, one page",
    },
    "Use": {
        "score": "score the documents of files of any size with a fitted ranker",
        "test": "measure a fitted ranker on new labelled files",
        "explain": "why one document is ranked above another, and what each feature is worth",
        "apply": "map files of vectors by a saved adapter",
        "export": "write a fitted ranker as ONNX graph, torch program or JSON, to serve it without torchrank",
    },
    "Compare": {
        "evaluate": "measure a TREC run or a file of scores against qrels or LETOR labels",
        "compare": "compare two or more runs, score files or run folders by paired tests",
        "select": "select by validation in a sweep, print and write its table",
        "report": "write one page of runs: tables, curves, queries, costs; opens in any browser without network",
        "plot": "draw one figure of runs: measures, scatter, differences, costs or learning curves",
        "neighbours": "print kNN errors of a sweep, selected by test (as published) and by validation",
    },
    "Data": {
        "info": "say what a data file, checkpoint or run folder is; alone: versions, devices, extras",
        "convert": "convert ranking data: LETOR, LightGBM, csv, parquet, Arrow, npz, TREC qrels",
        "embed": "make the vectors of a folder of texts, documents and queries, with sentence-transformers",
        "folds": "split a file of lists by query into folds for cross-validation",
    },
}
SUMMARIES = {name: summary for group in COMMANDS.values() for name, summary in group.items()}
FIRST_STEPS = """First steps, with files of your own in LETOR / svmlight format:
  torchrank train model=lambdarank data=files data.train=train.txt data.test=test.txt
  torchrank score RUN_FOLDER new.txt --out scores.txt"""
USER_ERRORS = (ValueError, OSError, ImportError)  # told in one line, without a traceback


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is one line on stderr and exit code 2.

    >>> main(["select", "no/such/folder"])
    2
    """
    settle_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["train"]:  # Hydra reads its arguments, and train.py tells its own errors
        return int(import_module("torchrank.cli.train").run(given[1:]))
    name = " ".join(["torchrank", *given[:1]]) if given and given[0] in SUMMARIES else "torchrank"
    try:
        code = _dispatch(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # of a reader such as head, which has seen enough
        discard(sys.stdout)
        return 0
    except SystemExit as end:  # of argparse, which has told why
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except USER_ERRORS as error:
        print(f"{name}: error: {told(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0 if given else 2
    name, *rest = given
    if name == "--version":
        print(f"torchrank {__version__}")
        return 0
    if name not in SUMMARIES:
        near = get_close_matches(name, SUMMARIES, 1)
        choices = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(SUMMARIES)}"
        raise ValueError(f"unknown command {name!r}: {choices}")
    command = import_module(f"torchrank.cli.{name}")
    options = parser_of(name).parse_intermixed_args(rest)  # options may stand anywhere
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(
            f"torchrank {name}: warning: {one_line(message)}", file=sys.stderr
        )
        return command.run(options) or 0


def overview() -> str:
    """The page that `torchrank --help` prints."""
    width = max(map(len, SUMMARIES))
    lines = ["usage: torchrank COMMAND ...", "", "Learning to rank and metric learning on PyTorch.", "", FIRST_STEPS]
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:", *(f"  {name:{width}}  {summary}" for name, summary in commands.items())]
    lines += [
        "",
        "`torchrank COMMAND --help` shows the options of a command, with examples. A run folder stands for its",
    ]
    lines += ["best checkpoint, - for stdin or stdout, and --json prints one JSON document instead of tables."]
    lines += [
        "",
        "Exit codes: 0 done, 2 a mistake in the input (one line on stderr, nothing written), 130 interrupted.",
    ]
    return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one command, with its examples."""
    command = import_module(f"torchrank.cli.{name}")
    parser = Parser(
        prog=f"torchrank {name}",
        description=f"{SUMMARIES[name][:1].upper()}{SUMMARIES[name][1:]}.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in command.EXAMPLES.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.configure(parser)
    return parser

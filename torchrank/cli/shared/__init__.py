"""What several commands do: find a checkpoint, load its ranker, write files, print tables or JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchrank.files import write_atomically
from torchrank.record import CHECKPOINT as CHECKPOINT
from torchrank.record import checkpoint_of as checkpoint_of

if TYPE_CHECKING:
    from torchrank.rankers.core.ranker import Ranker

MEASURES = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr")


def add_ranker(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that loads a fitted ranker."""
    parser.add_argument("checkpoint", help="a checkpoint, or a run folder, which stands for its best checkpoint")
    parser.add_argument("--device", default="cpu", help="device to score on, such as cuda (default: cpu)")
    parser.add_argument("--scorer", metavar="MODULE.NAME", help="your own network, if the ranker was fitted with one")
    parser.add_argument("--loss", metavar="MODULE.NAME", help="your own loss, if the ranker was fitted with one")


def add_reader(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that reads LETOR files."""
    parser.add_argument("--qid", default="token", help="where the query ids are: token, comment or file (FILE.query)")
    parser.add_argument("--missing", type=float, help="the number to use for NULL")
    parser.add_argument("--sentinel", type=_number_or_clip, help="the number to use for values beyond float32, or clip")


def add_measures(parser: argparse.ArgumentParser, conventions: str) -> None:
    """The arguments of a command that measures lists."""
    parser.add_argument("--measures", nargs="+", metavar="NAME", help=f"default: {' '.join(MEASURES)}")
    parser.add_argument("--convention", nargs="+", metavar="NAME", help=f"one or more; default: {conventions}")
    parser.add_argument("--threshold", type=float, help="the lowest grade that is relevant (default: the convention's)")
    parser.add_argument("--max-label", type=float, help="the top grade, for err (default: the highest in the files)")


def add_unjudged(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument(
        "--unjudged", type=_number_or_drop, help=f"the label of documents with label -1 or below, such as 0{more}"
    )


def _number_or_drop(text: str) -> float | str:
    return text if text == "drop" else float(text)


def add_json(parser: argparse._ActionsContainer) -> None:
    """`--json`: print one JSON document instead of tables."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def _number_or_clip(text: str) -> float | str:
    return text if text == "clip" else float(text)


def reader_options(options: argparse.Namespace) -> dict[str, Any]:
    """What was given of the arguments of `add_reader`."""
    given = {name: getattr(options, name) for name in ("qid", "missing", "sentinel")}
    return {name: value for name, value in given.items() if value is not None}


def label_options(options: argparse.Namespace) -> dict[str, Any]:
    """What was given of the arguments of `add_reader` and `add_unjudged`."""
    return reader_options(options) | ({} if options.unjudged is None else {"unjudged": options.unjudged})


def load_ranker(options: argparse.Namespace) -> Ranker:
    """The ranker that the arguments of `add_ranker` name, on its device."""
    from torchrank.rankers.core.checkpoints import load
    from torchrank.rankers.core.own import import_from_here

    try:
        if options.scorer or options.loss:
            import_from_here()
        path = checkpoint_of(options.checkpoint)
        return load(path, scorer=options.scorer, loss=options.loss).to(options.device)
    except (ImportError, KeyError, RuntimeError, AssertionError) as error:  # also for an unknown device
        raise ValueError(f"cannot load {options.checkpoint} on {options.device}: {error}") from error


def write_lines(out: str, lines: Iterable[str], *, inputs: Iterable[str] = ()) -> None:
    """Write lines to a file, whole or not at all, or to stdout if `out` is -; never over one of the inputs."""
    write_text(out, (f"{line}\n" for line in lines), inputs=inputs)


def write_text(out: str, texts: Iterable[str], *, inputs: Iterable[str] = ()) -> None:
    """Write pieces of text as `write_lines` writes lines."""
    if out == "-":
        _write_to_stdout(texts)
        return
    path = Path(out)
    if path.exists() and (not path.is_file() or any(given != "-" and _same(path, given) for given in inputs)):
        raise ValueError(f"--out must be a new file or one to overwrite, not a folder or the input, got {out}")
    write_atomically(path, lambda file: file.writelines(text.encode() for text in texts))


def _write_to_stdout(texts: Iterable[str]) -> None:
    """Data are UTF-8 on every stream, as in every file."""
    sys.stdout.flush()
    if buffer := getattr(sys.stdout, "buffer", None):
        buffer.writelines(text.encode() for text in texts)
    else:  # a stream of somebody else
        sys.stdout.writelines(texts)
    sys.stdout.flush()


def _same(path: Path, other: str) -> bool:
    return Path(other).exists() and path.samefile(other)


def print_json(document: Any, file: TextIO | None = None) -> None:
    """Strict JSON on stdout, or to another stream: nan and infinities are null."""
    print(json.dumps(strict(document), indent=1), file=file)


def strict(value: Any) -> Any:
    """A document of plain values in which nan and infinities are None."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

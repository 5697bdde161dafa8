"""What `test`, `evaluate` and `compare` share: lists with scores and labels, and their measures in every convention."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from torchrank.cli.shared import MEASURES, print_json, write_lines
from torchrank.data.letor.files import read_blocks, read_lines
from torchrank.data.letor.form import NUMBER, show
from torchrank.data.letor.stream import stream_labels
from torchrank.data.trec import Qrels, TrecRun, read_qrels, read_run
from torchrank.errors import DataError, DataWarning
from torchrank.functional.conventions import convention_of, defines, describe, parse_measure, tell_nan
from torchrank.functional.measures.evaluation import evaluate
from torchrank.functional.ragged import segment_max
from torchrank.report.tables import NOTHING, Sheet
from torchrank.report.tables import show as show_sheet
from torchrank.screen import console


class Scored(NamedTuple):
    """Lists with scores and labels: what is measured."""

    name: str
    query_ids: Sequence[str]
    lists: dict[
        str, Any
    ]  # scores (N,), labels (N,), offsets (Q + 1,), tiebreak (N,) and judged: as `evaluate` takes them
    notes: tuple[str, ...] = ()  # what the reader of the numbers should know


# ---- reading --------------------------------------------------------------------------------------------------------


@contextmanager
def local(path: str) -> Iterator[Path]:
    """The path of an existing file; stdin (-) becomes one as long as it is needed."""
    if path != "-":
        if not Path(path).exists():
            raise FileNotFoundError(f"file not found: {path}")
        if Path(path).is_dir():
            raise IsADirectoryError(f"{path} is a folder, expected a file")
        yield Path(path)
        return
    with TemporaryDirectory(prefix="torchrank-") as folder:
        copy = Path(folder, "stdin")
        copy.write_bytes(sys.stdin.buffer.read())
        yield copy


def read_scored(results: str, qrels: Qrels, *, complete: bool = False) -> Scored:
    """A TREC run, or a file of scores in the order of the judged documents, with its labels."""
    with local(results) as path:
        first = first_line(path)
        if len(first) > 1:
            return judge(read_run(path), qrels, complete=complete)
        return align_scores(read_scores(path), qrels, path)


def read_judgements(labels: str, reader: dict[str, Any]) -> Qrels:
    """The labels of qrels or of a LETOR file; documents of the latter without ids are numbered within their list."""
    with local(labels) as path:
        first = first_line(path)
        is_letor = reader.get("qid", "token") != "token" or any(b":" in token for token in first[1:2] + first[3:])
        if is_letor:
            return letor_qrels(path, reader)
        qrels = read_qrels(path)
        return replace(qrels, labels=qrels.labels.clamp(min=0))  # negative grades count as unjudged


def first_line(path: Path) -> list[bytes]:
    """The tokens of the first line that counts."""
    lines = (line for _, line in read_lines(path) if line and not line.startswith(b"#"))
    found = next(lines, None)
    if found is None:
        raise DataError(f"{path}: the file has no lines")
    return found.partition(b"#")[0].split() or found.split()


def letor_qrels(path: Path, reader: dict[str, Any]) -> Qrels:
    if reader.get("unjudged") == "drop":
        raise ValueError(f"{path}: --unjudged drop would leave scores without a document: give a label such as 0")
    queries, documents, labels, offsets = stream_labels(path, **reader)
    if documents is None or not all(documents):
        documents = [str(place) for length in offsets.diff().tolist() for place in range(1, length + 1)]
    return Qrels(queries, documents, labels, offsets, path.name, torch.arange(len(labels)))


def read_scores(path: Path) -> Tensor:
    """Scores (N,), one per line, float64."""
    text = b"".join(block.text for block in read_blocks(path))
    tokens = text.split()
    if len(tokens) == sum(1 for line in text.split(b"\n") if line.strip()):
        try:
            scores = np.array(tokens).astype(np.float64)
        except ValueError:
            scores = np.array([np.nan])
        if np.isfinite(scores).all():
            return torch.from_numpy(scores)
    for number, line in read_lines(path):
        if line and not (NUMBER.fullmatch(line) and np.isfinite(float(line))):
            raise DataError(f"{path}, line {number}: {show(line)}: expected one finite score per line")
    return torch.tensor([float(line) for _, line in read_lines(path) if line], dtype=torch.float64)


def judge(run: TrecRun, qrels: Qrels, *, complete: bool) -> Scored:
    """A run with the grades of its documents, and what it leaves out."""
    judged = run.judge(qrels, complete=complete)
    notes = []
    if missing := len(judged.missing_queries):
        rule = "counted as empty lists" if complete else "left out as in trec_eval; --complete counts them"
        notes.append(f"Queries of {qrels.name} without results in {run.name}: {missing} ({rule}).")
    if unknown := len(judged.unjudged_queries):
        notes.append(f"Queries of {run.name} that are not in {qrels.name}: {unknown} (left out).")
    return Scored(run.name, judged.query_ids, judged.lists, tuple(notes))


def align_scores(scores: Tensor, qrels: Qrels, path: Path) -> Scored:
    """Scores in the order of the lines of the labels."""
    if len(scores) != len(qrels.labels):
        raise DataError(f"{path} has {len(scores)} scores, but {qrels.name} has {len(qrels.labels)} documents")
    scores = scores if qrels.lines is None else scores[qrels.lines]
    lists = {"scores": scores, "labels": qrels.labels, "offsets": qrels.offsets}
    return Scored(path.name, qrels.query_ids, {**lists, "tiebreak": tiebreak_of(qrels.document_ids)})


def tiebreak_of(document_ids: Sequence[str]) -> Tensor | None:
    """The order of documents with equal scores (N,), by id descending as in trec_eval; None if one has no id."""
    if not all(document_ids):
        return None
    order = pl.Series(list(document_ids), dtype=pl.String).rank("dense", descending=True).cast(pl.Int64)
    return torch.from_numpy(order.to_numpy().copy())


# ---- measuring ------------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Values of every list, by convention and measure, and the summary of each convention."""

    scored: Scored
    values: dict[str, dict[str, Tensor]]
    summary: dict[str, dict[str, Any]]


def measure(
    scored: Scored,
    measures: Sequence[str] | None,
    conventions: Sequence[str],
    *,
    threshold: float | None = None,
    max_label: float | None = None,
) -> Measured:
    """All measures in all conventions that define them."""
    chosen = choose(measures, conventions)
    labels, offsets = scored.lists.get("judged") or (scored.lists["labels"], scored.lists["offsets"])
    max_label = float(labels.max()) if max_label is None and len(labels) else max_label
    values, summary = {}, {}
    for name, names in chosen.items():
        found = evaluate(
            **scored.lists, measures=names, convention=name, threshold=threshold, max_label=max_label or 1.0
        )
        values[name] = dict(found)
        lowest = convention_of(name, threshold).threshold
        means = {each: float(value.nanmean()) for each, value in values[name].items()}
        summary[name] = {
            "text": describe(name, threshold=threshold),
            "lists": len(scored.query_ids),
            "empty": int((segment_max(labels, offsets) < lowest).sum()),
            "measures": means,
        }
        longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
        for told in tell_nan(means, lowest, lists=len(scored.query_ids), longest=longest):
            warnings.warn(told if len(chosen) == 1 else f"convention {name}: {told}", DataWarning, stacklevel=2)
    return Measured(scored, values, summary)


def choose(measures: Sequence[str] | None, conventions: Sequence[str]) -> dict[str, list[str]]:
    """The measures of each convention: those that it defines, and each must have one that does."""
    for each in measures or ():
        if not any(defines(name, each) for name in conventions):
            parse_measure(each, conventions[0])  # says what is wrong
    chosen = {name: [each for each in measures or MEASURES if defines(name, each)] for name in conventions}
    if empty := [name for name, names in chosen.items() if not names]:
        raise ValueError(f"convention {empty[0]} defines none of these measures: name others with --measures")
    return chosen


# ---- showing --------------------------------------------------------------------------------------------------------


def show_measured(options: argparse.Namespace, title: str, measured: Measured, facts: dict[str, Any]) -> None:
    """Print the means as a table or JSON, and write the values of each query where they were asked for."""
    to_stdout = options.per_query == "-"
    if options.per_query:
        write_lines(options.per_query, per_query_lines(measured))
    if options.json:
        document = {"schema": 1, **facts, "notes": measured.scored.notes, "conventions": measured.summary}
        print_json(document, file=sys.stderr if to_stdout else None)
        return
    show_sheet(sheet(title, measured), console(stderr=to_stdout))


def sheet(title: str, measured: Measured) -> Sheet:
    """A row per measure, a column per convention."""
    names = list(dict.fromkeys(each for values in measured.values.values() for each in values))
    table = Sheet(title, ["measure", *measured.summary])
    for each in names:
        means = [part["measures"].get(each) for part in measured.summary.values()]
        table.rows.append([each, *(NOTHING if mean is None else f"{mean:.4f}" for mean in means)])
    for name, part in measured.summary.items():
        empty = f"{part['lists']} queries, {part['empty']} of them without relevant documents"
        table.below.append(f"Convention {name}: {part['text']}. {empty}.")
    table.below += measured.scored.notes
    return table


def per_query_lines(measured: Measured) -> Iterable[str]:
    """A table with tabs: the query and its measures; of several conventions each is named as convention/measure."""
    several = len(measured.values) > 1
    columns = {
        f"{name}/{each}" if several else each: value.tolist()
        for name, values in measured.values.items()
        for each, value in values.items()
    }
    yield "\t".join(["query", *columns])
    for query, *values in zip(measured.scored.query_ids, *columns.values(), strict=True):
        yield "\t".join([query, *map(repr, values)])

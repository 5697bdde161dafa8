"""`torchrank compare`: two or more rankers on the same queries, with paired tests."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrank.cli.shared import add_json, add_reader, add_unjudged, label_options, print_json
from torchrank.screen import console

if TYPE_CHECKING:
    from torchrank.data.trec import Qrels
    from torchrank.record import Run
    from torchrank.report.comparison import System

EXAMPLES = """
torchrank compare runs/lambdarank runs/lgmml                    # run folders, or folders of all folds of a method
torchrank compare runs/mq2008                                   # every two methods of a sweep
torchrank compare bm25.run dense.run fused.run --qrels qrels.txt --measures map ndcg@10
torchrank compare ours.txt theirs.txt --labels test.txt --markdown
torchrank compare ours.txt theirs.txt --labels test.txt --plot differences.png --latex > table.tex
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("systems", nargs="+", metavar="A", help="run folders, TREC runs, or files of scores")
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument("--qrels", metavar="FILE", help="judgements of the runs and scores")
    labels.add_argument("--labels", metavar="FILE", help="the same as --qrels, for a LETOR file")
    parser.add_argument("--measures", nargs="+", metavar="NAME", help="default: the measure of selection, or ndcg@10")
    parser.add_argument("--convention", metavar="NAME", help="default: that of the folders; trec for runs with qrels")
    parser.add_argument("--threshold", type=float, help="the lowest grade that is relevant (default: the convention's)")
    parser.add_argument("--complete", action="store_true", help="count queries of the qrels without results too")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap and the randomisation test (default: 0)")
    form = parser.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    form.add_argument("--latex", action="store_true", help="print LaTeX (with the package booktabs)")
    parser.add_argument("--plot", metavar="FILE", help="draw the differences with their intervals: .png, .svg or .pdf")
    add_reader(parser)
    add_unjudged(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.record import smaller_is_better
    from torchrank.report import comparison

    sources = Sources(options)
    found: dict[str, Any] = {}
    for measure in options.measures or [sources.measure()]:
        systems = sources.systems(measure)
        if len(systems) < 2:
            raise ValueError(f"compare needs two or more systems, got {len(systems)}: name another folder or file")
        kinds = smaller_is_better(measure)
        found[measure] = comparison.compare(systems, smaller_is_better=kinds, seed=options.seed)
    if options.plot:
        draw(options.plot, found)
    show(options, {"schema": 1, "convention": sources.convention, "measures": found})


class Sources:
    """The folders and files that are compared."""

    def __init__(self, options: argparse.Namespace):
        from torchrank.record import read_runs

        self.options = options
        self.folders: dict[str, list[Run]] = {path: read_runs(path) for path in options.systems if Path(path).is_dir()}
        if empty := [path for path, runs in self.folders.items() if not runs]:
            raise ValueError(f"no results.json below {empty[0]}: name a folder of finished runs")
        self.scored: dict[str, Any] = {}
        if files := [path for path in options.systems if path not in self.folders]:
            qrels = self._qrels(files[0])
            self.scored = {path: self._read(path, qrels) for path in files}
        self.convention = options.convention or self._convention()

    def _qrels(self, path: str) -> Qrels:
        from torchrank.cli.shared.measuring import local, read_judgements

        labels = self.options.qrels or self.options.labels
        if labels is None:
            with local(path):  # a file that does not exist is told first
                raise ValueError(f"{path} is a run or a file of scores: give --qrels FILE or --labels FILE")
        return read_judgements(labels, label_options(self.options))

    def _read(self, path: str, qrels: Qrels) -> Any:
        from torchrank.cli.shared.measuring import read_scored

        return read_scored(path, qrels, complete=self.options.complete)

    def _convention(self) -> str:
        tests = [run.test for runs in self.folders.values() for run in runs]
        if tests:
            return next(iter(tests[0]))
        return "trec" if all("judged" in each.lists for each in self.scored.values()) else "default"

    def measure(self) -> str:
        """The measure of selection of the folders; ndcg@10 of files."""
        runs = next(iter(self.folders.values()), None)
        return "ndcg@10" if runs is None else runs[0].measure.rpartition("/")[2]

    def systems(self, measure: str) -> list[System]:
        """All systems in the order of the arguments, by names that differ."""
        found: list[tuple[str, System]] = []
        for path in self.options.systems:
            each = self._methods(path, measure) if path in self.folders else [self._file(path, measure)]
            found += [(path, system) for system in each]
        return _distinct(found)

    def _methods(self, path: str, measure: str) -> list[System]:
        """The methods of a folder, each with the settings that validation has chosen."""
        from torchrank.report.comparison import System
        from torchrank.report.select import select

        selections = select(self.folders[path])
        if len(selections) > 1:
            titles = ", ".join(each.data for each in selections)
            raise ValueError(f"{path} holds runs on several data sets ({titles}): name a folder of one of them")
        return [System(each.name, each.per_query(self.convention, measure)) for each in selections[0].methods]

    def _file(self, path: str, measure: str) -> System:
        import numpy as np

        from torchrank.cli.shared.measuring import measure as measure_lists
        from torchrank.report.comparison import System

        scored = self.scored[path]
        found = measure_lists(scored, [measure], [self.convention], threshold=self.options.threshold)
        values = next(iter(found.values[self.convention].values()))
        return System(scored.name, {None: (np.asarray(scored.query_ids, dtype=str), values.double().numpy())})


def _distinct(found: list[tuple[str, System]]) -> list[System]:
    """The systems by their names, or by paths where names are the same."""
    from dataclasses import replace

    names = [system.name for _, system in found]
    named = [path if names.count(system.name) > 1 else system.name for path, system in found]
    if again := next((name for name in named if named.count(name) > 1), None):
        raise ValueError(f"{again} is given twice: compare different systems")
    return [replace(system, name=name) for name, (_, system) in zip(named, found, strict=True)]


def show(options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Print the document as JSON, or its tables for the terminal, Markdown or LaTeX."""
    from torchrank.report import comparison, tables

    if options.json:
        print_json(document)
        return
    pages = []
    for measure, found in document["measures"].items():
        pages += comparison.sheets(f"{measure}, convention {document['convention']}", found)
    if options.markdown or options.latex:
        print("\n\n".join((comparison.latex if options.latex else tables.markdown)(page) for page in pages))
        return
    screen = console()
    for page in pages:
        tables.show(page, screen)


def draw(path: str, found: dict[str, Any]) -> None:
    """Write the figure, whole or not at all; its suffix says the format."""
    from torchrank.files import write_atomically
    from torchrank.report.plots.differences import plot_differences

    kind = Path(path).suffix.lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"--plot must end with .png, .svg or .pdf, got {path}")
    figure = plot_differences(found)
    write_atomically(Path(path), lambda file: figure.savefig(file, format=kind, dpi=150, bbox_inches="tight"))

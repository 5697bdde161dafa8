"""Runs as one plain dict: what the page shows, and what its numbers mean."""

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrank.record import RESULTS, Run, distinct, read_run, read_runs, smaller_is_better, unfinished, why_unfinished
from torchrank.report.page.intervals import mean_intervals
from torchrank.report.select import Fold, Method, Selection, paired, select
from torchrank.report.significance import differences, paired_t
from torchrank.report.summary import plain, tabulate_selection
from torchrank.report.training import read_curves

POINTS = 300  # most points of a curve
PLACES = ("dirpath", "save_dir", "default_root_dir")  # options that say where a run was written
Learned = Callable[[Path], dict[str, Any]]


def collect(folders: Sequence[str | Path], learned: Learned = lambda folder: {}) -> dict[str, Any]:
    """What the report of these runs shows, as plain values without nan.

    Args:
        folders: run folders, which are shown as they are, and sweeps, in which validation chooses.
        learned: what else is known of a chosen run by its folder: "spectra" and "importances", as plain values.

    Returns:
        One section for each data set, and the unfinished runs.
    """
    runs = gather(folders)
    left = [f"{path}{why_unfinished(path)}" for folder in folders for path in unfinished(folder)]
    if not runs:
        given = ", ".join(map(str, folders))
        raise ValueError(f"no results.json below {given} ({len(left)} unfinished runs): train first")
    sections = [_section(selection, learned) for selection in select(runs)]
    return {"schema": 1, "runs": len(runs), "unfinished": left, "sections": plain(sections)}


# ---- which runs ------------------------------------------------------------------------------------------------------


def gather(folders: Sequence[str | Path]) -> list[Run]:
    """All finished runs of these run folders and sweeps, each once. Run folders of one name get names of their own."""
    single: list[Run] = []
    swept: dict[Path, Run] = {}
    for folder in map(Path, folders):
        if (folder / RESULTS).is_file():
            single.append(read_run(folder / RESULTS, tested=False))
        else:
            swept |= {run.folder.resolve(): run for run in read_runs(folder, tested=False)}
    named = {run.folder.resolve(): run for run in _own_names(single)}
    return distinct([*({**swept, **named}).values()])


def _own_names(runs: list[Run]) -> list[Run]:
    """Runs that were named one by one are compared, not chosen from: settings tell those of one name apart."""
    names: dict[tuple[Any, ...], list[Run]] = {}
    for run in {run.folder.resolve(): run for run in runs}.values():
        names.setdefault((run.name, run.data), []).append(run)
    return [run for group in names.values() for run in _told_apart(group)]


def _told_apart(runs: list[Run]) -> list[Run]:
    replicates = {(run.fold, run.seed) for run in runs}
    if len(replicates) == len(runs):
        return runs
    keys = sorted({key for run in runs for key in run.settings})
    differ = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
    labels = [
        ", ".join(f"{key.rpartition('.')[2]}={run.settings.get(key, 'default')}" for key in differ) for run in runs
    ]
    if len({(label, run.fold, run.seed) for label, run in zip(labels, runs, strict=True)}) < len(runs):
        names = {run.folder.name for run in runs}
        labels = [run.folder.name if len(names) == len(runs) else str(run.folder) for run in runs]
    return [replace(run, name=f"{run.name} ({label})") for run, label in zip(runs, labels, strict=True)]


# ---- one data set ----------------------------------------------------------------------------------------------------


def _section(selection: Selection, learned: Learned) -> dict[str, Any]:
    tested = selection.split == "test"
    table = tabulate_selection(selection)
    rows = {row["name"]: row for row in table["methods"]}  # best first
    ordered = sorted(selection.methods, key=lambda method: list(rows).index(method.name))
    shown = table["measures"] if tested else {}
    section: dict[str, Any] = {
        "data": selection.data,
        "folds": selection.folds,
        "num_lists": ordered[0].choices[0].run.num_lists,
        "selection": selection.measure,
        "tested": tested,
        "swept": any(len(choice.candidates) > 1 for method in ordered for choice in method.choices),
        "measures": {"test": shown, "val": _validated(ordered)},
        "texts": _texts(ordered),
        "smaller": sorted(filter(smaller_is_better, set().union(*_validated(ordered).values()))),
        "test_measure": table["test_measure"],
        "best": table["best"],
        "comparisons": table["comparisons"],
        "methods": [_describe(method, rows[method.name], learned) for method in ordered],
    }
    return section | _by_query(ordered if tested else [], shown, section)


def _validated(methods: list[Method]) -> dict[str, list[str]]:
    """The measures of each convention on validation lists."""
    found: dict[str, dict[str, None]] = {}
    for run in (choice.run for method in methods for choice in method.choices):
        for convention, part in run.val.items():
            found.setdefault(convention, {}).update(dict.fromkeys(part["measures"]))
    return {convention: list(names) for convention, names in found.items()}


def _texts(methods: list[Method]) -> dict[str, str]:
    """Each convention in words; texts differ where the threshold of relevance does."""
    texts: dict[str, dict[str, None]] = {}
    for run in (choice.run for method in methods for choice in method.choices):
        for convention, part in [*run.val.items(), *run.test.items()]:
            texts.setdefault(convention, {})[part["text"]] = None
    return {convention: " / ".join(found) for convention, found in texts.items()}


def _describe(method: Method, row: dict[str, Any], learned: Learned) -> dict[str, Any]:
    runs = [choice.run for choice in method.choices]
    first = runs[0]
    memory = [run.peak_memory_mb for run in runs if run.peak_memory_mb is not None]
    return {
        "name": method.name,
        "ranker": first.ranker,
        "folds": list(method.folds),
        "seeds": sorted({run.seed for run in runs}),
        "candidates": sum(len(choice.candidates) for choice in method.choices),
        "chosen": [{"fold": run.fold, "seed": run.seed, "settings": run.settings, "validation": run.value,
                    "proved": run.proved, "candidates": len(choice.candidates)}
                   for run, choice in zip(runs, method.choices, strict=True)],
        "varied": method.varied,
        "missing_folds": row["missing_folds"],
        "test": row.get("test"),
        "val": _means([run.val for run in runs]),
        "seconds": {name: float(np.mean([run.seconds.get(name, math.nan) for run in runs])) for name in first.seconds},
        "all_seconds": sum(run.fit_seconds for choice in method.choices for run in choice.candidates),
        "memory": max(memory, default=None),
        "steps": row["steps"],
        "density": row["density"],
        "findings": first.findings,
        "curves": [_curves(run) for run in runs],
        "config": dict(_flat(first.config)),
        "versions": first.versions,
        "folder": first.folder.name,
        **learned(first.folder),
    }  # fmt: skip


def _means(parts: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Means over runs of the measures of each convention, and the lists of the first run."""
    found = {}
    for convention, first in parts[0].items():
        values = {name: [part.get(convention, {"measures": {}})["measures"].get(name, math.nan) for part in parts]
                  for name in first["measures"]}  # fmt: skip
        means = {name: float(np.mean(each)) for name, each in values.items()}
        found[convention] = {"lists": first["lists"], "empty": first["empty"], "measures": means}
    return found


def _curves(run: Run) -> dict[str, Any]:
    """Everything that a fit has logged, thinned; nothing if it wrote no csv."""
    try:
        curves = read_curves(run.folder)
    except (ValueError, TypeError, OverflowError, OSError, csv.Error):  # none, or a damaged one
        curves = {}
    thin = {name: [_thinned(x).tolist(), _rounded(_thinned(y), 6)] for name, (x, y) in curves.items()}
    return {"fold": run.fold, "seed": run.seed, "values": thin}


def _thinned(values: NDArray[Any]) -> NDArray[Any]:
    """At most `POINTS` of the values, first and last among them."""
    places = np.linspace(0, len(values) - 1, min(len(values), POINTS)).round().astype(int)
    return np.asarray(values[np.unique(places)])


def _flat(config: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """A configuration as pairs of dotted names and values.

    >>> dict(_flat({"model": {"lr": 0.1, "hidden": [8, 8]}, "seed": 0}))
    {'model.lr': 0.1, 'model.hidden': [8, 8], 'seed': 0}
    """
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    elif name and name.rpartition(".")[2] not in PLACES:
        yield name, config


# ---- query by query --------------------------------------------------------------------------------------------------


def _by_query(methods: list[Method], shown: dict[str, list[str]], section: dict[str, Any]) -> dict[str, Any]:
    """The queries, the value of each of them under each method, and what every two methods differ by."""
    rows = _rows(methods)
    _, query = np.unique([name for _, name in rows], return_inverse=True)
    values: dict[str, dict[str, list[list[float | None]]]] = {}
    pairs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    means = []  # dicts that get an interval, and the values that it is computed from
    for convention, name in ((convention, name) for convention, names in shown.items() for name in names):
        columns = [_column(method, convention, name, rows) for method in methods]
        compared = _compared(methods, convention, name)
        values.setdefault(convention, {})[name] = [_rounded(column, 5) for column in columns]
        pairs.setdefault(convention, {})[name] = [pair for pair, _ in compared]
        for method, column in zip(section["methods"], columns, strict=True):
            part = (method["test"][convention] or {"measures": {}})["measures"].get(name)
            if part:
                means.append((part, _merged(column, query)))
        means += compared
    for (part, own), (low, high) in zip(means, mean_intervals([own for _, own in means]), strict=True):
        part |= {"low": low, "high": high, "queries": int((~np.isnan(own)).sum())}
    return {"queries": _facts(methods, rows), "values": values, "pairs": pairs}


def _rows(methods: list[Method]) -> dict[tuple[Fold, str], int]:
    """The place of each (fold, query) of any method, folds in order."""
    rows: dict[tuple[Fold, str], int] = {}
    for method in methods:
        for fold, runs in method.folds.items():
            for name in runs[0].facts()["query"].tolist():
                rows.setdefault((fold, name), len(rows))
    return rows


def _column(method: Method, convention: str, measure: str, rows: dict[tuple[Fold, str], int]) -> NDArray[np.float64]:
    """The value of each row; nan where the method has none."""
    column = np.full(len(rows), np.nan)
    if _has(method, convention, measure):
        for fold, (ids, values) in method.per_query(convention, measure).items():
            column[[rows[fold, name] for name in ids.tolist()]] = values
    return column


def _facts(methods: list[Method], rows: dict[tuple[Fold, str], int]) -> dict[str, Any]:
    """Ids, folds, lengths, numbers of relevant documents, and the groups of the methods that have them."""
    facts: dict[str, Any] = {"id": [name for _, name in rows], "fold": [fold for fold, _ in rows]}
    for name in ("length", "relevant"):
        facts[name] = _whole(_fact(methods, name, rows))
    # groups of two fits are different groups
    groups = {method.name: _whole(_fact([method], "group", rows)) for method in methods if len(method.choices) == 1}
    facts["groups"] = {name: found for name, found in groups.items() if found}
    return facts


def _fact(methods: list[Method], name: str, rows: dict[tuple[Fold, str], int]) -> NDArray[np.float64]:
    column = np.full(len(rows), np.nan)
    for method in reversed(methods):  # the first method has the last word
        for fold, runs in method.folds.items():
            known = runs[0].facts()
            if name in known:
                column[[rows[fold, each] for each in known["query"].tolist()]] = known[name]
    return column


def _whole(column: NDArray[np.float64]) -> list[int | None] | None:
    """Integers, None where unknown; None for a column of which nothing is known."""
    if np.isnan(column).all():
        return None
    return [None if math.isnan(value) else int(value) for value in column.tolist()]


def _compared(methods: list[Method], convention: str, measure: str) -> list[tuple[dict[str, Any], NDArray[np.float64]]]:
    """What every two methods differ by on the queries that both have, and the differences themselves."""
    found = []
    for (i, a), (j, b) in combinations(enumerate(methods), 2):
        if not (_has(a, convention, measure) and _has(b, convention, measure)):
            continue
        first, second = paired(a, b, convention, measure)
        values = differences(first, second)
        if len(values):
            won = np.sign(-values if smaller_is_better(measure) else values)
            counts = {name: int((won == sign).sum()) for name, sign in (("wins", 1), ("ties", 0), ("losses", -1))}
            pair = {"a": i, "b": j, "difference": float(values.mean()), **counts, "t": paired_t(first, second)}
            found.append((pair, values))
    return found


def _has(method: Method, convention: str, measure: str) -> bool:
    """Whether all runs of a method were measured by it."""
    return all(measure in choice.run.test.get(convention, {"measures": {}})["measures"] for choice in method.choices)


def _merged(column: NDArray[np.float64], query: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of each query over its rows that have a value."""
    there, size = ~np.isnan(column), int(query.max(initial=-1)) + 1
    sums = np.bincount(query[there], column[there], size)
    counts = np.bincount(query[there], minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _rounded(values: NDArray[np.float64], digits: int) -> list[float | None]:
    return [None if math.isnan(value) else round(value, digits) for value in values.tolist()]

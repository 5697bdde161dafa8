"""The table of a sweep as plain numbers: what `table.json` holds and `tables.py` shows."""

import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from torchrank.files import write_atomically
from torchrank.progress import bar
from torchrank.record import read_runs, smaller_is_better, unfinished, why_unfinished
from torchrank.report.select import Method, Selection, measured, natural, paired, select
from torchrank.report.significance import ALPHA, holm, paired_t, randomisation
from torchrank.report.tables import Sheet, markdown


def tabulate(
    folder: str | Path,
    *,
    measures: list[str] | None = None,
    conventions: list[str] | None = None,
    test_measure: str | None = None,
) -> dict[str, Any]:
    """Select by validation among all runs below the folder and return the tables, one per data set.

    Without `measures` and `conventions` everything in the files is shown. The paired tests compare the measure of
    selection unless `test_measure` names another one.
    """
    runs, missing = read_runs(folder, tested=False), unfinished(folder)
    if not runs:
        raise ValueError(f"no results.json below {folder} ({len(missing)} unfinished runs): run a sweep first")
    _check_names("convention", conventions, {name for run in runs for name in run.measured})
    present = {name for run in runs for part in run.measured.values() for name in part["measures"]}
    _check_names("measure", [*(measures or []), *([test_measure] if test_measure else [])], present)
    shown = {"measures": measures or [], "conventions": conventions or [], "test_measure": test_measure or ""}
    tables = [tabulate_selection(selection, **shown) for selection in select(runs)]  # type: ignore[arg-type]
    names = [f"{path.relative_to(folder)}{why_unfinished(path)}" for path in missing]
    return {"schema": 1, "runs": len(runs), "unfinished": names, "tables": tables}


def write(folder: str | Path, document: dict[str, Any], pages: list[Sheet]) -> None:
    """Write a document and its sheets as table.json and table.md; a reader sees the old file or the new one."""
    numbers = json.dumps(plain(document), indent=1, allow_nan=False)
    text = "\n\n".join(markdown(sheet) for sheet in pages)
    write_atomically(Path(folder) / "table.json", lambda file: file.write(f"{numbers}\n".encode()))
    write_atomically(Path(folder) / "table.md", lambda file: file.write(f"{text}\n".encode()))


def compare(methods: list[Method], convention: str, measure: str) -> list[dict[str, Any]]:
    """Paired tests of every two methods on the queries that both have, Holm-adjusted over the pairs."""
    rows = []
    for a, b in bar(list(combinations(methods, 2)), desc="paired tests"):
        first, second = paired(a, b, convention, measure)
        rows.append({"a": a.name, "b": b.name, "queries": len(first)})
        rows[-1]["difference"] = float((first - second).mean()) if len(first) else math.nan
        rows[-1] |= {"t": paired_t(first, second), "randomisation": randomisation(first, second)}
    for test in ("t", "randomisation"):
        for row, adjusted in zip(rows, holm([row[test] for row in rows]), strict=True):
            row[f"{test}_holm"] = float(adjusted)
    return rows


def tabulate_selection(
    selection: Selection, measures: Sequence[str] = (), conventions: Sequence[str] = (), test_measure: str = ""
) -> dict[str, Any]:
    """The table of one data set; without `measures` and `conventions` everything in the files is shown."""
    present = _present(selection)
    shown = {
        convention: [name for name in measures or present[convention] if name in present[convention]]
        for convention in conventions or present
        if convention in present
    }
    test_measure = test_measure or selection.measure.rpartition("/")[2]  # val/ndcg@10, or val/letor/map
    tested = [convention for convention in shown if test_measure in present[convention]]
    methods = _ordered(selection, tested[0] if tested else "", test_measure)
    paired_tests = tested if selection.split == "test" else []  # validation chose: its differences prove nothing
    comparisons = {convention: compare(methods, convention, test_measure) for convention in paired_tests}
    table: dict[str, Any] = {
        "data": selection.data,
        "split": selection.split,
        "folds": selection.folds,
        "selection": selection.measure,
        "test_measure": test_measure if tested else None,
        "measures": shown,
        "methods": [_describe(method, selection, shown) for method in methods],
        "comparisons": comparisons,
    }
    table["best"] = {convention: _best(table, convention) for convention in shown}
    return {key: plain(value) for key, value in table.items()}


def _present(selection: Selection) -> dict[str, list[str]]:
    """The measures of each convention that any chosen run has, in the order of the files."""
    present: dict[str, dict[str, None]] = {}
    for choice in (choice for method in selection.methods for choice in method.choices):
        for convention, part in choice.run.measured.items():
            present.setdefault(convention, {}).update(dict.fromkeys(part["measures"]))
    return {convention: list(names) for convention, names in present.items()}


def _ordered(selection: Selection, convention: str, measure: str) -> list[Method]:
    """Best first, methods with missing folds last."""

    def key(method: Method) -> tuple[bool, float, str]:
        mean = float(np.mean(list(method.fold_means(convention, measure).values())))
        incomplete = len(method.folds) < len(selection.folds) or math.isnan(mean)
        return incomplete, mean if smaller_is_better(measure) else -mean, method.name

    return sorted(selection.methods, key=key)


def _describe(method: Method, selection: Selection, shown: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "name": method.name,
        "ranker": method.choices[0].run.ranker,
        "folds": sorted(method.folds, key=natural),
        "missing_folds": [fold for fold in selection.folds if fold not in method.folds],
        "seeds": sorted({choice.run.seed for choice in method.choices}),
        "fit_seconds": float(np.mean([choice.run.fit_seconds for choice in method.choices])),
        "density": _mean([choice.run.density for choice in method.choices]),
        "steps": _mean([choice.run.steps for choice in method.choices]),
        "varied": method.varied,
        "chosen": [
            {
                "fold": choice.run.fold,
                "seed": choice.run.seed,
                "settings": choice.run.settings,
                "candidates": len(choice.candidates),
                "validation": choice.run.value,
                "fit_seconds": choice.run.fit_seconds,
                "proved": choice.run.proved,
                "locality": choice.run.findings.get("locality"),
            }
            for choice in method.choices
        ],
        selection.split: {convention: _measures(method, convention, names) for convention, names in shown.items()},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean over the chosen runs; None if a file has no value."""
    told = [value for value in values if value is not None]
    return float(np.mean(told)) if len(told) == len(values) else None


def _measures(method: Method, convention: str, names: list[str]) -> dict[str, Any] | None:
    """One method in one convention: queries over all folds, and each measure; None if a run lacks the convention."""
    runs = [runs[0] for runs in method.folds.values()]  # seeds share their fold's queries
    if any(convention not in run.measured for run in runs):
        return None
    first = [run.measured[convention] for run in runs]
    return {
        "text": " / ".join(dict.fromkeys(part["text"] for part in first)),
        "lists": sum(part["lists"] for part in first),
        "empty": sum(part["empty"] for part in first),
        "measures": {name: _measure(method, convention, name) for name in names},
    }


def _measure(method: Method, convention: str, name: str) -> dict[str, Any] | None:
    """Mean of the fold means, their deviation (n-1; over the seeds if there is one fold) and the pooled mean."""
    means = method.fold_means(convention, name)
    if any(math.isnan(value) for value in means.values()):
        return None
    seeds = [measured(choice.run, convention, name) for choice in method.choices]
    replicates = list(means.values()) if len(means) > 1 else seeds
    stored = all(choice.run.test for choice in method.choices)  # only tested runs keep the values of their queries
    queries = {fold: own for fold, (_, own) in method.per_query(convention, name).items()} if stored else {}
    for fold, values in queries.items():
        if not abs(np.nanmean(values) - means[fold]) < 1e-4:
            raise ValueError(
                f"{method.folds[fold][0].folder}: {convention}/{name} is {means[fold]:.6f} in results.json, but the "
                f"mean of the per-query values is {np.nanmean(values):.6f}. Run it again."
            )
    return {
        "mean": float(np.mean(list(means.values()))),
        "deviation": float(np.std(replicates, ddof=1)) if len(replicates) > 1 else math.nan,
        "deviation_over": "folds" if len(means) > 1 else "seeds",
        "pooled": float(np.nanmean(np.concatenate(list(queries.values())))) if queries else math.nan,
        "folds": list(means.values()),
    }


def _best(table: dict[str, Any], convention: str) -> dict[str, dict[str, Any]]:
    """For each measure, the best method with all folds, and those that do not differ significantly from it."""
    rows = [method for method in table["methods"] if not method["missing_folds"]] or table["methods"]
    found = {}
    for measure in table["measures"][convention]:
        values = {
            row["name"]: (row[table["split"]][convention] or {"measures": {}})["measures"].get(measure) for row in rows
        }
        means = {name: value["mean"] for name, value in values.items() if value}
        if means:
            name = (min if smaller_is_better(measure) else max)(means, key=means.__getitem__)
            tests = table["comparisons"].get(convention, []) if measure == table["test_measure"] else []
            level = [test for test in tests if not test["randomisation_holm"] < ALPHA]
            others = [b if a == name else a for a, b in ((test["a"], test["b"]) for test in level) if name in (a, b)]
            found[measure] = {"name": name, "not_different": others}
    return found


def _check_names(kind: str, asked: list[str] | None, present: set[str]) -> None:
    if unknown := [name for name in asked or [] if name not in present]:
        raise ValueError(f"no run has the {kind} {', '.join(unknown)}: choose from {', '.join(sorted(present))}")


def plain(value: Any) -> Any:
    """The value with None for nan and infinity, which strict JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The kNN errors of a sweep under two selections: the optimistic one of the papers, and an honest one.

A method may be run with many settings, and every run has errors for many k. Published errors are those of the setting
and k with the best mean *test* error. The honest table chooses setting and k in every split by validation (with
data.validate=leave_one_out, by the leave-one-out error of the training points) before it looks at the test points.
Ties go to the smaller setting (C), then to the smaller k.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchrank.record import Run, read_runs, tell_apart
from torchrank.report.select import Fold, natural, sortable
from torchrank.report.tables import NOTHING, Sheet

FAMILY = "knn_error@"
DIGITS = 12  # in those after them, means of equal counts may differ
# McFee & Lanckriet, ICML 2010, in percent, by data set and method; 50 splits, optimistic
PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
COUNTS = {"missing runs": "missing_runs", "not proved": "unproved", "W = 0": "zero"}
SELECTIONS = {
    "optimistic": "setting and k with the best mean test error (optimistic, as published)",
    "honest": "setting and k chosen by validation in each split",
}


class Errors(NamedTuple):
    """The errors of one method on one data set for S settings, F splits and K cut-offs; nan where a run is missing."""

    settings: list[dict[str, Any]]  # (S,) in order
    splits: list[tuple[Fold, int]]  # (F,) fold and seed
    cuts: list[int]  # (K,) ascending
    val: np.ndarray  # (S, F, K)
    test: np.ndarray  # (S, F, K)


def tabulate_neighbours(folder: str | Path) -> dict[str, Any]:
    """Both selections for every method and data set among the runs below the folder."""
    groups: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in tell_apart(read_runs(folder)):
        if cuts_of(run):
            groups[run.data][run.name].append(run)
    if not groups:
        raise ValueError(f"no run below {folder} has a measure {FAMILY}k: sweep with measures=[{FAMILY}1,{FAMILY}3]")
    tables = [_table(data, methods) for data, methods in sorted(groups.items())]
    return {"schema": 1, "runs": sum(len(r) for m in groups.values() for r in m.values()), "tables": tables}


def _table(data: str, methods: dict[str, list[Run]]) -> dict[str, Any]:
    splits = len({(run.fold, run.seed) for runs in methods.values() for run in runs})
    described = [_describe(data, name, runs, splits) for name, runs in sorted(methods.items())]
    return {"data": data, "splits": splits, "methods": described}


def errors_of(runs: list[Run]) -> Errors:
    """All errors of the runs of one method on one data set."""
    found = {json.dumps(run.settings, sort_keys=True): run.settings for run in runs}
    keys = sorted(found, key=lambda key: sortable(found[key]))
    splits = sorted({(run.fold, run.seed) for run in runs}, key=lambda split: tuple(map(natural, split)))
    for run in runs:
        if not run.val:
            raise ValueError(f"{run.folder} was not validated, so its k cannot be chosen: set data.validate")
    cuts = sorted(set.intersection(*(cuts_of(run) for run in runs)))
    if not cuts:
        raise ValueError(f"the runs of {runs[0].name} on {runs[0].data} have no {FAMILY}k with a common k")
    val, test = np.full((2, len(keys), len(splits), len(cuts)), np.nan)
    for run in runs:
        place = keys.index(json.dumps(run.settings, sort_keys=True)), splits.index((run.fold, run.seed))
        for part, of in ((val, run.val), (test, run.test)):
            part[place] = [_first(of)[f"{FAMILY}{k}"] for k in cuts]
    return Errors([found[key] for key in keys], splits, cuts, val, test)


def optimistic(errors: Errors) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Test errors (F,) of the setting and k with the best mean, among settings with all splits."""
    means = errors.test.mean(1)  # nan where a split is missing
    if np.isnan(means).all():
        return np.full(len(errors.splits), np.nan), []
    setting, cut = np.unravel_index(np.nanargmin(means.round(DIGITS)), means.shape)
    return errors.test[setting, :, cut], [(int(setting), int(cut))]


def honest(errors: Errors) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Test errors (F,) of the setting and k that validation chooses in each split."""
    chosen = []
    for split in range(len(errors.splits)):
        val = errors.val[:, split].round(DIGITS)
        setting, cut = np.unravel_index(np.nanargmin(val), val.shape)  # the first on ties
        chosen.append((int(setting), int(cut)))
    return np.array([errors.test[s, split, k] for split, (s, k) in enumerate(chosen)]), chosen


def cuts_of(run: Run) -> set[int]:
    """Every k for which a run has a kNN error."""
    return {int(name[len(FAMILY) :]) for name in _first(run.test) if name.startswith(FAMILY)}


def pages(document: dict[str, Any]) -> list[Sheet]:
    """A sheet for each selection, with data sets as columns; gains over the Euclidean metric; chosen settings."""
    selections = [_errors_sheet(document, name) for name in SELECTIONS]
    return [*selections, *_gains_sheets(document), *map(_chosen_sheet, document["tables"])]


def _describe(data: str, name: str, runs: list[Run], splits: int) -> dict[str, Any]:
    errors = errors_of(runs)
    varied = [k for k in errors.settings[0] if any(each.get(k) != errors.settings[0][k] for each in errors.settings)]
    method: dict[str, Any] = {"name": name, "splits": len(errors.splits), "folds": [list(s) for s in errors.splits]}
    method["missing_runs"] = len(errors.settings) * splits - len(runs)
    method["unproved"] = sum(run.proved is False for run in runs)
    method["zero"] = sum(run.findings.get("metric") == "W = 0" for run in runs)
    method["published"] = PUBLISHED.get(data.rpartition("/")[2], {}).get(name)
    method["fit_seconds"] = float(np.mean([run.fit_seconds for run in runs]))
    for selection, choose in (("optimistic", optimistic), ("honest", honest)):
        values, chosen = choose(errors)
        counts: dict[str, int] = defaultdict(int)
        for setting, cut in chosen:
            parts = [f"{key.rpartition('.')[2]}={errors.settings[setting].get(key)}" for key in varied]
            counts[" ".join([*parts, f"k={errors.cuts[cut]}"])] += 1
        method[selection] = {"percent": 100 * float(np.mean(values)), "standard_error": 100 * _standard_error(values),
                             "per_split": [100 * float(value) for value in values], "chosen": dict(counts)}  # fmt: skip
    return method


def _errors_sheet(document: dict[str, Any], selection: str) -> Sheet:
    tables = document["tables"]
    sheet = Sheet(f"kNN error %: {SELECTIONS[selection]}", ["method", *(table["data"] for table in tables)])
    found = {(table["data"], method["name"]): method for table in tables for method in table["methods"]}
    for name in sorted({method["name"] for table in tables for method in table["methods"]}):
        cells = [_cell(found.get((table["data"], name)), selection, table["splits"]) for table in tables]
        sheet.rows.append([name, *cells])
    splits = [f"{table['data']} {table['splits']}" for table in tables]
    sheet.below = [
        f"Mean ±standard error over the splits ({', '.join(splits)}). Ties: the smaller C, then the smaller k."
    ]
    if selection == "optimistic":
        sheet.below[0] += " In brackets: published by McFee & Lanckriet (2010), 50 splits."
    return sheet


def _gains_sheets(document: dict[str, Any]) -> list[Sheet]:
    """One sheet, if a data set has the Euclidean metric and another one."""
    tables = document["tables"]
    sheet = Sheet("Honest error minus that of the Euclidean metric", ["method", *(table["data"] for table in tables)])
    gains: dict[str, dict[str, str]] = defaultdict(dict)
    for table in tables:
        errors = {method["name"]: _by_fold(method) for method in table["methods"]}
        plain = errors.pop("euclidean", {})
        for name, found in errors.items():
            if common := sorted(plain.keys() & found.keys()):
                less = np.array([found[fold] - plain[fold] for fold in common])
                gains[name][table["data"]] = f"{less.mean():+.2f}{_plus_minus(_standard_error(less))}"
    for name in sorted(gains):
        sheet.rows.append([name, *(gains[name].get(table["data"], NOTHING) for table in tables)])
    sheet.below = ["Mean ±standard error of the paired differences over the splits."]
    return [sheet] if gains else []


def _by_fold(method: dict[str, Any]) -> dict[str, float]:
    return dict(zip(map(str, method["folds"]), method["honest"]["per_split"], strict=True))


def _standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def _plus_minus(error: float) -> str:
    return "" if np.isnan(error) else f" ±{error:.2f}"


def _cell(method: dict[str, Any] | None, selection: str, splits: int) -> str:
    if method is None or np.isnan(method[selection]["percent"]):
        return NOTHING
    found = method[selection]
    published = f" [{method['published']}]" if selection == "optimistic" and method["published"] is not None else ""
    fewer = f" ({method['splits']} splits)" if method["splits"] < splits else ""
    return f"{found['percent']:.2f}{_plus_minus(found['standard_error'])}{published}{fewer}"


def _chosen_sheet(table: dict[str, Any]) -> Sheet:
    sheet = Sheet(f"{table['data']}: chosen", ["method", *SELECTIONS, "splits", *COUNTS, "fit seconds"])
    for method in table["methods"]:
        chosen = []
        for selection in SELECTIONS:
            counts = method[selection]["chosen"]
            ranked = sorted(counts, key=lambda key: -counts[key])[:3]
            chosen.append(", ".join(f"{key} ({counts[key]})" for key in ranked) or NOTHING)
        numbers = [str(method[name]) for name in ("splits", *COUNTS.values())] + [f"{method['fit_seconds']:.1f}"]
        sheet.rows.append([method["name"], *chosen, *numbers])
    sheet.below = [
        "The three most frequent choices, in brackets in how many splits. Not proved: fits that stopped before their "
        "certificate. W = 0: fits that learned nothing. Fit seconds: mean over all runs."
    ]
    return sheet


def _first(part: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """The measures of the first convention of a run."""
    return next(iter(part.values()))["measures"]

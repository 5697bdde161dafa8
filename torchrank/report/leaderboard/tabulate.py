"""The numbers of a leaderboard: measures over the folds, ranks, paired tests against the references, and costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchrank.record import Run, parse_monitor, smaller_is_better
from torchrank.report.select import Choice, Method, paired
from torchrank.report.significance import bootstrap_interval, differences, holm, paired_t, randomisation
from torchrank.report.summary import plain

LEAD, ERRORS = 0.01, 2.0  # by which a tuned form must lead its default: the difference, and its standard errors


@dataclass
class Candidate:
    """A ranker of the board: the tested run of every fold, what it cost, and why a fold has none."""

    name: str
    runs: list[Run] = field(default_factory=list)
    costs: list[dict[str, float]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # by fold
    trials: list[str] = field(default_factory=list)  # how each ended
    defaults: list[Run] = field(default_factory=list)  # the runs with the defaults, where these are judged

    def add(self, run: Run | None, costs: dict[str, float], fold: str) -> None:
        """The run of a fold; without one the fold has a reason."""
        if run is None:
            self.reasons.setdefault(fold, "no result")
        else:
            self.runs.append(run)
            self.costs.append(costs)

    @property
    def method(self) -> Method:
        """Its runs as a method of a table."""
        return Method(self.name, [Choice(run, [run]) for run in self.runs])


def tabulate(candidates: Sequence[Candidate], folds: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """The document of a leaderboard, as plain values without nan.

    Args:
        candidates: the rankers.
        folds: all folds; a ranker without a result on one of them has no rank.
        references: the names of those that all others are tested against, each with its own Holm correction.

    Returns:
        Rows, best first by the test measure; those without all folds last.
    """
    there = [candidate for candidate in candidates if candidate.runs]
    if not there:
        reasons = dict.fromkeys(reason for each in candidates for reason in each.reasons.values())
        raise ValueError(f"no ranker has a result: {'; '.join(reasons)}")
    first = there[0].runs[0]
    _, convention, measure = parse_monitor(first.measure, list(first.val))
    rows = [_row(candidate, folds, convention) for candidate in candidates]
    better = 1 if smaller_is_better(measure) else -1
    _rank(rows, "val", measure, better)
    _rank(rows, "test", measure, better)
    rows.sort(key=lambda row: (row["test_rank"] or math.inf, not row["folds"], row["name"]))
    methods = {candidate.name: candidate.method for candidate in there}
    for reference in (name for name in references if name in methods):
        _compare(rows, methods, reference, convention, measure)
    found: dict[str, Any] = plain(
        {
            "schema": 1,
            "data": first.data,
            "measure": measure,
            "convention": convention,
            "text": first.measured[convention]["text"],
            "lists": max(sum(run.measured[convention]["lists"] for run in each.runs) for each in there),
            "measures": list(first.measured[convention]["measures"]),
            "split": first.split,
            "references": [name for name in references if name in methods],
            "rows": rows,
        }
    )
    return found


def _row(candidate: Candidate, folds: Sequence[str], convention: str) -> dict[str, Any]:
    runs, costs = candidate.runs, candidate.costs
    states = sorted(set(candidate.trials))
    row: dict[str, Any] = {
        "name": candidate.name,
        "ranker": runs[0].ranker if runs else None,
        "folds": len(runs),
        "complete": len(runs) == len(folds),
        "reasons": candidate.reasons,
        "trials": {state: candidate.trials.count(state) for state in states},
        "val": _measures([run.val[convention]["measures"] for run in runs]),
        "test": _measures([run.measured[convention]["measures"] for run in runs]),
        "settings": [{"fold": run.fold, **run.settings} for run in runs],
        "fit_seconds": _mean([run.cpu_seconds.get("fit", run.fit_seconds) for run in runs]),
        "microseconds": _mean([cost.get("microseconds") for cost in costs]),
        "bytes": _mean([cost.get("bytes") for cost in costs]),
        "memory_mb": max((run.peak_memory_mb or 0 for run in runs), default=0) or None,
        "against": {},
    }
    return row | {"interval": _interval(candidate.method, convention, runs) if runs else None}


def _measures(found: list[dict[str, float]]) -> dict[str, Any]:
    """Mean and deviation (n-1) over the folds of every measure."""
    names = list(found[0]) if found else []
    values = {name: np.array([each.get(name, math.nan) for each in found]) for name in names}
    return {
        name: {"mean": float(each.mean()), "deviation": float(each.std(ddof=1)) if len(each) > 1 else math.nan}
        for name, each in values.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else None


def _interval(method: Method, convention: str, runs: list[Run]) -> list[float] | None:
    """The 95% bootstrap interval of the pooled mean over the queries."""
    if not all(run.test for run in runs):
        return None
    _, _, measure = parse_monitor(runs[0].measure, list(runs[0].val))
    values = np.concatenate([value for _, value in method.per_query(convention, measure).values()])
    low, high = bootstrap_interval(values, np.zeros_like(values))
    return [low, high]


def _rank(rows: list[dict[str, Any]], split: str, measure: str, better: int) -> None:
    """Set the rank of every row with all folds, 1 is best; equal means have equal ranks."""
    for row in rows:
        row[f"{split}_rank"] = None
    there = [row for row in rows if row["complete"] and measure in row[split]]
    whole = [row for row in there if not math.isnan(row[split][measure]["mean"])]
    means = [better * row[split][measure]["mean"] for row in whole]
    for row, mean in zip(whole, means, strict=True):
        row[f"{split}_rank"] = 1 + sum(other < mean for other in means)


def _compare(
    rows: list[dict[str, Any]], methods: dict[str, Method], reference: str, convention: str, measure: str
) -> None:
    """Test every other ranker against the reference on the queries that both have; Holm over these tests."""
    found = []
    for row in rows:
        own = methods.get(row["name"])
        if own is None or row["name"] == reference or not all(choice.run.test for choice in own.choices):
            continue
        a, b = paired(own, methods[reference], convention, measure)
        if len(a) < 2:
            continue
        test = {
            "queries": len(a),
            "difference": float(differences(a, b).mean()),
            "interval": list(bootstrap_interval(a, b)),
        }
        row["against"][reference] = test | {"t": paired_t(a, b), "randomisation": randomisation(a, b)}
        found.append(row["against"][reference])
    for kind in ("t", "randomisation"):
        for test, adjusted in zip(found, holm([test[kind] for test in found]), strict=True):
            test[f"{kind}_holm"] = float(adjusted)


# ---- defaults and tuned forms ----------------------------------------------------------------------------------------


def tabulate_defaults(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Of every ranker the defaults and the tuned form on the held-out folds of the training queries."""
    there = [candidate for candidate in candidates if candidate.runs and candidate.defaults]
    first = there[0].runs[0] if there else None
    _, convention, measure = parse_monitor(first.measure, list(first.val)) if first else ("", "", "")
    sign = -1 if measure and smaller_is_better(measure) else 1
    rows = [_lead(candidate, convention, measure, sign) for candidate in there]
    rows.sort(key=lambda row: -sign * row["difference"])
    left = {each.name: next(iter(each.reasons.values()), "no result") for each in candidates if each not in there}
    known = {"data": first.data if first else "", "measure": measure, "convention": convention}
    found: dict[str, Any] = plain({"schema": 1, **known, "rows": rows, "left_out": left})
    return found


def _lead(candidate: Candidate, convention: str, measure: str, sign: int) -> dict[str, Any]:
    plain_form = Method(candidate.name, [Choice(run, [run]) for run in candidate.defaults])
    tuned, default = paired(candidate.method, plain_form, convention, measure)
    gap = tuned - default
    error = float(gap.std(ddof=1) / math.sqrt(len(gap))) if len(gap) > 1 else math.nan
    lead = sign * float(gap.mean()) if len(gap) else math.nan
    return {
        "name": candidate.name,
        "folds": len(candidate.runs),
        "queries": len(gap),
        "default": float(default.mean()) if len(gap) else math.nan,
        "tuned": float(tuned.mean()) if len(gap) else math.nan,
        "difference": sign * lead,
        "error": error,
        "leads": bool(lead > LEAD and lead > ERRORS * error),
        "settings": [{"fold": run.fold, **run.settings} for run in candidate.runs],
    }

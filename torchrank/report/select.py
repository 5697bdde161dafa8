"""Selection of the settings of every method by validation alone, and the test measures of the selected runs.

Replicates are (fold, seed). Seeds are averaged within a fold first; a table then shows the mean of the fold means and
the mean over all queries of all folds.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrank.record import Run, tell_apart

Fold = int | str | None


@dataclass(frozen=True)
class Choice:
    """The run with the best validation measure of one (fold, seed), and all runs that it was chosen from."""

    run: Run
    candidates: list[Run]


@dataclass(frozen=True)
class Method:
    """The chosen runs of one method on one data set."""

    name: str
    choices: list[Choice]

    @property
    def folds(self) -> dict[Fold, list[Run]]:
        """The chosen runs of each fold, one per seed."""
        folds = defaultdict(list)
        for choice in self.choices:
            folds[choice.run.fold].append(choice.run)
        return dict(folds)

    @property
    def varied(self) -> list[str]:
        """The settings that differ among the runs that validation could choose from."""
        settings = [run.settings for choice in self.choices for run in choice.candidates]
        keys = sorted(set().union(*settings))
        return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]

    def fold_means(self, convention: str, measure: str) -> dict[Fold, float]:
        """Test measure of each fold, averaged over the seeds; nan if a run lacks it."""
        values = {fold: [measured(run, convention, measure) for run in runs] for fold, runs in self.folds.items()}
        return {fold: float(np.mean(each)) for fold, each in values.items()}

    def per_query(self, convention: str, measure: str) -> dict[Fold, tuple[NDArray[np.str_], NDArray[np.float64]]]:
        """Query ids and test measures of each fold, averaged over the seeds."""
        return {fold: _seed_average(runs, convention, measure) for fold, runs in self.folds.items()}


@dataclass(frozen=True)
class Selection:
    """All methods on one data set."""

    data: str
    measure: str  # of selection; "" if the methods were chosen by different measures
    methods: list[Method]
    split: str = "test"  # the lists whose measures are shown: val if the runs were not tested

    @property
    def folds(self) -> list[Fold]:
        return sorted({fold for method in self.methods for fold in method.folds}, key=natural)


def select(runs: Iterable[Run]) -> list[Selection]:
    """The run with the best validation measure of each data set, method, fold and seed.

    Test measures have no influence. Ties go to the first in the sorted order of the settings. Runs that were not tested
    have a table of their own, and so has every source of data.
    """
    groups: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in tell_apart(list(runs)):
        groups[run.data, run.split][run.name].append(run)
    return [_selection(data, split, methods) for (data, split), methods in sorted(groups.items())]


def best(runs: list[Run]) -> Run:
    """The run with the best validation value; nan never wins."""
    valid = [run for run in runs if not math.isnan(run.value)]
    if not valid:
        raise ValueError(
            f"{runs[0].folder}: all {len(runs)} runs of this fold and seed have a validation measure of nan"
        )
    sign = -1 if valid[0].mode == "max" else 1
    return min(valid, key=lambda run: (sign * run.value, sortable(run.settings)))


def paired(a: Method, b: Method, convention: str, measure: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Test measures of two methods on the queries for which both have a value, folds pooled.

    A query that is in several folds, as with random splits, counts once, with its mean: it is no new evidence.
    """
    _, first, second = pair(a.per_query(convention, measure), b.per_query(convention, measure))
    return first, second


def pair(
    left: Mapping[Fold, tuple[NDArray[np.str_], NDArray[np.float64]]],
    right: Mapping[Fold, tuple[NDArray[np.str_], NDArray[np.float64]]],
) -> tuple[NDArray[np.str_], NDArray[np.float64], NDArray[np.float64]]:
    """Ids and both values of the queries for which both have one, over the folds that both have; each query once.

    >>> ids = np.array(["q1", "q2"])
    >>> pair({1: (ids, np.array([0.5, 1.0]))}, {1: (ids[:1], np.array([0.25]))})
    (array(['q1'], dtype='<U2'), array([0.5]), array([0.25]))
    """
    names, first, second = [np.empty(0, dtype=str)], [np.empty(0)], [np.empty(0)]
    for fold in sorted(left.keys() & right.keys(), key=natural):
        ids, i, j = np.intersect1d(left[fold][0], right[fold][0], assume_unique=True, return_indices=True)
        names.append(ids)
        first.append(left[fold][1][i])
        second.append(right[fold][1][j])
    both = np.stack([np.concatenate(first), np.concatenate(second)])
    there = ~np.isnan(both).any(axis=0)
    found, query, times = np.unique(np.concatenate(names)[there], return_inverse=True, return_counts=True)
    one, other = (np.bincount(query, values, len(times)) / times for values in both[:, there])
    return found, one, other


def measured(run: Run, convention: str, measure: str) -> float:
    """Test measure of one run, or validation measure if it was not tested; nan if it lacks it."""
    return float(run.measured.get(convention, {"measures": {}})["measures"].get(measure, math.nan))


def natural(value: Any) -> tuple[int, str]:
    """A sort key by which 2 comes before 10, and "fold2" before "fold10".

    >>> sorted([10, 9, None, "a"], key=natural)
    [9, 'a', 10, None]
    """
    return len(str(value)), str(value)


def _selection(data: str, split: str, methods: dict[str, list[Run]]) -> Selection:
    measures = {run.measure for runs in methods.values() for run in runs}
    chosen = [_method(name, runs) for name, runs in sorted(methods.items())]
    return Selection(data, measures.pop() if len(measures) == 1 else "", chosen, split)


def _method(name: str, runs: list[Run]) -> Method:
    rules = sorted({f"{run.measure} ({run.mode})" for run in runs})
    if len(rules) > 1:
        found = " and ".join(rules)
        raise ValueError(f"runs of '{name}' on {runs[0].data} were selected by {found}: give them different names")
    replicates: dict[tuple[Fold, int], list[Run]] = defaultdict(list)
    for run in runs:
        replicates[run.fold, run.seed].append(run)
    order = sorted(replicates, key=lambda replicate: tuple(map(natural, replicate)))
    return Method(name, [Choice(best(replicates[each]), replicates[each]) for each in order])


def _seed_average(runs: list[Run], convention: str, measure: str) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
    ids, values = runs[0].queries(convention, measure)
    total = np.zeros_like(values)
    for run in runs:
        other, values = run.queries(convention, measure)
        if not np.array_equal(ids, other):
            raise ValueError(f"{run.folder} and {runs[0].folder} are seeds of one fold but have different test queries")
        total += values
    return ids, total / len(runs)


def sortable(settings: dict[str, Any]) -> list[tuple[str, int, float, str]]:
    """Settings as a sort key: numbers by value, everything else as text."""
    return [
        (key, 0, value, "") if isinstance(value, int | float) else (key, 1, 0, str(value))
        for key, value in sorted(settings.items())
    ]

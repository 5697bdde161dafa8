"""Two or more rankers on the same queries: means, differences with their intervals, paired tests, wins and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrank.report.select import Fold, pair
from torchrank.report.significance import (
    ALPHA,
    bootstrap_interval,
    differences,
    effect_size,
    holm,
    outcomes,
    paired_t,
    randomisation,
)
from torchrank.report.tables import Bold, Sheet
from torchrank.screen import visible

PerQuery = dict[Fold, tuple[NDArray[np.str_], NDArray[np.float64]]]
SPECIAL = {char: rf"\{char}" for char in "&%$#_{}"} | {
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


@dataclass(frozen=True)
class System:
    """What is compared: the ids (Q,) and the values (Q,) of its queries, by fold; nan: the query has no value."""

    name: str
    queries: PerQuery

    @property
    def pooled(self) -> PerQuery:
        """All queries with a value, folds as one; a query that is in several of them has its mean."""
        ids, values, _ = pair(self.queries, self.queries)
        return {None: (ids, values)}

    @property
    def mean(self) -> float:
        """Over all queries with a value."""
        values = self.pooled[None][1]
        return float(values.mean()) if len(values) else float("nan")


def compare(systems: Sequence[System], *, smaller_is_better: bool = False, seed: int = 0) -> dict[str, Any]:
    """The means of all systems, and every two of them compared on the queries that both have.

    Folds that both have are matched fold by fold, otherwise their folds are pooled; a query in several folds counts
    once, with its mean. P-values are adjusted by Holm's method over all pairs.
    """
    rows = [_row(a, b, smaller_is_better, seed) for a, b in combinations(systems, 2)]
    for test in ("t", "randomisation"):
        for row, adjusted in zip(rows, holm([row[test] for row in rows]), strict=True):
            row[f"{test}_holm"] = float(adjusted)
    means = [{"name": each.name, "mean": each.mean, "queries": len(each.pooled[None][0])} for each in systems]
    return {"systems": means, "pairs": rows}


def matched(a: System, b: System) -> tuple[NDArray[np.str_], NDArray[np.float64], NDArray[np.float64]]:
    """Ids and values of the queries for which both have a value."""
    if a.queries.keys() & b.queries.keys():
        return pair(a.queries, b.queries)
    return pair(a.pooled, b.pooled)


def _row(a: System, b: System, smaller_is_better: bool, seed: int) -> dict[str, Any]:
    _, first, second = matched(a, b)
    if not len(first):
        raise ValueError(f"{a.name} and {b.name} have no query with a value in common: expected the same query ids")
    ids = [np.concatenate([part for part, _ in each.queries.values()]) for each in (a, b)]
    wins, ties, losses = outcomes(first, second)
    return {
        "a": a.name,
        "b": b.name,
        "queries": len(first),
        "only_a": int((~np.isin(np.unique(ids[0]), ids[1])).sum()),
        "only_b": int((~np.isin(np.unique(ids[1]), ids[0])).sum()),
        "undefined": len(np.intersect1d(ids[0], ids[1])) - len(first),
        "mean_a": float(first.mean()),
        "mean_b": float(second.mean()),
        "difference": float(differences(first, second).mean()),
        "interval": list(bootstrap_interval(first, second, seed=seed)),
        "t": paired_t(first, second),
        "randomisation": randomisation(first, second, seed=seed),
        "wins": losses if smaller_is_better else wins,
        "ties": ties,
        "losses": wins if smaller_is_better else losses,
        "effect_size": effect_size(first, second),
    }


# ---- as tables ------------------------------------------------------------------------------------------------------


def sheets(title: str, found: dict[str, Any]) -> list[Sheet]:
    """The means of all systems, and the pairs."""
    means = Sheet(title, ["system", "mean", "queries"])
    means.rows = [[each["name"], f"{each['mean']:.4f}", str(each["queries"])] for each in found["systems"]]
    header = ["a - b", "queries", "difference", "95% interval", "t", "Holm", "randomisation", "Holm"]
    pairs = Sheet(f"{title}: differences", [*header, "wins/ties/losses", "effect size"])
    pairs.rows = [_cells(row) for row in found["pairs"]]
    pairs.below = [
        "Difference: mean of a minus mean of b over the queries of both; interval: bootstrap over the queries; t and "
        "randomisation: p-values of the paired tests, each followed by its Holm adjustment over all pairs; bold: "
        f"adjusted p < {ALPHA}; effect size: mean difference over its standard deviation (Cohen's d).",
        *left_out(found),
    ]
    return [means, pairs]


def left_out(found: dict[str, Any]) -> list[str]:
    """What the pairs leave out, in words."""
    told = []
    for row in found["pairs"]:
        counts = [(f"in {row['a']} only", row["only_a"]), (f"in {row['b']} only", row["only_b"])]
        counts.append(("without a value in one of them", row["undefined"]))
        if shown := ", ".join(f"{count} {what}" for what, count in counts if count):
            told.append(f"{row['a']} - {row['b']}: queries left out: {shown}.")
    return told


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["interval"]
    return [
        f"{row['a']} - {row['b']}",
        str(row["queries"]),
        f"{row['difference']:+.4f}",
        f"[{low:+.4f}, {high:+.4f}]",
        _p(row["t"]),
        _verdict(row["t_holm"]),
        _p(row["randomisation"]),
        _verdict(row["randomisation_holm"]),
        f"{row['wins']}/{row['ties']}/{row['losses']}",
        f"{row['effect_size']:+.2f}",
    ]


def _verdict(p: float) -> str:
    return Bold(_p(p)) if p < ALPHA else _p(p)


def _p(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def latex(sheet: Sheet) -> str:
    """A sheet as a table for LaTeX, with the package booktabs.

    >>> print(latex(Sheet("map", ["system", "mean"], [["a_1", Bold("0.5")]])))
    % map
    \\begin{tabular}{lr}
    \\toprule
    system & mean \\\\
    \\midrule
    a\\_1 & \\textbf{0.5} \\\\
    \\bottomrule
    \\end{tabular}
    """
    rows = [" & ".join(map(_latex_cell, row)) + r" \\" for row in (sheet.header, *sheet.rows)]
    lines = [
        f"% {visible(sheet.title)}",
        rf"\begin{{tabular}}{{l{'r' * (len(sheet.header) - 1)}}}",
        r"\toprule",
        rows[0],
    ]
    lines += [r"\midrule", *rows[1:], r"\bottomrule", r"\end{tabular}", *(f"% {visible(line)}" for line in sheet.below)]
    return "\n".join(lines)


def _latex_cell(text: str) -> str:
    escaped = "".join(SPECIAL.get(char, char) for char in visible(text))
    return rf"\textbf{{{escaped}}}" if isinstance(text, Bold) else escaped

"""Figures of the rankers of one data set, from a section of `torchrank.report.page.collect`.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart; markers differ too.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchrank.report.plots.runs import blank, legend, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = "os^DvPX*"
GREY = "#8C8C8C"


def plot_rankers(section: dict[str, Any], measure: str, convention: str, rankers: Sequence[str] = ()) -> "Figure":
    """The mean of each ranker with its 95% bootstrap interval, best on top."""
    methods = [method for method in shown(section, rankers) if _found(section, method, measure, convention) is not None]
    figure = blank(6.5, 1.1 + 0.36 * len(methods))
    axes = _axes(figure, xlabel=_label(section, measure, convention))
    for place, method in enumerate(methods):
        value = _found(section, method, measure, convention) or {}
        colour = _colour(section, method)
        if value.get("low") is not None:
            axes.plot(
                [value["low"], value["high"]], [place, place], color=colour, linewidth=2.5, solid_capstyle="round"
            )
        axes.plot(value["mean"], place, "o", color=colour, markersize=7)
        axes.annotate(f"{value['mean']:.4f}", (1.01, place), xycoords=("axes fraction", "data"), va="center")
    axes.set(yticks=range(len(methods)), yticklabels=[literal(method["name"]) for method in methods])
    axes.set_ylim(len(methods) - 0.5, -0.5)
    return figure


def plot_curves(section: dict[str, Any], value: str, rankers: Sequence[str] = ()) -> "Figure":
    """A logged value of each chosen run against the rounds of its fit."""
    methods, found = shown(section, rankers), 0
    figure = blank(6.5, 4)
    axes = _axes(figure, xlabel="round", ylabel=value)
    for method in methods:
        lines = [run["values"][value] for run in method["curves"] if value in run["values"]]
        for place, (x, y) in enumerate(lines):
            own: dict[str, Any] = {
                "marker": _marker(section, method),
                "markevery": max(1, len(x) // 12),
                "markersize": 4,
            }
            axes.plot(x, y, color=_colour(section, method), linewidth=1.6 if len(lines) == 1 else 1,
                      label=None if place else literal(method["name"]), **own)  # fmt: skip
        found += len(lines)
    if not found:
        names = sorted({name for method in methods for run in method["curves"] for name in run["values"]})
        raise ValueError(
            f"no run has logged {value}: choose one of {', '.join(names) or 'none (train with logger=csv)'}"
        )
    legend(axes, frameon=False)
    return figure


def plot_scatter(section: dict[str, Any], measure: str, convention: str, rankers: Sequence[str] = ()) -> "Figure":
    """One point for each query: the first ranker up, the second across."""
    a, b = two(section, rankers)
    one, other = values_of(section, a, b, measure, convention)
    figure = blank(5, 5)
    axes = _axes(figure, xlabel=f"{b['name']}: {measure}", ylabel=f"{a['name']}: {measure}")
    for sign, colour in ((0, GREY), (1, _colour(section, a)), (-1, _colour(section, b))):
        some = np.sign(one - other) * (-1 if measure in section["smaller"] else 1) == sign
        axes.scatter(other[some], one[some], s=14, color=colour, alpha=0.6, linewidths=0)
    low, high = min(one.min(), other.min()), max(one.max(), other.max())
    axes.plot([low, high], [low, high], color=GREY, linestyle="--", linewidth=1)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(literal(_verdict(section, a, b, measure, convention)), fontsize="medium")
    return figure


def plot_gaps(section: dict[str, Any], measure: str, convention: str, rankers: Sequence[str] = ()) -> "Figure":
    """The distribution over the queries of the differences of two rankers, their mean and its bootstrap interval."""
    a, b = two(section, rankers)
    one, other = values_of(section, a, b, measure, convention)
    gaps, pair = one - other, _pair(section, a, b, measure, convention)
    most = max(float(np.abs(gaps).max(initial=0)), 0.01)
    edges = np.linspace(-most, most, 2 * max(4, min(20, int(len(gaps) ** 0.5))) + 2)
    figure = blank(6.5, 3.8)
    axes = _axes(figure, xlabel=f"{a['name']} minus {b['name']}, {measure}", ylabel="queries")
    good = 1 if measure not in section["smaller"] else -1
    parts = [gaps[np.sign(gaps) == sign] for sign in (good, 0, -good)]
    colours = [_colour(section, a), GREY, _colour(section, b)]
    axes.hist(parts, edges.tolist(), stacked=True, color=colours, alpha=0.65)
    axes.axvline(0, color=GREY, linestyle="--", linewidth=1)
    axes.axvspan(pair["low"], pair["high"], color="black", alpha=0.15, linewidth=0)
    axes.axvline(pair["difference"], color="black", linewidth=1.6)
    axes.set_title(literal(_verdict(section, a, b, measure, convention)), fontsize="medium")
    return figure


def plot_costs(section: dict[str, Any], measure: str, convention: str, rankers: Sequence[str] = ()) -> "Figure":
    """The mean of each ranker against the seconds of its fit."""
    figure = blank(6.5, 4)
    axes = _axes(figure, xlabel="seconds of the fit", ylabel=_label(section, measure, convention))
    axes.set_xscale("log")
    for method in shown(section, rankers):
        value = _found(section, method, measure, convention)
        if value is not None:
            point = method["seconds"]["fit"], value["mean"]
            axes.plot(*point, _marker(section, method), color=_colour(section, method), markersize=8)
            axes.annotate(literal(method["name"]), point, xytext=(8, 4), textcoords="offset points")
    axes.margins(0.2)
    return figure


FIGURES = {"measures": plot_rankers, "scatter": plot_scatter, "differences": plot_gaps, "costs": plot_costs}


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def shown(section: dict[str, Any], rankers: Sequence[str]) -> list[dict[str, Any]]:
    """The rankers of these names in this order; all, if none is named."""
    known = {method["name"]: method for method in section["methods"]}
    if unknown := [name for name in rankers if name not in known]:
        raise ValueError(f"no ranker {', '.join(unknown)}: choose from {', '.join(known)}")
    return [known[name] for name in rankers] if rankers else section["methods"]


def two(section: dict[str, Any], rankers: Sequence[str]) -> list[dict[str, Any]]:
    """The two rankers of a comparison: those named, or the two best."""
    found = shown(section, rankers)
    if not section["tested"]:
        raise ValueError(f"the runs on {section['data']} have no test part, so there is nothing to compare by query")
    if len(found) < 2 or len(rankers) not in (0, 2):
        known = ", ".join(method["name"] for method in section["methods"])
        raise ValueError(f"this figure compares two rankers: name two of {known} with --rankers")
    return found[:2]


def values_of(
    section: dict[str, Any], a: dict[str, Any], b: dict[str, Any], measure: str, convention: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values of two rankers on the queries that both have; a query of several folds counts once, by its means."""
    columns = section["values"][convention][measure]
    both = np.array([columns[section["methods"].index(method)] for method in (a, b)], dtype=np.float64)
    there = ~np.isnan(both).any(axis=0)
    ids = np.array(section["queries"]["id"])[there]
    _, query, times = np.unique(ids, return_inverse=True, return_counts=True)
    one, other = (np.bincount(query, values, len(times)) / times for values in both[:, there])
    return one, other


def _found(section: dict[str, Any], method: dict[str, Any], measure: str, convention: str) -> dict[str, Any] | None:
    if section["tested"]:
        part = method["test"].get(convention) or {"measures": {}}
        value: dict[str, Any] | None = part["measures"].get(measure)
        return value
    mean = method["val"].get(convention, {"measures": {}})["measures"].get(measure)
    return None if mean is None else {"mean": mean}


def _pair(
    section: dict[str, Any], a: dict[str, Any], b: dict[str, Any], measure: str, convention: str
) -> dict[str, Any]:
    i, j = (section["methods"].index(method) for method in (a, b))
    pairs = {(pair["a"], pair["b"]): pair for pair in section["pairs"][convention][measure]}
    if (i, j) in pairs:
        return dict(pairs[i, j])
    if (j, i) not in pairs:
        raise ValueError(f"{a['name']} and {b['name']} have no query with {measure} in common")
    back: dict[str, Any] = pairs[j, i]
    turned = {"difference": -back["difference"], "low": -back["high"], "high": -back["low"]}
    return back | turned | {"wins": back["losses"], "losses": back["wins"]}


def _verdict(section: dict[str, Any], a: dict[str, Any], b: dict[str, Any], measure: str, convention: str) -> str:
    pair = _pair(section, a, b, measure, convention)
    counts = f"{pair['wins']} won, {pair['ties']} level, {pair['losses']} lost"
    return f"{pair['difference']:+.4f} [{pair['low']:+.4f}, {pair['high']:+.4f}], {pair['queries']} queries\n{counts}"


def _label(section: dict[str, Any], measure: str, convention: str) -> str:
    return f"{'test' if section['tested'] else 'validation'} {measure}, convention {convention}"


def _colour(section: dict[str, Any], method: dict[str, Any]) -> str:
    return COLOURS[section["methods"].index(method) % len(COLOURS)]


def _marker(section: dict[str, Any], method: dict[str, Any]) -> str:
    return MARKERS[section["methods"].index(method) % len(MARKERS)]


def _axes(figure: "Figure", **labels: str) -> "Axes":
    axes = figure.add_subplot()
    axes.set(**{name: literal(text) for name, text in labels.items()})
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes

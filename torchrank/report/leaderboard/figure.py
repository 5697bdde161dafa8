"""A leaderboard as one figure: measures with their intervals, differences to the reference, seconds of a fit."""

import math
from typing import TYPE_CHECKING, Any

from torchrank.report.plots.rankers import COLOURS, GREY
from torchrank.report.plots.runs import blank, literal
from torchrank.report.significance import ALPHA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED = COLOURS[0], COLOURS[1]


def plot_board(board: dict[str, Any]) -> "Figure":
    """One line for each ranker with a result, best on top; the document is that of `tabulate`."""
    rows = [row for row in board["rows"] if row["folds"]]
    reference = board["references"][0] if board["references"] else None
    figure = blank(13, 1.3 + 0.32 * len(rows))
    axes = figure.subplots(1, 3 if reference else 2, sharey=True, gridspec_kw={"wspace": 0.06})
    _means(axes[0], rows, board)
    if reference:
        _gaps(axes[1], rows, reference)
    _seconds(axes[-1], rows)
    axes[0].set(yticks=range(len(rows)), yticklabels=[literal(row["name"]) for row in rows])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    for each in axes:
        each.grid(alpha=0.25)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure


def _means(axes: "Axes", rows: list[dict[str, Any]], board: dict[str, Any]) -> None:
    for place, row in enumerate(rows):
        value = row["test"][board["measure"]]
        if value["mean"] is None:  # no query has a value
            continue
        if value["deviation"] is not None:
            ends = [value["mean"] - value["deviation"], value["mean"] + value["deviation"]]
            axes.plot(ends, [place, place], color=BLUE, linewidth=2)
        axes.plot(value["mean"], place, "o", color=BLUE, markerfacecolor=BLUE if row["complete"] else "white")
    folds = len(board["folds"])
    spread = f", mean ± deviation over {folds} folds" if folds > 1 else ""
    axes.set_xlabel(literal(f"{board['split']} {board['measure']}{spread}"))


def _gaps(axes: "Axes", rows: list[dict[str, Any]], reference: str) -> None:
    axes.axvline(0, color=GREY, linewidth=1)
    for place, row in enumerate(rows):
        if (test := row["against"].get(reference)) is not None:
            sure = test["randomisation_holm"] is not None and test["randomisation_holm"] < ALPHA
            colour = GREY if not sure else BLUE if test["difference"] > 0 else RED
            axes.plot(test["interval"], [place, place], color=colour, linewidth=2)
            axes.plot(test["difference"], place, "o", color=colour)
    axes.set_xlabel(literal(f"difference to {reference}, 95% interval; grey: undecided"))


def _seconds(axes: "Axes", rows: list[dict[str, Any]]) -> None:
    known = [(place, max(row["fit_seconds"], 1e-2)) for place, row in enumerate(rows) if row["fit_seconds"] is not None]
    axes.barh([place for place, _ in known], [value for _, value in known], color=GREY, height=0.6)
    axes.set_xscale("log")
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.set_xlim(10 ** math.floor(math.log10(min((value for _, value in known), default=1))))
    axes.set_xlabel("CPU seconds of a fit")

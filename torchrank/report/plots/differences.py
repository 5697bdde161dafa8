"""The differences of compared rankers with their intervals."""

from typing import TYPE_CHECKING, Any

from torchrank.report.plots.runs import blank, literal
from torchrank.report.significance import ALPHA

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_differences(found: dict[str, Any]) -> "Figure":
    """A panel per measure, and in it a line per pair: the mean difference and its 95% interval.

    Pairs whose difference is significant (randomisation test, Holm-adjusted) are filled. `found` holds what
    `report.comparison.compare` returns, by measure.
    """
    pairs = max(len(each["pairs"]) for each in found.values())
    figure = blank(1.5 + 4.0 * len(found), 1.2 + 0.4 * pairs)
    for place, (measure, each) in enumerate(found.items(), start=1):
        axes = figure.add_subplot(1, len(found), place, xlabel=literal(f"difference in {measure}"))
        axes.axvline(0, color="grey", linewidth=0.8)
        for height, row in enumerate(reversed(each["pairs"])):
            (low, high), middle = row["interval"], row["difference"]
            filled = row["randomisation_holm"] < ALPHA
            axes.plot([low, high], [height, height], color="C0", linewidth=2)
            axes.plot([middle], [height], "o", color="C0", markerfacecolor="C0" if filled else "white")
        names = [literal(f"{row['a']} - {row['b']}") for row in reversed(each["pairs"])]
        axes.set_yticks(range(len(names)), names if place == 1 else [""] * len(names))
        axes.set_ylim(-0.6, len(names) - 0.4)
    return figure

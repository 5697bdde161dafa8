"""The ratios of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.suite import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(rows: Sequence[Row], path: Path) -> None:
    """The ratios, and below them the curves, if there are any."""
    from matplotlib import pyplot

    shown, curves = [row for row in rows if row.ratio and row.ratio > 0], [row for row in rows if row.curve]
    heights = [1 + 0.24 * len(shown), *([5] if curves else [])]
    figure, axes = pyplot.subplots(
        len(heights), figsize=(10, sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    draw_ratios(shown, axes[0, 0])
    if curves:
        draw_curves(curves, axes[1, 0])
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_ratios(shown: Sequence[Row], axes: "Axes") -> None:
    """One line per ratio on a logarithmic axis, its bar beside it; left of 1 torchrank is faster or smaller."""
    places = range(len(shown), 0, -1)
    colours = ["tab:red" if row.missed else "tab:blue" for row in shown]
    axes.hlines(places, 1, [row.ratio for row in shown], color=colours, linewidth=2)
    axes.scatter([row.ratio for row in shown], places, color=colours, zorder=3, label="torchrank / peer")
    wanted = [(row.bar, place) for row, place in zip(shown, places, strict=True) if row.bar]
    bars, heights = [bar for bar, _ in wanted], [place for _, place in wanted]
    axes.scatter(bars, heights, marker="|", s=80, color="black", zorder=4, label="wanted at most")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="torchrank / peer (less is better)")
    axes.set_yticks(list(places), [f"{row.name} / {row.peer}" for row in shown], fontsize=7, parse_math=False)
    axes.legend(loc="lower left", fontsize=7)


def draw_curves(curves: Sequence[Row], axes: "Axes") -> None:
    """Time against size, both relative to the smallest size: the slope is the exponent."""
    for row in curves:
        sizes, times = zip(*row.curve, strict=True)
        grown, slower = ([value / values[0] for value in values] for values in (sizes, times))
        axes.plot(grown, slower, marker="o", markersize=3, linewidth=1, label=f"{row.name} ({row.ours:.2f})")
    axes.set(xscale="log", yscale="log", xlabel="size / smallest size", ylabel="time / time of the smallest size")
    axes.legend(fontsize=6, ncols=2, loc="upper left")

"""The ratios of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.suite import Row


def draw(rows: Sequence[Row], path: Path) -> None:
    """One line per ratio on a logarithmic axis, its bar beside it; left of 1 torchrank is faster or smaller."""
    from matplotlib import pyplot

    shown = [row for row in rows if row.ratio]
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.24 * len(shown)), layout="constrained")
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
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

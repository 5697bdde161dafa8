"""Figures of learned metrics, their spectra; and bar charts of tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrank.report.plots.runs import SECONDS, blank, legend, literal, named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-6  # smaller shares of a spectrum count as 0


def plot_spectrum(metrics: Mapping[str, ArrayLike]) -> "Figure":
    """The eigenvalues of each metric (D, D) as shares of their sum, largest first; the legend counts those above 1e-6.

    A metric that is regularised by its trace has few of them; the Euclidean one is a horizontal line.
    """
    figure = blank(7, 4)
    axes = figure.add_subplot(xlabel="component", ylabel="share of the trace", yscale="log")
    for label, metric in metrics.items():
        shares = spectrum(metric)
        kept = shares[shares > FLOOR]
        axes.plot(
            np.arange(1, len(kept) + 1),
            kept,
            marker="o",
            markersize=4,
            label=literal(f"{label}: {len(kept)} of {len(shares)}"),
        )
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    legend(axes, fontsize="small", title="components above 1e-6 of the trace", title_fontsize="small")
    return figure


def spectrum(metric: ArrayLike) -> NDArray[np.float64]:
    """Eigenvalues of a metric as shares of their sum, largest first.

    >>> spectrum([[1.0, 1.0], [1.0, 1.0]]).round(6).tolist()
    [1.0, 0.0]
    """
    values = np.linalg.eigvalsh(np.asarray(metric, dtype=np.float64))[::-1]
    if not values.sum() > 0:
        total = f"{values.sum():g}"
        raise ValueError(f"a metric {values.shape * 2} whose eigenvalues sum to {total} has no spectrum: raise C")
    return values / float(values.sum())


def plot_measures(table: dict[str, Any], measures: Sequence[str], *, convention: str = "default") -> "Figure":
    """Bars of one table of `tabulate`, one panel per measure or "fit_seconds".

    Bars are means of the fold means, whiskers their deviation over the folds (over the seeds if there is one fold).
    Methods are in the order of the table, best first.
    """
    rows = table["methods"]
    figure = blank(3.4 * len(measures) + 0.6, 3.8)
    for place, measure in enumerate(measures):
        axes = figure.add_subplot(
            1, len(measures), place + 1, title=literal(measure), ylabel=literal(named(measure, convention))
        )
        means, deviations = np.array([_bar(method, measure, convention) for method in rows], dtype=float).T
        colours = [f"C{number}" for number in range(len(rows))]
        whiskers = None if np.isnan(deviations).all() else np.nan_to_num(deviations)
        bars = axes.bar([literal(method["name"]) for method in rows], means, yerr=whiskers, color=colours,
                        capsize=3, alpha=0.85)  # fmt: skip
        axes.bar_label(bars, fmt="%.2g" if measure == SECONDS else "%.3f", fontsize="small", padding=2)
        axes.margins(y=0.12)
        axes.tick_params(axis="x", rotation=35)
        axes.grid(alpha=0.3, axis="y")
    figure.supxlabel("means over the folds; whiskers: their standard deviation", fontsize="small")
    return figure


def _bar(method: dict[str, Any], measure: str, convention: str) -> tuple[float, float | None]:
    """Mean and deviation of one method."""
    if measure == SECONDS:
        return method["fit_seconds"], None
    part = method["test"].get(convention) or {"measures": {}}
    found = part["measures"].get(measure)
    if found is None:
        raise ValueError(f"{method['name']} has no {measure} in convention {convention}: leave it out, or run it again")
    return found["mean"], found["deviation"]

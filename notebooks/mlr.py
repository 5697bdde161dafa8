"""The figures of mlr.ipynb: points under a learned metric, rows of noise, and kNN errors beside the published ones.

McFee & Lanckriet, "Metric learning to rank", ICML 2010; Lim, McFee & Lanckriet, "Robust structural metric learning",
ICML 2013.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrank.report.knn import SELECTIONS
from torchrank.report.plots.runs import blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_projection(
    train: ArrayLike, classes: ArrayLike, test: ArrayLike, test_classes: ArrayLike, *, title: str = ""
) -> "Figure":
    """Points by their two leading components: training points small, test points large, one colour per class.

    `train` and `test` are images (n, r), strongest component first, as from `embed` and `MetricEstimator.transform`.
    Both axes have the same scale, so distances in the figure are distances in these two components.
    """
    figure = blank(6.5, 5)
    axes = figure.add_subplot(xlabel="first component", ylabel="second component", title=title)
    names = np.unique(np.asarray(classes))
    for points, labels, size, edge in ((train, classes, 10, "none"), (test, test_classes, 60, "black")):
        images = leading(points)
        for place, name in enumerate(names):
            x, y = images[np.asarray(labels) == name].T
            label = f"{name}" if size > 10 else None
            axes.scatter(x, y, s=size, c=f"C{place}", edgecolors=edge, linewidths=0.6, alpha=0.75, label=label)
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(fontsize="small", title="class (large: test)")
    return figure


def leading(images: ArrayLike) -> NDArray[np.float64]:
    """The first two columns (n, 2); for a metric of rank 1 the second one is zero.

    >>> leading([[1.0], [2.0]]).tolist()
    [[1.0, 0.0], [2.0, 0.0]]
    """
    rows = np.asarray(images, dtype=np.float64)
    return np.pad(rows, ((0, 0), (0, max(0, 2 - rows.shape[1]))))[:, :2]


def plot_features(metrics: Mapping[str, ArrayLike], *, noise: int) -> "Figure":
    """The norm of the row of each feature in each metric (D, D), relative to the largest norm.

    The last `noise` features are known to be noise; the titles count those whose rows are exactly 0.
    """
    figure = blank(8, 1.9 * len(metrics))
    panels = figure.subplots(len(metrics), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (label, metric) in zip(panels, metrics.items(), strict=True):
        norms = np.linalg.norm(np.asarray(metric, dtype=np.float64), axis=1)
        places, real = np.arange(1, len(norms) + 1), len(norms) - noise
        shown = norms / (norms.max() or 1.0)
        axes.bar(places[:real], shown[:real], color="C0", label="informative")
        axes.bar(places[real:], shown[real:], color="C1", label="noise")
        gone = norms == 0
        axes.plot(places[gone], shown[gone], "x", color="black", markersize=4, label="exactly 0")
        axes.set_title(
            f"{label}: {gone[real:].sum()} of {noise} noise rows are 0, {gone[:real].sum()} of {real} others"
        )
    panels[-1].set(xlabel="feature", ylim=(-0.06, 1.06))
    figure.supylabel("norm of the row, largest = 1", fontsize="medium")
    entries = _legend(panels)
    panels[0].legend(entries.values(), entries, fontsize="small", loc="upper right")
    return figure


def plot_neighbours(document: dict[str, Any], methods: Sequence[str] | None = None) -> "Figure":
    """kNN errors from `tabulate_neighbours`, one panel per data set.

    Bars are both selections with their standard errors over the splits, diamonds the published errors. `methods` sets
    the order and may leave some out.
    """
    tables = document["tables"]
    methods = list(methods or sorted({method["name"] for table in tables for method in table["methods"]}))
    figure = blank(3.1 * len(tables) + 1, 0.42 * len(methods) + 1.4)
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, table in zip(panels, tables, strict=True):
        found = {method["name"]: method for method in table["methods"]}
        rows = [(place, found[name]) for place, name in enumerate(methods) if name in found]
        _draw_errors(axes, rows)
        axes.set(title=f"{table['data'].rpartition('/')[2]}, {max(m['splits'] for m in table['methods'])} splits")
        axes.set(xlabel="test kNN error %", yticks=range(len(methods)), yticklabels=methods)
        axes.grid(alpha=0.3, axis="x")
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    entries = _legend(panels)
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _legend(panels: Iterable["Axes"]) -> dict[str, Any]:
    """The artist of each label in any panel; matplotlib lists markers before bars, here they come last."""
    pairs = [pair for axes in panels for pair in reversed(list(zip(*axes.get_legend_handles_labels(), strict=True)))]
    return {label: artist for artist, label in pairs}


def _draw_errors(axes: "Axes", rows: list[tuple[int, dict[str, Any]]]) -> None:
    """Draw two bars per method, the optimistic selection above the honest one."""
    for shift, (selection, meaning) in zip((-0.19, 0.19), SELECTIONS.items(), strict=True):
        colour = "C0" if selection == "honest" else "lightsteelblue"
        places = [place + shift for place, _ in rows]
        values = [method[selection]["percent"] for _, method in rows]
        errors = np.nan_to_num([method[selection]["standard_error"] for _, method in rows])
        axes.barh(places, values, 0.38, xerr=errors, color=colour, label=meaning, error_kw={"elinewidth": 1})
    known = [(place - 0.19, method["published"]) for place, method in rows if method["published"] is not None]
    if known:
        axes.plot([value for _, value in known], [place for place, _ in known], "d", color="black", markersize=5,
                  label="published (optimistic, 50 splits)")  # fmt: skip

"""Figures of local models: clouds of queries, the rank of the best model, a measure against the number of models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrank.report.clairvoyant import Clairvoyance
from torchrank.report.plots.sweep import blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"clairvoyant": ":", "placebo": "--"}  # of lines that have the word in their label


def plot_clouds(clouds: Mapping[str, tuple[ArrayLike, ArrayLike]], directions: ArrayLike) -> "Figure":
    """Clouds by name, rows (n, D) and labels (n,), along two `directions` (2, D): where they lie, then each of them
    around its own mean, which is all that a linear ranking sees. Relevant documents are filled."""
    along = np.asarray(directions, dtype=np.float64)
    images = {name: (np.asarray(x, dtype=np.float64) @ along.T, np.asarray(y) > 0) for name, (x, y) in clouds.items()}
    figure = blank(3.1 * (len(images) + 1), 3.2)
    place, *panels = figure.subplots(1, len(images) + 1)
    reach = 1.05 * max(float(np.abs(image - image.mean(0)).max()) for image, _ in images.values())
    for number, (axes, (name, (image, relevant))) in enumerate(zip(panels, images.items(), strict=True)):
        _scatter(place, image, relevant, f"C{number}", name, 6)
        _scatter(axes, image - image.mean(0), relevant, f"C{number}", name, 14)
        axes.set(title=f"{name}, around its mean", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    place.set(title="as they lie", xlabel="first direction", ylabel="second direction")
    place.legend(fontsize="small")
    return figure


def _scatter(axes: "Axes", image: NDArray, relevant: NDArray, colour: str, name: str, size: int) -> None:
    for chosen, face, label in ((~relevant, "none", None), (relevant, colour, name)):
        points = image[chosen]
        axes.scatter(points[:, 0], points[:, 1], size, facecolors=face, edgecolors=colour, linewidths=0.7, label=label)


def plot_ranks(found: Mapping[str, Clairvoyance], num_models: int) -> "Figure":
    """The share of test queries whose best model is among the r most similar ones, against r; dashed: in random order.

    With one best model the dashed line would be the diagonal; equal values lift it.
    """
    figure = blank(6.5, 4)
    axes = figure.add_subplot(xlabel="r", ylabel="best model among the r most similar", xscale="log", ylim=(0, 1.02))
    first = np.arange(1, num_models + 1)
    for number, (name, each) in enumerate(found.items()):
        share = (each.rank[:, None] <= first).mean(0)
        axes.step(first, share, where="post", color=f"C{number}", label=name)
        chance = within_by_chance(each.chance_first, num_models).mean(0)
        axes.plot(first, chance, "--", color=f"C{number}", label=f"{name}, random order")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def within_by_chance(chance_first: ArrayLike, num_models: int) -> NDArray[np.float64]:
    """Probability (T, M) that one of b = M `chance_first` best models is among the first r = 1..M of a random order.

    1 - (M - b choose r) / (M choose r), step by step: the model at place r is not one of the best with probability
    (M - b - r + 1) / (M - r + 1) when those before it are not.

    >>> within_by_chance([0.25, 0.5], 4).round(4).tolist()
    [[0.25, 0.5, 0.75, 1.0], [0.5, 0.8333, 1.0, 1.0]]
    """
    others = num_models - np.round(np.asarray(chance_first, dtype=np.float64) * num_models)[:, None]
    before = np.arange(num_models)
    missed: NDArray[np.float64] = np.maximum(others - before, 0) / (num_models - before)
    return 1 - missed.cumprod(axis=1)


def plot_numbers(
    numbers: ArrayLike,
    lines: Mapping[str, ArrayLike],
    *,
    errors: Mapping[str, ArrayLike] | None = None,
    levels: Mapping[str, float] | None = None,
    xlabel: str = "clusters",
    ylabel: str,
) -> "Figure":
    """Lines (points,) by label against `numbers`, such as a measure against the number of clusters. Lines whose label
    says placebo are dashed, those of a clairvoyant choice dotted. `errors`: bands; `levels`: one value for all."""
    figure = blank(8, 4.2)
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    x = np.asarray(numbers)
    for number, (label, values) in enumerate(lines.items()):
        style = next((STYLES[word] for word in ("placebo", "clairvoyant") if word in label), "-")
        axes.plot(x, values, style, color=f"C{number}", marker="o", markersize=4, label=label)
        if label in (errors or {}):
            middle, width = np.asarray(values), np.asarray((errors or {})[label])
            axes.fill_between(x, middle - width, middle + width, color=f"C{number}", alpha=0.15, linewidth=0)
    for label, level in (levels or {}).items():
        axes.axhline(level, color="black", linestyle="-.", linewidth=1, label=label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure

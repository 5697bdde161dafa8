"""Figures of single fits: what was logged in every round or epoch, from the `metrics.csv` of a run's folder."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchrank.report.plots.sweep import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_training(folders: Mapping[str, str | Path], values: Sequence[str]) -> "Figure":
    """One panel for each logged value, one line for each run: `plot_training({"l1": "runs/a", "induction": "runs/b"},
    ["train/objective", "val/map", "train/density"])` draws the loss, the precision and the density along two fits."""
    figure = blank(4.2 * len(values), 3.6)
    for place, value in enumerate(values):
        axes = figure.add_subplot(1, len(values), place + 1, xlabel="round", title=value)
        for label, folder in folders.items():
            axes.plot(*read_training(folder, value), marker=".", label=label)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    return figure


def read_training(folder: str | Path, value: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rounds, counted from 1, and the value that was logged in each of them; what the end of a fit logs once more, when
    the chosen state is validated, is left out."""
    path = Path(folder) / "log" / "metrics.csv"
    if not path.exists():
        raise ValueError(f"there is no {path}: train with logger=csv, and give the folder of one run")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    trained = [int(row["epoch"]) for row in rows if any(text and name[:6] == "train/" for name, text in row.items())]
    last = max(trained, default=float("inf"))
    found = [(int(row["epoch"]) + 1, float(row[value])) for row in rows if row.get(value) and int(row["epoch"]) <= last]
    if not found:
        known = ", ".join(sorted({name for row in rows for name, text in row.items() if text} - {"epoch", "step"}))
        raise ValueError(f"{path} has no value {value!r}: it has {known or 'none'}")
    rounds, numbers = zip(*found, strict=True)
    return np.array(rounds), np.array(numbers)

"""The picture of the README: the rankers of `make train` with intervals, and two of them query by query.

make train
python notebooks/first_comparison.py runs/first --out docs/images/first.png
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchrank.report.plots.runs import blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURE = "ndcg@10"
NAMES = {"lgmml": "L-GMML", "gbdt": "LightGBM", "lambdarank": "LambdaRank, linear", "random": "random order"}
Array = NDArray[np.float64]


def read(folder: Path) -> dict[str, Array]:
    """The measure of each test query (Q,), by ranker, best ranker first."""
    found = {}
    for path in sorted(folder.glob("*/results.json")):
        with np.load(path.with_name("per_query.npz")) as arrays:
            found[json.loads(path.read_text())["name"]] = arrays[f"default/{MEASURE}"].astype(np.float64)
    return dict(sorted(found.items(), key=lambda pair: -pair[1].mean()))


def draw(values: dict[str, Array]) -> "Figure":
    """Left, means with intervals of 1.96 standard errors; right, the best two rankers query by query."""
    figure = blank(9.0, 3.2)
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    for place, own in enumerate(reversed(values.values())):
        mean, error = own.mean(), 1.96 * own.std(ddof=1) / np.sqrt(len(own))
        left.barh(place, mean, xerr=error, color="C0" if place == len(values) - 1 else "0.75", height=0.65, capsize=3)
        left.text(mean + error + 0.015, place, f"{mean:.3f}", va="center", fontsize=9)
    labels = [NAMES.get(name, name) for name in reversed(values)]
    left.set(xlabel="test NDCG@10", yticks=range(len(values)), yticklabels=labels, xlim=(0, 1))
    left.set_title(f"make train: mean of {len(own)} test queries", fontsize=10)
    (first, a), (second, b) = list(values.items())[:2]
    right.scatter(b, a, s=7, alpha=0.5, color="C0", linewidths=0)
    right.plot([0, 1], [0, 1], color="0.4", linewidth=0.8)
    right.set(
        xlabel=NAMES.get(second, second), ylabel=NAMES.get(first, first), xlim=(0, 1), ylim=(0, 1), aspect="equal"
    )
    right.set_title(f"{NAMES.get(first, first)} is better on {(a > b).mean():.0%} of them", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the runs, runs/first")
    parser.add_argument("--out", type=Path, required=True, help="the png file to write")
    given = parser.parse_args(arguments)
    draw(read(given.folder)).savefig(given.out, dpi=110)


if __name__ == "__main__":
    main()

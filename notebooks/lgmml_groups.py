"""The picture of docs/methods/lgmml.md: the groups of the training queries of data=synthetic, and their metrics.

python notebooks/lgmml_groups.py --out docs/methods/lgmml.png
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from torchrank import LGMML
from torchrank.data import RankingSet, synthetic_splits
from torchrank.data.training import TrainingLists
from torchrank.rankers.lgmml.grouped import GroupScorer
from torchrank.report.plots.runs import blank
from torchrank.solvers.local_metrics.groups import nearest_centre, points_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]


class Groups(NamedTuple):
    """What the picture shows of a fit."""

    points: Array  # (Q, 2) training queries on their first two principal components
    centres: Array  # (C, 2)
    own: NDArray[np.int64]  # (Q,) nearest centre of each query
    variance: Array  # (2,) share of the variance of the points in each component
    slopes: Array  # (M, D) of all queries first, each of length 1; M = C + 1, or 1 for one group


def look_at(ranker: LGMML, train: RankingSet) -> Groups:
    """Groups and slopes M delta of a fitted ranker."""
    scorer = cast(GroupScorer, ranker.scorer)
    centres = scorer.centres.double()
    points = points_of(TrainingLists(train.to(train.x.device, ranker.transform)))
    own = nearest_centre(points, centres).numpy()
    middle = points.mean(0)
    _, values, axes = np.linalg.svd((points - middle).numpy(), full_matrices=False)
    shares = values[:2] ** 2 / (values**2).sum()
    slopes = scorer.slopes.double().numpy()
    lengths = np.linalg.norm(slopes, axis=1, keepdims=True)
    return Groups(
        (points - middle).numpy() @ axes[:2].T, (centres - middle).numpy() @ axes[:2].T, own, shares, slopes / lengths
    )


def most_different(slopes: Array, count: int) -> NDArray[np.int64]:
    """The features (count,) in which the groups differ most, by the deviation of their slopes; ascending.

    >>> most_different(np.array([[0.0, 0, 0], [1, 5, 2], [1, -5, 3]]), 2).tolist()
    [1, 2]
    """
    deviation = slopes[1:].std(0) if len(slopes) > 1 else np.abs(slopes[0])
    return np.sort(np.argsort(-deviation, kind="stable")[:count])


def draw(groups: Groups, count: int = 20) -> "Figure":
    """Left the queries, right the slopes of the features in which the groups differ most."""
    figure = blank(12, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.35])
    for group, (x, y) in enumerate(groups.centres):
        here = groups.points[groups.own == group]
        colour = f"C{group}"
        left.scatter(*here.T, s=7, color=colour, alpha=0.5, linewidths=0)
        left.scatter(x, y, s=190, color=colour, edgecolors="black", zorder=3)
        left.annotate(str(group + 1), (x, y), ha="center", va="center", color="white", weight="bold", zorder=4)
    left.set_title(f"{len(groups.points)} training queries, coloured by group")
    for label, share in zip((left.set_xlabel, left.set_ylabel), groups.variance, strict=True):
        label(f"principal component of the queries' points, {share:.0%}")
    features = most_different(groups.slopes, count)
    shown = groups.slopes[:, features]
    limit = np.abs(shown).max()
    image = right.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    sizes = np.bincount(groups.own, minlength=len(groups.centres))
    names = [f"group {group + 1} ({size})" for group, size in enumerate(sizes)]
    right.set_yticks(range(len(shown)), ["all queries", *names][: len(shown)])
    right.set_xticks(range(len(features)), [str(feature) for feature in features], rotation=90)
    right.set_xlabel(f"the {len(features)} features in which the groups differ most")
    right.set_title("slopes of the score: a row is a metric (and its number of queries)")
    right.axhline(0.5, color="black", linewidth=1.5)
    figure.colorbar(image, ax=right, label="slopes of length 1")
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the png file to write")
    parser.add_argument("--queries", type=int, default=2000, help="of the synthetic data, 60%% of them for training")
    parser.add_argument("--features", type=int, default=136)
    given = parser.parse_args(arguments)
    sets = synthetic_splits(num_queries=given.queries, num_features=given.features, mean_length=60.0)
    ranker = LGMML(given.features).fit(sets["train"], sets["val"])
    draw(look_at(ranker, sets["train"])).savefig(given.out, dpi=90)
    print(ranker.findings)


if __name__ == "__main__":
    main()

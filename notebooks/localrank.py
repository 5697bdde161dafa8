"""The code of localrank.ipynb: models of groups of lists, the clairvoyant choice among them, Figure 1, and figures.

Banerjee, Dubey, Machchhar & Chakrabarti 2009, section 4: how much could be gained if every query were ranked by its
best model, known from its labels, and how high does that model stand in the order of similarity? This is a diagnosis,
not a method. The first question is misleading: the largest of M noisy values grows with M even if all models are
equally good. So it is compared with a placebo: models of groups of the same sizes whose training queries are drawn at
random.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchrank.functional.ragged import by_column
from torchrank.report.plots.runs import blank
from torchrank.report.tables import NOTHING, Sheet
from torchrank.solvers.linear.many_models import JoinedLists, solve_many_linear

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDING = 1e-12  # measures that differ by less are equal


class Clairvoyance(NamedTuple):
    """One measure of the T test queries that have it, under M models."""

    known: NDArray[np.bool_]  # (all queries,) whether a query has the measure; T have it
    average: NDArray[np.float64]  # (T,) mean over the models
    similar: NDArray[np.float64]  # (T,) under the most similar model
    best: NDArray[np.float64]  # (T,) under the best model
    rank: NDArray[np.int64]  # (T,) rank of the first best model in the order of similarity, from 1
    chance_rank: NDArray[np.float64]  # (T,) expected rank in a random order: (M + 1) / (b + 1) for b best models
    chance_first: NDArray[np.float64]  # (T,) probability of rank 1 in a random order: b / M


def clairvoyant(values: ArrayLike, similarity: ArrayLike) -> Clairvoyance:
    """How good the most similar and the best model of each test query are.

    `values (T, M)` are a measure of every test query under every model, nan where a query has none; `similarity (T, M)`
    is that of the queries to the models. Of equally similar models the first counts. Short lists have few distinct
    values and therefore many best models: compare `rank` with `chance_rank`, not with M / 2.

    >>> found = clairvoyant([[0.2, 0.5, 0.5], [1.0, 0.0, 0.4]], [[0.9, 0.1, 0.3], [0.8, 0.2, 0.1]])
    >>> found.best.tolist(), found.similar.tolist(), found.rank.tolist(), found.chance_rank.round(2).tolist()
    ([0.5, 1.0], [0.2, 1.0], [2, 1], [1.33, 2.0])
    """
    measured, near = np.asarray(values, dtype=np.float64), np.asarray(similarity, dtype=np.float64)
    if measured.ndim != 2 or measured.shape != near.shape or measured.shape[1] == 0:
        raise ValueError(
            f"values and similarity must be (T, M) of test queries and models, got {measured.shape} and {near.shape}"
        )
    known: NDArray[np.bool_] = np.logical_not(np.isnan(measured).any(axis=1))
    measured, order = measured[known], np.argsort(-near[known], axis=1, kind="stable")
    best = measured.max(1)
    is_best = np.take_along_axis(measured, order, 1) >= best[:, None] - ROUNDING
    count, models = is_best.sum(1), measured.shape[1]
    return Clairvoyance(
        known,
        measured.mean(1),
        np.take_along_axis(measured, order[:, :1], 1)[:, 0],
        best,
        is_best.argmax(1) + 1,
        (models + 1) / (count + 1),
        count / models,
    )


def deal(labels: ArrayLike, seed: int = 0) -> NDArray[np.int64]:
    """A placebo for clusters: the same sizes, with members drawn at random. Queries without a cluster keep -1.

    >>> deal([0, 0, 1, -1, 1, 0], seed=3).tolist()
    [0, 1, 0, -1, 1, 0]
    """
    dealt = np.array(labels, dtype=np.int64)
    members = dealt >= 0
    dealt[members] = np.random.default_rng(seed).permutation(dealt[members])
    return dealt


def clairvoyant_sheet(
    found: Mapping[str, Clairvoyance],
    placebo: Mapping[str, Clairvoyance] | None = None,
    *,
    measure: str,
    reference: ArrayLike | None = None,
) -> Sheet:
    """A table with a row for each set of models, such as each number of clusters.

    `reference (T,)` is the measure under one model for all queries, nan where a query has none; with it the table shows
    the paired difference of the most similar model, ±its standard error.
    """
    placebo = placebo or {}
    header = ["models", "average model", "most similar", "its gain", "clairvoyant", "clairvoyant, placebo"]
    header += ["rank of the best", "by chance", "best is most similar", "by chance"]
    sheet = Sheet(f"{measure} of the most similar model, and of the best one", header)
    for name, each in found.items():
        control = f"{placebo[name].best.mean():.4f}" if name in placebo else NOTHING
        numbers = [f"{each.average.mean():.4f}", f"{each.similar.mean():.4f}", _gain(each, reference)]
        numbers += [f"{each.best.mean():.4f}", control, f"{each.rank.mean():.1f}", f"{each.chance_rank.mean():.1f}"]
        numbers += [f"{100 * (each.rank == 1).mean():.1f}%", f"{100 * each.chance_first.mean():.1f}%"]
        sheet.rows.append([name, *numbers])
    sheet.below = [
        "Clairvoyant: the best model of each test query, known from its labels. Placebo: models of random groups of "
        "training queries of the same sizes. A gain of the clairvoyant that the placebo has too comes from the largest "
        "of several noisy values: it is not evidence for kinds of queries."
    ]
    if reference is not None:
        mean = np.nanmean(np.asarray(reference, dtype=np.float64))
        sheet.below.append(f"Gain over one model for all ({mean:.4f}), ±standard error of the paired differences.")
    return sheet


def _gain(found: Clairvoyance, reference: ArrayLike | None) -> str:
    """Mean of the paired differences, ±its standard error."""
    if reference is None:
        return NOTHING
    level = np.asarray(reference, dtype=np.float64)
    if level.shape != found.known.shape:
        raise ValueError(f"reference must have the shape ({len(found.known)},) of the test queries, got {level.shape}")
    difference = found.similar - level[found.known]
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.nan
    return f"{difference.mean():+.4f} ±{error:.4f}"


# ---- models of groups ------------------------------------------------------------------------------------------------


def group_models(lists: JoinedLists, labels: Tensor, **options: Any) -> Tensor:
    """Weights `(C, D)` of one linear model for each group of lists; `labels (Q,)` are 0..C-1, or -1 for no group.

    `options` are those of `solve_many_linear`. A group in which no list has two different labels gets the model of all
    lists.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    >>> lists = JoinedLists(x, torch.tensor([1, 0, 0, 1]), torch.tensor([0, 2, 4]), torch.arange(2), torch.tensor(2.0))
    >>> group_models(lists, torch.tensor([0, 1]), l2=1.0).round(decimals=2)
    tensor([[ 0.1500, -0.1500],
            [-0.1500,  0.1500]], dtype=torch.float64)
    """
    count = int(labels.max()) + 1
    members = pad_sequence([(labels == group).nonzero()[:, 0] for group in range(count)], True, padding_value=-1)
    found = solve_many_linear(lists, count, members=members, **options)
    if bool((found.used > 0).all()):
        return found.weight
    whole = solve_many_linear(lists, 1, **options).weight
    return torch.where(found.used[:, None] > 0, found.weight, whole)


def measure_models(
    weight: Tensor, x: Tensor, labels: Tensor, offsets: Tensor, measure: Callable[..., Tensor], **options: Any
) -> Tensor:
    """A measure `(T, M)` of the lists of rows `x (N, D)` under each linear model of `weight (M, D)`.

    >>> from torchrank.functional import average_precision
    >>> x, labels, offsets = torch.eye(2), torch.tensor([1.0, 0.0]), torch.tensor([0, 2])
    >>> measure_models(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), x, labels, offsets, average_precision)
    tensor([[1.0000, 0.5000]])
    """
    return by_column(measure, x @ weight.to(x.dtype).T, labels, offsets, **options)


# ---- Figure 1 of the paper ------------------------------------------------------------------------------------------


PUBLISHED = {  # Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 1; its parameters are not published
    "AP": (1.000, 0.887), "pca": (0.177, 0.810), "jeffreys": (84.6, 48.0), "1 - K": (1.000, 0.917), "mean": (95.9, 1.1),
}  # fmt: skip


def figure1_sheet(precision: ArrayLike, distances: Mapping[str, ArrayLike]) -> Sheet:
    """A table of average precisions (worlds, 2) of the model of q1 on q2 and q3, and of distances (worlds, 2) of q1 to
    both.

    The last row counts the worlds in which q2 comes first: it is ranked better, or it is nearer.

    >>> sheet = figure1_sheet([[0.9, 0.4], [0.8, 0.5]], {"pca": [[0.1, 0.7], [0.2, 0.8]], "mean": [[90, 1], [80, 2]]})
    >>> sheet.rows
    [['q2', '0.850', '0.150', '85.0'], ['q3', '0.450', '0.750', '1.500'], ['q2 first', '2 of 2', '2 of 2', '0 of 2']]
    """
    columns = {"AP": np.asarray(precision), **{name: np.asarray(values) for name, values in distances.items()}}
    worlds = len(columns["AP"])
    for name, values in columns.items():
        if values.shape != (worlds, 2):
            raise ValueError(f"{name} must be ({worlds}, 2), a row for each world with q2 and q3, got {values.shape}")
    sheet = Sheet(f"The model of q1 on q2 and q3, and distances from q1, means of {worlds} worlds", ["", *columns])
    for place, query in enumerate(("q2", "q3")):
        sheet.rows.append([query, *(_two_digits(values[:, place].mean()) for values in columns.values())])
    first = [nearer(values if name == "AP" else -values) for name, values in columns.items()]
    sheet.rows.append(["q2 first", *(f"{count} of {worlds}" for count in first)])
    sheet.below = ["Last row: worlds in which q2 is ranked better than q3 (AP), or is nearer than q3 (distances)."]
    known = [f"{name} {q2:g} and {q3:g}" for name, (q2, q3) in PUBLISHED.items() if name in columns]
    sheet.below.append(f"Published for one world with other parameters, q2 and q3: {', '.join(known)}.")
    return sheet


def nearer(closeness: ArrayLike) -> int:
    """Number of the rows (worlds, 2) whose first value is the larger one.

    >>> nearer([[0.9, 0.4], [0.5, 0.5]])
    1
    """
    values = np.asarray(closeness)
    return int((values[:, 0] > values[:, 1]).sum())


def _two_digits(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


# ---- figures --------------------------------------------------------------------------------------------------------


STYLES = {"clairvoyant": ":", "placebo": "--"}  # of lines whose label contains the word


def plot_clouds(clouds: Mapping[str, tuple[ArrayLike, ArrayLike]], directions: ArrayLike) -> "Figure":
    """Clouds, by name the rows (n, D) and labels (n,), projected onto two `directions` (2, D): first all of them where
    they lie, then each around its own mean, which is all that a linear ranking sees. Relevant documents are filled."""
    along = np.asarray(directions, dtype=np.float64)
    images = {name: (np.asarray(x, dtype=np.float64) @ along.T, np.asarray(y) > 0) for name, (x, y) in clouds.items()}
    figure = blank(3.1 * (len(images) + 1), 3.2)
    place, *panels = figure.subplots(1, len(images) + 1)
    reach = 1.05 * max(float(np.abs(image - image.mean(0)).max()) for image, _ in images.values())
    for number, (axes, (name, (image, relevant))) in enumerate(zip(panels, images.items(), strict=True)):
        _scatter(place, image, relevant, f"C{number}", name, 6)
        _scatter(axes, image - image.mean(0), relevant, f"C{number}", name, 14)
        axes.set(title=f"{name}, around its mean", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    place.set(title="where they lie", xlabel="first direction", ylabel="second direction")
    place.legend(fontsize="small")
    return figure


def _scatter(axes: "Axes", image: NDArray, relevant: NDArray, colour: str, name: str, size: int) -> None:
    for chosen, face, label in ((~relevant, "none", None), (relevant, colour, name)):
        points = image[chosen]
        axes.scatter(points[:, 0], points[:, 1], size, facecolors=face, edgecolors=colour, linewidths=0.7, label=label)


def plot_ranks(found: Mapping[str, Clairvoyance], num_models: int) -> "Figure":
    """The share of test queries whose best model is among the r most similar ones, against r; dashed: in random order.

    With a single best model the dashed line would be the diagonal; several equally good ones raise it.
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

    It is 1 - (M - b choose r) / (M choose r), computed step by step: the r-th model is not one of the best with
    probability (M - b - r + 1) / (M - r + 1) if none of those before it is.

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
    """Lines (points,) by label against `numbers`, such as a measure against the number of clusters.

    Lines are dashed where their label contains "placebo", dotted where it contains "clairvoyant". `errors` are drawn as
    bands, `levels` as horizontal lines.
    """
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

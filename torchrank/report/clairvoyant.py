"""Clairvoyant choice among models: the best one of each test query, known by its labels. A diagnosis, no method.

Banerjee, Dubey, Machchhar & Chakrabarti 2009, section 4: how much could be gained if every query had its best model,
and how high is that model in the order of similarity? The first question misleads: the largest of M noisy values grows
with M even if all models are equally good. So a placebo stands beside it: the same of models whose training queries
were dealt out at random, to groups of the same sizes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchrank.report.tables import NOTHING, Sheet

ROUNDING = 1e-12  # measures that differ by less are equal


class Clairvoyance(NamedTuple):
    """One measure of the T test queries that have it, under M models."""

    known: NDArray[np.bool_]  # (all queries,) which have the measure: these T
    average: NDArray[np.float64]  # (T,) mean over the models
    similar: NDArray[np.float64]  # (T,) of the most similar model
    best: NDArray[np.float64]  # (T,) of the best model
    rank: NDArray[np.int64]  # (T,) of the first best model in the order of similarity, from 1
    chance_rank: NDArray[np.float64]  # (T,) expected rank in a random order: (M + 1) / (b + 1) for b best models
    chance_first: NDArray[np.float64]  # (T,) probability of rank 1 in a random order: b / M


def clairvoyant(values: ArrayLike, similarity: ArrayLike) -> Clairvoyance:
    """From a measure `values (T, M)` of every test query under every model, nan where a query has none, and the
    similarity (T, M) of the queries to the models. Equal similarities: the first model.

    Short lists have few different values and so many best models: compare `rank` with `chance_rank`, not with M / 2.

    >>> found = clairvoyant([[0.2, 0.5, 0.5], [1.0, 0.0, 0.4]], [[0.9, 0.1, 0.3], [0.8, 0.2, 0.1]])
    >>> found.best.tolist(), found.similar.tolist(), found.rank.tolist(), found.chance_rank.round(2).tolist()
    ([0.5, 1.0], [0.2, 1.0], [2, 1], [1.33, 2.0])
    """
    measured, near = np.asarray(values, dtype=np.float64), np.asarray(similarity, dtype=np.float64)
    if measured.ndim != 2 or measured.shape != near.shape or measured.shape[1] == 0:
        raise ValueError(
            f"values and similarity are (T, M) of test queries and models, got {measured.shape} and {near.shape}"
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
    """A placebo for clusters: the same sizes, the members drawn at random. Queries without a cluster (-1) stay so.

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
    """A row for each set of models, such as each number of clusters. `reference`: the measure (T,) of one model for
    all, nan where a query has none; then the most similar model has its paired difference ±standard error beside it."""
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
        "Clairvoyant: the best model of each test query, by its labels. Placebo: models of random groups of training "
        "queries of the same sizes. What the clairvoyant gains and the placebo gains too is the largest of several "
        "noisy values, no evidence for kinds of queries."
    ]
    if reference is not None:
        mean = np.nanmean(np.asarray(reference, dtype=np.float64))
        sheet.below.append(f"Gain over one model for all, {mean:.4f}, ±standard error of the paired differences.")
    return sheet


def _gain(found: Clairvoyance, reference: ArrayLike | None) -> str:
    """Mean of the differences and its standard error."""
    if reference is None:
        return NOTHING
    level = np.asarray(reference, dtype=np.float64)
    if level.shape != found.known.shape:
        raise ValueError(f"the reference has shape {level.shape}, the models have {len(found.known)} test queries")
    difference = found.similar - level[found.known]
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.nan
    return f"{difference.mean():+.4f} ±{error:.4f}"

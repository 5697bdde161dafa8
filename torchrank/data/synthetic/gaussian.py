"""Gaussian classes with covariances of their own: synthetic points for which one metric is not enough.

Each class has a centre and a random ellipsoid around it. The directions that tell a class from its neighbours differ
from class to class, so a metric for each class beats one for all. Further features are noise, the same for every class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torchrank.data.relevance import SameClass
from torchrank.data.sets import RankingSet
from torchrank.data.synthetic import check_least

CENTRE_SCALE, NOISE_SCALE = 2.2, 2.0  # standard deviations of the centres and of the noise features
SHORTEST, LONGEST = 0.3, 4.0  # range of the standard deviations along the axes of a class, log-uniform


def load_gaussian(
    *,
    centres: int = 10,
    informative: int = 10,
    noise: int = 10,
    train_per_class: int = 30,
    queries_per_class: int = 8,
    fold: int = 1,
    seed: int = 0,
) -> dict[str, RankingSet]:
    """Points of Gaussian classes; every query point ranks the training points. Label 1: same class.

    Args:
        centres: the number of classes.
        informative: features that tell the classes apart.
        noise: features that do not.
        train_per_class: training points of each class; they rank each other.
        queries_per_class: points of each class in val and in test.
        fold: the number of the world, 1, 2, ...: folds are independent repetitions.
        seed: draws the worlds.

    Example:
        >>> sets = load_gaussian(centres=4)
        >>> {name: len(part) for name, part in sets.items()}, sets["test"].num_features, sets["test"].lengths[0]
        ({'train': 120, 'val': 32, 'test': 32}, 20, np.int64(120))
    """
    check_least(
        centres=(centres, 2),
        informative=(informative, 1),
        noise=(noise, 0),
        train_per_class=(train_per_class, 2),
        queries_per_class=(queries_per_class, 1),
        fold=(fold, 1),
    )
    world = make_classes(centres, informative, noise, np.random.default_rng((seed, fold, 0)))
    sizes = {"train": train_per_class, "val": queries_per_class, "test": queries_per_class}
    drawn = {
        name: world.draw(size, np.random.default_rng((seed, fold, stream)))
        for stream, (name, size) in enumerate(sizes.items(), start=1)
    }
    return _sets(drawn, tuple(str(number) for number in range(centres)), fold)


@dataclass(frozen=True)
class GaussianClasses:
    """What the sets have in common: where the classes lie and how they spread."""

    centres: np.ndarray  # (classes, informative)
    factors: np.ndarray  # (classes, informative, informative): covariance = factor factor'
    noise: int  # further features

    def draw(self, per_class: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`per_class` float32 points of each class, in random order, and their classes."""
        count, informative = self.centres.shape
        classes = random.permutation(np.repeat(np.arange(count), per_class))
        x = random.standard_normal((len(classes), informative + self.noise))
        for number, (centre, factor) in enumerate(zip(self.centres, self.factors, strict=True)):
            rows = classes == number
            x[rows, :informative] = centre + np.einsum("nj,ij->ni", x[rows, :informative], factor)
        x[:, informative:] *= NOISE_SCALE
        return x.astype(np.float32), classes


def make_classes(count: int, informative: int, noise: int, random: np.random.Generator) -> GaussianClasses:
    """Draw centres from N(0, 2.2^2 I) and covariances Q diag(s^2) Q': Q uniform on the rotations, log s uniform.

    Example:
        >>> world = make_classes(3, 5, 2, np.random.default_rng(0))
        >>> world.centres.shape, world.factors.shape
        ((3, 5), (3, 5, 5))
    """
    centres = CENTRE_SCALE * random.standard_normal((count, informative))
    q, r = np.linalg.qr(random.standard_normal((count, informative, informative)))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]  # without the signs Q is not uniform
    axes = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), (count, informative)))
    return GaussianClasses(centres, q * axes[:, None, :], noise)


def _sets(
    drawn: dict[str, tuple[np.ndarray, np.ndarray]], class_names: tuple[str, ...], fold: int
) -> dict[str, RankingSet]:
    """The sets, with the training points as their corpus. Query ids number the points of all sets of a fold from 0."""
    corpus, corpus_classes = map(torch.from_numpy, drawn["train"])
    sets, first = {}, 0
    for name, (x, classes) in drawn.items():
        own = torch.arange(len(corpus)) if name == "train" else None
        sets[name] = RankingSet(
            corpus,
            SameClass(torch.from_numpy(classes), corpus_classes, class_names, own),
            queries=corpus if name == "train" else torch.from_numpy(x),
            query_ids=[f"{fold}-{number}" for number in range(first, first + len(x))],
            name=name,
        )
        first += len(x)
    return sets

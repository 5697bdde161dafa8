"""Synthetic data in the shape of MSLR-WEB30K: the default data set, so that everything runs without a download.

A document has hidden independent normal numbers, one per feature. Its relevance is the sum of a part that is the same
for all queries (a global linear ranker finds it), a part that depends on the type of the query (only a local method
finds it), the ease of the query, and noise; four thresholds turn it into a grade with MSLR's frequencies. The observed
features are monotone functions of the hidden numbers: heavy tails, counts, many zeros, all in different units. Some
features are noisy copies of others, some belong to the query alone and hint at its type, the rest mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from torchrank.data.relevance import Explicit
from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.data.synthetic import check_least
from torchrank.progress import bar

GRADES = (0.514, 0.325, 0.134, 0.019, 0.008)  # shares of the grades 0..4 in MSLR-WEB30K
SHARED, LOCAL, EASE, NOISE = 0.40, 0.25, 0.05, 0.30  # shares of the variance of relevance
MAX_LENGTH = 1251
CHUNK = 32_768  # rows made at a time


def synthetic_splits(
    num_queries: int = 2000,
    *,
    num_features: int = 136,
    mean_length: float = 120.0,
    num_types: int = 6,
    fold: int = 1,
    seed: int = 0,
) -> dict[str, RankingSet]:
    """Synthetic train, val and test sets (60, 20 and 20% of the queries), with lists of 1 to 1251 documents.

    The same seed gives the same bytes, whatever the number of threads.

    Args:
        num_queries: queries of all three sets; 31,531 have the shape of MSLR-WEB30K.
        num_features: features of a document, at least 8.
        mean_length: the mean number of documents of a list.
        num_types: types of queries, on which relevance depends.
        fold: the number of the world, 1, 2, ...: folds are independent repetitions.
        seed: draws the worlds.

    Returns:
        The sets "train", "val" and "test".

    Example:
        >>> {part: len(lists) for part, lists in synthetic_splits(20, mean_length=10.0).items()}
        {'train': 12, 'val': 4, 'test': 4}
    """
    if num_queries < 3:
        raise ValueError(f"data.num_queries must be >= 3, for train, val and test, got {num_queries}")
    check_least(num_types=(num_types, 1), fold=(fold, 1))
    world = make_world(num_features, num_types, np.random.default_rng((seed, 0, fold - 1)))
    val = max(1, round(0.2 * num_queries))
    sizes, sets, first = {"train": num_queries - 2 * val, "val": val, "test": val}, {}, 0
    for stream, (part, size) in enumerate(sizes.items(), start=1):
        random = np.random.default_rng((seed, stream, fold - 1))
        ids = [f"{fold}-{number}" for number in range(first, first + size)]
        sets[part] = draw(world, ids, mean_length, random, name=f"synthetic {part}")
        first += size
    return sets


@dataclass(frozen=True)
class World:
    """What the splits have in common. Columns are numbers of features; every feature has exactly one role."""

    num_features: int
    shared: np.ndarray  # columns that matter to every query
    shared_weights: np.ndarray  # (shared,)
    local: np.ndarray  # columns that matter in a way that depends on the type
    local_weights: np.ndarray  # (types, local)
    spread: np.ndarray  # (types, local) standard deviations: a type's own columns vary more, so its cloud shows it
    query_level: np.ndarray  # columns with one value per query
    centres: np.ndarray  # (types, query_level)
    copies: np.ndarray  # columns that repeat `sources` with noise
    sources: np.ndarray
    images: tuple[np.ndarray, ...]  # columns observed as heavy tails, as counts, as mostly zeros
    units: np.ndarray  # (num_features,)
    type_shares: np.ndarray  # (types,)


def make_world(num_features: int, num_types: int, random: np.random.Generator) -> World:
    """Draw the directions, the types and the observed scales of a world."""
    if num_features < 8 or num_types < 1:
        found = f"{num_features} and {num_types}"
        raise ValueError(f"data.num_features must be >= 8 and data.num_types >= 1, got {found}")
    sizes = np.cumsum([num_features // 5, num_features // 3, num_features // 12 + 1, num_features // 5])
    shared, local, query_level, copies, _ = np.split(random.permutation(num_features), sizes)
    own = random.random((num_types, len(local))) < 0.5
    own[:, 0] = True  # every type has a direction
    kinds = random.choice(4, num_features, p=(0.35, 0.25, 0.25, 0.15))
    return World(
        num_features,
        shared,
        _of_length(random.standard_normal(len(shared)), SHARED),
        local,
        _of_length(random.standard_normal(own.shape) * own, LOCAL),
        np.where(own, 1.5, 0.7).astype(np.float32),
        query_level,
        random.standard_normal((num_types, len(query_level))).astype(np.float32),
        copies,
        random.choice(np.concatenate((shared, local)), len(copies)),
        tuple(np.flatnonzero(kinds == kind) for kind in (1, 2, 3)),
        (10.0 ** random.uniform(-2, 3, num_features)).astype(np.float32),
        random.dirichlet(np.full(num_types, 4.0)),
    )


def draw(world: World, ids: list[str], mean_length: float, random: np.random.Generator, *, name: str) -> RankingSet:
    """A set with a list for each id; only the array of all rows and one chunk are in memory."""
    num_queries = len(ids)
    lengths = draw_lengths(num_queries, mean_length, random)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    types = random.choice(len(world.type_shares), num_queries, p=world.type_shares)
    ease = np.sqrt(EASE) * random.standard_normal(num_queries)
    own = random.standard_normal((num_queries, len(world.query_level)), dtype=np.float32)
    values = world.centres[types] + 0.5 * own
    thresholds = [NormalDist().inv_cdf(share) for share in np.cumsum(GRADES)[:-1]]
    x = np.empty((int(offsets[-1]), world.num_features), dtype=np.float32)
    labels = np.empty(len(x), dtype=np.float32)
    for first, last in bar(ranges(lengths, CHUNK, 0, num_queries), desc=f"make {name}"):
        chunk = slice(int(offsets[first]), int(offsets[last]))
        lists = np.repeat(np.arange(first, last), lengths[first:last])
        random.standard_normal(out=x[chunk], dtype=np.float32)
        noise = np.sqrt(NOISE) * random.standard_normal(len(lists))
        relevance = hidden_relevance(world, x[chunk], types[lists]) + ease[lists] + noise
        labels[chunk] = np.searchsorted(thresholds, relevance)
        observe(world, x[chunk], types[lists], values[lists])
    rows, grades, bounds = map(torch.from_numpy, (x, labels, offsets))
    return RankingSet(rows, Explicit(grades, bounds, num_grades=len(GRADES)), query_ids=ids, name=name)


def draw_lengths(num_queries: int, mean_length: float, random: np.random.Generator) -> np.ndarray:
    """Log-normal lengths, with about every fiftieth list short, clipped to 1..1251."""
    spread = 0.7
    lengths = np.exp(np.log(mean_length) - spread**2 / 2 + spread * random.standard_normal(num_queries))
    short = random.random(num_queries) < 0.02
    lengths = np.where(short, random.integers(1, 10, num_queries), lengths)
    return np.clip(np.rint(lengths), 1, MAX_LENGTH).astype(np.int64)


def hidden_relevance(world: World, rows: np.ndarray, types: np.ndarray) -> np.ndarray:
    """The part of relevance that the features explain. By einsum, since the sums of BLAS depend on its threads."""
    shared = np.einsum("nd,d->n", rows[:, world.shared], world.shared_weights)
    found: np.ndarray = shared + np.einsum("nd,nd->n", rows[:, world.local], world.local_weights[types])
    return found


def observe(world: World, rows: np.ndarray, types: np.ndarray, query_values: np.ndarray) -> None:
    """Turn the hidden numbers into observed features, in place."""
    rows[:, world.copies] = 0.8 * rows[:, world.sources] + 0.6 * rows[:, world.copies]
    rows[:, world.local] *= world.spread[types]
    rows[:, world.query_level] = query_values
    heavy, counts, zeros = world.images
    rows[:, heavy] = np.exp(rows[:, heavy])
    rows[:, counts] = np.floor(np.exp(1.0 + rows[:, counts]))
    rows[:, zeros] = np.maximum(rows[:, zeros], 0.0)
    rows *= world.units


def _of_length(weights: np.ndarray, variance: float) -> np.ndarray:
    """Weights scaled so that their sum over independent normal numbers has this variance."""
    scaled: np.ndarray = weights * np.sqrt(variance / (weights**2).sum(-1, keepdims=True))
    return scaled

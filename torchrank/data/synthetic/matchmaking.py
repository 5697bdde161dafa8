"""Synthetic people who rank the candidates proposed to them: query vectors and candidates are different people.

A stand-in for the matchmaking data of McFee & Lanckriet (ICML 2010): a person is a vector of traits, every query has a
short list of candidates of its own, and few of them match. A hidden metric decides who matches: the distance of query
and candidate in a few mixtures of the informative traits, plus noise. All other traits are noise.
"""

from __future__ import annotations

import numpy as np
import torch

from torchrank.data.sets import RankingSet
from torchrank.data.synthetic import check_least
from torchrank.data.synthetic.music import correlated_noise

MATCHED = 0.3  # share of the candidates of a list that match
BLUR = 0.5  # noise of the squared distances, in their own standard deviations
RANK = 4  # mixtures of traits that matter


def load_matchmaking(
    *, queries: int = 300, candidates: int = 20, informative: int = 12, noise: int = 24, fold: int = 1, seed: int = 0
) -> dict[str, RankingSet]:
    """People as queries, each with a list of candidates, of whom 3 of 10 match (label 1).

    Nobody is in two sets, and no candidate is a query.

    Args:
        queries: queries in train and in test; val has half as many.
        candidates: the mean length of a list; lists are between half and one and a half times as long.
        informative: traits that matter.
        noise: traits that do not.
        fold: the number of the sample of people, 1, 2, ...
        seed: draws the people and the hidden metric.

    Example:
        >>> sets = load_matchmaking(queries=10)
        >>> {name: len(part) for name, part in sets.items()}, sets["val"].num_features, sets["val"].has_queries
        ({'train': 10, 'val': 5, 'test': 10}, 36, True)
    """
    check_least(
        queries=(queries, 1), candidates=(candidates, 2), informative=(informative, 1), noise=(noise, 0), fold=(fold, 1)
    )
    hidden = hidden_mixtures(informative, np.random.default_rng((seed, 0)))
    sizes = {"train": queries, "val": max(1, queries // 2), "test": queries}
    return {
        name: _lists(size, candidates, hidden, noise, np.random.default_rng((seed, fold, stream)), name, fold)
        for stream, (name, size) in enumerate(sizes.items(), start=1)
    }


def hidden_mixtures(informative: int, random: np.random.Generator) -> np.ndarray:
    """L (4, informative) of the metric L'L, with rows of decreasing weight.

    Example:
        >>> hidden_mixtures(6, np.random.default_rng(0)).shape
        (4, 6)
    """
    weights = 0.7 ** np.arange(min(RANK, informative))
    return weights[:, None] * random.standard_normal((len(weights), informative)) / float(np.sqrt(informative))


def _lists(
    size: int, candidates: int, hidden: np.ndarray, noise: int, random: np.random.Generator, name: str, fold: int
) -> RankingSet:
    lengths = random.integers(max(2, candidates // 2), candidates + candidates // 2 + 1, size)
    lists, count = np.repeat(np.arange(size), lengths), int(lengths.sum())
    traits = random.standard_normal((size + count, hidden.shape[1]))
    people = np.hstack([traits, correlated_noise(len(traits), noise, random)]).astype(np.float32)
    distances = (((traits[lists] - traits[size:]) @ hidden.T) ** 2).sum(1)
    distances += BLUR * distances.std() * random.standard_normal(count)
    order = np.lexsort((distances, lists))
    place = np.arange(count) - (np.cumsum(lengths) - lengths)[lists]
    labels = np.zeros(count, dtype=np.float32)
    labels[order] = place < np.maximum(1, MATCHED * lengths).astype(np.int64)[lists]
    return RankingSet(
        torch.from_numpy(people[size:]),
        torch.from_numpy(labels),
        torch.from_numpy(np.concatenate(([0], np.cumsum(lengths)))),
        queries=torch.from_numpy(people[:size]),
        query_ids=[f"{fold}-{name}-{number}" for number in range(size)],
        name=name,
    )

"""Three synthetic queries whose document clouds show what a similarity of queries should see.

The synthetic data of Figure 1 of Banerjee, Dubey, Machchhar & Chakrabarti 2009. All clouds are Gaussian, and the
relevant documents of each lie further along its own first direction. The cloud of q2 is that of q1, moved far away: a
model of q1 ranks it well. The cloud of q3 stays near the mean of q1 but spreads in other directions: the model of q1
fails. Directions tell the two apart; means, and divergences that depend on them, choose the wrong one. The paper gives
no parameters; these are chosen to realise its design. So the data shows an invariance, not that it is useful.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchrank.data.relevance import Explicit
from torchrank.data.sets import RankingSet
from torchrank.data.synthetic import check_least

WIDEST, NARROWEST = 3.0, 0.3  # standard deviations along the first and the last direction, evenly spaced between
FAR, NEAR = 30.0, 0.3  # standard deviation of the means of q2 and of q3 around that of q1, in every feature
TURN = 75.0  # degrees between the first directions of q1 and q3
SHIFT = 6.0  # of the relevant documents, along the first direction
RELEVANT = 0.3  # share of the documents


def load_clouds(*, num_features: int = 10, documents: int = 200, fold: int = 1, seed: int = 0) -> dict[str, RankingSet]:
    """Train is q1, val is q1 again (other documents), test is q2 and q3; 3 of 10 documents are relevant (label 1).

    A linear model ranks a cloud the same wherever it lies. Use transform=none, since transforms by list change the
    directions.

    Args:
        num_features: features of a document.
        documents: documents of each query.
        fold: the number of the world, 1, 2, ...: folds are independent repetitions.
        seed: draws the worlds.

    Example:
        >>> {name: part.query_ids for name, part in load_clouds().items()}
        {'train': ['q1'], 'val': ['q1 again'], 'test': ['q2', 'q3']}
    """
    check_least(num_features=(num_features, 2), documents=(documents, 2), fold=(fold, 1))
    means, bases = make_clouds(num_features, np.random.default_rng((seed, fold, 0)))
    parts = {"train": [("q1", 0)], "val": [("q1 again", 0)], "test": [("q2", 1), ("q3", 2)]}
    sets = {}
    for stream, (name, queries) in enumerate(parts.items(), start=1):
        random = np.random.default_rng((seed, fold, stream))
        drawn = [draw_cloud(means[place], bases[place], documents, random) for _, place in queries]
        sets[name] = _lists(drawn, [query for query, _ in queries], name)
    return sets


def make_clouds(num_features: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Means (3, D) of the clouds of q1, q2 and q3, and their directions as columns (3, D, D), widest first.

    Example:
        >>> means, bases = make_clouds(5, np.random.default_rng(0))
        >>> bool((bases[0] == bases[1]).all()), round(float(np.degrees(np.arccos(bases[0][:, 0] @ bases[2][:, 0]))), 6)
        (True, 75.0)
    """
    own = np.linalg.qr(random.standard_normal((num_features, num_features)))[0]
    aside = random.standard_normal(num_features)
    aside -= (aside @ own[:, 0]) * own[:, 0]
    first = np.cos(np.radians(TURN)) * own[:, 0] + np.sin(np.radians(TURN)) * aside / np.linalg.norm(aside)
    others = random.standard_normal((num_features, num_features - 1))
    turned = np.linalg.qr(np.column_stack([first, others]))[0]
    turned[:, 0] = first  # qr may change its sign
    moves = np.array([0.0, FAR, NEAR])[:, None] * random.standard_normal((3, num_features))
    return moves, np.stack([own, own, turned])


def draw_cloud(
    mean: np.ndarray, basis: np.ndarray, documents: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, D) of a cloud and their labels (n,), both float32, in random order.

    Example:
        >>> x, labels = draw_cloud(np.zeros(3), np.eye(3), 20, np.random.default_rng(0))
        >>> x.shape, labels.sum()
        ((20, 3), np.float32(6.0))
    """
    labels = random.permutation(np.arange(documents) < max(1, round(RELEVANT * documents))).astype(np.float32)
    along = random.standard_normal((documents, len(mean))) * np.linspace(WIDEST, NARROWEST, len(mean))
    along[:, 0] += SHIFT * labels
    rows = mean + np.einsum("np,dp->nd", along, basis)  # the sums of BLAS depend on its threads
    return rows.astype(np.float32), labels


def _lists(drawn: Sequence[tuple[np.ndarray, np.ndarray]], query_ids: list[str], name: str) -> RankingSet:
    x, labels = (torch.from_numpy(np.concatenate(part)) for part in zip(*drawn, strict=True))
    offsets = torch.arange(len(drawn) + 1) * (len(x) // len(drawn))
    return RankingSet(x, Explicit(labels, offsets, num_grades=2), query_ids=query_ids, name=name)

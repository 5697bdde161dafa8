"""The oracles against all interleavings of the two classes, random rankings and each other."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch

import torchrank.functional as F

MEASURES = ["auc", "precision", "map", "mrr", "ndcg"]
CUTS = [("auc", None), ("map", None), ("mrr", None), ("ndcg", None)]
CUTS += [(measure, k) for measure in ("precision", "ndcg") for k in (1, 2, 3, 4, 5, 7, 10, 30)]


def score_of(hits, measure, k, discount="letor"):
    """Value of a ranking given as 0/1 in rank order, from the definition of the measure."""
    hits, relevant = list(hits), sum(hits)
    places = [rank for rank, hit in enumerate(hits, 1) if hit]
    if measure == "auc":
        right = sum(not later for rank in places for later in hits[rank:])
        return right / (relevant * (len(hits) - relevant))
    if measure == "precision":
        return sum(hits[:k]) / min(k, relevant)
    if measure == "map":
        return sum(sum(hits[:rank]) / rank for rank in places) / relevant
    if measure == "mrr":
        return 1 / places[0]
    k = len(hits) if k is None else k
    weight = {"letor": lambda rank: 1 / math.log2(max(rank, 2)), "log2p1": lambda rank: 1 / math.log2(rank + 1)}[
        discount
    ]
    ideal = sum(weight(rank) for rank in range(1, min(k, relevant) + 1))
    return sum(weight(rank) for rank in places if rank <= k) / ideal


@functools.cache
def rankings(num_relevant, num_irrelevant, measure, k, discount):
    """All interleavings: which pairs (i, j) are the wrong way round, `(Y, P, N)`, and the losses `(Y,)`."""
    wrong, losses = [], []
    size = num_relevant + num_irrelevant
    for places in itertools.combinations(range(size), num_relevant):
        others = [place for place in range(size) if place not in places]
        wrong.append([[other < place for other in others] for place in places])
        losses.append(1 - score_of([place in places for place in range(size)], measure, k, discount))
    return np.array(wrong, dtype=float), np.array(losses)


def largest(scores, relevant, measure, k, discount="letor"):
    """max over all rankings of loss - 2/(P N) sum of s_i - s_j over the wrong pairs."""
    best, others = -np.sort(-scores[relevant]), -np.sort(-scores[~relevant])
    if len(best) == 0 or len(others) == 0:
        return 0.0
    wrong, losses = rankings(len(best), len(others), measure, k, discount)
    gaps = best[:, None] - others
    return (losses - 2 * (wrong * gaps).sum((1, 2)) / gaps.size).max()


def draw_lists(seed, lists=40, most=5):
    """Lists of at most 5 + 5 entries, some with ties or all scores equal, some of one class, some empty."""
    draw = np.random.default_rng(seed)
    parts = []
    for _ in range(lists):
        labels = draw.permutation([1] * draw.integers(0, most + 1) + [0] * draw.integers(0, most + 1))
        scores = draw.normal(size=len(labels)) * draw.choice([0, 0.03, 0.3, 1, 10])
        if draw.random() < 0.4:
            scores = scores.round(1)
        parts.append((scores + draw.normal(), labels))
    offsets = np.concatenate([[0], np.cumsum([len(labels) for _, labels in parts])])
    scores, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    return torch.tensor(scores), torch.tensor(labels, dtype=torch.int64), torch.tensor(offsets)


def split(offsets, *values):
    return [tuple(np.asarray(value)[a:b] for value in values) for a, b in itertools.pairwise(offsets.tolist())]


def check_ranking(scores, relevant, coefficients, loss, measure, k, discount="letor"):
    """The coefficients are those of a ranking, and the loss is the loss of that ranking."""
    best, others = coefficients[relevant], coefficients[~relevant]
    if len(best) == 0 or len(others) == 0:
        assert not coefficients.any() and loss == 0
        return
    pairs = len(best) * len(others)
    b = best[np.argsort(-scores[relevant], kind="stable")] * pairs / 2
    inverted = -others[np.argsort(-scores[~relevant], kind="stable")] * pairs / 2
    counts = np.sort(b).round().astype(int)
    np.testing.assert_allclose(np.sort(b), counts, atol=1e-9)
    assert counts.min() >= 0 and counts.max() <= len(others)
    np.testing.assert_allclose(-np.sort(-inverted), [(counts >= j).sum() for j in range(1, len(others) + 1)], atol=1e-9)
    places = np.arange(len(counts)) + counts
    hits = np.isin(np.arange(len(relevant)), places)
    assert loss == pytest.approx(1 - score_of(hits, measure, k, discount), abs=1e-12)


@pytest.mark.parametrize(("measure", "k"), CUTS)
@pytest.mark.parametrize("seed", range(8))
def test_the_value_is_that_of_all_interleavings(measure, k, seed):
    scores, labels, offsets = draw_lists(seed)
    for given in ({}, {"max_length": 12}):
        coefficients, loss = F.most_violated(scores, labels, offsets, measure=measure, k=k, **given)
        hinge = F.structured_hinge(scores, labels, offsets, measure=measure, k=k, **given)
        parts = split(offsets, scores, labels == 1, coefficients)
        for (s, relevant, c), lost, value in zip(parts, loss.tolist(), hinge.tolist(), strict=True):
            expected = largest(s, relevant, measure, k)
            assert lost - (c * (s - s.mean() if len(s) else s)).sum() == pytest.approx(expected, abs=1e-12)
            assert value == pytest.approx(expected, abs=1e-12)
            check_ranking(s, relevant, c, lost, measure, k)

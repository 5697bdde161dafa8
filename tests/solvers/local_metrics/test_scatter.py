"""Sums over lists that hold a whole corpus, and over lists by metric, against loops over all pairs."""

import numpy as np
import pytest
import torch

from torchrank import RankingSet, TrainingLists
from torchrank.data import SameClass
from torchrank.solvers.local_metrics.scatter import high_and_low, holds_corpus, pair_sums


def points(seed=0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    corpus, classes = torch.randn(17, 3, generator=generator, dtype=torch.float64) + shift, torch.arange(17) % 3
    relevance = SameClass(classes, classes, tuple("abc"), own=torch.arange(17))
    return RankingSet(corpus, relevance, queries=corpus)


def judged(seed=0):
    """Lists of most rows of a corpus, some of them twice, with three grades; one list has one grade only."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, 9, (60,), generator=generator)
    labels = torch.randint(0, 4, (60,), generator=generator).double()
    labels[:10] = 1.0
    corpus = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    return RankingSet(corpus, labels, torch.tensor([0, 10, 25, 37, 60]), index=index)


def by_pairs(lists, share, high):
    """Both scatters, the numbers of pairs, the means and the number of lists, from all pairs of documents."""
    batch, width = lists[:].flat(), lists.num_features
    similar, dissimilar, pairs = np.zeros((width, width)), np.zeros((width, width)), np.zeros(2)
    means, count = np.zeros((2, width)), 0.0
    masks = high_and_low(batch.labels, batch.offsets, high)
    for q, times in enumerate(share.tolist()):
        own = slice(int(batch.offsets[q]), int(batch.offsets[q + 1]))
        up, down = (batch.x[own][mask[own]].numpy() for mask in masks)
        if not len(up) or not len(down):
            continue
        for i, a in enumerate(up):
            for b in up[:i]:
                similar += times * np.outer(a - b, a - b)
            for b in down:
                dissimilar += times * np.outer(a - b, a - b)
        pairs += times * np.array([len(up) * (len(up) - 1) / 2, len(up) * len(down)])
        means += times * np.stack((up.mean(0), down.mean(0)))
        count += times
    return similar, dissimilar, pairs, means, count


@pytest.mark.parametrize("budget", [20, 1000])
@pytest.mark.parametrize("high", ["half", "max", "positive"])
@pytest.mark.parametrize("made", [points, judged])
def test_sums_over_a_whole_corpus_are_those_of_all_pairs(made, high, budget):
    lists = TrainingLists(made(), budget=budget)
    assert holds_corpus(lists)
    generator = torch.Generator().manual_seed(1)
    shares = [torch.randint(0, 3, (c, len(lists)), generator=generator).double() for c in (2, 5)]
    for share, found in zip(shares, pair_sums(lists, shares, high), strict=True):
        for row in range(len(share)):
            for mine, theirs in zip(found, by_pairs(lists.lists, share[row], high), strict=True):
                np.testing.assert_allclose(mine[row].numpy(), theirs, rtol=1e-10, atol=1e-10)


def test_far_from_the_origin():
    near, far = (pair_sums(TrainingLists(points(shift=shift)), [torch.ones(1, 17).double()], "half")[0]
                 for shift in (0.0, 1e5))  # fmt: skip
    torch.testing.assert_close(near[0], far[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(near[1], far[1], rtol=1e-8, atol=1e-8)


def test_short_lists_of_a_large_corpus_are_read_entry_by_entry():
    lists = RankingSet(torch.randn(40, 3), torch.arange(6.0) % 2, torch.tensor([0, 3, 6]), index=torch.arange(6))
    assert not holds_corpus(TrainingLists(lists)) and not holds_corpus(TrainingLists(judged().subset([])))
    assert not holds_corpus(TrainingLists(RankingSet(torch.eye(3), torch.ones(3), torch.tensor([0, 3]))))

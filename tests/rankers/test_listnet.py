"""ListNet's certified fit: its minimum, and how fast it gets there whatever the scales of the features are."""

import numpy as np
import pytest
import torch

from torchrank import ListNet, RankingSet, SparseRows
from torchrank.data import synthetic_splits
from torchrank.functional import listnet_loss


def rounds_of(ranker, lists):
    numbers = []
    take = ranker.take_round
    ranker.take_round = lambda number: numbers.append(number) or take(number)
    ranker.fit(lists)
    return len(numbers)


@pytest.mark.parametrize("transform", [None, "standard", "quantile"])
def test_raw_features_are_proved_in_few_rounds(transform):
    lists = synthetic_splits(num_queries=120, mean_length=15.0)["train"]
    ranker = ListNet(lists.num_features, transform=transform)
    assert rounds_of(ranker, lists) <= 40 and ranker.certificate.proved


def test_scales_and_correlations_do_not_change_the_minimum():
    random = np.random.default_rng(0)
    x = torch.tensor(random.normal(size=(200, 4)) @ random.normal(size=(4, 4)) * [1e-2, 1, 1e2, 1])
    lists = RankingSet(x, random.integers(3, size=200), group=[10] * 20)
    ranker = ListNet(4, transform=None, l2=1e-3)
    assert rounds_of(ranker, lists) <= 40 and ranker.certificate.proved
    weight = ranker.scorer.weight.detach().clone().requires_grad_()
    loss = listnet_loss(x.float().double() @ weight, lists.labels, lists.offsets).mean()
    (loss + 5e-4 * weight.square().sum()).backward()
    assert weight.grad.abs().max() < 2e-6


def test_sparse_rows_have_the_same_minimum():
    random = np.random.default_rng(1)
    x = torch.tensor(random.normal(size=(60, 3)) * (random.random((60, 3)) > 0.5)).float()
    row, column = x.nonzero(as_tuple=True)
    bounds = torch.cat((torch.zeros(1, dtype=torch.int64), (x != 0).sum(1).cumsum(0)))
    sparse = SparseRows(x[row, column], column, bounds, 3)
    labels = random.integers(3, size=60)
    found = [ListNet(3, l2=0.1, transform=None).fit(RankingSet(each, labels, group=[6] * 10)) for each in (x, sparse)]
    assert torch.allclose(found[0].scorer.weight, found[1].scorer.weight, atol=1e-4)

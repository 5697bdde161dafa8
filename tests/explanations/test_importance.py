"""Permutation importance against a plain loop over features, repeats and lists."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.laws.rankers import queries
from tests.rankers.small import FEATURES, lists
from torchrank import GBDTRanker, LambdaRank, ListNet, MetricBaseline, RankingSet, SparseRows, permutation_importance
from torchrank.functional import ndcg


@pytest.fixture(scope="module")
def ranker():
    return ListNet(FEATURES, transform="query_minmax").fit(lists(0))


def plain(ranker, some, repeats, seed, k=10):
    """(repeats, D) differences of NDCG, list by list."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(some.x), generator=generator).numpy() for _ in range(repeats)]

    def mean(x):
        found, bounds = [], some.offsets.tolist()
        for first, last in pairwise(bounds):
            scores = ranker(torch.from_numpy(x[first:last]), torch.tensor([0, last - first]))
            found.append(float(ndcg(scores, some.labels[first:last], torch.tensor([0, last - first]), k=k)))
        return np.nanmean(found)

    x = some.x.numpy()
    losses = np.zeros((repeats, FEATURES))
    for repeat, order in enumerate(orders):
        for feature in range(FEATURES):
            changed = x.copy()
            for row, source in enumerate(order):
                changed[row, feature] = x[source, feature]
            losses[repeat, feature] = mean(x) - mean(changed)
    return losses


@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_the_loss_of_a_plain_loop(ranker, seed):
    some = lists(1)
    found, expected = permutation_importance(ranker, some, repeats=3, seed=seed), plain(ranker, some, 3, seed)
    np.testing.assert_allclose(found.values, expected.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.errors, expected.std(0, ddof=1) / 3**0.5, atol=1e-6)
    assert found.names[found.order()[0]] == "f2"  # the first of the two that make the labels


def test_it_changes_nothing(ranker):
    some, x = lists(1), lists(1).x
    again = permutation_importance(ranker.train(), some, repeats=2)
    assert torch.equal(some.x, x) and ranker.training
    assert torch.equal(again.values, permutation_importance(ranker.eval(), some, repeats=2).values)
    assert not ranker.training


def test_features_that_a_model_ignores_are_worth_nothing():
    some = lists(1)
    x = some.x.clone()
    x[:, 2] = 7.0
    ranker = ListNet(FEATURES, transform=None).fit(lists(0))
    with torch.no_grad():
        ranker.scorer.weight[4] = 0
    found = permutation_importance(ranker, RankingSet(x, some.labels, some.offsets), repeats=1)
    assert found.values[2] == 0 and found.values[4] == 0 and found.errors.isnan().all()


@pytest.mark.parametrize("make", [lambda: LambdaRank(FEATURES, transform="l2"), lambda: GBDTRanker(FEATURES, rounds=5)])
def test_sparse_rows_give_the_values_of_dense_ones(make):
    some = lists(1)
    x = some.x * (some.x > 0)
    dense = RankingSet(x, some.labels, some.offsets)
    sparse = RankingSet(SparseRows.from_dense(x), some.labels, some.offsets)
    ranker = make().fit(dense, epochs=3)
    found, expected = (permutation_importance(ranker, each, repeats=2) for each in (sparse, dense))
    torch.testing.assert_close(found.values, expected.values, atol=1e-6, rtol=0)


def test_errors_grow_and_corpora_are_shuffled():
    some = queries("test")
    ranker = MetricBaseline(5, transform=None).fit(some)
    gain = permutation_importance(ranker, some, "map", repeats=4)
    loss = permutation_importance(ranker, some, "domination_error", repeats=4)
    assert len(gain.values) == 5 and gain.values.abs().max() > 0 and loss.values.abs().max() > 0


def test_what_cannot_be_measured_is_refused(ranker):
    some = lists(1)
    none = RankingSet(some.x, torch.zeros_like(some.labels), some.offsets, name="empty")
    with pytest.raises(ValueError, match="no list of the set 'empty' has a value of ndcg@10"):
        permutation_importance(ranker, none)
    with pytest.raises(ValueError, match="repeats must be >= 1"):
        permutation_importance(ranker, some, repeats=0)
    with pytest.raises(ValueError, match="measures a RankingSet, got Tensor"):
        permutation_importance(ranker, some.x)
    with pytest.raises(ValueError, match="was made for 6 features, but these rows have 5"):
        permutation_importance(ranker, RankingSet(some.x[:, :5], some.labels, some.offsets))


def test_results_print_themselves(ranker, tmp_path):
    found = permutation_importance(ranker, lists(1), repeats=2)
    first = json.loads(json.dumps(found.to_dict()))["features"][0]
    assert first["name"] == "f2" and first["importance"] == pytest.approx(float(found.values.max()))
    assert "f2" in str(found).splitlines()[4] and "ndcg@10" in str(found)
    found.plot(tmp_path / "bars.png", top=3)
    assert (tmp_path / "bars.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(ValueError, match=r"use one of the suffixes .*\.png"):
        found.plot(tmp_path / "bars.nonsense")

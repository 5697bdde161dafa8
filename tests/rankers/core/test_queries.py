"""Facts about test queries: counted again by loops, groups by the rankers' own public functions."""

import numpy as np
import pytest
import torch

from torchrank import LGMML, ListNet, LocalRank, RankingSet
from torchrank.data import synthetic_splits
from torchrank.rankers.core.queries import query_facts


@pytest.fixture(scope="module")
def sets():
    return synthetic_splits(num_queries=80, num_features=8, num_types=2, seed=3)


def counted(lists, threshold):
    pieces = lists.labels.split(lists.lengths.tolist())
    return [len(piece) for piece in pieces], [int((piece >= threshold).sum()) for piece in pieces]


@pytest.mark.parametrize(("convention", "threshold"), [("default", 1), ("letor", 3)])
def test_lengths_and_relevant_documents_of_each_list(sets, convention, threshold):
    test = sets["test"].subset(range(len(sets["test"])))
    test.relevant_from = 3  # what the publisher of the data counts as relevant
    facts = query_facts(ListNet(8).fit(sets["train"], epochs=1), test, convention)
    assert (facts["length"].tolist(), facts["relevant"].tolist()) == counted(test, threshold)
    assert facts["query"].tolist() == [str(name) for name in test.query_ids] and "group" not in facts


def test_lists_without_documents_and_without_ids():
    x, labels, offsets = torch.zeros(2, 3), torch.tensor([1.0, 0.0]), torch.tensor([0, 0, 2, 2])
    facts = query_facts(ListNet(3), RankingSet(x, labels, offsets))
    assert [facts[name].tolist() for name in ("query", "length", "relevant")] == [["0", "1", "2"], [0, 2, 0], [0, 1, 0]]


def test_groups_of_metrics_are_the_nearest_centres(sets):
    ranker = LGMML(8, num_groups=2, alpha=20.0, gate="hard", kappa=10.0, t=0.5, ridge=0.1, rounds=1)
    ranker.fit(sets["train"], sets["val"])
    test = sets["test"]
    means = torch.stack([rows.double().mean(0) for rows in ranker.transform(test.x, test.offsets).split(
        test.lengths.tolist())])  # fmt: skip
    nearest = torch.cdist(means, ranker.scorer.centres.double()).argmin(1)
    assert query_facts(ranker, test)["group"].tolist() == nearest.tolist() and set(nearest.tolist()) == {0, 1}


def test_groups_of_local_models_are_those_of_the_most_similar_list(sets):
    ranker = LocalRank(8, clusters=2, min_lists=2, transform=None).fit(sets["train"])
    test = sets["test"]
    expected = ranker.nearest(test.x, test.offsets)["cluster"]
    assert np.array_equal(query_facts(ranker, test)["group"], expected.numpy())


def test_one_model_for_all_queries_has_no_groups(sets):
    one = LGMML(8, num_groups=1, alpha=0.0, kappa=10.0, t=0.5, ridge=0.1, rounds=1).fit(sets["train"], sets["val"])
    assert not one.has_groups and not ListNet(8).has_groups and not LocalRank(8).has_groups

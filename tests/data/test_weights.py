"""Weights and positions of entries go wherever their labels go; what cannot be one is refused with its place."""

import numpy as np
import pytest
import torch

from torchrank import DataError, RankingSet, TrainingLists, propensity_weights
from torchrank.data import BatchLoader, BudgetSampler, SameClass, clean, make_batch
from torchrank.data.cache import open_folder, save_folder
from torchrank.solvers.narrowing import narrow


def some_lists(lengths=(3, 0, 2, 4, 1), shared=False):
    """A set whose weights are 10 times, and whose positions are 2 times, what column 0 says."""
    count = sum(lengths)
    x = torch.stack((torch.arange(count), torch.arange(count) % 3), 1).float()
    index = torch.arange(count) if shared else None
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    weights, positions = 10 * x[:, 0].double(), 2 * x[:, 0].long()
    ids = [f"q{place}" for place in range(len(lengths))]
    return RankingSet(
        x, x[:, 1], offsets, index=index, query_ids=ids, weights=weights, positions=positions, name="some"
    )


def same(lists):
    """Whether the weights and positions of a set or batch are those of its rows."""
    rows = lists.x[:, 0] if lists.index is None else lists.x[lists.index, 0]
    return torch.equal(lists.weights, 10 * rows.double()) and torch.equal(lists.positions, 2 * rows.long())


@pytest.mark.parametrize("shared", [False, True])
def test_they_go_wherever_the_labels_go(shared):
    lists = some_lists(shared=shared)
    some = torch.tensor([3, 0, 2])
    for part in (lists[:], lists[1:3], lists[some], lists[1], lists[:0], lists[:].take(some)[0], lists[:].to("cpu")):
        assert same(part) and part.weights.shape == part.labels.shape
    assert same(lists[:].flat())
    for made in (lists.subset(some), lists.to("cpu"), lists.subset([])):
        assert same(made) and same(made[:])
    assert same(lists.streamed("cpu")[some])
    kept = torch.arange(len(lists.labels)) % 2 == 0
    assert same(narrow(lists[:], kept))
    cleaned, report = clean(lists)
    assert report.queries_removed and same(cleaned)


def test_they_go_through_samplers_and_training_lists():
    lists = some_lists()
    for shuffle in (True, False):
        sampler = BudgetSampler(lists.lengths, budget=4, shuffle=shuffle, seed=1)
        assert all(same(batch) for batch in BatchLoader(lists, sampler))
    train = TrainingLists(lists, budget=3)
    assert same(train.gathered()) and same(train.subset(torch.tensor([2, 0])).gathered())
    changed = train.changed(lambda batch: batch._replace(labels=batch.labels + 1))
    assert all(same(batch) for batch in changed)
    assert float(train.total(lambda batch: batch.weights.sum())) == 10 * sum(range(10))


def test_a_set_without_them_has_none():
    lists = RankingSet(torch.eye(2), torch.ones(2), torch.tensor([0, 2]))
    assert lists.weights is None and lists.positions is None and lists[:].weights is None
    assert lists.subset([0]).weights is None and lists.to("cpu")[:].positions is None


def test_the_outline_tells_other_weights():
    lists = some_lists()
    other = some_lists()
    other.weights = other.weights + 1
    assert lists.outline() == some_lists().outline() != other.outline()
    plain = RankingSet(lists.x, lists.labels, lists.offsets)
    assert "weights" not in plain.outline() and plain.outline().items() < lists.outline().items()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": [1.0, 2.0]}, r"weights \(2,\) for 3 entries of the set 's'"),
        ({"weights": [[1.0], [2.0]]}, "weights"),
        ({"weights": [1.0, -2.0, 1.0]}, "weight -2 of entry 1 of the set 's': weights must be finite"),
        ({"weights": [1.0, 1.0, float("nan")]}, "weight nan of entry 2"),
        ({"weights": np.array([1.0, np.inf, 1.0])}, "weight inf of entry 1"),
        ({"positions": [0, 1]}, r"positions \(2,\) for 3 entries"),
        ({"positions": [0, -1, 2]}, "position -1 of entry 1 of the set 's': positions must be integers"),
        ({"positions": [0.0, 1.5, 2.0]}, "position 1.5 of entry 1"),
        ({"positions": [0.0, float("nan"), 2.0]}, "position nan of entry 1"),
        ({"positions": [0.0, 1e300, 2.0]}, "position 1e[+]300 of entry 1"),
    ],
)
def test_what_they_cannot_be_is_refused_with_its_place(given, message):
    with pytest.raises(DataError, match=message):
        RankingSet(torch.eye(3), torch.ones(3), torch.tensor([0, 3]), name="s", **given)


@pytest.mark.parametrize("given", [[0, 1, 2], np.array([0.0, 1, 2]), torch.tensor([0, 1, 2], dtype=torch.int16)])
def test_they_may_come_as_any_array(given):
    lists = RankingSet(torch.eye(3), torch.ones(3), torch.tensor([0, 3]), weights=given, positions=given)
    assert lists.positions.dtype == torch.int64 and lists.positions.tolist() == [0, 1, 2]
    assert lists.weights.is_floating_point() and lists.weights.tolist() == [0, 1, 2]


def test_lists_of_a_whole_corpus_have_no_weights():
    relevance = SameClass(torch.tensor([0, 1]), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(DataError, match="not with lists of a whole corpus"):
        RankingSet(torch.eye(2), relevance, queries=torch.eye(2), weights=torch.ones(4))


def test_a_batch_refuses_weights_of_another_length():
    with pytest.raises(DataError, match="weights"):
        make_batch(torch.eye(2), torch.ones(2), torch.tensor([0, 2]), weights=torch.ones(3))


def test_the_cache_maps_them_from_files(tmp_path):
    lists = some_lists()
    save_folder(tmp_path / "set.torchrank", lists)
    again = open_folder(tmp_path / "set.torchrank")
    assert same(again) and same(again[torch.tensor([3, 0])])
    assert (tmp_path / "set.torchrank" / "weights.npy").is_file()


def test_inverse_propensities():
    positions, chances = np.array([0, 3, 1, 9]), np.array([1.0, 0.5, 0.25])
    expected = [1 / chances[min(place, 2)] for place in positions]
    assert propensity_weights(positions, chances).tolist() == expected
    assert propensity_weights(positions, chances, clip=2.0).tolist() == [min(each, 2) for each in expected]
    assert propensity_weights([], [1.0]).tolist() == []
    for wrong in ([], [0.0], [1.0, -1.0], [float("nan")], [float("inf")]):
        with pytest.raises(DataError, match="propensities"):
            propensity_weights(positions, wrong)
    with pytest.raises(ValueError, match="clip"):
        propensity_weights(positions, chances, clip=0)

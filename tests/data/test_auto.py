"""`transform=auto`: its rule, on data whose shape is known; the same on every process, in checkpoints and results."""

import itertools

import numpy as np
import pytest
import torch

from torchrank import DataError, LambdaRank, ListNet, RankingSet, SparseRows, SVMMap
from torchrank.data import make_transform
from torchrank.data.rows import Chunks, Share
from torchrank.data.transforms import Auto
from torchrank.data.transforms.shape import reason_of

BELL = np.random.default_rng(0).normal(size=(600, 6))
LISTS = np.arange(0, 601, 20)


def by_query(x):
    """LETOR's normalisation, list by list."""
    parts = [x[a:b] for a, b in itertools.pairwise(LISTS)]
    return np.concatenate([(part - part.min(0)) / (part.max(0) - part.min(0)) for part in parts])


SHAPES = {
    "bell": (BELL, "standard"),
    "other scales": (BELL * 10.0 ** np.arange(-3, 3) + 5, "standard"),
    "two values": ((BELL > 1.5) * 7.0, "standard"),
    "lognormal": (np.exp(1.5 * BELL), "quantile"),
    "counts": (np.floor(np.exp(BELL + 1)), "quantile"),
    "some columns": (np.column_stack((BELL, np.exp(2 * BELL[:, :1]))), "quantile"),
    "between 0 and 1": (np.exp(2 * BELL) / np.exp(2 * BELL).max(), "quantile"),
    "normalised by query": (by_query(np.exp(2 * BELL)), "standard"),
    "sentinels": (np.where(BELL > 2, 3.3e38, BELL), "quantile"),
    "constant": (np.ones((600, 2)), "standard"),
}


def fitted(x, offsets=LISTS, **options):
    return make_transform("auto", x.shape[1]).fit(torch.tensor(x), torch.tensor(offsets), **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_of_the_rows_decides(shape):
    x, expected = SHAPES[shape]
    auto = fitted(x)
    assert auto.chosen == expected and auto.told.startswith(f"{expected} (auto: ")
    plain = make_transform(expected, x.shape[1]).fit(torch.tensor(x), torch.tensor(LISTS))
    assert torch.equal(auto(torch.tensor(x), None), plain(torch.tensor(x), None))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_process_decides_alike(world):
    """Without asking the others: each draws the same sample from all rows."""
    x, offsets = torch.tensor(SHAPES["lognormal"][0]), torch.tensor(LISTS)
    shares = [Share(rank, world, None) for rank in range(world)]
    assert {reason_of(Chunks(x, offsets, "cpu", 6, share=share)) for share in shares} == {"skewed"}


def test_few_rows_and_rows_without_lists_are_standardised():
    x = np.exp(2 * BELL)
    assert fitted(x[:40], [0, 40]).chosen == "standard"
    assert make_transform("auto", 6).fit(torch.tensor(x)).chosen == "standard"
    lists = RankingSet(torch.tensor(x), torch.arange(600) % 2, torch.tensor(LISTS), queries=torch.ones(30, 6).double())
    ranker = SVMMap(6, rounds=2)
    ranker.check_set(lists)
    ranker.learn_transform(lists)
    assert ranker.transform.told == "standard (auto: the lists share rows or have query vectors)"


def test_lists_longer_than_the_sample_are_drawn_by_rows():
    x = np.tile(np.exp(2 * BELL), (20, 1))
    assert fitted(x, [0, len(x)]).chosen == "quantile"


def test_sparse_rows_stay_as_they_are():
    x = SparseRows(torch.tensor([2.0, 3.0]), torch.tensor([0, 1]), torch.tensor([0, 1, 2]), 2)
    auto = make_transform("auto", 2).fit(x, torch.tensor([0, 2]))
    assert auto.chosen == "none" and torch.equal(auto(x, None).values, x.values)


def test_what_is_not_finite_is_refused_with_its_place():
    x = BELL.copy()
    x[7, 3] = np.nan
    with pytest.raises(DataError, match=r"feature 3 .* of row 7"):
        fitted(x)


def test_auto_has_no_options():
    with pytest.raises(ValueError, match="no option variance"):
        make_transform({"name": "auto", "variance": 1}, 3)


@pytest.mark.parametrize("make", [ListNet, LambdaRank])
def test_it_is_in_the_findings_and_the_checkpoint(make, tmp_path):
    x = torch.tensor(np.exp(2 * BELL)).float()
    lists = RankingSet(x, torch.tensor(np.digitize(BELL[:, 0], [0, 1])), torch.tensor(LISTS))
    ranker = make(6).fit(lists, epochs=3)
    assert isinstance(ranker.transform, Auto) and ranker.findings["transform"].startswith("quantile (auto: ")
    named = make(6, transform="quantile").fit(lists, epochs=3)
    assert torch.equal(ranker(x, lists.offsets), named(x, lists.offsets))
    again = make(6)
    again.load_state_dict(ranker.state_dict())
    assert again.transform.told == ranker.transform.told and torch.equal(
        again.eval()(x, lists.offsets), named(x, lists.offsets)
    )

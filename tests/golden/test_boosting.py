"""RankBoost and AdaRank, round by round, against plain loops over pairs, thresholds and lists."""

import numpy as np
import pytest
import torch

from tests.golden import boosting_reference as plain
from tests.rankers.small import trainer
from torchrank import AdaRank, RankBoost, RankingDataModule, RankingSet
from torchrank.functional import average_precision

ROUNDS = 12


def draw(seed, *, grades=4, real=False, longest=8):
    """Lists of 0..8 documents with tied features (one continuous, one constant), some without a pair."""
    random = np.random.default_rng(seed)
    lengths = np.append(random.integers(0, longest + 1, 10), [1, 5])
    offsets = np.concatenate([[0], lengths.cumsum()])
    x = random.integers(0, 5, (offsets[-1], 5)) / 4 - 0.5
    x[:, 1] = random.normal(size=len(x))
    x[:, 3] = 1.0
    noisy = 2 * x[:, 0] - 2 * x[:, 2] + 0.3 * x[:, 1] + 0.7 * random.normal(size=len(x))
    labels = np.digitize(noisy, np.linspace(-1, 1, grades - 1)).astype(float)
    if real:
        labels = labels / 3 - 0.4
    labels[-5:] = labels[-1]  # a list with one label
    return x, labels, offsets


def fit(folder, make, x, labels, offsets, rounds=ROUNDS):
    lists = RankingSet(torch.tensor(x), torch.tensor(labels), torch.tensor(offsets))
    ranker = make(x.shape[1], rounds=rounds)
    module = RankingDataModule.from_sets(train=lists, val=lists, batch_documents=25)
    trainer(folder, rounds, precision="64-true").fit(ranker, datamodule=module)
    return ranker


def as_float32(x, labels, offsets):
    """Resident sets are float32: so are the values that the loops see."""
    return x.astype(np.float32).astype(np.float64), labels, offsets


CHOICES = [
    (0, {}),
    (1, {}),
    (2, {"pair_weight": "query"}),
    (3, {"allow_negative": False}),
    (4, {"alpha": "exact"}),
    (1, {"alpha": "exact", "pair_weight": "query", "allow_negative": False}),
]


@pytest.mark.parametrize(("seed", "options"), CHOICES, ids=str)
@pytest.mark.parametrize("bins", [None, 256, 4])
def test_rankboost_equals_a_loop_over_pairs(tmp_path, seed, options, bins):
    lists = as_float32(*draw(seed, grades=2 + seed % 3, real=seed == 1))
    ranker = fit(tmp_path, lambda d, rounds: RankBoost(d, bins=bins, rounds=rounds, **options), *lists)
    edges = None
    if bins:  # typed again: the different values, evenly thinned out
        edges = [np.unique(column) for column in lists[0].T]
        edges = [e if len(e) < bins else e[np.arange(bins - 1) * len(e) // (bins - 1)] for e in edges]
    found, losses, _ = plain.rankboost(*lists, ROUNDS, edges=edges, **options)
    features, thresholds, alphas, z = (np.array(part) for part in zip(*found, strict=True))
    assert ranker.feature.tolist() == features.tolist() and len(set(features)) > 1
    np.testing.assert_array_equal(ranker.threshold.numpy(), thresholds)
    np.testing.assert_allclose(ranker.alpha.numpy(), alphas, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ranker.log_loss.exp().numpy(), losses, rtol=1e-12)
    np.testing.assert_allclose(ranker.log_loss.exp().numpy(), np.cumprod(z), rtol=1e-12)
    assert (np.diff(losses) < 0).all()


MEASURES = [
    (0, {"measure": "map"}),
    (1, {"measure": "ndcg@3"}),
    (2, {"measure": "map", "both_directions": True}),
    (3, {"measure": "ndcg@10", "ties": "average", "both_directions": True}),
    (4, {"measure": "map", "ties": "average"}),
    (5, {"measure": "map", "exclude_repeat": False, "both_directions": True}),
    (6, {"measure": "ndcg@3", "exclude_repeat": False}),
]


@pytest.mark.parametrize(("seed", "options"), MEASURES, ids=str)
def test_adarank_equals_a_loop_over_lists(tmp_path, seed, options):
    """Up to its end: the stop rules are part of what is compared."""
    lists = as_float32(*draw(seed, longest=5))
    make = {"transform": None, "patience": 12, **options}
    ranker = fit(tmp_path, lambda d, rounds: AdaRank(d, rounds=rounds, **make), *lists, rounds=30)
    found = plain.adarank(*lists, 30, patience=12, **options)
    columns, alphas, means = (np.array(part) for part in zip(*found, strict=True))
    assert (ranker.feature + 5 * (ranker.alpha < 0)).tolist() == columns.tolist()
    np.testing.assert_allclose(ranker.alpha.abs().numpy(), alphas, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ranker.train_measure.numpy(), means, rtol=1e-12)
    assert len(found) < 30 and ranker.converged
    assert len(set(columns)) > 1 or not options.get("exclude_repeat", True)


@pytest.mark.parametrize("k", [None, 1, 3])
def test_average_precision_over_all_orders_of_ties(k):
    x, labels, offsets = draw(3, longest=7)
    scores = x[:, 0]
    found = average_precision(torch.tensor(scores), torch.tensor(labels), torch.tensor(offsets), k=k, ties="average")
    expected = plain.quality(scores, labels, offsets, "map" if k is None else f"map@{k}", "average")
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)

"""What rankers have learned, for reports: spectra by another decomposition, weights by their own parameters."""

import json

import numpy as np
import pytest
import torch

from torchrank import GMML, LGMML, MLR, AdaRank, ListNet, RandomRanker
from torchrank.cli.shared.learned import describe_learned, learned_of, measured_importances, validation_of
from torchrank.data import synthetic_splits


@pytest.fixture(scope="module")
def sets():
    return synthetic_splits(num_queries=60, num_features=8, num_types=2)


def test_shares_are_squared_singular_values(sets):
    options = {"alpha": 20.0, "t": 0.5, "ridge": 0.1, "kappa": 10.0, "gate": "hard", "rounds": 1}
    ranker = LGMML(8, num_groups=2, transform="standard", **options).fit(sets["train"], sets["val"])
    found = describe_learned(ranker)["spectra"]
    assert [metric["label"] for metric in found] == ["all queries", "group 0", "group 1"]
    for metric, factor in zip(found, ranker.factors.double().numpy(), strict=True):
        squares = np.linalg.svd(factor, compute_uv=False) ** 2
        assert metric["size"] == 8 and metric["shares"] == pytest.approx(squares / squares.sum(), rel=1e-3)
    assert "importances" not in describe_learned(ranker)


def test_one_metric_is_named_so(sets):
    (metric,) = describe_learned(GMML(8).fit(sets["train"], sets["val"]))["spectra"]
    assert sum(metric["shares"]) == pytest.approx(1, abs=1e-3)


def test_a_metric_of_zeros_has_no_shares():
    assert describe_learned(MLR(3))["spectra"] == [{"label": "metric", "size": 3, "shares": []}]


def test_weights_of_linear_rankers_are_theirs(sets):
    ranker = ListNet(8).fit(sets["train"])
    found = describe_learned(ranker)["importances"]
    weights = ranker.scorer.weight.detach().double().numpy()
    assert found["values"] == pytest.approx(weights[np.argsort(-abs(weights))], rel=1e-5)
    assert found["features"][0] == f"f{abs(weights).argmax() + 1}" and found["total"] == 8


def test_votes_of_weak_rankers_are_summed(sets):
    ranker = AdaRank(8).fit(sets["train"])
    found = describe_learned(ranker)["importances"]
    votes = {}
    for feature, alpha in zip(ranker.feature.tolist(), ranker.alpha.tolist(), strict=True):
        votes[f"f{feature + 1}"] = votes.get(f"f{feature + 1}", 0) + abs(alpha)
    assert dict(zip(found["features"], found["values"], strict=True)) == pytest.approx(votes, rel=1e-5)


def test_gains_of_trees_are_shares(sets):
    pytest.importorskip("lightgbm")
    from torchrank import GBDTRanker

    found = describe_learned(GBDTRanker(8, rounds=3, threads=1).fit(sets["train"]))["importances"]
    assert sum(found["values"]) == pytest.approx(1) and found["values"] == sorted(found["values"], reverse=True)


def test_a_random_order_has_learned_nothing(sets):
    assert describe_learned(RandomRanker(8).fit(sets["train"])) == {}


def test_measured_importances_come_with_errors(sets):
    ranker = ListNet(8).fit(sets["train"])
    found = measured_importances(ranker, sets["val"])
    assert found["values"] == sorted(found["values"], reverse=True) and len(found["errors"]) == 8
    assert found["kind"].startswith("Loss of ndcg@10 (") and json.dumps(found)


def test_the_validation_lists_of_a_run_are_read_again(tmp_path):
    data = {"_target_": "torchrank.RankingDataModule", "name": "synthetic", "num_queries": 30, "num_features": 8}
    (tmp_path / "results.json").write_text(json.dumps({"config": {"data": data}}))
    expected = synthetic_splits(num_queries=30, num_features=8)["val"]
    assert torch.equal(validation_of(tmp_path).x, expected.x)


def test_a_folder_without_a_checkpoint_or_with_a_damaged_one_has_nothing(tmp_path):
    assert learned_of(tmp_path) == {}
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/best.ckpt").write_bytes(b"nothing")
    assert learned_of(tmp_path) == {}

"""GBDTRanker(start=...): trees that add to the scores of another ranker, against the engines' own init scores."""

import json

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.small import FEATURES, lists
from torchrank import CheckpointError, GBDTRanker, LambdaRank, ListNet, MetricBaseline, RankingEstimator, RankingSet
from torchrank.export import reader
from torchrank.export.models import OneList
from torchrank.rankers.core.checkpoint_files import write_whole

lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
SMALL = {"rounds": 6, "lr": 0.1, "leaves": 4, "threads": 1}


def scores_of(ranker, given):
    with torch.no_grad():
        return ranker(given.x, given.offsets)


@pytest.fixture(scope="module")
def linear():
    return ListNet(FEATURES, transform="standard").fit(lists(0))


def with_lightgbm(train, test, start, begun):
    options = {"objective": "lambdarank", "learning_rate": 0.1, "num_leaves": 4, "verbosity": -1, "num_threads": 1}
    options |= {"seed": 0, "deterministic": True, "force_row_wise": True}
    group = train.offsets.diff().numpy()
    data = lightgbm.Dataset(train.x.numpy(), train.labels.numpy(), group=group, init_score=start.double().numpy())
    return begun.double().numpy() + lightgbm.train(options, data, 6).predict(test.x.numpy(), raw_score=True)


def with_xgboost(train, test, start, begun):
    peer = xgboost.XGBRanker(
        n_estimators=6, learning_rate=0.1, max_leaves=4, grow_policy="lossguide", max_depth=0, n_jobs=1
    )
    peer.fit(
        train.x.numpy(), train.labels.numpy(), group=train.offsets.diff().numpy(), base_margin=start.float().numpy()
    )
    return peer.predict(test.x.numpy(), base_margin=begun.float().numpy())


@pytest.mark.peers
@pytest.mark.parametrize(("engine", "peer"), [("lightgbm", with_lightgbm), ("xgboost", with_xgboost)])
def test_the_scores_are_those_of_the_engine_with_init_scores(engine, peer, linear, tmp_path):
    train, test, path = lists(0), lists(2), linear.save(tmp_path / "linear.ckpt")
    ranker = GBDTRanker(FEATURES, **SMALL, engine=engine, start=str(path)).fit(train)
    expected = peer(train, test, scores_of(linear, train), scores_of(linear, test))
    assert np.array_equal(scores_of(ranker, test), expected)
    path.unlink()  # one checkpoint holds both
    loaded = torchrank.load(ranker.save(tmp_path / "trees.ckpt"))
    assert torch.equal(scores_of(loaded, test), scores_of(ranker, test))
    assert loaded.fit(train).first is not None and torch.equal(scores_of(loaded, test), scores_of(ranker, test))


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
def test_it_is_exported_and_explained(engine, linear, tmp_path):
    some = lists(2)
    ranker = GBDTRanker(FEATURES, **SMALL, engine=engine, start=linear).fit(lists(0))
    part = some.x[: int(some.offsets[1])].float()
    expected = ranker(part, torch.tensor([0, len(part)])).float()
    torch.testing.assert_close(OneList(ranker)(part), expected, rtol=1e-5, atol=1e-5)
    plain = json.loads(ranker.export(tmp_path / "model.json").read_text())
    np.testing.assert_allclose(reader.score(plain, part.tolist()), expected, rtol=1e-5, atol=1e-5)
    found = torchrank.explain(ranker, some.x, some.offsets, (0, 1))
    assert "SHAP" in found.method and float(found.residual.abs()) < 1e-6 * (1 + float(found.parts.abs().sum()))


def test_trees_start_from_trees_networks_and_estimators():
    train, val, test = lists(0), lists(1), lists(2)
    first = GBDTRanker(FEATURES, **SMALL).fit(train)
    second = GBDTRanker(FEATURES, **SMALL, engine="xgboost", start=first).fit(train, val)
    third = GBDTRanker(FEATURES, **SMALL, start=second).fit(train)
    gap = scores_of(third, test) - scores_of(second, test)
    assert gap.abs().max() > 0
    estimator = RankingEstimator("lambdarank", epochs=1).fit(train.x, train.labels, group=train.offsets.diff())
    assert scores_of(GBDTRanker(FEATURES, **SMALL, start=estimator).fit(train), test).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 3}, "start must be a fitted ranker, a checkpoint or a run folder, got 3"),
        ({"start": "nowhere.ckpt"}, "checkpoint not found: nowhere.ckpt"),
        ({"start": ListNet(FEATURES + 1)}, f"start is a ListNet of {FEATURES + 1} features, but there are {FEATURES}"),
        ({"start": ListNet(FEATURES), "transform": "standard"}, "start= needs transform=null"),
    ],
)
def test_what_trees_cannot_start_from_is_refused(options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        GBDTRanker(FEATURES, **options)


def test_rankers_by_queries_and_own_losses_are_refused():
    vectors = RankingSet(torch.eye(3), torch.tensor([0, 1, 0]), torch.tensor([0, 3]), queries=torch.ones(1, 3))
    with pytest.raises(ValueError, match="start is a MetricBaseline that ranks by queries"):
        GBDTRanker(3, start=MetricBaseline(3).fit(vectors))
    with pytest.raises(torchrank.NotFittedError, match="not fitted"):
        GBDTRanker(FEATURES, start=LambdaRank(FEATURES)).fit(lists(0))


def test_a_file_cannot_name_another_file(linear, tmp_path):
    path = linear.save(tmp_path / "linear.ckpt")
    GBDTRanker(FEATURES, **SMALL, start=linear).fit(lists(0)).save(tmp_path / "trees.ckpt")
    saved = torch.load(tmp_path / "trees.ckpt", weights_only=True)
    for forged in (str(path), {"ranker": "os.system", "options": {}}, {"ranker": "ListNet"}, {"options": 3}, [1]):
        saved["hyper_parameters"]["start"] = forged
        write_whole(saved, tmp_path / "forged.ckpt")
        with pytest.raises(CheckpointError, match=r"forged\.ckpt") as told:
            torchrank.load(tmp_path / "forged.ckpt")
        assert "\n" not in str(told.value)

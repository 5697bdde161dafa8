"""MQ2008 and LightGBM's example, read from TORCHRANK_DATA: published totals, and rankers that reach their level."""

import os
from pathlib import Path

import pytest
import torch

from torchrank import GBDTRanker, ListNet, RankingDataModule, RankingSet, SingleFeature
from torchrank.functional import evaluate, ndcg

ROOT = os.environ.get("TORCHRANK_DATA")
pytestmark = pytest.mark.skipif(ROOT is None, reason="set TORCHRANK_DATA to the folder that holds MQ2008")


def data(name: str, tmp_path: Path, **options) -> dict[str, RankingSet]:
    module = RankingDataModule(name, root=ROOT, cache_dir=tmp_path, **options)
    module.setup()
    return module.sets


def measured(ranker, test: RankingSet, convention: str = "default") -> dict[str, float]:
    """Mean measures of a fitted ranker."""
    with torch.no_grad():
        scores = ranker(test.x, test.offsets)
    wanted = ["ndcg@5", "ndcg@10", "map"]
    found = evaluate(scores, test.labels, test.offsets, measures=wanted, convention=convention)
    return {name: float(values.nanmean()) for name, values in found.items()}


def test_the_published_totals(tmp_path):
    tests = []
    for fold in range(1, 6):
        sets = data("mq2008", tmp_path, fold=fold)
        tests.append(sets["test"])
        ids = {split: set(lists.query_ids) for split, lists in sets.items()}
        assert not ids["train"] & ids["test"] and not ids["val"] & ids["test"] and not ids["train"] & ids["val"]
    assert sum(map(len, tests)) == 784 and sum(len(lists.labels) for lists in tests) == 15_211
    assert {lists.num_features for lists in tests} == {46} and {lists.num_grades for lists in tests} == {3}
    empty = sum(int(ndcg(s.labels, s.labels, s.offsets).isnan().sum()) for s in tests)
    assert empty == 220


def test_linear_listnet_reaches_its_level(tmp_path):
    """Mean of the fold means, letor convention; l2 = 1e-3 for all folds, chosen by the mean validation NDCG@10."""
    folds = [data("mq2008", tmp_path, fold=fold) for fold in range(1, 6)]
    rankers = [ListNet(46, l2=1e-3, transform="none").fit(sets["train"]) for sets in folds]
    found = [measured(ranker, sets["test"], "letor") for ranker, sets in zip(rankers, folds, strict=True)]
    mean = {name: sum(part[name] for part in found) / 5 for name in ("ndcg@5", "map")}
    assert mean["ndcg@5"] >= 0.468 and mean["map"] >= 0.468


def test_a_ranker_beats_the_best_single_feature_on_lightgbms_example(tmp_path):
    sets = data("lightgbm", tmp_path)
    rankers = (SingleFeature(300), ListNet(300, l2=0.1), GBDTRanker(300, rounds=60, lr=0.1, threads=1))
    single, listnet, trees = (measured(ranker.fit(sets["train"]), sets["test"])["ndcg@10"] for ranker in rankers)
    assert listnet > single and trees > single


@pytest.mark.peers
def test_lightgbms_own_ndcg_is_ours_in_its_convention(tmp_path):
    lightgbm = pytest.importorskip("lightgbm")
    sets = data("lightgbm", tmp_path)
    ranker, test = GBDTRanker(300, rounds=20, threads=1).fit(sets["train"]), sets["test"]
    ours = measured(ranker, test, "lightgbm")
    train = lightgbm.Dataset(test.x.numpy(), test.labels.numpy(), group=test.lengths, free_raw_data=False)
    train.set_init_score(torch.as_tensor(ranker.booster.predict(test.x.numpy(), raw_score=True)).numpy())
    parameters = {"objective": "lambdarank", "metric": ["ndcg", "map"], "eval_at": [5, 10], "verbosity": -1,
                  "learning_rate": 1e-30, "num_threads": 1}  # fmt: skip
    booster = lightgbm.Booster(parameters, train)
    booster.update()
    theirs = {name: value for _, name, value, _ in booster.eval_train()}
    assert ours["ndcg@5"] == pytest.approx(theirs["ndcg@5"], abs=1e-6)
    assert ours["ndcg@10"] == pytest.approx(theirs["ndcg@10"], abs=1e-6)

"""MQ2008 and LightGBM's example, read from TORCHRANK_DATA: published totals, and rankers that reach their level."""

import os
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Trainer

from torchrank import GBDTRanker, ListNet, RankingDataModule, SingleFeature
from torchrank.functional import ndcg

ROOT = os.environ.get("TORCHRANK_DATA")
pytestmark = pytest.mark.skipif(ROOT is None, reason="set TORCHRANK_DATA to the folder that holds MQ2008")


def data(name: str, tmp_path: Path, **options) -> RankingDataModule:
    return RankingDataModule(name, root=ROOT, cache_dir=tmp_path, measures=["ndcg@5", "ndcg@10", "map"], **options)


def fit(ranker, module: RankingDataModule, max_epochs: int) -> dict:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=max_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=max_epochs,
        use_distributed_sampler=False,
    )
    trainer.fit(ranker, datamodule=module)
    trainer.test(ranker, datamodule=module, verbose=False)
    return ranker.measured["test"]


def test_the_published_totals(tmp_path):
    tests = []
    for fold in range(1, 6):
        module = data("mq2008", tmp_path, fold=fold)
        module.setup()
        tests.append(module.sets["test"])
        ids = {split: set(lists.query_ids) for split, lists in module.sets.items()}
        assert not ids["train"] & ids["test"] and not ids["val"] & ids["test"] and not ids["train"] & ids["val"]
    assert sum(map(len, tests)) == 784 and sum(len(lists.labels) for lists in tests) == 15_211
    assert {lists.num_features for lists in tests} == {46} and {lists.num_grades for lists in tests} == {3}
    empty = sum(int(ndcg(s.labels, s.labels, s.offsets, num_grades=3).isnan().sum()) for s in tests)
    assert empty == 220


def test_linear_listnet_reaches_its_level(tmp_path):
    """Mean of the fold means, letor convention; l2 = 1e-3 for all folds, chosen by the mean validation NDCG@10."""
    found = [
        fit(ListNet(46, l2=1e-3, transform="none"), data("mq2008", tmp_path, fold=fold, conventions=["letor"]), 500)
        for fold in range(1, 6)
    ]
    mean = {m: sum(part["letor"]["measures"][m] for part in found) / 5 for m in ("ndcg@5", "map")}
    assert mean["ndcg@5"] >= 0.468 and mean["map"] >= 0.468


def test_a_ranker_beats_the_best_single_feature_on_lightgbms_example(tmp_path):
    measured = {}
    for name, ranker, epochs in (
        ("single", SingleFeature(300), 1),
        ("listnet", ListNet(300, l2=0.1), 100),
        ("trees", GBDTRanker(300, rounds=60, lr=0.1, threads=1), 60),
    ):
        measured[name] = fit(ranker, data("lightgbm", tmp_path), epochs)["default"]["measures"]["ndcg@10"]
    assert measured["listnet"] > measured["single"] and measured["trees"] > measured["single"]


def test_lightgbms_own_ndcg_is_ours_in_its_convention(tmp_path):
    lightgbm = pytest.importorskip("lightgbm")
    module = data("lightgbm", tmp_path, conventions=["lightgbm"])
    ranker = GBDTRanker(300, rounds=20, threads=1)
    ours = fit(ranker, module, 20)["lightgbm"]["measures"]
    test = module.sets["test"]
    train = lightgbm.Dataset(test.x.numpy(), test.labels.numpy(), group=test.lengths, free_raw_data=False)
    train.set_init_score(torch.as_tensor(ranker.booster.predict(test.x.numpy(), raw_score=True)).numpy())
    parameters = {"objective": "lambdarank", "metric": ["ndcg", "map"], "eval_at": [5, 10], "verbosity": -1,
                  "learning_rate": 1e-30, "num_threads": 1}  # fmt: skip
    booster = lightgbm.Booster(parameters, train)
    booster.update()
    theirs = {name: value for _, name, value, _ in booster.eval_train()}
    assert ours["ndcg@5"] == pytest.approx(theirs["ndcg@5"], abs=1e-6)
    assert ours["ndcg@10"] == pytest.approx(theirs["ndcg@10"], abs=1e-6)

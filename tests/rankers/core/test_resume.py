"""Resume is the same fit: one that had ended ends at once, and a folder that was moved keeps its best state."""

import shutil

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import LambdaRank, ListNet, RankBoost, RankingDataModule


def early(patience: int) -> EarlyStopping:
    return EarlyStopping("val/ndcg@10", mode="max", patience=patience)


def noise() -> RankingDataModule:
    """Validation lists that have nothing to do with the training lists: the best round comes early."""
    return RankingDataModule.from_sets(train=lists(0), val=lists(3, noise=50.0))


@pytest.mark.parametrize(
    "make", [lambda: RankBoost(FEATURES, rounds=40), lambda: LambdaRank(FEATURES, lr=0.5)], ids=["rounds", "gradient"]
)
def test_a_fit_that_stopped_early_ends_at_once(tmp_path, make):
    ranker, first = make(), trainer(tmp_path, 40, callbacks=[early(1)])
    first.fit(ranker, datamodule=noise())
    assert first.current_epoch < 39
    best, score = first.checkpoint_callback.best_model_path, first.checkpoint_callback.best_model_score
    resumed, again = make(), trainer(tmp_path, 40, callbacks=[early(1)])
    again.fit(resumed, datamodule=noise(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.global_step == first.global_step
    assert (again.checkpoint_callback.best_model_path, again.checkpoint_callback.best_model_score) == (best, score)
    for name, value in ranker.state_dict().items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, resumed.state_dict()[name]), name


def test_a_fit_that_converged_ends_at_once(tmp_path):
    ranker, first = ListNet(FEATURES), trainer(tmp_path, 500)
    first.fit(ranker, datamodule=data())
    assert ranker.converged
    resumed, again = ListNet(FEATURES), trainer(tmp_path, 500)
    again.fit(resumed, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.global_step == first.global_step and resumed.certificate == ranker.certificate


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_a_folder_that_was_moved_or_copied_keeps_its_best_state(tmp_path, how):
    first = trainer(tmp_path / "old", 6)
    first.fit(LambdaRank(FEATURES, lr=0.5), datamodule=noise())
    best = first.checkpoint_callback
    how(str(tmp_path / "old"), str(tmp_path / "new"))
    again = trainer(tmp_path / "new", 7)
    again.fit(LambdaRank(FEATURES, lr=0.5), datamodule=noise(), ckpt_path=tmp_path / "new/last.ckpt", weights_only=True)
    assert again.checkpoint_callback.best_model_score >= best.best_model_score
    assert again.checkpoint_callback.best_model_path == str(tmp_path / "new" / "best.ckpt")
    torchrank.load(again.checkpoint_callback.best_model_path)


def test_a_best_state_that_is_gone_is_told(tmp_path):
    trainer(tmp_path / "old", 4).fit(LambdaRank(FEATURES), datamodule=data())
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "old/last.ckpt", tmp_path / "new/last.ckpt")
    (tmp_path / "old/best.ckpt").unlink()
    again = trainer(tmp_path / "new", 6)
    with pytest.warns(UserWarning, match=r"best\.ckpt, is not in .*new: the choice starts over"):
        again.fit(LambdaRank(FEATURES), datamodule=data(), ckpt_path=tmp_path / "new/last.ckpt", weights_only=True)
    torchrank.load(again.checkpoint_callback.best_model_path)

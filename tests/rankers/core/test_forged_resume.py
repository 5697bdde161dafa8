"""Resume from a checkpoint with right checksums and forged progress: one line with the file's name, or a fit."""

import random

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping

import torchrank
from tests.rankers.core.test_checkpoint_content import mutated
from tests.rankers.small import FEATURES, data, trainer
from torchrank import LambdaRank, RankBoost
from torchrank.rankers.core.checkpoint_files import write_whole

RANKERS = {
    "gradient": lambda: LambdaRank(FEATURES, scheduler={"name": "StepLR", "step_size": 2, "warmup": 2}),
    "rounds": lambda: RankBoost(FEATURES, rounds=5, bins=4),
}
PARTS = ("loops", "callbacks", "optimizer_states", "lr_schedulers", "random_state")
TURNS = 12


def fit(name, folder, epochs, path=None):
    runner = trainer(folder, epochs, callbacks=[EarlyStopping("val/ndcg@10", mode="max", patience=3)])
    runner.fit(RANKERS[name](), datamodule=data(), ckpt_path=path, weights_only=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RANKERS)
def test_forged_progress_is_refused_or_resumed(name, tmp_path):
    fit(name, tmp_path, 2)
    whole, draw, forged = torch.load(tmp_path / "last.ckpt", weights_only=True), random.Random(0), tmp_path / "x.ckpt"
    refused = 0
    for turn in range(TURNS):
        part = PARTS[turn % len(PARTS)]
        write_whole(whole | mutated({part: whole[part]}, draw), forged)
        try:
            fit(name, tmp_path, 3, forged)
        except torchrank.CheckpointError as error:
            assert "x.ckpt" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > TURNS / 2


def test_what_is_not_forged_is_resumed(tmp_path):
    fit("gradient", tmp_path, 2)
    fit("gradient", tmp_path, 3, tmp_path / "last.ckpt")
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 2

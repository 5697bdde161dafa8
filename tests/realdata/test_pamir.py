"""PAMIR on MQ2008, read from TORCHRANK_DATA."""

import os

import pytest
from pytorch_lightning import Trainer

from torchrank import PAMIR, RankingDataModule

ROOT = os.environ.get("TORCHRANK_DATA")
pytestmark = pytest.mark.skipif(ROOT is None, reason="set TORCHRANK_DATA to the folder that holds MQ2008")


@pytest.mark.parametrize("minibatch", [1, 32])
def test_pamir_reaches_the_level_of_linear_rankers(tmp_path, minibatch):
    """Mean of the fold means, letor convention; default options, 20 rounds, the last state, nothing chosen."""
    found = []
    for fold in range(1, 6):
        module = RankingDataModule(
            "mq2008", root=ROOT, cache_dir=tmp_path, fold=fold, measures=["ndcg@5", "map"], conventions=["letor"]
        )
        ranker = PAMIR(46, rounds=20, minibatch=minibatch)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=20,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=20,
            use_distributed_sampler=False,
        )
        trainer.fit(ranker, datamodule=module)
        trainer.test(ranker, datamodule=module, verbose=False)
        found.append(ranker.measured["test"]["letor"]["measures"])
    mean = {measure: sum(part[measure] for part in found) / 5 for measure in ("ndcg@5", "map")}
    assert mean["ndcg@5"] >= 0.47 and mean["map"] >= 0.47, mean

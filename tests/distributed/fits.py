"""Fits the rankers of `tests/laws/rankers.py` in this process group and saves what they learned.

usage: python -m torch.distributed.run --nproc-per-node 2 tests/distributed/fits.py out.pt [listnet ...]
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.strategies import DDPStrategy

sys.path.insert(0, str(Path(__file__).parents[2]))  # a script of its own, started by torch
from tests.docs.pages import module_of
from tests.laws.rankers import CASES, Case, sets
from tests.rankers.core.foreign import Mine
from torchrank import RankingDataModule, RankingEvaluation

ALL = CASES | {
    "docs": Case(lambda: module_of("new_ranker.md").LogisticRanker(5), 50),
    "foreign": Case(lambda: Mine(5), 3),  # a user's LightningModule
}


def fit(case: Case, precision: str = "64-true") -> dict:
    seed_everything(1, verbose=False)
    ranker, evaluation = case.make(), RankingEvaluation()
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo", broadcast_buffers=False),
        max_epochs=case.epochs,
        precision=precision,
        callbacks=[evaluation],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        num_sanity_val_steps=0,
    )
    data = RankingDataModule.from_sets(**sets(case.kind), batch_documents=20)
    trainer.fit(ranker, datamodule=data)
    trainer.test(ranker, datamodule=data, verbose=False)
    return {"state": ranker.state_dict(), "measured": evaluation.measured, "epochs": trainer.current_epoch}


def refused(case: Case) -> str:
    try:
        fit(case)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    names = sys.argv[2:] or [name for name, case in ALL.items() if not case.one_process]
    learned = {name: (refused if ALL[name].one_process else fit)(ALL[name]) for name in names}
    if torch.distributed.get_rank() == 0:
        torch.save(learned, sys.argv[1])
    torch.distributed.destroy_process_group()

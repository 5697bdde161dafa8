"""Small lists and trainers for the tests of rankers."""

from pathlib import Path

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from torchrank import RankingDataModule, RankingEvaluation, RankingSet

FEATURES = 6


def lists(seed: int, num_lists: int = 12, noise: float = 0.5) -> RankingSet:
    """Lists of 1..20 documents whose grades 0-2 follow two of the features."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 21, (num_lists,), generator=generator)
    x = torch.randn(int(lengths.sum()), FEATURES, generator=generator)
    signal = x[:, 1] - 0.5 * x[:, 3] + noise * torch.randn(len(x), generator=generator)
    labels = (signal > 0.3).float() + (signal > 1.2).float()
    return RankingSet(x, labels, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), name=f"seed {seed}")


def data(batch_documents: int = 40, **options) -> RankingDataModule:
    return RankingDataModule.from_sets(
        train=lists(0), val=lists(1), test=lists(2), batch_documents=batch_documents, **options
    )


def trainer(folder: Path, max_epochs: int = 5, monitor: str | None = "val/ndcg@10", **options) -> Trainer:
    """A trainer that writes best.ckpt and last.ckpt into the folder: for tests of checkpoints, devices and hooks. Every
    other fit in a test is `ranker.fit(...)`."""
    best = ModelCheckpoint(folder, "best", monitor=monitor, mode="max", enable_version_counter=False)
    last = ModelCheckpoint(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False)
    settings = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": max_epochs,
        "callbacks": [best, last, *options.pop("callbacks", [])],
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "use_distributed_sampler": False,
        "default_root_dir": folder,
    }
    return Trainer(**settings | options)


def measured(runner: Trainer, split: str, convention: str = "default") -> dict:
    """What the evaluation of a trainer has measured."""
    evaluation = next(callback for callback in runner.callbacks if isinstance(callback, RankingEvaluation))
    return evaluation.measured[split][convention]

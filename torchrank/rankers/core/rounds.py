"""A round as a step of an optimizer: steps, checkpoints and loggers of Lightning then count rounds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def start_rounds(ranker: Any) -> None:
    """Prepare a ranker to be fitted by rounds; DDP refuses a module without a trainable parameter, so it gets one."""
    ranker.automatic_optimization = False
    ranker.step_token = nn.Parameter(torch.empty(0))


def round_step(ranker: Any) -> None:
    """Run one round through the optimizer and stop the trainer after the last one. That one is always validated, and
    all are on a path."""
    trainer, rounds = ranker.trainer, ranker.rounds or 0
    if not ranker.converged and trainer.current_epoch < rounds:
        ranker.optimizers().step()
    if ranker.converged or trainer.current_epoch + 1 >= rounds:
        trainer.should_stop = True
    limits = (trainer.current_epoch + 1 == trainer.max_epochs, trainer.global_step == trainer.max_steps)
    if ranker.is_path or trainer.should_stop or any(limits):
        trainer.check_val_every_n_epoch = 1


class RoundOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is a round, so that steps, checkpoints and loggers count rounds."""

    def __init__(self, ranker: Any):
        super().__init__([ranker.step_token], {})
        self.ranker = ranker

    def step(self, closure: Callable | None = None) -> None:  # type: ignore[override]
        ranker = self.ranker
        with torch.no_grad(), torch.autocast(ranker.device.type, enabled=False):
            ranker.converged.fill_(bool(ranker.round()))

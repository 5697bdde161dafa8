"""A SIGTERM to one process of a fit ends all of them, at the same step; and what is left when one was killed."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import distributed

LOST = re.compile(  # what gloo and NCCL say when the other end of a connection has gone
    r"gloo.*(closed by peer|reset by peer|broken pipe|connection refused|socket closed)"
    r"|nccl.*(remote process exited|closed by remote peer|reset by peer)",
    re.IGNORECASE | re.DOTALL,
)
BATCHES = 8  # of an epoch: before the first one and every so many the processes agree, since a GPU is waited for
PATIENCE = 5.0  # seconds that the processes started by this one have to end by themselves


class SharedStop(Callback):
    """Agrees every few batches whether one of the processes got a SIGTERM. It does nothing in a single process.

    Lightning's own handler calls a collective operation from within a signal, to which no other process answers.
    """

    def __init__(self) -> None:
        self.asked = False

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """In place of that handler: Lightning sets it, calls the user's own after it, and restores that at the end."""
        if trainer.world_size > 1:
            vars(trainer._signal_connector)["_sigterm_notifier_fn"] = self._ask

    def _ask(self, *_: Any) -> None:
        self.asked = True

    def _agree(self, trainer: Trainer, module: LightningModule, batch: Any, number: int, *_: Any) -> None:
        if trainer.world_size == 1 or number % BATCHES:
            return
        asked = torch.tensor(float(self.asked), device=trainer.strategy.root_device)
        distributed.all_reduce(asked)  # Lightning's would wait at a barrier first
        if asked:
            self.asked = False  # a trainer can be used again
            raise SIGTERMException

    on_train_batch_start = on_validation_batch_start = on_test_batch_start = _agree  # type: ignore[assignment]

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, SIGTERMException) or is_lost_process(trainer, exception):
            _await_children(trainer)


def is_lost_process(trainer: Trainer, error: BaseException) -> bool:
    """Whether the error comes from the end of another process of the fit."""
    if trainer.world_size == 1 or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, distributed.DistNetworkError) or LOST.search(str(error)) is not None


def _await_children(trainer: Trainer) -> None:
    """Before Lightning's observer sees that one has ended: it would kill this process too."""
    started: list[subprocess.Popen[Any]] = getattr(trainer.strategy.launcher, "procs", [])
    children = started.copy()
    started.clear()
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE)
        if child.poll() is None:
            child.kill()

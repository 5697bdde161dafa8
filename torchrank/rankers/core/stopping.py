"""A SIGTERM to one process of a fit ends all of them, at the same step; and what is left when one was killed."""

from __future__ import annotations

import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import SIGTERMException

LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused", "gloo", "nccl")
PATIENCE = 5.0  # seconds that the processes started by this one have to end by themselves


class SharedStop(Callback):
    """Agrees before every batch whether one of the processes got a SIGTERM. It does nothing in a single process.

    Lightning's own handler calls a collective operation from within a signal, to which no other process answers.
    """

    def __init__(self) -> None:
        self.asked = False

    def _listen(self, trainer: Trainer, *_: Any) -> None:
        """In place of Lightning's handler, which it has set before and takes away after."""
        if trainer.world_size > 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self.asked = True

    def _agree(self, trainer: Trainer, *_: Any) -> None:
        if trainer.world_size > 1 and trainer.strategy.reduce_boolean_decision(self.asked, all=False):
            raise SIGTERMException

    on_train_start = on_sanity_check_start = on_validation_start = on_test_start = _listen  # type: ignore[assignment]
    on_train_batch_start = on_validation_batch_start = on_test_batch_start = _agree  # type: ignore[assignment]

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, SIGTERMException) or is_lost_process(trainer, exception):
            _await_children(trainer)


def is_lost_process(trainer: Trainer, error: BaseException) -> bool:
    """Whether the error comes from the end of another process of the fit."""
    text = str(error).lower()
    return trainer.world_size > 1 and isinstance(error, RuntimeError) and any(each in text for each in LOST)


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

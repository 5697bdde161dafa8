"""One progress bar for a fit, whether its epochs are rounds or thousands of batches, and a log line per epoch."""

import logging
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ProgressBar

from torchrank.progress import bar

log = logging.getLogger(__name__)


class FitProgress(ProgressBar):
    """Appears on a terminal after two seconds, with the monitored validation measure; says why a ranker ended its fit.

    The log has a line per epoch, whether the bar is shown or not.
    """

    def __init__(self, monitor: str, delay: float = 2.0):
        super().__init__()
        self.monitor, self.delay = monitor, delay
        self._shown = True
        self._bar: Any = None

    def disable(self) -> None:
        self._shown = False

    def enable(self) -> None:
        self._shown = True

    def _open(self, what: str, total: float) -> None:
        whole = int(total) if total != float("inf") else None
        self._bar = bar(total=whole, desc=what, delay=self.delay, shown=self._shown)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_train_start(self, trainer: Trainer, ranker: LightningModule) -> None:
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else float("inf")
        self._open("fit", epochs * trainer.num_training_batches)
        self._bar.update(trainer.current_epoch * int(trainer.num_training_batches))

    def on_train_batch_end(self, trainer: Trainer, ranker: LightningModule, *_: Any) -> None:
        self._bar.update(1)

    def on_validation_end(self, trainer: Trainer, ranker: LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        if trainer.state.fn == "fit" and value is not None:
            self._bar.set_postfix({self.monitor: f"{float(value):.4f}"}, refresh=False)

    def on_train_epoch_end(self, trainer: Trainer, ranker: LightningModule) -> None:
        if trainer.is_global_zero:
            shown = (name for name in trainer.callback_metrics if name == self.monitor or not name.startswith("val/"))
            values = (f"{name} {float(trainer.callback_metrics[name]):.6g}" for name in sorted(shown))
            log.info(f"epoch {trainer.current_epoch + 1}: {', '.join(values) or 'done'}")

    def on_train_end(self, trainer: Trainer, ranker: LightningModule) -> None:
        reason = getattr(ranker, "findings", {}).get("ended")
        if reason:
            text = f"The fit ended after {trainer.global_step} rounds: {reason}."
            log.info(text)
            if not self._bar.disable:
                self._bar.write(text)
        self._close()

    def on_exception(self, trainer: Trainer, ranker: LightningModule, exception: BaseException) -> None:
        self._close()

    def on_test_start(self, trainer: Trainer, ranker: LightningModule) -> None:
        self._open("test", sum(trainer.num_test_batches))

    def on_test_batch_end(self, trainer: Trainer, ranker: LightningModule, *_: Any) -> None:
        self._bar.update(1)

    def on_test_end(self, trainer: Trainer, ranker: LightningModule) -> None:
        self._close()

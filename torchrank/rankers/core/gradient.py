"""The base class of rankers that learn by gradient."""

from typing import Any

import torch

from torchrank.rankers.core.optimizers import Optimization, Option
from torchrank.rankers.core.ranker import Ranker, TransformOption


class GradientRanker(Ranker):
    """A ranker that learns by gradient: a subclass defines `score(batch)` and `loss(batch)`, and has parameters.

    `score` gives a score (N,) for every entry of a batch of lists, `loss` a value (Q,) for every list. Fits with and
    without a Trainer, several processes, validation, early stopping, checkpoints and resume come from the base class.
    For a network that scores rows and a loss of your own, `NeuralRanker` needs no subclass.

    Args:
        num_features: number of columns of the rows.
        transform: feature transform, see `make_transform`.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.
        clip: largest norm of the gradient of a step; longer ones are shortened to it.

    Example:
        >>> import torch
        >>> from torchrank import RankingSet
        >>> from torchrank.functional import listnet_loss
        >>> class Linear(GradientRanker):
        ...     def __init__(self, num_features, lr=0.1):
        ...         super().__init__(num_features, transform="standard", lr=lr)
        ...         self.weight = torch.nn.Parameter(torch.zeros(num_features))
        ...     def score(self, batch):
        ...         return batch.at_entries(batch.x @ self.weight.to(batch.x.dtype))
        ...     def loss(self, batch):
        ...         return listnet_loss(self.score(batch), batch.labels, batch.lists)
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> Linear(1).fit(lists, epochs=5).rank(x, offsets)
        tensor([1, 2, 0])
    """

    def __init__(
        self,
        num_features: int,
        transform: TransformOption = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
        clip: float | None = None,
    ):
        super().__init__(num_features, transform)
        self.optimization = Optimization(optimizer, scheduler, lr, weight_decay, clip)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's hook: `clip`, and whatever the trainer clips by itself."""
        if self.optimization.clip is not None:
            self.clip_gradients(optimizer, self.optimization.clip, "norm")
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_train_epoch_end(self) -> None:
        """Lightning's hook: a schedule that watches a measure takes its step before the checkpoint of the epoch is
        written. Lightning would take it afterwards, so that a resumed fit would miss it."""
        for each in self.trainer.lr_scheduler_configs:
            value = self.trainer.callback_metrics.get(str(each.monitor))
            if each.reduce_on_plateau and each.interval == "epoch" and value is not None:
                plateau: Any = each.scheduler
                plateau.step(value)
                self.kept.ahead = plateau

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Lightning's hook: the step of a schedule, unless it was taken at the end of this epoch."""
        if vars(self.kept).pop("ahead", None) is not scheduler:
            super().lr_scheduler_step(scheduler, metric)

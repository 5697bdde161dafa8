"""Optimizers and learning-rate schedules of torch, chosen by name with plain options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from torchrank.errors import check_choice, check_integer, check_number
from torchrank.record import smaller_is_better

Option = str | dict[str, Any]  # a name, or a dict with a name and options
INTERVALS = ("epoch", "step")


@dataclass(frozen=True)
class Optimization:
    """How a ranker that learns by gradient is optimized.

    Args:
        optimizer: the name of a class of `torch.optim`, or a dict with its `name` and options.
        scheduler: the name of a class of `torch.optim.lr_scheduler`, or a dict with its `name` and options. Beside
            them, `warmup` is a number of steps over which the learning rate first rises from 0, `interval` says
            whether the schedule counts "epoch"s or (also for the warm-up) every optimizer "step", and `monitor` is
            what ReduceLROnPlateau watches. Without a name there is only the warm-up.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        clip: largest norm of the gradient of a step; longer ones are shortened to it.

    Example:
        >>> schedule = {"name": "StepLR", "step_size": 5, "warmup": 2}
        >>> choice = Optimization({"name": "SGD", "momentum": 0.9}, schedule, lr=0.1)
        >>> made = choice.make([nn.Parameter(torch.zeros(1))])
        >>> type(made["optimizer"]).__name__, made["lr_scheduler"]["interval"]
        ('SGD', 'epoch')
    """

    optimizer: Option = "Adam"
    scheduler: Option | None = None
    lr: float = 1e-3
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        check_number("> 0", clip=self.clip)
        self.make([nn.Parameter(torch.zeros(1))])  # a misspelt name or option is refused here, not in the first epoch

    def make(self, parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
        """The optimizer and the schedule, in Lightning's form."""
        optimizer = self._optimizer(parameters)
        if self.scheduler is None:
            return {"optimizer": optimizer}
        return {"optimizer": optimizer, "lr_scheduler": self._schedule(optimizer)}

    def _optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        name, options = _named(self.optimizer, "optimizer")
        make = _find(name, vars(torch.optim), torch.optim.Optimizer, "optimizer")
        given = {"lr": self.lr, "weight_decay": self.weight_decay}  # also 0: AdamW's own default is 0.01
        if not self.weight_decay and "weight_decay" not in inspect.signature(make).parameters:
            del given["weight_decay"]
        made: torch.optim.Optimizer = _call(make, parameters, **given | options)
        return made

    def _schedule(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        name, options = _named(self.scheduler, "scheduler")
        warmup, interval = options.pop("warmup", 0), options.pop("interval", "epoch")
        rules = {"interval": interval, "frequency": 1, "monitor": options.pop("monitor", "val/ndcg@10")}
        check_choice(INTERVALS, **{"scheduler.interval": interval})
        check_integer(">= 0", **{"scheduler.warmup": warmup})
        parts: list[Any] = []
        if warmup:
            parts.append(lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup))
        if name is not None:
            make = _find(name, vars(lr_scheduler), lr_scheduler.LRScheduler, "scheduler")
            if warmup and make is lr_scheduler.ReduceLROnPlateau:
                raise ValueError("scheduler.warmup cannot be combined with ReduceLROnPlateau: choose another schedule")
            if make is lr_scheduler.ReduceLROnPlateau:
                options = {"mode": "min" if smaller_is_better(rules["monitor"]) else "max"} | options
            parts.append(_call(make, optimizer, **options))
        if not parts:
            raise ValueError("scheduler needs a name of torch.optim.lr_scheduler, or warmup > 0")
        whole = parts[0] if len(parts) == 1 else lr_scheduler.SequentialLR(optimizer, parts, milestones=[warmup])
        return {"scheduler": whole, **rules}


def _named(option: Option | None, what: str) -> tuple[str | None, dict[str, Any]]:
    if isinstance(option, str):
        return option, {}
    if not isinstance(option, dict):
        raise ValueError(f"{what} must be a name, or a dict with a name and options, got {option!r}")
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in option.items()}
    return options.pop("name", None), options


def _find(name: str | None, where: dict[str, Any], kind: type, what: str) -> Any:
    """The class of this name, upper or lower case."""
    known = {each.lower(): each for each, value in where.items() if inspect.isclass(value) and issubclass(value, kind)}
    if str(name).lower() not in known or name in (kind.__name__, None):
        names = ", ".join(sorted(each for each in known.values() if each != kind.__name__))
        raise ValueError(f"unknown {what} {name!r}: choose one of {names}")
    return where[known[str(name).lower()]]


def _call(make: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return make(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"options of {make.__name__}: {error}") from error

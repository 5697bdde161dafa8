"""The dimensions of a search space: ranges and choices, as texts of Hydra's overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchrank.screen import WORDS, quoted


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; drawn on a logarithmic scale with `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def between(cls, low: float, high: float, log: bool = False) -> Range:
        """The range of two ends; whole numbers if both ends are.

        >>> Range.between(2, 8), Range.between(0.0, 1)
        (Range(low=2, high=8, log=False, whole=True), Range(low=0.0, high=1, log=False, whole=False))
        """
        if low >= high or (log and low <= 0):
            raise ValueError(f"a range needs low < high, and low > 0 with log, got low={low}, high={high}, log={log}")
        return cls(low, high, log, isinstance(low, int) and isinstance(high, int))

    def including(self, default: Any) -> Range:
        """The same range, widened to the default if that is a number: the first trial has it."""
        if isinstance(default, bool) or not isinstance(default, int | float) or (self.log and default <= 0):
            return self
        return replace(self, low=min(self.low, default), high=max(self.high, default))

    def draw(self, trial: Any, name: str) -> str:
        """The value that a trial of Optuna suggests, as text."""
        if self.whole:
            return repr(trial.suggest_int(name, int(self.low), int(self.high), log=self.log))
        return repr(float(f"{trial.suggest_float(name, self.low, self.high, log=self.log):.3g}"))

    def value_of(self, text: str) -> Any:
        """What Optuna is told for a text of an override; None, if the range does not have it."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            return None
        return value if self.low <= value <= self.high else None

    def __str__(self) -> str:
        return f"{self.low}..{self.high}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class Choices:
    """Some values, as texts of overrides."""

    values: tuple[str, ...]

    def including(self, default: Any) -> Choices:
        """The same choices and the default, which the first trial has."""
        text = as_text(default)
        return self if text in self.values else Choices((text, *self.values))

    def draw(self, trial: Any, name: str) -> str:
        """The value that a trial of Optuna suggests, as text."""
        return str(trial.suggest_categorical(name, list(self.values)))

    def value_of(self, text: str) -> Any:
        """What Optuna is told for a text of an override; None, if it is none of the choices."""
        return text if text in self.values else None

    def __str__(self) -> str:
        return "|".join(self.values)


Dimension = Range | Choices
Space = dict[str, Dimension]


def first_values(model: str, space: Mapping[str, Dimension], defaults: Mapping[str, str]) -> dict[str, Any]:
    """What Optuna is told so that a trial has the defaults; a default that the space does not have is left out.

    >>> first_values("a", {"model.lr": Range(0.1, 1.0)}, {"model.lr": "0.5"})
    {'model': 'a', 'a/model.lr': 0.5}
    """
    known = {f"{model}/{key}": each.value_of(defaults[key]) for key, each in space.items()}
    return {"model": model} | {key: value for key, value in known.items() if value is not None}


def draw(trial: Any, spaces: Mapping[str, Mapping[str, Dimension]]) -> tuple[str, list[str]]:
    """The model and the overrides that a trial of Optuna suggests."""
    model = str(trial.suggest_categorical("model", list(spaces)))
    return model, [f"{key}={each.draw(trial, f'{model}/{key}')}" for key, each in spaces[model].items()]


def as_text(value: Any) -> str:
    """A value as Hydra reads it on the command line.

    >>> as_text(None), as_text(1e-5), as_text({"hidden": [64, 32], "kind": "a b"})
    ('null', '1e-05', '{hidden:[64,32],kind:"a b"}')
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(as_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    return str(value) if str(value).isidentifier() and str(value).lower() not in WORDS else quoted(str(value))

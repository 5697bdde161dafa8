"""What a round of a fit found, and a round as a step of an optimizer: Lightning then counts, saves and logs rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

NOTHING: Mapping[str, Any] = {}


class Certificate(NamedTuple):
    """How near a fit is to its proof: the fit is proved where `found` is at most `limit`.

    Args:
        name: what is measured, such as gap or gradient.
        found: its value after the last round.
        limit: the largest value that proves the fit.
        bounds: further values that the proof rests on, by name, such as the two ends of a gap.

    Example:
        >>> certificate = Certificate("gap", 0.002, 0.01, {"upper": 1.5, "lower": 1.498})
        >>> certificate.proved, str(certificate)
        (True, 'gap 0.002 (proved, limit 0.01), upper 1.5, lower 1.498')
    """

    name: str
    found: float
    limit: float
    bounds: Mapping[str, float] = NOTHING  # what else it rests on

    @property
    def proved(self) -> bool:
        return self.found <= self.limit

    def __str__(self) -> str:
        verdict = "proved" if self.proved else "not proved"
        bounds = "".join(f", {name} {value:.4g}" for name, value in self.bounds.items())
        return f"{self.name} {self.found:.4g} ({verdict}, limit {self.limit:.4g}){bounds}"


class Round(NamedTuple):
    """What one round found.

    Args:
        done: whether the fit has converged.
        log: values to log, by name.
        certificate: how near the fit is to its proof, where it has one.
        findings: what else there is to say, plain values, for results.json; they replace those of the rounds before.

    Example:
        >>> found = Round(done=False, log={"train/gap": 0.2}, certificate=Certificate("gap", 0.2, 0.01))
        >>> found.done, found.certificate.proved, dict(found.findings)
        (False, False, {})
    """

    done: bool
    log: Mapping[str, float | Tensor] = NOTHING
    certificate: Certificate | None = None
    findings: Mapping[str, Any] = NOTHING


class RoundOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is a round, so that steps, checkpoints and loggers count rounds."""

    def __init__(self, ranker: Any):
        super().__init__([ranker.step_token], {})
        self.ranker = ranker

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        found = self.ranker.take_round(self.ranker.trainer.current_epoch)
        self.ranker.log_dict(dict(found.log))

"""What a worker is asked to do, and what it answers: plain values that pass between processes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrank.files import write_atomically
from torchrank.record import STOPPED

COMPLETE, PRUNED, FAILED, EXCEEDED, REPEATED = "complete", "pruned", "failed", "exceeded", "repeated"


@dataclass(frozen=True)
class Job:
    """One run: its overrides, its folder, and its limit."""

    overrides: tuple[str, ...]
    folder: str
    cpu_seconds: float | None = None
    watched: bool = False  # asks after every rung whether to go on
    costs: bool = False  # measures the time to score and the size of the model too


@dataclass(frozen=True)
class Outcome:
    """How a run has ended."""

    state: str
    value: float | None = None
    reason: str = ""
    cpu_seconds: float | None = None
    validations: int = 0

    def leave_in(self, folder: Path) -> None:
        """Say in the folder of a run without results why it has none."""
        content: dict[str, Any] = {"state": self.state, "reason": self.reason, "validations": self.validations}
        if self.state != COMPLETE and folder.is_dir():
            write_atomically(folder / STOPPED, lambda file: file.write(json.dumps(content, indent=1).encode()))

"""Many studies in one pool: each takes its trials one after the other, so that it does not depend on the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrank.tuning.jobs import COMPLETE, Job, Outcome
from torchrank.tuning.study import Plan, Study


@dataclass
class Entry:
    """A study of the board: opened when its first job is wanted, closed when it has none left."""

    name: str
    fold: str
    plan: Plan
    study: Study | None = None
    found: dict[str, Any] | None = None  # the content of study.json, when all is done
    begun: int = 0
    busy: bool = False

    def next_job(self, closing: bool) -> Job | None:
        """The next job; None when there is none left."""
        self.study = self.study or Study(self.plan)
        self.study.closing = self.study.closing or closing
        job = self.study.next_job()
        if job is None:
            self.found = {**self.study.write(), "gave_up": self.study.gave_up}
            self.study.close()
            self.study = None
        else:
            self.begun += 1
            self.busy = True
        return job


class Board:
    """A source of the jobs of many studies, and of those that come after them.

    Args:
        entries: the studies; those with the fewest trials come first.
        later: makes the jobs that need the results of all studies, such as ensembles, by their names.
        until: the time (of `time.monotonic`) after which no further trials begin.
        tell: called with every study that is done.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        later: Callable[[], dict[str, Job]] = dict,
        until: float | None = None,
        tell: Callable[[Entry], None] = lambda entry: None,
    ):
        self.entries, self.later, self.until, self.tell = list(entries), later, until, tell
        self.owners: dict[str, Entry] = {}
        self.last: dict[str, Job] | None = None  # jobs after all studies
        self.failures: dict[str, str] = {}  # of these jobs, by name

    def next_job(self) -> Job | None:
        """A job of the idle study with the fewest trials; after all studies, one of those that need them."""
        closing = self.until is not None and time.monotonic() > self.until
        waiting = [entry for entry in self.entries if entry.found is None and not entry.busy]
        for entry in sorted(waiting, key=lambda entry: entry.begun):
            if (job := entry.next_job(closing)) is not None:
                self.owners[job.folder] = entry
                return job
            self.tell(entry)
        return None if any(entry.busy for entry in self.entries) else self._next_later()

    def _next_later(self) -> Job | None:
        if self.last is None:
            self.last = self.later()
            self.names = {job.folder: name for name, job in self.last.items()}
        return self.last.pop(next(iter(self.last))) if self.last else None

    def goes_on(self, job: Job, count: int, best: float) -> bool:
        """Whether a trial should go on: its study knows."""
        study = self.owners[job.folder].study
        return study is None or study.goes_on(job, count, best)

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Tell the study of a job what came of it."""
        entry = self.owners.pop(job.folder, None)
        if entry is None:
            outcome.leave_in(Path(job.folder))
            if outcome.state != COMPLETE:
                self.failures[self.names[job.folder]] = outcome.reason
        elif entry.study is not None:
            entry.busy = False
            entry.study.finish(job, outcome)

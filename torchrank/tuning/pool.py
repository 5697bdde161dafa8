"""Worker processes, and the loop that gives them the jobs of studies and tells the studies what came of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as connections
from typing import Any, Protocol

from torchrank.tuning.jobs import EXCEEDED, FAILED, Job, Outcome
from torchrank.tuning.worker import DONE, READY, RUNG, exceeded, work

THREADS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


PATIENCE = 5.0  # seconds that an idle worker has to end by itself
LEAKS = "ignore::UserWarning:multiprocessing.resource_tracker"  # of workers that the system has ended


class Source(Protocol):
    """Where jobs come from: a study."""

    def next_job(self) -> Job | None:
        """A job to carry out now; None, if there is none at present, or none any more."""

    def goes_on(self, job: Job, count: int, best: float) -> bool:
        """Whether a watched job should go on, after so many validations."""

    def finish(self, job: Job, outcome: Outcome) -> None:
        """A job has ended."""


class Worker:
    """A process with one thread, and the job that it is carrying out."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        self.process = context.Process(target=work, args=(other,))
        with one_thread():
            self.process.start()
        other.close()
        self.ready = False
        self.task: tuple[Source, Job] | None = None

    def give(self, source: Source, job: Job) -> None:
        """Start a job. A worker that is not ready yet reads it when it is."""
        self.task = source, job
        self.line.send(job)

    def end(self) -> None:
        """End the process: an idle one by itself, a busy one now."""
        self.line.close()
        self.process.join(0 if self.task else PATIENCE)
        self.process.kill()
        self.process.join()


def run_studies(sources: Sequence[Source], workers: int) -> None:
    """Carry out all jobs of the studies, at most `workers` at a time. Earlier studies come first.

    Args:
        sources: the studies.
        workers: processes.
    """
    pool: list[Worker] = []
    with ended_by_signals():
        try:
            while True:
                _hand_out(pool, sources, workers)
                busy = [worker for worker in pool if worker.task]
                if not busy:
                    return
                for line in connections.wait([worker.line for worker in busy]):
                    _listen(pool, next(worker for worker in busy if worker.line is line))
        finally:
            for worker in pool:
                worker.end()


def _hand_out(pool: list[Worker], sources: Sequence[Source], workers: int) -> None:
    """Give every idle worker a job, and start workers while there are jobs for them."""
    while True:
        idle = next((worker for worker in pool if not worker.task), None)
        if idle is None and len(pool) == workers:
            return
        found = next(((source, job) for source in sources if (job := source.next_job()) is not None), None)
        if found is None:
            return
        if idle is None:
            idle = Worker()
            pool.append(idle)
        idle.give(*found)


def _listen(pool: list[Worker], worker: Worker) -> None:
    """Hear one thing that a worker says, or that it has ended."""
    assert worker.task is not None
    source, job = worker.task
    try:
        said, value = worker.line.recv()
    except (EOFError, OSError):
        worker.process.join()
        pool.remove(worker)
        if not worker.ready:
            raise RuntimeError("a worker process could not start, see above") from None
        source.finish(job, _death(worker.process.exitcode, job))
        return
    if said == READY:
        worker.ready = True
    elif said == RUNG:
        with suppress(OSError):
            worker.line.send(source.goes_on(job, *value))
    elif said == DONE:
        worker.task = None
        source.finish(job, value)


def _death(code: int | None, job: Job) -> Outcome:
    """The outcome of a run whose process has ended."""
    limit = getattr(signal, "SIGXCPU", None)
    if limit is not None and code == -limit and job.cpu_seconds is not None:
        return Outcome(EXCEEDED, reason=exceeded(job.cpu_seconds), cpu_seconds=job.cpu_seconds)
    names = {-each.value: each.name for each in signal.Signals}
    return Outcome(FAILED, reason=f"its process was ended by {names.get(code or 0, f'exit code {code}')}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Processes that are started here have one thread each, so that they do not compete, and end without a word."""
    before = {name: os.environ.get(name) for name in (*THREADS, "PYTHONWARNINGS")}
    warned = ",".join(filter(None, (before["PYTHONWARNINGS"], LEAKS)))
    os.environ |= dict.fromkeys(THREADS, "1") | {"PYTHONWARNINGS": warned}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A SIGTERM ends this process by an exception, so that its workers end with it."""

    def leave(*_: Any) -> None:
        sys.exit(128 + signal.SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

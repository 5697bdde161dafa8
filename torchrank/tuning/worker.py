"""A process that carries out runs, one after the other: it imports torch once, and its end is one run's loss at most.

Imported before its number of threads is set, so torch comes inside the functions.
"""

from __future__ import annotations

import io
import json
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection as connections
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING

from torchrank.files import forget_peak_memory, write_atomically
from torchrank.mistakes import is_mistake, mistake
from torchrank.record import COSTS
from torchrank.screen import one_line
from torchrank.tuning.jobs import COMPLETE, EXCEEDED, FAILED, PRUNED, Job, Outcome
from torchrank.tuning.pruning import is_rung

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from pytorch_lightning import Callback

    from torchrank.data.sets import RankingSet
    from torchrank.rankers.core.ranker import Ranker

READY, RUNG, DONE = "ready", "rung", "done"  # what a worker says
LONG_ENOUGH, MOST, DOCUMENTS = 0.3, 1000, 20_000  # of measuring: CPU seconds, passes; documents of a batch
CHECKPOINT = "checkpoints/best.ckpt"  # below a run folder


class Stopped(Exception):
    """A trial is given up, or its time is over."""

    def __init__(self, outcome: Outcome):
        super().__init__(outcome.state)
        self.outcome = outcome


def work(line: connections.Connection) -> None:
    """Carry out the jobs that come in, until the other end is closed."""
    import torch

    import torchrank.run  # noqa: F401 (the first job should not pay for it)

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    line.send((READY, None))
    _be_quiet()
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            line.send((DONE, carry_out(line.recv(), line)))


def _end_with_parent() -> None:
    """Nobody would read what this process finds."""
    parent = parent_process()
    if parent is not None:
        connections.wait([parent.sentinel])
        os._exit(1)


def _be_quiet() -> None:
    """What runs print is in their logs."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def carry_out(job: Job, line: connections.Connection) -> Outcome:
    """One run; whatever goes wrong is an outcome, too."""
    from torchrank.train import CONF
    from torchrank.train import carry_out as compose

    start = time.process_time()
    _limit(job.cpu_seconds)
    forget_peak_memory()
    found: list[Outcome] = []
    try:
        compose(job.overrides, lambda config, folder: found.append(_run(job, config, folder, start, line)))
        outcome = found[0]
    except Stopped as end:
        outcome = end.outcome
    except Exception as error:
        told = mistake(error, CONF) if is_mistake(error) else f"{type(error).__name__}: {one_line(error)}"
        outcome = Outcome(FAILED, reason=told)
    finally:
        _limit(None)
    spent = time.process_time() - start
    return Outcome(outcome.state, outcome.value, outcome.reason, spent, outcome.validations)


def _limit(seconds: float | None) -> None:
    """Let the system end this process after so much more CPU time, whatever it is doing; not possible on Windows."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = resource.RLIM_INFINITY if seconds is None else math.ceil(time.process_time() + seconds)
    if hard != resource.RLIM_INFINITY:
        soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _run(job: Job, config: DictConfig, folder: Path, start: float, line: connections.Connection) -> Outcome:
    from torchrank.run import run_once

    watch = watcher(config, job, start, line) if job.watched else None
    results = run_once(config, folder, [watch] if watch is not None else [])
    if results is None:
        return Outcome(FAILED, reason="the package of its model is not installed")
    if job.costs and not (folder / COSTS).exists():
        write_costs(config, folder)
    value = results["selection"]["value"]
    return Outcome(COMPLETE, None if value is None else float(value), validations=getattr(watch, "count", 0))


def watcher(config: DictConfig, job: Job, start: float, line: connections.Connection) -> Callback:
    """A callback that asks after every rung of validations whether to go on."""
    from pytorch_lightning import Callback, LightningModule, Trainer

    better: Callable[[float, float], float] = max if config.mode == "max" else min

    class Watch(Callback):
        count, best = 0, math.nan

        def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
            if trainer.state.fn != "fit" or trainer.sanity_checking:
                return
            self.count += 1
            value = float(trainer.callback_metrics.get(config.monitor, math.nan))
            self.best = value if math.isnan(self.best) else self.best if math.isnan(value) else better(self.best, value)
            if job.cpu_seconds is not None and time.process_time() - start > job.cpu_seconds:
                raise Stopped(Outcome(EXCEEDED, reason=exceeded(job.cpu_seconds), validations=self.count))
            if is_rung(self.count) and not self.goes_on():
                told = f"{config.monitor} {self.best:.4f} after {self.count} validations, worse than the median"
                raise Stopped(Outcome(PRUNED, self.best, told, validations=self.count))

        def goes_on(self) -> bool:
            line.send((RUNG, (self.count, self.best)))
            return bool(line.recv())

    return Watch()


def exceeded(seconds: float) -> str:
    """Why a trial without an end is one."""
    return f"more than {seconds:g} CPU seconds"


# ---- what a fitted ranker costs --------------------------------------------------------------------------------------


def write_costs(config: DictConfig, folder: Path) -> None:
    """Measure the ranker of a finished run: CPU microseconds per document to score, bytes of its state."""
    import torch

    from torchrank.rankers.core.checkpoints import load
    from torchrank.run import own_names, read_data

    lists = read_data(config).sets
    scored = lists["test" if "test" in lists else "val"]
    ranker = load(config.ckpt_path or folder / CHECKPOINT, **own_names(config.model)).eval()
    state = io.BytesIO()
    torch.save(ranker.state_dict(), state)
    with torch.inference_mode():
        _score(ranker, scored)  # the first pass may load or compile something
        start, passes = time.process_time(), 0
        while (spent := time.process_time() - start) < LONG_ENOUGH and passes < MOST:
            _score(ranker, scored)
            passes += 1
    costs = {"microseconds": 1e6 * spent / passes / max(1, int(scored.lengths.sum())), "bytes": state.tell()}
    write_atomically(folder / COSTS, lambda file: file.write(json.dumps(costs, indent=1).encode()))


def _score(ranker: Ranker, lists: RankingSet) -> None:
    """Score all lists from raw rows, in batches as `torchrank score` makes them."""
    from torchrank.data.sampler import ranges

    for first, last in ranges(lists.lengths, DOCUMENTS, 0, len(lists)):
        batch = lists[first:last]
        given = {"index": batch.index, "queries": batch.queries}
        ranker(batch.x, batch.offsets, **{name: each for name, each in given.items() if each is not None})

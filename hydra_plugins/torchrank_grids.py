"""A Hydra sweeper for tables: a union of grids, so that every model of a sweep has its own settings.

```yaml
# @package _global_
defaults:
  - override /hydra/sweeper: torchrank_grids
hydra:
  sweeper:
    params: {data.fold: "1,2,3,4,5"}  # swept with every grid
    grids:
      - {model: listnet, model.l2: "1e-4,1e-3,1e-2"}
      - {model: gbdt}
    jobs: 2  # processes in parallel
    select: true  # print the table of `torchrank select --brief` at the end
```

The command line has precedence: `model=listnet` keeps only the jobs of that model (the same holds for every config
group that a grid chooses), a value for a key that `params` or a grid sweeps replaces its values there, and any other
override is added to every job. Hydra first composes the default model with it, so a single value for a setting that
only another model has needs that `model=` as well. Folders named by `hydra.job.override_dirname` make such a sweep
resumable.

With `jobs: N` the command starts itself N times as workers, each with its share of the cores (unless OMP_NUM_THREADS is
set). A worker takes the next job that no other worker has taken, so its imports are paid for once.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException


@dataclass
class GridsSweeperConf:
    _target_: str = "hydra_plugins.torchrank_grids.GridsSweeper"
    max_batch_size: int | None = None
    params: dict[str, Any] | None = None
    grids: list[dict[str, Any]] | None = None
    jobs: int = 1
    select: bool = False


TAKEN = "TORCHRANK_SWEEP_TAKEN"  # set for workers: the folder with one file per job already taken

ConfigStore.instance().store(group="hydra/sweeper", name="torchrank_grids", node=GridsSweeperConf, provider="torchrank")


class GridsSweeper(BasicSweeper):
    """Hydra's own sweeper with another list of jobs; `split_arguments` receives the whole command line."""

    hydra_context: Any  # set by setup(), before sweep()

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Mapping[str, Any] | None = None,
        grids: Sequence[Mapping[str, Any]] | None = None,
        jobs: int = 1,
        select: bool = False,
    ) -> None:
        if jobs < 1:
            raise HydraException(f"hydra.sweeper.jobs must be >= 1, got {jobs}")
        super().__init__(max_batch_size if jobs == 1 else None, dict(params or {}))
        self.grids, self.jobs, self.select = [dict(grid) for grid in grids or [{}]], jobs, select
        self._groups: dict[str, bool] = {}

    def setup(self, **given: Any) -> None:
        super().setup(**given)
        if TAKEN in os.environ:
            self.launcher: Any = Worker(self.launcher, Path(os.environ[TAKEN]))
        elif self.jobs > 1:
            self.launcher = Workers(self.jobs, str(given["config"].hydra.sweep.dir))

    def sweep(self, arguments: list[str]) -> Any:
        found = super().sweep(arguments)
        if self.select and TAKEN not in os.environ:
            from torchrank.cli import main

            main(["select", str(self.config.hydra.sweep.dir), "--brief"])
        return found

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Compose one job of each kind (same choices, same keys with any values); Hydra would compose all of them."""
        if TAKEN not in os.environ:  # otherwise the process that started this one has done it
            kinds = {tuple(self._kind(line) for line in job): job for job in batch}
            super().validate_batch_is_legal(list(kinds.values()))

    def _kind(self, line: str) -> str:
        key = line.split("=", 1)[0]
        return line if self._is_group(key) else key

    def _parse_config(self) -> list[str]:
        return []  # `params` join each grid below, under the command line

    def split_arguments(  # type: ignore[override]  # static in Hydra, but always called through self
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """All jobs in batches; a job that is in two grids runs once."""
        line = {_key(override): override for override in overrides}
        params, grids = self._parse(self.params), [self._parse(grid) for grid in self.grids]
        swept = set(params).union(*grids)
        groups = {key for key in line if self._is_group(key)}
        jobs: dict[tuple[str, ...], None] = {}
        for grid in grids:
            narrowed = groups & grid.keys()  # chosen by the grid and by the command line: the common choices stay
            replaced = line.keys() & (params.keys() | grid.keys()) - narrowed
            added = line.keys() - swept | groups - grid.keys()
            wanted = params | grid | {key: line[key] for key in line if key in replaced | added}
            allowed = [_lines(line[key]) for key in narrowed]
            found = BasicSweeper.split_arguments(list(wanted.values()), None)[0]
            jobs |= {tuple(job): None for job in found if all(lines & set(job) for lines in allowed)}
        if not jobs:
            asked = " ".join(str(line[key].input_line) for key in line if key in groups)
            raise HydraException(f"no grid of this sweep has {asked}: the grids are {self.grids}")
        return list(self.split_overrides_to_chunks([list(job) for job in jobs], max_batch_size))

    def _parse(self, settings: Mapping[str, Any]) -> dict[str, Override]:
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        lines = [f"{key}={'null' if value is None else value}" for key, value in settings.items()]
        return {_key(override): override for override in parser.parse_overrides(lines)}

    def _is_group(self, key: str) -> bool:
        """Whether a key is a config group; remembered, since Hydra searches folders."""
        if key not in self._groups:
            self._groups[key] = bool(self.hydra_context.config_loader.get_group_options(key))
        return self._groups[key]


class Workers:
    """Runs all jobs of a sweep by starting this command again as several parallel processes."""

    def __init__(self, count: int, folder: str):
        self.count, self.folder = count, folder

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list:
        count = min(self.count, len(job_overrides))
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
        command = [sys.executable, *sys.orig_argv[1:], f"hydra.sweep.dir='{self.folder}'"]  # it may contain the time
        with tempfile.TemporaryDirectory() as taken:
            environment = os.environ | {TAKEN: taken, "OMP_NUM_THREADS": threads, "TQDM_DISABLE": "1"}
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers end with this process
            workers = [subprocess.Popen(command, env=environment) for _ in range(count)]
            try:
                failed = sum(worker.wait() != 0 for worker in workers)
            finally:
                signal.signal(signal.SIGTERM, before)
                for worker in workers:
                    worker.terminate()
        if failed:
            raise HydraException(f"{failed} of {count} workers failed, see above. A new start skips finished runs.")
        return []


class Worker:
    """Runs the jobs that no other worker has taken, one after the other, with Hydra's own launcher."""

    def __init__(self, launcher: Any, taken: Path):
        self.launcher, self.taken = launcher, taken

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list:
        done = []
        for number, job in enumerate(job_overrides, start=initial_job_idx):
            if self._take(number):
                done += self.launcher.launch([job], initial_job_idx=number)
        return done

    def _take(self, number: int) -> bool:
        try:
            (self.taken / str(number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _lines(override: Override) -> set[str]:
    """The lines that an override can add to a job: `{"model=a", "model=b"}` for `model=a,b`."""
    return {line for job in BasicSweeper.split_arguments([override], None)[0] for line in job}


def _key(override: Override) -> str:
    return override.key_or_group if override.package is None else f"{override.key_or_group}@{override.package}"

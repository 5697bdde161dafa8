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

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf, open_dict

from torchrank.screen import override, quoted


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


class GridsSweeper(Sweeper):
    """Runs all jobs of the grids, one by one or in several processes. A job that fails does not end the sweep."""

    hydra_context: Any  # set by setup(), before sweep()
    launcher: Any

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
        self.max_batch_size, self.params = max_batch_size if jobs == 1 else None, dict(params or {})
        self.grids, self.jobs, self.select = [dict(grid) for grid in grids or [{}]], jobs, select
        self._groups: dict[str, bool] = {}

    def setup(self, **given: Any) -> None:
        self.hydra_context, self.config = given["hydra_context"], given["config"]
        self.launcher = Plugins.instance().instantiate_launcher(**given)
        if TAKEN in os.environ:
            self.launcher = Worker(self.launcher, Path(os.environ[TAKEN]))
        elif self.jobs > 1:
            self.launcher = Workers(self.jobs, self.folder)

    @property
    def folder(self) -> str:
        return str(self.config.hydra.sweep.dir)

    def sweep(self, arguments: list[str]) -> Any:
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        jobs = self.expand(parser.parse_overrides(arguments))
        self._name_folders(jobs)
        self.validate_batch_is_legal(jobs)
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, Path(self.folder) / "multirun.yaml")
        try:
            returns = self._launch(jobs)
        except HydraException:
            self._conclude()
            raise
        self._conclude()
        return returns

    def _name_folders(self, jobs: list[list[str]]) -> None:
        """Options that are left out of the names of folders, such as data.root, are named where the sweep varies them:
        otherwise one run would take the place of the other."""
        left_out = list(self.config.hydra.job.config.override_dirname.exclude_keys)
        values = {key: {line for job in jobs for line in job if line.startswith(f"{key}=")} for key in left_out}
        kept = [key for key in left_out if len(values[key]) < 2]
        if kept != left_out:
            with open_dict(self.config):
                self.config.hydra.overrides.hydra.append(
                    f"hydra.job.config.override_dirname.exclude_keys=[{','.join(kept)}]"
                )

    def _launch(self, jobs: list[list[str]]) -> list[Sequence[JobReturn]]:
        """All jobs, in batches; what failed is told when all have ended."""
        size = self.max_batch_size if self.max_batch_size and self.max_batch_size > 0 else len(jobs)
        returns = [self.launcher.launch(jobs[i : i + size], initial_job_idx=i) for i in range(0, len(jobs), size)]
        done = [job for batch in returns for job in batch]
        failed = [job for job in done if job.status == JobStatus.FAILED]
        if failed:
            raise HydraException(
                f"{len(failed)} of {len(done)} runs failed, see above (first: {' '.join(failed[0].overrides or [])}). "
                f"The same command with {override('hydra.sweep.dir', self.folder)} skips finished runs."
            ) from failed[0]._return_value
        return returns

    def _conclude(self) -> None:
        """Print the table, if there is a result; leave nothing behind, if no job has begun."""
        if TAKEN in os.environ:  # the process that started this one does it
            return
        from torchrank.cli import main
        from torchrank.record import RESULTS, forget_start

        if self.select and any(Path(self.folder).rglob(RESULTS)):
            main(["select", self.folder, "--brief"])
        forget_start(Path(self.folder))

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Compose one job of each kind (same choices, same keys with any values); Hydra would compose all of them."""
        if TAKEN not in os.environ:  # otherwise the process that started this one has done it
            kinds = {tuple(self._kind(line) for line in job): job for job in batch}
            super().validate_batch_is_legal(list(kinds.values()))

    def _kind(self, line: str) -> str:
        key = line.split("=", 1)[0]
        return line if self._is_group(key) else key

    def expand(self, overrides: list[Override]) -> list[list[str]]:
        """The jobs of all grids under the whole command line; a job that is in two grids runs once."""
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
            found = itertools.product(*map(_lines, wanted.values()))
            jobs |= {job: None for job in found if all(set(lines) & set(job) for lines in allowed)}
        if not jobs:
            asked = " ".join(str(line[key].input_line) for key in line if key in groups)
            raise HydraException(f"no grid of this sweep has {asked}: the grids are {self.grids}")
        return [list(job) for job in jobs]

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
        command = [
            sys.executable,
            *sys.orig_argv[1:],
            f"hydra.sweep.dir={quoted(self.folder)}",
        ]  # it may contain the time
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


def _lines(override: Override) -> list[str]:
    """The lines that an override can add to a job: `["model=a", "model=b"]` for `model=a,b`."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise HydraException(f"{override.input_line} is not a list of values: a grid needs one, such as {key}=1,2,3")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _key(override: Override) -> str:
    return override.key_or_group if override.package is None else f"{override.key_or_group}@{override.package}"

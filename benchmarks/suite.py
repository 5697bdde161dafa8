"""What all benchmarks share: a row of the table, the timer, and what a run was asked for."""

import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, beside a peer or a limit.

    `ratio` is always ours / theirs, so less is better, and `bar` is the ratio wanted at most. `earlier` is the ratio
    wanted at most to the revision of `--against`, and `curve` has the sizes and times that a figure was fitted to.
    """

    name: str
    ours: float | None = None
    unit: str = "s"
    peer: str = ""
    theirs: float | None = None
    bar: float | None = None
    note: str = ""
    earlier: float | None = None
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def missed(self) -> bool:
        return self.bar is not None and self.ratio is not None and not self.ratio <= self.bar


@dataclass(frozen=True)
class Setting:
    """What a run was asked for.

    Args:
        quick: tiny sizes instead of real ones.
        device: cpu or cuda.
        threads: of torch.
        data: the folder of data sets.
        scale: sizes and repeats are multiplied by it.
        scratch: the folder in which large inputs are kept for the next run; None: in temporary ones.
        against: the revision that results are compared with.
    """

    quick: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 1
    data: Path | None = None
    scale: float = 1.0
    scratch: Path | None = None
    against: str | None = None

    def size(self, real: int, tiny: int) -> int:
        """The size or number of repeats to take."""
        return tiny if self.quick else max(tiny, round(real * self.scale))

    def clock(self, wall: bool = False) -> float:
        """CPU seconds of this process on one thread; with more of them, or on a device, the time that passes."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        alone = self.device.type == "cpu" and self.threads == 1 and not wall
        return time.process_time() if alone else time.perf_counter()

    def seconds(self, function: Callable[[], object], wall: bool = False) -> float:
        """The time of one call; `wall` asks for the time that passes."""
        start = self.clock(wall)
        function()
        return self.clock(wall) - start

    def race(self, *functions: Callable[[], object], repeats: int = 7, wall: bool = False) -> list[float]:
        """The best time of each function. They take turns, so that a busy machine slows down all of them alike."""
        times = [[self.seconds(each, wall) for each in functions] for _ in range(1 if self.quick else repeats)]
        return [min(each) for each in zip(*times, strict=True)]


class MissingPeerError(Exception):
    """A peer of a benchmark is not installed."""


def peer(name: str, extra: str = "bench") -> ModuleType:
    """The module of a peer, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPeerError(f"{name} is not installed: pip install 'torchrank-ltr[{extra}]'") from error


def in_process(code: str, *arguments: str) -> str:
    """What Python code prints in a process of its own, which finds the benchmarks wherever it starts."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout


class Finished(NamedTuple):
    """What a process took: CPU seconds of all its threads, seconds that passed, and its peak memory in MB.

    `own` is the part of the memory that is not pages of mapped files, at its peak; None where the system does not tell.
    """

    cpu: float
    wall: float
    peak: float
    own: float | None


def run_alone(program: str, *arguments: str, folder: str | Path, code: int = 0) -> Finished:
    """Run Python code in a process of its own, which has to end with this exit code; what it prints is dropped."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told, env=environment(), cwd=folder)
        own, ended = 0.0, 0
        while not ended:
            own = max(own, own_memory(process.pid))
            time.sleep(0.02)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            told.seek(0)
            lines = told.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"exit code {process.returncode} of {' '.join(arguments)}: {lines[-1] if lines else ''}")
    peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e6 / 1024)
    return Finished(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, peak, own or None)


def own_memory(number: int) -> float:
    """MB of a process that are not pages of mapped files; 0 where the system does not tell."""
    status = Path(f"/proc/{number}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024 / 1e6


def environment() -> dict[str, str]:
    """For a process of its own: it imports the sources that this one measures, and these benchmarks."""
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])) if path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def table(rows: Sequence[Row]) -> str:
    """All rows as a Markdown table."""
    lines = ["| what | torchrank | peer or limit | ratio | wanted | |", "|---|---|---|---|---|---|"]
    return "\n".join(lines + [_line(row) for row in rows])


def _line(row: Row) -> str:
    ours = "" if row.ours is None else amount(row.ours, row.unit)
    theirs = "" if row.theirs is None else f" {amount(row.theirs, row.unit)}"
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
    wanted = "" if row.bar is None else f"<= {row.bar:.3g}"
    note = "; ".join(part for part in ("**missed**" if row.missed else "", row.note) if part)
    cells = (row.name, ours, f"{row.peer}{theirs}", ratio, wanted, note)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def amount(value: float, unit: str) -> str:
    """Three significant digits with the unit; seconds in the unit that suits them."""
    for scale, name in ((1e6, "us"), (1e3, "ms")) if unit == "s" else ():
        if value * scale < 1000:
            return f"{value * scale:.3g} {name}"
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:.3g} {unit}".strip()


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores other programs keep busy; the load average still counts what ended a minute ago."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return os.getloadavg()[0]

    def idle() -> int:
        return sum(map(int, counters.read_text().splitlines()[0].split()[4:6]))

    start, before = time.perf_counter(), idle()
    time.sleep(seconds)
    free = (idle() - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - start)
    return max(0.0, (os.cpu_count() or 1) - free)


def machine() -> dict[str, str | int | float]:
    """What figures are measured on, and how busy it is at the moment."""
    return {
        "torch": torch.__version__,
        "cores": os.cpu_count() or 0,
        "processor": platform.processor() or platform.machine(),
        "load": round(busy_cores(), 1),
    }

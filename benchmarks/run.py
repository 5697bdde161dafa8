"""What all four benchmarks share: a case, the timer, the checkout of another version, and one line of the table.

Every side of a case is measured in CPU seconds on one thread. The sides take turns, so that a busy machine slows down
all of them alike, and the fastest turn of each side counts.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
BLOCK = 2e-3  # CPU seconds: fast functions are called again and again for so long before the clock is read
TURNS = 100  # at most, of one side
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


class Skipped(Exception):
    """This side of a case is not measured; the message says why."""


@dataclass(frozen=True)
class Setting:
    """What a run was asked for.

    Args:
        quick: take tiny sizes, and call everything once or twice.
        data: the folder of data sets; None if there is none.
        scratch: a folder for files that are made once and are read by all sides.
    """

    quick: bool
    data: Path | None
    scratch: Path


@dataclass(frozen=True)
class Sides:
    """The functions that a case compares.

    Args:
        ours: the call of torchrank.
        peers: for each peer a function that makes its call. It may raise `Skipped` or `ImportError`.
        unit: "s" if the time of a call is measured; "MB" and "CPU s" if the functions return the number themselves.
        quality: what is told about the result of each side, such as ("NDCG@10", 0.43).
    """

    ours: Callable[[], Any]
    peers: dict[str, Callable[[], Callable[[], Any]]] = field(default_factory=dict)
    unit: str = "s"
    quality: Callable[[Any], tuple[str, float]] | None = None


@dataclass(frozen=True)
class Case:
    """A row of the table; `prepare` makes its data and its functions. `seconds` are those that each side may take."""

    name: str
    prepare: Callable[[], Sides]
    seconds: float = 0.5


@dataclass(frozen=True)
class Row:
    """What was found: torchrank beside one peer, or beside none."""

    case: str
    ours: float | None = None
    unit: str = "s"
    peer: str = ""
    theirs: float | None = None
    ratio: float | None = None
    other: float | None = None  # of the other checkout
    new_over_old: float | None = None
    note: str = ""


# ---- the timer -------------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Timed:
    """A function with the best of its turns so far. The first call warms up what has to be loaded."""

    def __init__(self, function: Callable[[], Any], unit: str):
        self.function, self.unit, self.calls, self.turns = function, unit, 1, 1
        start = time.perf_counter()
        self.best = self._measure()
        self.spent = time.perf_counter() - start
        if unit == "s" and self.spent < 50 * BLOCK:
            self.best = self._measure()
            self.calls = max(1, min(10_000, int(BLOCK / max(self.best, 1e-7))))

    def _measure(self) -> float:
        start = cpu_seconds()
        for _ in range(self.calls):
            self.result = self.function()
        return (cpu_seconds() - start) / self.calls if self.unit == "s" else float(self.result)

    def turn(self) -> float:
        start, self.turns = time.perf_counter(), self.turns + 1
        self.best = min(self.best, self._measure())
        self.spent += time.perf_counter() - start
        return self.best


def take_turns(sides: list[Any], seconds: float) -> None:
    """Each side has turns until it has spent its seconds, so a slow one does not cost a fast one its repeats."""
    while busy := [side for side in sides if side.spent < seconds and side.turns < TURNS]:
        for side in busy:
            side.turn()


# ---- one case --------------------------------------------------------------------------------------------------------


def measured(benchmark: str, case: Case, setting: Setting, other: "Other | None") -> Iterator[Row]:
    """The rows of a case: one for each peer."""
    sides, peers, notes = case.prepare(), {}, {}
    ours = Timed(sides.ours, sides.unit)
    for name, make in sides.peers.items():
        try:
            peers[name] = Timed(make(), sides.unit)
        except (Skipped, ImportError) as error:
            notes[name] = f"{name}: not installed" if isinstance(error, ImportError) else f"{name}: {error}"
    elsewhere = other.start(benchmark, case.name) if other else None
    everyone = [ours, *peers.values()] + ([elsewhere] if elsewhere and not elsewhere.missing else [])
    if not setting.quick:
        take_turns(everyone, case.seconds)
    own: dict[str, Any] = {"case": case.name, "ours": ours.best, "unit": sides.unit}
    if elsewhere:
        notes["other"] = elsewhere.missing
        own |= {} if elsewhere.missing else {"other": elsewhere.best, "new_over_old": ours.best / elsewhere.best}
    for name, peer in peers.items() or {"": None}.items():
        found = [sides.quality(side.result) for side in (ours, peer) if side] if sides.quality else []
        told = f"{found[0][0]} {' / '.join(f'{value:.4g}' for _, value in found)}" if found else ""
        note = "; ".join(each for each in (told, *notes.values()) if each)
        beside = {"peer": name, "theirs": peer.best, "ratio": ours.best / max(peer.best, 1e-9)} if peer else {}
        yield Row(**own, **beside, note=note)
        notes = {}  # told once


def every_row(names: list[str], setting: Setting, beside: Path | None) -> Iterator[tuple[str, Row]]:
    """Benchmark and row. A case that fails is a row that says so, and the others go on."""
    prepare_process()
    other = Other(beside, setting) if beside else None
    for name in names:
        for case in importlib.import_module(f"benchmarks.{name}").cases(setting):
            try:
                yield from ((name, row) for row in measured(name, case, setting, other))
            except Skipped as reason:
                yield name, Row(case.name, note=str(reason))
            except Exception as error:
                yield name, Row(case.name, note=f"failed: {type(error).__name__}: {error}")
    if other:
        other.process.kill()


def prepare_process() -> None:
    import logging
    import warnings

    import pytorch_lightning  # noqa: F401  sets the level of its own log
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


# ---- the checkout of another version ---------------------------------------------------------------------------------

SERVE = "import sys; here, there, *given = sys.argv[1:]; sys.path.insert(0, here); import benchmarks.run as run; " \
        "sys.path.insert(0, there); run.serve(there, *given)"  # fmt: skip


class Other:
    """A process that measures the same cases with the torchrank of another checkout, whenever it is its turn."""

    def __init__(self, checkout: Path, setting: Setting):
        given = json.dumps({"quick": setting.quick, "data": str(setting.data or ""), "scratch": str(setting.scratch)})
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(HERE), str(checkout.resolve()), given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD,
        )  # fmt: skip

    def ask(self, *question: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("the process of the other checkout has ended: see its error above")
        return json.loads(answer)

    def start(self, benchmark: str, case: str) -> "Elsewhere":
        return Elsewhere(self, self.ask(benchmark, case))


class Elsewhere:
    """One case in the process of the other checkout: what `Timed` is in this one."""

    def __init__(self, other: Other, found: dict[str, Any]):
        self.other, self.missing = other, found.get("missing", "")
        self.best, self.spent, self.turns = found.get("best", 0.0), found.get("spent", 0.0), 1

    def turn(self) -> None:
        found = self.other.ask("turn")
        self.best, self.spent, self.turns = found["best"], found["spent"], self.turns + 1


def serve(checkout: str, given: str) -> None:
    """The other process: answers questions of its standard input until that is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    import torchrank

    if Path(checkout) not in Path(torchrank.__file__).parents:
        raise SystemExit(f"there is no torchrank in {checkout}")
    prepare_process()
    options = json.loads(given)
    setting = Setting(options["quick"], Path(options["data"]) if options["data"] else None, Path(options["scratch"]))
    timed: Timed | None = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question == ["turn"] and timed is not None:
                timed.turn()
            else:
                timed = None
                cases = importlib.import_module(f"benchmarks.{question[0]}").cases(setting)
                case = next((case for case in cases if case.name == question[1]), None)
                if case is None:
                    raise Skipped("there is no such case")
                sides = case.prepare()
                timed = Timed(sides.ours, sides.unit)
            answer = {"best": timed.best, "spent": timed.spent}
        except Exception as error:
            answer = {"missing": f"other checkout: {error or type(error).__name__}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


# ---- programs of their own -------------------------------------------------------------------------------------------


TORCHRANK = "import runpy; runpy.run_module('torchrank', run_name='__main__')"
PEAK = "import atexit; atexit.register(lambda: print([r for r in open('/proc/self/status') if 'VmHWM' in r][0]))\n"


def run_program(code: str, *arguments: str, folder: Path) -> str:
    """What Python code prints in a process of its own, with the torchrank of this one."""
    import torchrank

    path = os.pathsep.join([str(Path(torchrank.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": path}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of {code[-60:]} {' '.join(arguments)}: {done.stderr[-300:]}")
    return done.stdout


def peak_memory(code: str, *arguments: str, folder: Path) -> float:
    """The most memory that the process held at a time, in MB."""
    if sys.platform != "linux":
        raise Skipped("the peak is known on Linux only")
    return int(run_program(PEAK + code, *arguments, folder=folder).split()[-2]) / 1024


# ---- the table -------------------------------------------------------------------------------------------------------


def header(beside: bool) -> str:
    cells = ["case", "torchrank", "peer", "torchrank / peer", *(["new / old"] if beside else []), "note"]
    return f"| {' | '.join(cells)} |\n{'|---' * len(cells)}|"


def line(row: Row, beside: bool) -> str:
    theirs = f"{row.peer} {amount(row.theirs, row.unit)}".strip()
    cells = [row.case, amount(row.ours, row.unit), theirs, ratio(row.ratio)]
    cells += ([ratio(row.new_over_old)] if beside else []) + [row.note.replace("|", "/").replace("\n", " ")]
    return f"| {' | '.join(cells)} |"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def amount(value: float | None, unit: str) -> str:
    """Three digits with a unit that suits them."""
    if value is None:
        return ""
    for scale, name in ((1e6, "us"), (1e3, "ms")) if unit == "s" else ():
        if value * scale < 1000:
            return f"{value * scale:.3g} {name}"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import platform

    import torch

    return {"cores": os.cpu_count(), "processor": platform.machine(), "torch": torch.__version__, "threads": 1}


def as_json(rows: list[tuple[str, Row]]) -> str:
    found = [{"benchmark": name} | asdict(row) for name, row in rows]
    return json.dumps({"machine": machine(), "rows": found}, indent=1)

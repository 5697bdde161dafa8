"""Copies of this process that do the dangerous work: they can be killed, and may die or hang without harm to us."""

import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import NoReturn

import torch

HUNG = "hung"
DEADLINE = 120.0  # seconds, after which a child counts as hung
TICK = 0.002
SLOW = ("omegaconf", "antlr4", "attr", "fsspec.implementations.local", "lightgbm")  # imported once, for all children


def prepare() -> None:
    """Before the first fork: a copied process has none of the threads that torch has started."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork.*")
    for name in SLOW:
        with suppress(ImportError):
            importlib.import_module(name)


def start(work: Callable[[], object], output: Path, environment: Mapping[str, str] = {}) -> int:
    """Do the work in a child whose stdout and stderr are the file `output`; returns its id."""
    prepare()
    child = os.fork()
    if not child:
        _run(work, output, environment)
    return child


def _run(work: Callable[[], object], output: Path, environment: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent has made of them
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(environment)
        tempfile.tempdir = None  # it is looked up again in TMPDIR
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for place in (1, 2):
            os.dup2(handle, place)
        sys.stdout, sys.stderr = (os.fdopen(place, "w", buffering=1) for place in (1, 2))
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float = DEADLINE) -> int | str:
    """The exit code of a child, negative for a signal; one that does not end in time is killed and has "hung"."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (code := ended(child)) is not None:
            return code
        time.sleep(TICK)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return HUNG


def watch(child: int, progress: mmap, seconds: float) -> int | str:
    """As `wait`, for a child that has "hung" when what it writes to `progress` does not change for so long."""
    last, end = bytes(progress), time.monotonic() + seconds
    while time.monotonic() < end:
        if (code := ended(child)) is not None:
            return code
        if (now := bytes(progress)) != last:
            last, end = now, time.monotonic() + seconds
        time.sleep(0.02)
    return wait(child, 0)


def ended(child: int) -> int | None:
    """The exit code of a child that has ended."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def strike(child: int, number: int, moment: float) -> int | None:
    """Send a signal after so many seconds; the exit code of a child that ended before."""
    end = time.monotonic() + moment
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, TICK))
        if (code := ended(child)) is not None:
            return code
    os.kill(child, number)
    return None

"""Write files atomically, let one process in at a time, and measure the memory of a process."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system without locks


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Call `write(file)` on a temporary file and rename it: a reader sees the whole file or none.

    If `write` fails, the old file stays as it was. A symbolic link stays one, and its target is replaced.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone(lock: Path, *, wait: bool) -> Iterator[None]:
    """Let one process in at a time; the others wait, or get a `filelock.Timeout`.

    The lock ends with the process, however it ends. Its file is removed by the process that leaves. Where the file
    system has no locks, every process is let in.
    """
    guard = FileLock(lock, timeout=-1 if wait else 0)
    locked = _acquire(guard)
    try:
        yield
    finally:
        if locked:
            with suppress(OSError):  # Windows cannot remove an open file
                lock.unlink()
            guard.release()


def _acquire(guard: FileLock) -> bool:
    """Whether there is a lock that is held now."""
    try:
        guard.acquire()
    except NotImplementedError:
        return False
    except OSError as error:  # `Timeout` is one, without a number
        if error.errno in NO_LOCKS:
            return False
        raise
    return True


def peak_memory_mb() -> float | None:
    """The largest memory that this process has held, in MB; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes on macOS, kilobytes elsewhere


def forget_peak_memory() -> None:
    """Let `peak_memory_mb` count from now on, in a process that carries out many runs; on Linux only."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

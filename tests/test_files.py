"""Files that are whole or absent, locks between real processes, and the memory of a process."""

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock, Timeout

from torchrank.files import alone, peak_memory_mb, write_atomically

# ---- atomic writing --------------------------------------------------------------------------------------------------


def test_a_reader_sees_a_whole_file_at_any_time(tmp_path):
    path, contents = tmp_path / "file", [bytes([letter]) * 300_000 for letter in b"ab"]
    write_atomically(path, lambda file: file.write(contents[0]))
    done, seen = threading.Event(), []

    def read():
        while not done.is_set():
            seen.append(path.read_bytes())

    def slowly(file, content):
        for start in range(0, len(content), 50_000):
            file.write(content[start : start + 50_000])
            file.flush()
            time.sleep(0)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(60):
        write_atomically(path, lambda file, number=number: slowly(file, contents[number % 2]))
    done.set()
    reader.join()
    assert set(map(len, seen)) == {300_000} and set(seen) <= set(contents)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_that_could_not_be_written_leaves_the_old_one_and_no_litter(tmp_path):
    def fail(file):
        file.write(b"half of the new")
        raise RuntimeError("no more")

    for before in ([], ["file"]):
        for name in before:
            (tmp_path / name).write_bytes(b"old")
        with pytest.raises(RuntimeError, match="no more"):
            write_atomically(tmp_path / "file", fail)
        assert [each.name for each in tmp_path.iterdir()] == before
    assert (tmp_path / "file").read_bytes() == b"old"
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_folders_are_made_and_links_stay_links(tmp_path):
    target, link = tmp_path / "a" / "b" / "file", tmp_path / "link"
    write_atomically(target, lambda file: file.write(b"one"))
    link.symlink_to(target)
    write_atomically(link, lambda file: file.write(b"two"))
    assert link.is_symlink() and target.read_bytes() == b"two" and len(list(target.parent.iterdir())) == 1


def test_a_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "file", lambda file: file.write(b""))
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode


# ---- one process at a time -------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from torchrank.files import alone
with alone(Path(sys.argv[1]), wait=True):
    print("inside", flush=True)
    sys.stdin.readline()
print("outside", flush=True)
"""

COUNT = """
import sys, time
from pathlib import Path
from torchrank.files import alone
lock, counter = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with alone(lock, wait=True):
        number = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(number + 1))
"""


def start(script: str, *arguments) -> subprocess.Popen:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def holder(tmp_path):
    """A process that is inside, until it gets a line."""
    process = start(HOLD, tmp_path / "lock")
    assert process.stdout.readline() == "inside\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.distributed
def test_who_does_not_wait_is_refused_while_another_process_is_inside(holder, tmp_path):
    for _ in range(2):
        with pytest.raises(Timeout), alone(tmp_path / "lock", wait=False):
            raise AssertionError("two were inside")
    holder.communicate("leave\n")
    with alone(tmp_path / "lock", wait=False):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()  # no litter


@pytest.mark.distributed
def test_who_waits_is_let_in_when_the_other_process_leaves(holder, tmp_path):
    waiting = start(HOLD, tmp_path / "lock")
    time.sleep(1)  # time to come to the door
    assert waiting.poll() is None and holder.poll() is None
    left = time.monotonic()
    holder.stdin.write("leave\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "outside\n"
    assert waiting.stdout.readline() == "inside\n" and time.monotonic() - left < 10
    with pytest.raises(Timeout), alone(tmp_path / "lock", wait=False):
        pass
    waiting.communicate("leave\n")
    assert not (tmp_path / "lock").exists()


@pytest.mark.distributed
def test_the_lock_of_a_process_that_was_killed_is_free_at_once(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert (tmp_path / "lock").exists()  # it could not clear up
    for wait in (False, True):
        with alone(tmp_path / "lock", wait=wait):
            pass
    assert not (tmp_path / "lock").exists()


@pytest.mark.distributed
def test_many_processes_never_are_inside_together(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [start(COUNT, tmp_path / "lock", counter, 25) for _ in range(4)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 4
    for process in processes:
        process.communicate()
    assert counter.read_text() == "100" and not (tmp_path / "lock").exists()


def test_the_lock_ends_with_an_error_too(tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inside"), alone(tmp_path / "lock", wait=False):
            raise RuntimeError("inside")
        assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(errno.ENOLCK, ""), OSError(errno.EOPNOTSUPP, "")])
def test_all_are_let_in_where_the_file_system_has_no_locks(tmp_path, monkeypatch, error):
    def fail(guard):
        raise error

    monkeypatch.setattr(FileLock, "acquire", fail)
    with alone(tmp_path / "lock", wait=False), alone(tmp_path / "lock", wait=True):
        pass
    with pytest.raises(RuntimeError, match="inside") as caught, alone(tmp_path / "lock", wait=False):
        raise RuntimeError("inside")
    assert caught.value.__context__ is None  # an error inside is told without that of the lock


def test_other_errors_of_the_file_system_are_told(tmp_path, monkeypatch):
    def fail(guard):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(FileLock, "acquire", fail)
    with pytest.raises(PermissionError), alone(tmp_path / "lock", wait=True):
        pass


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_peak_of_the_memory_is_that_of_the_system():
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc on this system")
    before = peak_memory_mb()
    room = np.ones(2**20 * 40)  # 320 MB
    peak = peak_memory_mb()
    room[:] = 2
    kilobytes = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    assert peak >= before > 1 and peak == pytest.approx(kilobytes / 1024, rel=0.05)
    del room
    assert peak_memory_mb() >= peak  # a peak never falls


def test_the_unit_of_the_peak_depends_on_the_system(monkeypatch):
    resource = pytest.importorskip("resource")
    usage = type("Usage", (), {"ru_maxrss": 3 * 2**20})
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    for platform, expected in (("linux", 3 * 1024), ("darwin", 3)):
        monkeypatch.setattr(sys, "platform", platform)
        assert peak_memory_mb() == expected
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert peak_memory_mb() is None

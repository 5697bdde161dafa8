"""Full disks, file size limits and several runs at once: what was there stays whole, and the reason is one line."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.attack import children, kills
from tests.attack.tally import Tally
from torchrank import load

SMALL = (
    "data.num_queries=30",
    "data.mean_length=6.0",
    "data.num_features=8",
    "model=lambdarank",
    "trainer.max_epochs=6",
)


# ---- limits ----------------------------------------------------------------------------------------------------------


def limit_files(size: int) -> None:
    """A write beyond so many bytes fails, as beyond a quota."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Python's own choice, which a fork may have lost
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def small_disk(size: int) -> Iterator[Path | None]:
    """A file system of so many bytes; None where none can be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = shutil.which("mount") and not subprocess.run(command, capture_output=True).returncode
        try:
            yield folder if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", str(folder)], check=True, capture_output=True)
    finally:
        folder.rmdir()


def train(folder: Path, *arguments: str) -> None:
    """`torchrank train` in a child."""
    from torchrank.train import main

    os.environ["COLUMNS"] = "200"
    os.chdir(folder)
    sys.argv = ["train.py", *SMALL, f"hydra.run.dir={folder}/run", *arguments]
    main()


def said(output: Path) -> list[str]:
    """The lines of a child that are neither the table of a run nor empty."""
    return [line for line in output.read_text(errors="replace").splitlines() if line.strip()]


def one_line(output: Path) -> str:
    """What is wrong with what a refused run has said."""
    lines = said(output)
    if any("Traceback" in line for line in lines):
        return f"a traceback: {lines[-1][:200]}"
    return ""


def limited_fit(case: str, size: int) -> str:
    """A fit that runs into the limit, then one without: whole checkpoints, and the same result; what is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="limit-"))
    try:
        setting = kills.Setting(case)
        expected, _ = kills.whole_fit(setting, folder / "whole")
        (folder / "limited").mkdir()
        place = kills.Place(folder / "limited", folder / "limited" / "tmp")
        work = partial(kills.fit, case, place.checkpoints, place.result)

        def limited() -> None:
            limit_files(size)
            work()

        children.wait(children.start(limited, place.output))
        if left := [path.name for path in place.checkpoints.iterdir() if path.name not in kills.FILES]:
            return f"left behind: {', '.join(left)}"
        return kills.finished(setting, place, expected)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def full_disk(size: int) -> str | None:
    """A run on a disk that is full soon; what is wrong, None if no disk can be mounted."""
    with tempfile.TemporaryDirectory() as outside, small_disk(size) as disk:
        if disk is None:
            return None
        output = Path(outside, "output")
        code = children.wait(children.start(partial(train, disk), output))
        if code == children.HUNG:
            return "the run hung"
        for path in disk.glob("run/checkpoints/*.ckpt"):
            load(path)
        litter = [path.name for path in disk.glob("run/checkpoints/.*.part")]
        return one_line(output) or (f"left behind: {litter}" if litter else "")


def limited_cache(size: int) -> str:
    """A cache that cannot be written never ends the reading; what is wrong."""
    from torchrank.data.cache import cached
    from torchrank.data.letor import read_letor

    rows = "".join(
        f"{i % 3} qid:{i // 20} " + " ".join(f"{j}:{(i * j) % 7}" for j in range(1, 9)) + "\n" for i in range(400)
    )
    with tempfile.TemporaryDirectory() as folder:
        path, result = Path(folder, "a.txt"), Path(folder, "result.npy")
        path.write_text(rows)

        def read() -> None:
            limit_files(size)
            found = cached(path, read_letor, {}, cache_dir=Path(folder, "cache"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            np.save(result, found.x.numpy())

        code = children.wait(children.start(read, Path(folder, "output")))
        if code:
            return f"the reader ended with {code}: {said(Path(folder, 'output'))[-1:]}"
        expected = np.array([[(i * j) % 7 for j in range(1, 9)] for i in range(400)], dtype=np.float32)
        return "" if np.array_equal(np.load(result), expected) else "wrong values"


# ---- several at once -------------------------------------------------------------------------------------------------


def runs_at_once(count: int) -> str:
    """So many runs into one folder: one of them runs, the others are refused or find its results; what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"output{number}") for number in range(count)]
        started = [children.start(partial(train, Path(folder)), output) for output in outputs]
        codes = [children.wait(child) for child in started]
        if children.HUNG in codes or 0 not in codes or not set(codes) <= {0, 2}:
            return f"exit codes {codes}: {[said(output)[-1:] for output in outputs]}"
        for output, code in zip(outputs, codes, strict=True):
            if code and (wrong := one_line(output)):
                return wrong
        load(Path(folder, "run/checkpoints/best.ckpt"))
        return "" if Path(folder, "run/results.json").exists() else "no results were written"


def readers_at_once(count: int) -> str:
    """So many processes read one file through one cache; what is wrong."""
    from torchrank.data.cache import cached
    from torchrank.data.letor import read_letor

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_text("".join(f"{i % 3} qid:{i // 20} 1:{i} 2:{i % 7}\n" for i in range(400)))
        expected = np.array([[i, i % 7] for i in range(400)], dtype=np.float32)

        def read() -> None:
            for _ in range(3):
                found = cached(path, read_letor, {}, cache_dir=Path(folder, "cache")).x.numpy()
                assert np.array_equal(found, expected)

        outputs = [Path(folder, f"output{number}") for number in range(count)]
        codes = [children.wait(child) for child in [children.start(read, output) for output in outputs]]
        left = [path.name for path in Path(folder, "cache").rglob(".*")]
        if any(codes):
            return f"exit codes {codes}: {[said(output)[-1:] for output in outputs]}"
        return f"left behind: {left}" if left else ""


# ---- the attack ------------------------------------------------------------------------------------------------------


def attack(what: str, seed: int, tries: int) -> Tally:
    draw, tally = random.Random(seed), Tally("disk", what)
    for number in range(tries):
        size = int(10 ** draw.uniform(2, 5))
        wrong = ATTACKS[what](draw, size)
        if wrong is None:
            tally.skipped = "skipped: no disk can be mounted here"
            return tally
        tally.tries += 1
        if wrong:
            tally.failures.append(f"{what}, seed {seed}, number {number} ({size} bytes): {wrong}")
    return tally


CASES = ("lambdarank", "rankboost", "mlp_listnet_pca", "lgmml", "gbdt", "domination_cd")
ATTACKS: dict[str, Callable[[random.Random, int], Any]] = {
    "file size limit, checkpoints": lambda draw, size: limited_fit(draw.choice(CASES), size),
    "file size limit, cache": lambda draw, size: limited_cache(size),
    "full disk": lambda draw, size: full_disk(size + 30_000),
    "runs in one folder at once": lambda draw, size: runs_at_once(draw.randint(2, 4)),
    "readers of one cache at once": lambda draw, size: readers_at_once(draw.randint(2, 5)),
}

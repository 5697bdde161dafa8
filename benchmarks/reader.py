"""The LETOR reader against scikit-learn's and XGBoost's: seconds, peak memory, and opening from the cache.

Writes an MSLR-shaped file (136 features, all present) and a Yahoo-shaped one (700 features, 30% present) and reads both
with all tools in turn, by the time that passes: the reader uses all cores. XGBoost keeps its own sparse form.
"""

import tempfile
from collections.abc import Callable, Iterator
from operator import getitem
from pathlib import Path

import numpy as np

from benchmarks.suite import MissingPeerError, Row, Setting, in_process, peer

POOL = 2000  # different texts per feature
MEMORY = """
import sys
import numpy, polars, torch
from torchrank.data.letor import read_letor
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
before = peak()
x = read_letor(sys.argv[1]).x
print(peak() - before, x.numpy().nbytes / 2**20)
"""


def rows(setting: Setting) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for name, made, bar in (("MSLR-shaped", mslr_rows(), 1 / 5), ("Yahoo-shaped", yahoo_rows(), 1 / 3)):
            path = Path(folder, f"{name}.txt")
            write(path, made, setting.size(120, 1) * 10**6)
            yield from readings(setting, f"{name}, {path.stat().st_size / 1e6:.0f} MB", path, bar)


def mslr_rows(seed: int = 0) -> Iterator[str]:
    """Mostly short whole numbers, some decimals of 6 to 15 digits, a space at the end: as in MSLR-WEB30K."""
    generator = np.random.default_rng(seed)
    pools = []
    for feature in range(1, 137):
        whole, decimal = generator.integers(0, 300, POOL), generator.random(POOL) * 30
        digits = generator.integers(6, 16, POOL)
        kind = generator.random(POOL)
        values = zip(kind, whole, decimal, digits, strict=True)
        texts = ("0" if k < 0.35 else str(w) if k < 0.65 else f"{d:.{n}g}" for k, w, d, n in values)
        pools.append([f"{feature}:{text}" for text in texts])
    query = 0
    while True:
        query += 15
        for _ in range(generator.integers(1, 240)):
            tokens = map(getitem, pools, generator.integers(0, POOL, 136).tolist())
            yield f"{generator.integers(5)} qid:{query} {' '.join(tokens)} \n"


def yahoo_rows(seed: int = 0) -> Iterator[str]:
    """700 features of which 30% are present, each a number of five digits in [0, 1]."""
    generator = np.random.default_rng(seed)
    pools = [[f"{feature}:{value:.5g}" for value in generator.random(POOL)] for feature in range(1, 701)]
    row = 0
    while True:
        row += 1
        present = np.flatnonzero(generator.random(700) < 0.3).tolist()
        texts = generator.integers(0, POOL, len(present)).tolist()
        tokens = [pools[feature][text] for feature, text in zip(present, texts, strict=True)]
        yield f"{generator.integers(5)} qid:{row // 24} {' '.join(tokens)}\n"


def write(path: Path, rows: Iterator[str], size: int) -> None:
    with path.open("w") as file:
        while size > 0:
            size -= file.write(next(rows))


def readings(setting: Setting, name: str, path: Path, bar: float) -> Iterator[Row]:
    from torchrank.data.cache import cached
    from torchrank.data.letor import read_letor

    load = peer("sklearn.datasets", "dev").load_svmlight_file
    agree(path, load)
    ours, theirs = setting.race(lambda: read_letor(path), lambda: scikit_learn(load, path), repeats=3, wall=True)
    yield Row(name, ours, peer="scikit-learn", theirs=theirs, bar=bar)
    try:
        xgboost = peer("xgboost", "dev")
        theirs = setting.seconds(lambda: xgboost.DMatrix(f"{path}?format=libsvm", silent=True), wall=True)
        yield Row(name, ours, peer="xgboost", theirs=theirs)
    except MissingPeerError as error:
        yield Row(name, note=str(error))
    added, final = memory(path)
    yield Row(f"{name}, peak memory", added, "MB", "1.5 times the array and 256 MB:", 1.5 * final + 256, bar=1)
    first = setting.seconds(lambda: cached(path, read_letor, {}), wall=True)
    again = setting.seconds(lambda: cached(path, read_letor, {}), wall=True)
    yield Row(f"{name}, opened from the cache", again, peer="reading and writing the cache", theirs=first)


def agree(path: Path, load: Callable) -> None:
    """Both readers find the same values."""
    from torchrank.data.letor import read_letor

    lists, (matrix, labels, queries) = read_letor(path), scikit_learn(load, path)
    assert np.array_equal(lists.x.numpy(), matrix.astype(np.float32)), "the rows differ"
    assert np.array_equal(lists.labels.numpy(), labels) and len(lists) == len(np.unique(queries)), "the lists differ"


def scikit_learn(load: Callable, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, labels, queries = load(str(path), query_id=True)
    return rows.toarray(), labels, queries


def memory(path: Path) -> tuple[float, float]:
    """Peak MB of a fresh process minus what it had before reading, and MB of the array that it reads."""
    added, final = map(float, in_process(MEMORY, str(path)).split())
    return added, final

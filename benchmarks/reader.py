"""The LETOR reader against scikit-learn's and XGBoost's: seconds, MB/s, peak memory, and opening from the cache.

    python benchmarks/reader.py [--megabytes 120] [--folder FOLDER] [--quick]

Writes an MSLR-shaped file (136 features, all present) and a Yahoo-shaped one (700 features, 30% present), reads both
with all tools in turn and prints ratios. Times are the best of `--repeats` runs, scikit-learn's of two.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from operator import getitem
from pathlib import Path

import numpy as np
from quick import parse

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=120, help="size of each file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write the files; a temporary folder without it")
    arguments = parse(parser, megabytes=1, repeats=1)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for name, rows, target in (("MSLR-shaped", mslr_rows(), 5), ("Yahoo-shaped", yahoo_rows(), 3)):
            path = Path(folder, f"{name}.txt")
            write(path, rows, arguments.megabytes * 10**6)
            report(name, path, target, arguments.repeats)


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


def report(name: str, path: Path, target: int, repeats: int) -> None:
    from sklearn.datasets import load_svmlight_file

    from torchrank.data.letor import read_letor

    megabytes = path.stat().st_size / 1e6
    added, final = memory(path)
    theirs, (matrix, labels, queries) = best(2, lambda: scikit_learn(load_svmlight_file, path))
    ours, lists = best(repeats, lambda: read_letor(path))
    same = np.array_equal(lists.x.numpy(), matrix.astype(np.float32)) and np.array_equal(lists.labels.numpy(), labels)
    if not same or len(lists) != len(np.unique(queries)):
        raise SystemExit(f"{name}: the two readers do not agree")
    print(f"{name}: {megabytes:.0f} MB, {matrix.shape[0]:,} rows, {matrix.shape[1]} features; equal values")
    print(f"  torchrank     {ours:7.2f} s  {megabytes / ours:6.0f} MB/s")
    print(f"  scikit-learn  {theirs:7.2f} s  {megabytes / theirs:6.0f} MB/s")
    xgboost_line(path, megabytes)
    verdict("times scikit-learn's speed", theirs / ours, target, at_least=True)
    verdict(f"MB of peak memory for an array of {final:.0f} MB", added, 1.5 * final + 256, at_least=False)
    reopening(path)


def scikit_learn(load: Callable, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, labels, queries = load(str(path), query_id=True)
    return rows.toarray(), labels, queries


def xgboost_line(path: Path, megabytes: float) -> None:
    try:
        import xgboost
    except ImportError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, _ = best(2, lambda: xgboost.DMatrix(f"{path}?format=libsvm", silent=True))
    print(f"  xgboost       {seconds:7.2f} s  {megabytes / seconds:6.0f} MB/s  (its own sparse form, float32)")


def reopening(path: Path) -> None:
    from torchrank.data.cache import cached
    from torchrank.data.letor import read_letor

    first, _ = best(1, lambda: cached(path, read_letor, {}))
    again, _ = best(5, lambda: cached(path, read_letor, {}))
    print(f"  cache: {first:.2f} s to read and write it, {again * 1e3:.1f} ms to open it again")


def memory(path: Path) -> tuple[float, float]:
    """Peak MB of a fresh process minus what it had before reading, and MB of the array that it reads."""
    answer = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True).stdout
    added, final = map(float, answer.split())
    return added, final


def best(repeats: int, call: Callable) -> tuple[float, object]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def verdict(what: str, value: float, target: float, *, at_least: bool) -> None:
    reached = value >= target if at_least else value <= target
    print(f"  {value:.1f} {what} (target {'>=' if at_least else '<='} {target:.1f}: {'ok' if reached else 'MISSED'})")


if __name__ == "__main__":
    main()

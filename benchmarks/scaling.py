"""How the cost of a fit grows with queries, documents per query, features, metrics and processes: fitted exponents.

Each of three sizes is twice the one before; the exponent is the slope of the logarithm of the time (least squares). A
cost that grows in proportion has 1. Pairs grow with the square of the documents of a list, and metrics have the square
of the features as entries. Of processes the CPU time of all together is taken, as many times that of the slowest: work
that is shared out without loss has the exponent 0. `--plot FILE` draws the curves.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import processes
from benchmarks.suite import Row, Setting
from torchrank import GMML, LGMML, AdaRank, DominationRank, LambdaRank, ListNet, RankBoost, RankingSet
from torchrank.data import synthetic_splits

MOST = 1.1  # of a cost in proportion; for squares 2.1
LOST = math.log2(2 / 1.6)  # two processes are at least 1.6 times one
PROCESSES = (1, 2, 4)
GIVEN = {"t": 0.5, "ridge": 0.1, "kappa": 10.0, "transform": "standard"}
RANKERS: dict[str, Callable] = {
    "L-GMML": partial(LGMML, groups="random", rounds=4),
    "GMML": partial(GMML, **GIVEN),
    "ListNet": ListNet,
    "LambdaRank": LambdaRank,
    "Domination": DominationRank,
    "RankBoost": RankBoost,
    "AdaRank": AdaRank,
}
EPOCHS = 4
SQUARES = {("LambdaRank", "documents"), ("L-GMML", "features"), ("GMML", "features")}
BASE = {"queries": 1000, "documents": 60, "features": 64, "metrics": 32}  # the middle sizes
TINY = {"queries": 20, "documents": 10, "features": 16, "metrics": 4}


def rows(setting: Setting) -> Iterator[Row]:
    base = TINY if setting.quick else BASE | {"queries": setting.size(BASE["queries"], 40)}
    for what in ("queries", "documents", "features"):
        sizes = [base[what] // 2, base[what], base[what] * 2]
        sets = [make(base | {what: size}) for size in sizes]
        for name, ranker in RANKERS.items():
            functions = [partial(fit, ranker, lists) for lists in sets]
            most = MOST + ((name, what) in SQUARES)
            yield grown(f"{name}, {what}", sizes, setting.race(*functions, repeats=2), most)
    sizes, lists = [base["metrics"] // 2, base["metrics"], base["metrics"] * 2], make(base)
    functions = [partial(fit, partial(RANKERS["L-GMML"], metrics=size), lists) for size in sizes]
    yield grown("L-GMML, metrics", sizes, setting.race(*functions, repeats=2), MOST)
    with tempfile.TemporaryDirectory() as folder:
        processes.write_lists(Path(folder), setting)
        counts, repeats = (PROCESSES[:2], 1) if setting.quick else (PROCESSES, 2)
        for name in ("L-GMML",) if setting.quick else processes.CASES:
            runs = [[processes.fits(name, Path(folder), count)["cpu"] for count in counts] for _ in range(repeats)]
            total = [count * min(times) for count, times in zip(counts, zip(*runs, strict=True), strict=True)]
            yield grown(f"{name}, processes", list(counts), total, LOST)


def make(sizes: dict[str, int]) -> RankingSet:
    """The training lists, 60% of what is drawn."""
    drawn = synthetic_splits(
        sizes["queries"] * 5 // 3, num_features=sizes["features"], mean_length=float(sizes["documents"])
    )
    return drawn["train"]


def fit(ranker: Callable, lists: RankingSet) -> None:
    ranker(lists.x.shape[1]).fit(lists, epochs=EPOCHS)


def grown(name: str, sizes: list[int], times: list[float], most: float) -> Row:
    exponent = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    points = ", ".join(f"{1e3 * time:.3g} ms at {size:,}" for size, time in zip(sizes, times, strict=True))
    curve = tuple(zip(sizes, times, strict=True))
    return Row(name, exponent, "", "limit: exponent", most, bar=1, note=points, curve=curve)

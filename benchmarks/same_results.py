"""Fits of another revision beside these, with the same options on the same lists: scores and measures must not differ.

    python -m benchmarks --against REVISION same_results

Every ranker is fitted by the sources of both revisions, each in a process of its own, by a given number of rounds and
with all options given whose default has changed. A row has the largest difference of the scores of validation and test
lists, relative to the largest score. Where the arithmetic has changed, NDCG@10 and MAP count instead, and the row says
why.
"""

import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.processes import mapped, write
from benchmarks.suite import MissingPeerError, Row, Setting
from torchrank import (
    GMML,
    LGMML,
    MLR,
    PAMIR,
    RMLR,
    AdaRank,
    DominationRank,
    LambdaRank,
    ListNet,
    LocalRank,
    QueryKNN,
    RankBoost,
    Ranker,
    RankingDataModule,
    RankSVM,
    SingleFeature,
    SVMMap,
)
from torchrank.data.synthetic.matchmaking import load_matchmaking
from torchrank.data.synthetic.mslr import synthetic_splits
from torchrank.functional import evaluate

HERE = Path(__file__).parent
SPLITS = ("train", "val", "test")
SAME = {"transform": "standard"}
LISTS, PEOPLE = ("synthetic", "MQ2008"), ("people",)
SCORES, MEASURES = 1e-12, 1e-4  # differ by at most


class Case(NamedTuple):
    make: Callable[[int], Ranker]
    rounds: int
    data: tuple[str, ...] = LISTS
    reason: str = ""  # why scores are not the same to rounding


CASES = {
    "ListNet": Case(lambda width: ListNet(width, **SAME), 500, reason="another way to the minimum, to the tolerance"),
    "LambdaRank": Case(
        lambda width: LambdaRank(width, weight_decay=0.01, **SAME), 5, reason="pairs of float32 scores in float32"
    ),  # 0.01 was AdamW's own, whatever weight_decay said
    "Domination, lbfgs": Case(lambda width: DominationRank(width, solver="lbfgs", **SAME), 13),
    "Domination, fista": Case(lambda width: DominationRank(width, solver="fista", l1=0.01, **SAME), 3),
    "Domination, cd": Case(lambda width: DominationRank(width, solver="cd", **SAME), 3),
    "L-GMML": Case(lambda width: LGMML(width, groups="random", **SAME), 13, reason="the steps of another line search"),
    "GMML": Case(lambda width: GMML(width, t=0.5, ridge=0.1, kappa=10.0, **SAME), 1),
    "RankBoost": Case(RankBoost, 30),
    "AdaRank": Case(lambda width: AdaRank(width, transform="query_minmax"), 20),
    "MLR": Case(lambda width: MLR(width, **SAME), 12, PEOPLE),
    "R-MLR": Case(lambda width: RMLR(width, **SAME), 12, PEOPLE),
    "SVMmap": Case(lambda width: SVMMap(width, **SAME), 13),
    "RankSVM": Case(lambda width: RankSVM(width, **SAME), 13),
    "PAMIR": Case(lambda width: PAMIR(width, **SAME), 3),
    "LocalRank": Case(lambda width: LocalRank(width, base="rankboost", clusters=3, transform="query_minmax"), 30),
    "query-KNN": Case(
        lambda width: QueryKNN(width, **SAME), 1000, reason="another way to the minima, to the tolerance"
    ),
    "single feature": Case(SingleFeature, 1),
}


def rows(setting: Setting) -> Iterator[Row]:
    from benchmarks.__main__ import worktree

    if setting.against is None:
        raise MissingPeerError("it needs --against REVISION")
    with tempfile.TemporaryDirectory() as folder, worktree(setting.against) as sources:
        for name, sets in data(setting).items():
            write(Path(folder, "data", name), sets, SPLITS)
        for revision, place in (("new", HERE.parent), ("old", sources)):
            fit_elsewhere(place, Path(folder, "data"), Path(folder, revision))
        for name, case in CASES.items():
            for each in case.data:
                if Path(folder, "data", each).exists():
                    yield compared(name, each, Path(folder), setting.against)


def data(setting: Setting) -> dict[str, dict]:
    """The lists to fit on; those of MQ2008 where the folder of data sets has them."""
    found = {
        "synthetic": synthetic_splits(setting.size(300, 40), num_features=46, mean_length=40.0),
        "people": load_matchmaking(queries=setting.size(300, 30)),
    }
    if setting.data and not setting.quick and any(Path(setting.data).glob("**/Fold1")):
        letor = RankingDataModule("mq2008", root=setting.data, fold=1)
        letor.setup()
        found["MQ2008"] = letor.sets
    return found


def fit_elsewhere(sources: Path, lists: Path, into: Path) -> None:
    """Write the scores that these sources give, in a process of its own."""
    into.mkdir()
    command = [sys.executable, "-c", f"from {__name__} import main; main()", str(lists), str(into)]
    path = os.pathsep.join([str(sources), str(HERE.parent)])
    given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=into, env=given, stdout=subprocess.DEVNULL)


def compared(name: str, where: str, folder: Path, revision: str) -> Row:
    """The largest differences over validation and test lists."""
    apart, measured = 0.0, {"ndcg@10": 0.0, "map": 0.0}
    for split in SPLITS[1:]:
        new, old = (np.load(folder / each / f"{name}, {where}, {split}.npy") for each in ("new", "old"))
        apart = max(apart, float(np.abs(new - old).max() / np.abs(old).max()))
        lists = mapped(folder / "data" / where / split)
        means = [
            evaluate(torch.from_numpy(scores), lists.labels, lists.offsets, measures=list(measured))
            for scores in (new, old)
        ]
        for each in measured:
            ours, theirs = (float(found[each].nanmean()) for found in means)
            measured[each] = max(measured[each], abs(ours - theirs))
    note = f"NDCG@10 differs by {measured['ndcg@10']:.1e}, MAP by {measured['map']:.1e}"
    if not (reason := CASES[name].reason):
        return Row(f"{name}, {where}: scores", apart, "", "at most", SCORES, bar=1, note=note)
    note = f"scores differ by {apart:.1e}, {note}: {reason}"
    return Row(f"{name}, {where}: measures", max(measured.values()), "", "at most", MEASURES, bar=1, note=note)


# ---- in the processes -----------------------------------------------------------------------------------------------


def main() -> None:
    """Fit all rankers on the lists of one folder, and write their scores into another."""
    lists, into = map(Path, sys.argv[1:])
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for name, case in CASES.items():
        for each in case.data:
            if (lists / each).exists():
                train, *others = (mapped(lists / each / split) for split in SPLITS)
                ranker = case.make(train.num_features).fit(train, epochs=case.rounds)
                for part in others:
                    with torch.no_grad():
                        scores = ranker(part.x, part.offsets, queries=part.queries)
                    np.save(into / f"{name}, {each}, {part.name}.npy", scores.double().numpy())

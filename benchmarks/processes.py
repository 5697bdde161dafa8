"""Fits in two processes of one thread each against one process: CPU seconds of the slower one.

Waiting for each other takes no CPU time, so the ratio is the bound of the gain that a busy machine can measure; the
time that passed is beside it, which means something on an idle machine only. The rows lie in mapped files, as in the
cache of a data set. A fit ends after a given number of rounds, and each of them is validated.
"""

import logging
import multiprocessing
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.strategies import DDPStrategy

from benchmarks.suite import Row, Setting
from torchrank import (
    LGMML,
    MLR,
    DominationRank,
    LambdaRank,
    RankBoost,
    Ranker,
    RankingDataModule,
    RankingEvaluation,
    RankingSet,
)
from torchrank.data.synthetic.matchmaking import load_matchmaking
from torchrank.data.synthetic.mslr import synthetic_splits

PARTS = ("x", "labels", "offsets", "queries")
PHASES = ("before the first round", "rounds", "validations")


class Case(NamedTuple):
    make: Callable[[int], Ranker]
    rounds: int
    data: str = "lists"


CASES = {
    "L-GMML": Case(lambda width: LGMML(width, groups="random", rounds=10), 10),
    "LambdaRank": Case(LambdaRank, 6),
    "Domination": Case(DominationRank, 3),
    "RankBoost": Case(lambda width: RankBoost(width, rounds=60), 60),
    "MLR": Case(MLR, 12, "people"),
}


def rows(setting: Setting) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        write_lists(Path(folder), setting)
        yield machine_itself(setting.size(200, 2))
        for name in CASES:
            yield compared(name, Path(folder), setting.size(3, 1))


def write_lists(folder: Path, setting: Setting) -> None:
    """170,000 documents, for training alone, and as many entries of people."""
    write(folder / "lists", synthetic_splits(setting.size(2360, 40)))
    write(folder / "people", load_matchmaking(queries=setting.size(8500, 40)))


def machine_itself(repeats: int) -> Row:
    """The same products shared out, which wait for nothing: what two processes can gain on this machine at most."""
    context = multiprocessing.get_context("forkserver")
    with context.Pool(2) as pool:
        one = min(pool.map(products, [repeats], chunksize=1) for _ in range(3))
        two = min((pool.map(products, [repeats // 2] * 2, chunksize=1) for _ in range(3)), key=max)
    return Row("matrix products in two processes", max(two), peer="one process", theirs=max(one))


def products(repeats: int) -> float:
    """CPU seconds of so many products of 700 x 700 numbers."""
    torch.set_num_threads(1)
    x = torch.ones(700, 700)
    start = time.process_time()
    for _ in range(repeats):
        x @ x
    return time.process_time() - start


def compared(name: str, folder: Path, repeats: int) -> Row:
    """The best of several runs each; they take turns."""
    runs = [(fits(name, folder, 1), fits(name, folder, 2)) for _ in range(repeats)]
    one, two = (min(each, key=lambda run: run["cpu"]) for each in zip(*runs, strict=True))
    gains = ", ".join(f"{phase} {before / max(after, 1e-9):.2f}" for phase, before, after in
                      zip(PHASES, one["phases"], two["phases"], strict=True))  # fmt: skip
    passed = " and ".join(f"{min(run[i]['wall'] for run in runs):.2f}" for i in (0, 1))
    note = f"times faster: {gains}; time that passed {passed} s"
    return Row(f"{name} in two processes", two["cpu"], peer="one process", theirs=one["cpu"], bar=1 / 1.6, note=note)


def write(folder: Path, sets: dict[str, RankingSet], splits: Sequence[str] = ("train", "val")) -> None:
    for split in splits:
        (folder / split).mkdir(parents=True)
        for part in PARTS:
            if (tensor := getattr(sets[split], part)) is not None:
                np.save(folder / split / f"{part}.npy", tensor.numpy())


def mapped(folder: Path) -> RankingSet:
    found = {part: np.load(path, mmap_mode="c") for part in PARTS if (path := folder / f"{part}.npy").exists()}
    return RankingSet(**{part: torch.from_numpy(array) for part, array in found.items()}, name=folder.name)


def fits(name: str, folder: Path, processes: int) -> dict[str, Any]:
    """What the slowest process reports, by CPU seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    reports = context.SimpleQueue()
    place = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [context.Process(target=send, args=(name, folder, place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                                                  reports)) for rank in range(processes)]  # fmt: skip
    for process in started:
        process.start()
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise RuntimeError(f"{name} failed in {processes} processes")
    found = [reports.get() for _ in started]
    return max(found, key=lambda report: report["cpu"]) | {"wall": max(report["wall"] for report in found)}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# ---- in the processes -----------------------------------------------------------------------------------------------


class Phases(Callback):
    """CPU seconds before the first round, of the rounds, and of the validations."""

    def begin(self) -> None:
        self.seconds, self._at, self._since = [0.0, 0.0, 0.0], 0, time.process_time()

    def enter(self, phase: int) -> None:
        now = time.process_time()
        self.seconds[self._at] += now - self._since
        self._at, self._since = phase, now

    def on_train_start(self, *_: Any) -> None:
        self.enter(1)

    def on_validation_start(self, *_: Any) -> None:
        self.enter(2)

    def on_validation_end(self, *_: Any) -> None:
        self.enter(1)


def send(name: str, folder: Path, place: dict[str, str], reports: Any) -> None:
    """A small fit, since the first one of a process loads and prepares much, then the one that counts."""
    warnings.simplefilter("ignore")
    for talkative in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(talkative).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    sets = {split: mapped(folder / CASES[name].data / split) for split in ("train", "val")}
    report(name, {split: lists.subset(range(min(20, len(lists)))) for split, lists in sets.items()}, place)
    reports.put(report(name, sets, place))


def report(name: str, sets: dict[str, RankingSet], place: dict[str, str]) -> dict[str, Any]:
    """One fit in this process, with its times."""
    os.environ |= place  # Lightning takes some of it away after a fit
    seed_everything(1, verbose=False)
    case, phases, world = CASES[name], Phases(), int(os.environ["WORLD_SIZE"])
    options: dict[str, Any] = {} if world == 1 else {"strategy": DDPStrategy(process_group_backend="gloo")}
    trainer = Trainer(
        accelerator="cpu",
        devices=world,
        max_epochs=case.rounds,
        callbacks=[RankingEvaluation(every_round=True), phases],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        num_sanity_val_steps=0,
        **options,
    )
    ranker, data = case.make(sets["train"].num_features), RankingDataModule.from_sets(**sets)
    wall = time.perf_counter()
    phases.begin()
    trainer.fit(ranker, datamodule=data)
    phases.enter(0)
    return {"cpu": sum(phases.seconds), "wall": time.perf_counter() - wall, "phases": phases.seconds}

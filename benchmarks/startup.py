"""Fixed costs: answers of the command line, the way to the first round of `python train.py`, a round of a small fit.

CPU seconds, those of processes of their own included. The small fit is MLR on 60 lists of 120 documents, validated
after each of 20 rounds: what a round costs outside of the solver is Lightning's loops and log, and the validation.
"""

import tempfile
import time
from collections.abc import Iterator

import torch
from pytorch_lightning import Trainer

from benchmarks.suite import Row, Setting, in_process, run_alone
from torchrank import MLR, RankingDataModule, RankingEvaluation, RankingSet

ANSWERS = {"--help": 0, "--version": 0, "model.raounds=3": 2}  # with their exit codes
TRAIN = "import sys; from torchrank.train import main; sys.argv[0] = 'train.py'; main()"
TO_FIRST_ROUND = """
import importlib.util, sys, time
import torchrank.train
if importlib.util.find_spec("torchrank.run"):
    import torchrank.run
from torchrank import LGMML, RankingDataModule, RankingEvaluation

def told(moment, then):
    def call(*arguments):
        print(moment, time.process_time() - start)
        return then(*arguments)
    return call

LGMML.settle = told("choice", LGMML.settle)
LGMML.take_round = told("round", lambda *_: sys.exit(0))
sys.argv[0] = "train.py"
start = time.process_time()
torchrank.train.main()
"""
WIDTH, LENGTH = 20, 120


def rows(setting: Setting) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for given, code in ANSWERS.items():
            runs = [run_alone(TRAIN, given, folder=folder, code=code) for _ in range(setting.size(3, 1))]
            cpu = min(run.cpu for run in runs)
            yield Row(f"python train.py {given}", cpu, peer="limit", theirs=1.5, bar=1)
    with tempfile.TemporaryDirectory() as folder:
        few = ["data.num_queries=50"] if setting.quick else []
        printed = in_process(TO_FIRST_ROUND, f"hydra.run.dir={folder}/run", "show=false", *few)
        times = dict(line.split() for line in printed.splitlines() if line.startswith(("choice ", "round ")))
        first = "python train.py: from the imports to the first"
        note = "L-GMML chooses its options before, from whole fits"
        yield Row(f"{first} round", float(times["round"]), peer="limit", theirs=1.2, bar=1, note=note)
        yield Row(f"{first} act of the ranker, that choice", float(times["choice"]))
    yield small_rounds(setting)


def small_rounds(setting: Setting) -> Row:
    sets = {"train": make_lists(setting.size(60, 6), 0), "val": make_lists(setting.size(20, 2), 1)}
    count = setting.size(20, 2)
    outside, inside = min(small_fit(sets, count) for _ in range(setting.size(5, 1)))
    entries, solver = len(sets["train"].labels), f"the solver itself takes {1e3 * inside:.3g} ms"
    name = f"a round outside of the solver, MLR on {entries:,} entries"
    return Row(name, 1e3 * outside, "ms", "limit", 8.0, 1, f"{solver}, Lightning's log about 4 ms")


def make_lists(queries: int, seed: int) -> RankingSet:
    """Lists with query vectors; documents that are near in four features are relevant."""
    draw = torch.Generator().manual_seed(seed)
    x, vectors = (torch.randn(count, WIDTH, generator=draw) for count in (queries * LENGTH, queries))
    apart = x.view(queries, LENGTH, WIDTH) - vectors[:, None]
    labels = (apart[:, :, :4].square().sum(2) < 3).float().flatten()
    return RankingSet(x, labels, torch.arange(0, len(x) + 1, LENGTH), queries=vectors)


class Timed(MLR):
    """Knows the CPU seconds of its rounds."""

    spent = 0.0

    def take_round(self, number):
        start = time.process_time()
        found = super().take_round(number)
        self.spent += time.process_time() - start
        return found


def small_fit(sets: dict[str, RankingSet], count: int) -> tuple[float, float]:
    """CPU seconds of a round outside of the solver, and inside."""
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    evaluation = RankingEvaluation(every_round=True)
    trainer = Trainer(accelerator="cpu", max_epochs=count, num_sanity_val_steps=0, callbacks=[evaluation], **quiet)
    ranker, data = Timed(WIDTH, rounds=count, eps=1e-12), RankingDataModule.from_sets(**sets)
    start = time.process_time()
    trainer.fit(ranker, datamodule=data)
    whole, done = time.process_time() - start, trainer.global_step
    return (whole - ranker.spent) / done, ranker.spent / done

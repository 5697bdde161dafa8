"""Feature induction and the full L1 optimum on a text corpus: average precision, density, time, memory.

    python benchmarks/induction.py [--documents 50000] [--features 100000] [--topics 20] [--steps 10] [--quick]

One model per topic, all topics at once, on the seeded corpus `data=text` with pivoted tf-idf. First a path of l1,
downwards from the value at which all weights of a topic are 0, finds the share with the best validation MAP. Its steps
only have to tell which share is best, so they are solved by induction and to a looser violation (`--path-tolerance`).
Then both fits at that l1 from w = 0, each in its own process and to the same KKT violation: FISTA on all features, and
feature induction. CPU time is that of the process, which other processes disturb less than wall time. Memory is the
largest resident size minus that after the imports. A small run to try it: `python benchmarks/induction.py
--documents 2000 --features 3000 --topics 4 --steps 4`. A single part, which prints its findings as JSON: `--part path`,
`--part full --share 0.05`, `--part induced --share 0.05`.
"""

import argparse
import json
import logging
import subprocess
import sys
import time
import warnings

import torch
from pytorch_lightning import Callback, Trainer
from quick import parse

from torchrank import DominationRank, RankingDataModule, RankingEvaluation
from torchrank.files import peak_memory_mb

RATIO = 0.02  # the last l1 of the path as a share of the first


def main():
    options = arguments()
    if options.part:
        print(json.dumps(PARTS[options.part](options)))
        return
    chosen = run(options, "path")
    print(f"path of {options.steps} in {chosen['seconds']:.0f} s, {chosen['cpu']:.0f} of the CPU, to a violation of "
          f"{options.path_tolerance:g}; validation MAP by share of the largest l1:")  # fmt: skip
    print("   " + ", ".join(f"{share:.3g}: {value:.4f}" for share, value in chosen["map"]), flush=True)
    share = max(chosen["map"], key=lambda pair: pair[1])[0]
    if share == chosen["map"][-1][0]:
        print("   the best is the last: a longer path would be needed")
    full, induced = (run(options, part, share) for part in ("full", "induced"))
    print(f"\nat share {share:.3g}, KKT violation at most {options.tolerance}:")
    for name, found in (("FISTA on all features", full), ("feature induction", induced)):
        print(f"   {name:22} test MAP {found['map']:.4f}, {found['density']:.3%} of the weights, objective "
              f"{found['objective']:.3f}, KKT {found['kkt']:.1e}, {found['seconds']:.1f} s, {found['cpu']:.1f} s CPU, "
              f"{found['memory'] / found['csr']:.1f} times the CSR of {found['csr'] / 1e6:.0f} MB")  # fmt: skip
    verdict("difference in MAP", abs(full["map"] - induced["map"]), 0.01)
    verdict("density of induction", induced["density"], 0.01)
    verdict("time of induction / FISTA", induced["seconds"] / full["seconds"], 1.0)
    verdict("the same in CPU time", induced["cpu"] / full["cpu"], 1.0)
    verdict("memory of induction / CSR", induced["memory"] / induced["csr"], 6.0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="of the path")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--path-tolerance", type=float, default=1.0, help="violation of a step of the path")
    parser.add_argument("--features-per-round", type=int, default=30)
    parser.add_argument("--part", choices=("path", "full", "induced"), help="one of the three fits, in this process")
    parser.add_argument("--share", type=float)
    return parse(parser, documents=200, features=500, topics=2, steps=2, tolerance=1.0)


def run(options, part, share=None):
    """Run a part in its own process, whose last line is what it found."""
    command = [sys.executable, __file__, "--part", part]
    for name in ("documents", "features", "topics", "steps", "tolerance", "path_tolerance", "features_per_round"):
        command += [f"--{name.replace('_', '-')}", str(vars(options)[name])]
    command += [] if share is None else ["--share", str(share)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def verdict(text, value, limit):
    print(f"   {text:30}{value:10.4f}   (wanted: at most {limit:g}) {'ok' if value <= limit else 'MISSED'}")


class Validated(Callback):
    """Keeps the validation MAP of each validated round."""

    def __init__(self):
        self.values = []

    def on_validation_end(self, trainer, ranker):
        self.values.append(float(trainer.callback_metrics["val/map"]))


def fit(options, **settings):
    """The fitted ranker, its trainer and data, the validated rounds, and the time and memory of the fit."""
    before = peak_memory_mb()
    data = RankingDataModule(
        "text",
        num_documents=options.documents,
        num_features=options.features,
        num_topics=options.topics,
        batch_documents=60_000,  # two topics at a time: memory
    )
    data.setup()
    ranker = DominationRank(data.num_features, l2=0.0, per_topic=True, transform="singhal", rounds=1000, **settings)
    watch = Validated()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    callbacks = [RankingEvaluation(["map"]), watch]
    trainer = Trainer(accelerator="cpu", max_epochs=1000, num_sanity_val_steps=0, callbacks=callbacks, **quiet)
    start, cpu = time.perf_counter(), time.process_time()
    trainer.fit(ranker, datamodule=data)
    spent = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    return ranker, trainer, data, watch, spent | {"memory": (peak_memory_mb() - before) * 2**20}


def path(options):
    settings = {"path": options.steps, "path_ratio": RATIO, "tolerance": options.path_tolerance}
    *_, watch, found = fit(options, l1=1.0, induction=options.features_per_round, **settings)
    shares = [RATIO ** (step / max(options.steps - 1, 1)) for step in range(options.steps)]
    return found | {"map": list(zip(shares, watch.values[-len(shares) :], strict=True))}


def one(options, **settings):
    ranker, trainer, data, _, found = fit(
        options, l1=options.share, relative=True, tolerance=options.tolerance, **settings
    )
    objective = float(trainer.callback_metrics["train/objective"])
    (tested,) = trainer.test(ranker, datamodule=data, verbose=False)
    found |= {"map": tested["test/map"], "kkt": ranker.certificate.found}
    weight, csr = ranker.weight, 0
    for lists in data.sets.values():
        csr += sum(part.nbytes for part in (lists.x.values, lists.x.columns, lists.x.row_offsets))
    return found | {"density": (weight != 0).double().mean().item(), "csr": csr, "objective": objective}


def full(options):
    return one(options)


def induced(options):
    return one(options, induction=options.features_per_round)


PARTS = {"path": path, "full": full, "induced": induced}


if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    torch.set_float32_matmul_precision("highest")
    main()

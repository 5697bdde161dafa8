"""Figure 1 of the LocalRank paper on made-up clouds: does the distance of two queries say whose model is the better?

    python benchmarks/figure1.py [--worlds 20] [--components 4] [--C 1]

In every world SVM-map is trained on q1 and ranks q2 and q3 (data=clouds); beside its average precisions stand four
distances of the clouds of q2 and q3 to that of q1. The construction decides the result: it shows an invariance.
"""

import argparse
import logging
import warnings

import numpy as np
import torch
from pytorch_lightning import Trainer
from rich.console import Console

from torchrank import RankingDataModule, SVMMap
from torchrank.data.synthetic.clouds import load_clouds
from torchrank.functional import average_precision
from torchrank.report.figure1 import figure1_sheet, nearer
from torchrank.report.tables import show
from torchrank.solvers.clouds.shapes import compare, make_shapes

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def precisions(sets, C):
    """Average precision of q1's model on q2 and q3."""
    ranker, test = SVMMap(sets["train"].num_features, C=C, transform="none"), sets["test"]
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=ranker.rounds, limit_val_batches=0, **QUIET)
    trainer.fit(ranker, datamodule=RankingDataModule.from_sets(train=sets["train"]))
    return average_precision(ranker(test.x, test.offsets), test.labels, test.offsets).tolist()


def apart(sets, components):
    """Distances of q1 to q2 and q3, by name; K is Bhattacharyya's kernel."""
    found = {}
    for name, kind in (("pca", "ordered"), ("jeffreys", "jeffreys"), ("1 - K", "bhattacharyya"), ("mean", "mean")):
        q1, others = (make_shapes(part.x, part.offsets, kind, components)[0] for part in (sets["train"], sets["test"]))
        found[name] = -compare(q1, others, kind)[0]
    found["pca"] += 1
    found["1 - K"] = -torch.expm1(-found["1 - K"])
    return {name: values.tolist() for name, values in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--components", type=int, default=4)
    parser.add_argument("--C", type=float, default=1.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    worlds = [load_clouds(fold=fold) for fold in range(1, options.worlds + 1)]
    precision = np.array([precisions(sets, options.C) for sets in worlds])
    found = [apart(sets, options.components) for sets in worlds]
    distances = {name: np.array([each[name] for each in found]) for name in found[0]}
    show(figure1_sheet(precision, distances), Console(width=120))
    expected = {"pca": options.worlds, "jeffreys": 0, "1 - K": 0, "mean": 0}
    ok = nearer(precision) == options.worlds
    ok &= all(nearer(-distances[name]) == count for name, count in expected.items())
    print(f"the ordering of Figure 1 in all {options.worlds} worlds: {'ok' if ok else 'MISSED'}")


if __name__ == "__main__":
    main()

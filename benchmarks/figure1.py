"""Figure 1 of the LocalRank paper on synthetic clouds: does the distance of two queries tell whose model is better?

    python benchmarks/figure1.py [--worlds 20] [--components 4] [--C 1] [--quick]

In every world SVM-map is trained on q1 and ranks q2 and q3 (data=clouds); its average precisions are shown with four
distances of the clouds of q2 and q3 from that of q1. The construction decides the result: it shows an invariance.
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from quick import parse
from rich.console import Console

from torchrank import SVMMap
from torchrank.data.synthetic.clouds import load_clouds
from torchrank.functional import average_precision
from torchrank.report.tables import show
from torchrank.solvers.clouds.shapes import compare, make_shapes

sys.path.insert(0, str(Path(__file__).parents[1]))
from notebooks.localrank import figure1_sheet, nearer


def precisions(sets, C):
    """Average precision of q1's model on q2 and q3."""
    test = sets["test"]
    ranker = SVMMap(test.num_features, C=C, transform="none").fit(sets["train"])
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
    options = parse(parser, worlds=2)
    warnings.simplefilter("ignore")
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

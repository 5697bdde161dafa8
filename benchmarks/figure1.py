"""Figure 1 of the LocalRank paper on synthetic clouds: does the distance of two queries tell whose model is better?

In every world SVM-map is trained on q1 and ranks q2 and q3 (data=clouds); its average precisions are counted beside
four distances of the clouds of q2 and q3 from that of q1. The construction decides the result: it shows an invariance.
"""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.suite import Row, Setting
from torchrank import SVMMap
from torchrank.data.synthetic.clouds import load_clouds
from torchrank.functional import average_precision
from torchrank.solvers.cloud_clustering import compare, make_shapes

EXPECTED = {"pca": True, "jeffreys": False, "1 - K": False, "mean": False}  # whether q2 is the nearer one


def rows(setting: Setting, components: int = 4, C: float = 1.0) -> Iterator[Row]:
    count = setting.size(20, 2)
    worlds = [load_clouds(fold=fold) for fold in range(1, count + 1)]
    precision = np.array([precisions(sets, C) for sets in worlds])
    yield Row("q1's model is better on q2", float((precision[:, 0] > precision[:, 1]).sum()), "worlds", "of", count)
    found = [apart(sets, components) for sets in worlds]
    for name, nearer in EXPECTED.items():
        first, second = np.array([each[name] for each in found]).T
        agree = float(((first < second) == nearer).sum())
        yield Row(f"{'q2' if nearer else 'q3'} is nearer by {name}", agree, "worlds", "of", count)


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

"""Scores of an exported .json model in plain Python: copy this file to where torchrank is not installed."""

import math
import struct
from bisect import bisect_right


def score(model, rows):
    """The scores of all rows of one list; `model` is `json.load(file)`."""
    rows = [single(row) for row in rows]
    for step in model["transform"]:
        rows = change(step, rows)
    if model["model"]["kind"] == "ensemble":
        return ensemble(model["model"]["members"], rows)
    return [MODELS[model["model"]["kind"]](model["model"], single(row)) for row in rows]


def ensemble(members, rows):  # the weighted mean of scores, most of them with mean 0 and deviation 1
    every = [score(member, rows) for member in members]
    every = [standard(s) if member["standardise"] else s for member, s in zip(members, every)]
    return [math.fsum(member["weight"] * s for member, s in zip(members, column)) for column in zip(*every)]


def standard(scores):
    largest = max(map(abs, scores))
    if max(scores) - min(scores) <= 2**-21 * largest:  # rounding
        return [0.0] * len(scores)
    scores = [s / largest for s in scores]
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / len(scores))
    return [(s - mean) / deviation for s in scores]


def single(row):  # in float32, as torchrank compares numbers
    return struct.unpack(f"{len(row)}f", struct.pack(f"{len(row)}f", *row))


def change(step, rows):
    if step["name"] == "query_minmax":
        bounds = [(min(column), max(column)) for column in zip(*rows)]
        return [
            [(v - low) / (high - low) if high > low else 0.0 for v, (low, high) in zip(row, bounds)] for row in rows
        ]
    if step["name"] == "pca":
        return [[dot([v - m for v, m in zip(row, step["mean"])], axis) for axis in step["components"]] for row in rows]
    return [[COLUMNS[step["name"]](*given) for given in zip(row, *step["constants"])] for row in rows]


def quantile(v, nodes, scores):
    above = bisect_right(nodes, v)
    low, high = max(above - 1, 0), min(above, len(nodes) - 1)
    gap = nodes[high] - nodes[low]
    return scores[low] + ((v - nodes[low]) / gap if gap else 0.0) * (scores[high] - scores[low])


def dot(a, b):
    return math.fsum(v * w for v, w in zip(a, b))


def leaf(trees, node, row):
    while trees["left"][node] != node:
        side = "left" if row[trees["feature"][node]] <= trees["threshold"][node] else "right"
        node = trees[side][node]
    return trees["value"][node]


COLUMNS = {
    "standard": lambda v, mean, deviation: min(8.0, max(-8.0, (v - mean) / deviation)),
    "l2": lambda v, norm: v / norm,
    "log1p": lambda v: math.copysign(math.log1p(abs(v)), v),
    "quantile": quantile,
}
MODELS = {
    "linear": lambda model, row: dot(row, model["weights"]),
    "rules": lambda model, row: math.fsum(a for f, t, a in zip(*model["rules"]) if row[f] > t),
    "trees": lambda model, row: math.fsum(leaf(model, root, row) for root in model["roots"]),
}

"""The trees of LightGBM as arrays, and their scores by tensor operations."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchrank.errors import NotFittedError
from torchrank.export.errors import NotExportable
from torchrank.rankers.gbdt import GBDTRanker


class Trees(NamedTuple):
    """All nodes of all trees: node i goes to `left[i]` where x[feature[i]] <= threshold[i], otherwise to `right[i]`.

    A leaf leads to itself and has the value that it adds to the score.
    """

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    value: list[float]
    roots: list[int]
    depth: int


def trees_of(ranker: GBDTRanker) -> Trees:
    """The trees of a fitted ranker; what is not a sum of numerical decisions is refused."""
    if ranker.booster is None:
        raise NotFittedError("this GBDTRanker is not fitted: call fit first")
    found = Trees([], [], [], [], [], [], 0)
    depth = 0
    for info in ranker.booster.dump_model(num_iteration=-1)["tree_info"]:
        found.roots.append(len(found.feature))
        depth = max(depth, _add(found, info["tree_structure"]))
    return found._replace(depth=depth)


def _add(trees: Trees, root: dict[str, Any]) -> int:
    """Add a node and all below it, without recursion since trees may be deep; returns the depth."""
    deepest = 0
    waiting: list[tuple[dict[str, Any], int, list[int], int]] = [(root, 0, [0], 0)]
    while waiting:
        node, depth, side, parent = waiting.pop()
        place, deepest = len(trees.feature), max(deepest, depth)
        side[parent] = place
        is_leaf = "split_feature" not in node
        _check(node, is_leaf)
        trees.feature.append(0 if is_leaf else int(node["split_feature"]))
        trees.threshold.append(0.0 if is_leaf else float(node["threshold"]))
        trees.value.append(float(node["leaf_value"]) if is_leaf else 0.0)
        trees.left.append(place)
        trees.right.append(place)
        if not is_leaf:
            waiting.append((node["right_child"], depth + 1, trees.right, place))
            waiting.append((node["left_child"], depth + 1, trees.left, place))
    return deepest


def _check(node: dict[str, Any], is_leaf: bool) -> None:
    if is_leaf and "leaf_coeff" in node:
        raise NotExportable("the leaves of these trees are linear models (linear_tree): only constants can be exported")
    if not is_leaf and node["decision_type"] != "<=":
        kind = node["decision_type"]
        raise NotExportable(f"a tree decides by {kind!r} (categorical features): only x <= threshold can be exported")
    if not is_leaf and node["missing_type"] == "Zero":
        raise NotExportable("these trees take 0 for a missing value (zero_as_missing), which no format here knows")


class TreeScores(nn.Module):
    """The sum over the trees of the value of the leaf that a row reaches."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    roots: Tensor

    def __init__(self, trees: Trees):
        super().__init__()
        self.depth = trees.depth
        for name in ("feature", "left", "right", "roots"):
            self.register_buffer(name, torch.tensor(getattr(trees, name), dtype=torch.int64))
        for name in ("threshold", "value"):
            self.register_buffer(name, torch.tensor(getattr(trees, name), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.double()
        node = torch.zeros_like(x[:, :1], dtype=torch.int64) + self.roots  # (n, trees)
        for _ in range(self.depth):
            here = rows.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(here, self.left[node], self.right[node])
        return self.value[node].sum(1)

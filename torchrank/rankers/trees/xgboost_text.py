"""The text of a booster of XGBoost, checked before XGBoost reads it: it trusts places and sizes in the text, and a
wrong one can end the interpreter."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from torchrank.errors import CheckpointError
from torchrank.rankers.trees.forest import Forest, join, leaf

INTEGERS = ("default_left", "left_children", "parents", "right_children", "split_indices", "split_type")
NUMBERS = ("base_weights", "loss_changes", "split_conditions", "sum_hessian")
CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
TREE = {*INTEGERS, *NUMBERS, *CATEGORIES, "id", "tree_param"}
NONE = 2**31 - 1  # the parent of a root, and the feature of a node that was pruned
WORD = re.compile(r"[\w.+:-]{0,40}")
BASE = re.compile(r"\[?(-?[0-9.]{1,20}(E[+-]?[0-9]{1,2})?)\]?")
BIASES = ("ti+", "tj-")  # what lambdarank_unbiased has found so far
MOST_BIASES = 2**20


def checked_text(text: str, num_features: int, objectives: Mapping[str, str]) -> str:
    """The text as XGBoost may read it: written anew from what was checked. Everything else is a CheckpointError."""
    try:
        model = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        _check_model(model, num_features, set(objectives.values()))
        return json.dumps(model)
    except CheckpointError:
        raise
    except (KeyError, ValueError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        told = f"{type(error).__name__} {error}"[:200]
        raise CheckpointError(f"the text of its trees is damaged: {told}") from None


def _check_model(model: Any, num_features: int, objectives: set[str]) -> None:
    learner = model["learner"]
    _require(model.keys() == {"learner", "version"} and _are_places(model["version"], 10_000), "the head")
    known = {"attributes", "feature_names", "feature_types", "gradient_booster", "learner_model_param", "objective"}
    _require(learner.keys() == known, "the head")
    _require(
        not (learner["attributes"] or learner["feature_names"] or learner["feature_types"]), "the names of features"
    )
    of = learner["learner_model_param"]
    _require(all(isinstance(each, str) for each in of.values()), "the head")
    _require(int(of["num_feature"]) == num_features, "the number of features")
    _require(
        of["num_class"] == "0" and of["num_target"] == "1" and of.get("boost_from_average", "1") in "01", "the head"
    )
    _require(of.keys() <= {"base_score", "boost_from_average", "num_class", "num_feature", "num_target"}, "the head")
    base_score(of["base_score"])
    _check_objective(learner["objective"], objectives)
    booster = learner["gradient_booster"]
    _require(booster.keys() == {"model", "name"} and booster["name"] == "gbtree", "the booster")
    _check_trees(booster["model"], num_features)


def base_score(text: str) -> np.float32:
    """What XGBoost adds to all scores that do not start from others."""
    found = BASE.fullmatch(text)
    _require(found is not None and bool(np.isfinite(np.float32(found[1]))), "the base score")
    assert found is not None
    return np.float32(found[1])


def _check_objective(objective: dict[str, Any], objectives: set[str]) -> None:
    _require(objective["name"] in objectives, "the objective")
    for name, value in objective.items():
        if name in BIASES:
            _require(isinstance(value, list) and len(value) <= MOST_BIASES and _are_numbers(value), "the objective")
        else:
            words = {name: value} if isinstance(value, str) else value
            _require(all(isinstance(each, str) and WORD.fullmatch(each) for each in words.values()), "the objective")
    _require(len({len(objective.get(name, [])) for name in BIASES}) == 1, "the objective")


def _check_trees(model: dict[str, Any], num_features: int) -> None:
    of, trees, bounds = model["gbtree_model_param"], model["trees"], model["iteration_indptr"]
    _require(model.keys() - {"cats"} == {"gbtree_model_param", "trees", "iteration_indptr", "tree_info"}, "the trees")
    _require(not any(model.get("cats", {}).values()), "categories of the features")
    _require(of.keys() <= {"num_parallel_tree", "num_trees", "size_leaf_vector"}, "the trees")
    _require(
        of["num_trees"] == str(len(trees)) and of.get("size_leaf_vector", "0") in ("0", "1"), "the number of trees"
    )
    _require(model["tree_info"] == [0] * len(trees), "the number of trees")
    each = int(of["num_parallel_tree"])
    _require(each >= 1 and bounds == list(range(0, len(trees) + 1, each)) and bounds[-1] == len(trees), "the rounds")
    for number, tree in enumerate(trees):
        _require(tree.keys() == TREE and tree["id"] == number and type(tree["id"]) is int, f"tree {number}")
        _check_tree(tree, num_features)


def _check_tree(tree: dict[str, Any], num_features: int) -> None:
    of = tree["tree_param"]
    _require(of.keys() == {"num_deleted", "num_feature", "num_nodes", "size_leaf_vector"}, "the head of a tree")
    _require(
        all(isinstance(each, str) and re.fullmatch("[0-9]{1,9}", each) for each in of.values()), "the head of a tree"
    )
    nodes, deleted = int(of["num_nodes"]), int(of["num_deleted"])
    _require(of["num_feature"] == str(num_features) and of["size_leaf_vector"] in ("0", "1"), "the head of a tree")
    _require(all(tree[name] == [] for name in CATEGORIES), "categories of a tree")
    _require(nodes >= 1 and all(len(tree[name]) == nodes for name in (*INTEGERS, *NUMBERS)), "nodes of a tree")
    _require(all(_are_numbers(tree[name]) for name in NUMBERS), "numbers of a tree")
    _require(all(type(each) is int for name in INTEGERS for each in tree[name]), "nodes of a tree")
    left, right, parents, feature, kind, default = (
        np.array(tree[name], dtype=np.int64)
        for name in ("left_children", "right_children", "parents", "split_indices", "split_type", "default_left")
    )
    _require(bool((kind == 0).all() and ((default == 0) | (default == 1)).all()), "decisions of a tree")
    pruned, inner = feature == NONE, left >= 0
    _require(int(pruned.sum()) == deleted and not (pruned & inner).any() and not pruned[0], "nodes of a tree")
    _require(bool((pruned | ((feature >= 0) & (feature < num_features))).all()), "features of a tree")
    _check_children(left, right, parents, pruned)


def _check_children(left: np.ndarray, right: np.ndarray, parents: np.ndarray, pruned: np.ndarray) -> None:
    """Every node that was not pruned is the child of one node, and comes after it: so there is no circle."""
    inner = np.flatnonzero(left >= 0)
    leaves = left < 0
    _require(bool((left[leaves] == -1).all() and (right[leaves] == -1).all()), "leaves of a tree")
    children = np.concatenate((left[inner], right[inner]))
    alive = np.flatnonzero(~pruned)
    _require(np.array_equal(np.sort(children), alive[1:]), "nodes of a tree")
    _require(bool((children > np.tile(inner, 2)).all()), "order of the nodes of a tree")
    _require(parents[0] == NONE and np.array_equal(parents[children], np.tile(inner, 2)), "parents of a tree")
    _require(bool(((parents[1:] >= 0) & (parents[1:] < len(parents))).all()), "parents of a tree")


def _are_numbers(values: Any) -> bool:
    """Whether all are real numbers that float32 can hold; XGBoost refuses integers in their place."""
    if not isinstance(values, list) or not all(type(each) is float for each in values):
        return False
    return bool((np.abs(np.array(values, dtype=np.float64)) <= np.finfo(np.float32).max).all())


def _are_places(values: Any, limit: int) -> bool:
    return isinstance(values, list) and all(type(each) is int and 0 <= each < limit for each in values)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    _require(len(found) == len(pairs), "a name that is there twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckpointError(f"the text of its trees is damaged: {what}")


# ---- trees as arrays -------------------------------------------------------------------------------------------------


def read_forest(text: str, with_base: bool) -> Forest:
    """The trees of a text that XGBoost has written, after the base score if it is asked for."""
    learner = json.loads(text)["learner"]
    trees = [_read_tree(tree) for tree in learner["gradient_booster"]["model"]["trees"]]
    base = leaf(float(base_score(learner["learner_model_param"]["base_score"])), np.float32)
    return join([base, *trees] if with_base else trees)


def _read_tree(tree: dict[str, Any]) -> Forest:
    """XGBoost goes left where x < t: for numbers in float32 that is x <= the number before t."""
    left, right = (np.array(tree[name], dtype=np.int64) for name in ("left_children", "right_children"))
    itself, is_leaf = np.arange(len(left)), left < 0
    condition = np.array(tree["split_conditions"], dtype=np.float32)
    before = np.nextafter(condition, np.float32(-np.inf)).astype(np.float64)
    return Forest(
        feature=np.where(is_leaf, 0, np.array(tree["split_indices"], dtype=np.int64)),
        threshold=np.where(is_leaf, 0.0, before),
        left=np.where(is_leaf, itself, left),
        right=np.where(is_leaf, itself, right),
        value=np.where(is_leaf, condition, np.float32(0)),
        roots=np.zeros(1, dtype=np.int64),
    )

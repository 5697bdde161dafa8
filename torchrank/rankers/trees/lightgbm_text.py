"""The text of a booster of LightGBM, checked before LightGBM reads it: it trusts places and sizes in the text, and a
wrong one can end the interpreter."""

import re

import numpy as np

from torchrank.errors import CheckpointError
from torchrank.rankers.trees.forest import Forest, join, leaf

OBJECTIVES = ("lambdarank", "rank_xendcg", "regression")
NODES = (
    *("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child"),
    *("internal_value", "internal_weight", "internal_count"),
)
LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
ONE = ("num_leaves", "num_cat", "is_linear", "shrinkage")
CATEGORIES = ("cat_boundaries", "cat_threshold")
LINEAR = ("leaf_const", "num_features", "leaf_features", "leaf_coeff")
INTEGERS = re.compile(r"\s*(-?[0-9]{1,10}(\s+|\Z))*")
NUMBER = re.compile(r"-?[0-9]{1,25}(\.[0-9]{1,25})?(e[+-]?[0-9]{1,3})?")


def check_booster_text(text: str, num_features: int) -> None:
    """Refuse a text that is not a booster for these features, or has a tree with a place that is out of range."""
    try:
        _check_text(text, num_features)
    except (KeyError, ValueError, IndexError) as error:
        raise CheckpointError(f"the text of its trees is damaged: {type(error).__name__} {error}") from None


def _check_text(text: str, num_features: int) -> None:
    head, _, rest = text.partition("\n\n")
    first, *lines = head.split("\n")
    fields = _fields(lines)
    _require(first == "tree" and fields["num_class"] == fields["num_tree_per_iteration"] == "1", "the head")
    _require(fields["objective"].split(" ")[0] in OBJECTIVES, "the objective")
    _require(_integers(fields["max_feature_idx"]).tolist() == [num_features - 1], "the number of features")
    _require(len(fields["feature_names"].split(" ")) == num_features, "the names of features")
    _require(len(fields["feature_infos"].split(" ")) == num_features, "the ranges of features")
    raw, start = rest.encode(), 0
    for number, size in enumerate(_integers(fields["tree_sizes"]).tolist()):
        block = raw[start : start + size].decode()
        _require(len(block) == size > 0 and block.startswith(f"Tree={number}\n"), f"tree {number}")
        _check_tree(_fields(block.strip("\n").split("\n")[1:]), num_features)
        start += size
    _check_tail(raw[start:].decode())


def _check_tail(text: str) -> None:
    """What follows the trees: how often each feature is used, and the parameters of the fit."""
    _require(text.startswith("end of trees\n") and "\nTree=" not in text, "the end of the trees")
    options, ended, _ = text.partition("\nparameters:\n")[2].partition("\nend of parameters\n")
    _require(bool(ended) and text.count("parameters:") == 1, "the parameters")
    _require(all(re.fullmatch(r"\[\w+: .*\]", line) for line in options.split("\n") if line), "the parameters")


def _check_tree(tree: dict[str, str], num_features: int) -> None:
    leaves, cats = (int(_integers(tree[name])[0]) for name in ("num_leaves", "num_cat"))
    known = {*NODES, *LEAVES, *ONE, *(CATEGORIES * (cats > 0)), *(LINEAR * (tree["is_linear"] == "1"))}
    _require(tree.keys() == known, "names in a tree")
    for name, values in tree.items():  # LightGBM ends the interpreter at a word that is not a number
        _require(all(_is_number(word) for word in values.split(" ") if word), f"{name} of a tree")
    found = {name: len(values.split()) for name, values in tree.items()}
    _require(all(found[name] == leaves - 1 for name in NODES), "nodes of a tree")
    _require(all(found[name] == leaves or (leaves, name) == (1, "leaf_weight") for name in LEAVES), "leaves of a tree")
    _require(all(found[name] == 1 for name in ONE) and tree["is_linear"] in ("0", "1"), "the head of a tree")
    _check_places(_integers(tree["split_feature"]), num_features, "features of a tree")
    children = np.stack([_integers(tree["left_child"]), _integers(tree["right_child"])])
    inner, outer = children[children >= 0], ~children[children < 0]
    _require(np.array_equal(np.sort(inner), np.arange(1, leaves - 1)), "nodes of a tree")
    _require(leaves == 1 or np.array_equal(np.sort(outer), np.arange(leaves)), "leaves of a tree")
    _require(bool(((children < 0) | (children > np.arange(max(leaves - 1, 0)))).all()), "order of the nodes of a tree")
    _check_categories(tree, cats)
    if tree["is_linear"] == "1":
        _check_linear(tree, leaves, num_features)


def _check_categories(tree: dict[str, str], cats: int) -> None:
    chosen = (_integers(tree["decision_type"]) & 1).astype(bool)
    places = [each for each, is_set in zip(tree["threshold"].split(), chosen, strict=True) if is_set]
    _check_places(_integers(" ".join(places)), cats, "categories of a tree")
    bounds, sets = (_integers(tree.get(name, "")) for name in CATEGORIES)
    wanted = cats + 1 if cats else 0
    _require(len(bounds) == wanted and (not cats or bounds[0] == 0), "categories of a tree")
    _require(bool((np.diff(bounds) >= 0).all()) and (not cats or bounds[-1] == len(sets)), "categories of a tree")


def _check_linear(tree: dict[str, str], leaves: int, num_features: int) -> None:
    counts, used = _integers(tree["num_features"]), _integers(tree["leaf_features"])
    values = {name: [float(each) for each in tree[name].split()] for name in ("leaf_const", "leaf_coeff")}
    _require(len(counts) == len(values["leaf_const"]) == leaves and bool((counts >= 0).all()), "linear leaves")
    _require(counts.sum() == len(used) == len(values["leaf_coeff"]), "linear leaves")
    _check_places(used, num_features, "linear leaves")


def _check_places(places: np.ndarray, limit: int, what: str) -> None:
    _require(bool(((places >= 0) & (places < limit)).all()), what)


def _fields(lines: list[str]) -> dict[str, str]:
    """Lines of NAME=VALUE by name, and lines without a value; none may be there twice."""
    found = {name: value for name, _, value in (line.partition("=") for line in lines)}
    _require(len(found) == len(lines), "a name that is there twice")
    return found


def _integers(text: str) -> np.ndarray:
    _require(INTEGERS.fullmatch(text) is not None, f"{text[:40]!r}, which are not integers")
    return np.array(text.split(), dtype=np.int64)


def _is_number(word: str) -> bool:
    """Whether it is a number that a double can hold."""
    return NUMBER.fullmatch(word) is not None and abs(float(word)) < np.inf and ("e" not in word or float(word) != 0)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise CheckpointError(f"the text of its trees is damaged: {what}")


# ---- trees as arrays -------------------------------------------------------------------------------------------------


def read_forest(text: str) -> Forest:
    """The trees of a text that LightGBM has written; a ValueError says which of their decisions have no such form."""
    head, _, rest = text.partition("\n\n")
    blocks = rest.partition("end of trees")[0].split("Tree=")[1:]
    forest = join(_read_tree(_fields(block.strip("\n").split("\n")[1:])) for block in blocks)
    averaged = "average_output" in head.split("\n")  # a random forest
    return forest._replace(value=forest.value / len(blocks)) if averaged else forest


def _read_tree(tree: dict[str, str]) -> Forest:
    """Its inner nodes, then its leaves; LightGBM counts both from 0, the latter as ~0, ~1, ..."""
    if tree["is_linear"] == "1":
        raise ValueError("the leaves of these trees are linear models (linear_tree): only constants can be exported")
    value = _numbers(tree["leaf_value"])
    inner = len(value) - 1
    if inner == 0:
        return leaf(value[0])
    kind = _integers(tree["decision_type"])
    if (kind & 1).any():
        raise ValueError("a tree decides by '==' (categorical features): only x <= threshold can be exported")
    if ((kind >> 2 & 3) == 1).any():
        raise ValueError("these trees take 0 for a missing value (zero_as_missing), which no format here knows")
    places = [_integers(tree[name]) for name in ("left_child", "right_child")]
    left, right = (np.concatenate((np.where(to < 0, inner + ~to, to), inner + np.arange(inner + 1))) for to in places)
    feature = np.concatenate((_integers(tree["split_feature"]), np.zeros(inner + 1, dtype=np.int64)))
    threshold = np.concatenate((_numbers(tree["threshold"]), np.zeros(inner + 1)))
    values = np.concatenate((np.zeros(inner), value))
    return Forest(feature, threshold, left, right, values, np.zeros(1, dtype=np.int64))


def _numbers(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=np.float64)

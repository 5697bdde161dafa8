"""Trees of XGBoost (Chen and Guestrin 2016)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.rows import in_float32
from torchrank.data.sparse import SparseRows
from torchrank.errors import CheckpointError, DataError, DataWarning
from torchrank.rankers.core.ranker import warn
from torchrank.rankers.trees.engine import Common, Engine, Grown, host, sizes
from torchrank.rankers.trees.forest import Forest
from torchrank.rankers.trees.xgboost_text import checked_text, read_forest

OBJECTIVES = {
    "lambdarank": "rank:ndcg",
    "regression": "reg:squarederror",
    **{name: name for name in ("rank:ndcg", "rank:pairwise", "rank:map", "reg:squarederror")},
}
ALIASES = {
    "learning_rate": ("eta",),
    "min_split_loss": ("gamma",),
    "reg_lambda": ("lambda",),
    "reg_alpha": ("alpha",),
    "nthread": ("n_jobs",),
    "seed": ("random_state",),
    "num_boost_round": ("n_estimators", "num_round"),
}
MOST_GRADES = 32  # with exponential gains
UNBIASED = "lambdarank_unbiased"
DRAWS = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
CONSTRAINTS = {"monotone_constraints", "interaction_constraints"}
QUIET = {
    "verbosity",
    "eval_metric",
    "disable_default_eval_metric",
}  # not listed by the configuration of a booster


class XGBoost(Engine):
    """See `Engine`."""

    title = "XGBoost"
    dtype = torch.float32
    objectives, aliases = OBJECTIVES, ALIASES
    _threads = "nthread"

    def __init__(self, common: Common, options: Mapping[str, Any]):
        super().__init__(common, options)
        self.given = {*self._by_main_names(options)} - QUIET
        for name in CONSTRAINTS & self.given:  # in lists XGBoost looks for the names of features
            self.parameters[name] = _as_text(self.parameters[name])

    def _own(self, common: Common) -> dict[str, Any]:
        best_first = {"max_leaves": common.leaves, "grow_policy": "lossguide", "max_depth": 0}
        return {
            "objective": common.objective,
            "learning_rate": common.lr,
            **({} if common.leaves is None else best_first),
            "min_child_weight": common.min_leaf,
            "nthread": common.threads,
            "seed": common.seed,
            "verbosity": 0,
            "disable_default_eval_metric": True,
        }

    def _check_option(self, name: str, given: str, value: Any) -> None:
        if name == "num_boost_round":
            raise ValueError(f"options cannot have {given}={value}: rounds are an option of the ranker")
        if name == "early_stopping_rounds":
            raise ValueError(f"options cannot have {given}={value}: torchrank stops early, by its own measure")
        if (name == "booster" and value != "gbtree") or (name == "process_type" and value != "default"):
            raise ValueError(f"options cannot have {given}={value}: it changes trees that are already validated")
        if name in ("num_class", "num_target", "multi_strategy"):
            raise ValueError(f"options cannot have {given}={value}: a ranker has one score for each document")

    @property
    def ranks(self) -> bool:
        return str(self.parameters["objective"]).startswith("rank:")

    @property
    def unbiased(self) -> bool:
        return self.ranks and str(self.parameters.get(UNBIASED, False)).lower() in ("true", "1")

    def check(self, batch: Batch) -> None:
        objective, others = self.parameters["objective"], "use objective=rank:pairwise or regression"
        if objective == "rank:ndcg" and batch.num_grades == 0:
            raise DataError(f"XGBoost's rank:ndcg ranks integer grades, but the labels are real-valued: {others}")
        exponential = str(self.parameters.get("ndcg_exp_gain", True)).lower() in ("true", "1")
        if objective == "rank:ndcg" and exponential and batch.num_grades > MOST_GRADES:
            raise DataError(
                f"XGBoost's rank:ndcg knows the gains of labels up to {MOST_GRADES - 1}, but the highest label is "
                f"{batch.num_grades - 1}: set its option ndcg_exp_gain to false, or map the labels to fewer grades"
            )
        if objective == "rank:map" and batch.num_grades not in (1, 2):
            raise DataError("XGBoost's rank:map takes labels 0 and 1 only: use objective=rank:ndcg")

    def data(self, batch: Batch, start: np.ndarray | None) -> Any:
        if batch.positions is not None and self.ranks and UNBIASED not in self.parameters:
            warn(f"the lists have positions, which XGBoost uses with the option {UNBIASED}=true alone", DataWarning)
        order = shown_order(batch) if self.unbiased and batch.positions is not None else slice(None)
        given: dict[str, Any] = {"group": sizes(batch), "weight": list_weights(batch)} if self.ranks else {}
        if not self.ranks and batch.weights is not None:
            given["weight"] = host(batch.weights)
        if given.get("weight") is not None and not given["weight"].any():
            raise DataError("all weights are 0: XGBoost cannot learn from such lists")
        start = None if start is None else start[order]
        with one_line():
            return package().DMatrix(rows(batch.x)[order], host(batch.labels)[order], base_margin=start, **given)

    def begin(self, booster: Any, data: Any) -> Grown:
        model = None if booster is None else bytearray(self.text(booster).encode())
        again = 0 if booster is None or not self.unbiased else self.rounds(booster)
        with one_line():  # XGBoost cannot go on with an unbiased booster, but it grows the same trees again
            booster = package().Booster(self.parameters, [data], model_file=None if again else model)
            for _ in range(again):
                booster.update(data, self.rounds(booster))
        grown = self.grow(booster, data)
        self._check_names(booster)
        return grown

    def grow(self, booster: Any, data: Any) -> Grown:
        with one_line():
            booster.update(data, self.rounds(booster))
        return Grown(booster)

    def _check_names(self, booster: Any) -> None:
        """Refuse options that XGBoost does not know, or does not use with this objective: it would ignore them."""
        known = set(_names(json.loads(booster.save_config())))
        if unknown := sorted(self.given - known):
            names, objective = ", ".join(unknown), self.parameters["objective"]
            raise ValueError(f"XGBoost has no option {names} with objective={objective}: see its list of parameters")

    def resumes_exactly(self, batch: Batch, started: bool) -> bool:
        return self.unbiased or all(float(self.parameters.get(name, 1)) == 1 for name in DRAWS)

    def rounds(self, booster: Any) -> int:
        return int(booster.num_boosted_rounds())

    def predict(self, booster: Any, x: Tensor | SparseRows, start: np.ndarray | None) -> np.ndarray:
        with one_line():
            found: np.ndarray = booster.inplace_predict(rows(x), predict_type="margin", base_margin=start)
        return found

    def added(self, booster: Any, x: Tensor | SparseRows, first: int, scores: np.ndarray) -> np.ndarray | None:
        new = {"iteration_range": (first, self.rounds(booster)), "predict_type": "margin", "base_margin": scores}
        with one_line():
            found: np.ndarray = booster.inplace_predict(rows(x), **new)
        return found

    def contributions(self, booster: Any, x: Tensor) -> np.ndarray:
        with one_line():
            found: np.ndarray = booster.predict(package().DMatrix(rows(x)), pred_contribs=True)[:, :-1]
        return found.astype(np.float64)

    def gains(self, booster: Any) -> np.ndarray:
        found = np.zeros(booster.num_features())
        for name, gain in booster.get_score(importance_type="total_gain").items():
            found[int(name.removeprefix("f"))] = gain
        return found

    def forest(self, booster: Any, started: bool) -> Forest:
        return read_forest(self.text(booster), with_base=not started)

    def text(self, booster: Any) -> str:
        return str(booster.save_raw("json").decode())

    def read(self, text: str, num_features: int) -> Any:
        content = bytearray(checked_text(text, num_features, self.objectives).encode())
        try:
            booster = package().Booster(model_file=content)
        except package().core.XGBoostError as error:  # which is not expected after the check
            told = str(error).strip().partition("\n")[0]
            raise CheckpointError(f"the text of its trees is damaged: {told}") from error
        booster.set_param({"nthread": self.threads, "verbosity": 0})
        return booster


def package() -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise ImportError("GBDTRanker(engine='xgboost') needs XGBoost: pip install 'torchrank-ltr[xgboost]'") from error
    return xgboost


@contextmanager
def one_line() -> Iterator[None]:
    """What XGBoost says about its data and options, without the place in its sources."""
    try:
        yield
    except package().core.XGBoostError as error:
        first = str(error).strip().partition("\n")[0]
        told = re.sub(r".*Check failed: .*?: (?=.)", "", first)  # the condition is code, and often a message follows
        raise ValueError(f"XGBoost refuses this: {told.rpartition('Check failed: ')[2]}") from error


def rows(x: Tensor | SparseRows) -> np.ndarray:
    """Rows as XGBoost takes them, in single precision."""
    if isinstance(x, SparseRows):
        raise DataError("XGBoost takes what sparse rows do not hold for missing, not for 0: set data.sparse=false")
    found: Any = in_float32(x, "XGBoost computes")
    return host(found)


def list_weights(batch: Batch) -> np.ndarray | None:
    """The weight of each list that has documents: XGBoost ranks with one for each list."""
    if batch.weights is None:
        return None
    lists = np.repeat(np.arange(batch.num_lists), host(batch.offsets.diff()))
    weights, starts = host(batch.weights), np.flatnonzero(np.diff(lists, prepend=-1))
    if (other := np.flatnonzero(weights != np.repeat(weights[starts], sizes(batch)))).size:
        raise DataError(
            f"XGBoost ranks with one weight for each list, but list {lists[other[0]]} has different ones: give its "
            "documents the same weight, or use engine=lightgbm"
        )
    found: np.ndarray = weights[starts]
    return found


def shown_order(batch: Batch) -> np.ndarray:
    """The entries in the order in which they were shown: XGBoost takes the place of a row in its list for it."""
    assert batch.positions is not None
    lengths, positions = host(batch.offsets.diff()), host(batch.positions)
    order = np.lexsort((positions, np.repeat(np.arange(batch.num_lists), lengths)))
    places = np.arange(len(order)) - np.repeat(host(batch.offsets[:-1]), lengths)
    if (positions[order] != places).any():
        warn(
            "the positions of a list are not 0, 1, 2, ...: XGBoost takes the order of its documents for them",
            DataWarning,
        )
    return order


def _as_text(constraints: Any) -> Any:
    """Constraints in lists as XGBoost reads them in a text: (1,0,-1), or [[0, 1], [2]]."""
    if not isinstance(constraints, list | tuple):
        return constraints
    flat = not any(isinstance(each, list | tuple) for each in constraints)
    return f"({','.join(map(str, constraints))})" if flat else str([list(each) for each in constraints])


def _names(value: Any) -> Iterator[str]:
    """All names in nested dicts and lists."""
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(each)

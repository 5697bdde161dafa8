"""Trees of LightGBM (Ke et al. 2017)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError
from torchrank.rankers.trees.engine import Common, Engine, Grown, host, sizes
from torchrank.rankers.trees.forest import Forest
from torchrank.rankers.trees.lightgbm_text import check_booster_text, read_forest

OBJECTIVES = {name: name for name in ("lambdarank", "rank_xendcg", "regression")}  # LambdaMART, listwise, GBRT
ALIASES = {
    "objective": ("app", "application", "loss", "objective_type"),
    "learning_rate": ("eta", "shrinkage_rate"),
    "num_leaves": ("max_leaf", "max_leaf_nodes", "max_leaves", "num_leaf"),
    "min_data_in_leaf": ("min_child_samples", "min_data", "min_data_per_leaf", "min_samples_leaf"),
    "num_threads": ("n_jobs", "nthread", "nthreads", "num_thread"),
    "seed": ("random_seed", "random_state"),
    "verbosity": ("verbose",),
    "metric": ("metric_types", "metrics"),
    "num_iterations": (
        *("max_iter", "n_estimators", "n_iter", "nrounds", "num_boost_round"),
        *("num_iteration", "num_round", "num_rounds", "num_tree", "num_trees"),
    ),
    "early_stopping_round": ("early_stopping", "early_stopping_rounds", "n_iter_no_change"),
}
UNBIASED = "lambdarank_unbiased"  # XGBoost's name; LightGBM itself is unbiased where its data has positions
FEW = 4  # trees that are sooner asked here: LightGBM copies all rows first
MOST_DOCUMENTS = 10_000  # of a list, in LightGBM's lambdarank
MOST_GRADES = 31  # without label_gain


class LightGBM(Engine):
    """See `Engine`."""

    title = "LightGBM"
    dtype = torch.float64
    takes = frozenset({"sparse"})
    objectives, aliases = OBJECTIVES, ALIASES
    _threads = "num_threads"

    def __init__(self, common: Common, options: Mapping[str, Any]):
        super().__init__(common, options)
        self.given = {*self._by_main_names(options)} - {UNBIASED}
        self.draws = bool(options) or self.parameters["objective"] == "rank_xendcg"
        self.unbiased: bool | None = self.parameters.pop(UNBIASED, None)

    def _own(self, common: Common) -> dict[str, Any]:
        return {
            "objective": common.objective,
            "learning_rate": common.lr,
            "num_leaves": common.leaves,
            "min_data_in_leaf": common.min_leaf,
            "num_threads": common.threads,
            "seed": common.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
            "metric": "none",
        }

    def _check_option(self, name: str, given: str, value: Any) -> None:
        if name == "num_iterations":
            raise ValueError(f"options cannot have {given}={value}: rounds are an option of the ranker")
        if value == "dart":
            raise ValueError(f"options cannot have {given}={value}: it changes trees that are already validated")
        if name == "early_stopping_round":
            raise ValueError(f"options cannot have {given}={value}: torchrank stops early, by its own measure")

    def check(self, batch: Batch) -> None:
        objective, others = self.parameters["objective"], "use objective=regression"
        if objective != "regression" and batch.num_grades == 0:
            raise DataError(f"LightGBM ranks integer grades, but the labels are real-valued: {others}")
        if objective != "lambdarank":
            return
        if batch.max_length > MOST_DOCUMENTS:
            raise DataError(
                f"LightGBM's lambdarank takes lists of {MOST_DOCUMENTS} documents at most, but one has "
                f"{batch.max_length}: use objective=rank_xendcg, or split the list"
            )
        if batch.num_grades > MOST_GRADES and "label_gain" not in self.parameters:
            raise DataError(
                f"LightGBM's lambdarank knows the gains of labels up to {MOST_GRADES - 1}, but the highest label is "
                f"{batch.num_grades - 1}: give its option label_gain, or map the labels to fewer grades"
            )

    def data(self, batch: Batch, start: np.ndarray | None) -> Any:
        _check_names(self.given)
        return package().Dataset(
            rows(batch.x),
            host(batch.labels),
            group=sizes(batch),
            weight=None if batch.weights is None else host(batch.weights),
            position=None if self._positions(batch) is None else host(self._positions(batch)),
            init_score=start,
            free_raw_data=False,
        )

    def _positions(self, batch: Batch) -> Any:
        """The positions by which it corrects; None where there are none, or where it shall not."""
        if self.unbiased and batch.positions is None:
            raise DataError(f"{UNBIASED} needs the position of each document, but the lists have none: give positions")
        return None if self.unbiased is False else batch.positions

    def begin(self, booster: Any, data: Any) -> Grown:
        """LightGBM continues a booster or starts from scores: where it is both, the trees are grown again."""
        again = 0 if booster is None or data.init_score is None else self.rounds(booster)
        given = {"num_boost_round": again + 1, "init_model": None if again else booster}
        with one_line():
            return Grown(package().train(self.parameters, data, **given, keep_training_booster=True))

    def grow(self, booster: Any, data: Any) -> Grown:
        with one_line():
            return Grown(booster, done=booster.update())

    def resumes_exactly(self, batch: Batch, started: bool) -> bool:
        return started or (
            not self.draws and self._positions(batch) is None
        )  # the text of a booster has no biases of positions

    def rounds(self, booster: Any) -> int:
        return int(booster.current_iteration())

    def predict(self, booster: Any, x: Tensor | SparseRows, start: np.ndarray | None) -> np.ndarray:
        with one_line():
            found = np.asarray(booster.predict(rows(x), raw_score=True, num_threads=self.threads), dtype=np.float64)
        return found if start is None else start + found

    def added(self, booster: Any, x: Tensor | SparseRows, first: int, scores: np.ndarray) -> np.ndarray | None:
        text = booster.model_to_string(start_iteration=first, num_iteration=-1)
        if "\naverage_output\n" in text.partition("\n\n")[0]:  # of a random forest
            return None
        if not isinstance(x, SparseRows) and self.rounds(booster) - first <= FEW:
            try:
                return read_forest(text).added_to(scores, rows(x))
            except ValueError:  # decisions of another kind
                pass
        new = {"start_iteration": first, "raw_score": True, "num_threads": self.threads}
        with one_line():
            found: np.ndarray = scores + booster.predict(rows(x), **new)
        return found

    def contributions(self, booster: Any, x: Tensor) -> np.ndarray:
        with one_line():
            found: np.ndarray = booster.predict(rows(x), pred_contrib=True, num_threads=self.threads)[:, :-1]
        return found

    def gains(self, booster: Any) -> np.ndarray:
        return np.asarray(booster.feature_importance("gain"), dtype=np.float64)

    def forest(self, booster: Any, started: bool) -> Forest:
        return read_forest(self.text(booster))

    def text(self, booster: Any) -> str:
        return str(booster.model_to_string(num_iteration=-1))

    def read(self, text: str, num_features: int) -> Any:
        check_booster_text(text, num_features)
        return package().Booster(model_str=text)


def package() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError("GBDTRanker needs LightGBM: pip install 'torchrank-ltr[gbdt]'") from error
    return lightgbm


@contextmanager
def one_line() -> Iterator[None]:
    """What LightGBM says about its data and options, without the place in its sources."""
    try:
        yield
    except package().basic.LightGBMError as error:
        first = str(error).strip().partition("\n")[0]
        told = re.sub(r" at \S+, line \d+ \.$", "", first)
        raise ValueError(f"LightGBM refuses this: {told}") from error


def _check_names(given: set[str]) -> None:
    """Refuse options that LightGBM does not know, and those that are there under two of its names."""
    table: Any = getattr(package().basic, "_ConfigAliases", None)
    if not hasattr(table, "_get_all_param_aliases"):
        return
    main = {alias: name for name, aliases in table._get_all_param_aliases().items() for alias in (name, *aliases)}
    seen: dict[str, str] = {}
    for name in sorted(given):
        if name not in main:
            raise ValueError(f"LightGBM has no option {name}: see its list of parameters")
        if (other := seen.setdefault(main[name], name)) != name:
            raise ValueError(f"options have {main[name]} twice, as {other} and {name}: give it once")


def rows(x: Tensor | SparseRows) -> Any:
    """Rows as LightGBM takes them: arrays in single or double precision, or a scipy matrix."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if not isinstance(x, SparseRows):
        return host(x.to(dtype=dtype))
    from scipy.sparse import csr_matrix

    x = x.to("cpu", dtype)
    return csr_matrix((x.values.numpy(), x.columns.numpy(), x.row_offsets.numpy()), shape=tuple(x.shape))

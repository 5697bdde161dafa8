"""Every ranker of lists as an estimator of scikit-learn: arrays in, scores out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import torchrank
from torchrank.data.sets import RankingSet, text_ids
from torchrank.data.sparse import SparseRows, as_rows
from torchrank.errors import DataError, DataWarning
from torchrank.estimators.base import HAS_SKLEARN, Model, RankerParameters, validated
from torchrank.functional import ndcg
from torchrank.functional.arrays import article, columns_of, is_missing, only_column, to_integers, to_numpy, to_tensor
from torchrank.functional.conventions import why_nan
from torchrank.functional.ragged import segment_sum, sort_within, wide

MODELS: dict[str, Model] = {
    "adarank": ("AdaRank", {}),
    "dk": ("TransductivePCA", {}),
    "domination": ("DominationRank", {}),
    "ensemble": ("Ensemble", {}),
    "gbdt": ("GBDTRanker", {}),
    "gmml": ("GMML", {}),
    "lambdarank": ("LambdaRank", {}),
    "lgmml": ("LGMML", {}),
    "lgmml_net": ("LGMMLNet", {}),
    "listnet": ("ListNet", {}),
    "localrank": ("LocalRank", {}),
    "neural": ("NeuralRanker", {}),
    "pamir": ("PAMIR", {}),
    "queryknn": ("QueryKNN", {}),
    "random": ("RandomRanker", {}),
    "rankboost": ("RankBoost", {}),
    "ranksvm": ("RankSVM", {}),
    "singlefeature": ("SingleFeature", {}),
    "svmmap": ("SVMMap", {}),
    "xgboost": ("GBDTRanker", {"engine": "xgboost"}),
}
CUT = 10  # of the NDCG that `score` measures


class Lists(NamedTuple):
    """Rows in the order of their lists."""

    offsets: Tensor  # (Q + 1,)
    order: np.ndarray | None  # (N,) the row of the input at each place; None: the order of the input
    ids: list[str] | None  # (Q,)

    def sorted(self, rows: Any) -> Any:
        """Rows of the input, list by list."""
        return rows if self.order is None else rows[torch.from_numpy(self.order)]

    def returned(self, values: np.ndarray) -> np.ndarray:
        """Values of the entries in the order of the input."""
        if self.order is None:
            return values
        found = np.empty_like(values)
        found[self.order] = values
        return found


class RankingEstimator(RankerParameters):
    """Any ranker of lists with the interface of scikit-learn: `fit`, `predict`, `rank`, `score`, `save`, `load`.

    Rows belong to lists by `group`, the sizes of lists that follow one another, or by `qid`, a query id for each row;
    with `qid` the rows may be in any order. Without both, all rows are one list. With scikit-learn installed it is one
    of its estimators: it works in pipelines, with `clone`, `GroupKFold` and, with metadata routing of `qid`, in
    searches.

    Args:
        model: the name of a ranker, such as lgmml, lambdarank, listnet or gbdt: `RankingEstimator.MODELS` has them all.
        epochs: at most so many rounds or epochs; None: the ranker decides.
        batch_documents: documents of an optimizer step, for rankers that learn by gradient.
        seed: draws everything that a fit draws.
        options: those of the ranker (transform, l2, loss, ...).

    Attributes:
        ranker_: the fitted ranker.
        n_features_in_: number of features of the fit.
        feature_names_in_: their names, where X was a data frame.
        feature_importances_: importance of each feature, where the model has its own, see `importances`.

    Example:
        >>> x, y = np.array([[0.0, 5.0], [1.0, 4.0], [3.0, 5.0], [2.0, 4.0]]), [0, 1, 2, 0]
        >>> ranker = RankingEstimator("listnet", transform="standard").fit(x, y, group=[2, 2])
        >>> ranker.predict(x, group=[2, 2]).argsort().tolist(), ranker.rank(x, group=[2, 2]).tolist()
        ([0, 1, 3, 2], [1, 0, 2, 3])
    """

    MODELS = MODELS

    def __init__(
        self,
        model: str = "lgmml",
        epochs: int | None = None,
        batch_documents: int = 20_000,
        seed: int = 0,
        **options: Any,
    ):
        self.model, self.epochs, self.batch_documents, self.seed = model, epochs, batch_documents, seed
        if options:
            self._options = options

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required, tags.input_tags.sparse = True, self._takes_sparse()
        return tags

    def _takes_sparse(self) -> bool:
        try:
            ranker = self._new_ranker(1)
        except (ValueError, TypeError, ImportError):  # a fit says what is wrong
            return False
        return "sparse" in ranker.takes and not ranker.transform.sparse_refusal

    # ---- learning -----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, group: Any = None, qid: Any = None, eval_set: Any = None) -> RankingEstimator:
        """Fit the ranker to lists.

        Args:
            X: (N, D) features: an array, a data frame, or a matrix of scipy.sparse.
            y: (N,) relevance of each row; higher is more relevant.
            group: (Q,) sizes of the lists, which follow one another.
            qid: (N,) query id of each row, in any order.
            eval_set: lists by which the best round or epoch is chosen: `(X, y, group)`, or `(X, y, qid)` if the fit has
                a `qid`; or a `RankingSet`.

        Returns:
            The estimator itself.
        """
        if group is None and qid is None:
            warnings.warn("fit without group or qid: all rows are one list", DataWarning, stacklevel=2)
        train = self._lists(X, y, group, qid, "train", reset=True)
        val = None if eval_set is None else self._validation(eval_set, by_qid=qid is not None)
        ranker = self._new_ranker(train.num_features, seed=self.seed)
        epochs = self.epochs if self.epochs is None else int(self.epochs)
        self.ranker_ = ranker.fit(train, val, epochs=epochs, batch_documents=self.batch_documents, seed=self.seed)
        return self

    def _validation(self, eval_set: Any, *, by_qid: bool) -> RankingSet:
        if isinstance(eval_set, RankingSet):
            return eval_set
        if isinstance(eval_set, list) and len(eval_set) == 1:
            eval_set = eval_set[0]
        if not isinstance(eval_set, tuple) or len(eval_set) != 3:
            raise DataError("eval_set must be (X, y, group), (X, y, qid) if the fit has a qid, or a RankingSet")
        X, y, lists = eval_set
        group, qid = (None, lists) if by_qid else (lists, None)
        return self._lists(X, y, group, qid, "val", reset=False)

    def _lists(self, X: Any, y: Any, group: Any, qid: Any, name: str, *, reset: bool) -> RankingSet:
        if y is None:
            raise DataError("RankingEstimator requires y to be passed, but the target y is None: give a label per row")
        rows, labels = self._rows(X, y, reset=reset)
        found = lists_by(len(rows), group, qid)
        return RankingSet(
            found.sorted(rows),
            found.sorted(labels),
            found.offsets,
            query_ids=found.ids,
            name=name,
            feature_names=columns_of(X),
        )

    def _rows(self, X: Any, y: Any = None, *, reset: bool) -> tuple[Tensor | SparseRows, Any]:
        """Rows (n, D) and labels (n,) as tensors, checked by scikit-learn where it is installed."""
        if HAS_SKLEARN:
            options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
            if y is None:
                return as_rows(validated(self, X, reset=reset, **options)), None
            least = 2 if reset else 1  # one row has no order that could be learned
            rows, labels = validated(
                self, X, only_column(y, "y"), reset=reset, y_numeric=True, ensure_min_samples=least, **options
            )
            return as_rows(rows), to_tensor(labels, "y")
        rows, names = as_rows(X), columns_of(X)
        if reset:
            self.n_features_in_ = rows.shape[1]
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        labels = None if y is None else to_tensor(only_column(y, "y"), "y")
        if labels is not None and labels.shape != (len(rows),):
            raise DataError(f"y must have one label for each of {len(rows)} rows, got shape {tuple(labels.shape)}")
        return rows, labels

    # ---- using --------------------------------------------------------------------------------------------------

    def predict(self, X: Any, *, group: Any = None, qid: Any = None) -> np.ndarray:
        """Score rows.

        Args:
            X: (N, D) features.
            group: (Q,) sizes of the lists, which follow one another.
            qid: (N,) query id of each row, in any order. Without group and qid all rows are one list.

        Returns:
            Scores (N,) in the order of X; higher is more relevant.
        """
        scores, lists = self._scores(X, group, qid)
        return lists.returned(scores.double().cpu().numpy())

    def rank(self, X: Any, *, group: Any = None, qid: Any = None) -> np.ndarray:
        """Rank rows; the arguments are those of `predict`.

        Args:
            X: (N, D) features.
            group: (Q,) sizes of the lists, which follow one another.
            qid: (N,) query id of each row, in any order.

        Returns:
            Numbers of rows of X (N,): those of the first list, best first, then those of the second, and so on.
        """
        scores, lists = self._scores(X, group, qid)
        order = sort_within(scores, lists.offsets.to(scores.device)).cpu().numpy()
        return order if lists.order is None else lists.order[order]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, group: Any = None, qid: Any = None) -> float:
        """Mean NDCG@10 of the lists; those without relevant rows are left out.

        Args:
            X: (N, D) features.
            y: (N,) relevance of each row.
            sample_weight: (N,) weight of each row; a list has the mean weight of its rows.
            group: (Q,) sizes of the lists, which follow one another.
            qid: (N,) query id of each row, in any order.

        Returns:
            The mean; nan if no list has a relevant row.
        """
        scores, lists = self._scores(X, group, qid)
        labels = lists.sorted(to_tensor(only_column(y, "y"), "y"))
        found = ndcg(scores.double().cpu(), labels, lists.offsets, k=CUT)
        rows = torch.ones(len(labels)) if sample_weight is None else to_tensor(sample_weight, "sample_weight")
        means = segment_sum(wide(lists.sorted(rows)), lists.offsets) / lists.offsets.diff().clamp(min=1)
        there = ~found.isnan()
        if not there.any():
            longest = int(lists.offsets.diff().max()) if len(found) else 0
            reason = why_nan("ndcg", 1, lists=len(found), longest=longest)
            warnings.warn(f"the score is nan: {reason}", DataWarning, stacklevel=2)
        return float((found * means)[there].sum() / means[there].sum())

    @torch.no_grad()
    def _scores(self, X: Any, group: Any, qid: Any) -> tuple[Tensor, Lists]:
        """Scores (N,), list by list."""
        self._check_fitted()
        rows, _ = self._rows(X, reset=False)
        self.ranker_.check_names(columns_of(X))
        lists, device = lists_by(len(rows), group, qid), self.ranker_.device
        found: Tensor = self.ranker_(lists.sorted(rows).to(device=device), lists.offsets.to(device))
        return found, lists

    # ---- importances --------------------------------------------------------------------------------------------

    @property
    def feature_importances_(self) -> np.ndarray:
        """(D,) the model's own importances, which sum to 1: absolute weights, or the gain of trees."""
        self._check_fitted()
        found = own_importances(self.ranker_)
        if found is None:
            raise AttributeError(
                f"{self.model} has no importances of its own: call importances(X, y, group=...), which measures them"
            )
        return found / max(float(found.sum()), np.finfo(float).tiny)

    def importances(self, X: Any, y: Any, *, group: Any = None, qid: Any = None, repeats: int = 5) -> np.ndarray:
        """By how much NDCG@10 falls when a feature is shuffled: see `torchrank.permutation_importance`.

        Args:
            X: (N, D) features.
            y: (N,) relevance of each row.
            group: (Q,) sizes of the lists, which follow one another.
            qid: (N,) query id of each row, in any order.
            repeats: how often each feature is shuffled.

        Returns:
            The mean over the repeats for each feature (D,).
        """
        self._check_fitted()
        lists = self._lists(X, y, group, qid, "", reset=False)
        found = torchrank.permutation_importance(self.ranker_, lists, f"ndcg@{CUT}", repeats=repeats, seed=self.seed)
        return found.values.double().cpu().numpy()


def lists_by(rows: int, group: Any, qid: Any) -> Lists:
    """The lists of `rows` rows: one list without `group` and `qid`.

    >>> lists_by(3, None, ["a", "b", "a"]).order
    array([0, 2, 1])
    """
    if group is not None and qid is not None:
        raise DataError("give group, the sizes of the lists, or qid, the query id of each row: one of the two")
    if qid is not None:
        codes, ids = codes_of(qid)
        if len(codes) != rows:
            raise DataError(f"qid has {len(codes)} rows, but X has {rows}")
        together = bool((np.diff(codes) >= 0).all())
        offsets = torch.from_numpy(np.concatenate(([0], np.bincount(codes, minlength=len(ids)).cumsum())))
        return Lists(offsets, None if together else np.argsort(codes, kind="stable"), text_ids(ids))
    sizes = to_integers([rows] if group is None else group, "group").cpu()
    if int(sizes.sum()) != rows:
        raise DataError(f"the sizes in group sum to {int(sizes.sum())}, but X has {rows} rows")
    return Lists(torchrank.to_offsets(sizes), None, None)


def codes_of(qid: Any) -> tuple[np.ndarray, list[Any]]:
    """Numbers (N,) of the queries in the order in which they first come, and their ids.

    >>> codes_of(["b", "a", "b"])
    (array([0, 1, 0]), ['b', 'a'])
    """
    column = only_column(qid, "qid")
    array = np.asarray(column) if isinstance(column, Tensor) else None if isinstance(column, list) else to_numpy(column)
    if array is not None and array.ndim == 1 and array.dtype.kind in "iu":
        ids, first, codes = np.unique(array, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return np.argsort(order)[codes], ids[order].tolist()
    if array is None and not isinstance(column, list | tuple):
        raise DataError(f"qid is {article(type(qid).__name__)}: give a column with the query id of each row")
    values: list[Any] = list(column) if array is None else array.tolist()
    seen: dict[Any, int] = {}
    for row, each in enumerate(values):
        if is_missing(each):
            raise DataError(f"qid is missing in row {row}: every row needs the id of its query")
        if isinstance(each, list | dict | set):
            raise DataError(f"qid must hold one id per row, got {each!r:.40} in row {row}")
    codes = np.array([seen.setdefault(each, len(seen)) for each in values], dtype=np.int64)
    return codes, list(seen)


def own_importances(ranker: Any) -> np.ndarray | None:
    """(D,) absolute weights or the gain of trees; None where the model has neither for each feature."""
    found = next((measure(ranker) for kind, measure in IMPORTANCES.items() if kind in _kinds(ranker)), None)
    return None if found is None or found.shape != (ranker.num_features,) else found


def _kinds(ranker: Any) -> set[str]:
    return {kind.__name__ for kind in type(ranker).__mro__}


def _weights(ranker: Any) -> np.ndarray:
    sizes = ranker.weight.detach().double().abs().cpu()
    found: np.ndarray = (sizes.mean(0) if sizes.ndim == 2 else sizes).numpy()  # (T, D) where topics have their own
    return found


def _network(ranker: Any) -> np.ndarray | None:
    linear = getattr(ranker.scorer, "weight", None)
    return _weights(ranker.scorer) if isinstance(linear, Tensor) and linear.ndim == 1 else None


def _rules(ranker: Any) -> np.ndarray:
    sizes: Tensor = ranker.alpha.detach().double().abs().cpu()
    found: np.ndarray = sizes.new_zeros(ranker.transform.num_outputs).index_add_(0, ranker.feature.cpu(), sizes).numpy()
    return found


def _gain(ranker: Any) -> np.ndarray:
    return np.asarray(ranker.importances())


def _one(ranker: Any) -> np.ndarray:
    return np.asarray(np.eye(ranker.transform.num_outputs)[int(ranker.feature)])


IMPORTANCES: dict[str, Callable[[Any], np.ndarray | None]] = {
    "NeuralRanker": _network,
    "LinearRanker": _weights,
    "SVMMap": _weights,
    "AdaRank": _rules,
    "RankBoost": _rules,
    "GBDTRanker": _gain,
    "SingleFeature": _one,
}

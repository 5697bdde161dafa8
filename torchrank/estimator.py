"""Metric learning as an estimator of scikit-learn, with the methods of metric-learn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchrank
from torchrank.data.relevance import SameClass
from torchrank.data.sets import RankingSet
from torchrank.data.transforms import one_list
from torchrank.errors import DataError
from torchrank.functional.neighbours import majority
from torchrank.rankers.metric import DistanceRanker

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data
except ImportError as error:
    raise ImportError("MetricEstimator needs scikit-learn 1.6 or newer: pip install 'scikit-learn>=1.6'") from error

MODELS = {"mlr": "MLR", "rmlr": "RMLR", "lowrank_mlr": "LowRankMLR", "metric_baseline": "MetricBaseline"}
CHUNK_NUMBERS = 2**22  # distances held at once


class MetricEstimator(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns a metric from classes, as an estimator of scikit-learn.

    `transform` maps points to a space whose squared Euclidean distances are those of the metric. `predict` lets the
    nearest training points vote; ties go to the class of the nearest point among them. Without `transform=...` features
    are taken as they are, so that `transform(X)` is `X @ components_.T`, as in metric-learn: put a StandardScaler
    before it. A fit uses no validation set: choose C and the neighbours by GridSearchCV.

    Args:
        model: mlr, rmlr, lowrank_mlr or metric_baseline.
        n_neighbors: number of training points that vote.
        epochs: epochs of lowrank_mlr.
        options: those of the ranker (measure, its k, C, eps, ...).

    Attributes:
        ranker_: the fitted ranker.
        classes_: the classes, in the order of the columns of `predict_proba`.
        components_: L (r, D), where the metric is L'L.
        n_features_in_: number of features of the fit.
        feature_names_in_: their names, where X was a data frame.

    Example:
        >>> x = np.array([[0.0, 5.0], [0.1, -3.0], [1.0, 4.0], [1.1, -4.0]])
        >>> metric = MetricEstimator(n_neighbors=1, C=10.0).fit(x, ["a", "a", "b", "b"])
        >>> metric.predict([[0.05, 9.0], [1.2, 0.0]]).tolist(), metric.transform(x).shape[0]
        (['a', 'b'], 4)
    """

    def __init__(self, model: str = "mlr", n_neighbors: int = 3, epochs: int = 100, **options: Any):
        self.model, self.n_neighbors, self.epochs, self.options = model, n_neighbors, epochs, options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, those of the ranker among them."""
        return {"model": self.model, "n_neighbors": self.n_neighbors, "epochs": self.epochs, **self.options}

    def set_params(self, **params: Any) -> MetricEstimator:
        """Change parameters; one that the model does not have is refused."""
        _check_names(params.get("model", self.model), params)
        self.__init__(**{**self.get_params(), **params})  # type: ignore[misc]
        return self

    # ---- learning -----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> MetricEstimator:
        """Learn the metric from points X (n, D) and their classes y (n,), of any type."""
        if self.model not in MODELS:
            raise ValueError(f"unknown model={self.model!r}: choose one of {', '.join(MODELS)}")
        if isinstance(self.options.get("C"), list):
            raise ValueError("C must be one number here (a list needs a validation set). Tune C with GridSearchCV.")
        _check_names(self.model, self.options)
        _check_count("n_neighbors", self.n_neighbors)
        if self.model == "lowrank_mlr":
            _check_count("epochs", self.epochs)
        points, classes = check_X_y(X, y, dtype=np.float64)
        check_classification_targets(classes)
        x, (names, codes) = torch.from_numpy(points), np.unique(classes, return_inverse=True)
        # far from 0 the rows would lose their digits; a transform may depend on where they lie
        centre = x.mean(0) * (self.options.get("transform") is None)
        self.ranker_ = self._fitted(x - centre, torch.from_numpy(codes), names)  # if this fails, the last fit stays
        validate_data(self, X, skip_check_array=True)  # writes down the number and the names of the features
        self.classes_, self._centre, self._codes = names, centre, torch.from_numpy(codes)
        self._images = self._embed(x - centre)
        return self

    def _fitted(self, x: Tensor, codes: Tensor, names: np.ndarray) -> DistanceRanker:
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in self.options.items()}
        ranker: DistanceRanker = _ranker_class(self.model)(x.shape[1], **{"transform": None, **plain})
        relevance = SameClass(codes, codes, tuple(str(name) for name in names), own=torch.arange(len(x)))
        return ranker.fit(RankingSet(x, relevance, queries=x, name="train"), epochs=ranker.rounds or int(self.epochs))

    # ---- using --------------------------------------------------------------------------------------------------

    @property
    def components_(self) -> np.ndarray:
        """L (r, D), where the metric is L'L."""
        check_is_fitted(self, "ranker_")
        return self.ranker_.components.detach().double().numpy()

    def get_mahalanobis_matrix(self) -> np.ndarray:
        """The metric W (D, D)."""
        check_is_fitted(self, "ranker_")
        return self.ranker_.get_mahalanobis_matrix().detach().double().numpy()

    def pair_distance(self, pairs: Any) -> np.ndarray:
        """Distances (n,) between the points of each pair (n, 2, D)."""
        check_is_fitted(self, "ranker_")
        points = torch.from_numpy(np.array(pairs, dtype=np.float64))
        if points.dim() != 3 or points.shape[1:] != (2, self.n_features_in_):
            raise DataError(f"expected pairs (n, 2, {self.n_features_in_}), got {tuple(points.shape)}")
        first, second = (self._embed(side - self._centre) for side in points.unbind(1))
        return np.asarray(torch.linalg.vector_norm(first - second, dim=1).numpy())

    def pair_score(self, pairs: Any) -> np.ndarray:
        """Similarities (n,) of the points of each pair (n, 2, D): minus their distances."""
        return -self.pair_distance(pairs)

    def get_metric(self) -> Callable[..., float]:
        """A function `distance(u, v, squared=False)` of two points."""
        check_is_fitted(self, "ranker_")

        def distance(u: Any, v: Any, squared: bool = False) -> float:
            found = float(self.pair_distance([[u, v]])[0])
            return found**2 if squared else found

        return distance

    def transform(self, X: Any) -> Any:
        """Images (n, r) of points (n, D)."""
        return self._embed(self._points(X)).numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` returns."""
        return np.array([f"metric{column}" for column in range(len(self.components_))], dtype=object)

    def predict(self, X: Any) -> np.ndarray:
        """Classes (n,) for which the nearest training points vote."""
        found = [majority(votes, torch.ones_like(votes, dtype=torch.bool)) for votes in self._votes(X)]
        return np.asarray(self.classes_[torch.cat(found).numpy()])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Shares of the votes for each class (n, classes), in the order of `classes_`."""
        found = []
        for votes in self._votes(X):
            counts = torch.zeros(len(votes), len(self.classes_), dtype=torch.float64)
            found.append(counts.scatter_add_(1, votes, torch.ones_like(votes, dtype=torch.float64)) / votes.shape[1])
        return torch.cat(found).numpy()

    def _votes(self, X: Any) -> Iterator[Tensor]:
        """Codes of the classes of the nearest training points, nearest first, a chunk of rows (m, n_neighbors) each."""
        _check_count("n_neighbors", self.n_neighbors)
        images = self._embed(self._points(X) - self._centre)
        for part in images.split(max(1, CHUNK_NUMBERS // len(self._images))):
            distances = torch.cdist(part, self._images, compute_mode="donot_use_mm_for_euclid_dist")
            yield self._codes[distances.argsort(dim=1, stable=True)[:, : self.n_neighbors]]

    def _points(self, X: Any) -> Tensor:
        """Rows (n, D) with the features of the fit."""
        check_is_fitted(self, "ranker_")
        return torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False))

    def _embed(self, x: Tensor) -> Tensor:
        rows: Tensor = self.ranker_.transform(x, one_list(x))
        return rows.double() @ self.ranker_.components.detach().double().T


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


def _check_names(model: str, names: Iterable[str]) -> None:
    if model in MODELS:
        own = set(inspect.signature(MetricEstimator).parameters) - {"options"}
        known = own | set(inspect.signature(_ranker_class(model)).parameters) - {"num_features"}
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"{model} has no parameter {', '.join(unknown)}: choose from {', '.join(sorted(known))}")


def _ranker_class(model: str) -> Any:
    return torchrank.find_export(MODELS[model])

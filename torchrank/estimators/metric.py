"""Metric learning as an estimator of scikit-learn, with the methods of metric-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrank.data.relevance import SameClass
from torchrank.data.sets import RankingSet
from torchrank.data.transforms import one_list
from torchrank.errors import DataError
from torchrank.estimators.base import LOCALIZED, Model, RankerParameters
from torchrank.functional.arrays import to_tensor
from torchrank.functional.measures.binary import majority
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.lgmml.gmml import GMML
from torchrank.rankers.lgmml.ranker import LGMML
from torchrank.rankers.metric import DistanceRanker

try:
    from sklearn.base import ClassifierMixin, TransformerMixin
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_X_y, validate_data
except ImportError as error:
    raise ImportError("MetricEstimator needs scikit-learn 1.6 or newer: pip install 'torchrank-ltr[points]'") from error

MODELS: dict[str, Model] = {
    "mlr": ("MLR", {}),
    "rmlr": ("RMLR", {}),
    "lowrank_mlr": ("LowRankMLR", {}),
    "metric_baseline": ("MetricBaseline", {}),
    "gmml": ("GMML", {}),
    "lgmml_query": ("LGMML", LOCALIZED),
}
CHUNK_NUMBERS = 2**22  # distances held at once
NUDGE = 1e-12  # what the winner of a tie has more


def _has_map(estimator: MetricEstimator) -> bool:
    """Whether distances are those of images of the points; with a metric for each query there is no such map."""
    return estimator.model != "lgmml_query"


class MetricEstimator(ClassifierMixin, TransformerMixin, RankerParameters):  # type: ignore[misc]
    """Learns a metric from classes, as an estimator of scikit-learn.

    `transform` maps points to a space whose squared Euclidean distances are those of the metric. `predict` lets the
    nearest training points vote; ties go to the class of the nearest point among them. Without `transform=...` features
    are taken as they are, so that `transform(X)` is `X @ components_.T`, as in metric-learn: put a StandardScaler
    before it. A fit uses no validation set: choose C and the neighbours by GridSearchCV. With lgmml_query every point
    has a metric of its own, so that there is no `transform`, and the distance of u and v is that under the metric at u.

    Args:
        model: mlr, rmlr, lowrank_mlr, metric_baseline, gmml or lgmml_query.
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

    MODELS = MODELS

    def __init__(self, model: str = "mlr", n_neighbors: int = 3, epochs: int = 100, **options: Any):
        self.model, self.n_neighbors, self.epochs = model, n_neighbors, epochs
        if options:
            self._options = options

    # ---- learning -----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> MetricEstimator:
        """Learn the metric from points and their classes.

        Args:
            X: (n, D) points.
            y: (n,) their classes, integers or strings.

        Returns:
            The estimator itself.
        """
        if isinstance(self._options.get("C"), list):
            raise ValueError("C must be one number here (a list needs a validation set). Tune C with GridSearchCV.")
        _check_count("n_neighbors", self.n_neighbors)
        points, classes = check_X_y(X, y, dtype=np.float64, estimator=self)
        check_classification_targets(classes)
        ranker = self._new_ranker(points.shape[1], transform=None)
        if isinstance(ranker, LGMML) and len(set(classes.tolist())) < 2:
            raise DataError(f"{self.model} compares points of different classes, but all of these are of one class")
        if self.model == "lowrank_mlr":
            _check_count("epochs", self.epochs)
        x, (names, codes) = to_tensor(points, "X"), np.unique(classes, return_inverse=True)
        # far from 0 the rows would lose their digits; a transform may depend on where they lie
        centre = x.mean(0) * (self._options.get("transform") is None)
        own = torch.from_numpy(codes)
        relevance = SameClass(own, own, tuple(map(str, names)), own=torch.arange(len(x)))
        lists = RankingSet(x - centre, relevance, queries=x - centre, name="train")
        self.ranker_ = ranker.fit(lists, epochs=ranker.rounds or int(self.epochs))  # if this fails, the last fit stays
        validate_data(self, X, skip_check_array=True)  # writes down the number and the names of the features
        self.classes_, self._centre = names, centre
        self._points, self._codes = x - centre, own
        return self

    # ---- using --------------------------------------------------------------------------------------------------

    @property
    def components_(self) -> np.ndarray:
        """L (r, D), where the metric is L'L; lgmml_query has none."""
        self._check_fitted()
        found = components_of(self.ranker_)
        if found is None:
            raise AttributeError("lgmml_query has a metric for every point: it has no components_ and no transform")
        return found.numpy()

    def get_mahalanobis_matrix(self) -> np.ndarray:
        """The metric W (D, D)."""
        return np.asarray(self.components_.T @ self.components_)

    def pair_distance(self, pairs: Any) -> np.ndarray:
        """Distances between the points of pairs.

        Args:
            pairs: (n, 2, D) points.

        Returns:
            Distances (n,).
        """
        self._check_fitted()
        points = torch.from_numpy(np.array(pairs, dtype=np.float64))
        if points.dim() != 3 or points.shape[1:] != (2, self.n_features_in_):
            raise DataError(f"expected pairs (n, 2, {self.n_features_in_}), got {tuple(points.shape)}")
        return distances_of(self.ranker_, points - self._centre).numpy()

    def pair_score(self, pairs: Any) -> np.ndarray:
        """Similarities of the points of pairs: minus their distances.

        Args:
            pairs: (n, 2, D) points.

        Returns:
            Similarities (n,).
        """
        return -self.pair_distance(pairs)

    def get_metric(self) -> Callable[..., float]:
        """The metric as a function, which stays as it is when the estimator is fitted again.

        Returns:
            `distance(u, v, squared=False)` of two points, (D,) or (1, D).
        """
        self._check_fitted()
        ranker, centre, width = deepcopy(self.ranker_), self._centre, self.n_features_in_

        def distance(u: Any, v: Any, squared: bool = False) -> float:
            points = [np.asarray(each, dtype=np.float64) for each in (u, v)]
            if any(each.shape not in ((width,), (1, width)) for each in points):
                raise DataError(f"expected two points ({width},) or (1, {width}), got {[p.shape for p in points]}")
            pair = torch.from_numpy(np.stack([each.reshape(-1) for each in points])) - centre
            found = float(distances_of(ranker, pair[None])[0])
            return found**2 if squared else found

        return distance

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags = tags.transformer_tags if _has_map(self) else None
        return tags

    def transform(self, X: Any) -> Any:
        """Images of points: their squared Euclidean distances are those of the metric.

        Args:
            X: (n, D) points.

        Returns:
            Images (n, r).
        """
        rows = self._rows(X)
        return embed(self.ranker_, rows).numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns that `transform` returns.

        Args:
            input_features: without meaning here; scikit-learn gives it.

        Returns:
            Names (r,).
        """
        return np.array([f"metric{column}" for column in range(len(self.components_))], dtype=object)

    def predict(self, X: Any) -> np.ndarray:
        """Classes for which the nearest training points vote.

        Args:
            X: (n, D) points.

        Returns:
            Classes (n,).
        """
        found = [majority(votes, torch.ones_like(votes, dtype=torch.bool)) for votes in self._votes(X)]
        return np.asarray(self.classes_[torch.cat(found).numpy()])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Shares of the votes for each class. Of classes with equally many votes the one that `predict` returns has a
        share larger by 1e-12.

        Args:
            X: (n, D) points.

        Returns:
            Shares (n, classes), in the order of `classes_`.
        """
        found = []
        for votes in self._votes(X):
            counts = torch.zeros(len(votes), len(self.classes_), dtype=torch.float64)
            counts.scatter_add_(1, votes, torch.ones_like(votes, dtype=torch.float64))
            tied = (counts == counts.amax(1, keepdim=True)).sum(1) > 1
            winner = majority(votes, torch.ones_like(votes, dtype=torch.bool))[:, None]
            counts.scatter_add_(1, winner, NUDGE * votes.shape[1] * tied[:, None].double())
            found.append(counts / counts.sum(1, keepdim=True))
        return torch.cat(found).numpy()

    def _votes(self, X: Any) -> Iterator[Tensor]:
        """Codes of the classes of the nearest training points, nearest first, a chunk of rows (m, n_neighbors) each."""
        _check_count("n_neighbors", self.n_neighbors)
        for part in (self._rows(X) - self._centre).split(max(1, CHUNK_NUMBERS // len(self._points))):
            order = gaps_of(self.ranker_, part, self._points).argsort(dim=1, stable=True)
            yield self._codes[order[:, : self.n_neighbors]]

    def _rows(self, X: Any) -> Tensor:
        """Rows (n, D) with the features of the fit."""
        self._check_fitted()
        return to_tensor(validate_data(self, X, dtype=np.float64, reset=False), "X")

    def _learned(self) -> dict[str, Any]:
        return super()._learned() | {
            "classes": self.classes_.tolist(),
            "centre": self._centre,
            "points": self._points,
            "codes": self._codes,
        }

    def _restore(self, learned: dict[str, Any]) -> None:
        super()._restore(learned)
        self.classes_, self._centre = np.array(learned["classes"]), learned["centre"]
        self._points, self._codes = learned["points"], learned["codes"]


# after scikit-learn has wrapped the methods for `set_output`, which hides that they are not always there
MetricEstimator.transform = available_if(_has_map)(MetricEstimator.transform)  # type: ignore[method-assign]
MetricEstimator.fit_transform = available_if(_has_map)(MetricEstimator.fit_transform)


def components_of(ranker: Ranker) -> Tensor | None:
    """L (r, D) in float64, where the metric of the ranker is L'L; None where every query has a metric of its own."""
    if isinstance(ranker, DistanceRanker):
        return ranker.components.detach().double()
    return ranker.factors[0].detach().double().T.contiguous() if isinstance(ranker, GMML) else None


def embed(ranker: Ranker, x: Tensor) -> Tensor:
    """Images (n, r) of points (n, D)."""
    rows: Tensor = ranker.transform(x, one_list(x))
    components = components_of(ranker)
    assert components is not None
    return rows.double() @ components.T


def distances_of(ranker: Ranker, pairs: Tensor) -> Tensor:
    """Distances (n,) of the points of pairs (n, 2, D)."""
    first, second = pairs.unbind(1)
    if components_of(ranker) is not None:
        gaps: Tensor = embed(ranker, first) - embed(ranker, second)
        return gaps.square().sum(1).sqrt()
    return _squared(ranker, first, second, torch.arange(len(second))).sqrt()


def gaps_of(ranker: Ranker, x: Tensor, points: Tensor) -> Tensor:
    """How far (n, m) the points (m, D) are from each of x (n, D), in distances or in their squares."""
    if components_of(ranker) is not None:
        images = embed(ranker, x), embed(ranker, points)
        found: Tensor = torch.cdist(*images, compute_mode="donot_use_mm_for_euclid_dist")
        return found
    index = torch.arange(len(points)).repeat(len(x))
    return _squared(ranker, x, points, index).view(len(x), len(points))


@torch.no_grad()
def _squared(ranker: Ranker, queries: Tensor, points: Tensor, index: Tensor) -> Tensor:
    """Squared distances of points under the metrics of their queries: minus the scores of the ranker."""
    offsets = torch.arange(len(queries) + 1) * (len(index) // max(len(queries), 1))
    found: Tensor = ranker(points, offsets, index=index, queries=queries)
    return -found.double().clamp(max=0)


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")

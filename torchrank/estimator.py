"""Metrics for users of scikit-learn and metric-learn: fit, transform, predict, score. scikit-learn is not needed."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Trainer
from torch import Tensor

import torchrank
from torchrank.data.corpus import CorpusSet, SameClass
from torchrank.data.datamodule import RankingDataModule
from torchrank.functional.neighbours import majority

MODELS = {"mlr": "MLR", "rmlr": "RMLR", "lowrank_mlr": "LowRankMLR", "metric_baseline": "MetricBaseline"}
CHUNK_NUMBERS = 2**22  # distances held at once

warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # of Lightning, about itself, at every fit


class MetricEstimator:
    """Learns a metric from classes: `transform` maps points to where squared Euclidean distances are those of the
    metric, `predict` lets the `n_neighbors` nearest training points vote (ties: the class of the nearest of them).

    `model` is mlr, rmlr, lowrank_mlr or metric_baseline, `options` are those of the ranker (measure, its k, C, eps,
    ...), `epochs` is for lowrank_mlr. Without `transform=...` features are taken as they are, so that `transform(X)` is
    `X @ components_.T`, as in metric-learn: put a StandardScaler before it. Fits without validation: choose C and the
    neighbours by GridSearchCV. `ranker_` is the fitted ranker.

    >>> x = np.array([[0.0, 5.0], [0.1, -3.0], [1.0, 4.0], [1.1, -4.0]])
    >>> metric = MetricEstimator(n_neighbors=1, C=10.0).fit(x, ["a", "a", "b", "b"])
    >>> metric.predict([[0.05, 9.0], [1.2, 0.0]]).tolist(), metric.transform(x).shape[0]
    (['a', 'b'], 4)
    """

    _estimator_type = "classifier"  # scikit-learn before 1.6

    def __init__(self, model: str = "mlr", n_neighbors: int = 3, epochs: int = 100, **options: Any):
        self.model, self.n_neighbors, self.epochs, self.options = model, n_neighbors, epochs, options

    # ---- what scikit-learn asks for -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"model": self.model, "n_neighbors": self.n_neighbors, "epochs": self.epochs, **self.options}

    def set_params(self, **params: Any) -> MetricEstimator:
        _check_names(params.get("model", self.model), params)
        self.__init__(**{**self.get_params(), **params})  # type: ignore[misc]
        return self

    def __repr__(self) -> str:
        return f"MetricEstimator({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return "ranker_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags, TransformerTags

        parts = {"transformer_tags": TransformerTags(), "classifier_tags": ClassifierTags()}
        return Tags(estimator_type="classifier", target_tags=TargetTags(required=True), **parts)

    def set_output(self, *, transform: str | None = None) -> MetricEstimator:
        """What `transform` returns: "default" (numpy), "pandas" or "polars"."""
        if transform not in (None, "default", "pandas", "polars"):
            raise ValueError(f"transform={transform!r} is no output: choose default, pandas or polars")
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # scikit-learn's name: its clones keep it
        return self

    # ---- learning -----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> MetricEstimator:
        """Learns from points X (n, D) and their classes y (n,), of any type."""
        if self.model not in MODELS:
            raise ValueError(f"unknown model={self.model!r}: choose one of {', '.join(MODELS)}")
        if isinstance(self.options.get("C"), list):
            raise ValueError("a path of C is chosen from by validation, which this fit has not: use GridSearchCV")
        _check_names(self.model, self.options)
        _check_count("n_neighbors", self.n_neighbors)
        if self.model == "lowrank_mlr":
            _check_count("epochs", self.epochs)
        x, classes, columns = _rows(X), _as_classes(y), _column_names(X)
        if x.dim() != 2 or x.shape[1] == 0 or classes.shape != (len(x),):
            raise ValueError(f"expected points (n, D) and classes (n,), got {tuple(x.shape)} and {classes.shape}")
        if classes.dtype.kind == "f" and np.isnan(classes).any():
            raise ValueError(f"{np.isnan(classes).sum()} of the classes are NaN: leave these points out")
        if classes.dtype.kind == "f" and not (named := np.isfinite(classes) & (classes == np.floor(classes))).all():
            raise ValueError(f"Unknown label type: class {classes[~named][0]} is no whole number and no name")
        names, codes = np.unique(classes, return_inverse=True)
        # far from 0 the rows would lose their digits; a transform may mean where they lie
        centre = x.mean(0) * (self.options.get("transform") is None)
        self.ranker_ = self._fitted(x - centre, torch.from_numpy(codes), names)  # if this fails the last fit stays
        self.classes_, self.n_features_in_, self._centre = names, x.shape[1], centre
        self._codes, self._images = torch.from_numpy(codes), self._embed(x, centred=True)
        vars(self).pop("feature_names_in_", None)
        if columns is not None:
            self.feature_names_in_ = columns
        return self

    def _fitted(self, x: Tensor, codes: Tensor, names: np.ndarray) -> Any:
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in self.options.items()}
        ranker = _ranker_class(self.model)(x.shape[1], **{"transform": None, **plain})
        relevance = SameClass(codes, codes, tuple(str(name) for name in names))
        train = CorpusSet(x, x, relevance, own=torch.arange(len(x)), name="train")
        with quiet_lightning():
            trainer = Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=ranker.rounds or int(self.epochs),
                limit_val_batches=0,
                num_sanity_val_steps=0,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
            )
            trainer.fit(ranker, datamodule=RankingDataModule.from_sets(train=train))
        ranker.trainer = None  # what is left can be pickled
        return ranker.eval()

    # ---- using --------------------------------------------------------------------------------------------------

    @property
    def components_(self) -> np.ndarray:
        """L (r, D): the metric is L'L."""
        return self._ranker().components.detach().double().numpy()

    def get_mahalanobis_matrix(self) -> np.ndarray:
        """W (D, D)."""
        return self._ranker().get_mahalanobis_matrix().detach().double().numpy()

    def pair_distance(self, pairs: Any) -> np.ndarray:
        """Distances (n,) of pairs of points (n, 2, D)."""
        points = _rows(pairs)
        if points.dim() != 3 or points.shape[1] != 2:
            raise ValueError(f"expected pairs (n, 2, D), got {tuple(points.shape)}")
        first, second = (self._embed(side, centred=True) for side in points.unbind(1))
        return torch.linalg.vector_norm(first - second, dim=1).numpy()

    def pair_score(self, pairs: Any) -> np.ndarray:
        """How similar the points of each pair are, (n,): minus their distance."""
        return -self.pair_distance(pairs)

    def get_metric(self) -> Callable[..., float]:
        """`distance(u, v, squared=False)` of two points, for whatever takes a function."""
        self._ranker()

        def distance(u: Any, v: Any, squared: bool = False) -> float:
            found = float(self.pair_distance([[u, v]])[0])
            return found**2 if squared else found

        return distance

    def transform(self, X: Any) -> Any:
        """Points (n, D) as their images (n, r)."""
        images = self._embed(self._points(X)).numpy()
        output = self._output()
        if output == "pandas":
            import pandas

            index = X.index if isinstance(X, pandas.DataFrame) else None
            return pandas.DataFrame(images, columns=self.get_feature_names_out(), index=index)
        if output == "polars":
            import polars

            return polars.DataFrame(images, schema=list(self.get_feature_names_out()))
        return images

    def _output(self) -> str:
        given = vars(self).get("_sklearn_output_config")
        if given is None and "sklearn" in sys.modules:
            return sys.modules["sklearn"].get_config()["transform_output"]
        return "default" if given is None else given["transform"]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the columns of `transform`, as scikit-learn's pipelines ask for them."""
        return np.array([f"metric{column}" for column in range(len(self._ranker().components))], dtype=object)

    def fit_transform(self, X: Any, y: Any) -> Any:
        return self.fit(X, y).transform(X)

    def predict(self, X: Any) -> np.ndarray:
        """The classes for which the nearest training points vote."""
        found = [majority(votes, torch.ones_like(votes, dtype=torch.bool)) for votes in self._votes(X)]
        return self.classes_[torch.cat(found).numpy()]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Share of the votes of each class (n, classes), in the order of `classes_`."""
        found = []
        for votes in self._votes(X):
            counts = torch.zeros(len(votes), len(self.classes_), dtype=torch.float64)
            found.append(counts.scatter_add_(1, votes, torch.ones_like(votes, dtype=torch.float64)) / votes.shape[1])
        return torch.cat(found).numpy()

    def _votes(self, X: Any) -> Iterator[Tensor]:
        """Codes of the classes of the nearest training points, nearest first (some of n, n_neighbors)."""
        _check_count("n_neighbors", self.n_neighbors)
        images = self._embed(self._points(X), centred=True)
        for part in images.split(max(1, CHUNK_NUMBERS // len(self._images))):
            distances = torch.cdist(part, self._images, compute_mode="donot_use_mm_for_euclid_dist")
            yield self._codes[distances.argsort(dim=1, stable=True)[:, : self.n_neighbors]]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right predictions."""
        found, classes = self.predict(X), _as_classes(y)
        if classes.shape != found.shape:
            raise ValueError(f"{len(found)} points need as many classes, got {classes.shape}")
        return float(np.average(found == classes, weights=sample_weight))

    def _points(self, X: Any) -> Tensor:
        """The rows of X, whose columns have to be those of the fit where both have names."""
        self._ranker()
        known, given = vars(self).get("feature_names_in_"), _column_names(X)
        if known is not None and given is not None and not np.array_equal(known, given):
            raise ValueError(
                f"The feature names should match those that were passed during fit: {', '.join(known)}; these are "
                f"{', '.join(given)}, in this order"
            )
        return _rows(X)

    def _embed(self, x: Tensor, *, centred: bool = False) -> Tensor:
        ranker = self._ranker()
        if x.dim() != 2 or x.shape[1] != self.n_features_in_:
            raise ValueError(f"this metric was learned from {self.n_features_in_} features, got rows {tuple(x.shape)}")
        x = x - self._centre if centred else x
        rows = ranker.transform(x, torch.tensor([0, len(x)]))
        return rows.double() @ ranker.components.detach().double().T

    def _ranker(self) -> Any:
        if not self.__sklearn_is_fitted__():
            raise _not_fitted("this MetricEstimator is not fitted: call fit(X, y) first")
        return self.ranker_


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r} has to be an integer, 1 at least")


def _check_names(model: str, names: Iterable[str]) -> None:
    if model in MODELS:
        own = set(inspect.signature(MetricEstimator).parameters) - {"options"}
        known = own | set(inspect.signature(_ranker_class(model)).parameters) - {"num_features"}
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"{model} has no parameter {', '.join(unknown)}: it has {', '.join(sorted(known))}")


def _ranker_class(model: str) -> Any:
    return torchrank.__getattr__(MODELS[model])


def _not_fitted(message: str) -> Exception:
    """scikit-learn's NotFittedError, or what it is made of: `hasattr(metric, "components_")` is False before a fit."""
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        NotFittedError = type("NotFittedError", (ValueError, AttributeError), {})
    return NotFittedError(message)


def _as_classes(y: Any) -> np.ndarray:
    """Classes (n,), also of a column (n, 1)."""
    classes = np.asarray(y)
    return classes[:, 0] if classes.ndim == 2 and classes.shape[1] == 1 else classes


def _column_names(X: Any) -> np.ndarray | None:
    """Of a data frame whose columns have names."""
    columns = list(getattr(X, "columns", ()))
    return np.array(columns, dtype=object) if columns and all(isinstance(name, str) for name in columns) else None


def _rows(X: Any) -> Tensor:
    if hasattr(X, "toarray"):
        raise ValueError("X is sparse, and a metric has a weight for every pair of features: give X.toarray()")
    if np.iscomplexobj(X):
        raise ValueError("X is complex, and distances are those of real numbers: give real and imaginary parts")
    rows = torch.from_numpy(np.array(X, dtype=np.float64))
    if not rows.isfinite().all():
        raise ValueError(f"{int((~rows.isfinite()).sum())} values of X are not finite: clean or impute them first")
    return rows


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without the lines about devices that Lightning prints for every fit."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)

"""Other people's metrics, measured as ours are: Euclidean distance, NCA, LMNN and ITML."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.metric.distance import DistanceRanker

METHODS = ("euclidean", "nca", "lmnn", "itml")


class MetricBaseline(DistanceRanker, RoundRanker):
    """Ranks by the distance from the query under a metric that another library learned from the classes of the points.

    `nca` is scikit-learn's (Goldberger et al. 2004), `lmnn` (Weinberger et al. 2005) and `itml` (Davis et al. 2007) are
    metric-learn's, with `options` by their own names; `euclidean` learns nothing and needs no classes. One round.
    """

    components: nn.Parameter  # (r, D) of the transformed features: distances are |L (q - x)|

    def __init__(
        self,
        num_features: int,
        method: str = "euclidean",
        seed: int = 0,
        transform: str | dict | list | None = "standard",
        options: dict | None = None,
    ):
        if method not in METHODS:
            raise ValueError(f"unknown method={method!r}: choose one of {', '.join(METHODS)}")
        super().__init__(num_features, transform, rounds=1)
        self.method, self.options = method, {"random_state": seed, **(options or {})}
        self.components = nn.Parameter(torch.zeros(0, num_features, dtype=torch.float64), requires_grad=False)

    def prepare(self) -> None:
        train = self.data.sets["train"]
        self.check_queries(train.has_queries)
        if self.method != "euclidean" and train.classes is None:
            raise ValueError(
                f"method={self.method} learns from the classes of points, and data={self.data.name} has none: use "
                "data=points, or method=euclidean."
            )

    def round(self) -> bool:
        train: Any = self.data.ready("train")
        if self.method == "euclidean":
            found = torch.eye(self.transform.num_outputs)
        else:
            found = torch.from_numpy(learn(self.method, train.x, train.corpus_classes, self.options))
        self.store({"components": found})
        return True


def learn(method: str, x: Tensor, classes: Tensor, options: dict) -> np.ndarray:
    """The components (r, D) that the library finds for rows (n, D) and their classes (n,)."""
    try:
        learner = library(method)(**options)
    except TypeError as error:
        raise ValueError(f"options of method={method}: {error}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # metric-learn's, about scikit-learn
        learner.fit(x.double().cpu().numpy(), classes.cpu().numpy())
    return np.asarray(learner.components_, dtype=np.float64)


def library(method: str) -> Any:
    """The class that learns, imported when it is first asked for."""
    extra = "points" if method == "nca" else "peers"
    try:
        if method == "nca":
            from sklearn.neighbors import NeighborhoodComponentsAnalysis

            return NeighborhoodComponentsAnalysis
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            import metric_learn
    except ImportError as error:
        raise ImportError(
            f"method={method} needs {'scikit-learn' if method == 'nca' else 'metric-learn'}: "
            f"pip install 'torchrank[{extra}]' ({error})"
        ) from error
    return {"lmnn": metric_learn.LMNN, "itml": metric_learn.ITML_Supervised}[method]

"""Metrics learned by other libraries, evaluated like ours: Euclidean distance, NCA, LMNN and ITML."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, check_choice
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.metric import DistanceRanker

METHODS = ("euclidean", "nca", "lmnn", "itml")


class MetricBaseline(DistanceRanker):
    """Ranks by the distance from the query under a metric that another library learned from the classes of the points.

    Args:
        num_features: number of columns of the rows.
        method: euclidean, which learns nothing and needs no classes; nca of scikit-learn (Goldberger et al. 2004);
            lmnn (Weinberger et al. 2005) or itml (Davis et al. 2007) of metric-learn.
        seed: random seed that the library is given.
        transform: feature transform, see `make_transform`.
        options: further parameters, named as in the library.

    Example:
        >>> from torchrank.data.relevance import SameClass
        >>> from torchrank.data.sets import RankingSet
        >>> x, classes = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1])
        >>> points = RankingSet(x, SameClass(classes, classes, ("a", "b"), own=torch.arange(3)), queries=x)
        >>> ranker = MetricBaseline(1, transform=None).fit(points)
        >>> ranker(x, torch.tensor([0, 3]), queries=torch.tensor([[2.0]]))
        tensor([-4., -1., -9.])
    """

    components: nn.Parameter  # (r, D) of the transformed features: distances are |L (q - x)|

    def __init__(
        self,
        num_features: int,
        method: str = "euclidean",
        seed: int = 0,
        transform: str | dict[str, Any] | list[Any] | None = "standard",
        options: dict[str, Any] | None = None,
    ):
        check_choice(METHODS, method=method)
        super().__init__(num_features, transform, rounds=1)
        self.method, self.options = method, {"random_state": seed, **(options or {})}
        self.components = nn.Parameter(torch.zeros(0, num_features, dtype=torch.float64), requires_grad=False)

    def start(self, lists: TrainingLists) -> None:
        self.check_queries(lists.lists.has_queries)
        if self.method != "euclidean" and lists.lists.classes is None:
            raise DataError(
                f"method={self.method} learns from the classes of points, but this data has none: use data=points, or "
                "method=euclidean."
            )

    def round(self, lists: TrainingLists, number: int) -> Round:
        if self.method == "euclidean":
            found = torch.eye(self.transform.num_outputs)
        else:
            train: Any = lists.lists
            found = torch.from_numpy(learn(self.method, train.x, train.corpus_classes, self.options))
        store(self, components=found)
        return Round(done=True)


def learn(method: str, x: Tensor, classes: Tensor, options: dict[str, Any]) -> np.ndarray:
    """The components (r, D) that the library learns from rows (n, D) and their classes (n,)."""
    try:
        learner = library(method)(**options)
    except TypeError as error:
        raise ValueError(f"options of method={method}: {error}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of metric-learn, about scikit-learn
        learner.fit(x.double().cpu().numpy(), classes.cpu().numpy())
    return np.asarray(learner.components_, dtype=np.float64)


def library(method: str) -> Any:
    """The class of the library that learns, imported on first use."""
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
            f"pip install 'torchrank-ltr[{extra}]' ({error})"
        ) from error
    return {"lmnn": metric_learn.LMNN, "itml": metric_learn.ITML_Supervised}[method]

"""GMML: one geometric-mean metric for all queries (Zadeh, Hosseini & Sra, ICML 2016)."""

from typing import Any

from torchrank.rankers.core.ranker import TransformOption
from torchrank.rankers.lgmml.ranker import LGMML


class GMML(LGMML):
    """Ranks by the distance from one anchor, or from the query vector where the data has them, under the one metric
    S^-1 #_t D of all training lists together. It is fitted in closed form, in one round. It is `LGMML` with one group:
    options that are None, and `transform="auto"`, are chosen by the fit.

    Args:
        num_features: number of columns of the rows.
        high: relevant documents: half (labels in the upper half of the list), max (the highest label of the list), or
            positive (all labels above 0).
        t: position of the metric between the inverse of the similar scatter (0) and the dissimilar scatter (1); None:
            chosen.
        ridge: number added to the diagonals of both scatters; None: chosen.
        ridge_mode: whether the ridge is relative to the mean variance of each scatter, or absolute.
        anchor: virtual, the ideal document mu+ + kappa (mu+ - mu-); best, the best real document; or search, the best
            of real and virtual documents. With best and search nothing is chosen: t is 0.5 and ridge 0.1 by default.
        kappa: how far the virtual anchor lies beyond the mean relevant document; inf: the linear limit; None: chosen.
        anchor_candidates: maximum number of real documents that are tried.
        seed: random seed of the draw of anchor candidates and of the folds of the choice.
        transform: feature transform, see `make_transform`; auto: chosen among standard and quantile.

    Example:
        >>> import torch
        >>> from torchrank import RankingSet
        >>> x, labels = torch.tensor([[2.0, 3.0], [0.0, 3.0], [2.2, -3.0], [0.1, -3.0]]), torch.tensor([1.0, 0, 1, 0])
        >>> ranker = GMML(2, t=0.5, ridge=0.1, kappa=10.0, transform=None)
        >>> labels[ranker.fit(RankingSet(x, labels, torch.tensor([0, 4]))).rank(x, torch.tensor([0, 4]))]
        tensor([1., 1., 0., 0.])
    """

    def __init__(
        self,
        num_features: int,
        high: str = "half",
        t: float | None = None,
        ridge: float | None = None,
        ridge_mode: str = "relative",
        anchor: str = "virtual",
        kappa: float | None = None,
        anchor_candidates: int = 30,
        seed: int = 0,
        transform: TransformOption = "auto",
    ):
        given = None not in (t, ridge, kappa) and kappa != float("inf") and transform != "auto"
        route: dict[str, Any] = {"groups": "similar", "num_groups": 1}
        if given or anchor != "virtual":
            route = {"groups": "random", "metrics": 1, "queries_per_metric": None, "tau": 1.0}
        super().__init__(
            num_features,
            high=high,
            t=t,
            ridge=ridge,
            ridge_mode=ridge_mode,
            anchor=anchor,
            kappa=kappa,
            anchor_candidates=anchor_candidates,
            rounds=1,
            seed=seed,
            transform=transform,
            **route,
        )

"""RankSVM as a structural SVM: the area under the ROC curve of each list (Joachims, ICML 2005)."""

from torchrank.rankers.metric.svmmap import SVMMap


class RankSVM(SVMMap):
    """`SVMMap` with measure=auc: the mean over lists of the share of misordered pairs, each with a margin. A pair of a
    list counts 1 / (its pairs), so that long lists do not decide alone."""

    def __init__(
        self,
        num_features: int,
        C: float | list[float] = 10.0,
        threshold: float | str = 1,
        eps: float = 1e-3,
        stabilise: float = 0.3,
        rounds: int = 500,
        transform: str | dict | list | None = "query_minmax",
    ):
        super().__init__(
            num_features,
            measure="auc",
            C=C,
            threshold=threshold,
            eps=eps,
            stabilise=stabilise,
            rounds=rounds,
            transform=transform,
        )

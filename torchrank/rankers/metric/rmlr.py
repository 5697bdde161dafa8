"""R-MLR: robust metric learning to rank (Lim, McFee & Lanckriet, ICML 2013)."""

from torchrank.rankers.metric.mlr import MLR


class RMLR(MLR):
    """MLR with Omega(W) = tr W + lam sum of the norms of the rows of W: features of noise get rows of exactly 0.

    The other options are those of `MLR`.
    """

    def __init__(
        self,
        num_features: int,
        measure: str = "map",
        k: int | None = None,
        C: float | list[float] = 1.0,
        lam: float = 1.0,
        threshold: float | str = 1,
        discount: str = "letor",
        eps: float = 1e-3,
        stabilise: float = 0.3,
        neighbours: int | None = None,
        rounds: int = 200,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(
            num_features,
            measure=measure,
            k=k,
            C=C,
            regulariser="l21",
            lam=lam,
            threshold=threshold,
            discount=discount,
            eps=eps,
            stabilise=stabilise,
            neighbours=neighbours,
            rounds=rounds,
            transform=transform,
        )

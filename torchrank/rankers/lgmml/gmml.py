"""GMML: one global geometric-mean metric (Zadeh, Hosseini & Sra, ICML 2016) that ranks."""

from torchrank.rankers.lgmml.ranker import LGMML


class GMML(LGMML):
    """Ranks by the distance from one anchor, or from the query vector where the data has them, under the one metric
    S^-1 #_t D of all training lists together: closed form, one round. The options are those of `LGMML`."""

    def __init__(
        self,
        num_features: int,
        high: str = "half",
        t: float = 0.5,
        ridge: float = 0.1,
        ridge_mode: str = "relative",
        solver: str = "auto",
        anchor: str = "virtual",
        kappa: float = 10.0,
        anchor_candidates: int = 30,
        seed: int = 0,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(
            num_features,
            metrics=1,
            queries_per_metric=None,
            high=high,
            t=t,
            ridge=ridge,
            ridge_mode=ridge_mode,
            solver=solver,
            anchor=anchor,
            kappa=kappa,
            anchor_candidates=anchor_candidates,
            kernel="distance",
            tau=1.0,
            rounds=1,
            seed=seed,
            transform=transform,
        )

"""Linear LambdaRank: the strongest simple ranker on the small LETOR sets."""

from torchrank.rankers.neural import NeuralRanker


class LambdaRank(NeuralRanker):
    """Linear scores, pairs weighted by the change of NDCG@k (Burges et al. 2006); `k=None` is the whole list."""

    def __init__(
        self,
        num_features: int,
        k: int | None = None,
        transform: str | dict | list | None = "standard",
        lr: float = 5e-2,
        weight_decay: float = 0.0,
    ):
        super().__init__(
            num_features, "linear", "lambdarank", transform, loss_options={"k": k}, lr=lr, weight_decay=weight_decay
        )

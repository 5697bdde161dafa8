"""Linear LambdaRank (Burges et al. 2006)."""

from torchrank.rankers.core.optimizers import Option
from torchrank.rankers.core.ranker import TransformOption
from torchrank.rankers.neural.ranker import NeuralRanker


class LambdaRank(NeuralRanker):
    """Linear scores, pairs weighted by the change of NDCG@k (Burges et al. 2006).

    Args:
        num_features: columns of the rows.
        k: cut-off of NDCG; None: the whole list.
        transform: of the features, see `make_transform`.
        lr: learning rate.
        weight_decay: l2 penalty, as the optimizer defines it.
        optimizer: a class of torch.optim by name, or {"name": ..., further options}.
        scheduler: a class of torch.optim.lr_scheduler by name, or {"name": ..., "warmup": steps, further options}.

    Example:
        >>> import torch
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> LambdaRank(1, k=10).fit(lists, epochs=5).rank(x, offsets)
        tensor([1, 2, 0])
    """

    def __init__(
        self,
        num_features: int,
        k: int | None = None,
        transform: TransformOption = "auto",
        lr: float = 5e-2,
        weight_decay: float = 0.0,
        optimizer: Option = "Adam",
        scheduler: Option | None = None,
    ):
        super().__init__(
            num_features,
            "linear",
            "lambdarank",
            transform,
            loss_options={"k": k},
            lr=lr,
            weight_decay=weight_decay,
            optimizer=optimizer,
            scheduler=scheduler,
        )

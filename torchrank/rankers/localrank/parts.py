"""The parts of LocalRank: copies of a base ranker, and rows for a linear model with a correction for each cluster."""

import inspect
from typing import Any

import torch
from torch import Tensor

import torchrank
from torchrank.data.sparse import SparseRows
from torchrank.errors import check_choice

BASES = {
    "listnet": "ListNet",
    "lambdarank": "LambdaRank",
    "neural": "NeuralRanker",
    "singlefeature": "SingleFeature",
    "gbdt": "GBDTRanker",
    "gmml": "GMML",
    "lgmml": "LGMML",
    "lgmml_net": "LGMMLNet",
    "domination": "DominationRank",
    "pamir": "PAMIR",
    "svmmap": "SVMMap",
    "ranksvm": "RankSVM",
    "rankboost": "RankBoost",
    "adarank": "AdaRank",
}
LINEAR = ("listnet", "lambdarank", "domination", "pamir", "svmmap", "ranksvm")


def make_base(base: str, num_features: int, rounds: int, options: dict[str, Any]) -> Any:
    """A base ranker for rows that are already transformed."""
    check_choice(BASES, base=base)
    if own := options.keys() & {"transform", "num_features", "rounds"}:
        raise ValueError(f"base_options cannot have {', '.join(sorted(own))}: set model.{min(own)} instead")
    if options.get("per_topic"):
        raise ValueError("base_options cannot have per_topic: models of clusters rank any list")
    make = torchrank.find_export(BASES[base])
    limit = {"rounds": rounds} if "rounds" in inspect.signature(make).parameters else {}
    return make(num_features, transform=None, **limit, **options)


def spread(x: Tensor, cluster: Tensor, clusters: int, stiffness: float) -> SparseRows:
    """Rows (n, D (C + 1)): each row x (D,), then x again in the block of D columns of its cluster (n,); -1: in none.

    A linear model of such rows is w_0 + d_c: shared weights and a correction for each cluster. The second copy is
    divided by sqrt(stiffness), so that |w|^2 = |w_0|^2 + stiffness * sum of |d_c|^2.

    >>> spread(torch.tensor([[2.0], [3.0]]), torch.tensor([1, -1]), 2, 4.0).dense()
    tensor([[2., 0., 1.],
            [3., 0., 0.]])
    """
    count, width = x.shape
    columns = torch.arange(width, device=x.device).expand(count, -1)
    own = columns + width * (1 + cluster.clamp(min=0))[:, None]
    values = torch.where(cluster[:, None] < 0, 0, x / stiffness**0.5)
    offsets = 2 * width * torch.arange(count + 1, device=x.device)
    both = torch.stack((columns, own), 1).reshape(-1), torch.stack((x, values), 1).reshape(-1)
    return SparseRows(both[1], both[0], offsets, width * (clusters + 1))

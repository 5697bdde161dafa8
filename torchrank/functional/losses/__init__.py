"""Differentiable losses of rankings: one value per list, `(Q,)`.

Lists are flat: `scores` and `labels` hold the entries of all lists one after another, and list q is
`offsets[q]:offsets[q + 1]`. Two queries, with three and with two documents:

    >>> scores = torch.tensor([0.2, 1.5, 0.7, 3.0, 1.0], requires_grad=True)
    >>> labels = torch.tensor([0, 2, 1, 0, 1])
    >>> offsets = torch.tensor([0, 3, 5])
    >>> loss = ranknet_loss(scores, labels, offsets)
    >>> loss.detach()
    tensor([1.0862, 2.1269])

A training step takes their mean:

    >>> loss.mean().backward()
    >>> scores.grad
    tensor([ 0.2959, -0.2621, -0.0338,  0.4404, -0.4404])

How good the ranking is, is a question for the measures (`ndcg(scores, labels, offsets)`, or several of them by
`evaluate`). `LOSSES` holds all losses by name. A list from which a loss has nothing to learn gives a 0 that is
connected to the graph, so that `backward` works on any batch.
"""

from collections.abc import Callable

import torch

from torchrank.functional.losses.domination import domination_loss
from torchrank.functional.losses.neural_ndcg import neural_ndcg_loss
from torchrank.functional.losses.pairs import (
    hinge_loss,
    lambda_loss,
    lambdarank_loss,
    logistic_loss,
    pairwise_mse_loss,
    ranknet_loss,
    soft_zero_one_loss,
)
from torchrank.functional.losses.pointwise import bce_loss, mse_loss, ordinal_loss, ordinal_scores
from torchrank.functional.losses.soft import approx_mrr_loss, approx_ndcg_loss, as_loss, gumbel
from torchrank.functional.losses.softmax import (
    listmle_loss,
    listnet_loss,
    poly1_softmax_loss,
    softmax_loss,
    unique_softmax_loss,
)
from torchrank.functional.losses.warp import rank_weights, warp_labels, warp_loss
from torchrank.functional.oracles import structured_hinge

__all__ = [
    "LOSSES",
    "approx_mrr_loss",
    "approx_ndcg_loss",
    "as_loss",
    "bce_loss",
    "domination_loss",
    "gumbel",
    "hinge_loss",
    "lambda_loss",
    "lambdarank_loss",
    "listmle_loss",
    "listnet_loss",
    "logistic_loss",
    "mse_loss",
    "neural_ndcg_loss",
    "ordinal_loss",
    "ordinal_scores",
    "pairwise_mse_loss",
    "poly1_softmax_loss",
    "rank_weights",
    "ranknet_loss",
    "soft_zero_one_loss",
    "softmax_loss",
    "structured_hinge",
    "unique_softmax_loss",
    "warp_labels",
    "warp_loss",
]

LOSSES: dict[str, Callable[..., torch.Tensor]] = {  # by name
    "listnet": listnet_loss,
    "softmax": softmax_loss,
    "unique_softmax": unique_softmax_loss,
    "poly1_softmax": poly1_softmax_loss,
    "listmle": listmle_loss,
    "mse": mse_loss,
    "bce": bce_loss,
    "ordinal": ordinal_loss,
    "ranknet": ranknet_loss,
    "lambdarank": lambdarank_loss,
    "lambda": lambda_loss,
    "logistic": logistic_loss,
    "hinge": hinge_loss,
    "soft_zero_one": soft_zero_one_loss,
    "pairwise_mse": pairwise_mse_loss,
    "warp": warp_loss,
    "domination": domination_loss,
    "structured_hinge": structured_hinge,
    "approx_ndcg": approx_ndcg_loss,
    "approx_mrr": approx_mrr_loss,
    "neural_ndcg": neural_ndcg_loss,
}

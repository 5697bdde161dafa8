"""One row per function of `torchrank.functional` on lists. A new function gets its row here, and all laws hold for it.

A row says how the function is called and which laws it claims. Unclaimed laws are not weaker tests, they are facts: the
NDCG of equal scores depends on their order, and a loss has no value for the shift of one score.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import torchrank.functional as F


class Row(NamedTuple):
    function: Callable
    options: dict[str, Any]
    loss: bool = False  # has a gradient
    all_tied: float | None = None  # value when all scores of the list TIED are equal
    single: float | tuple[float, float] = float("nan")  # of a list with one entry of label 1 (with score 5, with -1)
    pointwise: bool = False  # looks at single scores: a shift changes its value
    alone: bool = False  # a loss that learns from lists with one distinct label; all others are 0 there
    stable: bool = False  # entries with equal labels keep their order, on which the value depends

    def __call__(self, scores, labels, offsets=None, **more):
        return self.function(scores, labels, offsets, **self.options, **more)


def most_violated(scores, labels, offsets=None, **options):
    """The loss of the ranking; the coefficients are the gradient of `structured_hinge`."""
    return F.most_violated(scores, labels, offsets, **options)[1]


def hinge(measure, *, all_tied, **options):
    return Row(F.structured_hinge, {"measure": measure, **options}, loss=True, all_tied=all_tied, single=0)


TIED = (0, 2, 0, 1)  # labels of the list whose scores are all equal: its entries keep this order
LOG3 = float(np.log2(3))

# values by hand for TIED in this order: gains 0 3 0 1, ideal 3 + 1/log2(3)
DCG = 3 / LOG3 + 1 / float(np.log2(5))
NDCG = DCG / (3 + 1 / LOG3)
TIED_AP = (1 + (1 + 1 / 3) / 2 + (1 + 2 / 3) / 3 + 2 / 4) / 4  # a place is relevant with chance 1/2, then 1/3
SOFTMAX_LOSS = float(np.log(4))
ENTROPY = float(2 * np.logaddexp(0, 0.3) + 2 * np.logaddexp(0, -0.3))  # of the score 0.3
ENTROPIES = float(np.logaddexp(0, -5)), float(np.logaddexp(0, 1))
MARGIN = [[0.1 * (k - m) ** 2 for m in range(4)] for k in range(4)]
WARP2, WARP3 = 1 + 1 / LOG3, 1 + 1 / LOG3 + 1 / 2  # L(2), L(3)

SOFT = 4 / float(np.log2(3.5)) / (3 + 1 / LOG3)  # all have the soft rank 2.5
SHARED = (1 + 1 / LOG3 + 1 / 2 + 1 / float(np.log2(5))) / (3 + 1 / LOG3)  # every rank has the mean gain, 1

ROWS = {
    "ndcg": Row(F.ndcg, {}, all_tied=NDCG, single=1),
    "ndcg@2": Row(F.ndcg, {"k": 2}, all_tied=3 / LOG3 / (3 + 1 / LOG3), single=1),
    "ndcg@100": Row(F.ndcg, {"k": 100}, all_tied=NDCG, single=1),
    "ndcg, linear": Row(F.ndcg, {"k": 1, "gain": "linear", "discount": "letor"}, all_tied=0, single=1),
    "ndcg, ties averaged": Row(F.ndcg, {"k": 1, "ties": "average"}, all_tied=1 / 3, single=1),
    "ndcg, worst ties": Row(F.ndcg, {"k": 2, "ties": "worst"}, all_tied=0, single=1),
    "ndcg, short": Row(F.ndcg, {"k": 5, "short": "zero", "empty": 0.0}, all_tied=0, single=0),
    "dcg": Row(F.dcg, {}, all_tied=DCG, single=1),
    "dcg@2": Row(F.dcg, {"k": 2, "empty": 0.0}, all_tied=3 / LOG3, single=1),
    "dcg, ties averaged": Row(F.dcg, {"k": 1, "gain": "linear", "ties": "average"}, all_tied=3 / 4, single=1),
    "mean_ndcg": Row(F.mean_ndcg, {"discount": "letor"}, all_tied=(0 + 3 / 4 + 3 / 4 + 3.5 / 4) / 4, single=1),
    "average_precision": Row(F.average_precision, {}, all_tied=0.5, single=1),
    "average_precision@3": Row(F.average_precision, {"k": 3}, all_tied=0.25, single=1),
    "average_precision, ties averaged": Row(F.average_precision, {"ties": "average"}, all_tied=TIED_AP, single=1),
    "precision": Row(F.precision, {}, all_tied=0.5, single=1),
    "precision@5": Row(F.precision, {"k": 5}, all_tied=0.4, single=0.2),
    "recall@2": Row(F.recall, {"k": 2, "threshold": 2}, all_tied=1, single=float("nan")),
    "reciprocal_rank": Row(F.reciprocal_rank, {}, all_tied=0.5, single=1),
    "reciprocal_rank@1": Row(F.reciprocal_rank, {"k": 1, "empty": 0.0}, all_tied=0, single=1),
    "hit": Row(F.hit, {}, all_tied=1, single=1),
    "hit@1": Row(F.hit, {"k": 1, "empty": 0.0}, all_tied=0, single=1),
    "err": Row(F.err, {"max_label": 3}, all_tied=3 / 8 / 2 + 5 / 8 * 1 / 8 / 4, single=1 / 8),
    "err@2": Row(F.err, {"max_label": 3, "k": 2}, all_tied=3 / 8 / 2, single=1 / 8),
    "hits@2": Row(F.hits, {"k": 2, "empty": 0.0}, all_tied=1, single=1),
    "r_precision": Row(F.r_precision, {}, all_tied=0.5, single=1),
    "rbp": Row(F.rbp, {"p": 0.5}, all_tied=(0.5 + 0.125) / 2, single=0.5),
    "rbp@3": Row(F.rbp, {"p": 0.5, "k": 3}, all_tied=0.25, single=0.5),
    "arp": Row(F.arp, {}, all_tied=(2 * 2 + 4) / 3, single=1),
    "opa": Row(F.opa, {}, all_tied=0),
    "auc": Row(F.auc, {}, all_tied=0.5),
    "domination_error": Row(F.domination_error, {}, all_tied=0),
    "domination_error, ties": Row(F.domination_error, {"ties": "error"}, all_tied=1),
    "all_pairs_error": Row(F.all_pairs_error, {}, all_tied=0.5),
    "all_pairs_error, ties": Row(F.all_pairs_error, {"ties": "error"}, all_tied=1),
    "kendall_tau": Row(F.kendall_tau, {}, all_tied=float("nan")),
    "listnet_loss": Row(F.listnet_loss, {}, loss=True, all_tied=SOFTMAX_LOSS, single=0),
    "ranknet_loss": Row(F.ranknet_loss, {}, loss=True, all_tied=5 * float(np.log(2)), single=0),
    "lambdarank_loss": Row(F.lambdarank_loss, {}, loss=True, single=0),
    "lambdarank_loss@2": Row(F.lambdarank_loss, {"k": 2}, loss=True, single=0),
    "softmax_loss": Row(F.softmax_loss, {}, loss=True, all_tied=3 * SOFTMAX_LOSS, single=0, alone=True),
    "softmax_loss, shares": Row(
        F.softmax_loss, {"gain": "exp2", "normalize": True}, loss=True, all_tied=SOFTMAX_LOSS, single=0, alone=True
    ),
    "unique_softmax_loss": Row(
        F.unique_softmax_loss, {}, loss=True, all_tied=3 * float(np.log(4)) + float(np.log(3)), single=0
    ),
    "poly1_softmax_loss": Row(
        F.poly1_softmax_loss, {"epsilon": 2.0}, loss=True, all_tied=3 * SOFTMAX_LOSS + 2 * 0.75, single=0, alone=True
    ),
    "listmle_loss": Row(F.listmle_loss, {}, loss=True, all_tied=float(np.log(24)), single=0, alone=True, stable=True),
    "listmle_loss, positions": Row(
        F.listmle_loss,
        {"discount": "letor"},
        loss=True,
        all_tied=float(np.log(12) + np.log(2) / LOG3),
        single=0,
        alone=True,
        stable=True,
    ),
    "mse_loss": Row(F.mse_loss, {}, loss=True, all_tied=3.56, single=(16, 4), pointwise=True, alone=True),
    "bce_loss": Row(F.bce_loss, {}, loss=True, all_tied=ENTROPY, single=ENTROPIES, pointwise=True, alone=True),
    "ordinal_loss": Row(F.ordinal_loss, {}, loss=True, all_tied=ENTROPY, single=ENTROPIES, pointwise=True, alone=True),
    "logistic_loss": Row(F.logistic_loss, {}, loss=True, all_tied=5 * float(np.log(2)), single=0),
    "hinge_loss": Row(F.hinge_loss, {}, loss=True, all_tied=5, single=0),
    "soft_zero_one_loss": Row(F.soft_zero_one_loss, {}, loss=True, all_tied=2.5, single=0),
    "lambdarank_loss, hinge": Row(F.lambdarank_loss, {"pair": "hinge"}, loss=True, single=0),
    "pairwise_mse_loss": Row(F.pairwise_mse_loss, {}, loss=True, all_tied=2 * 11, single=0, alone=True),
    "domination_loss": Row(F.domination_loss, {}, loss=True, all_tied=float(np.log(4 * 3)), single=0),
    "domination_loss, layers": Row(F.domination_loss, {"margin": MARGIN}, loss=True, single=0),
    "warp_loss": Row(F.warp_loss, {}, loss=True, all_tied=0.1 * (WARP3 + WARP2) / 2, single=0),
    "structured_hinge, auc": hinge("auc", all_tied=1),
    "structured_hinge, precision@2": hinge("precision", k=2, all_tied=1),
    "structured_hinge, map": hinge("map", all_tied=1 - (1 / 3 + 2 / 4) / 2),
    "structured_hinge, mrr": hinge("mrr", all_tied=2 / 3),
    "structured_hinge, ndcg": hinge("ndcg", all_tied=1 - (1 / LOG3 + 1 / 2) / 2),
    "structured_hinge, ndcg@2": hinge("ndcg", k=2, discount="log2p1", all_tied=1),
    "most_violated, auc": Row(most_violated, {"measure": "auc"}, all_tied=1, single=0),
    "most_violated, precision@3": Row(most_violated, {"measure": "precision", "k": 3}, all_tied=0.5, single=0),
    "most_violated, map": Row(most_violated, {}, all_tied=1 - (1 / 3 + 2 / 4) / 2, single=0),
    "most_violated, mrr": Row(most_violated, {"measure": "mrr", "threshold": 2}, all_tied=3 / 4, single=0),
    "most_violated, ndcg@3": Row(most_violated, {"measure": "ndcg", "k": 3}, all_tied=1 - 1 / LOG3 / 2, single=0),
    "lambda_loss, arp1": Row(F.lambda_loss, {"scheme": "arp1"}, loss=True, all_tied=3 * 4, single=0),
    "lambda_loss, arp2": Row(F.lambda_loss, {"scheme": "arp2"}, loss=True, all_tied=2 + 2 + 1 + 1 + 1, single=0),
    "lambda_loss": Row(F.lambda_loss, {"k": 9}, loss=True, single=0),
    "approx_ndcg_loss": Row(F.approx_ndcg_loss, {}, loss=True, all_tied=-SOFT, single=0),
    "approx_ndcg_loss@2": Row(
        F.approx_ndcg_loss, {"k": 2, "temperature": 0.5}, loss=True, all_tied=-SOFT / 2, single=0
    ),
    "approx_mrr_loss": Row(F.approx_mrr_loss, {"temperature": 2.0}, loss=True, all_tied=-1 / 2.5, single=0),
    "neural_ndcg_loss": Row(F.neural_ndcg_loss, {"k": 9, "iterations": 4}, loss=True, all_tied=-SHARED, single=0),
    "warp_loss, zero": Row(F.warp_loss, {"negatives": "zero", "margin": 1.0}, loss=True, all_tied=WARP2, single=0),
}
POINTWISE = {row.function for row in ROWS.values() if row.pointwise}
LEARN_ALONE = {row.function for row in ROWS.values() if row.alone}


def batch(seed: int, *, lists: int = 30, longest: int = 12, dtype: torch.dtype = torch.float64):
    """Random lists without equal scores, of 0 to `longest` entries, grades 0-3."""
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], draw.integers(0, longest + 1, lists).cumsum()])
    scores = draw.permutation(offsets[-1]) / 7 - 3
    labels = draw.integers(0, 4, offsets[-1])
    return torch.tensor(scores, dtype=dtype), torch.tensor(labels), torch.tensor(offsets)


def known_lists(labels, offsets):
    """The lists with all that can be known of them, so that no function has to read a device."""
    lists = F.Lists.of(offsets, labels=labels)
    assert lists.pairs is not None  # counted now, where the labels are on the host
    return lists

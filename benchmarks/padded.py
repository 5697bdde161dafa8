"""Losses and measures in plain padded PyTorch, as a user would type them: without checks, slopes by autograd.

Scores, labels (float32) and mask are `(Q, L)`; the result is `(Q,)`. Losses of lists and of single entries are written
as in allRank; those of pairs make a `(Q, L, L)` tensor, as in rax.
"""

import math

import torch

SOFTPLUS = torch.nn.functional.softplus


def listnet(scores, labels, mask):
    shares = torch.softmax(labels.masked_fill(~mask, -torch.inf), 1)
    return -(shares * log_softmax(scores, mask)).sum(1)


def softmax(scores, labels, mask):
    return -(labels * log_softmax(scores, mask)).sum(1)


def poly1_softmax(scores, labels, mask):
    logs = log_softmax(scores, mask)
    total = labels.sum(1, keepdim=True)
    target = torch.where(total > 0, labels / total.clamp(min=1e-10), mask / mask.sum(1, keepdim=True))
    return -(labels * logs).sum(1) + 1 - (target * logs.exp() * mask).sum(1)


def log_softmax(scores, mask):
    return torch.log_softmax(scores.masked_fill(~mask, -torch.inf), 1).masked_fill(~mask, 0.0)


def unique_softmax(scores, labels, mask):
    rivals = scores[:, None].masked_fill(~(lower(labels, mask) | same(mask)), -torch.inf)
    logs = (scores - torch.logsumexp(rivals, 2)).masked_fill(~mask, 0.0)
    return -((torch.exp2(labels) - 1) * logs).sum(1)


def domination(scores, labels, mask):
    rivals = scores[:, None].masked_fill(~(lower(labels, mask) | same(mask)), -torch.inf)
    return (torch.logsumexp(rivals, 2) - scores).masked_fill(~mask, 0.0).sum(1)


def listmle(scores, labels, mask):
    """allRank's, with the order of equal labels that ours has."""
    order = torch.sort(labels.masked_fill(~mask, -torch.inf), dim=1, descending=True, stable=True).indices
    ranked, inside = scores.masked_fill(~mask, -torch.inf).gather(1, order), mask.gather(1, order)
    ranked = ranked - ranked.amax(1, keepdim=True)
    sums = ranked.exp().flip(1).cumsum(1).flip(1)
    return (torch.log(sums + 1e-10) - ranked).masked_fill(~inside, 0.0).sum(1)


def mse(scores, labels, mask):
    return ((scores - labels).square() * mask).sum(1)


def bce(scores, labels, mask):
    terms = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels.clamp(max=1), reduction="none")
    return (terms * mask).sum(1)


def ordinal(scores, labels, mask):
    """Scores `(Q, L, G - 1)`."""
    reached = (labels[:, :, None] >= torch.arange(1, scores.shape[2] + 1)).float()
    terms = torch.nn.functional.binary_cross_entropy_with_logits(scores, reached, reduction="none").sum(2)
    return (terms * mask).sum(1)


# pairs: [q, i, j] with y_i > y_j


def lower(labels, mask):
    return (labels[:, :, None] > labels[:, None]) & mask[:, None] & mask[:, :, None]


def same(mask):
    return torch.eye(mask.shape[1], dtype=torch.bool)


def gaps(scores):
    return scores[:, :, None] - scores[:, None]


def ranknet(scores, labels, mask):
    return (SOFTPLUS(-gaps(scores)) * lower(labels, mask)).sum((1, 2))


def hinge(scores, labels, mask):
    return ((1 - gaps(scores)).relu() * lower(labels, mask)).sum((1, 2))


def soft_zero_one(scores, labels, mask):
    return (torch.sigmoid(-gaps(scores)) * lower(labels, mask)).sum((1, 2))


def pairwise_mse(scores, labels, mask):
    return ((gaps(scores) - gaps(labels)).square() * (mask[:, None] & mask[:, :, None])).sum((1, 2))


def lambdarank(scores, labels, mask):
    with torch.no_grad():
        discounts, gains = 1 / torch.log2(ranks(scores, mask) + 1), normalised_gains(labels, mask)
        weights = gaps(gains).abs() * gaps(discounts).abs()
    return (SOFTPLUS(-gaps(scores)) * weights * lower(labels, mask)).sum((1, 2))


def lambda_loss(scores, labels, mask):
    """NDCG-Loss2++ with mu = 10."""
    with torch.no_grad():
        place = ranks(scores, mask)
        apart = gaps(place).abs().clamp(min=1)
        swap = 10 * (1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)) + gaps(1 / torch.log2(place + 1)).abs()
        weights = gaps(normalised_gains(labels, mask)).abs() * swap
    return (SOFTPLUS(-gaps(scores)) * weights * lower(labels, mask)).sum((1, 2)) / math.log(2)


def ranks(scores, mask):
    order = scores.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    return order.argsort(1) + 1.0


def normalised_gains(labels, mask):
    gains = torch.where(mask, torch.exp2(labels) - 1, 0)
    best = gains.sort(1, descending=True).values / torch.log2(torch.arange(gains.shape[1]) + 2.0)
    return gains / best.sum(1, keepdim=True).clamp(min=1e-10)


def warp(scores, labels, mask):
    pairs = lower(labels, mask)
    terms = (0.1 - gaps(scores)) * (pairs & (0.1 - gaps(scores) > 0))
    found = (terms > 0).sum(2)
    price = torch.cat([torch.zeros(1), (1 / torch.log2(torch.arange(scores.shape[1]) + 2.0)).cumsum(0)])
    each = terms.sum(2) * price[found] / found.clamp(min=1)
    return each.sum(1) / pairs.any(2).sum(1).clamp(min=1)


# soft ranks


def soft_ranks(scores, mask):
    """1 + sum over j of sigmoid(s_j - s_i)."""
    return 0.5 + (torch.sigmoid(-gaps(scores)) * mask[:, None]).sum(2)


def approx_ndcg(scores, labels, mask):
    return -(normalised_gains(labels, mask) / torch.log2(1 + soft_ranks(scores, mask))).sum(1)


def approx_mrr(scores, labels, mask):
    return -(labels / soft_ranks(scores, mask)).sum(1) / labels.sum(1).clamp(min=1e-10)


def neural_ndcg(scores, labels, mask):
    """NeuralSort's matrix, scaled 50 times by its columns and its rows."""
    both = mask[:, None] & mask[:, :, None]
    spread = (gaps(scores).abs() * both).sum(2)
    factors = mask.sum(1, keepdim=True) - 1 - 2 * torch.arange(mask.shape[1])
    logits = factors[:, :, None] * scores[:, None] - spread[:, None]
    matrix = torch.softmax(logits.masked_fill(~mask[:, None], -torch.inf), 2).masked_fill(~both, 0.0)
    for _ in range(50):
        matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1e-10)
        matrix = matrix / matrix.sum(2, keepdim=True).clamp(min=1e-10)
    sorted_gains = (matrix @ normalised_gains(labels, mask)[:, :, None])[:, :, 0]
    return -(sorted_gains / torch.log2(torch.arange(mask.shape[1]) + 2.0)).sum(1)


LOSSES = {
    "listnet": listnet,
    "softmax": softmax,
    "unique_softmax": unique_softmax,
    "poly1_softmax": poly1_softmax,
    "listmle": listmle,
    "mse": mse,
    "bce": bce,
    "ordinal": ordinal,
    "ranknet": ranknet,
    "lambdarank": lambdarank,
    "lambda": lambda_loss,
    "logistic": ranknet,
    "hinge": hinge,
    "soft_zero_one": soft_zero_one,
    "pairwise_mse": pairwise_mse,
    "warp": warp,
    "domination": domination,
    "approx_ndcg": approx_ndcg,
    "approx_mrr": approx_mrr,
    "neural_ndcg": neural_ndcg,
}
MAKE_PAIRS = LOSSES.keys() - {"listnet", "softmax", "poly1_softmax", "listmle", "mse", "bce", "ordinal"}


# ---- measures --------------------------------------------------------------------------------------------------------


def ranked(scores, labels, mask):
    """Labels in the order of the scores; padding has the label 0."""
    order = scores.masked_fill(~mask, -torch.inf).argsort(1, descending=True)
    return labels.masked_fill(~mask, 0).gather(1, order)


def dcg(labels, k):
    top = labels[:, :k]
    return ((torch.exp2(top) - 1) / torch.log2(torch.arange(top.shape[1]) + 2.0)).sum(1)


def ndcg_of(labels, k=None):
    """Of ranked labels."""
    return dcg(labels, k) / dcg(labels.sort(1, descending=True).values, k)


def average_precision_of(labels):
    relevant = (labels >= 1).float()
    precision = relevant.cumsum(1) / torch.arange(1.0, labels.shape[1] + 1)
    return (precision * relevant).sum(1) / relevant.sum(1)


def reciprocal_rank_of(labels):
    relevant = (labels >= 1).float()
    return relevant.amax(1) / (relevant.argmax(1) + 1)


def five_measures(scores, labels, mask):
    """From one sort: the measures of `torchrank.functional.evaluate` without options."""
    found = ranked(scores, labels, mask)
    return [*(ndcg_of(found, k) for k in (1, 5, 10)), average_precision_of(found), reciprocal_rank_of(found)]


MEASURES = {
    "ndcg": lambda *lists: ndcg_of(ranked(*lists)),
    "ndcg@10": lambda *lists: ndcg_of(ranked(*lists), 10),
    "average_precision": lambda *lists: average_precision_of(ranked(*lists)),
    "reciprocal_rank": lambda *lists: reciprocal_rank_of(ranked(*lists)),
    "evaluate": five_measures,
}

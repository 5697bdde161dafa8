"""Differentiable losses, one value per list `(Q,)`. A list with one distinct label gives a graph-connected 0."""

import torch
from torch import Tensor

from torchrank.functional.gains import discount_of, gain_of, ideal_dcg
from torchrank.functional.ragged import (
    list_ids,
    longest_list,
    partner_blocks,
    ranks,
    read,
    segment_logsumexp,
    segment_max,
    segment_min,
    segment_softmax,
    segment_sum,
    wide,
)
from torchrank.functional.ranking import check_cutoff, check_lists, ratio, result_dtype

PAIRS_AT_ONCE = 2**20  # bounds the memory of the pairwise losses: about 60 bytes per pair


def listnet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Cross entropy of softmax(labels) and softmax(scores) over the list, `(Q,)` (Cao et al. 2007, top one).

    >>> listnet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
    tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    s, y = wide(scores), wide(labels)
    target = segment_softmax(y, offsets)
    loss = segment_sum(target * (segment_logsumexp(s, offsets)[list_ids(offsets, len(s))] - s), offsets)
    several = segment_max(y, offsets) > segment_min(y, offsets)
    return torch.where(several, loss, 0.0).to(result_dtype(scores))


def ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Sum of log(1 + exp(-(s_i - s_j))) over the pairs of the list with y_i > y_j, `(Q,)` (Burges et al. 2005).

    >>> ranknet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
    tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    loss = _PairLoss.apply(wide(scores), labels, offsets, None, max_length, num_pairs)
    return loss.to(result_dtype(scores))


def lambdarank_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """RankNet's sum with each pair weighted by the change of NDCG@k if the two swapped places, `(Q,)` (Burges 2010).

    The weights |gain_i - gain_j| |discount_i - discount_j| / ideal DCG@k belong to the current order (equal scores keep
    the order of the entries) and are constants: no gradient flows through them. Ranks beyond k have discount 0.

    >>> lambdarank_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
    tensor([0.2558, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_cutoff(k)
    longest = longest_list(offsets, len(scores), max_length)
    rank = ranks(scores, offsets, max_length=longest)
    discounts = discount_of(rank)
    if k is not None:
        discounts = torch.where(rank <= k, discounts, 0)
    (ideal,) = ideal_dcg(
        labels, offsets, cutoffs=[k], gain="exp2", discount="log2p1", longest=longest, num_grades=num_grades
    )
    gains = gain_of(labels) * ratio(torch.ones_like(ideal), ideal, 0.0)[list_ids(offsets, len(labels))]
    loss = _PairLoss.apply(wide(scores), labels, offsets, (gains, discounts), longest, num_pairs)
    return loss.to(result_dtype(scores))


class _PairLoss(torch.autograd.Function):
    """Sum of w_ij log(1 + exp(-(s_i - s_j))) per list, and its gradient, in one walk over the pairs in pieces.

    The gradient of a pair is known in closed form (-w sigmoid(-(s_i - s_j)) to i, the opposite to j), so the forward
    pass adds it up per entry and no pair has to be kept: memory is O(N + PAIRS_AT_ONCE) for any batch, where autograd
    would hold every pair, and a padded Q x L x L tensor the square of the longest list for each list. 85 lists of up to
    769 entries, forward and backward on one core: 26 ms, padded 2,490 ms.
    """

    @staticmethod
    def forward(ctx, scores, labels, offsets, factors, max_length, num_pairs):
        order, partners, first = partner_blocks(labels, offsets, max_length=max_length)
        starts = partners.cumsum(0) - partners
        if num_pairs is None:
            num_pairs = read(partners.sum())
        ids = list_ids(offsets, len(scores))
        ordered, factors = scores[order], [factor[order] for factor in factors or ()]
        loss, slopes = scores.new_zeros(len(offsets) - 1), torch.zeros_like(ordered)
        for begin in range(0, num_pairs, PAIRS_AT_ONCE):
            upper, lower = _piece(starts, first, begin, min(PAIRS_AT_ONCE, num_pairs - begin))
            margin = ordered[upper] - ordered[lower]
            weight = torch.ones_like(margin)
            for factor in factors:
                weight = weight * (factor[upper] - factor[lower]).abs()
            loss.index_add_(0, ids[upper], weight * torch.nn.functional.softplus(-margin))
            slope = weight * torch.sigmoid(-margin)
            slopes.index_add_(0, upper, -slope).index_add_(0, lower, slope)
        ctx.save_for_backward(torch.empty_like(slopes).scatter(0, order, slopes), ids)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        slopes, ids = ctx.saved_tensors
        return grad[ids] * slopes, None, None, None, None, None


def _piece(starts: Tensor, first: Tensor, begin: int, size: int) -> tuple[Tensor, Tensor]:
    """Slots (upper, lower) of the pairs from `begin` on. Pair p belongs to the last slot that starts at or before p."""
    marks = torch.zeros(size + 1, dtype=torch.int64, device=starts.device)
    marks = marks.index_add(0, (starts - begin).clamp(0, size), torch.ones_like(starts))
    upper = marks[:size].cumsum(0) - 1
    return upper, first[upper] + torch.arange(begin, begin + size, device=starts.device) - starts[upper]


LOSSES = {"listnet": listnet_loss, "ranknet": ranknet_loss, "lambdarank": lambdarank_loss}

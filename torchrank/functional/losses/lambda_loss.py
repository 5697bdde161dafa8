"""The LambdaLoss framework (Wang, Li, Golbandi, Bendersky & Najork 2018): logistic pairs with weights of the ranks.

Two of the schemes weigh pairs of equal labels too: for them all pairs (i, j) of a list are worked on, in blocks of
lists of similar length. The other ones add up the pairs with y_i > y_j on the CPU, as RankNet does; elsewhere, where
their number would have to be waited for, they leave pairs out. Memory is bounded, however long a list is.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.batching import pair_blocks
from torchrank.functional.gains import check_gains, dcg, gain_of
from torchrank.functional.losses.layout import narrow
from torchrank.functional.losses.neural_ndcg import equal_blocks
from torchrank.functional.losses.pairs import Swap, pair_products, pair_sums
from torchrank.functional.losses.soft_ranks import SHORT, check_positive, read_longest
from torchrank.functional.operations import ListLoss, empty_sums, one_operation, readable
from torchrank.functional.ragged import has_pairs, per_entry, ranks, sort_within, wide
from torchrank.functional.ranking import check_cutoff, check_lists, check_weights, count_grades, ratio

BLOCK_PAIRS = 2**17  # of a block on the CPU: the temporary tensors stay in the cache
DEVICE_PAIRS = 2**23
SCHEMES = ("ndcg1", "ndcg2", "ndcg2++", "lambdarank", "arp1", "arp2", "ranknet")
ALL_PAIRS = ("ndcg1", "arp1")  # also those of equal labels


@takes_arrays
def lambda_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    scheme: str = "ndcg2++",
    k: int | None = None,
    mu: float = 10.0,
    sigma: float = 1.0,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """LambdaLoss: the sum of w_ij log2(1 + exp(-sigma (s_i - s_j))) over the pairs of the list (Wang et al. 2018).

    With G = (2^y - 1) / ideal DCG, d(r) = 1 / log2(1 + r), the current ranks r and D = |r_i - r_j| the weights w_ij are

    | scheme | w_ij | pairs |
    |---|---|---|
    | `ndcg1` | G_i d(r_i) | all, with i = j as in allRank |
    | `ndcg2` | abs(G_i - G_j) (d(D) - d(D + 1)) | y_i > y_j |
    | `lambdarank` | abs(G_i - G_j) abs(d(r_i) - d(r_j)) | y_i > y_j |
    | `ndcg2++` | mu times that of `ndcg2`, plus that of `lambdarank` | y_i > y_j |
    | `arp1` | y_i | all, with i = j |
    | `arp2` | y_i - y_j | y_i > y_j |
    | `ranknet` | 1 | y_i > y_j |

    The weights belong to the current order (equal scores keep the order of the entries) and are constants. The value is
    that of allRank with its logarithm of base 2; TF-Ranking and rax take the natural one and multiply by the length of
    the list.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        scheme: the weights, see above.
        k: only pairs of which both ranks are k at most count, and the ideal DCG is that at k, as in allRank; None
            counts all pairs.
        mu: the share of `ndcg2` in `ndcg2++`.
        sigma: multiplies the differences of scores.
        weights: importance of each entry, `(N,)`, as in rax: it multiplies the pairs where the entry is i, and the
            gains in the weights, also those of the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. It can be differentiated twice.

    Example:
        >>> lambda_loss(torch.tensor([0.5, 0.3, 0.5]), torch.tensor([2, 1, 2]), torch.tensor([0, 3]), scheme="arp2")
        tensor([1.7259])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    check_choice(SCHEMES, scheme=scheme)
    check_cutoff(k)
    check_positive(mu=mu, sigma=sigma)
    if scheme in SCHEMES[:4]:
        check_gains(labels, "exp2", count_grades(labels, num_grades))
    longest = read_longest(offsets, len(scores), max_length)
    options = {"scheme": scheme, "k": k, "mu": float(mu), "sigma": float(sigma), "longest": longest}
    return _LOSS(scores, labels, offsets, weights, list_weights, **options)


def _sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    direction: Tensor | None = None,
    *,
    k: int | None,
    longest: int,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    gains, count = gain_of(labels), len(scores)
    if weights is not None:
        gains = gains * wide(weights)
    best = gains[sort_within(gains, offsets)]
    (ideal,) = dcg(best, offsets, cutoffs=[k], gain="linear", discount="log2p1", longest=longest)
    gains = gains * per_entry(ratio(torch.ones_like(ideal), ideal, 0.0), offsets, count)
    rank = ranks(scores, offsets)
    counted = per_entry(has_pairs(labels, offsets), offsets, count)
    counted = counted if k is None else counted & (rank <= k)
    scheme, mu, sigma = (options[name] for name in ("scheme", "mu", "sigma"))
    parts = gains, wide(rank), counted, None if weights is None else wide(weights), direction
    return _operation(scores.detach(), wide(labels), offsets, *parts, scheme, mu, sigma, longest)


def _products(*lists: Any, **options: Any) -> Tensor:
    return _sums(*lists, **options)[1]


_LOSS = ListLoss("lambda_loss", _sums, _products)


class _Pairs(NamedTuple):
    """Values of the entries i and j of pairs, `(B, rows, 1)` and `(B, 1, L)`."""

    scores: Tensor
    labels: Tensor
    gains: Tensor
    ranks: Tensor
    direction: Tensor


def _lambda_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    gains: Tensor,
    rank: Tensor,
    counted: Tensor,
    weights: Tensor | None,
    direction: Tensor | None,
    scheme: str,
    mu: float,
    sigma: float,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """The loss, `(Q,)`, and its slopes, `(N,)`, or the second derivative times a direction, `(N,)`."""
    if readable(scores) and scheme not in ALL_PAIRS:
        some = torch.from_numpy(counted.numpy().nonzero()[0])
        swap = _swap(labels[some], gains[some], rank[some], scheme, mu, longest)
        ends = torch.nn.functional.pad(counted.cumsum(0), (1, 0))[offsets]
        return _rising_sums(scores, labels, ends, weights, direction, some, swap, sigma)
    host, kind = readable(scores), torch.float32 if scores.dtype in SHORT else labels.dtype
    most = BLOCK_PAIRS if host else DEVICE_PAIRS
    loss, slopes = labels.new_zeros(len(offsets) - 1), torch.zeros_like(labels)
    parts = [part.to(kind) for part in (scores, labels, gains, rank, labels if direction is None else direction)]
    for lists, entries, inside in pair_blocks(offsets, most, few=most // 8) if host else equal_blocks(offsets, longest):
        inside = inside & counted[entries]
        own, step = [part[entries] for part in parts], max(1, most // max(entries.numel(), 1))
        for rows in (slice(begin, begin + step) for begin in range(0, entries.shape[1], step)):
            upper, lower = _Pairs(*(part[:, rows, None] for part in own)), _Pairs(*(part[:, None] for part in own))
            factor = _factor(upper, lower, scheme, mu)
            if weights is not None:
                factor = factor * weights[entries[:, rows], None].to(kind)
            some = inside[:, rows, None] & inside[:, None]
            some = some if scheme in ALL_PAIRS else some & (upper.labels > lower.labels)
            values, pulls = _terms(upper, lower, sigma, second=direction is not None)
            values, pulls = (torch.where(some, part * factor, 0) for part in (values, pulls))
            loss.index_add_(0, lists, values.sum((1, 2), dtype=loss.dtype))
            slopes.index_add_(0, entries.flatten(), pulls.sum(1, dtype=loss.dtype).flatten())
            slopes.index_add_(0, entries[:, rows].flatten(), pulls.sum(2, dtype=loss.dtype).flatten(), alpha=-1)
    return loss, slopes


def _rising_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    direction: Tensor | None,
    some: Tensor,
    swap: Swap | None,
    sigma: float,
) -> tuple[Tensor, Tensor]:
    """`_lambda_sums` over the pairs with y_i > y_j of some entries, whose lists end at `offsets`, on the CPU: a third
    of all pairs of most lists."""
    own, grades, weights = scores[some], labels[some], None if weights is None else weights[some]
    own = own if sigma == 1 else narrow(own) * sigma
    if direction is None:
        loss, pulls = pair_sums(own, grades, offsets, weights, swap=swap)
    else:
        loss = labels.new_zeros(len(offsets) - 1)
        pulls = pair_products(own, grades, offsets, weights, direction[some] * sigma, swap=swap)
    slopes = torch.zeros_like(wide(scores)).index_copy_(0, some, pulls)
    return loss.div_(math.log(2)), slopes.mul_(sigma / math.log(2))


def _swap(labels: Tensor, gains: Tensor, rank: Tensor, scheme: str, mu: float, longest: int) -> Swap | None:
    if scheme in ("ranknet", "arp2"):
        return None if scheme == "ranknet" else Swap(labels)
    discounts = None if scheme == "ndcg2" else 1 / torch.log2(1 + rank)
    if scheme == "lambdarank":
        return Swap(gains, discounts)
    apart = torch.arange(longest, dtype=rank.dtype).clamp_(min=1)
    near = 1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)
    return Swap(gains, discounts, rank, near if scheme == "ndcg2" else mu * near)


_operation = one_operation("lambda_loss", _lambda_sums, empty_sums)


def _terms(upper: _Pairs, lower: _Pairs, sigma: float, *, second: bool) -> tuple[Tensor, Tensor]:
    """log2(1 + exp(sigma (s_j - s_i))) and its slope at s_j, or its curvature along the direction."""
    rises = (lower.scores - upper.scores).mul_(sigma)
    values = torch.nn.functional.softplus(rises, threshold=40).div_(math.log(2))
    shares = rises.sigmoid_()
    if not second:
        return values, shares.mul_(sigma / math.log(2))
    along = lower.direction - upper.direction
    return values, shares.sub_(shares.square()).mul_(sigma**2 / math.log(2)).mul_(along)


def _factor(upper: _Pairs, lower: _Pairs, scheme: str, mu: float) -> Tensor:
    if scheme in ("ranknet", "arp1", "arp2"):
        first = {"ranknet": torch.ones_like(upper.labels), "arp1": upper.labels, "arp2": upper.labels - lower.labels}
        return first[scheme]
    if scheme == "ndcg1":
        return upper.gains / torch.log2(1 + upper.ranks)
    apart = (upper.ranks - lower.ranks).abs_().clamp_(min=1)
    near = 1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)
    swap = (1 / torch.log2(1 + upper.ranks) - 1 / torch.log2(1 + lower.ranks)).abs_()
    weight = {"ndcg2": near, "lambdarank": swap, "ndcg2++": mu * near + swap}[scheme]
    return weight.mul_((upper.gains - lower.gains).abs_())

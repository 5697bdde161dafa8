"""Losses of pairs: RankNet, LambdaRank, LambdaLoss, hinge, soft zero-one, squared error of differences."""

import math
from typing import Unpack

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import Array, host, narrow, wide
from torchrank.functional.autograd import OnceDifferentiable, diagonal_of
from torchrank.functional.lists import Lists, Weighted, loss
from torchrank.functional.losses.pair_blocks import (
    PAIRS,
    Swap,
    all_pair_sums,
    check_positive,
    pair_sums,
    top_pair_sums,
)
from torchrank.functional.ranking import best_dcg, check_cutoff, check_gains, discount_of, gain_of


@loss
def ranknet_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """RankNet: sum of w_i log(1 + exp(-(s_i - s_j))) over the pairs of the list with y_i > y_j (Burges et al. 2005).

    rax's `pairwise_logistic_loss` is the mean of the same terms over all pairs without `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it is the more relevant one; None
            is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form.

    Example:
        >>> ranknet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    return _RANKNET(scores, labels, offsets, weights)


@loss
def logistic_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Logistic loss of pairs: sum of w_i log(1 + exp(-(s_i - s_j))) over the pairs with y_i > y_j.

    This is `ranknet_loss` under the name that rax and TF-Ranking give it (`pairwise_logistic_loss`); they take the mean
    over all pairs by default.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it is the more relevant one; None
            is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form.

    Example:
        >>> logistic_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([1.6265])
    """
    return _LOGISTIC(scores, labels, offsets, weights)


@loss
def hinge_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Hinge loss of pairs: sum of w_i max(0, 1 - (s_i - s_j)) over the pairs of the list with y_i > y_j.

    rax's `pairwise_hinge_loss` is the mean of the same terms over all pairs without `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it is the more relevant one; None
            is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`. A pair with a margin of exactly 1 has the gradient 0.

    Example:
        >>> hinge_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([2.])
    """
    return _HINGE(scores, labels, offsets, weights, pair="hinge")


@loss
def soft_zero_one_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Soft count of wrong pairs: sum of w_i sigmoid(-(s_i - s_j)) over the pairs of the list with y_i > y_j.

    rax's `pairwise_soft_zero_one_loss` is the mean of the same terms over all pairs without
    `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it is the more relevant one; None
            is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form.

    Example:
        >>> soft_zero_one_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([1.])
    """
    return _SOFT(scores, labels, offsets, weights, pair="soft_zero_one")


@loss
def lambdarank_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    k: int | None = None,
    pair: str = "logistic",
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """LambdaRank: RankNet's sum, each pair times the change of NDCG@k if the two entries swap ranks (Burges 2010).

    The weights |gain_i - gain_j| |discount_i - discount_j| / ideal DCG@k belong to the current order (equal scores keep
    the order of the entries) and are constants: no gradient flows through them. rax's `dcg_lambdaweight` with
    `normalize=True` is the same times the length of the list.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the cut-off of NDCG: ranks beyond k have discount 0, and pairs of two of them are left out; None counts the
            whole list.
        pair: what a pair costs: "logistic" as RankNet, "hinge" or "soft_zero_one" as the losses of these names.
        weights: importance of each entry, `(N,)`, as in rax: it multiplies the pairs where the entry is the more
            relevant one, and the gains in the change of NDCG, also those of the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form.

    Example:
        >>> lambdarank_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.2558, 0.0000])
    """
    check_cutoff(k)
    check_choice(PAIRS, pair=pair)
    check_gains(labels, "exp2", offsets.grades)
    return _LAMBDARANK(scores, labels, offsets, weights, k=k, pair=pair)


def _lambdarank_sums(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, order: int, *, k: int | None, pair: str
) -> tuple[Tensor, ...]:
    rank = lists.ranks(scores)
    discounts = _discounts(lists, k).index_select(0, rank)
    swap = Swap(_shares(labels, lists, weights, k), discounts)
    if k is not None and weights is None and _is_narrow(k, labels, lists):
        return top_pair_sums(scores, labels, lists, k, order, pair=pair, swap=swap)
    return pair_sums(scores, labels, lists, weights, order, pair=pair, swap=swap)


def _is_narrow(k: int, labels: Tensor, lists: Lists) -> bool:
    """Whether k ranks of each list are fewer than its entries with less relevant partners, on average."""
    upper = host(labels > lists.each(lists.min(labels)))
    return k < lists.bound if upper is None else k * len(lists) < int(upper.sum())


def _shares(labels: Tensor, lists: Lists, weights: Tensor | None, k: int | None) -> Tensor:
    """The gain of each entry, times its weight, as a share of the ideal DCG at k, `(N,)`."""
    gains = gain_of(labels) if weights is None else gain_of(labels) * wide(weights)
    ideal = best_dcg(gains, lists, k, labels=labels if weights is None else None)
    return gains * lists.each(ideal.clamp(min=torch.finfo(ideal.dtype).tiny).reciprocal())


def _discounts(lists: Lists, k: int | None) -> Tensor:
    """The discount at rank 0 (none), 1, 2, .. of the longest list."""
    ranks = torch.arange(lists.bound + 1, device=lists.offsets.device)
    discounts = discount_of(ranks)
    return discounts if k is None else torch.where(ranks <= k, discounts, 0)


SCHEMES = ("ndcg1", "ndcg2", "ndcg2++", "lambdarank", "arp1", "arp2", "ranknet")


@loss
def lambda_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    scheme: str = "ndcg2++",
    k: int | None = None,
    mu: float = 10.0,
    sigma: float = 1.0,
    weights: Array = None,
    **given: Unpack[Weighted],
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
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        scheme: the weights, see above.
        k: only pairs of which both ranks are k at most count, and the ideal DCG is that at k, as in allRank; None
            counts all pairs.
        mu: the share of `ndcg2` in `ndcg2++`.
        sigma: multiplies the differences of scores.
        weights: importance of each entry, `(N,)`, as in rax: it multiplies the pairs where the entry is i, and the
            gains in the weights, also those of the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. Its gradient is in closed form.

    Example:
        >>> lambda_loss(torch.tensor([0.5, 0.3, 0.5]), torch.tensor([2, 1, 2]), torch.tensor([0, 3]), scheme="arp2")
        tensor([1.7259])
    """
    check_choice(SCHEMES, scheme=scheme)
    check_cutoff(k)
    check_positive(mu=mu, sigma=sigma)
    if scheme in SCHEMES[:4]:
        check_gains(labels, "exp2", offsets.grades)
    return _LAMBDA(scores, labels, offsets, weights, scheme=scheme, k=k, mu=mu, sigma=sigma)


def _lambda_sums(
    scores: Tensor,
    labels: Tensor,
    lists: Lists,
    weights: Tensor | None,
    order: int,
    *,
    scheme: str,
    k: int | None,
    mu: float,
    sigma: float,
) -> tuple[Tensor, ...]:
    rank = lists.ranks(scores)
    counted, scaled = None if k is None else rank <= k, scores if sigma == 1 else narrow(scores) * sigma
    if scheme in ("ndcg1", "arp1"):
        paid = wide(labels)
        if scheme == "ndcg1":
            paid = _shares(labels, lists, weights, k) * _discounts(lists, None).index_select(0, rank)
        eligible = lists.each(lists.several(labels)) if counted is None else counted & lists.each(lists.several(labels))
        paid = torch.where(eligible, paid if weights is None else paid * wide(weights), 0)
        sums = all_pair_sums(scaled, paid > 0, lists, paid, order, pair="logistic", counted=eligible)
        sums = (sums[0] + lists.sum(paid) * math.log(2), *sums[1:])  # an entry with itself
    else:
        swap = _swap(labels, lists, weights, rank, scheme, k, mu)
        sums = pair_sums(scaled, labels, lists, weights, order, swap=swap, counted=counted)
    return tuple(part * (sigma**n / math.log(2)) for n, part in enumerate(sums))


def _swap(
    labels: Tensor, lists: Lists, weights: Tensor | None, rank: Tensor, scheme: str, k: int | None, mu: float
) -> Swap | None:
    if scheme in ("ranknet", "arp2"):
        return None if scheme == "ranknet" else Swap(wide(labels))
    gains, discounts = _shares(labels, lists, weights, k), _discounts(lists, None)
    if scheme == "lambdarank":
        return Swap(gains, discounts.index_select(0, rank))
    apart = torch.arange(lists.bound + 1, device=rank.device).clamp_(min=1)
    near = discount_of(apart) - discount_of(apart + 1)
    if scheme == "ndcg2":
        return Swap(gains, None, rank, near)
    return Swap(gains, discounts.index_select(0, rank), rank, mu * near)


@loss
def pairwise_mse_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Squared error of differences: sum of w_i ((s_i - s_j) - (y_i - y_j))^2 over all ordered pairs of the list.

    As in rax, pairs of equal labels count, which should have equal scores, and every pair counts in both orders; so a
    list of several entries with one distinct label has a loss too. With d_i = s_i - y_i less the mean of the list and n
    entries the sum is that of w_i (n d_i^2 + sum of d^2): it takes O(N) and forms no pairs. rax's `pairwise_mse_loss`
    is the mean of the same terms over all pairs without `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it comes first; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at labels and weights.

    Example:
        >>> pairwise_mse_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([16.])
    """
    lists: Lists = offsets
    rest, lengths = wide(scores) - wide(labels), wide(lists.offsets.diff())
    rest = rest - lists.each(lists.sum(rest) / lengths.clamp(min=1))
    squares = rest.square()
    if weights is None:
        return 2 * lengths * lists.sum(squares)
    factors = wide(weights)
    return lengths * lists.sum(factors * squares) + lists.sum(factors) * lists.sum(squares)


_RANKNET = OnceDifferentiable("ranknet_loss", pair_sums)
_LOGISTIC = OnceDifferentiable("logistic_loss", pair_sums)
_HINGE = OnceDifferentiable("hinge_loss", pair_sums)
_SOFT = OnceDifferentiable("soft_zero_one_loss", pair_sums)
_LAMBDARANK = OnceDifferentiable("lambdarank_loss", _lambdarank_sums)
_LAMBDA = OnceDifferentiable("lambda_loss", _lambda_sums)
diagonal_of(ranknet_loss)(_RANKNET.diagonal)
diagonal_of(logistic_loss)(_LOGISTIC.diagonal)
diagonal_of(hinge_loss, pair="hinge")(_HINGE.diagonal)
diagonal_of(soft_zero_one_loss, pair="soft_zero_one")(_SOFT.diagonal)
diagonal_of(lambdarank_loss)(_LAMBDARANK.diagonal)
diagonal_of(lambda_loss)(_LAMBDA.diagonal)


@diagonal_of(pairwise_mse_loss)
def _pairwise_mse_diagonal(scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None) -> Tensor:
    factors = torch.ones_like(wide(scores)) if weights is None else wide(weights)
    return 2 * (lists.each(wide(lists.offsets.diff())) * factors + lists.each(lists.sum(factors)) - 2 * factors)

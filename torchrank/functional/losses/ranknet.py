"""Losses of all pairs of a list with different labels: RankNet and LambdaRank."""

from typing import Any

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.gains import check_gains, discount_of, gain_of, ideal_dcg
from torchrank.functional.losses.pairs import PAIRS, Swap, pair_products, pair_sums
from torchrank.functional.operations import ListLoss
from torchrank.functional.ragged import longest_list, per_entry, ranks, wide
from torchrank.functional.ranking import check_cutoff, check_lists, check_weights, count_grades, ratio


@takes_arrays
def ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """RankNet: sum of w_i log(1 + exp(-(s_i - s_j))) over the pairs of the list with y_i > y_j (Burges et al. 2005).

    rax's `pairwise_logistic_loss` is the mean of the same terms over all pairs unless it is told `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it is the more relevant one; None
            is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which is only checked.
        num_grades: not needed by this loss.
        num_pairs: the number of pairs with different labels in all lists; None counts them, which synchronises.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> ranknet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    return _RANKNET(scores, labels, offsets, weights, list_weights, max_length=max_length, num_pairs=num_pairs)


@takes_arrays
def lambdarank_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    pair: str = "logistic",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """LambdaRank: RankNet's sum with each pair weighted by the change of NDCG@k if the two swapped ranks (Burges 2010).

    The weights |gain_i - gain_j| |discount_i - discount_j| / ideal DCG@k belong to the current order (equal scores keep
    the order of the entries) and are constants: no gradient flows through them. rax's `dcg_lambdaweight` with
    `normalize=True` is the same times the length of the list.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the cut-off of NDCG: ranks beyond k have discount 0; None counts the whole list.
        pair: what a pair costs: "logistic" as RankNet, "hinge" or "soft_zero_one" as the losses of these names.
        weights: importance of each entry, `(N,)`, as in rax: it multiplies the pairs where the entry is the more
            relevant one, and the gains in the change of NDCG, also those of the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: the number of pairs with different labels in all lists; None counts them, which synchronises.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> lambdarank_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.2558, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_cutoff(k)
    check_choice(PAIRS, pair=pair)
    check_weights(scores, offsets, weights, list_weights)
    sizes = {"max_length": max_length, "num_grades": num_grades, "num_pairs": num_pairs}
    return _LAMBDARANK(scores, labels, offsets, weights, list_weights, k=k, pair=pair, **sizes)


def _swap(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    k: int | None,
    max_length: int | None,
    num_grades: int | None,
) -> Swap:
    """Gains over the ideal DCG@k and discounts of the current ranks, whose differences weigh the pairs."""
    longest = longest_list(offsets, len(scores), max_length)
    rank = ranks(scores, offsets, max_length=longest)
    discounts = discount_of(rank)
    if k is not None:
        discounts = torch.where(rank <= k, discounts, 0)
    grades = count_grades(labels, num_grades)
    check_gains(labels, "exp2", grades)
    gains, known, gain = gain_of(labels), labels, "exp2"
    if weights is not None:
        gains = known = gains * wide(weights)
        gain, grades = "linear", 0
    (ideal,) = ideal_dcg(known, offsets, cutoffs=[k], gain=gain, discount="log2p1", longest=longest, num_grades=grades)
    gains = gains * per_entry(ratio(torch.ones_like(ideal), ideal, 0.0), offsets, len(labels))
    return Swap(gains, discounts)


def _swapped_sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    k: int | None,
    num_grades: int | None,
    max_length: int | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    swap = _swap(scores, labels, offsets, weights, k, max_length, num_grades)
    return pair_sums(scores, labels, offsets, weights, swap=swap, max_length=max_length, **options)


def _swapped_products(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    direction: Tensor,
    *,
    k: int | None,
    num_grades: int | None,
    max_length: int | None,
    **options: Any,
) -> Tensor:
    swap = _swap(scores, labels, offsets, weights, k, max_length, num_grades)
    return pair_products(scores, labels, offsets, weights, direction, swap=swap, max_length=max_length, **options)


_RANKNET = ListLoss("ranknet_loss", pair_sums, pair_products)
_LAMBDARANK = ListLoss("lambdarank_loss", _swapped_sums, _swapped_products)

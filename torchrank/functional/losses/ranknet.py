"""Losses of all pairs of a list with different labels: RankNet and LambdaRank."""

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.gains import check_gains, discount_of, gain_of, ideal_dcg
from torchrank.functional.losses.pairs import Weights, pair_sums
from torchrank.functional.operations import ListLoss
from torchrank.functional.ragged import longest_list, per_entry, ranks
from torchrank.functional.ranking import check_cutoff, check_lists, count_grades, ratio


@takes_arrays
def ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """RankNet: sum of log(1 + exp(-(s_i - s_j))) over the pairs of the list with y_i > y_j (Burges et al. 2005).

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        max_length: an upper bound of the list lengths, which is only checked.
        num_grades: not needed by this loss.
        num_pairs: the number of pairs with different labels in all lists; None counts them, which synchronises.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and has no second derivative.

    Example:
        >>> ranknet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    return _RANKNET(scores, labels, offsets, None, None, max_length=max_length, num_pairs=num_pairs)


@takes_arrays
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
    """LambdaRank: RankNet's sum with each pair weighted by the change of NDCG@k if the two swapped ranks (Burges 2010).

    The weights |gain_i - gain_j| |discount_i - discount_j| / ideal DCG@k belong to the current order (equal scores keep
    the order of the entries) and are constants: no gradient flows through them.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the cut-off of NDCG: ranks beyond k have discount 0; None counts the whole list.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: the number of pairs with different labels in all lists; None counts them, which synchronises.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and has no second derivative.

    Example:
        >>> lambdarank_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.2558, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_cutoff(k)
    sizes = {"max_length": max_length, "num_grades": num_grades, "num_pairs": num_pairs}
    return _LAMBDARANK(scores, labels, offsets, None, None, k=k, **sizes)


def _swapped_pairs(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    k: int | None,
    max_length: int | None,
    num_grades: int | None,
    num_pairs: int | None,
) -> tuple[Tensor, Tensor]:
    """Loss `(Q,)` and slopes `(N,)` of pairs weighted by the change of NDCG@k."""
    longest = longest_list(offsets, len(scores), max_length)
    rank = ranks(scores, offsets, max_length=longest)
    discounts = discount_of(rank)
    if k is not None:
        discounts = torch.where(rank <= k, discounts, 0)
    grades = count_grades(labels, num_grades)
    check_gains(labels, "exp2", grades)
    (ideal,) = ideal_dcg(
        labels, offsets, cutoffs=[k], gain="exp2", discount="log2p1", longest=longest, num_grades=grades
    )
    gains = gain_of(labels) * per_entry(ratio(torch.ones_like(ideal), ideal, 0.0), offsets, len(labels))
    return pair_sums(scores, labels, offsets, Weights(gains, discounts), max_length=longest, num_pairs=num_pairs)


_RANKNET = ListLoss("ranknet_loss", pair_sums)
_LAMBDARANK = ListLoss("lambdarank_loss", _swapped_pairs)

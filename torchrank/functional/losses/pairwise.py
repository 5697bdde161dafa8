"""Pairwise losses: hinge, logistic and soft zero-one of pairs with different labels; squared error of all pairs."""

from dataclasses import replace

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.losses.pairs import pair_products, pair_sums
from torchrank.functional.operations import ListLoss, formula_loss
from torchrank.functional.ragged import measure_sum, per_entry, segment_sum, wide
from torchrank.functional.ranking import check_lists, check_weights


@takes_arrays
def logistic_loss(
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
    """Logistic loss of pairs: sum of w_i log(1 + exp(-(s_i - s_j))) over the pairs with y_i > y_j.

    This is `ranknet_loss` under the name that rax and TF-Ranking give it (`pairwise_logistic_loss`); they take the mean
    over all pairs unless they are told otherwise.

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
        >>> logistic_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([1.6265])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    sizes = {"max_length": max_length, "num_pairs": num_pairs}
    return _LOGISTIC(scores, labels, offsets, weights, list_weights, pair="logistic", **sizes)


@takes_arrays
def hinge_loss(
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
    """Hinge loss of pairs: sum of w_i max(0, 1 - (s_i - s_j)) over the pairs of the list with y_i > y_j.

    rax's `pairwise_hinge_loss` is the mean of the same terms over all pairs unless it is told `reduce_fn=jnp.sum`.

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
        The loss of each list, `(Q,)`. A pair with a margin of exactly 1 has slope 0; second derivatives are 0.

    Example:
        >>> hinge_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([2.])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    sizes = {"max_length": max_length, "num_pairs": num_pairs}
    return _HINGE(scores, labels, offsets, weights, list_weights, pair="hinge", **sizes)


@takes_arrays
def soft_zero_one_loss(
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
    """Soft count of wrong pairs: sum of w_i sigmoid(-(s_i - s_j)) over the pairs of the list with y_i > y_j.

    rax's `pairwise_soft_zero_one_loss` is the mean of the same terms over all pairs unless it is told
    `reduce_fn=jnp.sum`.

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
        >>> soft_zero_one_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([1.])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    sizes = {"max_length": max_length, "num_pairs": num_pairs}
    return _SOFT(scores, labels, offsets, weights, list_weights, pair="soft_zero_one", **sizes)


@takes_arrays
def pairwise_mse_loss(
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
    """Squared error of differences: sum of w_i ((s_i - s_j) - (y_i - y_j))^2 over all ordered pairs of the list.

    As in rax, pairs of equal labels count, which should have equal scores, and every pair counts in both orders; so a
    list of several entries with one distinct label has a loss too. With d_i = s_i - y_i less the mean of the list and n
    entries the sum is that of w_i (n d_i^2 + sum of d^2): it takes O(N) and forms no pairs. rax's `pairwise_mse_loss`
    is the mean of the same terms over all pairs unless it is told `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance w of each entry, `(N,)`, which multiplies the pairs where it comes first; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length, num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> pairwise_mse_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([16.])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    return _SQUARES(scores, labels, offsets, weights, list_weights)


def _square_sums(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The slope at k is 2 (n w_k d_k + W d_k - sum of w d), W the sum of the weights."""
    rest, lengths = wide(scores) - wide(labels), wide(offsets.diff())
    rest -= per_entry(measure_sum(rest, offsets) / lengths.clamp(min=1), offsets, len(rest))
    squares, each = measure_sum(rest.square(), offsets), per_entry(lengths, offsets, len(rest))
    if weights is None:
        return 2 * lengths * squares, 4 * each * rest
    own = wide(weights)
    total, pull = measure_sum(own, offsets), measure_sum(own * rest, offsets)
    loss = lengths * measure_sum(own * rest.square(), offsets) + total * squares
    total, pull = (per_entry(part, offsets, len(rest)) for part in (total, pull))
    return loss, 2 * ((each * own + total) * rest - pull)


def _squares(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    rest, lengths = wide(scores) - wide(labels), wide(offsets.diff())
    own = torch.ones_like(rest) if weights is None else wide(weights)
    rest = rest - per_entry(segment_sum(rest, offsets) / lengths.clamp(min=1), offsets, len(rest))
    squares = rest.square()
    return lengths * segment_sum(own * squares, offsets) + segment_sum(own, offsets) * segment_sum(squares, offsets)


_LOGISTIC = ListLoss("logistic_loss", pair_sums, pair_products)
_HINGE = ListLoss("hinge_loss", pair_sums, pair_products)
_SOFT = ListLoss("soft_zero_one_loss", pair_sums, pair_products)
_SQUARES = replace(formula_loss("pairwise_mse_loss", _squares), sums=_square_sums)

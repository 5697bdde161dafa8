"""Losses of single entries: squared error, sigmoid cross entropy, ordinal regression."""

from typing import Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, wide
from torchrank.functional.autograd import diagonal_of
from torchrank.functional.lists import Lists, Weighted, loss, loss_of_columns, takes_arrays


@loss
def mse_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Squared error: sum of w_i (s_i - y_i)^2 over the entries of the list.

    A list with one distinct label has a loss too. rax's `pointwise_mse_loss` is the mean of the same terms over all
    entries without `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies its term; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at labels and weights.

    Example:
        >>> mse_loss(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([ 5., 16.])
    """
    lists: Lists = offsets
    return lists.sum(_weighted((wide(scores) - wide(labels)).square(), weights))


@loss
def bce_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Sigmoid cross entropy: sum of -w_i (y_i log sigmoid(s_i) + (1 - y_i) log sigmoid(-s_i)) over the list.

    Labels above 1 count as 1, as in rax: every grade but 0 is relevant. A list with one distinct label has a loss too.
    rax's `pointwise_sigmoid_loss` is the mean of the same terms over all entries without `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`: the log odds of its relevance.
        labels: relevance label of each entry, `(N,)`; between 0 and 1 it is a probability.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance w of each entry, `(N,)`, which multiplies its term; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at labels and weights.

    Example:
        >>> bce_loss(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.8201, 0.0067])
    """
    lists: Lists = offsets
    return lists.sum(_weighted(_cross_entropy(wide(scores), wide(labels).clamp(max=1)), weights))


@loss_of_columns
def ordinal_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Ordinal regression: column k of the scores holds the log odds that the label is k + 1 or more.

    The loss is the sum of the cross entropies of all columns over the entries of the list. So G grades need G - 1
    columns; with fewer of them the highest grades count as one. Entries are ranked by their expected label, the sum of
    the sigmoids: `ordinal_scores`. This is allRank's `ordinal`, which takes the sigmoids and the mean over all entries.

    Args:
        scores: log odds, `(N, G - 1)`; `(N,)` is one column.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance of each entry, `(N,)`, which multiplies its terms; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at the weights.

    Example:
        >>> scores = torch.tensor([[2.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
        >>> ordinal_loss(scores, torch.tensor([1, 0, 2]), torch.tensor([0, 2, 3]))
        tensor([1.8265, 0.6265])
    """
    lists: Lists = offsets
    return lists.sum(_weighted(_cross_entropy(*_columns(scores, labels)).sum(1), weights))


@takes_arrays
def ordinal_scores(log_odds: Array) -> Tensor:
    """The score by which an ordinal model ranks: the expected label, the sum of the sigmoids.

    Args:
        log_odds: what `ordinal_loss` takes as scores, `(N, G - 1)`.

    Returns:
        A score between 0 and G - 1 for each entry, `(N,)`.

    Example:
        >>> ordinal_scores(torch.tensor([[2.0, -1.0], [0.0, 0.0]]))
        tensor([1.1497, 1.0000])
    """
    scores: Tensor = log_odds.sigmoid().sum(1)
    return scores


def _weighted(terms: Tensor, weights: Tensor | None) -> Tensor:
    return terms if weights is None else terms * wide(weights)


def _cross_entropy(log_odds: Tensor, target: Tensor) -> Tensor:
    """The cross entropy of probabilities with these log odds; no digits cancel, for any target."""
    return torch.nn.functional.binary_cross_entropy_with_logits(log_odds, target, reduction="none")


def _columns(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The log odds `(N, G - 1)`, and 1 where the label reaches the grade of the column."""
    columns = wide(scores)[:, None] if scores.ndim == 1 else wide(scores)
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise ValueError(f"scores must be (N, G - 1) for G grades, one column or more, got {tuple(scores.shape)}")
    grades = torch.arange(1, columns.shape[1] + 1, device=labels.device)
    return columns, wide(labels[:, None] >= grades)


@diagonal_of(mse_loss)
def _mse_diagonal(scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None) -> Tensor:
    return _weighted(torch.full_like(wide(scores), 2), weights)


@diagonal_of(ordinal_loss)
@diagonal_of(bce_loss)
def _entropy_diagonal(scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None) -> Tensor:
    share = wide(scores).sigmoid()
    return (
        share * (1 - share)
        if weights is None
        else (share * (1 - share)) * wide(weights).view(-1, *[1] * (share.ndim - 1))
    )

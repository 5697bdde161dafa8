"""Losses of single entries: squared error, sigmoid cross entropy, ordinal regression."""

from dataclasses import replace

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.losses.layout import narrow
from torchrank.functional.operations import formula_loss
from torchrank.functional.ragged import measure_sum, segment_sum, wide
from torchrank.functional.ranking import check_lists, check_weights


@takes_arrays
def mse_loss(
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
    """Squared error: sum of w_i (s_i - y_i)^2 over the entries of the list.

    A list with one distinct label has a loss too. rax's `pointwise_mse_loss` is the mean of the same terms over all
    entries unless it is told `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance w of each entry, `(N,)`, which multiplies its term; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length, num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> mse_loss(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([ 5., 16.])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    return _SQUARES(scores, labels, offsets, weights, list_weights)


@takes_arrays
def bce_loss(
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
    """Sigmoid cross entropy: sum of -w_i (y_i log sigmoid(s_i) + (1 - y_i) log sigmoid(-s_i)) over the list.

    Labels above 1 count as 1, as in rax: every grade but 0 is relevant. A list with one distinct label has a loss too.
    rax's `pointwise_sigmoid_loss` is the mean of the same terms over all entries unless it is told `reduce_fn=jnp.sum`.

    Args:
        scores: score of each entry, `(N,)`: the log odds of its relevance.
        labels: relevance label of each entry, `(N,)`; between 0 and 1 it is a probability.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance w of each entry, `(N,)`, which multiplies its term; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length, num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> bce_loss(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.8201, 0.0067])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    return _CROSS_ENTROPY(scores, labels, offsets, weights, list_weights)


@takes_arrays
def ordinal_loss(
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
    """Ordinal regression: column k of the scores holds the log odds that the label is k + 1 or more.

    The loss is the sum of the cross entropies of all columns over the entries of the list. So G grades need G - 1
    columns; with fewer of them the highest grades count as one. Entries are ranked by their expected label, the sum of
    the sigmoids: `ordinal_scores`. This is allRank's `ordinal`, which takes the sigmoids and the mean over all entries.

    Args:
        scores: log odds, `(N, G - 1)`; `(N,)` is one column.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance of each entry, `(N,)`, which multiplies its terms; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length, num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> scores = torch.tensor([[2.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
        >>> ordinal_loss(scores, torch.tensor([1, 0, 2]), torch.tensor([0, 2, 3]))
        tensor([1.8265, 0.6265])
    """
    columns = scores[:, None] if scores.ndim == 1 else scores
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise ValueError(f"scores must be (N, G - 1) for G grades, one column or more, got {tuple(scores.shape)}")
    check_lists(columns[:, 0], labels, offsets)
    check_weights(columns[:, 0], offsets, weights, list_weights)
    count = columns.shape[1]
    reached = labels[:, None] >= torch.arange(1, count + 1, device=labels.device)
    every = None if weights is None else weights.repeat_interleave(count)
    return _ORDINAL(columns.flatten(), reached.flatten(), offsets * count, every, list_weights)


@takes_arrays
def ordinal_scores(log_odds: Tensor) -> Tensor:
    """The score by which an ordinal model ranks: the expected label, the sum of the sigmoids.

    Args:
        log_odds: what `ordinal_loss` takes as scores, `(N, G - 1)`.

    Returns:
        A score between 0 and G - 1 for each entry, `(N,)`.

    Example:
        >>> ordinal_scores(torch.tensor([[2.0, -1.0], [0.0, 0.0]]))
        tensor([1.1497, 1.0000])
    """
    return log_odds.sigmoid().sum(1)


def _square_sums(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    own = narrow(scores)
    rest = own - labels.to(own.dtype)
    pulls = rest if weights is None else rest * weights.to(rest.dtype)
    return measure_sum(wide(rest * pulls), offsets), pulls * 2


def _squares(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    terms = (wide(scores) - wide(labels)).square()
    return segment_sum(terms if weights is None else terms * wide(weights), offsets)


def _entropy_sums(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """No term cancels: with a target of 0 or 1 the loss is that of the score or of its opposite, and any other target
    adds the rest."""
    own = narrow(scores)
    target = labels.to(own.dtype)
    if labels.is_floating_point():
        target = target.clamp(max=1)
        signs = (target >= 0.5).to(own.dtype).mul_(-2).add_(1)
    else:
        signs = torch.rsub(target, 1, alpha=2).clamp_(min=-1)
    turned = own * signs
    terms = torch.nn.functional.softplus(turned, threshold=40)
    slopes = turned.sigmoid_().mul_(signs)
    if labels.is_floating_point():
        rest = (1 - signs).mul_(0.5).sub_(target)  # y' - y, y' the target rounded
        terms, slopes = terms.add_(rest * own), slopes.add_(rest)
    if weights is not None:
        terms, slopes = terms * weights.to(own.dtype), slopes * weights.to(own.dtype)
    return measure_sum(wide(terms), offsets), slopes


def _cross_entropy(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    own, target, log_share = wide(scores), wide(labels).clamp(max=1), torch.nn.functional.logsigmoid
    terms = -target * log_share(own) - (1 - target) * log_share(-own)
    return segment_sum(terms if weights is None else terms * wide(weights), offsets)


_SQUARES = replace(formula_loss("mse_loss", _squares), sums=_square_sums)
_CROSS_ENTROPY = replace(formula_loss("bce_loss", _cross_entropy), sums=_entropy_sums)
_ORDINAL = replace(_CROSS_ENTROPY, name="ordinal_loss")

"""Cross entropies of a softmax over the list: of gains, with a polynomial term, of every entry in its own softmax."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.domination import domination_products, domination_sums
from torchrank.functional.gains import Gain, check_gains, gain_of
from torchrank.functional.losses.layout import LOWEST, Layout, lay_out, narrow
from torchrank.functional.operations import ListLoss, formula_loss, readable
from torchrank.functional.ragged import per_entry, read, segment_logsumexp, segment_sum, wide
from torchrank.functional.ranking import check_lists, check_weights, ratio


@takes_arrays
def softmax_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    gain: Gain = "linear",
    normalize: bool = False,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Softmax cross entropy: -sum of g_i log softmax(s)_i over the list, g_i = w_i gain(y_i).

    The gains are not normalised, as in rax and TF-Ranking: a list with more relevance weighs more. With `normalize` the
    target is g_i / sum of g, as in the ListNet of allRank for binary labels, and every list weighs the same. A list
    without gain is 0. A list of several entries with one distinct label above 0 has a loss too, which is smallest if
    all scores are equal.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        gain: the gain of a label: "linear" is the label itself, "exp2" is 2^y - 1; or a function of the labels.
        normalize: whether the gains of a list are divided by their sum.
        weights: importance w of each entry, `(N,)`, which multiplies its gain; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length, num_pairs: sizes of the batch, which this loss does not need.
        num_grades: labels are the integers 0..num_grades-1, which saves a look at them if gains are exponential.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([1.4076])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    check_gains(labels, gain, num_grades)
    return _SOFTMAX(scores, labels, offsets, weights, list_weights, gain=gain, normalize=normalize)


@takes_arrays
def poly1_softmax_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    epsilon: float = 1.0,
    gain: Gain = "linear",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """PolyLoss of a softmax: `softmax_loss` + epsilon (1 - p), p the probability of the target (Leng et al. 2022).

    With g_i = w_i gain(y_i), p is the sum of softmax(s)_i g_i / sum of g. As in rax the target is uniform if all gains
    of a list are 0: then the value is epsilon (1 - 1/n) and its slopes are 0.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        epsilon: the weight of the polynomial term.
        gain: the gain of a label: "linear" is the label itself, "exp2" is 2^y - 1; or a function of the labels.
        weights: importance w of each entry, `(N,)`, which multiplies its gain; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length, num_pairs: sizes of the batch, which this loss does not need.
        num_grades: labels are the integers 0..num_grades-1, which saves a look at them if gains are exponential.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> poly1_softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([2.1629])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    check_gains(labels, gain, num_grades)
    return _POLY1(scores, labels, offsets, weights, list_weights, gain=gain, epsilon=epsilon)


@takes_arrays
def unique_softmax_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    gain: Gain = "exp2",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Every entry in a softmax with the less relevant ones: sum of g_i log(1 + sum of exp(s_j - s_i) over y_j < y_i).

    g_i = w_i gain(y_i) (Zhu & Klabjan 2020). Entries with equal labels do not compete, so a list with one distinct
    label is 0. With a gain of 1 it is the domination loss. O(N) for grades, O(N log N) for real-valued labels.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        gain: the gain of a label: "exp2" is 2^y - 1, as in rax, "linear" the label itself; or a function of the labels.
        weights: importance w of each entry, `(N,)`, which multiplies its gain; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form, and so is the second derivative.

    Example:
        >>> unique_softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([2, 1, 0]), torch.tensor([0, 3]))
        tensor([6.3497])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    check_gains(labels, gain, num_grades)
    sizes = {"max_length": max_length, "num_grades": num_grades}
    return _UNIQUE(scores, labels, offsets, wide(_gains(labels, weights, gain)), list_weights, margin=None, **sizes)


def _gains(labels: Tensor, weights: Tensor | None, gain: Gain) -> Tensor:
    gains = labels if gain == "linear" else gain_of(labels, gain)
    return gains if weights is None else wide(gains) * wide(weights)


# in closed form: slopes T p - g, with T the sum of the gains g and p the shares


def _softmax_sums(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, *, gain: Gain, normalize: bool
) -> tuple[Tensor, Tensor]:
    own, lists = narrow(scores), lay_out(scores, offsets)
    shares, target, total, loss = _entropy(own, _gains(labels, weights, gain), lists)
    slopes = shares.mul_(lists.each(total).to(own.dtype)).sub_(target)
    if normalize:
        share = ratio(torch.ones_like(total), total, 0.0)
        loss, slopes = loss * share, slopes * lists.each(share.to(own.dtype))
    return _taught(loss, slopes, total, lists)


def _poly1_sums(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, *, gain: Gain, epsilon: float
) -> tuple[Tensor, Tensor]:
    own, lists = narrow(scores), lay_out(scores, offsets)
    shares, target, total, loss = _entropy(own, _gains(labels, weights, gain), lists)
    part = ratio(torch.ones_like(total), total, 0.0)
    hit = lists.sum(shares * target) * part
    pull = lists.each((total + epsilon * hit).to(own.dtype)) - target * lists.each((epsilon * part).to(own.dtype))
    loss, slopes = _taught(loss + epsilon * (1 - hit), shares * pull - target, total, lists)
    lengths = wide(offsets.diff())
    return torch.where(total > 0, loss, epsilon * (1 - 1 / lengths.clamp(min=1)) * (lengths > 0)), slopes


def _entropy(scores: Tensor, gains: Tensor, lists: Layout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Laid out the shares and the gains, `(Q,)` the sum of the gains and the loss: no term of it is negative."""
    low, target = lists.enter(scores, LOWEST), lists.enter(gains.to(scores.dtype))
    low -= lists.each(lists.highest(low))
    shares, log_mass = lists.shares(low)
    total, linear = lists.sum(target), lists.sum(low.mul_(target))
    return shares, target, total, total * log_mass - linear


def _taught(loss: Tensor, slopes: Tensor, total: Tensor, lists: Layout) -> tuple[Tensor, Tensor]:
    """0 for lists without gain, whatever their scores are; slopes of finite scores are 0 there already."""
    learns, slopes = total > 0, lists.leave(slopes)
    if not (readable(slopes) and math.isfinite(read(slopes.sum()))):
        slopes = torch.where(per_entry(learns, lists.offsets, len(slopes)), slopes, 0.0)
    return torch.where(learns, loss, 0.0), slopes


# as operations that torch can differentiate, in float64


def _softmax(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, *, gain: Gain, normalize: bool
) -> Tensor:
    *_, total, loss = _formula(scores, _gains(labels, weights, gain), offsets)
    return loss * ratio(torch.ones_like(total), total, 0.0) if normalize else loss


def _poly1(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, *, gain: Gain, epsilon: float
) -> Tensor:
    log_shares, target, total, loss = _formula(scores, _gains(labels, weights, gain), offsets)
    lengths = per_entry(wide(offsets.diff()), offsets, len(scores))
    target = torch.where(per_entry(total > 0, offsets, len(scores)), target, 1 / lengths)
    hit = segment_sum(target * log_shares.exp(), offsets) * ratio(torch.ones_like(total), total, 1.0)
    return loss + epsilon * (1 - hit) * (offsets.diff() > 0)


def _formula(scores: Tensor, gains: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    target = wide(gains)
    total = segment_sum(target, offsets)
    own = torch.where(per_entry(total > 0, offsets, len(scores)), wide(scores), 0.0)
    log_shares = own - per_entry(segment_logsumexp(own, offsets), offsets, len(own))
    return log_shares, target, total, -segment_sum(target * log_shares, offsets)


_UNIQUE = ListLoss("unique_softmax_loss", domination_sums, domination_products)
_SOFTMAX = replace(formula_loss("softmax_loss", _softmax), sums=_softmax_sums)
_POLY1 = replace(formula_loss("poly1_softmax_loss", _poly1), sums=_poly1_sums)

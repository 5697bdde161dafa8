"""Softmax losses: softmax cross entropy, ListNet, PolyLoss, unique softmax, ListMLE."""

from typing import Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.autograd import diagonal_of
from torchrank.functional.lists import Lists, Weighted, doublings, loss
from torchrank.functional.losses.domination import domination_diagonal, domination_terms
from torchrank.functional.ranking import Discount, Gain, check_gains, discount_of, gain_of, ratio


@loss
def softmax_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    gain: Gain = "linear",
    normalize: bool = False,
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """Softmax cross entropy: -sum of g_i log softmax(s)_i over the list, g_i = w_i gain(y_i).

    The gains are not normalised, as in rax and TF-Ranking: a list with more relevance weighs more. With `normalize` the
    target is g_i / sum of g, as in the ListNet of allRank for binary labels, and every list weighs the same. A list
    without gain is 0. A list of several entries with one distinct label above 0 has a loss too, which is smallest if
    all scores are equal.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        gain: the gain of a label: "linear" is the label itself, "exp2" is 2^y - 1; or a function of the labels.
        normalize: whether the gains of a list are divided by their sum.
        weights: importance w of each entry, `(N,)`, which multiplies its gain; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at labels and weights.

    Example:
        >>> softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([1.4076])
    """
    lists: Lists = offsets
    gains = _gains(labels, lists, gain, weights)
    total = lists.sum(gains)
    entropy = lists.sum(-gains * lists.log_softmax(_scores_with_target(scores, total, lists)))
    return ratio(entropy, total, 0.0) if normalize else entropy


@loss
def listnet_loss(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """ListNet: cross entropy of softmax(labels) and softmax(scores) over the list (Cao et al. 2007, top one).

    A list with one distinct label has loss 0: it says nothing about the order.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance of each entry, `(N,)`, by which its share of softmax(labels) is multiplied before the shares
            are divided by their sum: rax's `softmax_loss` of exp(labels). A list whose weights are all 0 has loss 0.
        list_weights: importance of each list, `(Q,)`, by which its loss is multiplied.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at labels and weights.

    Example:
        >>> listnet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    lists: Lists = offsets
    target = label_shares(labels, lists, weights)
    return lists.sum(-target * lists.log_softmax(_scores_with_target(scores, lists.sum(target), lists)))


@loss
def poly1_softmax_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    epsilon: float = 1.0,
    gain: Gain = "linear",
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """PolyLoss of a softmax: `softmax_loss` + epsilon (1 - p), p the probability of the target (Leng et al. 2022).

    With g_i = w_i gain(y_i), p is the sum of softmax(s)_i g_i / sum of g. As in rax the target is uniform if all gains
    of a list are 0: then the value is epsilon (1 - 1/n) and its gradient is 0.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        epsilon: the weight of the polynomial term.
        gain: the gain of a label: "linear" is the label itself, "exp2" is 2^y - 1; or a function of the labels.
        weights: importance w of each entry, `(N,)`, which multiplies its gain; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at labels and weights.

    Example:
        >>> poly1_softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([1, 0, 0]), torch.tensor([0, 3]))
        tensor([2.1629])
    """
    lists: Lists = offsets
    gains = _gains(labels, lists, gain, weights)
    total, lengths = lists.sum(gains), wide(lists.offsets.diff())
    log_shares = lists.log_softmax(_scores_with_target(scores, total, lists))
    hit = ratio(lists.sum(gains * log_shares.exp()), total, 0.0)
    hit = torch.where(total > 0, hit, 1 / lengths.clamp(min=1))
    return epsilon * (1 - hit) * (lengths > 0) - lists.sum(gains * log_shares)


@loss
def unique_softmax_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    gain: Gain = "exp2",
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """A softmax of each entry against the less relevant ones: sum of g_i log(1 + sum of exp(s_j - s_i) over y_j < y_i).

    g_i = w_i gain(y_i) (Zhu & Klabjan 2020). Entries with equal labels do not compete, so a list with one distinct
    label is 0. With a gain of 1 it is the domination loss. O(N) for grades, O(N log N) for real-valued labels.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        gain: the gain of a label: "exp2" is 2^y - 1, as in rax, "linear" the label itself; or a function of the labels.
        weights: importance w of each entry, `(N,)`, which multiplies its gain; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at the gains.

    Example:
        >>> unique_softmax_loss(torch.tensor([2.0, 1.0, 3.0]), torch.tensor([2, 1, 0]), torch.tensor([0, 3]))
        tensor([6.3497])
    """
    lists: Lists = offsets
    return lists.sum(_gains(labels, lists, gain, weights) * domination_terms(wide(scores), labels.detach(), lists))


def label_shares(labels: Tensor, lists: Lists, weights: Tensor | None = None) -> Tensor:
    """The softmax of the labels of each list, times the weights and divided by their sum, `(N,)` in float64; 0 in lists
    without two different labels or without weight, which say nothing about the order."""
    values, scale = wide(labels), None if weights is None else wide(weights)
    several = lists.several(labels)
    peak = lists.max(values.detach() if scale is None else torch.where(scale.detach() > 0, values.detach(), -torch.inf))
    shares = torch.exp(torch.clamp(values - lists.each(peak), max=0))
    if scale is not None:
        several, shares = several & (peak > -torch.inf), shares * scale
    shares = torch.where(lists.each(several), shares, 0.0)
    return shares / lists.each(lists.sum(shares)).clamp(min=torch.finfo(shares.dtype).tiny)


def _gains(labels: Tensor, lists: Lists, gain: Gain, weights: Tensor | None) -> Tensor:
    check_gains(labels, gain, lists.grades)
    return gain_of(labels, gain) if weights is None else gain_of(labels, gain) * wide(weights)


def _scores_with_target(scores: Tensor, total: Tensor, lists: Lists) -> Tensor:
    """The scores in float64, and 0 in lists without a target, whose gradient is then 0 for any scores."""
    return torch.where(lists.each(total.detach() > 0), wide(scores), 0.0)


@diagonal_of(softmax_loss)
def _softmax_diagonal(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, *, gain: Gain, normalize: bool
) -> Tensor:
    total = lists.sum(_gains(labels, lists, gain, weights))
    shares = lists.log_softmax(_scores_with_target(scores, total, lists)).exp()
    return lists.each(wide(total > 0) if normalize else total) * shares * (1 - shares)


@diagonal_of(listnet_loss)
def _listnet_diagonal(scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None) -> Tensor:
    total = lists.sum(label_shares(labels, lists, weights))
    shares = lists.log_softmax(_scores_with_target(scores, total, lists)).exp()
    return lists.each(total) * shares * (1 - shares)


@diagonal_of(poly1_softmax_loss)
def _poly1_diagonal(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, *, epsilon: float, gain: Gain
) -> Tensor:
    gains = _gains(labels, lists, gain, weights)
    total = lists.sum(gains)
    shares = lists.log_softmax(_scores_with_target(scores, total, lists)).exp()
    target = gains * lists.each(ratio(torch.ones_like(total), total, 0.0))
    above = target - lists.each(lists.sum(target * shares))
    return lists.each(total) * shares * (1 - shares) - epsilon * shares * above * (1 - 2 * shares)


@diagonal_of(unique_softmax_loss)
def _unique_diagonal(scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, *, gain: Gain) -> Tensor:
    return domination_diagonal(scores, labels, lists, _gains(labels, lists, gain, weights))


# ------------------------------------------------------------------------------------- ListMLE: a softmax at each rank

WIDEST = 600.0  # range of scores within which sums of exponentials and their inverses are numbers of float64


@loss
def listmle_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    discount: Discount | None = None,
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """ListMLE: -log of the Plackett-Luce probability of the order by descending label (Xia et al. 2008).

    This is the sum over the ranks r of log(sum of exp(s_j) over the entries j at ranks r, r + 1, ...) - s_(r), and O(N)
    after the sort. Entries with equal labels keep their order, as in rax without a key; so a list with one distinct
    label has a loss too. To break such ties at random, as TF-Ranking and allRank do, shuffle the entries of the lists.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        discount: the weight of each rank, which makes it position-aware (p-ListMLE, Lan et al. 2014): "log2p1" is
            1/log2(1 + r), "letor" the discount of the LETOR tools; or a function of the ranks, from 1 on. None weighs
            all ranks the same. The weights 2^(n - r) - 1 of the paper overflow for a list of 1,025 entries;
            `lambda ranks: 0.5**ranks` falls as they do.
        weights: importance of each entry, `(N,)`, which multiplies the term of its rank; None is 1. (rax has none.)
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at the weights.

    Example:
        >>> listmle_loss(torch.tensor([0.5, 0.3, 5.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 2, 3]))
        tensor([0.5981, 0.0000])
    """
    lists: Lists = offsets
    _, ordered, factors = _ordered(scores, labels, lists, discount, weights)
    return lists.sum(factors * (_log_remaining(ordered, lists) - ordered))


def _ordered(
    scores: Tensor, labels: Tensor, lists: Lists, discount: Discount | None, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The order of the entries by descending label, and in this order their scores, less the highest of the list, and
    their factors, in float64."""
    order = lists.order(labels, grades=lists.grades)
    ordered = wide(scores).index_select(0, order)
    factors = torch.ones_like(ordered) if weights is None else wide(weights).index_select(0, order)
    if discount is not None:
        factors = factors * discount_of(lists.positions + 1, discount)
    return order, ordered - lists.each(lists.max(ordered.detach())), factors


def _log_remaining(scores: Tensor, lists: Lists) -> Tensor:
    """log of the sum of exp from each entry of its list on; in doubling steps if the sums might leave the range of
    float64, which takes twice the time."""
    known = host(scores)
    if known is not None and (known > -WIDEST).all():
        return lists.remaining(scores.exp()).log()
    return _log_running(scores.flip(0), lists.backwards).flip(0)


def _log_running(values: Tensor, lists: Lists) -> Tensor:
    """log of the sum of exp up to each entry of its list."""
    index, position = torch.arange(len(values), device=values.device), lists.positions
    for bit in range(doublings(lists.bound)):
        earlier = values.index_select(0, (index - 2**bit).clamp(min=0))
        terms = torch.stack([values, torch.where(position >= 2**bit, earlier, -torch.inf)])
        values = terms.logsumexp(0)  # the second derivative of logaddexp is nan at -inf
    return values


@diagonal_of(listmle_loss)
def _diagonal(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, *, discount: Discount | None
) -> Tensor:
    """The softmax at rank r has the diagonal c_r p (1 - p) at every entry from r on."""
    order, ordered, factors = _ordered(scores, labels, lists, discount, weights)
    rest = _log_remaining(ordered, lists)
    once, twice = (torch.exp(n * ordered + _log_running(factors.log() - n * rest, lists)) for n in (1, 2))
    return torch.empty_like(ordered).scatter(0, order, once - twice)

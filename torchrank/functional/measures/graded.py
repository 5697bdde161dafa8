"""Measures of graded relevance: gains of labels and discounts of ranks."""

import math
from typing import Unpack

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.conventions import GRADED, OPTIONAL, in_table
from torchrank.functional.lists import Lists, Weighted, measure
from torchrank.functional.ranking import (
    FEW,
    Discount,
    Gain,
    Ranking,
    average_gains,
    check_gains,
    dcg_at,
    discount_of,
    gain_of,
    ideal_dcg_at,
    ideal_labels,
    rank,
    ratio,
)


def ndcg_of(
    ranking: Ranking, cuts: list[int | None], *, gain: Gain, discount: Discount, ties: str, empty: float, short: str
) -> list[Tensor]:
    if short != "pad":
        check_choice(("pad", "zero"), short=short)
    ordered, order_gain = _ordered(ranking, gain, ties)
    labels, lists = ranking.best()
    if ranking.weights is not None:
        labels, lists, gain = ranking.gains(gain), lists.regraded(0), "linear"
    alike = ordered.dtype == labels.dtype and order_gain == gain and lists.offsets is ranking.lists.offsets
    if alike and ranking.given is None and len(labels) <= FEW:
        both = torch.stack([ordered, ideal_labels(labels, lists, gain)])
        pairs = dcg_at(both, lists, cuts, gain=gain, discount=discount)
    else:
        actual = dcg_at(ordered, ranking.lists, cuts, gain=order_gain, discount=discount, ranks=ranking.given)
        ideal = ideal_dcg_at(labels, lists, cuts, gain=gain, discount=discount)
        pairs = list(map(torch.stack, zip(actual, ideal, strict=True)))
    values = [ratio(pair[0], pair[1], empty) for pair in pairs]
    if short == "zero":
        lengths = ranking.lengths
        return [v if k is None else torch.where(lengths < k, 0.0, v) for k, v in zip(cuts, values, strict=True)]
    return values


@in_table("ndcg", of=ndcg_of, cut=OPTIONAL, needs=GRADED, from_ranks=True, metric="NDCG")
@measure
def ndcg(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, gain: Gain = "exp2",
    discount: Discount = "log2p1", ties: str = "stable", empty: float = math.nan, short: str = "pad",
    num_relevant: Array = None, judged: tuple[Array, Array] | None = None, weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Normalised discounted cumulative gain at k: DCG over the best DCG that any order of the list has at k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`, from 0 up: gains of negative labels would be negative.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        discount: "log2p1" (1/log2(1 + rank)), "letor" (1, 1, 1/log2(3), ...), or a function of the ranks.
        ties: "stable" keeps the order of equal scores, "average" is the exact mean over all their orders (McSherry &
            Najork 2008; scikit-learn), "worst" puts lower labels first.
        empty: the value of a list whose ideal DCG at k is 0.
        short: "pad" treats a list shorter than k as it is; "zero" is the rule of the LETOR tools: it counts 0.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`. It says enough
            where labels are 0 and 1; grades need `judged`.
        judged: labels `(M,)` of all judged documents of each query, retrieved or not, and their offsets `(Q + 1,)`; the
            ideal order is made of them, as in trec_eval. None: the list holds all of them.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order, as in rax.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        NDCG@k of each list, `(Q,)`.

    Example:
        >>> ndcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]))
        tensor([0.6309,    nan])
    """
    ranking = _rank(scores, labels, offsets, k, ties, gain, weights, num_relevant, judged)
    return ndcg_of(ranking, [k], gain=gain, discount=discount, ties=ties, empty=empty, short=short)[0]


def mean_ndcg_of(ranking: Ranking, *, gain: Gain, discount: Discount, ties: str, empty: float) -> Tensor:
    lists, weight = ranking.lists, discount_of(ranking.ranks, discount)
    gains = ranking.gains(gain)
    actual = lists.cumsum((average_gains(ranking, gains) if ties == "average" else gains) * weight)
    ideal = lists.cumsum(_ideal_gains(ranking, gain) * weight)
    # a list with a relevant entry has one at the top of its ideal order, so all its cut-offs are defined or none is
    at_rank = ratio(actual, ideal, empty)
    return ratio(lists.sum(at_rank), wide(lists.offsets.diff()), empty)


@in_table("mean_ndcg", of=mean_ndcg_of, needs=GRADED, metric="MeanNDCG")
@measure
def mean_ndcg(
    scores: Array, labels: Array, offsets: Array = None, *, gain: Gain = "exp2", discount: Discount = "log2p1",
    ties: str = "stable", empty: float = math.nan, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """LETOR's MeanNDCG: the mean of NDCG@r over r = 1..n, the length of the list.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        discount: "log2p1" (1/log2(1 + rank)), "letor" (1, 1, 1/log2(3), ...), or a function of the ranks. The numbers
            of the LETOR tools need `discount="letor", empty=0`.
        ties: "stable", "average" or "worst", as in `ndcg`.
        empty: the value of a list without relevant entries.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order, as in rax.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        MeanNDCG of each list, `(Q,)`.

    Example:
        >>> mean_ndcg(torch.tensor([2.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))
        tensor([0.3155])
    """
    ranking = _rank(scores, labels, offsets, None, ties, gain, weights)
    return mean_ndcg_of(ranking, gain=gain, discount=discount, ties=ties, empty=empty)


def dcg_of(
    ranking: Ranking, cuts: list[int | None], *, gain: Gain, discount: Discount, ties: str, empty: float
) -> list[Tensor]:
    defined, (ordered, order_gain) = _has_gain(ranking, gain), _ordered(ranking, gain, ties)
    values = dcg_at(ordered, ranking.lists, cuts, gain=order_gain, discount=discount, ranks=ranking.given)
    return [torch.where(defined, value, empty) for value in values]


@in_table("dcg", of=dcg_of, cut=OPTIONAL, needs=GRADED, from_ranks=True, metric="DCG", highest=None)
@measure
def dcg(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, gain: Gain = "exp2",
    discount: Discount = "log2p1", ties: str = "stable", empty: float = math.nan, weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Discounted cumulative gain at k: the sum of gain(label) * discount(rank) over the top k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        discount: "log2p1" (1/log2(1 + rank)), "letor" (1, 1, 1/log2(3), ...), or a function of the ranks.
        ties: "stable", "average" or "worst", as in `ndcg`.
        empty: the value of a list without positive gains. `gain="linear", ties="average", empty=0` is scikit-learn's.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order, as in rax.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        DCG@k of each list, `(Q,)`.

    Example:
        >>> dcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 2, 1]), torch.tensor([0, 3]))
        tensor([2.3928])
    """
    ranking = _rank(scores, labels, offsets, k, ties, gain, weights)
    return dcg_of(ranking, [k], gain=gain, discount=discount, ties=ties, empty=empty)[0]


def err_of(ranking: Ranking, k: int | None, *, max_label: float, empty: float) -> Tensor:
    labels, lists, ranks = ranking.labels, ranking.lists, ranking.ranks
    if (known := host(labels)) is not None and (known > max_label).any():
        raise ValueError(f"max_label must be the top label of the data, at least {known.max():g}, got {max_label}")
    check_gains(labels, "exp2", lists.grades)
    satisfied = gain_of(labels, "exp2") / 2.0**max_label
    # R < 1 up to the top label, but it may be rounded to 1. The running sum is over the entries before this one.
    missed = torch.log1p(-satisfied).clamp(min=-800.0)
    before = lists.cumsum(missed) - missed
    terms = satisfied * torch.exp(before) / ranks
    terms = terms if ranking.weights is None else terms * ranking.weights
    terms = terms if k is None else torch.where(ranks <= k, terms, 0)
    return torch.where(_has_gain(ranking, "linear"), lists.sum(terms), empty)


@in_table(
    "err", of=err_of, cut=OPTIONAL, needs=GRADED, from_ranks=True, metric="ExpectedReciprocalRank",
    asks="err needs max_label, the top label of the data set (4 for web data, 2 for MQ2007 and MQ2008)",
)  # fmt: skip
@measure
def err(
    scores: Array, labels: Array, offsets: Array = None, *, max_label: float, k: int | None = None,
    empty: float = math.nan, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Expected reciprocal rank (Chapelle et al. 2009).

    sum_i 1/i R_i prod_{j<i} (1 - R_j) with R = (2^y - 1) / 2^max_label.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        max_label: the top label of the data set (4 for web data, 2 for OHSUMED and MQ200x), not of the batch.
        k: the number of ranks that count; None counts the whole list.
        empty: the value of a list without positive labels.
        weights: importance of each entry, `(N,)`, which multiplies its term of the sum; the stopping probabilities
            themselves are not weighted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        ERR@k of each list, `(Q,)`.

    Example:
        >>> err(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), torch.tensor([0, 2]), max_label=1)
        tensor([0.5000])
    """
    return err_of(rank(scores, labels, offsets, k, weights=weights), k, max_label=max_label, empty=empty)


def arp_of(ranking: Ranking, *, empty: float) -> Tensor:
    gains, lists = ranking.gains("linear"), ranking.lists
    return ratio(lists.sum(gains * ranking.ranks), lists.sum(gains), empty)


@in_table("arp", "average_relevance_position", of=arp_of, needs=GRADED, better="lower", from_ranks=True, highest=None)
@measure
def arp(
    scores: Array, labels: Array, offsets: Array = None, *, empty: float = math.nan, weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Average relevance position: the mean rank of the entries, each counted by its label. Smaller is better.

    sum_i y_i rank_i / sum_i y_i, as in TF-Ranking (Zhu et al. 2004).

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        empty: the value of a list without positive labels.
        weights: importance of each entry, `(N,)`, which multiplies its label.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        The mean rank of each list, from 1, `(Q,)`.

    Example:
        >>> arp(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 2]), torch.tensor([0, 3]))
        tensor([2.3333])
    """
    return arp_of(rank(scores, labels, offsets, weights=weights), empty=empty)


def _rank(
    scores: Tensor, labels: Tensor, lists: Lists, k: int | None, ties: str, gain: Gain, weights: Tensor | None,
    num_relevant: Tensor | None = None, judged: tuple[Array, Array] | None = None,
) -> Ranking:  # fmt: skip
    """`rank`, with the lower gains first among equal scores if ties="worst"."""
    if ties != "stable":
        check_choice(("stable", "average", "worst"), ties=ties)
    worst = None
    if ties == "worst":
        worst = labels if weights is None else gain_of(labels, gain) * wide(weights)
    return rank(scores, labels, lists, k, weights=weights, num_relevant=num_relevant, judged=judged, tiebreak=worst)


def _ordered(ranking: Ranking, gain: Gain, ties: str) -> tuple[Tensor, Gain]:
    """The labels in rank order and the gain that is taken of them: where they have weights or ties, gains already."""
    if ties != "average" and ranking.weights is None:
        check_gains(ranking.labels, gain, ranking.lists.grades)
        return ranking.labels, gain
    gains = ranking.gains(gain)
    return (average_gains(ranking, gains) if ties == "average" else gains), "linear"


def _has_gain(ranking: Ranking, gain: Gain) -> Tensor:
    """Which queries have a document with a positive gain, `(Q,)`."""
    if ranking.judged is None:
        return ranking.lists.max(ranking.gains(gain)) > 0
    labels, lists = ranking.judged
    return lists.max(gain_of(labels, gain)) > 0


def _ideal_gains(ranking: Ranking, gain: Gain) -> Tensor:
    """The gain at each rank of the ideal order, `(N,)`: that of the judged documents may be shorter than the list."""
    if ranking.weights is not None:
        return ideal_labels(ranking.gains(gain), ranking.lists.regraded(0), "linear")
    labels, lists = ranking.best()
    gains = gain_of(ideal_labels(labels, lists, gain), gain)
    if lists is ranking.lists:
        return gains
    place, ids = ranking.ranks.long() - 1, ranking.lists.ids
    slot = lists.offsets[ids] + place
    inside = place < lists.offsets.diff()[ids]
    return torch.where(inside, torch.nn.functional.pad(gains, (0, 1))[slot.clamp(max=len(gains))], 0)

"""Measures of graded relevance: gains of labels and discounts of ranks."""

import math

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.gains import Discount, Gain, check_gains, discount_of, gain_of, ideal_dcg, ideal_labels
from torchrank.functional.gains import dcg as ranked_dcg
from torchrank.functional.operations import readable
from torchrank.functional.ragged import measure_sum, read, segment_cumsum, segment_sum, wide
from torchrank.functional.ranking import (
    Ranking,
    average_gains,
    check_cutoff,
    finish,
    rank,
    rank_with_ties,
    ratio,
    weighted,
    with_judged,
)


@takes_arrays
def ndcg(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    gain: Gain = "exp2",
    discount: Discount = "log2p1",
    ties: str = "stable",
    empty: float = math.nan,
    short: str = "pad",
    num_relevant: Tensor | None = None,
    judged: tuple[Tensor, Tensor] | None = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Normalised discounted cumulative gain at k: DCG over the best DCG that any order of the list has at k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`, from 0 up: gains of negative labels would be negative.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        discount: "log2p1" (1/log2(1 + rank)), "letor" (1, 1, 1/log2(3), ...), or a function of the ranks.
        ties: "stable" keeps the order of equal scores, "average" is the exact mean over all their orders (McSherry &
            Najork 2008; scikit-learn), "worst" puts lower labels first.
        empty: the value of a list whose ideal DCG at k is 0.
        short: "pad" treats a list shorter than k as it is; "zero" is the rule of the LETOR tools: it counts 0.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved. It says enough
            where labels are 0 and 1; grades need `judged`.
        judged: labels `(M,)` of all judged documents of each query, retrieved or not, and their offsets `(Q + 1,)`; the
            ideal order is made of them, as in trec_eval. None: the list holds all of them.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order, as in rax.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        NDCG@k of each list, `(Q,)`.

    Example:
        >>> ndcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]))
        tensor([0.6309,    nan])
    """
    ranking = rank_with_ties(
        scores,
        labels,
        offsets,
        ties,
        gain=gain,
        weights=weights,
        list_weights=list_weights,
        max_length=max_length,
        num_grades=num_grades,
    )
    ranking = with_judged(ranking, num_relevant, judged)
    values = ndcg_at(ranking, [k], gain=gain, discount=discount, ties=ties, empty=empty, short=short)
    return finish(values[0], scores, list_weights)


def ndcg_at(
    ranking: Ranking,
    cutoffs: list[int | None],
    *,
    gain: Gain,
    discount: Discount,
    ties: str,
    empty: float,
    short: str,
) -> list[Tensor]:
    """NDCG at several cut-offs from one ranking, float64, `(Q,)` each."""
    check_choice(("pad", "zero"), short=short)
    ranking, gain = weighted(ranking, gain)
    for k in cutoffs:
        check_cutoff(k)
    actual, best = dcg_at(ranking, cutoffs, gain=gain, discount=discount, ties=ties), ranking.best
    ideal = ideal_dcg(
        best.labels,
        best.offsets,
        cutoffs=cutoffs,
        gain=gain,
        discount=discount,
        longest=best.longest,
        num_grades=best.num_grades,
    )
    values = [ratio(a, b, empty) for a, b in zip(actual, ideal, strict=True)]
    if short == "zero":
        lengths = ranking.lengths
        values = [v if k is None else torch.where(lengths < k, 0.0, v) for k, v in zip(cutoffs, values, strict=True)]
    return values


@takes_arrays
def dcg(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    gain: Gain = "exp2",
    discount: Discount = "log2p1",
    ties: str = "stable",
    empty: float = math.nan,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Discounted cumulative gain at k: the sum of gain(label) * discount(rank) over the top k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        discount: "log2p1" (1/log2(1 + rank)), "letor" (1, 1, 1/log2(3), ...), or a function of the ranks.
        ties: "stable", "average" or "worst", as in `ndcg`.
        empty: the value of a list without positive gains. `gain="linear", ties="average", empty=0` is scikit-learn's.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order, as in rax.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        DCG@k of each list, `(Q,)`.

    Example:
        >>> dcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 2, 1]), torch.tensor([0, 3]))
        tensor([2.3928])
    """
    ranking = rank_with_ties(
        scores,
        labels,
        offsets,
        ties,
        gain=gain,
        weights=weights,
        list_weights=list_weights,
        max_length=max_length,
    )
    (value,) = dcg_at(ranking, [k], gain=gain, discount=discount, ties=ties)
    return finish(torch.where(has_gain(ranking, gain), value, empty), scores, list_weights)


def dcg_at(ranking: Ranking, cutoffs: list[int | None], *, gain: Gain, discount: Discount, ties: str) -> list[Tensor]:
    """DCG at several cut-offs from one ranking, float64, `(Q,)` each."""
    ranking, gain = weighted(ranking, gain)
    for k in cutoffs:
        check_cutoff(k)
    check_gains(ranking.labels, gain, ranking.num_grades)
    if ties == "average":
        ranked, gain = average_gains(ranking, gain), "linear"
    else:
        ranked = ranking.labels
    return ranked_dcg(
        ranked,
        ranking.offsets,
        cutoffs=cutoffs,
        gain=gain,
        discount=discount,
        longest=ranking.longest,
        ranks=ranking.given,
    )


def has_gain(ranking: Ranking, gain: Gain) -> Tensor:
    """Which queries have a document with a positive gain, `(Q,)`."""
    ranking, gain = weighted(ranking, gain)
    best = ranking.best
    return segment_sum((gain_of(best.labels, gain) > 0).long(), best.offsets) > 0


@takes_arrays
def mean_ndcg(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    gain: Gain = "exp2",
    discount: Discount = "log2p1",
    ties: str = "stable",
    empty: float = math.nan,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """LETOR's MeanNDCG: the mean of NDCG@r over r = 1..n, the length of the list.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        discount: "log2p1" (1/log2(1 + rank)), "letor" (1, 1, 1/log2(3), ...), or a function of the ranks. The numbers
            of the LETOR tools need `discount="letor", empty=0`.
        ties: "stable", "average" or "worst", as in `ndcg`.
        empty: the value of a list without relevant entries.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order, as in rax.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        MeanNDCG of each list, `(Q,)`.

    Example:
        >>> mean_ndcg(torch.tensor([2.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]), discount="letor")
        tensor([0.5000])
    """
    ranking = rank_with_ties(
        scores,
        labels,
        offsets,
        ties,
        gain=gain,
        weights=weights,
        list_weights=list_weights,
        max_length=max_length,
        num_grades=num_grades,
    )
    return finish(mean_ndcg_of(ranking, gain=gain, discount=discount, ties=ties, empty=empty), scores, list_weights)


def mean_ndcg_of(ranking: Ranking, *, gain: Gain, discount: Discount, ties: str, empty: float) -> Tensor:
    ranking, gain = weighted(ranking, gain)
    offsets, longest = ranking.offsets, ranking.longest
    check_gains(ranking.labels, gain, ranking.num_grades)
    weight = discount_of(ranking.ranks, discount)
    gains = average_gains(ranking, gain) if ties == "average" else gain_of(ranking.labels, gain)
    actual = segment_cumsum(gains * weight, offsets, max_length=longest)
    ideal = segment_cumsum(_ideal_gains(ranking, gain) * weight, offsets, max_length=longest)
    # a list with a relevant entry has one at the top of its ideal order, so all its cut-offs are defined or none is
    at_rank = ratio(actual, ideal, empty)
    return ratio(measure_sum(at_rank, offsets), wide(offsets.diff()), empty)


def _ideal_gains(ranking: Ranking, gain: Gain) -> Tensor:
    """The gain at each rank of the ideal order, `(N,)`: that of the judged documents may be shorter than the list."""
    best = ranking.best
    ordered = ideal_labels(best.labels, best.offsets, gain=gain, longest=best.longest, num_grades=best.num_grades)
    gains = gain_of(ordered, gain)
    if ranking.judged is None:
        return gains
    place = ranking.ranks.long() - 1
    slot = best.offsets[ranking.ids] + place
    inside = place < best.offsets.diff()[ranking.ids]
    return torch.where(inside, torch.nn.functional.pad(gains, (0, 1))[slot.clamp(max=len(gains))], 0)


@takes_arrays
def err(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    max_label: float,
    k: int | None = None,
    empty: float = math.nan,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Expected reciprocal rank (Chapelle et al. 2009).

    sum_i 1/i R_i prod_{j<i} (1 - R_j) with R = (2^y - 1) / 2^max_label.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        max_label: the top label of the data set (4 for web data, 2 for OHSUMED and MQ200x), not of the batch.
        k: the number of ranks that count; None counts the whole list.
        empty: the value of a list without positive labels.
        weights: importance of each entry, `(N,)`, which multiplies its term of the sum; what a
            reader leaves behind has no weights.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        ERR@k of each list, `(Q,)`.

    Example:
        >>> err(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), torch.tensor([0, 2]), max_label=1)
        tensor([0.5000])
    """
    ranking = rank(scores, labels, offsets, weights=weights, list_weights=list_weights, max_length=max_length)
    return finish(err_of(ranking, k, max_label=max_label, empty=empty), scores, list_weights)


def err_of(ranking: Ranking, k: int | None, *, max_label: float, empty: float) -> Tensor:
    check_cutoff(k)
    labels, offsets = ranking.labels, ranking.offsets
    if readable(labels) and read((labels > max_label).any()):
        raise ValueError(f"max_label must be the top label of the data, at least {read(labels.max())}, got {max_label}")
    check_gains(labels, "exp2", ranking.num_grades)
    satisfied = gain_of(labels, "exp2") / 2.0**max_label
    # R < 1 up to the top label, but it may be rounded to 1. The running sum is over the entries before this one.
    missed = torch.log1p(-satisfied).clamp(min=-800.0)
    before = segment_cumsum(missed, offsets, max_length=ranking.longest) - missed
    terms = satisfied * torch.exp(before) / ranking.ranks
    terms = terms if ranking.weights is None else terms * ranking.weights
    if k is not None:
        terms = torch.where(ranking.ranks <= k, terms, 0)
    return torch.where(has_gain(ranking, "linear"), measure_sum(terms, offsets), empty)


@takes_arrays
def arp(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    empty: float = math.nan,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Average relevance position: the mean rank of the entries, each counted by its label. Smaller is better.

    sum_i y_i rank_i / sum_i y_i, as in TF-Ranking (Zhu et al. 2004).

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        empty: the value of a list without positive labels.
        weights: importance of each entry, `(N,)`, which multiplies its label.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which is only checked.

    Returns:
        The mean rank of each list, from 1, `(Q,)`.

    Example:
        >>> arp(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 2]), torch.tensor([0, 3]))
        tensor([2.3333])
    """
    ranking = rank(scores, labels, offsets, weights=weights, list_weights=list_weights, max_length=max_length)
    return finish(arp_of(ranking, empty=empty), scores, list_weights)


def arp_of(ranking: Ranking, *, empty: float) -> Tensor:
    gains = wide(weighted(ranking, "linear")[0].labels)
    return ratio(measure_sum(gains * ranking.ranks, ranking.offsets), measure_sum(gains, ranking.offsets), empty)

"""Measures of rankings: one value per list, `(Q,)`.

Lists are flat: `scores` and `labels` hold the entries of all lists one after another, and list q is
`offsets[q]:offsets[q + 1]`. Two queries, with three and with two documents:

    >>> scores = torch.tensor([0.2, 1.5, 0.7, 3.0, 1.0])
    >>> labels = torch.tensor([0, 2, 1, 0, 1])
    >>> offsets = torch.tensor([0, 3, 5])
    >>> ndcg(scores, labels, offsets, k=10)
    tensor([1.0000, 0.6309])

Many measures at once, from one sort and in the convention of another tool, are the work of `evaluate`:

    >>> from torchrank.functional import evaluate
    >>> values = evaluate(scores, labels, offsets, measures=["ndcg@10", "map"], convention="letor")
    >>> {name: value.mean().item() for name, value in values.items()}
    {'ndcg@10': 0.0, 'map': 0.75}

(In the LETOR convention NDCG@10 of a list with fewer than ten documents is 0.)

Higher scores come first; equal scores keep their order. Every measure is a sort (`rank`) and a function `*_of` of the
labels in rank order; `evaluate` calls these functions on one sort. Sums are computed in float64; the result has the
dtype of the scores (float32 for half precision). A list without relevant entries has the value `empty`, by default nan,
which `nanmean` leaves out. NaN scores are an error on CPU; on other devices, where reading them would synchronise, they
make the whole result nan.
"""

import math

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.gains import Discount, Gain, check_gains, discount_of, gain_of, ideal_dcg, ideal_labels
from torchrank.functional.gains import dcg as ranked_dcg
from torchrank.functional.operations import readable
from torchrank.functional.ragged import (
    ascents,
    dominating,
    measure_sum,
    read,
    runs,
    segment_cumsum,
    segment_sum,
    sort_within,
    wide,
)
from torchrank.functional.ranking import (
    Hits,
    Ranking,
    average_gains,
    average_hits,
    check_cutoff,
    finish,
    hits,
    levels_of,
    rank,
    rank_with_ties,
    ratio,
    with_judged,
)

# ---------------------------------------------------------------------------------------------- graded relevance


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
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        NDCG@k of each list, `(Q,)`.

    Example:
        >>> ndcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]))
        tensor([0.6309,    nan])
    """
    ranking = rank_with_ties(scores, labels, offsets, ties, max_length=max_length, num_grades=num_grades)
    ranking = with_judged(ranking, num_relevant, judged)
    values = ndcg_at(ranking, [k], gain=gain, discount=discount, ties=ties, empty=empty, short=short)
    return finish(values[0], scores)


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
        lengths = ranking.offsets.diff()
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
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        DCG@k of each list, `(Q,)`.

    Example:
        >>> dcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 2, 1]), torch.tensor([0, 3]))
        tensor([2.3928])
    """
    ranking = rank_with_ties(scores, labels, offsets, ties, max_length=max_length)
    (value,) = dcg_at(ranking, [k], gain=gain, discount=discount, ties=ties)
    return finish(torch.where(has_gain(ranking, gain), value, empty), scores)


def dcg_at(ranking: Ranking, cutoffs: list[int | None], *, gain: Gain, discount: Discount, ties: str) -> list[Tensor]:
    """DCG at several cut-offs from one ranking, float64, `(Q,)` each."""
    for k in cutoffs:
        check_cutoff(k)
    check_gains(ranking.labels, gain, ranking.num_grades)
    if ties == "average":
        ranked, gain = average_gains(ranking, gain), "linear"
    else:
        ranked = ranking.labels
    offsets, longest = ranking.offsets, ranking.longest
    return ranked_dcg(ranked, offsets, cutoffs=cutoffs, gain=gain, discount=discount, longest=longest)


def has_gain(ranking: Ranking, gain: Gain) -> Tensor:
    """Which queries have a document with a positive gain, `(Q,)`."""
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
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        MeanNDCG of each list, `(Q,)`.

    Example:
        >>> mean_ndcg(torch.tensor([2.0, 1.0]), torch.tensor([0, 1]), torch.tensor([0, 2]), discount="letor")
        tensor([0.5000])
    """
    ranking = rank_with_ties(scores, labels, offsets, ties, max_length=max_length, num_grades=num_grades)
    return finish(mean_ndcg_of(ranking, gain=gain, discount=discount, ties=ties, empty=empty), scores)


def mean_ndcg_of(ranking: Ranking, *, gain: Gain, discount: Discount, ties: str, empty: float) -> Tensor:
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
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        ERR@k of each list, `(Q,)`.

    Example:
        >>> err(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), torch.tensor([0, 2]), max_label=1)
        tensor([0.5000])
    """
    ranking = rank(scores, labels, offsets, max_length=max_length)
    return finish(err_of(ranking, k, max_label=max_label, empty=empty), scores)


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
    if k is not None:
        terms = torch.where(ranking.ranks <= k, terms, 0)
    return torch.where(has_gain(ranking, "linear"), measure_sum(terms, offsets), empty)


# ---------------------------------------------------------------------------------------------- binary relevance


def _binary(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    threshold: float,
    num_relevant: Tensor | None,
    max_length: int | None,
    k: int | None,
) -> tuple[Ranking, Hits]:
    check_cutoff(k)
    ranking = rank(scores, labels, offsets, max_length=max_length)
    return ranking, hits(ranking, threshold, num_relevant)


@takes_arrays
def average_precision(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    threshold: float = 1,
    ties: str = "stable",
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Average precision: the sum of the precisions at each relevant entry of the top k, over ALL relevant entries.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        ties: "stable" keeps the order of equal scores, "average" is the exact mean over all their orders (McSherry &
            Najork 2008).
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved, as in trec_eval;
            None: the list holds all of them.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Average precision of each list, `(Q,)`; its mean over the lists is MAP.

    Example:
        >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.8333])
    """
    check_choice(("stable", "average"), ties=ties)
    ranking, found = _binary(scores, labels, offsets, threshold, num_relevant, max_length, k)
    return finish(average_precision_of(ranking, found, k, empty=empty, ties=ties), scores)


def average_precision_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float, ties: str = "stable") -> Tensor:
    ranks = ranking.ranks
    hit, so_far = average_hits(ranking, found) if ties == "average" else (found.relevant, found.so_far)
    counted = hit if k is None else hit * (ranks <= k)
    precisions = torch.div(so_far, ranks, out=ranks).mul_(counted)
    return ratio(measure_sum(precisions, ranking.offsets), found.total, empty)


@takes_arrays
def precision(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Precision at k: the number of relevant entries in the top k over k, even if the list is shorter.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count and the divisor; None counts the whole list and divides by its length.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved: where there are
            some, a list without any has the value 0; None: the list holds all of them.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Precision of each list, `(Q,)`.

    Example:
        >>> precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), k=5)
        tensor([0.4000])
    """
    ranking, found = _binary(scores, labels, offsets, threshold, num_relevant, max_length, k)
    return finish(precision_of(ranking, found, k, empty=empty), scores)


def precision_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    lengths = ranking.offsets.diff()
    value = hits_in_top(ranking, found, k) / (lengths.clamp(min=1) if k is None else k)
    return torch.where(found.total > 0, value, empty)


def hits_in_top(ranking: Ranking, found: Hits, k: int | None) -> Tensor:
    """Relevant entries in the top k, `(Q,)`."""
    if k is None:
        return found.found
    lengths = ranking.offsets.diff()
    last = ranking.offsets[:-1] + lengths.clamp(max=k) - 1
    return torch.where(lengths > 0, torch.nn.functional.pad(found.so_far, (0, 1))[last], 0)


@takes_arrays
def recall(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Recall at k: the share of the relevant entries that are in the top k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved, as in trec_eval;
            None: the list holds all of them.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Recall of each list, `(Q,)`.

    Example:
        >>> recall(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), k=2)
        tensor([0.5000])
    """
    ranking, found = _binary(scores, labels, offsets, threshold, num_relevant, max_length, k)
    return finish(recall_of(ranking, found, k, empty=empty), scores)


def recall_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    return ratio(hits_in_top(ranking, found, k), found.total, empty)


@takes_arrays
def reciprocal_rank(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Reciprocal rank: 1 / rank of the first relevant entry; 0 if that rank is beyond k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved: where there are
            some, a list without any has the value 0; None: the list holds all of them.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Reciprocal rank of each list, `(Q,)`; its mean over the lists is MRR.

    Example:
        >>> reciprocal_rank(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    _, found = _binary(scores, labels, offsets, threshold, num_relevant, max_length, k)
    return finish(reciprocal_rank_of(found, k, empty=empty), scores)


def reciprocal_rank_of(found: Hits, k: int | None, *, empty: float) -> Tensor:
    there = found.found > 0 if k is None else (found.found > 0) & (found.first <= k)
    return torch.where(found.total > 0, torch.where(there, 1 / found.first, 0), empty)


@takes_arrays
def hit(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Hit (success) at k: 1 if there is a relevant entry in the top k, else 0.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved: where there are
            some, a list without any has the value 0; None: the list holds all of them.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        1 or 0 for each list, `(Q,)`; the mean over the lists is the hit rate.

    Example:
        >>> hit(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 3]), k=1)
        tensor([0.])
    """
    ranking, found = _binary(scores, labels, offsets, threshold, num_relevant, max_length, k)
    return finish(hit_of(ranking, found, k, empty=empty), scores)


def hit_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    return torch.where(found.total > 0, wide(hits_in_top(ranking, found, k) > 0), empty)


# ---------------------------------------------------------------------------------------------- pairs


@takes_arrays
def auc(
    scores: Tensor, labels: Tensor, offsets: Tensor, *, threshold: float = 1, max_length: int | None = None
) -> Tensor:
    """Area under the ROC curve: the share of (relevant, other) pairs in the right order; tied pairs count one half.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        threshold: entries with at least this label are relevant.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        AUC of each list, `(Q,)`; nan where one of the two classes is missing.

    Example:
        >>> auc(torch.tensor([3.0, 2.0, 2.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.7500])
    """
    return finish(auc_of(rank(scores, labels, offsets, max_length=max_length), threshold), scores)


def auc_of(ranking: Ranking, threshold: float) -> Tensor:
    return 1 - all_pairs_error_of(ranking._replace(labels=(ranking.labels >= threshold).long(), num_grades=2))


@takes_arrays
def all_pairs_error(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    ties: str = "half",
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Share of the pairs with different labels that are in the wrong order. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        ties: what a pair with equal scores counts: "half", "correct" (0) or "error" (1).
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        The error of each list, `(Q,)`; nan where there is no such pair.

    Example:
        >>> all_pairs_error(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.3333])
    """
    ranking = rank(scores, labels, offsets, max_length=max_length, num_grades=num_grades)
    return finish(all_pairs_error_of(ranking, ties), scores)


def all_pairs_error_of(ranking: Ranking, ties: str = "half") -> Tensor:
    weights = {"half": 0.5, "correct": 0.0, "error": 1.0}
    check_choice(weights, ties=ties)
    offsets = ranking.offsets
    levels, num_levels = levels_of(ranking.labels, offsets, max_length=ranking.longest, num_grades=ranking.num_grades)
    first, after = runs(ranking.scores, offsets)
    # among equal scores the higher label comes first, so that a tied pair is no ascent
    group = first * num_levels - levels
    order = sort_within(group, offsets, descending=False, max_length=ranking.longest)
    wrong, total = ascents(levels[order], offsets, num_levels=num_levels)
    _, after_same = runs(group[order], offsets)
    tied = segment_sum(after - after_same, offsets)  # entries after this one with the same score and a smaller label
    return ratio(wide(wrong) + weights[ties] * wide(tied), wide(total), math.nan)


@takes_arrays
def domination_error(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    ties: str = "correct",
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Share of the entries above the lowest label of their list that score below some entry with a smaller label.

    Dekel, Manning & Singer 2003; Stevens 2010, eq. 1. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        ties: "correct" does not count a tie as an error, as in the papers, which makes a constant scorer perfect;
            "error" counts it.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        The error of each list, `(Q,)`; nan where all labels are equal.

    Example:
        >>> domination_error(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    ranking = rank(scores, labels, offsets, max_length=max_length, num_grades=num_grades)
    return finish(domination_error_of(ranking, ties), scores)


def domination_error_of(ranking: Ranking, ties: str = "correct") -> Tensor:
    check_choice(("correct", "error"), ties=ties)
    offsets, ids = ranking.offsets, ranking.ids
    levels, num_levels = levels_of(ranking.labels, offsets, max_length=ranking.longest, num_grades=ranking.num_grades)
    first, after = runs(ranking.scores, offsets)
    # The smallest label so far, by one running minimum over all lists: each list is shifted below all lists before it,
    # so what the first entries of a list still see of those is larger than their own label, which is no error.
    lowered = levels - (ids + 1) * num_levels
    lowest = torch.nn.functional.pad(lowered.cummin(0).values, (1, 0))
    beaten = lowest[first if ties == "correct" else after] < lowered
    upper = dominating(levels, offsets)
    errors = segment_sum((beaten & upper).long(), offsets)
    return ratio(wide(errors), wide(segment_sum(upper.long(), offsets)), math.nan)

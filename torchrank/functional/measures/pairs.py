"""Measures of pairs with different labels, and of how much two orders of the same entries agree."""

from typing import Unpack

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import Array, wide
from torchrank.functional.conventions import BOTH, DIFFERENT, in_table
from torchrank.functional.lists import Lists, Weighted, check_scores, doublings, measure
from torchrank.functional.measures.binary import check_persistence
from torchrank.functional.ragged import dominating, runs
from torchrank.functional.ranking import Ranking, check_cutoff, rank, ratio

SHARES = {"half": 0.5, "correct": 0.0, "error": 1.0}  # of a pair with equal scores that counts as an error


def auc_of(ranking: Ranking, *, threshold: float) -> Tensor:
    wrong, tied, total = _pair_counts(ranking, (ranking.labels >= threshold).long(), ranking.lists.regraded(2))
    return 1 - ratio(wrong + 0.5 * tied, total)


@in_table("auc", of=auc_of, needs=BOTH, documents=2, metric="AUC")
@measure
def auc(
    scores: Array, labels: Array, offsets: Array = None, *, threshold: float = 1, weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Area under the ROC curve: the share of (relevant, other) pairs in the right order; tied pairs count one half.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        threshold: entries with at least this label are relevant.
        weights: importance of each entry, `(N,)`: a pair counts as much as its entry with the higher label, as in
            TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        AUC of each list, `(Q,)`; nan where one of the two classes is missing.

    Example:
        >>> auc(torch.tensor([3.0, 2.0, 2.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.7500])
    """
    return auc_of(rank(scores, labels, offsets, weights=weights), threshold=threshold)


def domination_error_of(ranking: Ranking, ties: str = "correct") -> Tensor:
    check_choice(("correct", "error"), ties=ties)
    lists, offsets = ranking.lists, ranking.lists.offsets
    levels, num_levels = lists.levels(ranking.labels)
    first, after = runs(ranking.scores, offsets)
    # The smallest label so far, by one running minimum over all lists: each list is shifted below all lists before it,
    # so what the first entries of a list still see of those is larger than their own label, which is no error.
    lowered = levels - (lists.ids + 1) * num_levels
    lowest = torch.nn.functional.pad(lowered.cummin(0).values, (1, 0))
    beaten = lowest[first if ties == "correct" else after] < lowered
    upper = dominating(levels, offsets)
    errors, all_upper = wide(beaten & upper), wide(upper)
    if ranking.weights is not None:
        errors, all_upper = errors * ranking.weights, all_upper * ranking.weights
    return ratio(lists.sum(errors), lists.sum(all_upper))


@in_table(
    "domination_error", of=domination_error_of, needs=DIFFERENT, documents=2, better="lower", metric="DominationError"
)
@measure
def domination_error(
    scores: Array, labels: Array, offsets: Array = None, *, ties: str = "correct", weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Share of the entries above the lowest label of their list that score below some entry with a smaller label.

    Dekel, Manning & Singer 2003; Stevens 2010, eq. 1. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        ties: "correct" does not count a tie as an error, as in the papers, which makes a constant scorer perfect;
            "error" counts it.
        weights: importance of each entry, `(N,)`, by which it is counted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        The error of each list, `(Q,)`; nan where all labels are equal.

    Example:
        >>> domination_error(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    return domination_error_of(rank(scores, labels, offsets, weights=weights), ties)


def all_pairs_error_of(ranking: Ranking, ties: str = "half") -> Tensor:
    check_choice(SHARES, ties=ties)
    wrong, tied, total = _pair_counts(ranking, ranking.labels, ranking.lists)
    return ratio(wrong + SHARES[ties] * tied, total)


@in_table(
    "all_pairs_error", of=all_pairs_error_of, needs=DIFFERENT, documents=2, better="lower", metric="AllPairsError"
)
@measure
def all_pairs_error(
    scores: Array, labels: Array, offsets: Array = None, *, ties: str = "half", weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Share of the pairs with different labels that are in the wrong order. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        ties: what a pair with equal scores counts: "half", "correct" (0) or "error" (1).
        weights: importance of each entry, `(N,)`: a pair counts as much as its entry with the higher label, as in
            TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        The error of each list, `(Q,)`; nan where there is no such pair.

    Example:
        >>> all_pairs_error(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.3333])
    """
    return all_pairs_error_of(rank(scores, labels, offsets, weights=weights), ties)


def opa_of(ranking: Ranking) -> Tensor:
    return 1 - all_pairs_error_of(ranking, "error")


@in_table("opa", "ordered_pair_accuracy", of=opa_of, needs=DIFFERENT, documents=2)
@measure
def opa(
    scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **given: Unpack[Weighted]
) -> Tensor:
    """Ordered pair accuracy: the share of the pairs with different labels that are in the right order.

    As in rax and TF-Ranking a pair with equal scores is not: it is 1 - `all_pairs_error(ties="error")`.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        weights: importance of each entry, `(N,)`: a pair counts as much as its entry with the higher label, as in
            TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        The accuracy of each list, `(Q,)`; nan where there is no such pair.

    Example:
        >>> opa(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.6667])
    """
    return opa_of(rank(scores, labels, offsets, weights=weights))


def kendall_tau_of(ranking: Ranking) -> Tensor:
    lists = ranking.lists
    wrong, tied, total = _pair_counts(ranking, ranking.labels, lists, weighted=False)
    ends = lists.each(lists.offsets[1:])
    different = lists.sum(wide(ends - runs(ranking.scores, lists.offsets)[1]))
    return ratio(total - tied - 2 * wrong, total.sqrt() * different.sqrt())


@in_table("kendall_tau", "tau", of=kendall_tau_of, needs=f"{DIFFERENT} and different scores", documents=2)
@measure
def kendall_tau(scores: Array, labels: Array, offsets: Array = None, **given: Unpack[Weighted]) -> Tensor:
    """Kendall's tau-b of scores and labels, from -1 to 1: pairs in the right order minus pairs in the wrong one.

    Divided by the geometric mean of the pairs with different labels and the pairs with different scores, as
    `scipy.stats.kendalltau` does. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied. Entries have no weights here.

    Returns:
        Tau of each list, `(Q,)`; nan where all scores or all labels are equal.

    Example:
        >>> import torch
        >>> kendall_tau(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.3333])
    """
    return kendall_tau_of(rank(scores, labels, offsets))


@measure
def rank_biased_overlap(
    scores: Array, other: Array, offsets: Array = None, *, p: float = 0.9, k: int | None = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Rank-biased overlap of the orders by two vectors of scores (Webber, Moffat & Zobel 2010), extrapolated.

    A_d is the share of the entries that both orders have among their first d. The value is
    (1 - p) / p sum_d A_d p^d + A_D p^D, with d = 1..D and D the depth: 1 for equal orders.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first, equal ones keep their order.
        other: other scores of the same entries, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        p: how deep the comparison goes, between 0 and 1: the first ten ranks have 86% of the weight with 0.9.
        k: the largest depth; None compares whole lists.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        The overlap of each list, `(Q,)`, from 0 to 1; nan for a list without entries.

    Example:
        >>> rank_biased_overlap(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 3]), k=2)
        tensor([0.5500])
    """
    check_scores(other)
    check_persistence(p)
    check_cutoff(k)
    lists: Lists = offsets
    lower = torch.maximum(lists.ranks(scores), lists.ranks(other))
    depth = lists.offsets.diff().clamp(0, k)
    steps = wide(torch.arange(1, lists.bound + 1, device=scores.device))
    running = torch.nn.functional.pad((torch.pow(p, steps) / steps).cumsum(0), (1, 0))
    inside = lower <= lists.each(depth)  # an entry is common to both from the lower of its ranks on
    terms = torch.where(inside, lists.each(running[depth]) - running[lower - 1], 0.0)
    common = ratio(lists.sum(wide(inside)), wide(depth))
    return (1 - p) / p * lists.sum(terms) + common * torch.pow(p, wide(depth))


def _pair_counts(
    ranking: Ranking, labels: Tensor, lists: Lists, *, weighted: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the pairs with different labels: those in the wrong order, those with equal scores, and all of them, `(Q,)`
    each in float64. A pair counts as much as its entry with the higher label."""
    levels, num_levels = lists.levels(labels)
    first, after = runs(ranking.scores, lists.offsets)
    # among equal scores the higher label comes first, so that a tied pair is no ascent
    group = first * num_levels - levels
    order = lists.order(group, descending=False)
    weights = ranking.weights[order] if weighted and ranking.weights is not None else None
    wrong, total = ascents(levels[order], lists, num_levels, weights)
    _, after_same = runs(group[order], lists.offsets)
    below = wide(after - after_same)  # entries after this one with the same score and a smaller label
    tied = lists.sum(below if weights is None else below * weights)
    return wrong, tied, total


def ascents(levels: Tensor, lists: Lists, num_levels: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Pairs of each list whose earlier entry has the smaller level, and pairs with different levels, `(Q,)` each.

    `levels (N,)` are integers below `num_levels`. This is a wavelet tree over the whole batch: at each bit, from the
    highest, every group of entries that agree so far is split stably into zeros and ones; a zero before a one is an
    ascent. Two different levels separate at exactly one bit. O(N log num_levels), no pair is ever formed. With
    `weights (N,)` a pair counts as much as its entry with the larger level.

    >>> ascents(torch.tensor([1, 0, 2, 2]), Lists.of([0, 4]), 3)
    (tensor([4.], dtype=torch.float64), tensor([5.], dtype=torch.float64))
    """
    index = torch.arange(len(levels), device=levels.device)
    start, end = lists.each(lists.offsets[:-1]), lists.each(lists.offsets[1:])
    weight = torch.ones_like(levels) if weights is None else weights
    rising, different = torch.zeros_like(weight), torch.zeros_like(weight)
    for bit in reversed(range(doublings(num_levels))):
        one = (levels >> bit) & 1
        zeros = torch.nn.functional.pad((1 - one).cumsum(0), (1, 0))
        before, inside = zeros[:-1] - zeros[start], zeros[end] - zeros[start]
        counted = one if weights is None else one * weight
        rising, different = rising + counted * before, different + counted * inside
        middle = start + inside
        target = torch.where(one == 1, middle + index - start - before, start + before)
        start, end = torch.where(one == 1, middle, start), torch.where(one == 1, end, middle)
        levels, start, end = (torch.empty_like(part).scatter(0, target, part) for part in (levels, start, end))
        weight = weight if weights is None else torch.empty_like(weight).scatter(0, target, weight)
    # entries move only within their list, so the sums per list need no bookkeeping
    return lists.sum(wide(rising)), lists.sum(wide(different))

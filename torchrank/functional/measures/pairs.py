"""Measures of pairs with different labels."""

import math

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.ragged import ascents, dominating, measure_sum, runs, segment_sum, sort_within, wide
from torchrank.functional.ranking import Ranking, finish, levels_of, rank, ratio


@takes_arrays
def auc(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    threshold: float = 1,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Area under the ROC curve: the share of (relevant, other) pairs in the right order; tied pairs count one half.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        threshold: entries with at least this label are relevant.
        weights: importance of each entry, `(N,)`: a pair counts as much as its entry with the higher label, as in
            TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        AUC of each list, `(Q,)`; nan where one of the two classes is missing.

    Example:
        >>> auc(torch.tensor([3.0, 2.0, 2.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.7500])
    """
    ranking = rank(scores, labels, offsets, weights=weights, list_weights=list_weights, max_length=max_length)
    return finish(auc_of(ranking, threshold), scores, list_weights)


def auc_of(ranking: Ranking, threshold: float) -> Tensor:
    return 1 - all_pairs_error_of(ranking._replace(labels=(ranking.labels >= threshold).long(), num_grades=2))


@takes_arrays
def all_pairs_error(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    ties: str = "half",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Share of the pairs with different labels that are in the wrong order. O(n log n) for any labels.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        ties: what a pair with equal scores counts: "half", "correct" (0) or "error" (1).
        weights: importance of each entry, `(N,)`: a pair counts as much as its entry with the higher label, as in
            TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        The error of each list, `(Q,)`; nan where there is no such pair.

    Example:
        >>> all_pairs_error(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.3333])
    """
    ranking = rank(
        scores,
        labels,
        offsets,
        weights=weights,
        list_weights=list_weights,
        max_length=max_length,
        num_grades=num_grades,
    )
    return finish(all_pairs_error_of(ranking, ties), scores, list_weights)


def all_pairs_error_of(ranking: Ranking, ties: str = "half") -> Tensor:
    shares = {"half": 0.5, "correct": 0.0, "error": 1.0}
    check_choice(shares, ties=ties)
    wrong, tied, total = pair_counts(ranking)
    return ratio(wrong + shares[ties] * tied, total, math.nan)


def pair_counts(ranking: Ranking) -> tuple[Tensor, Tensor, Tensor]:
    """Of the pairs with different labels: those in the wrong order, those with equal scores, and all of them, `(Q,)`
    each in float64. A pair counts as much as its entry with the higher label."""
    offsets, weights = ranking.offsets, ranking.weights
    levels, num_levels = levels_of(ranking.labels, offsets, max_length=ranking.longest, num_grades=ranking.num_grades)
    first, after = runs(ranking.scores, offsets)
    # among equal scores the higher label comes first, so that a tied pair is no ascent
    group = first * num_levels - levels
    order = sort_within(group, offsets, descending=False, max_length=ranking.longest)
    weights = None if weights is None else weights[order]
    wrong, total = ascents(levels[order], offsets, num_levels=num_levels, weights=weights)
    _, after_same = runs(group[order], offsets)
    below = after - after_same  # entries after this one with the same score and a smaller label
    tied = segment_sum(below if weights is None else below * weights, offsets)
    return wide(wrong), wide(tied), wide(total)


@takes_arrays
def opa(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Tensor:
    """Ordered pair accuracy: the share of the pairs with different labels that are in the right order.

    As in rax and TF-Ranking a pair with equal scores is not: it is 1 - `all_pairs_error(ties="error")`.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance of each entry, `(N,)`: a pair counts as much as its entry with the higher label, as in
            TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        The accuracy of each list, `(Q,)`; nan where there is no such pair.

    Example:
        >>> opa(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.6667])
    """
    ranking = rank(
        scores,
        labels,
        offsets,
        weights=weights,
        list_weights=list_weights,
        max_length=max_length,
        num_grades=num_grades,
    )
    return finish(opa_of(ranking), scores, list_weights)


def opa_of(ranking: Ranking) -> Tensor:
    return 1 - all_pairs_error_of(ranking, "error")


@takes_arrays
def domination_error(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    ties: str = "correct",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, by which it is counted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).

    Returns:
        The error of each list, `(Q,)`; nan where all labels are equal.

    Example:
        >>> domination_error(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 0]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    ranking = rank(
        scores,
        labels,
        offsets,
        weights=weights,
        list_weights=list_weights,
        max_length=max_length,
        num_grades=num_grades,
    )
    return finish(domination_error_of(ranking, ties), scores, list_weights)


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
    errors, all_upper = wide(beaten & upper), wide(upper)
    if ranking.weights is not None:
        errors, all_upper = errors * ranking.weights, all_upper * ranking.weights
    return ratio(measure_sum(errors, offsets), measure_sum(all_upper, offsets), math.nan)

"""Measures of binary relevance: entries with at least the label `threshold` are relevant."""

import math

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.ragged import measure_sum, wide
from torchrank.functional.ranking import Hits, Ranking, average_hits, check_cutoff, finish, rank, ratio
from torchrank.functional.ranking import hits as count_hits


def binary(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    threshold: float,
    num_relevant: Tensor | None,
    max_length: int | None,
    k: int | None,
    weights: Tensor | None,
    list_weights: Tensor | None,
) -> tuple[Ranking, Hits]:
    """What every measure of binary relevance begins with."""
    check_cutoff(k)
    ranking = rank(scores, labels, offsets, weights=weights, list_weights=list_weights, max_length=max_length)
    return ranking, count_hits(ranking, threshold, num_relevant)


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
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, by which the precision at its rank is multiplied; their sum over the
            relevant entries is the divisor, as in TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Average precision of each list, `(Q,)`; its mean over the lists is MAP.

    Example:
        >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.8333])
    """
    check_choice(("stable", "average"), ties=ties)
    if ties == "average" and weights is not None:
        raise ValueError("ties='average' has no weights: use ties='stable'")
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(average_precision_of(ranking, found, k, empty=empty, ties=ties), scores, list_weights)


def average_precision_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float, ties: str = "stable") -> Tensor:
    ranks = ranking.ranks
    hit, so_far = average_hits(ranking, found) if ties == "average" else (found.relevant, found.so_far)
    counted = hit if ranking.weights is None else found.gains
    counted = counted if k is None else counted * (ranks <= k)
    precisions = torch.div(so_far, ranks, out=ranks).mul_(counted)
    return ratio(measure_sum(precisions, ranking.offsets), found.mass, empty)


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
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted. The divisor stays k.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Precision of each list, `(Q,)`.

    Example:
        >>> precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), k=5)
        tensor([0.4000])
    """
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(precision_of(ranking, found, k, empty=empty), scores, list_weights)


def precision_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    value = hits_in_top(ranking, found, k) / (ranking.lengths.clamp(min=1) if k is None else k)
    return torch.where(found.mass > 0, value, empty)


def hits_in_top(ranking: Ranking, found: Hits, k: int | None) -> Tensor:
    """Relevant entries in the top k, each counted by its weight, `(Q,)`."""
    if ranking.weights is not None or ranking.given is not None:
        inside = found.gains if k is None else torch.where(ranking.ranks <= k, found.gains, 0)
        return measure_sum(inside, ranking.offsets)
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
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted, in the divisor too.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Recall of each list, `(Q,)`.

    Example:
        >>> recall(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), k=2)
        tensor([0.5000])
    """
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(recall_of(ranking, found, k, empty=empty), scores, list_weights)


def recall_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    return ratio(hits_in_top(ranking, found, k), found.mass, empty)


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
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, of which that of the first relevant entry multiplies the value.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        Reciprocal rank of each list, `(Q,)`; its mean over the lists is MRR.

    Example:
        >>> reciprocal_rank(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(reciprocal_rank_of(ranking, found, k, empty=empty), scores, list_weights)


def reciprocal_rank_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    value = _first_hit(ranking, found, k) / found.first.clamp(min=1)
    return torch.where(found.mass > 0, value, empty)


def _first_hit(ranking: Ranking, found: Hits, k: int | None) -> Tensor:
    """The weight of the first relevant entry, `(Q,)`, by default 1; 0 if its rank is beyond k."""
    there = found.found > 0 if k is None else (found.found > 0) & (found.first <= k)
    if ranking.weights is None:
        return wide(there)
    place = (ranking.offsets[:-1] + found.first.long() - 1).clamp(0, max(len(ranking.weights) - 1, 0))
    return torch.where(there, torch.nn.functional.pad(ranking.weights, (0, 1))[place], 0.0)


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
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, of which that of the first relevant entry is the value.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        1 or 0 for each list, `(Q,)`; the mean over the lists is the hit rate.

    Example:
        >>> hit(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 3]), k=1)
        tensor([0.])
    """
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(hit_of(ranking, found, k, empty=empty), scores, list_weights)


def hit_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    return torch.where(found.mass > 0, _first_hit(ranking, found, k), empty)


@takes_arrays
def hits(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Hits at k: the number of relevant entries in the top k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved; None: the list
            holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which is only checked.

    Returns:
        The number in each list, `(Q,)`.

    Example:
        >>> hits(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 1, 1]), torch.tensor([0, 3]), k=2)
        tensor([2.])
    """
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(hits_of(ranking, found, k, empty=empty), scores, list_weights)


def hits_of(ranking: Ranking, found: Hits, k: int | None, *, empty: float) -> Tensor:
    return torch.where(found.mass > 0, hits_in_top(ranking, found, k), empty)


@takes_arrays
def r_precision(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """R-precision: the precision at R, the number of relevant documents of the query, as in trec_eval (Rprec).

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved; None: the list
            holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted, in the divisor too.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which is only checked.

    Returns:
        R-precision of each list, `(Q,)`.

    Example:
        >>> r_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, None, weights, list_weights)
    return finish(r_precision_of(ranking, found, empty=empty), scores, list_weights)


def r_precision_of(ranking: Ranking, found: Hits, *, empty: float) -> Tensor:
    inside = torch.where(ranking.ranks <= found.total.index_select(0, ranking.ids), found.gains, 0)
    return ratio(measure_sum(inside, ranking.offsets), found.mass, empty)

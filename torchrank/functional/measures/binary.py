"""Measures of binary relevance: entries with at least the label `threshold` are relevant; and the kNN error."""

import math
from collections.abc import Iterable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import Array, wide
from torchrank.functional.conventions import OPTIONAL, REQUIRED, in_table
from torchrank.functional.lists import Given, Weighted, measure
from torchrank.functional.ranking import Hits, Ranking, average_hits, check_cutoff, rank, ratio

PERSISTENCE = 0.8  # of the reader of rank-biased precision


def average_precision_of(
    ranking: Ranking, k: int | None, *, threshold: float, empty: float, map_divisor: str, ties: str = "stable"
) -> Tensor:
    hits, ranks = ranking.hits(threshold), ranking.ranks
    counted, so_far = average_hits(ranking, hits) if ties == "average" else (hits.gains, hits.so_far)
    counted = counted if k is None else counted * (ranks <= k)
    precisions = torch.div(so_far, ranks, out=ranks).mul_(counted)
    value = ratio(ranking.lists.sum(precisions), hits.mass, empty)
    if map_divisor == "cut" and k is not None:
        return torch.where(hits.total > k, value * hits.total / k, value)
    return value


@in_table(
    "map", "ap", of=average_precision_of, cut=OPTIONAL, from_ranks=True, metric="MeanAveragePrecision",
)  # fmt: skip
@measure
def average_precision(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, threshold: float = 1,
    ties: str = "stable", empty: float = math.nan, num_relevant: Array = None, weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Average precision: the sum of the precisions at each relevant entry of the top k, over all relevant entries.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        ties: "stable" keeps the order of equal scores, "average" is the exact mean over all their orders (McSherry &
            Najork 2008).
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`, as in trec_eval;
            None: the list holds all of them.
        weights: importance of each entry, `(N,)`, by which the precision at its rank is multiplied; their sum over the
            relevant entries is the divisor, as in TF-Ranking.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        Average precision of each list, `(Q,)`; its mean over the lists is MAP.

    Example:
        >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.8333])
    """
    check_choice(("stable", "average"), ties=ties)
    if ties == "average" and weights is not None:
        raise ValueError("ties='average' has no weights: use ties='stable'")
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return average_precision_of(ranking, k, threshold=threshold, empty=empty, map_divisor="relevant", ties=ties)


def precision_of(ranking: Ranking, k: int | None, *, threshold: float, empty: float) -> Tensor:
    hits = ranking.hits(threshold)
    value = _hits_in_top(ranking, hits, k) / (ranking.lengths.clamp(min=1) if k is None else k)
    return torch.where(hits.mass > 0, value, empty)


@in_table("p", of=precision_of, cut=REQUIRED, from_ranks=True, metric="Precision")
@measure
def precision(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, threshold: float = 1,
    empty: float = math.nan, num_relevant: Array = None, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Precision at k: the number of relevant entries in the top k over k, even if the list is shorter.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count and the divisor; None counts the whole list and divides by its length.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`. If positive, a list without relevant
            entries has the value 0 instead of `empty`. None: the list holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted. The divisor stays k.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        Precision of each list, `(Q,)`.

    Example:
        >>> precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), k=5)
        tensor([0.4000])
    """
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return precision_of(ranking, k, threshold=threshold, empty=empty)


def recall_of(ranking: Ranking, k: int | None, *, threshold: float, empty: float) -> Tensor:
    hits = ranking.hits(threshold)
    return ratio(_hits_in_top(ranking, hits, k), hits.mass, empty)


@in_table("recall", of=recall_of, cut=REQUIRED, from_ranks=True, metric="Recall")
@measure
def recall(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, threshold: float = 1,
    empty: float = math.nan, num_relevant: Array = None, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Recall at k: the share of the relevant entries that are in the top k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`, as in trec_eval;
            None: the list holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted, in the divisor too.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        Recall of each list, `(Q,)`.

    Example:
        >>> recall(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), k=2)
        tensor([0.5000])
    """
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return recall_of(ranking, k, threshold=threshold, empty=empty)


def hit_of(ranking: Ranking, k: int | None, *, threshold: float, empty: float) -> Tensor:
    hits = ranking.hits(threshold)
    return torch.where(hits.mass > 0, _first_hit(ranking, hits, k)[0], empty)


@in_table("hit", "success", "hit_rate", of=hit_of, cut=OPTIONAL, from_ranks=True, metric="HitRate")
@measure
def hit(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, threshold: float = 1,
    empty: float = math.nan, num_relevant: Array = None, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Hit (success) at k: 1 if there is a relevant entry in the top k, else 0.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`. If positive, a list without relevant
            entries has the value 0 instead of `empty`. None: the list holds all of them.
        weights: importance of each entry, `(N,)`: in place of 1 the value is that of the first relevant entry.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        1 or 0 for each list, `(Q,)`; the mean over the lists is the hit rate.

    Example:
        >>> hit(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 3]), k=1)
        tensor([0.])
    """
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return hit_of(ranking, k, threshold=threshold, empty=empty)


def reciprocal_rank_of(ranking: Ranking, k: int | None, *, threshold: float, empty: float) -> Tensor:
    hits = ranking.hits(threshold)
    weight, first = _first_hit(ranking, hits, k)
    return torch.where(hits.mass > 0, weight / first, empty)


@in_table(
    "mrr", "recip_rank", "rr", of=reciprocal_rank_of, cut=OPTIONAL, from_ranks=True, metric="MeanReciprocalRank",
)  # fmt: skip
@measure
def reciprocal_rank(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, threshold: float = 1,
    empty: float = math.nan, num_relevant: Array = None, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Reciprocal rank: 1 / rank of the first relevant entry; 0 if that rank is beyond k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`. If positive, a list without relevant
            entries has the value 0 instead of `empty`. None: the list holds all of them.
        weights: importance of each entry, `(N,)`: the value is multiplied by that of the first relevant entry.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        Reciprocal rank of each list, `(Q,)`; its mean over the lists is MRR.

    Example:
        >>> reciprocal_rank(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return reciprocal_rank_of(ranking, k, threshold=threshold, empty=empty)


def hits_of(ranking: Ranking, k: int | None, *, threshold: float, empty: float) -> Tensor:
    found = ranking.hits(threshold)
    return torch.where(found.mass > 0, _hits_in_top(ranking, found, k), empty)


@in_table("hits", of=hits_of, cut=OPTIONAL, from_ranks=True, highest=None)
@measure
def hits(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, threshold: float = 1,
    empty: float = math.nan, num_relevant: Array = None, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Hits at k: the number of relevant entries in the top k.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`; None: the list
            holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        The number in each list, `(Q,)`.

    Example:
        >>> hits(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 1, 1]), torch.tensor([0, 3]), k=2)
        tensor([2.])
    """
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return hits_of(ranking, k, threshold=threshold, empty=empty)


def r_precision_of(ranking: Ranking, *, threshold: float, empty: float) -> Tensor:
    hits, lists = ranking.hits(threshold), ranking.lists
    inside = torch.where(ranking.ranks <= lists.each(hits.total), hits.gains, 0)
    return ratio(lists.sum(inside), hits.mass, empty)


@in_table("r_precision", "rprec", of=r_precision_of, from_ranks=True)
@measure
def r_precision(
    scores: Array, labels: Array, offsets: Array = None, *, threshold: float = 1, empty: float = math.nan,
    num_relevant: Array = None, weights: Array = None, **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """R-precision: the precision at R, the number of relevant documents of the query, as in trec_eval (Rprec).

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`; None: the list
            holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted, in the divisor too.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        R-precision of each list, `(Q,)`.

    Example:
        >>> r_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]))
        tensor([0.5000])
    """
    ranking = rank(scores, labels, offsets, weights=weights, num_relevant=num_relevant)
    return r_precision_of(ranking, threshold=threshold, empty=empty)


def rbp_of(ranking: Ranking, k: int | None, *, threshold: float, empty: float, p: float = PERSISTENCE) -> Tensor:
    hits, ranks = ranking.hits(threshold), ranking.ranks
    terms = hits.gains * torch.pow(p, ranks - 1)
    terms = terms if k is None else torch.where(ranks <= k, terms, 0)
    return torch.where(hits.mass > 0, (1 - p) * ranking.lists.sum(terms), empty)


@in_table("rbp", "rank_biased_precision", of=rbp_of, cut=OPTIONAL, from_ranks=True)
@measure
def rbp(
    scores: Array, labels: Array, offsets: Array = None, *, p: float = PERSISTENCE, k: int | None = None,
    threshold: float = 1, empty: float = math.nan, num_relevant: Array = None, weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:  # fmt: skip
    """Rank-biased precision: (1 - p) times the sum of p^(rank - 1) over the relevant entries (Moffat & Zobel 2008).

    A reader goes on to the next rank with probability p. A short list ends early: there is no residual.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        p: the persistence of the reader, between 0 and 1; 0.8 as in ir-measures.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, retrieved or not, `(Q,)`; None: the list
            holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.

    Returns:
        RBP of each list, `(Q,)`.

    Example:
        >>> rbp(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), p=0.5)
        tensor([0.6250])
    """
    check_persistence(p)
    ranking = rank(scores, labels, offsets, k, weights=weights, num_relevant=num_relevant)
    return rbp_of(ranking, k, threshold=threshold, empty=empty, p=p)


def check_persistence(p: float) -> None:
    if not isinstance(p, int | float) or not 0 < p < 1:
        raise ValueError(f"p must be between 0 and 1, the probability to go on to the next rank, got {p!r}")


def _hits_in_top(ranking: Ranking, hits: Hits, k: int | None) -> Tensor:
    """Relevant entries in the top k, each counted by its weight, `(Q,)`."""
    lists = ranking.lists
    if ranking.weights is not None or ranking.given is not None:
        return lists.sum(hits.gains if k is None else torch.where(ranking.ranks <= k, hits.gains, 0))
    if k is None:
        return hits.number
    lengths = lists.offsets.diff()
    last = lists.offsets[:-1] + lengths.clamp(max=k) - 1
    return torch.where(lengths > 0, torch.nn.functional.pad(hits.so_far, (0, 1))[last], 0)


def _first_hit(ranking: Ranking, hits: Hits, k: int | None) -> tuple[Tensor, Tensor]:
    """The weight of the first relevant entry, by default 1, and its rank, `(Q,)` each; the weight is 0 beyond k."""
    if ranking.given is None:
        rank = (hits.first - ranking.lists.offsets[:-1] + 1).clamp(min=1)
    else:
        rank = torch.nn.functional.pad(ranking.given, (0, 1), value=1)[hits.first]
    there = hits.number > 0 if k is None else (hits.number > 0) & (rank <= k)
    if ranking.weights is None:
        return wide(there), wide(rank)
    weight = torch.nn.functional.pad(ranking.weights, (0, 1))[hits.first]
    return torch.where(there, weight, 0.0), wide(rank)


# --------------------------------------------------------------- the nearest neighbours vote on the class of the query


def knn_error_of(ranking: Ranking, cuts: Sequence[int], *, classes: Tensor, query_classes: Tensor) -> list[Tensor]:
    offsets, lists = ranking.lists.offsets, ranking.lists
    if query_classes.shape != (len(lists),):
        raise ValueError(
            f"query_classes must have one class per list, ({len(lists)},), got {tuple(query_classes.shape)}"
        )
    if classes.shape != ranking.order.shape:
        raise ValueError(f"classes must be ({len(ranking.order)},), one per entry, got {tuple(classes.shape)}")
    width = min(max(cuts), lists.bound) if len(classes) else 0
    place = offsets[:-1, None] + torch.arange(width, device=offsets.device)  # (Q, width)
    inside = place < offsets[1:, None]
    nearest = classes[ranking.order][place.clamp(max=max(len(classes) - 1, 0))]
    empty = offsets.diff() == 0
    wrong = [majority(nearest[:, :k], inside[:, :k]) != query_classes for k in cuts]
    return [torch.where(empty, torch.nan, wide(each)) for each in wrong]


@in_table(
    "knn_error", of=knn_error_of, cut=REQUIRED, needs="a document", better="lower",
    asks="{name} compares classes: give classes (N,) and query_classes (Q,)",
)  # fmt: skip
@measure
def knn_error(
    scores: Array, classes: Array, offsets: Array = None, query_classes: Array = None, *, k: int | Sequence[int],
    **given: Unpack[Given],
) -> Tensor:  # fmt: skip
    """Error of k-nearest-neighbour classification: 1 if the majority of the k highest scores is wrong, else 0.

    Among classes with equally many votes the one with the nearest neighbour wins (McFee & Lanckriet 2010). Equal scores
    keep their order; a list shorter than k votes with all its entries.

    Args:
        scores: score of each entry, `(N,)`; higher scores are nearer.
        classes: class of each entry as a number, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        query_classes: class of the query of each list, `(Q,)`.
        k: the number of neighbours that vote, or several numbers.

    Returns:
        1 or 0 for each list, `(Q,)`; `(Q, K)` if k is a sequence of K numbers. An empty list has nan.

    Example:
        >>> scores, classes = torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([5, 7, 7, 5])
        >>> knn_error(scores, classes, torch.tensor([0, 4]), torch.tensor([5]), k=[1, 3, 4]).tolist()
        [[0.0, 1.0, 0.0]]
    """
    cuts = list(k) if isinstance(k, Iterable) else [k]
    if not cuts or None in cuts:
        raise ValueError(f"k must be the number of neighbours that vote, or several, got {k}")
    for cut in cuts:
        check_cutoff(cut)
    errors = knn_error_of(rank(scores, scores, offsets), cuts, classes=classes, query_classes=query_classes)
    return torch.stack(errors, 1) if isinstance(k, Iterable) else errors[0]


def majority(classes: Tensor, voting: Tensor) -> Tensor:
    """The class with most votes in each row of `classes (Q, k)`, nearest first, `(Q,)`; if equal, the nearest one.

    After a sort by class the votes are lengths of runs, so that no table of all classes is needed.

    >>> majority(torch.tensor([[4, 9, 9, 4, 9]]), torch.tensor([[True, True, True, True, False]])).tolist()
    [4]
    """
    width = classes.shape[1]
    if width == 0:
        return classes.new_zeros(len(classes))
    ordered, place = classes.sort(dim=1, stable=True)
    new = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))
    run = new.cumsum(1)
    votes = torch.zeros_like(place).scatter_add(1, run, voting.gather(1, place).long()).gather(1, run)
    best = (votes * width + (width - 1 - place)).argmax(1, keepdim=True)  # all values differ: no tie is left
    return ordered.gather(1, best)[:, 0]

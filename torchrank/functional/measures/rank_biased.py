"""Rank-biased precision and overlap: a reader goes on to the next rank with a constant probability."""

import math

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.measures.binary import binary
from torchrank.functional.ragged import list_ids, longest_list, measure_sum, ranks, wide
from torchrank.functional.ranking import (
    Hits,
    Ranking,
    check_cutoff,
    check_offsets,
    check_scores,
    check_weights,
    finish,
    ratio,
)

PERSISTENCE = 0.8  # of the reader of rank-biased precision


@takes_arrays
def rbp(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    p: float = PERSISTENCE,
    k: int | None = None,
    threshold: float = 1,
    empty: float = math.nan,
    num_relevant: Tensor | None = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Rank-biased precision: (1 - p) times the sum of p^(rank - 1) over the relevant entries (Moffat & Zobel 2008).

    A reader goes on to the next rank with probability p. A short list ends early: there is no residual.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        p: the persistence of the reader, between 0 and 1; 0.8 as in ir-measures.
        k: the number of ranks that count; None counts the whole list.
        threshold: entries with at least this label are relevant.
        empty: the value of a list without relevant entries.
        num_relevant: relevant documents of each query, `(Q,)`, counting those that were not retrieved; None: the list
            holds all of them.
        weights: importance of each entry, `(N,)`, by which a relevant entry is counted.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which is only checked.

    Returns:
        RBP of each list, `(Q,)`.

    Example:
        >>> rbp(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 3]), p=0.5)
        tensor([0.6250])
    """
    check_persistence(p)
    ranking, found = binary(scores, labels, offsets, threshold, num_relevant, max_length, k, weights, list_weights)
    return finish(rbp_of(ranking, found, k, p=p, empty=empty), scores, list_weights)


def rbp_of(ranking: Ranking, found: Hits, k: int | None, *, p: float = PERSISTENCE, empty: float) -> Tensor:
    ranks = ranking.ranks
    terms = found.gains * torch.pow(p, ranks - 1)
    terms = terms if k is None else torch.where(ranks <= k, terms, 0)
    return torch.where(found.mass > 0, (1 - p) * measure_sum(terms, ranking.offsets), empty)


@takes_arrays
def rank_biased_overlap(
    scores: Tensor,
    other: Tensor,
    offsets: Tensor,
    *,
    p: float = 0.9,
    k: int | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
) -> Tensor:
    """Rank-biased overlap of the orders by two vectors of scores (Webber, Moffat & Zobel 2010), extrapolated.

    A_d is the share of the entries that both orders have among their first d. The value is
    (1 - p) / p sum_d A_d p^d + A_D p^D, with d = 1..D and D the depth: 1 for equal orders.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first, equal ones keep their order.
        other: other scores of the same entries, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        p: how deep the comparison goes, between 0 and 1: the first ten ranks have 86% of the weight with 0.9.
        k: the largest depth; None compares whole lists.
        list_weights: importance of each list, `(Q,)`, by which its value is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        The overlap of each list, `(Q,)`, from 0 to 1; nan for a list without entries.

    Example:
        >>> rank_biased_overlap(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 3]), k=2)
        tensor([0.5500])
    """
    check_offsets(scores, other, offsets)
    check_scores(scores)
    check_scores(other)
    check_weights(scores, offsets, None, list_weights)
    check_persistence(p)
    check_cutoff(k)
    longest = longest_list(offsets, len(scores), max_length)
    lower = torch.maximum(*(ranks(each, offsets, max_length=longest) for each in (scores, other)))
    depth, ids = offsets.diff().clamp(0, k), list_ids(offsets, len(scores))
    steps = wide(torch.arange(1, longest + 1, device=scores.device))
    running = torch.nn.functional.pad((torch.pow(p, steps) / steps).cumsum(0), (1, 0))
    inside = lower <= depth[ids]  # an entry is common to both from the lower of its ranks on
    terms = torch.where(inside, running[depth][ids] - running[lower - 1], 0.0)
    common = ratio(measure_sum(wide(inside), offsets), wide(depth), math.nan)
    value = (1 - p) / p * measure_sum(terms, offsets) + common * torch.pow(p, wide(depth))
    return finish(value, scores, list_weights)


def check_persistence(p: float) -> None:
    if not isinstance(p, int | float) or not 0 < p < 1:
        raise ValueError(f"p must be between 0 and 1, the probability to go on to the next rank, got {p!r}")

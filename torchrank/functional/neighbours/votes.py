"""Classification by nearest neighbours: the top k entries of a ranking vote on the class of the query."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.ragged import wide
from torchrank.functional.ranking import check_cutoff, check_offsets, check_scores, finish, rank_checked


@takes_arrays
def knn_error(
    scores: Tensor,
    classes: Tensor,
    offsets: Tensor,
    query_classes: Tensor,
    *,
    k: int | Sequence[int],
    max_length: int | None = None,
) -> Tensor:
    """Error of k-nearest-neighbour classification: 1 if the majority of the k highest scores is wrong, else 0.

    Among classes with equally many votes the one with the nearest neighbour wins (McFee & Lanckriet 2010). Equal scores
    keep their order; a list shorter than k votes with all its entries.

    Args:
        scores: score of each entry, `(N,)`; higher scores are nearer.
        classes: class of each entry as a number, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        query_classes: class of the query of each list, `(Q,)`.
        k: the number of neighbours that vote, or several numbers.
        max_length: an upper bound of the list lengths, which saves a synchronisation.

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
    check_offsets(scores, classes, offsets)
    check_scores(scores)
    ranking = rank_checked(scores, classes, offsets, tiebreak=None, max_length=max_length, num_grades=0)
    errors = finish(vote_errors(ranking.labels, offsets, query_classes, cuts, longest=ranking.longest), scores)
    return errors if isinstance(k, Iterable) else errors[:, 0]


def vote_errors(
    ordered: Tensor, offsets: Tensor, query_classes: Tensor, cuts: Sequence[int], *, longest: int
) -> Tensor:
    """`knn_error` at all `cuts` (Q, K) in float64; the classes `ordered` (N,) are in rank order."""
    for k in cuts:
        check_cutoff(k)
    wanted, actual = (len(offsets) - 1,), tuple(query_classes.shape)
    if actual != wanted:
        raise ValueError(f"query_classes must have one class per list, {wanted}, got {actual}")
    width = min(max(cuts), longest) if len(ordered) else 0
    place = offsets[:-1, None] + torch.arange(width, device=offsets.device)  # (Q, width)
    inside = place < offsets[1:, None]
    nearest = ordered[place.clamp(max=max(len(ordered) - 1, 0))]
    wrong = torch.stack([majority(nearest[:, :k], inside[:, :k]) != query_classes for k in cuts], 1)
    return torch.where(offsets.diff()[:, None] == 0, torch.nan, wide(wrong))


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
    run = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0)).cumsum(1)
    votes = torch.zeros_like(place).scatter_add(1, run, voting.gather(1, place).long()).gather(1, run)
    best = (votes * width + (width - 1 - place)).argmax(1, keepdim=True)  # all values differ: no tie is left
    return ordered.gather(1, best)[:, 0]

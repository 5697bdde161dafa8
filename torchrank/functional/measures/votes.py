"""Classification by nearest neighbours: the top k entries of a ranking vote on the class of the query."""

from collections.abc import Iterable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, wide
from torchrank.functional.conventions import REQUIRED, in_table
from torchrank.functional.lists import Given, measure
from torchrank.functional.ranking import Ranking, check_cutoff, rank


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

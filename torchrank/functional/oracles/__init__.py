"""The most violated ranking of each list under five measures (McFee & Lanckriet, ICML 2010), and its hinge loss.

Some most violated ranking keeps each class in the order of its scores. Such a ranking is described by b_i, the number
of irrelevant entries before the i-th best relevant one: see rankings.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import Array, host, result_dtype, wide
from torchrank.functional.autograd import OnceDifferentiable
from torchrank.functional.chunks import Chunk, length_chunks, side_by_side
from torchrank.functional.lists import Given, Lists, Weighted, check_scores, loss, takes_arrays
from torchrank.functional.oracles.rankings import (
    Merged,
    merge,
    top_ndcg,
    top_precision,
    whole_auc,
    whole_average_precision,
    whole_mrr,
    whole_ndcg,
)
from torchrank.functional.ragged import entries_of, read
from torchrank.functional.ranking import DISCOUNTS, check_cutoff, discount_of, ratio

CACHED_NUMBERS = 2**17  # entries, with padding, that are solved at once on the CPU: their tensors stay in the cache


@takes_arrays
def most_violated(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    **given: Unpack[Given],
) -> tuple[Tensor, Tensor]:
    """The most violated ranking y of each list: the one that maximises loss(y) - (psi(y*) - psi(y)).

    psi(y) is the mean of +-(s_i - s_j) over the pairs of a relevant and an irrelevant entry, + where i comes first; y*
    has all relevant entries first. Exact, O(n log n) (+ k^2 for NDCG@k).

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        measure: the loss is 1 minus the "auc", the "precision" at k (out of min(k, P), P the number of relevant
            entries), the average precision ("map"), the reciprocal rank of the first relevant entry ("mrr"), or the
            "ndcg" at k with gains 0 and 1.
        k: the cut-off, which "precision" needs and "ndcg" may have; the other measures ignore it.
        threshold: entries with at least this label are relevant.
        discount: that of "ndcg": "letor" (1, 1, 1/log2(3), ...) or "log2p1" (1/log2(1 + rank)).

    Returns:
        The coefficients `(N,)` of the scores in psi(y*) - psi(y), and the loss `(Q,)` of y. A list with one class has
        coefficients and loss 0.

    Example:
        >>> scores, labels, offsets = torch.tensor([1.2, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
        >>> most_violated(scores, labels, offsets, measure="auc")
        (tensor([-2.,  2.,  0.]), tensor([1., 0.]))
    """
    _check_options(measure, k, threshold, discount)
    check_scores(scores)
    known = host(scores)
    if known is not None and (count := int(np.isinf(known).sum())):
        raise ValueError(f"scores must be finite, got {count} infinite ones of {len(scores)}: psi would have no value")
    options = {"measure": measure, "k": k, "discount": discount}
    loss, coefficients = _VIOLATED.with_gradient(scores.detach(), labels >= threshold, offsets.regraded(2), **options)
    return offsets.unflat(coefficients.to(result_dtype(scores))), loss.to(result_dtype(scores))


@loss
def structured_hinge(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """Structured hinge loss: the largest loss(y) - (psi(y*) - psi(y)) over all rankings y of each list.

    It is an upper bound of the loss of the ranking by the scores. Its gradient is minus the coefficients of
    `most_violated`, where psi, y* and the losses are explained.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        measure: the loss is 1 minus this measure: "map", "auc", "precision", "mrr" or "ndcg".
        k: the cut-off, which "precision" needs and "ndcg" may have; the other measures ignore it.
        threshold: entries with at least this label are relevant.
        discount: that of "ndcg": "letor" (1, 1, 1/log2(3), ...) or "log2p1" (1/log2(1 + rank)).
        weights: importance of each entry, `(N,)`: as in TF-Ranking's losses of whole lists, the loss of a list is
            multiplied by the mean weight of its relevant entries.
        list_weights: importance of each list, `(Q,)`, by which its loss is multiplied.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form.

    Example:
        >>> scores, labels, offsets = torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
        >>> structured_hinge(scores, labels, offsets, measure="auc")
        tensor([1., 0.])
    """
    _check_options(measure, k, threshold, discount)
    _HINGE.check_constant(labels=labels)
    relevant, lists = labels >= threshold, offsets.regraded(2)
    hinge = _HINGE(scores, relevant, lists, measure=measure, k=k, discount=discount)
    if weights is None:
        return hinge
    return hinge * ratio(lists.sum(torch.where(relevant, wide(weights), 0)), lists.sum(wide(relevant)), 0.0)


def _check_options(measure: str, k: int | None, threshold: float, discount: str) -> None:
    check_choice(RANKINGS, measure=measure)
    check_choice(DISCOUNTS, discount=discount)  # NDCG of the whole list needs one that is convex, or almost
    if isinstance(threshold, str):
        raise ValueError(f"threshold must be a number, the lowest label of a relevant entry, got {threshold!r}")
    check_cutoff(k)
    if measure == "precision" and k is None:
        raise ValueError("measure='precision' needs the cut-off k, the number of ranks that count")


def _hinge(
    scores: Tensor, relevant: Tensor, lists: Lists, weights: Tensor | None, order: int, **options: Any
) -> tuple[Tensor, Tensor]:
    """The hinge of each list, `(Q,)`, and its gradient at the scores, `(N,)`, in float64."""
    largest, values = torch.finfo(result_dtype(scores)).max, wide(scores)
    scale = _scale(values, lists)
    values = values * lists.each(scale)
    loss, coefficients = _violated(values, relevant, lists, None, 1, **options)
    values = torch.where(lists.each(lists.several(relevant)), values, 0.0)  # else 0 for any scores
    sizes, tiny = coefficients.abs(), torch.finfo(values.dtype).tiny
    # the mean of the misplaced scores is subtracted, so that no digits are lost to a shift or to scores far away
    centred = values - lists.each(lists.sum(sizes * values) / lists.sum(sizes).clamp(min=tiny))
    hinge = (scale * loss - lists.sum(coefficients * centred)) / scale
    factor = torch.where(hinge.isnan(), torch.nan, torch.ones_like(hinge))
    return hinge.clamp(-largest, largest) * factor, -coefficients * lists.each(factor)


def _scale(values: Tensor, lists: Lists) -> Tensor:
    """1 for each list, `(Q,)`; a smaller power of two where scores are so large that their sums would be infinite."""
    largest = lists.max(values.abs())
    return torch.where(largest > torch.finfo(values.dtype).max * 2.0**-40, 2.0**-40, torch.ones_like(largest))


def _violated(
    scores: Tensor,
    relevant: Tensor,
    lists: Lists,
    weights: Tensor | None,
    order: int,
    *,
    measure: str,
    k: int | None,
    discount: str,
) -> tuple[Tensor, Tensor]:
    """The loss `(Q,)` of the most violated ranking and the coefficients `(N,)`, in float64.

    Where lengths are known, lists of similar length are solved together, and not too many at a time.
    """
    solve, offsets = partial(_solve, measure=measure, k=k, discount=discount), lists.offsets
    places = len(lists) * lists.longest
    if lists.lengths is None or offsets.device.type != "cpu" or places <= CACHED_NUMBERS:
        return solve(scores, relevant, lists)
    loss, coefficients = wide(scores[:0]).new_zeros(len(lists)), wide(scores).new_empty(len(scores))

    def write(chunk: Chunk) -> None:
        entries, bounds = _entries(offsets, chunk.lists)
        part = Lists(bounds, read(bounds[-1]), longest=chunk.longest)
        loss[chunk.lists], coefficients[entries] = solve(scores[entries], relevant[entries], part)

    most = min(CACHED_NUMBERS, places // torch.get_num_threads())
    side_by_side(write, length_chunks(offsets, len(scores), most, similar=0.5), scores.device)
    return loss, coefficients


def _entries(offsets: Tensor, lists: Tensor) -> tuple[Tensor | slice, Tensor]:
    """The entries of these lists, as a slice if the lists follow one another, and the offsets of the result."""
    if not read((lists.diff() == 1).all()):
        return entries_of(offsets, lists)
    bounds = offsets[lists[0] : lists[-1] + 2]
    return slice(read(bounds[0]), read(bounds[-1])), bounds - bounds[0]


_VIOLATED = OnceDifferentiable("most_violated", _violated)
_HINGE = OnceDifferentiable("structured_hinge", _hinge)


def _solve(
    scores: Tensor, relevant: Tensor, lists: Lists, *, measure: str, k: int | None, discount: str
) -> tuple[Tensor, Tensor]:
    """`_violated` for all lists at once, as rows of equal length."""
    merged = merge(scores, relevant, lists, lower=0.5 if measure == "auc" else 0.0)
    width = merged.order.shape[1]
    if width == 0:
        return wide(scores).new_zeros(len(lists)), wide(scores).new_empty(0)
    inversions, loss = RANKINGS[measure](merged, min(k or width, width), discount)
    return torch.where(merged.scale[:, 0] > 0, loss, 0), merged.coefficients(inversions)


def _ndcg(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    discounts = discount_of(torch.arange(1, k + 1, device=merged.above.device), discount)
    if k < merged.above.shape[1]:
        return top_ndcg(merged, discounts)
    return whole_ndcg(merged, discounts, convex=discount != "letor")


# the inversions `(Q, L)` and the loss `(Q,)` of the most violated ranking
RANKINGS: dict[str, Callable[[Merged, int, str], tuple[Tensor, Tensor]]] = {
    "auc": lambda merged, k, discount: whole_auc(merged),
    "precision": lambda merged, k, discount: top_precision(merged, k),
    "map": lambda merged, k, discount: whole_average_precision(merged),
    "mrr": lambda merged, k, discount: whole_mrr(merged),
    "ndcg": _ndcg,
}

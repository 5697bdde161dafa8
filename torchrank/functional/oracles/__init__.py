"""The most violated ranking of each list under five measures (McFee & Lanckriet, ICML 2010), and its hinge loss.

Some most violated ranking keeps each class in the order of its scores. Such a ranking is described by b_i, the number
of irrelevant entries before the i-th best relevant one: see merged.py. The measures of the first k ranks are in
top_k.py, those of the whole list in whole_list.py.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.chunks import Chunk, length_chunks, side_by_side
from torchrank.functional.gains import DISCOUNTS, discount_of
from torchrank.functional.operations import ListLoss, empty_sums, no_curvature, one_operation, readable
from torchrank.functional.oracles.merged import Merged, merge
from torchrank.functional.oracles.top_k import top_ndcg, top_precision
from torchrank.functional.oracles.whole_list import whole_auc, whole_average_precision, whole_mrr, whole_ndcg
from torchrank.functional.ragged import (
    entries_of,
    has_pairs,
    longest_list,
    per_entry,
    read,
    segment_max,
    segment_sum,
    wide,
)
from torchrank.functional.ranking import check, check_cutoff, check_lists, check_weights, ratio, result_dtype

CACHED_NUMBERS = 2**17  # entries, with padding, that are solved at once on the CPU: their tensors stay in the cache


@takes_arrays
def most_violated(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    max_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The ranking y of each list that violates most: the one that maximises loss(y) - (psi(y*) - psi(y)).

    psi(y) is the mean of +-(s_i - s_j) over the pairs of a relevant and an irrelevant entry, + where i comes first; y*
    has all relevant entries first. Exact, O(n log n) (+ k^2 for NDCG@k).

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        measure: the loss is 1 minus the "auc", the "precision" at k (out of min(k, P), P the number of relevant
            entries), the average precision ("map"), the reciprocal rank of the first relevant entry ("mrr"), or the
            "ndcg" at k with gains 0 and 1.
        k: the cut-off, which "precision" needs and "ndcg" may have; the other measures ignore it.
        threshold: entries with at least this label are relevant.
        discount: that of "ndcg": "letor" (1, 1, 1/log2(3), ...) or "log2p1" (1/log2(1 + rank)).
        max_length: an upper bound of the list lengths, which saves a synchronisation.

    Returns:
        The coefficients `(N,)` of the scores in psi(y*) - psi(y), and the loss `(Q,)` of y. A list with one class has
        coefficients and loss 0.

    Example:
        >>> scores, labels, offsets = torch.tensor([1.2, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
        >>> most_violated(scores, labels, offsets, measure="auc")
        (tensor([-2.,  2.,  0.]), tensor([1., 0.]))
    """
    check(scores, labels, offsets)
    if readable(scores) and not math.isfinite(read(scores.sum())) and (count := read(scores.isinf().sum())):
        raise ValueError(f"scores must be finite, got {count} infinite ones of {len(scores)}: psi would have no value")
    _check_options(measure, k, threshold, discount)
    relevant, dtype = labels >= threshold, result_dtype(scores)
    coefficients, loss = _most_violated(scores.detach(), relevant, offsets, measure, k, discount, max_length)
    return coefficients.to(dtype), loss.to(dtype)


@takes_arrays
def structured_hinge(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Structured hinge loss: the largest loss(y) - (psi(y*) - psi(y)) over all rankings y of each list.

    It is an upper bound of the loss of the ranking by the scores. Its gradient is minus the coefficients of
    `most_violated`, where psi, y* and the losses are explained.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        measure: the loss is 1 minus this measure: "map", "auc", "precision", "mrr" or "ndcg".
        k: the cut-off, which "precision" needs and "ndcg" may have; the other measures ignore it.
        threshold: entries with at least this label are relevant.
        discount: that of "ndcg": "letor" (1, 1, 1/log2(3), ...) or "log2p1" (1/log2(1 + rank)).
        weights: importance of each entry, `(N,)`: as in TF-Ranking's losses of whole lists, the loss of a list is
            multiplied by the mean weight of its relevant entries.
        list_weights: importance of each list, `(Q,)`, by which its loss is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: not needed by this loss.
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form; the second derivative is 0, because the loss
        is linear in pieces.

    Example:
        >>> scores, labels, offsets = torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
        >>> structured_hinge(scores, labels, offsets, measure="auc")
        tensor([1., 0.])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    _check_options(measure, k, threshold, discount)
    options = {"measure": measure, "k": k, "threshold": threshold, "discount": discount, "max_length": max_length}
    return _LOSS(scores, labels, offsets, weights, list_weights, **options)


def _check_options(measure: str, k: int | None, threshold: float, discount: str) -> None:
    check_choice(MEASURES, measure=measure)
    if discount not in DISCOUNTS:  # NDCG of the whole list needs a discount that is convex, or almost
        raise ValueError(f"unknown discount={discount!r}: choose one of {', '.join(DISCOUNTS)}")
    if isinstance(threshold, str):
        raise ValueError(f"threshold must be a number, the lowest label of a relevant entry, got {threshold!r}")
    check_cutoff(k)
    if measure == "precision" and k is None:
        raise ValueError("measure='precision' needs the cut-off k, the number of ranks that count")


def hinge_and_gradient(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, *, threshold: float, **options: Any
) -> tuple[Tensor, Tensor]:
    """The hinge of each list, `(Q,)`, and its gradient at the scores, `(N,)`, in float64; `options` are those of
    `most_violated`."""
    relevant, largest, values = labels >= threshold, torch.finfo(result_dtype(scores)).max, wide(scores)
    scale = _scale(values, offsets)
    values = values * per_entry(scale, offsets, len(values))
    coefficients, loss = _most_violated(values, relevant, offsets, *(options[name] for name in OPTIONS))
    several = has_pairs(relevant, offsets)
    values = torch.where(per_entry(several, offsets, len(values)), values, 0.0)  # else 0, whatever the scores are
    sizes, tiny = coefficients.abs(), torch.finfo(values.dtype).tiny
    # the mean of the misplaced scores is subtracted, so that no digits are lost to a shift or to scores far away
    means = segment_sum(sizes * values, offsets) / segment_sum(sizes, offsets).clamp(min=tiny)
    centred = values - per_entry(means, offsets, len(values))
    hinge = (scale * loss - segment_sum(coefficients * centred, offsets)) / scale
    factor = torch.where(hinge.isnan(), torch.nan, 1.0)
    if weights is not None:
        total = segment_sum(torch.where(relevant, wide(weights), 0), offsets)
        factor = factor * ratio(total, segment_sum(wide(relevant), offsets), 0.0)
    return hinge.clamp(-largest, largest) * factor, -coefficients * per_entry(factor, offsets, len(values))


_LOSS = ListLoss("structured_hinge", hinge_and_gradient, no_curvature)


def _scale(values: Tensor, offsets: Tensor) -> Tensor:
    """1 for each list, `(Q,)`; a smaller power of two where scores are so large that their sums would be infinite."""
    largest = segment_max(values.abs(), offsets)
    return torch.where(largest > torch.finfo(values.dtype).max * 2.0**-40, 2.0**-40, torch.ones_like(largest))


OPTIONS = ("measure", "k", "discount", "max_length")  # in the order of `_find`


def _find(
    scores: Tensor, relevant: Tensor, offsets: Tensor, measure: str, k: int | None, discount: str, longest: int | None
) -> tuple[Tensor, Tensor]:
    """Coefficients `(N,)` and loss `(Q,)` in float64.

    On the CPU, where reading lengths is free, lists of similar length are solved together, and not too many at a time.
    """
    solve, num_lists = partial(_find_together, measure=measure, k=k, discount=discount), len(offsets) - 1
    if offsets.device.type != "cpu":
        return solve(scores, relevant, offsets, longest)
    longest = longest_list(offsets, len(scores), longest)
    if num_lists * longest <= CACHED_NUMBERS:
        return solve(scores, relevant, offsets, longest)
    coefficients, loss = wide(scores).new_empty(len(scores)), wide(scores[:0]).new_zeros(num_lists)

    def write(chunk: Chunk) -> None:
        entries, bounds = _entries(offsets, chunk.lists)
        coefficients[entries], loss[chunk.lists] = solve(scores[entries], relevant[entries], bounds, chunk.longest)

    most = min(CACHED_NUMBERS, num_lists * longest // torch.get_num_threads())
    side_by_side(write, length_chunks(offsets, len(scores), most, similar=0.5), scores.device)
    return coefficients, loss


def _entries(offsets: Tensor, lists: Tensor) -> tuple[Tensor | slice, Tensor]:
    """The entries of these lists, as a slice if the lists follow one another, and the offsets of the result."""
    if not read((lists.diff() == 1).all()):
        return entries_of(offsets, lists)
    bounds = offsets[lists[0] : lists[-1] + 2]
    return slice(read(bounds[0]), read(bounds[-1])), bounds - bounds[0]


def _no_values(scores: Tensor, relevant: Tensor, offsets: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    loss, coefficients = empty_sums(scores, relevant, offsets)
    return coefficients, loss


_most_violated = one_operation("most_violated", _find, _no_values)


def _find_together(
    scores: Tensor, relevant: Tensor, offsets: Tensor, longest: int | None, measure: str, k: int | None, discount: str
) -> tuple[Tensor, Tensor]:
    """`_find` for all lists at once, as rows of equal length."""
    merged = merge(scores, relevant, offsets, max_length=longest, lower=0.5 if measure == "auc" else 0.0)
    width = merged.order.shape[1]
    if width == 0:
        return wide(scores).new_empty(0), wide(scores).new_zeros(len(offsets) - 1)
    inversions, loss = MEASURES[measure](merged, min(k or width, width), discount)
    return merged.coefficients(inversions), torch.where(merged.scale[:, 0] > 0, loss, 0)


def _ndcg(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    discounts = discount_of(torch.arange(1, k + 1, device=merged.above.device), discount)
    if k < merged.above.shape[1]:
        return top_ndcg(merged, discounts)
    return whole_ndcg(merged, discounts, convex=discount != "letor")


# the inversions `(Q, L)` and the loss `(Q,)` of the most violated ranking
MEASURES: dict[str, Callable[[Merged, int, str], tuple[Tensor, Tensor]]] = {
    "auc": lambda merged, k, discount: whole_auc(merged),
    "precision": lambda merged, k, discount: top_precision(merged, k),
    "map": lambda merged, k, discount: whole_average_precision(merged),
    "mrr": lambda merged, k, discount: whole_mrr(merged),
    "ndcg": _ndcg,
}

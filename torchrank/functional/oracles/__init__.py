"""The most violated ranking of each list under five measures (McFee & Lanckriet, ICML 2010), and its hinge loss.

Some most violated ranking keeps each class in the order of its scores. Such a ranking is described by b_i, the number
of irrelevant entries before the i-th best relevant one: see merged.py. The measures of the first k ranks are in
top_k.py; average precision and NDCG of the whole list, which are sums over irrelevant entries, are in whole_list.py.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.gains import DISCOUNTS, discount_of
from torchrank.functional.operations import ListLoss, empty_sums, no_curvature, one_operation, readable
from torchrank.functional.oracles.merged import Merged, merge, running_sums
from torchrank.functional.oracles.top_k import cut_ndcg, cut_precision
from torchrank.functional.oracles.whole_list import average_precision_places, ndcg_places
from torchrank.functional.ragged import (
    entries_of,
    has_pairs,
    list_ids,
    longest_list,
    read,
    segment_max,
    segment_sum,
    wide,
)
from torchrank.functional.ranking import check, check_cutoff, check_lists, check_weights, ratio, result_dtype
from torchrank.functional.threads import side_by_side

HOST_NUMBERS = 2**17  # numbers in the rows that are made at once on the CPU: all temporary tensors stay in the cache

Oracle = Callable[..., Tensor]


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
    coefficients, loss = _operation(scores.detach(), labels, offsets, measure, k, threshold, discount, max_length)
    dtype = result_dtype(scores)
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
    return _LOSS(
        scores,
        labels,
        offsets,
        weights,
        list_weights,
        measure=measure,
        k=k,
        threshold=threshold,
        discount=discount,
        max_length=max_length,
    )


def _hinge(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    measure: str,
    k: int | None,
    threshold: float,
    discount: str,
    max_length: int | None,
) -> tuple[Tensor, Tensor]:
    """The hinge of each list, `(Q,)`, and its slopes, `(N,)`."""
    ids, most, values = list_ids(offsets, len(scores)), torch.finfo(result_dtype(scores)).max, wide(scores)
    scale = _scale(values, offsets)
    values = values * scale[ids]
    coefficients, loss = _operation(values, labels, offsets, measure, k, threshold, discount, max_length)
    several = has_pairs((labels >= threshold).long(), offsets)
    values = torch.where(several[ids], values, 0.0)  # without pairs the hinge is 0 whatever the scores are
    sizes, tiny = coefficients.abs(), torch.finfo(values.dtype).tiny
    # the mean of the misplaced scores is subtracted, so that no digits are lost to a shift or to scores far away
    means = segment_sum(sizes * values, offsets) / segment_sum(sizes, offsets).clamp(min=tiny)
    hinge = ((scale * loss - segment_sum(coefficients * (values - means[ids]), offsets)) / scale).clamp(-most, most)
    slopes = torch.where(hinge.isnan()[ids], torch.nan, -coefficients)
    if weights is None:
        return hinge, slopes
    relevant = wide(labels >= threshold)
    mean = ratio(segment_sum(relevant * wide(weights), offsets), segment_sum(relevant, offsets), 0.0)
    return hinge * mean, slopes * mean[ids]


_LOSS = ListLoss("structured_hinge", _hinge, no_curvature)


def _scale(values: Tensor, offsets: Tensor) -> Tensor:
    """1 for each list, `(Q,)`; a smaller power of two where scores are so large that their sums would be infinite."""
    largest = segment_max(values.abs(), offsets)
    one = torch.ones_like(largest)
    return torch.where(largest > torch.finfo(values.dtype).max * 2.0**-40, one * 2.0**-40, one)


def _violate(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    measure: str,
    k: int | None,
    threshold: float,
    discount: str,
    max_length: int | None,
) -> tuple[Tensor, Tensor]:
    """Coefficients `(N,)` and loss `(Q,)` in float64."""
    check_choice(ORACLES, measure=measure)
    if discount not in DISCOUNTS:  # NDCG of the whole list needs a discount that is convex, or almost
        raise ValueError(f"unknown discount={discount!r}: choose one of {', '.join(DISCOUNTS)}")
    if isinstance(threshold, str):
        raise ValueError(f"threshold must be a number, the lowest label of a relevant entry, got {threshold!r}")
    check_cutoff(k)
    if measure == "precision" and k is None:
        raise ValueError("measure='precision' needs the cut-off k, the number of ranks that count")
    relevant, oracle = labels >= threshold, partial(_oracle, measure=measure, k=k, discount=discount)
    coefficients = wide(scores[:0]).new_empty(len(scores))
    if offsets.device.type != "cpu":
        return coefficients, oracle(scores, relevant, offsets, out=coefficients, max_length=max_length)
    longest = longest_list(offsets, len(scores), max_length)
    return coefficients, _in_parts(oracle, scores, relevant, offsets, coefficients, longest)


def _empty(scores: Tensor, labels: Tensor, offsets: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    loss, coefficients = empty_sums(scores, labels, offsets)
    return coefficients, loss


_operation = one_operation("most_violated", _violate, _empty)


def _in_parts(oracle: Oracle, scores: Tensor, relevant: Tensor, offsets: Tensor, out: Tensor, longest: int) -> Tensor:
    """`_oracle` on the CPU, where reading lengths is free: some lists at a time, and lists of similar length together
    if rows of equal length would be mostly empty."""
    num_lists = len(offsets) - 1
    if num_lists * longest <= HOST_NUMBERS:
        return oracle(scores, relevant, offsets, out=out, max_length=longest)
    loss = out.new_empty(num_lists)
    if num_lists * longest > 4 * len(scores):
        for lists, entries, bounds in _by_length(offsets, longest):
            found, most = out.new_empty(len(entries)), longest_list(bounds, len(entries), None)
            loss[lists] = _in_parts(oracle, scores[entries], relevant[entries], bounds, found, most)
            out[entries] = found
        return loss

    room = min(HOST_NUMBERS, num_lists * longest // torch.get_num_threads())
    starts, step = read(offsets), max(1, room // longest)

    def fill(lists: slice) -> None:
        bounds = offsets[lists.start : lists.stop + 1]
        entries = slice(starts[lists.start], starts[lists.stop])
        some = scores[entries], relevant[entries], bounds - entries.start
        loss[lists] = oracle(*some, out=out[entries], max_length=None)

    parts = [slice(first, min(first + step, num_lists)) for first in range(0, num_lists, step)]
    side_by_side(fill, parts, scores.device)
    return loss


def _by_length(offsets: Tensor, longest: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The lists with 0, 1, 2-3, 4-7, ... entries: the numbers of the lists, their entries, and the offsets of these."""
    ordered, order = offsets.diff().sort()
    edges = read(torch.searchsorted(ordered, 2 ** torch.arange(longest.bit_length() + 1)))
    for first, last in pairwise([0, *edges]):
        if last > first:
            yield order[first:last], *entries_of(offsets, order[first:last])


def _oracle(
    scores: Tensor,
    relevant: Tensor,
    offsets: Tensor,
    measure: str,
    k: int | None,
    discount: str,
    out: Tensor,
    max_length: int | None,
) -> Tensor:
    """The loss `(Q,)`; the coefficients are written to `out (N,)`."""
    merged = merge(scores, relevant, offsets, max_length=max_length, lower=0.5 if measure == "auc" else 0.0)
    longest = merged.order.shape[1]
    if longest == 0:
        return out.new_zeros(len(offsets) - 1)
    inversions, loss = ORACLES[measure](merged, min(k or longest, longest), discount)
    merged.write_coefficients(inversions, out)
    return torch.where(merged.scale[:, 0] > 0, loss, 0)


def _auc(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    """Pair (i, j) is inverted if and only if s_i - s_j < 1/2: the ranking when relevant entries score 1/2 less.

    P - t(j) pairs are inverted at the j-th irrelevant entry, and the sum of P - i over the relevant ones is known.
    Floats take half the time of integers here; after the end of a list nothing is relevant.
    """
    relevant, places = merged.counts[0], merged.order.shape[1]
    lost = relevant * places - merged.above.sum(1, keepdim=True) - relevant * (relevant - 1) // 2
    ones, above, ranks = wide(merged.ones), wide(merged.above), torch.arange(1, places + 1, device=relevant.device)
    return torch.lerp(above - wide(relevant), wide(ranks) - above, ones), (lost * merged.scale)[:, 0] / 2


def _mrr(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    """b_1 = beta and b_i = max(m_i, beta) with the best beta: one candidate at each irrelevant entry, and beta = 0."""
    above, below, scale, scores = merged.above, merged.below, merged.scale, merged.scores()
    sums, first = running_sums(merged, scores), merged.nth(above, 1)[:, 1:]
    score, least = scores.gather(1, first), sums.costs.gather(1, first)
    several = sums.costs - above * sums.irrelevant + below * sums.relevant
    cost = torch.where(above > 0, several, least - sums.irrelevant + below * score)
    values = torch.where(merged.irrelevant, below / wide(below + 1) - scale * cost, -torch.inf)
    value, place = values.max(1, keepdim=True)
    beta = torch.where(value >= -scale * least, below.gather(1, place), 0)
    before_relevant = torch.where(above == 1, beta, torch.maximum(below, beta))
    before_irrelevant = torch.where(below <= beta, 0, above.clamp(min=1))
    return merged.inversions(before_relevant, before_irrelevant), (beta / wide(beta + 1))[:, 0]


def _ndcg(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    discounts = discount_of(torch.arange(1, k + 1, device=merged.above.device), discount)
    if k < merged.above.shape[1]:
        return cut_ndcg(merged, discounts)
    return ndcg_places(merged, discounts, convex=discount != "letor")


def _precision(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    return cut_precision(merged, k)


def _map(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    return average_precision_places(merged)


ORACLES = {"auc": _auc, "precision": _precision, "map": _map, "mrr": _mrr, "ndcg": _ndcg}

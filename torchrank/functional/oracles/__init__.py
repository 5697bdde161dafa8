"""The most violated ranking of each list under five measures (McFee & Lanckriet, ICML 2010), and the hinge it gives.

Nothing is lost by keeping each class in the order of its scores, so a ranking is written by b_i, how many irrelevant
entries stand before the i-th best relevant one: see merged.py. Measures that look at the first k places are in
cut_oracles.py, those that add up over irrelevant entries in placement.py.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from torchrank.functional.chunks import keep_freed_memory, side_by_side
from torchrank.functional.gains import DISCOUNTS, discount_of
from torchrank.functional.known_gradient import KnownGradient
from torchrank.functional.oracles.merged import Merged, merge, running_sums
from torchrank.functional.oracles.top_k import cut_ndcg, cut_precision
from torchrank.functional.oracles.whole_list import average_precision_places, ndcg_places
from torchrank.functional.ragged import (
    entries_of,
    has_pairs,
    list_ids,
    longest_list,
    read,
    segment_sum,
    wide,
)
from torchrank.functional.ranking import check, check_cutoff, check_lists, result_dtype

HOST_NUMBERS = 2**18  # of the rows made at once on the host: what is made of them stays in the cache


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
    """Coefficients `(N,)` of psi(y*) - psi(y) in the entries, and the loss `(Q,)` of the ranking y that violates most.

    psi(y) is the mean of +-(s_i - s_j) over the pairs of a relevant and an irrelevant entry, + where i stands first; y*
    has all relevant entries first. The y found maximises loss(y) - (psi(y*) - psi(y)). Entries with
    `labels >= threshold` are relevant; the loss is 1 minus the AUC, precision@k (out of min(k, P)), average precision,
    reciprocal rank of the first, or NDCG@k with gains 0 and 1. Only "precision", which needs it, and "ndcg" read `k`.
    Exact, O(n log n) (+ k^2 for NDCG@k). A list with one class has coefficients and loss 0.

    >>> most_violated(torch.tensor([1.2, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]), measure="auc")
    (tensor([-2.,  2.,  0.]), tensor([1., 0.]))
    """
    check(scores, labels, offsets)
    if scores.device.type == "cpu" and not math.isfinite(read(scores.sum())) and (count := read(scores.isinf().sum())):
        raise ValueError(f"{count} of {len(scores)} scores are infinite: psi has no value")
    coefficients, loss = _violate(scores.detach(), labels, offsets, measure, k, threshold, discount, max_length)
    dtype = result_dtype(scores)
    return coefficients.to(dtype), loss.to(dtype)


def structured_hinge(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    measure: str = "map",
    k: int | None = None,
    threshold: float = 1,
    discount: str = "letor",
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """Largest loss(y) - (psi(y*) - psi(y)) over all rankings y of each list, `(Q,)`: a bound of the loss of the ranking
    by the scores. Its gradient is minus the coefficients of `most_violated`, where the options are explained.

    >>> structured_hinge(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]), measure="auc")
    tensor([1., 0.])
    """
    check_lists(scores, labels, offsets)
    coefficients, loss = _violate(scores.detach(), labels, offsets, measure, k, threshold, discount, max_length)
    ids, dtype, values = list_ids(offsets, len(scores)), result_dtype(scores), wide(scores.detach())
    several = has_pairs((labels >= threshold).long(), offsets)
    values = torch.where(several[ids], values, 0.0)  # without pairs the hinge is 0 whatever the scores are
    weights, tiny = coefficients.abs(), torch.finfo(values.dtype).tiny
    # the mean of what stands wrong: no digits are lost to a shift, nor to scores far away
    means = segment_sum(weights * values, offsets) / segment_sum(weights, offsets).clamp(min=tiny)
    hinge = loss - segment_sum(coefficients * (values - means[ids]), offsets)
    slopes = 0 * hinge[ids] - coefficients  # nan where the hinge is
    return KnownGradient.apply(scores, hinge.to(dtype), slopes.to(dtype), ids)


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
    """Coefficients `(N,)` and loss `(Q,)`, wide."""
    if measure not in ORACLES:
        raise ValueError(f"unknown measure {measure!r}: choose one of {sorted(ORACLES)}")
    if discount not in DISCOUNTS:  # the whole NDCG needs one that is convex, or almost
        raise ValueError(f"unknown discount {discount!r}: choose one of {sorted(DISCOUNTS)}")
    if isinstance(threshold, str):
        raise ValueError(f"threshold={threshold!r} is the lowest label of a relevant entry, a number")
    check_cutoff(k)
    if measure == "precision" and k is None:
        raise ValueError("measure='precision' needs its cut-off k, the number of places that count")
    relevant, oracle = labels >= threshold, partial(_oracle, measure=measure, k=k, discount=discount)
    coefficients = wide(scores[:0]).new_empty(len(scores))
    if offsets.device.type != "cpu":
        return coefficients, oracle(scores, relevant, offsets, out=coefficients, max_length=max_length)
    keep_freed_memory()
    longest = longest_list(offsets, len(scores), max_length)
    return coefficients, _in_parts(oracle, scores, relevant, offsets, coefficients, longest)


def _in_parts(oracle: Callable, scores: Tensor, relevant: Tensor, offsets: Tensor, out: Tensor, longest: int) -> Tensor:
    """`_oracle` on the host, where looking at lengths is free: some lists at a time, and if rows of one length would be
    mostly empty, those of similar length together."""
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
    """The lists of 0, of 1, of 2-3, of 4-7, ... entries: their numbers, their entries, and the offsets of these."""
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
    """Loss `(Q,)`, and the coefficients written to `out (N,)`."""
    merged = merge(scores, relevant, offsets, max_length=max_length, lower=0.5 if measure == "auc" else 0.0)
    longest = merged.order.shape[1]
    if longest == 0:
        return out.new_zeros(len(offsets) - 1)
    inversions, loss = ORACLES[measure](merged, min(k or longest, longest), discount)
    merged.write_coefficients(inversions, out)
    return torch.where(merged.scale[:, 0] > 0, loss, 0)


def _auc(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    """Pair (i, j) is inverted if and only if s_i - s_j < 1/2: the ranking in which relevant entries have 1/2 less.

    P - t(j) pairs are inverted at the j-th irrelevant entry, and the sum of P - i over the relevant ones is known.
    In floats this takes half the time that it takes in integers; behind the end of a list nothing is relevant.
    """
    relevant, places = merged.counts[0], merged.order.shape[1]
    lost = relevant * places - merged.above.sum(1, keepdim=True) - relevant * (relevant - 1) // 2
    ones, above, ranks = wide(merged.ones), wide(merged.above), torch.arange(1, places + 1, device=relevant.device)
    return torch.lerp(above - wide(relevant), wide(ranks) - above, ones), (lost * merged.scale)[:, 0] / 2


def _mrr(merged: Merged, k: int, discount: str) -> tuple[Tensor, Tensor]:
    """b_1 = beta and b_i = max(m_i, beta), with the best beta: a candidate at each irrelevant entry, and beta = 0."""
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

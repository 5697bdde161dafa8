"""Differentiable losses of rankings: one value per list, `(Q,)`.

Lists are flat: `scores` and `labels` hold the entries of all lists one after another, and list q is
`offsets[q]:offsets[q + 1]`. Two queries, with three and with two documents:

    >>> scores = torch.tensor([0.2, 1.5, 0.7, 3.0, 1.0], requires_grad=True)
    >>> labels = torch.tensor([0, 2, 1, 0, 1])
    >>> offsets = torch.tensor([0, 3, 5])
    >>> loss = ranknet_loss(scores, labels, offsets)
    >>> loss.detach()
    tensor([1.0862, 2.1269])

A training step takes their mean:

    >>> loss.mean().backward()
    >>> scores.grad
    tensor([ 0.2959, -0.2621, -0.0338,  0.4404, -0.4404])

How good the ranking is, is a question for the measures (`ndcg(scores, labels, offsets)`, or several of them by
`evaluate`). `LOSSES` holds all losses by name. A list whose labels are all equal gives a 0 that is connected to the
graph, so that `backward` works on any batch.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.domination import domination_loss
from torchrank.functional.gains import check_gains, discount_of, gain_of, ideal_dcg
from torchrank.functional.losses.listnet import listnet_sums
from torchrank.functional.losses.pairs import Weights, pair_sums
from torchrank.functional.operations import empty_sums, one_operation, with_slopes
from torchrank.functional.oracles import structured_hinge
from torchrank.functional.ragged import (
    dominating,
    list_ids,
    longest_list,
    per_entry,
    ranks,
    segment_cumsum,
    segment_sum,
    wide,
)
from torchrank.functional.ranking import check_cutoff, check_lists, count_grades, levels_of, ratio, result_dtype
from torchrank.functional.sorting import sort_keys


@takes_arrays
def listnet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """ListNet: cross entropy of softmax(labels) and softmax(scores) over the list (Cao et al. 2007, top one).

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        max_length, num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and can be differentiated again.

    Example:
        >>> listnet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    return listnet_sums(scores, labels, offsets).to(result_dtype(scores))


@takes_arrays
def ranknet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """RankNet: sum of log(1 + exp(-(s_i - s_j))) over the pairs of the list with y_i > y_j (Burges et al. 2005).

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        max_length: an upper bound of the list lengths, which is only checked.
        num_grades: not needed by this loss.
        num_pairs: the number of pairs with different labels in all lists; None counts them, which synchronises.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and has no second derivative.

    Example:
        >>> ranknet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    return _pair_loss(scores, labels, offsets, None, max_length, num_pairs)


@takes_arrays
def lambdarank_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """LambdaRank: RankNet's sum with each pair weighted by the change of NDCG@k if the two swapped ranks (Burges 2010).

    The weights |gain_i - gain_j| |discount_i - discount_j| / ideal DCG@k belong to the current order (equal scores keep
    the order of the entries) and are constants: no gradient flows through them.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the cut-off of NDCG: ranks beyond k have discount 0; None counts the whole list.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: the number of pairs with different labels in all lists; None counts them, which synchronises.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and has no second derivative.

    Example:
        >>> lambdarank_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.2558, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_cutoff(k)
    longest = longest_list(offsets, len(scores), max_length)
    rank = ranks(scores, offsets, max_length=longest)
    discounts = discount_of(rank)
    if k is not None:
        discounts = torch.where(rank <= k, discounts, 0)
    grades = count_grades(labels, num_grades)
    check_gains(labels, "exp2", grades)
    (ideal,) = ideal_dcg(
        labels, offsets, cutoffs=[k], gain="exp2", discount="log2p1", longest=longest, num_grades=grades
    )
    gains = gain_of(labels) * per_entry(ratio(torch.ones_like(ideal), ideal, 0.0), offsets, len(labels))
    return _pair_loss(scores, labels, offsets, Weights(gains, discounts), longest, num_pairs)


@takes_arrays
def warp_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: float = 0.1,
    negatives: str = "lower",
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """WARP: the mean over the entries i that have a negative of L(|V|) / |V| sum_V (margin - s_i + s_j).

    L are the `rank_weights`; V is the set of the negatives j of i with margin + s_j > s_i. This is the exact form of
    WARP (Weston et al. 2011), Su, King & Lyu 2017, eq. 17. The weights are constants, so the loss jumps where an entry
    joins V. It costs O(N log N) and forms no pairs.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        margin: by how much an entry should score above its negatives.
        negatives: the negatives of an entry: "lower" are those with a smaller label, "zero" those with label 0.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and has no second derivative.

    Example:
        >>> warp_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.1000, 0.0000])
    """
    check_lists(scores, labels, offsets)
    labels, num_grades = warp_labels(labels, negatives), num_grades if negatives == "lower" else 2
    s, graph = wide(scores), torch.is_grad_enabled()
    loss, slopes = _warp_sums(s.detach(), labels, offsets, margin, max_length, num_grades, graph)
    loss = with_slopes(s, loss, slopes, list_ids(offsets, len(scores))) if graph else loss
    return loss.to(result_dtype(scores))


def _warp(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    margin: float,
    max_length: int | None,
    num_grades: int | None,
    graph: bool,
) -> tuple[Tensor, Tensor]:
    """The loss `(Q,)` in float64 and, if somebody needs them for a graph, its slopes `(N,)`.

    The negatives of an entry are those with a smaller label.
    """
    longest, ids = longest_list(offsets, len(scores), max_length), list_ids(offsets, len(scores))
    levels, num_levels = levels_of(labels, offsets, max_length=longest, num_grades=num_grades)
    splits = list(_splits(scores, margin + scores, levels, ids, lists=len(offsets) - 1, num_levels=num_levels))
    violators, hinges = _violations(scores, splits, longest)
    eligible = wide(dominating(levels, offsets))
    shares = ratio(eligible, segment_sum(eligible, offsets)[ids], 0.0)
    weights = shares * rank_weights(longest, scores.device)[violators] / violators.clamp(min=1)
    loss = segment_sum(weights * hinges, offsets)
    if not graph:
        return loss, torch.zeros_like(scores)
    slopes = _pulls(weights, splits, longest) - weights * violators
    return loss, torch.where(loss.isnan()[ids], torch.nan, slopes)


_warp_sums = one_operation("warp", _warp, empty_sums)


def rank_weights(longest: int, device: torch.device | str | None = None) -> Tensor:
    """What WARP pays for k violators: L(k) = sum of 1/log2(i + 1) over i = 1..k.

    Args:
        longest: the largest k.
        device: where the result is made.

    Returns:
        L(k) for k = 0..longest in float64, `(longest + 1,)`.

    Example:
        >>> rank_weights(3)
        tensor([0.0000, 1.0000, 1.6309, 2.1309], dtype=torch.float64)
    """
    rank = wide(torch.arange(1, longest + 1, device=device))
    return torch.nn.functional.pad((1 / torch.log2(rank + 1)).cumsum(0), (1, 0))


def warp_labels(labels: Tensor, negatives: str) -> Tensor:
    """Labels for which the negatives of an entry are exactly the entries of its list with a smaller label.

    >>> warp_labels(torch.tensor([2, 0, 1]), "zero").tolist()
    [1, 0, 1]
    """
    check_choice(("lower", "zero"), negatives=negatives)
    return labels if negatives == "lower" else (labels > 0).long()


class _Split(NamedTuple):
    """Entries in groups, within a group from the highest key to the lowest."""

    order: Tensor  # (N,) entries in this order
    groups: Tensor  # (G+1,) offsets of the groups
    upper: Tensor  # (N,) True: may be an i, False: may be a j
    keys: Tensor  # (N,)


def _splits(
    upper_keys: Tensor, lower_keys: Tensor, levels: Tensor, ids: Tensor, *, lists: int, num_levels: int
) -> Iterator[_Split]:
    """All pairs of a list with levels[i] > levels[j], without forming them: one split per bit of the levels.

    Two levels agree down to the bit at which they separate; there i has a 1 and j a 0. So for each bit the entries that
    agree above it form a group, the ones (`upper`) with their upper key and the zeros with their lower key, sorted by
    descending key and at equal keys ones first: the zeros before a one are its j with lower_keys[j] > upper_keys[i].
    """
    both = sort_keys(torch.cat([upper_keys, lower_keys]), torch.cat([ids, ids]), lists=lists)
    places = torch.empty_like(both).scatter(0, both, torch.arange(len(both), device=both.device))
    upper_places, lower_places = places.tensor_split(2)
    for bit in range((num_levels - 1).bit_length()):
        one, prefix = (levels >> bit & 1).bool(), levels >> bit + 1
        order = torch.where(one, upper_places, lower_places).add_(prefix, alpha=len(both)).argsort()
        group = (prefix * lists + ids)[order]
        num_groups = ((num_levels - 1 >> bit + 1) + 1) * lists
        groups = torch.searchsorted(group, torch.arange(num_groups + 1, device=group.device))
        yield _Split(order, groups, one[order], torch.where(one, upper_keys, lower_keys)[order])


def _violations(scores: Tensor, splits: list[_Split], longest: int) -> tuple[Tensor, Tensor]:
    """|V| and the sum over V of (lower key of j - upper key of i) for every entry i, `(N,)` each.

    The sum adds the steps from key to key down to i, each multiplied by the number of j above it. No term is negative,
    so no digits cancel, however large the scores are.
    """
    violators = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    hinges = torch.where(scores.isnan(), scores, 0.0)  # NaN scores must not have the smallest loss
    for order, groups, upper, keys in splits:
        lower = (~upper).long()
        above = segment_cumsum(lower, groups) - lower
        before = keys.roll(1)
        steps = torch.where((above > 0) & (before != keys), above * (before - keys), 0.0)
        violators.index_add_(0, order, above * upper)
        hinges.index_add_(0, order, torch.where(upper, segment_cumsum(steps, groups, max_length=longest), 0.0))
    return violators, hinges


def _pulls(weights: Tensor, splits: list[_Split], longest: int) -> Tensor:
    """For every entry j the sum of the weights of those i that have j among their violators, `(N,)`."""
    pulls = torch.zeros_like(weights)
    for order, groups, upper, _ in splits:
        backwards = torch.where(upper, weights[order], 0.0).flip(0)
        below = segment_cumsum(backwards, len(weights) - groups.flip(0), max_length=longest).flip(0)
        pulls.index_add_(0, order, torch.where(upper, 0.0, below))
    return pulls


def _pair_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Weights | None,
    max_length: int | None,
    num_pairs: int | None,
) -> Tensor:
    """The loss `(Q,)` of weighted pairs, connected to the graph."""
    loss, slopes = pair_sums(scores, labels, offsets, weights, max_length=max_length, num_pairs=num_pairs)
    dtype = result_dtype(scores)
    return with_slopes(scores, loss.to(dtype), slopes.to(dtype), list_ids(offsets, len(scores)))


LOSSES: dict[str, Callable[..., Tensor]] = {  # by name
    "listnet": listnet_loss,
    "ranknet": ranknet_loss,
    "lambdarank": lambdarank_loss,
    "warp": warp_loss,
    "domination": domination_loss,
    "structured_hinge": structured_hinge,
}

"""WARP: the exact weighted approximate-rank pairwise loss, without forming pairs."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import takes_arrays
from torchrank.functional.operations import ListLoss, empty_sums, in_forward_mode, no_curvature, one_operation
from torchrank.functional.ragged import dominating, list_ids, longest_list, segment_cumsum, segment_sum, wide
from torchrank.functional.ranking import check_lists, check_weights, levels_of, ratio, result_dtype
from torchrank.functional.sorting import sort_keys, stable_order


@takes_arrays
def warp_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    margin: float = 0.1,
    negatives: str = "lower",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
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
        weights: importance of each entry, `(N,)`, by which what it pays as i is multiplied. The mean still divides by
            the number of these entries.
        list_weights: importance of each list, `(Q,)`, by which its loss is multiplied.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form; the second derivative is 0, because the loss
        is linear between its jumps.

    Example:
        >>> warp_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.1000, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    labels, num_grades = warp_labels(labels, negatives), num_grades if negatives == "lower" else 2
    loss = _LOSS(
        wide(scores),
        labels,
        offsets,
        weights,
        list_weights,
        margin=margin,
        max_length=max_length,
        num_grades=num_grades,
        graph=torch.is_grad_enabled() or in_forward_mode(),
    )
    return loss.to(result_dtype(scores))


def _warp(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
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
    prices = shares * rank_weights(longest, scores.device)[violators] / violators.clamp(min=1)
    prices = prices if weights is None else prices * wide(weights)
    loss = segment_sum(prices * hinges, offsets)
    if not graph:
        return loss, torch.zeros_like(scores)
    slopes = _pulls(prices, splits, longest) - prices * violators
    return loss, torch.where(loss.isnan()[ids], torch.nan, slopes)


_operation = one_operation("warp", _warp, empty_sums)


def _sums(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    margin: float,
    max_length: int | None,
    num_grades: int | None,
    graph: bool,
) -> tuple[Tensor, Tensor]:
    return _operation(scores, labels, offsets, weights, margin, max_length, num_grades, graph)


_LOSS = ListLoss("warp_loss", _sums, no_curvature)


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
        keys = torch.where(one, upper_places, lower_places).add_(prefix, alpha=len(both))
        order = stable_order(keys, num_levels * len(both))
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

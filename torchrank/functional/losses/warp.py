"""WARP: the exact weighted approximate-rank pairwise loss, without forming pairs."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from torchrank.errors import check_choice
from torchrank.functional.arrays import Array, wide
from torchrank.functional.autograd import OnceDifferentiable
from torchrank.functional.lists import Block, Lists, Weighted, loss
from torchrank.functional.losses.pair_blocks import ABOVE
from torchrank.functional.ranking import ratio
from torchrank.functional.sorting import order_within, stable_order


@loss
def warp_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    margin: float = 0.1,
    negatives: str = "lower",
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """WARP: the mean over the entries i that have a negative of L(|V|) / |V| sum_V (margin - s_i + s_j).

    L are the `rank_weights`; V is the set of the negatives j of i with margin + s_j > s_i. This is the exact form of
    WARP (Weston et al. 2011), Su, King & Lyu 2017, eq. 17. The weights are constants, so the loss jumps where an entry
    joins V. It costs O(N log N) and forms no pairs.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        margin: by how much an entry should score above its negatives.
        negatives: the negatives of an entry: "lower" are those with a smaller label, "zero" those with label 0.
        weights: importance of each entry, `(N,)`, which multiplies its term as i. The mean still divides by the number
            of these entries.
        list_weights: importance of each list, `(Q,)`, by which its loss is multiplied.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form.

    Example:
        >>> warp_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.1000, 0.0000])
    """
    _LOSS.check_constant(labels=labels)
    labels, lists = warp_labels(labels, negatives), offsets
    if negatives == "zero":
        lists = offsets.regraded(2)
    return _LOSS(wide(scores), labels, lists, weights, rise=margin)


def _sums(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, order: int, *, rise: float
) -> tuple[Tensor, ...]:
    """The loss `(Q,)` in float64 and its gradient `(N,)`. The negatives of an entry are those with a smaller label."""
    if lists.small is None:
        violators, hinges, received = _compare(scores, labels, lists, rise)
    else:
        violators, hinges, received = _compare_small(scores, labels, lists.small, rise)
    eligible = wide(labels > lists.each(lists.min(labels)))
    shares = ratio(eligible, lists.each(lists.sum(eligible)), 0.0)
    prices = shares * rank_weights(lists.bound, scores.device)[violators] / violators.clamp(min=1)
    prices = prices if weights is None else prices * wide(weights)
    loss = lists.sum(prices * hinges)
    if order == 0:
        return (loss,)
    gradient = received(prices) - prices * violators
    return loss, torch.where(lists.each(loss.isnan()), torch.nan, gradient)


_LOSS = OnceDifferentiable("warp_loss", _sums)


def rank_weights(longest: int, device: torch.device | str | None = None) -> Tensor:
    """The weight of an entry with k violators in WARP: L(k) = sum of 1/log2(i + 1) over i = 1..k.

    Args:
        longest: the largest k.
        device: the device of the result.

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


# |V| and the sum over V of (rise + s_j - s_i) for every entry i, `(N,)` each, and a function of weights of entries that
# gives for every j their sum over those i that have j among their violators
Compared = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


def _compare_small(scores: Tensor, labels: Tensor, block: Block, rise: float) -> Compared:
    """All pairs of a few short lists, in a quarter of the time of `_compare`."""
    s, y = block.fill(scores, 0.0), block.fill(labels, -1)
    lower = y if block.inside is None else torch.where(block.inside, y, ABOVE)
    gaps = rise + s[:, None] - s[:, :, None]
    violating = (gaps > 0) & (lower[:, None] < y[:, :, None])
    hinges, violators = torch.zeros_like(scores), torch.zeros_like(scores)
    block.add(hinges, torch.where(violating, gaps, 0).sum(2))
    block.add(violators, wide(violating).sum(2))

    def received(prices: Tensor) -> Tensor:
        total = torch.zeros_like(prices)
        block.add(total, (wide(violating) * block.fill(prices, 0.0)[:, :, None]).sum(1))
        return total

    return violators.long(), torch.where(scores.isnan(), scores, hinges), received


def _compare(scores: Tensor, labels: Tensor, lists: Lists, rise: float) -> Compared:
    """No pair is formed: it takes O(N log N)."""
    levels, count = lists.levels(labels)
    splits = list(_splits(scores, rise + scores, levels, count, lists))
    return *_violations(scores, splits), lambda prices: _received(prices, splits)


class _Split(NamedTuple):
    """Entries in groups, within a group from the highest key to the lowest."""

    order: Tensor  # (N,) entries in this order
    groups: Lists
    upper: Tensor  # (N,) True: may be an i, False: may be a j
    keys: Tensor  # (N,)


def _splits(upper_keys: Tensor, lower_keys: Tensor, levels: Tensor, num_levels: int, lists: Lists) -> Iterator[_Split]:
    """All pairs of a list with levels[i] > levels[j], without forming them: one split per bit of the levels.

    Two levels agree down to the bit at which they separate; there i has a 1 and j a 0. So for each bit the entries that
    agree above it form a group, the ones (`upper`) with their upper key and the zeros with their lower key, sorted by
    descending key and at equal keys ones first: the zeros before a one are its j with lower_keys[j] > upper_keys[i].
    """
    ids, count = lists.ids, len(lists)
    both = order_within(torch.cat([upper_keys, lower_keys]), torch.cat([ids, ids]), count)
    places = torch.empty_like(both).scatter(0, both, torch.arange(len(both), device=both.device))
    upper_places, lower_places = places.tensor_split(2)
    for bit in range((num_levels - 1).bit_length()):
        one, prefix = (levels >> bit & 1).bool(), levels >> bit + 1
        keys = torch.where(one, upper_places, lower_places).add_(prefix, alpha=len(both))
        order = stable_order(keys, num_levels * len(both))
        group = (prefix * count + ids)[order]
        num_groups = ((num_levels - 1 >> bit + 1) + 1) * count
        ends = torch.searchsorted(group, torch.arange(num_groups + 1, device=group.device))
        groups = Lists(ends, len(ids), longest=lists.bound)
        yield _Split(order, groups, one[order], torch.where(one, upper_keys, lower_keys)[order])


def _violations(scores: Tensor, splits: list[_Split]) -> tuple[Tensor, Tensor]:
    """|V| and the sum over V of (lower key of j - upper key of i) for every entry i, `(N,)` each.

    The sum adds the steps from key to key down to i, each multiplied by the number of j above it. No term is negative,
    so no digits cancel, however large the scores are.
    """
    violators = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    hinges = torch.where(scores.isnan(), scores, 0.0)  # NaN scores must not have the smallest loss
    for order, groups, upper, keys in splits:
        lower = (~upper).long()
        above = groups.cumsum(lower) - lower
        before = keys.roll(1)
        steps = torch.where((above > 0) & (before != keys), above * (before - keys), 0.0)
        violators.index_add_(0, order, above * upper)
        hinges.index_add_(0, order, torch.where(upper, groups.cumsum(steps), 0.0))
    return violators, hinges


def _received(weights: Tensor, splits: list[_Split]) -> Tensor:
    """For every entry j the sum of the weights of those i that have j among their violators, `(N,)`."""
    received = torch.zeros_like(weights)
    for order, groups, upper, _ in splits:
        below = groups.remaining(torch.where(upper, weights[order], 0.0))
        received.index_add_(0, order, torch.where(upper, 0.0, below))
    return received

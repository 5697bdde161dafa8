"""ListMLE: the likelihood of the order by label, with one softmax per rank over the entries not placed before."""

from typing import Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, host, wide
from torchrank.functional.autograd import diagonal_of
from torchrank.functional.gains import Discount, discount_of
from torchrank.functional.lists import Lists, Weighted, doublings, loss

WIDEST = 600.0  # range of scores within which sums of exponentials and their inverses are numbers of float64


@loss
def listmle_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    discount: Discount | None = None,
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """ListMLE: -log of the Plackett-Luce probability of the order by descending label (Xia et al. 2008).

    This is the sum over the ranks r of log(sum of exp(s_j) over the entries j at ranks r, r + 1, ...) - s_(r), and O(N)
    after the sort. Entries with equal labels keep their order, as in rax without a key; so a list with one distinct
    label has a loss too. To break such ties at random, as TF-Ranking and allRank do, shuffle the entries of the lists.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        discount: the weight of each rank, which makes it position-aware (p-ListMLE, Lan et al. 2014): "log2p1" is
            1/log2(1 + r), "letor" the discount of the LETOR tools; or a function of the ranks, from 1 on. None weighs
            all ranks the same. The weights 2^(n - r) - 1 of the paper overflow for a list of 1,025 entries;
            `lambda ranks: 0.5**ranks` falls as they do.
        weights: importance of each entry, `(N,)`, which multiplies the term of its rank; None is 1. (rax has none.)
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, which torch differentiates, also at the weights.

    Example:
        >>> listmle_loss(torch.tensor([0.5, 0.3, 5.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 2, 3]))
        tensor([0.5981, 0.0000])
    """
    lists: Lists = offsets
    _, ordered, factors = _ordered(scores, labels, lists, discount, weights)
    return lists.sum(factors * (_log_remaining(ordered, lists) - ordered))


def _ordered(
    scores: Tensor, labels: Tensor, lists: Lists, discount: Discount | None, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The order of the entries by descending label, and in this order their scores, less the highest of the list, and
    their factors, in float64."""
    order = lists.order(labels, grades=lists.grades)
    ordered = wide(scores).index_select(0, order)
    factors = torch.ones_like(ordered) if weights is None else wide(weights).index_select(0, order)
    if discount is not None:
        factors = factors * discount_of(lists.positions + 1, discount)
    return order, ordered - lists.each(lists.max(ordered.detach())), factors


def _log_remaining(scores: Tensor, lists: Lists) -> Tensor:
    """log of the sum of exp from each entry of its list on; in doubling steps if the sums might leave the range of
    float64, which takes twice the time."""
    known = host(scores)
    if known is not None and (known > -WIDEST).all():
        return lists.remaining(scores.exp()).log()
    return _log_running(scores.flip(0), lists.backwards).flip(0)


def _log_running(values: Tensor, lists: Lists) -> Tensor:
    """log of the sum of exp up to each entry of its list."""
    index, position = torch.arange(len(values), device=values.device), lists.positions
    for bit in range(doublings(lists.bound)):
        earlier = values.index_select(0, (index - 2**bit).clamp(min=0))
        terms = torch.stack([values, torch.where(position >= 2**bit, earlier, -torch.inf)])
        values = terms.logsumexp(0)  # the second derivative of logaddexp is nan at -inf
    return values


@diagonal_of(listmle_loss)
def _diagonal(
    scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, *, discount: Discount | None
) -> Tensor:
    """The softmax at rank r has the diagonal c_r p (1 - p) at every entry from r on."""
    order, ordered, factors = _ordered(scores, labels, lists, discount, weights)
    rest = _log_remaining(ordered, lists)
    once, twice = (torch.exp(n * ordered + _log_running(factors.log() - n * rest, lists)) for n in (1, 2))
    return torch.empty_like(ordered).scatter(0, order, once - twice)

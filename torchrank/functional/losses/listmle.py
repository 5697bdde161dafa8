"""ListMLE: the likelihood of the order by label, one softmax per rank over the entries that are not yet placed."""

from typing import Any

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.gains import Discount, discount_of
from torchrank.functional.losses.layout import LOWEST, lay_out
from torchrank.functional.operations import ListLoss, one_operation, readable
from torchrank.functional.ragged import (
    longest_list,
    measure_sum,
    per_entry,
    positions_within,
    read,
    segment_max,
    segment_min,
    sort_within,
    wide,
)
from torchrank.functional.ranking import check_lists, check_weights, count_grades

WIDEST = 600.0  # range of scores within which sums of exponentials and their inverses are numbers of float64
NOTHING = -700.0  # stands for the scores after the ends of lists: exp takes ten times as long where it underflows


@takes_arrays
def listmle_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    discount: Discount | None = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """ListMLE: -log of the Plackett-Luce probability of the order by descending label (Xia et al. 2008).

    This is the sum over the ranks r of log(sum of exp(s_j) over the entries j at ranks r, r + 1, ...) - s_(r), and O(N)
    after the sort. Entries with equal labels keep their order, as in rax without a key; so a list with one distinct
    label has a loss too. To break such ties at random, as TF-Ranking and allRank do, shuffle the entries of the lists.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        discount: the weight of each rank, which makes it position-aware (p-ListMLE, Lan et al. 2014): "log2p1" is
            1/log2(1 + r), "letor" the discount of the LETOR tools; or a function of the ranks, from 1 on. None weighs
            all ranks the same. The weights 2^(n - r) - 1 of the paper are no number for a list of 1,025 entries;
            `lambda ranks: 0.5**ranks` falls as they do.
        weights: importance of each entry, `(N,)`, which multiplies the term of its rank; None is 1. (rax has none.)
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`, which can be differentiated twice.

    Example:
        >>> listmle_loss(torch.tensor([0.5, 0.3, 5.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 2, 3]))
        tensor([0.5981, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    longest = longest_list(offsets, len(scores), max_length)
    sizes = {"max_length": longest, "num_grades": count_grades(labels, num_grades)}
    return _LOSS(scores, labels, offsets, weights, list_weights, discount=discount, **sizes)


def _ordered(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    discount: Discount | None,
    max_length: int,
    num_grades: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The order of the entries by descending label, and in this order their scores and factors in float64."""
    order = sort_within(labels, offsets, max_length=max_length, num_grades=num_grades)
    own = wide(scores).index_select(0, order)
    factors = torch.ones_like(own) if weights is None else wide(weights).index_select(0, order)
    if discount is not None:
        factors = factors * discount_of(positions_within(offsets, len(scores)) + 1, discount)
    return order, own, factors


def _sums(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, *, max_length: int, **options: Any
) -> tuple[Tensor, Tensor]:
    order, own, factors = _ordered(scores, labels, offsets, weights, max_length=max_length, **options)
    loss, slopes = _operation(own, factors, offsets, max_length)
    return loss, torch.empty_like(slopes).scatter(0, order, slopes)


def _ordered_sums(scores: Tensor, factors: Tensor, offsets: Tensor, max_length: int) -> tuple[Tensor, Tensor]:
    """Loss `(Q,)` and slopes `(N,)` of scores by rank: with Z_r the sum of exp(s) from rank r on, the slope at rank r
    is exp(s) (c_1 / Z_1 + .. + c_r / Z_r) - c_r, c the factors."""
    lists = lay_out(scores, offsets, max_length)
    low = lists.enter(scores, LOWEST)
    low.sub_(lists.each(lists.highest(low)))
    if not _is_narrow(scores):
        return _logarithms(lists.leave(low), factors, offsets, max_length)
    mass, factors = low.clamp_(min=NOTHING).exp(), lists.enter(factors)
    rest = lists.remaining(mass)
    slopes = mass.mul_(lists.running(factors / rest)).sub_(factors)
    return lists.sum(rest.log_().sub_(low).mul_(factors)), lists.leave(slopes)


def _is_narrow(scores: Tensor) -> bool:
    """Whether no sum of exponentials of differences of scores leaves the range of float64."""
    if not readable(scores) or len(scores) == 0:
        return False
    low, high = (read(bound) for bound in scores.aminmax())
    return bool(high - low < WIDEST)


def _logarithms(scores: Tensor, factors: Tensor, offsets: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """`_ordered_sums` for scores of any size, on any device: sums of exponentials are kept as logarithms."""
    rest = _log_remaining(scores, offsets, longest)
    shares = (scores + _log_running(factors.log() - rest, offsets, longest)).exp_()
    return measure_sum(factors * (rest - scores), offsets), shares - factors


def _products(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    direction: Tensor,
    *,
    max_length: int,
    **options: Any,
) -> Tensor:
    """The second derivative times the direction v: exp(s) (sum of c_i / Z_i (v - m_i) up to its rank), m_i the mean of
    v from rank i on. A shift of v changes nothing, so v is 0 or more and has a logarithm."""
    order, own, factors = _ordered(scores, labels, offsets, weights, max_length=max_length, **options)
    along = wide(direction).index_select(0, order)
    along = along - per_entry(segment_min(along, offsets), offsets, len(along))
    own = _lowered(own, offsets)
    rest = _log_remaining(own, offsets, max_length)
    mean = _log_remaining(own + along.log(), offsets, max_length) - rest
    ahead, pull = (_log_running(factors.log() - rest + more, offsets, max_length) for more in (0.0, mean))
    return torch.zeros_like(own).scatter(0, order, (own + ahead).exp_() * along - (own + pull).exp_())


def _lowered(scores: Tensor, offsets: Tensor) -> Tensor:
    return scores - per_entry(segment_max(scores, offsets), offsets, len(scores))


def _log_running(values: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """log of the sum of exp up to each entry of its list, in doubling steps as `segment_cumsum`."""
    step, position = 1, positions_within(offsets, len(values))
    while step < min(longest, len(values)):
        earlier = torch.nn.functional.pad(values[:-step], (step, 0))
        values = torch.logaddexp(values, torch.where(position >= step, earlier, -torch.inf))
        step *= 2
    return values


def _log_remaining(values: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """log of the sum of exp from each entry of its list on."""
    return _log_running(values.flip(0), len(values) - offsets.flip(0), longest).flip(0)


def _empty(scores: Tensor, factors: Tensor, offsets: Tensor, max_length: int) -> tuple[Tensor, Tensor]:
    return scores.new_empty(offsets.shape[0] - 1), torch.empty_like(scores)


_operation = one_operation("listmle", _ordered_sums, _empty)
_LOSS = ListLoss("listmle_loss", _sums, _products)

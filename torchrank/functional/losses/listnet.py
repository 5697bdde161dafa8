"""ListNet's loss with its slopes in closed form: softmax(scores) - softmax(labels).

Two forms find the same. `_dense` pads lists of similar length into one block on the CPU, where reading lengths is free,
and computes in float32 for float32 scores (and half precision), else in float64. `_one_column` takes lists of any
lengths and scores that are not finite, in float64, and never waits for a device.
"""

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.losses.layout import LOWEST, Rows, row_length
from torchrank.functional.operations import ListLoss
from torchrank.functional.ragged import (
    list_ids,
    measure_sum,
    per_entry,
    read,
    segment_max,
    segment_min,
    segment_softmax,
    segment_sum,
    wide,
)
from torchrank.functional.ranking import bounds, check_lists, check_weights

EXACT = 2**24  # integers up to here are exact in float32


@takes_arrays
def listnet_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """ListNet: cross entropy of softmax(labels) and softmax(scores) over the list (Cao et al. 2007, top one).

    A list with one distinct label has loss 0: it says nothing about the order.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        weights: importance of each entry, `(N,)`, by which its share of softmax(labels) is multiplied before the shares
            are divided by their sum: rax's `softmax_loss` of exp(labels). A list whose weights are all 0 has loss 0.
        list_weights: importance of each list, `(Q,)`, by which its loss is multiplied.
        max_length, num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`. Its gradient is in closed form and can be differentiated again.

    Example:
        >>> listnet_loss(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]))
        tensor([0.6931, 0.0000])
    """
    check_lists(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    return _LOSS(scores, labels, offsets, weights, list_weights)


def _sums(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss of each list, `(Q,)`, and its slopes, `(N,)`; 0 for a list without two different labels."""
    if longest := row_length(scores, offsets):
        return _dense(scores, labels, offsets, weights, longest)
    several, target = label_shares(labels, offsets, weights)
    loss, slopes = _one_column(_taught(scores, several, offsets), target, offsets)
    return torch.where(several, loss, 0.0), torch.where(per_entry(several, offsets, len(scores)), slopes, 0.0)


def _products(scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, direction: Tensor) -> Tensor:
    """The second derivative diag(p) - p p' of each list times its part of the direction, `(N,)`."""
    several, _ = label_shares(labels, offsets, weights)
    shares = segment_softmax(_taught(scores, several, offsets), offsets)
    along = torch.where(per_entry(several, offsets, len(scores)), wide(direction), 0.0)
    return shares * (along - per_entry(segment_sum(shares * along, offsets), offsets, len(scores)))


_LOSS = ListLoss("listnet_loss", _sums, _products)


def _taught(scores: Tensor, several: Tensor, offsets: Tensor) -> Tensor:
    """The scores, 0 in lists without two different labels: these have slope 0, not NaN."""
    return torch.where(per_entry(several, offsets, len(scores)), wide(scores), 0.0)


def _dense(
    scores: Tensor, labels: Tensor, offsets: Tensor, weights: Tensor | None, longest: int
) -> tuple[Tensor, Tensor]:
    """`_sums` of lists in rows of the same length."""
    kind, rows = _dense_dtype(scores, labels), Rows(offsets, len(scores), longest)
    own, grades = rows.enter(scores.to(kind), LOWEST), rows.enter(labels.to(kind), -torch.inf)
    several = grades.amax(1) > grades.abs().amin(1)  # labels are not negative
    if weights is not None:
        grades += rows.enter(wide(weights).log().to(kind))
        several &= grades.amax(1) > -torch.inf
    target, shares = torch.softmax(grades, 1), torch.softmax(own, 1)
    linear = torch.linalg.vecdot(target, own.sub_(own.amax(1, keepdim=True)))
    loss, slopes = shares.amax(1).log_().add_(linear).neg_(), shares.sub_(target)
    if not read(several.all()):
        loss, slopes = torch.where(several, loss, 0.0), torch.where(several[:, None], slopes, 0.0)
    return loss, rows.leave(slopes)


def _dense_dtype(scores: Tensor, labels: Tensor) -> torch.dtype:
    small = scores.dtype in (torch.float32, torch.float16, torch.bfloat16) and labels.dtype != torch.float64
    return torch.float32 if small and bounds(labels)[1] <= EXACT else torch.float64


def label_shares(labels: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Whether each list has two different labels and a weight that is not 0, `(Q,)`, and the softmax of its labels,
    multiplied by the weights, `(N,)` in float64."""
    values = wide(labels)
    high, low = (_extreme(values, offsets, kind) for kind in ("max", "min"))
    several = high > low
    if weights is not None:
        values = values + wide(weights).log()
        several &= _extreme(values, offsets, "max") > -torch.inf
        values = torch.where(per_entry(several, offsets, len(values)), values, 0.0)
        high = _extreme(values, offsets, "max")
    if values.device.type != "cpu":
        return several, segment_softmax(values, offsets)
    shares = (values - per_entry(high, offsets, len(values))).exp_()
    return several, shares.div_(per_entry(measure_sum(shares, offsets), offsets, len(values)))


def _one_column(scores: Tensor, target: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """`listnet_slopes` of one column, `(Q,)` and `(N,)`; on CPU by faster reductions, which have no derivatives."""
    if scores.device.type != "cpu":
        loss, slopes = listnet_slopes(scores[:, None], target, offsets)
        return loss[:, 0], slopes[:, 0]
    shares = scores - per_entry(_extreme(scores, offsets, "max"), offsets, len(scores))
    linear = measure_sum(target * shares, offsets)
    sums = measure_sum(shares.exp_(), offsets)
    return sums.log() - linear, shares.div_(per_entry(sums, offsets, len(scores))).sub_(target)


def _extreme(values: Tensor, offsets: Tensor, kind: str) -> Tensor:
    if values.device.type != "cpu":
        return segment_max(values, offsets) if kind == "max" else segment_min(values, offsets)
    initial = -torch.inf if kind == "max" else torch.inf
    return torch.segment_reduce(values, kind, offsets=offsets, unsafe=True, initial=initial)


def listnet_slopes(scores: Tensor, target: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss (Q, A) of A columns of scores (N, A), and its slopes (N, A); `target (N,)` is the softmax of the labels.

    >>> loss, slopes = listnet_slopes(torch.zeros(2, 1), torch.tensor([0.25, 0.75]), torch.tensor([0, 2]))
    >>> loss, slopes.flatten()
    (tensor([[0.6931]]), tensor([ 0.2500, -0.2500]))
    """
    ids, target, shape = list_ids(offsets, len(scores)), target[:, None], (len(offsets) - 1, scores.shape[1])
    peak = scores.new_full(shape, -torch.inf).scatter_reduce_(0, ids[:, None].expand_as(scores), scores, "amax")
    shifted = scores - peak[ids]
    linear = scores.new_zeros(shape).index_add_(0, ids, target * shifted)
    shares = shifted.exp_()
    sums = scores.new_zeros(shape).index_add_(0, ids, shares)
    return sums.log() - linear, shares.div_(sums[ids]).sub_(target)

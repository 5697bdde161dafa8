"""Scores by far anchors: how much nearer than the origin a document is, and the scale of such scores."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists


def far_scores(along: Tensor, squares: Tensor, reach: Tensor) -> Tensor:
    """How much nearer than the origin a document is to an anchor: d0 - d, which tends to its part in the direction of
    the anchor for an anchor that is infinitely far away. Computed as (2 d0 s - |y|^2) / (d0 + d), without cancellation.

    Args:
        along: s, the part of the image y of the document in the direction of the anchor.
        squares: |y|^2.
        reach: d0, the distance of the anchor from the origin; may be infinite.

    >>> far_scores(torch.tensor([3.0]), torch.tensor([25.0]), torch.tensor([3.0, torch.inf]))
    tensor([-1.0000,  3.0000])
    """
    unit = torch.where(reach.isinf(), 1.0, reach.clamp(min=1))  # in these units nothing overflows
    share = torch.where(reach.isinf(), 1.0, reach / unit)
    far = (share.square() - 2 * share * along / unit + squares / unit / unit).clamp(min=0).sqrt()
    near = (2 * share * along - squares / unit) / (share + far).clamp(min=torch.finfo(far.dtype).tiny)
    return torch.where(reach.isinf(), along, near)


def deviations_of(lists: TrainingLists, values: Callable[[Batch], tuple[Tensor, Tensor]]) -> Tensor:
    """The standard deviation (M,) over all lists of weighted values; 1 where they do not vary.

    `values(batch)` returns the values (N, M) and their weights (N, M).
    """

    def first(batch: Batch) -> tuple[Tensor, Tensor]:
        numbers, weights = values(batch)
        return weights.double().sum(0), (weights * numbers).double().sum(0)

    count, total = lists.total(first)
    count = torch.where(count > 0, count, 1.0)
    mean = total / count

    def second(batch: Batch) -> Tensor:
        numbers, weights = values(batch)
        squares: Tensor = weights * (numbers - mean).square()
        return squares.double().sum(0)

    deviation: Tensor = (lists.total(second) / count).sqrt()
    return torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)

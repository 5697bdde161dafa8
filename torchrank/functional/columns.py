"""One measure of the same lists under many columns of scores."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CACHED_SCORES = 2**18  # scores that are ranked at once on the CPU, which stay in the cache
DEVICE_SCORES = 2**25  # the same on a device, where a block must keep all cores busy
SAME = 1e-12  # values that differ by no more count as equal

Measure = Callable[..., Tensor]


def by_column(measure: Measure, scores: Tensor, labels: Tensor, offsets: Tensor, **options: Any) -> Tensor:
    """The measure (Q, C) of each list under each column of `scores (N, C)`.

    Column c becomes a run of lists of its own, so a block of columns needs one sort only.

    >>> from torchrank.functional import average_precision
    >>> scores, labels = torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([1, 0])
    >>> by_column(average_precision, scores, labels, torch.tensor([0, 2]))
    tensor([[1.0000, 0.5000]])
    """
    most = CACHED_SCORES if scores.device.type == "cpu" else DEVICE_SCORES
    blocks = scores.split(max(1, most // max(1, len(scores))), dim=1)
    return torch.cat([_block(measure, block, labels, offsets, options) for block in blocks], 1)


def _block(measure: Measure, scores: Tensor, labels: Tensor, offsets: Tensor, options: dict[str, Any]) -> Tensor:
    entries, columns = scores.shape
    starts = entries * torch.arange(columns + 1, dtype=offsets.dtype, device=scores.device)
    bounds = torch.cat([(offsets[:-1] + starts[:-1, None]).flatten(), starts[-1:]])
    values = measure(scores.T.flatten(), labels.repeat(columns), bounds, **options)
    return values.view(columns, len(offsets) - 1).T


def first_largest(values: Tensor, dim: int | None = None) -> Tensor:
    """The index of the largest value along a dimension, or among all values if `dim` is None.

    Values within 1e-12 of the largest count as equal to it, and the first of them is taken.

    >>> first_largest(torch.tensor([1.0, 2.0, 2.0])), first_largest(torch.tensor([[3.0, 2.0], [1.0, 4.0]]), dim=1)
    (tensor(1), tensor([0, 1]))
    """
    if dim is None:
        return first_largest(values.flatten(), 0)
    return (values >= values.amax(dim, keepdim=True) - SAME).to(torch.int8).argmax(dim)

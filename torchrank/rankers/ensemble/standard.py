"""Scores of each list with mean 0 and standard deviation 1, so that those of different rankers can be averaged."""

import torch
from torch import Tensor

from torchrank.functional.ragged import per_entry, segment_max, segment_min, segment_sum, wide

ROUNDING = 4  # units in the last place by which equal scores may differ


def standard_scores(scores: Tensor, offsets: Tensor) -> Tensor:
    """(score - mean) / standard deviation of its list, `(N,)` in float64. Differentiable.

    A list whose scores are all equal has 0 everywhere, also if they differ by no more than the rounding of float32 (of
    float64 for scores in float64): otherwise rounding would become as large as what a ranker knows.

    Args:
        scores: score of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.

    Returns:
        Scores of any size have the same result as their multiples; the deviation is that of all entries of a list.

    Example:
        >>> standard_scores(torch.tensor([1.0, 3.0, 5.0, 5.0, 7.0]), torch.tensor([0, 2, 4, 5])).tolist()
        [-1.0, 1.0, 0.0, 0.0, 0.0]
    """
    centred, _, flat = _centred(scores, offsets)
    variance = segment_sum(centred.square(), offsets) / offsets.diff().clamp(min=1)
    deviation = per_entry(torch.where(flat, 1.0, variance).sqrt(), offsets, len(scores))
    return torch.where(per_entry(flat, offsets, len(scores)), 0.0, centred / deviation)


def deviations(scores: Tensor, offsets: Tensor) -> Tensor:
    """The standard deviation `(Q,)` of the scores of each list; 0 where they are all equal.

    >>> deviations(torch.tensor([1.0, 5.0, 7.0]), torch.tensor([0, 2, 3])).tolist()
    [2.0, 0.0]
    """
    centred, size, flat = _centred(scores, offsets)
    variance = segment_sum(centred.square(), offsets) / offsets.diff().clamp(min=1)
    return torch.where(flat, 0.0, size * variance.sqrt())


def _centred(scores: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (N,) minus the mean of their list, divided by a size (Q,) of each list, so that squares are finite and not
    0; this size; and which lists (Q,) have equal scores."""
    entries, rounding = len(scores), ROUNDING * min(torch.finfo(torch.float32).eps, torch.finfo(scores.dtype).eps)
    values = wide(scores)
    largest = segment_max(values.detach().abs(), offsets)
    size = torch.exp2(torch.log2(torch.where(largest > 0, largest, 1.0)).round())  # a power of 2 loses no digit
    scaled = values / per_entry(size, offsets, entries)
    spread = segment_max(scaled.detach(), offsets) - segment_min(scaled.detach(), offsets)
    means = segment_sum(scaled, offsets) / offsets.diff().clamp(min=1)
    return scaled - per_entry(means, offsets, entries), size, spread <= rounding * largest / size

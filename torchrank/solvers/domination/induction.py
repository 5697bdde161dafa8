"""Feature induction: which features a sparse model takes in next (Stevens 2010, chapter on induction)."""

import torch
from torch import Tensor

from torchrank.solvers.domination.penalty import Penalty


def take_in(
    chosen: Tensor,
    first_gain: Tensor,
    gradient: Tensor,
    curvature: Tensor,
    penalty: Penalty,
    count: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Chosen features (T, D), now with the `count` of each model from which its objective is sure to fall most, and the
    largest gains of the first round (T, 1), which are 0 before it. Gains up to `tolerance` times the first are left.

    Models are looked at one by one: no more memory than one of them takes.
    """
    chosen, first_gain = chosen.clone(), first_gain.clone()
    for row, (own, slopes, bounds) in enumerate(zip(penalty.rows(len(chosen)), gradient, curvature, strict=True)):
        gain = torch.where(chosen[row], 0.0, own.gain(slopes, bounds))
        first_gain[row] = torch.where(first_gain[row] > 0, first_gain[row], gain.max())
        best = gain.topk(min(count, len(gain)))
        chosen[row, best.indices[best.values > tolerance * first_gain[row]]] = True
    return chosen, first_gain

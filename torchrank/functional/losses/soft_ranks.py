"""Soft ranks: 1 + the sum of sigmoid((s_j - s_i) / T) over the other entries j of the list (Qin, Liu & Li 2010)."""

from typing import Unpack

import torch
from torch import Tensor

from torchrank.functional.arrays import Array, narrow, wide
from torchrank.functional.autograd import OnceDifferentiable
from torchrank.functional.lists import Given, Lists, per_entry
from torchrank.functional.losses.pair_blocks import all_pair_sums, check_positive


@per_entry
def soft_ranks(scores: Array, offsets: Array = None, *, temperature: float = 1.0, **given: Unpack[Given]) -> Tensor:
    """Differentiable ranks: 1 + the sum of sigmoid((s_j - s_i) / temperature) over the other entries of the list.

    As the temperature falls they approach the ranks; equal scores share the mean of their ranks. A list of L entries
    costs O(L^2) time and bounded memory.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        temperature: the difference of scores at which the better entry counts .73 of a rank.

    Returns:
        The soft rank of each entry, from 1, `(N,)`. Its gradient is in closed form.

    Example:
        >>> soft_ranks(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([0, 3, 4]), temperature=0.1)
        tensor([3.0000, 1.0000, 2.0000, 1.0000])
    """
    check_positive(temperature=temperature)
    every = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    return 1 + soft_counts(scores, every, offsets, temperature=temperature)


def soft_counts(
    scores: Tensor, rows: Tensor, lists: Lists, values: Tensor | None = None, *, temperature: float
) -> Tensor:
    """A soft count of the other entries of the list that score higher than each entry of `rows (N,)`: each counts
    sigmoid((s_j - s_i) / T) times its value in `values (N,)`, or times 1: `(N,)` in float64, 0 outside of the rows.

    >>> soft_counts(torch.tensor([2.0, 2.0]), torch.tensor([True, False]), Lists.of([0, 2]), temperature=1.0)
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    floats = scores if scores.is_floating_point() else wide(scores)
    return _COUNTS(floats if temperature == 1 else narrow(floats) / temperature, rows, lists, values)


def _sums(scores: Tensor, rows: Tensor, lists: Lists, values: Tensor | None, order: int) -> tuple[Tensor, ...]:
    return all_pair_sums(scores, rows, lists, None, 0, pair="soft_zero_one", partners=values, by_row=True)


def _grad(upstream: Tensor, saved: Tensor, scores: Tensor, rows: Tensor, lists: Lists, values: Tensor | None) -> Tensor:
    return all_pair_sums(scores, rows, lists, upstream, 1, pair="soft_zero_one", partners=values)[1]


_COUNTS = OnceDifferentiable("soft_ranks", _sums, _grad)

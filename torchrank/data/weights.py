"""What may be known of an entry beside its label: its weight, and the position at which its document was shown."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrank.errors import DataError, check_number
from torchrank.functional.arrays import Array, only_column, to_tensor


def entry_weights(weights: Array, entries: int, name: str = "") -> Tensor:
    """Weights (N,) as a tensor of real numbers; values are read on the CPU only.

    >>> entry_weights([1, 0, 2.5], 3)
    tensor([1.0000, 0.0000, 2.5000], dtype=torch.float64)
    >>> entry_weights([1, -1], 2, "train")
    Traceback (most recent call last):
    torchrank.errors.DataError: weight -1 of entry 1 of the set 'train': weights must be finite numbers of 0 or more
    """
    found = _column(weights, entries, "weights", name)
    found = found if found.is_floating_point() else found.double()
    if found.device.type == "cpu":
        right = (found >= 0) & found.isfinite()
        _refuse(~right, found, name, "weight", "weights must be finite numbers of 0 or more")
    return found


def entry_positions(positions: Array, entries: int, name: str = "") -> Tensor:
    """Positions (N,) as int64, counted from 0; values are read on the CPU only.

    >>> entry_positions([0, 2, 1], 3)
    tensor([0, 2, 1])
    >>> entry_positions([0.5], 1)
    Traceback (most recent call last):
    torchrank.errors.DataError: position 0.5 of entry 0: positions must be integers, 0 is the top of the list
    """
    found = _column(positions, entries, "positions", name)
    if found.device.type == "cpu":
        right = found >= 0
        if found.is_floating_point():
            right &= (found.floor() == found) & (found.double() < 2**53)
        _refuse(~right, found, name, "position", "positions must be integers, 0 is the top of the list")
    return found.long()


def _column(values: Array, entries: int, what: str, name: str) -> Tensor:
    found = to_tensor(only_column(values, what), what)
    if found.shape != (entries,) or found.is_complex():
        raise DataError(
            f"{what} {tuple(found.shape)} for {entries} entries{_of(name)}: give one number for each entry (N,)"
        )
    return found.to(torch.uint8) if found.dtype == torch.bool else found


def _refuse(wrong: Tensor, values: Tensor, name: str, what: str, why: str) -> None:
    if wrong.any():
        entry = int(wrong.nonzero()[0, 0])
        raise DataError(f"{what} {values[entry].item():g} of entry {entry}{_of(name)}: {why}")


def _of(name: str) -> str:
    return f" of the set '{name}'" if name else ""


def at(values: Tensor | None, entries: Any) -> Tensor | None:
    """The values of some entries; None without values."""
    return None if values is None else values[entries]


def propensity_weights(positions: Array, propensities: Array, *, clip: float | None = None) -> Tensor:
    """Inverse-propensity weights: 1 / p(position) of each entry.

    With clicks as labels, a document at position k was examined with probability p(k), so that a click there stands
    for 1 / p(k) of them, and the weighted loss is, in the mean, that of all relevant documents (Joachims et al. 2017).
    The weight of an entry without a click is of no consequence to losses that weigh the gain of an entry.

    Args:
        positions: (N,) where each document was shown, from 0.
        propensities: (P,) the probability that position 0, 1, ... is examined, above 0; their scale is free. Positions
            beyond the last one have its propensity.
        clip: the largest weight; smaller weights have less variance, and a bias.

    Returns:
        Weights (N,) in float64.

    Example:
        >>> propensity_weights([0, 1, 2, 7], [1.0, 0.5, 0.25], clip=3)
        tensor([1., 2., 3., 3.], dtype=torch.float64)
    """
    check_number("> 0", clip=clip)
    chances = to_tensor(only_column(propensities, "propensities"), "propensities").double()
    if chances.dim() != 1 or len(chances) == 0 or not ((chances > 0) & chances.isfinite()).all():
        raise DataError(f"propensities must be one or more finite numbers above 0, got {chances.tolist()}")
    places = to_tensor(only_column(positions, "positions"), "positions")
    places = entry_positions(places, len(places)).clamp(max=len(chances) - 1)
    weights = 1 / chances.to(places.device)[places]
    return weights if clip is None else weights.clamp(max=clip)

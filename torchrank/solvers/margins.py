"""Margins that better documents have to keep: how their options become what the domination loss takes."""

import torch
from torch import Tensor


def margin_of(option: float | list | dict | None, labels: Tensor) -> Tensor | None:
    """s (N,) of entries with these labels, or the matrix over pairs of grades. See `DominationRank` for the options.

    >>> margin_of({"slope": 1.0, "offset": 2.0}, torch.tensor([0, 1, 3])).tolist()
    [0.0, 3.0, 5.0]
    >>> margin_of([0.5, 1.5], torch.tensor([0, 1, 2])).tolist()
    [0.0, 0.5, 2.0]
    """
    if option is None:
        return None
    if isinstance(option, list) and option and isinstance(option[0], list):
        return torch.tensor(option, dtype=torch.float64, device=labels.device)
    if isinstance(option, list):  # one for each boundary: s(k) is their sum below grade k
        steps = torch.tensor([0.0, *option], dtype=torch.float64, device=labels.device).cumsum(0)
        return steps[labels.long()]
    schedule = option if isinstance(option, dict) else {"slope": option}
    height = labels.double().clamp(min=1e-300).log() if schedule.get("log") else labels.double()
    found = schedule.get("slope", 1.0) * height + schedule.get("offset", 0.0)
    return torch.where(labels > 0, found.clamp(min=0), 0.0)


def check_margin(option: list, num_grades: int) -> None:
    """Refuse margins at boundaries or between pairs that do not cover the grades of the data (0: real-valued).

    >>> check_margin([1.0], 3)
    Traceback (most recent call last):
    ValueError: margin is for the grades 0..1, the training labels are grades 0..2
    """
    known = len(option) if option and isinstance(option[0], list) else len(option) + 1
    if not 0 < num_grades <= known:
        found = f"grades 0..{num_grades - 1}" if num_grades else "real numbers"
        raise ValueError(f"margin is for the grades 0..{known - 1}, the training labels are {found}")

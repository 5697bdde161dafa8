"""What is learned from labels: the grades that are told apart, and the margins that better documents have to keep."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

SCHEDULE = {"slope": 1.0, "offset": 0.0, "log": False}  # s(y) = slope y + offset, or slope ln y + offset


class Feedback(NamedTuple):
    """All grades, or with `flat` relevant (label > 0) and other documents only; and the option of the margin.

    A schedule of margins looks at the labels as they are, also where documents are told apart by relevance only: s(i)
    then says by how much a relevant document has to win (Stevens 2010, graded feedback). Boundaries and pairs are
    those of the grades.
    """

    flat: bool
    option: float | list | dict | None

    def grades(self, labels: Tensor) -> Tensor:
        return (labels > 0).to(labels.dtype) if self.flat else labels

    def num_grades(self, found: int) -> int:
        return 2 if self.flat else found

    def margin(self, labels: Tensor) -> Tensor | None:
        """Of entries with these labels: what `domination_loss` takes."""
        return margin_of(self.option, self.grades(labels) if isinstance(self.option, list) else labels)


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
    slope, offset, log = (SCHEDULE | (option if isinstance(option, dict) else {"slope": option})).values()
    height = labels.double().clamp(min=1e-300).log() if log else labels.double()
    return torch.where(labels > 0, (slope * height + offset).clamp(min=0), 0.0)


def check_margin(option: float | list | dict | None) -> None:
    """Refuse what is no margin: by a negative one a better document might stand below.

    >>> check_margin({"slop": 1.0})
    Traceback (most recent call last):
    ValueError: margin has no 'slop': give slope, offset, log
    """
    if isinstance(option, dict):
        for name in option:
            if name not in SCHEDULE:
                raise ValueError(f"margin has no {name!r}: give {', '.join(SCHEDULE)}")
        slope, offset, _ = (SCHEDULE | option).values()
        _check_numbers([slope], "slope of the margin")
        _check_numbers([offset], "offset of the margin", lowest=-math.inf)
    elif isinstance(option, list) and option and all(isinstance(row, list) for row in option):
        if any(len(row) != len(option) for row in option):
            raise ValueError(f"margin has rows of {[len(row) for row in option]} numbers: give a square matrix (K, K)")
        _check_numbers([number for row in option for number in row], "a number of the margin", lowest=-math.inf)
        _check_numbers([number for k, row in enumerate(option) for number in row[:k]], "margin below the diagonal")
    elif isinstance(option, list):
        _check_numbers(option, "margin of a boundary")
    elif option is not None:
        _check_numbers([option], "margin")


def _check_numbers(numbers: list[Any], what: str, lowest: float = 0.0) -> None:
    for number in numbers:
        if type(number) not in (int, float) or not math.isfinite(number) or number < lowest:
            raise ValueError(f"{what} is {number!r}: give a finite number{' of at least 0' if lowest == 0 else ''}")


def check_grades(option: list, num_grades: int) -> None:
    """Refuse margins at boundaries or between pairs that do not cover the grades of the data (0: real-valued).

    >>> check_grades([1.0], 3)
    Traceback (most recent call last):
    ValueError: margin is for the grades 0..1, the training labels are grades 0..2
    """
    known = len(option) if option and isinstance(option[0], list) else len(option) + 1
    if not 0 < num_grades <= known:
        found = f"grades 0..{num_grades - 1}" if num_grades else "real numbers"
        raise ValueError(f"margin is for the grades 0..{known - 1}, the training labels are {found}")

"""What is learned from labels: which grades count as different, and by which margin better documents must win."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

Margin = float | list[Any] | dict[str, float] | None  # the option, explained in `DominationRank`
SCHEDULE = {"slope": 1.0, "offset": 0.0, "log": False}  # s(y) = slope y + offset, or slope ln y + offset


class Feedback(NamedTuple):
    """The grades to learn, and the option for the margin. With `flat` documents are relevant (label > 0) or not.

    A schedule of margins uses the original labels even with flat grades: s(i) then tells by how much a relevant
    document must win (Stevens 2010, graded feedback). Boundaries and pairs are those of the grades.
    """

    flat: bool
    option: Margin

    def grades(self, labels: Tensor) -> Tensor:
        """Grades (N,) of entries with these labels."""
        return (labels > 0).to(labels.dtype) if self.flat else labels

    def num_grades(self, found: int) -> int:
        """The number of grades of data with `found` different labels."""
        return 2 if self.flat else found

    def margin(self, labels: Tensor) -> Tensor | None:
        """The margin of entries with these labels, in the form that `domination_loss` takes."""
        return margin_of(self.option, self.grades(labels) if isinstance(self.option, list) else labels)


def margin_of(option: Margin, labels: Tensor) -> Tensor | None:
    """Margins s (N,) of entries with these labels, or a matrix over pairs of grades. The options are explained in
    `DominationRank`.

    >>> margin_of({"slope": 1.0, "offset": 2.0}, torch.tensor([0, 1, 3])).tolist()
    [0.0, 3.0, 5.0]
    >>> margin_of([0.5, 1.5], torch.tensor([0, 1, 2])).tolist()
    [0.0, 0.5, 2.0]
    """
    if option is None:
        return None
    if isinstance(option, list) and option and isinstance(option[0], list):
        return torch.tensor(option, dtype=torch.float64, device=labels.device)
    if isinstance(option, list):  # one per boundary: s(k) is the sum of those below grade k
        steps = torch.tensor([0.0, *option], dtype=torch.float64, device=labels.device).cumsum(0)
        return steps[labels.long()]
    slope, offset, log = (SCHEDULE | (option if isinstance(option, dict) else {"slope": option})).values()
    height = labels.double().clamp(min=1e-300).log() if log else labels.double()
    return torch.where(labels > 0, (slope * height + offset).clamp(min=0), 0.0)


def check_margin(option: Margin) -> None:
    """Refuse an invalid margin; a negative one would allow a better document to rank below.

    >>> check_margin({"slop": 1.0})
    Traceback (most recent call last):
    ValueError: unknown margin key 'slop': choose one of slope, offset, log
    """
    if isinstance(option, dict):
        for name in option:
            if name not in SCHEDULE:
                raise ValueError(f"unknown margin key {name!r}: choose one of {', '.join(SCHEDULE)}")
        slope, offset, _ = (SCHEDULE | option).values()
        _check_numbers([slope], "margin slope")
        _check_numbers([offset], "margin offset", lowest=-math.inf)
    elif isinstance(option, list) and option and all(isinstance(row, list) for row in option):
        if any(len(row) != len(option) for row in option):
            raise ValueError(
                f"margin must be a square matrix (K, K), got rows of length {[len(row) for row in option]}"
            )
        _check_numbers([number for row in option for number in row], "entry of the margin", lowest=-math.inf)
        _check_numbers([number for k, row in enumerate(option) for number in row[:k]], "margin below the diagonal")
    elif isinstance(option, list):
        _check_numbers(option, "margin of a boundary")
    elif option is not None:
        _check_numbers([option], "margin")


def _check_numbers(numbers: list[Any], what: str, lowest: float = 0.0) -> None:
    for number in numbers:
        if type(number) not in (int, float) or not math.isfinite(number) or number < lowest:
            raise ValueError(f"{what} must be a finite number{' >= 0' if lowest == 0 else ''}, got {number!r}")


def check_grades(option: list[Any], num_grades: int) -> None:
    """Refuse margins for boundaries or pairs that do not cover the grades of the data (0 grades: real-valued labels).

    >>> check_grades([1.0], 3)
    Traceback (most recent call last):
    ValueError: margin covers the grades 0..1, but the training labels are grades 0..2
    """
    known = len(option) if option and isinstance(option[0], list) else len(option) + 1
    if not 0 < num_grades <= known:
        found = f"grades 0..{num_grades - 1}" if num_grades else "real numbers"
        raise ValueError(f"margin covers the grades 0..{known - 1}, but the training labels are {found}")

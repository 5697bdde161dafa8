"""Margins typed again by grade, their sign, and what they refuse."""

import math

import pytest
import torch

from torchrank.functional import domination_loss
from torchrank.rankers.domination.margins import Feedback, check_grades, check_margin, margin_of

LABELS = torch.tensor([0.0, 1.0, 2.0, 2.0, 0.0, 4.0])


@pytest.mark.parametrize(
    ("option", "by_grade"),
    [
        (0.5, lambda y: 0.5 * y),
        ({"slope": 2.0}, lambda y: 2 * y),
        ({"slope": 1.0, "offset": 2.7, "log": True}, lambda y: math.log(y) + 2.7 if y > 0 else 0.0),
        ({"slope": 3.0, "offset": -4.0}, lambda y: max(3 * y - 4, 0.0) if y > 0 else 0.0),  # never negative
        ({"slope": 200.0, "offset": 0.0}, lambda y: 200 * y),
        ([0.5, 0.25, 0.0, 3.0], lambda y: sum([0.5, 0.25, 0.0, 3.0][: int(y)])),
    ],
)
def test_margins_by_grade(option, by_grade):
    assert margin_of(option, LABELS).tolist() == pytest.approx([by_grade(y) for y in LABELS.tolist()])


def test_labels_at_or_below_zero_have_none():
    labels = torch.tensor([-2.0, 0.0, 0.5])
    assert margin_of({"slope": 1.0, "offset": 1.0}, labels).tolist() == [0, 0, 1.5]
    assert margin_of({"slope": 1.0, "offset": 0.0, "log": True}, labels).tolist() == [0, 0, 0]  # ln 0.5 < 0


@pytest.mark.parametrize("option", [0.5, [0.5, 0.1, 0.0, 1.0], {"offset": 1.0, "log": True}, [[0.3] * 5] * 5])
def test_a_margin_raises_the_loss(option):
    """At the same scores: with the sign the other way round it would fall."""
    scores, offsets = torch.linspace(-1, 1, 6, dtype=torch.float64), torch.tensor([0, 6])
    without = domination_loss(scores, LABELS, offsets)
    assert (domination_loss(scores, LABELS, offsets, margin=margin_of(option, LABELS)) > without).all()


def test_boundaries_are_a_matrix_and_a_number_is_equal_boundaries():
    scores, offsets = torch.tensor([0.3, -1.0, 2.0, 0.1, 0.0, 1.0], dtype=torch.float64), torch.tensor([0, 2, 6])
    steps = [0.5, 0.25, 0.0, 3.0]
    matrix = [[sum(steps[m:k]) if m < k else 7.0 for m in range(5)] for k in range(5)]

    def loss(option):
        return domination_loss(scores, LABELS, offsets, margin=margin_of(option, LABELS))

    torch.testing.assert_close(loss(steps), loss(matrix), rtol=1e-12, atol=0)
    torch.testing.assert_close(loss(0.7), loss([0.7] * 4), rtol=1e-12, atol=0)
    nearest = [[steps[k - 1] if m < k else 0.0 for m in range(5)] for k in range(5)]  # the other reading, as a matrix
    assert not torch.allclose(loss(nearest), loss(steps))


@pytest.mark.parametrize(("option", "grades"), [([1.0], 3), ([], 2), ([[0.0, 0.0], [1.0, 0.0]], 3), ([1.0, 2.0], 0)])
def test_grades_without_a_margin_are_refused(option, grades):
    with pytest.raises(ValueError, match="margin covers the grades 0"):
        check_grades(option, grades)


def test_more_margins_than_grades_are_fine():
    check_grades([1.0, 2.0, 3.0], 2)
    check_grades([[0.0] * 3] * 3, 3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (-0.5, "margin must be a finite number >= 0, got -0.5"),
        (math.nan, "margin must be a finite number >= 0, got nan"),
        (True, "margin must be .*, got True"),
        ("1", "margin must be .*, got '1'"),
        ([0.5, -1.0], "margin of a boundary must be a finite number >= 0, got -1.0"),
        ([0.5, math.inf], "margin of a boundary must be .*, got inf"),
        ([0.5, [1.0]], r"margin of a boundary must be .*, got \[1.0\]"),
        ([[0.0, 0.0], [-1.0, 0.0]], "margin below the diagonal must be a finite number >= 0, got -1.0"),
        ([[0.0, math.nan], [1.0, 0.0]], "entry of the margin must be a finite number, got nan"),
        ([[0.0, 0.0], [1.0]], r"margin must be a square matrix \(K, K\), got rows of length \[2, 1\]"),
        ({"slop": 1.0}, "unknown margin key 'slop': choose one of slope, offset, log"),
        ({"slope": -1.0}, "margin slope must be a finite number >= 0, got -1.0"),
        ({"offset": math.nan}, "margin offset must be a finite number, got nan"),
    ],
)
def test_wrong_margins_are_refused(option, message):
    with pytest.raises(ValueError, match=message):
        check_margin(option)


@pytest.mark.parametrize(
    "option", [None, 0, 0.5, [], [0.0, 1], [[0.0, -5.0], [1.0, 0.0]], {"slope": 3.0, "offset": -4.0}, {"log": True}]
)
def test_margins_that_are_taken(option):
    check_margin(option)


def test_flat_grades_have_schedules_of_the_labels_and_boundaries_of_the_grades():
    labels = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    flat = [Feedback(True, option) for option in (2.0, {"slope": 1.0, "offset": 1.0}, [0.7], [[0.0, 0.0], [3.0, 0.0]])]
    assert flat[0].grades(labels).tolist() == [0, 1, 1, 0, 1] and flat[0].num_grades(0) == 2
    assert flat[0].margin(labels).tolist() == [0, 2, 4, 0, 1]
    assert flat[1].margin(labels).tolist() == [0, 2, 3, 0, 1.5]
    assert flat[2].margin(labels).tolist() == pytest.approx([0, 0.7, 0.7, 0, 0.7])
    assert flat[3].margin(labels).tolist() == [[0, 0], [3, 0]]
    assert Feedback(False, None).margin(labels) is None and Feedback(False, None).grades(labels) is labels

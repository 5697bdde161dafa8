"""Numbers that are no numbers, laws for every function on lists: labels, offsets and scores of odd kinds."""

import inspect
import warnings

import pytest
import torch

import torchrank.functional as F
from tests.laws.cases import LEARN_ALONE, POINTWISE, ROWS
from torchrank import DataError, DataWarning
from torchrank.functional import LOSSES

each_function = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
SCORES, LABELS, OFFSETS = (
    torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5]),
    torch.tensor([0, 1, 2, 1, 0]),
    torch.tensor([0, 3, 5]),
)
WIDTHS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]
EXPONENTIAL = {"err", "lambdarank_loss", "lambda_loss"}  # functions of the gains 2^y - 1 that have no option for it


@each_function
def test_integers_of_any_width_are_the_same_numbers(row):
    wanted = row(SCORES, LABELS, OFFSETS)
    for dtype in WIDTHS:
        torch.testing.assert_close(row(SCORES, LABELS, OFFSETS.to(dtype)), wanted, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(row(SCORES, LABELS.to(dtype), OFFSETS), wanted, rtol=0, atol=0, equal_nan=True)
        found = row((2 * SCORES).to(dtype), LABELS, OFFSETS)
        torch.testing.assert_close(found, row(2 * SCORES, LABELS, OFFSETS), rtol=1e-6, atol=1e-6, equal_nan=True)


@each_function
def test_complex_numbers_are_refused(row):
    with pytest.raises(DataError, match="scores must hold real numbers, got complex64"):
        row(SCORES.to(torch.complex64), LABELS, OFFSETS)
    with pytest.raises(DataError, match="labels must hold real numbers, got complex128"):
        row(SCORES, LABELS.to(torch.complex128), OFFSETS)
    with pytest.raises(DataError, match="offsets must"):
        row(SCORES, LABELS, OFFSETS.to(torch.complex64))


@each_function
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.int8, torch.bfloat16])
def test_negative_labels_are_refused_with_their_place(row, dtype):
    """The label -1 of padding made an NDCG of 1 one of .17."""
    labels = torch.tensor([0, 1, 2, -1, 0], dtype=dtype)
    with pytest.raises(ValueError, match=r"label -1(\.0)? of entry 3: labels must be 0 or more.*mask=.*clamp") as told:
        row(SCORES, labels, OFFSETS)
    assert "\n" not in str(told.value)


@each_function
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_labels_that_are_not_finite_are_refused(row, wrong):
    labels = LABELS.double()
    labels[1] = wrong
    with pytest.raises(ValueError, match="labels"):
        row(SCORES, labels, OFFSETS)


def test_judged_labels_are_checked_too():
    judged = torch.tensor([0, 1, -2]), torch.tensor([0, 2, 3])
    with pytest.raises(ValueError, match="label -2 of entry 2"):
        F.ndcg(SCORES, LABELS, OFFSETS, judged=judged)


def test_classes_may_be_any_numbers():
    classes = torch.tensor([-1, 1, -1, 1, -1])
    assert F.knn_error(SCORES, classes, OFFSETS, torch.tensor([1, -1]), k=1).tolist() == [0, 1]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("real", [False, True])
def test_labels_above_31_warn_where_gains_grow_exponentially(name, real):
    row, labels = ROWS[name], torch.tensor([0, 1, 50, 1, 0])
    if "max_label" in row.options:
        row = row._replace(options={**row.options, "max_label": 50})
    if "margin" in row.options and not isinstance(row.options["margin"], float):
        return  # a matrix of margins names its grades
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        row(SCORES, labels + 0.5 if real and "max_label" not in row.options else labels, OFFSETS)
    option = inspect.signature(row.function).parameters.get("gain")
    gain = row.options.get("gain", option.default) if option else "exp2"
    expected = gain == "exp2" and (option is not None or row.function.__name__ in EXPONENTIAL)
    expected = expected and not row.options.get("scheme", "").startswith("arp")  # which know no gains
    assert bool(told) == expected, [str(each.message) for each in told]
    assert all(each.category is DataWarning and "labels above 31" in str(each.message) for each in told)


def test_the_warning_of_large_labels_comes_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(5):
            F.evaluate(SCORES, torch.tensor([0, 1, 40, 1, 0]), OFFSETS, measures=["ndcg@5", "ndcg@10", "dcg", "map"])
    assert len(told) == 1


def test_infinite_gains_are_refused():
    with pytest.raises(ValueError, match="gain 2\\^y - 1 of label 2000 is infinite: use gain='linear'"):
        F.ndcg(SCORES, torch.tensor([0, 1, 2000, 1, 0]), OFFSETS)
    assert F.ndcg(SCORES, torch.tensor([0, 1, 2000, 1, 0]), OFFSETS, gain="linear").isfinite().all()


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_scores_give_nan_losses_and_slopes_in_every_precision(loss, dtype):
    scores = torch.tensor([1.0, torch.nan, 2.0, 0.5, 0.1, 3.0], dtype=dtype, requires_grad=True)
    values = loss(scores, torch.tensor([0, 1, 2, 0, 1, 1]), torch.tensor([0, 3, 6]))
    values.sum().backward()
    assert values.isnan().tolist() == [True, False]
    assert scores.grad.isnan().tolist() == [loss not in POINTWISE, True, loss not in POINTWISE, False, False, False]


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if loss not in LEARN_ALONE])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("label", [0, 1, 2.5])
def test_lists_with_one_distinct_label_have_loss_0_in_every_precision(loss, dtype, label):
    scores = torch.tensor([1.0, -3.0, torch.inf, 5.0, 2.0], dtype=dtype, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = loss(scores, torch.full((5,), float(label)), torch.tensor([0, 0, 3, 4, 5, 5]))
        values.sum().backward()
    assert values.tolist() == [0] * 5 and scores.grad.tolist() == [0] * 5

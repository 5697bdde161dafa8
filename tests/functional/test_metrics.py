"""Measures against the same formulas typed plainly, on ragged lists with ties, empty lists and real-valued labels."""

import math

import numpy as np
import plain
import pytest
import torch

import torchrank.functional as F


def batch(seed, lists=40, longest=9, grades=4, levels=4, real=False):
    """Lists of 0..longest entries, scores from a few levels (ties), some lists without relevant entry."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, longest + 1, lists)
    n = lengths.sum()
    scores = draw.integers(-levels, levels, n) / 2 if levels else draw.normal(size=n)
    labels = draw.normal(size=n).round(1) if real else draw.integers(0, grades, n)
    silent = np.repeat(draw.random(lists) < 0.2, lengths)
    labels = np.where(silent, 0, labels)
    offsets = np.concatenate([[0], lengths.cumsum()])
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(labels), torch.tensor(offsets)


def agree(name, seed, real=False, ints=(False, True), longest=9, levels=4, **options):
    scores, labels, offsets = batch(seed, real=real, longest=longest, levels=levels)
    expected = plain.each(getattr(plain, name), scores, labels, offsets, **options)
    takes_grades = name in ("ndcg", "mean_ndcg", "all_pairs_error", "domination_error")
    for given in ints:
        sizes = {"max_length": longest} if given else {}
        if given and takes_grades:
            sizes["num_grades"] = 0 if real else 4
        found = getattr(F, name)(scores, labels, offsets, **options, **sizes)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


CUTOFFS = [None, 1, 3, 5, 70]


@pytest.mark.parametrize("k", CUTOFFS)
@pytest.mark.parametrize("gain", ["exp2", "linear", lambda y: y**2])
@pytest.mark.parametrize("discount", ["log2p1", "letor", lambda r: 1 / r])
def test_ndcg(k, gain, discount):
    agree("ndcg", 0, k=k, gain=gain, discount=discount)


@pytest.mark.parametrize("k", [None, 1, 3, 70])
@pytest.mark.parametrize("ties", ["average", "worst"])
def test_ndcg_over_all_orders_of_ties(k, ties):
    agree("ndcg", 1, k=k, ties=ties, longest=6, levels=2)


@pytest.mark.parametrize("k", CUTOFFS)
@pytest.mark.parametrize("empty", [math.nan, 0.0, 1.0])
@pytest.mark.parametrize("short", ["pad", "zero"])
def test_ndcg_of_empty_and_short_lists(k, empty, short):
    agree("ndcg", 2, k=k, empty=empty, short=short)


def test_ndcg_with_real_labels():
    agree("ndcg", 3, k=3, real=True, gain=lambda y: y * (y > 0) if isinstance(y, float) else y.clamp(min=0))


def test_ideal_of_a_gain_that_does_not_grow_with_the_label():
    agree("ndcg", 4, k=3, gain=lambda y: (y - 2) ** 2)


@pytest.mark.parametrize("discount", ["log2p1", "letor"])
@pytest.mark.parametrize("ties", ["stable", "average"])
def test_mean_ndcg(discount, ties):
    agree("mean_ndcg", 5, discount=discount, ties=ties, longest=6, levels=2)
    agree("mean_ndcg", 5, discount=discount, ties=ties, longest=6, levels=2, empty=0.0)


@pytest.mark.parametrize("name", ["average_precision", "precision", "recall", "reciprocal_rank"])
@pytest.mark.parametrize("k", CUTOFFS)
@pytest.mark.parametrize("threshold", [1, 2, 0.5])
@pytest.mark.parametrize("empty", [math.nan, 0.0])
def test_binary_measures(name, k, threshold, empty):
    agree(name, 6, k=k, threshold=threshold, empty=empty)


@pytest.mark.parametrize("k", CUTOFFS)
def test_err(k):
    agree("err", 7, k=k, max_label=3)
    agree("err", 7, k=k, max_label=4, empty=0.0)


@pytest.mark.parametrize("real", [False, True])
def test_pair_measures(real):
    for longest in (9, 33):
        agree("auc", 8, real=real, threshold=0.3, longest=longest)
        for ties in ("half", "correct", "error"):
            agree("all_pairs_error", 9, real=real, ties=ties, longest=longest)
        for ties in ("correct", "error"):
            agree("domination_error", 10, real=real, ties=ties, longest=longest)
            agree("domination_error", 10, real=real, ties=ties, longest=longest, levels=0)


def test_pair_measures_are_not_quadratic():
    torch.manual_seed(0)
    scores, labels, offsets = torch.randn(60_000), torch.randn(60_000), torch.tensor([0, 60_000])
    assert F.all_pairs_error(scores, labels, offsets).item() == pytest.approx(0.5, abs=0.01)
    assert F.auc(scores, labels, offsets, threshold=0).item() == pytest.approx(0.5, abs=0.01)
    assert F.domination_error(scores, labels, offsets).item() > 0.99


def test_constant_scorer_in_domination_error():
    scores, labels, offsets = torch.zeros(4), torch.tensor([0, 1, 2, 1]), torch.tensor([0, 4])
    assert F.domination_error(scores, labels, offsets).item() == 0
    assert F.domination_error(scores, labels, offsets, ties="error").item() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_result_dtype_and_half_precision_scores_ranked_as_they_are(dtype):
    scores, labels, offsets = batch(11)
    low = (scores * 0.37).to(dtype)
    result = F.ndcg(low, labels, offsets, k=5)
    assert result.dtype == (dtype if dtype in (torch.float32, torch.float64) else torch.float32)
    np.testing.assert_allclose(result, plain.each(plain.ndcg, low.double(), labels, offsets, k=5), rtol=1e-6)


def test_negative_zero_is_zero():
    scores, labels, offsets = torch.tensor([-0.0, 0.0, -0.0, 0.0]), torch.tensor([0, 1, 1, 0]), torch.tensor([0, 2, 4])
    assert F.reciprocal_rank(scores, labels, offsets).tolist() == [0.5, 1.0]
    assert F.auc(scores.double(), labels, offsets).tolist() == [0.5, 0.5]


def test_infinite_scores_are_ordinary():
    scores, labels = torch.tensor([-math.inf, 0.0, math.inf]), torch.tensor([1, 0, 0])
    assert F.reciprocal_rank(scores, labels, torch.tensor([0, 3])).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.tensor([1.0, math.nan])}, "1 of 2 scores are NaN"),
        ({"labels": torch.tensor([1.0])}, "unpad"),
        ({"offsets": torch.tensor([0, 3])}, "N = 2"),
        ({"offsets": torch.tensor([0, 2, 1, 2])}, "rise"),
        ({"max_length": 1}, "longest list has 2"),
        ({"k": 0}, "positive integer"),
        ({"gain": "exp"}, "exp2"),
        ({"discount": "log"}, "letor"),
        ({"ties": "best"}, "average"),
        ({"short": "skip"}, "zero"),
    ],
)
def test_errors_say_what_to_do(change, message):
    arguments = {"scores": torch.tensor([1.0, 2.0]), "labels": torch.tensor([0, 1]), "offsets": torch.tensor([0, 2])}
    with pytest.raises(ValueError, match=message):
        F.ndcg(**(arguments | change))


def test_err_refuses_a_label_above_the_top():
    with pytest.raises(ValueError, match="max_label=1"):
        F.err(torch.tensor([1.0]), torch.tensor([2]), torch.tensor([0, 1]), max_label=1)


def test_pair_measures_refuse_unknown_ties():
    one = (torch.tensor([1.0]), torch.tensor([2]), torch.tensor([0, 1]))
    for function in (F.all_pairs_error, F.domination_error):
        with pytest.raises(ValueError, match="correct"):
            function(*one, ties="stable")


def test_err_of_a_top_label_that_is_rounded_to_one():
    scores, offsets = torch.tensor([2.0, 1.0, 3.0, 1.0]).double(), torch.tensor([0, 2, 4])
    found = F.err(scores, torch.tensor([60, 3, 0, 60]), offsets, max_label=60)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.5]).double(), rtol=1e-15, atol=0)

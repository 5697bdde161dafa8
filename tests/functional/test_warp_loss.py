"""WARP against plain loops over positives and negatives (tests/reference/losses.py), and cases worked out by hand.

L(k) = sum_{i<=k} 1/log2(i+1) (Su, King & Lyu 2017, eq. 16). A violator of p+ is a less relevant p- with
margin + f(p-) > f(p+) (eq. 18); the loss of a list is the mean over p+ of L(|V|)/|V| times the sum of
margin - f(p+) + f(p-) over V (eq. 17), 0 without one.
"""

import math

import numpy as np
import pytest
import torch

from tests.reference import losses as reference
from tests.reference.measures import blocks, per_list, random_batch, tensors
from torchrank import functional as F

OPTIONS = [
    {},
    {"margin": 0.0},
    {"margin": 0.25},
    {"margin": 3.0},
    {"negatives": "zero"},
    {"margin": 0.25, "negatives": "zero"},
]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def gradient(scores, labels, offsets, **options):
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(F.warp_loss(scores, labels, offsets, **options).sum(), scores)[0]


def frozen_loss(scores, terms, margin=0.1):
    """The loss with the weights of other scores, as the gradient sees it: only hinges that are not 0 count."""
    return math.fsum(
        weight / len(terms) * (margin - scores[i] + scores[j]) for i, found, weight in terms for j in found
    )


def finite_differences(scores, labels, offsets, **options):
    """Central differences, exact for a piecewise linear function that has no kink within a step."""
    result, step = np.zeros(len(scores)), 1e-5
    for block in blocks(offsets):
        own, terms = scores[block].tolist(), reference.warp_terms(scores[block], labels[block], **options)
        for i in range(len(own)):
            up, down = list(own), list(own)
            up[i] += step
            down[i] -= step
            ends = [frozen_loss(moved, terms, options.get("margin", 0.1)) for moved in (up, down)]
            result[block.start + i] = (ends[0] - ends[1]) / (2 * step)
    return result


# --- L(k) ---


def test_table_of_rank_weights():
    table = {0: 0, 1: 1, 2: 1.63092975, 3: 2.13092975, 4: 2.56160631, 5: 2.94845912, 10: 4.54355934, 20: 7.04026838}
    found = F.rank_weights(100, torch.device("cpu"))
    assert found.shape == (101,) and found.dtype == torch.float64 and found[0] == 0
    for k, value in (table | {100: 20.93867087}).items():
        assert float(found[k]) == pytest.approx(value, abs=5e-9)
    np.testing.assert_allclose(found.numpy(), [reference.rank_weight(k) for k in range(101)], rtol=1e-14)
    assert F.rank_weights(0).tolist() == [0.0]


# --- values ---


@pytest.mark.parametrize("real", [False, True])
@every_option
def test_values_and_gradients_are_those_of_the_loops(options, real):
    """Scores are multiples of 1/8 in many lists: they stand at exactly the margin, where an entry is no violator."""
    for seed in range(30, 35):
        scores, labels, offsets = random_batch(seed, longest=20, real=real)
        given = tensors(scores, labels, offsets)
        actual = F.warp_loss(*given, **options)
        expected = per_list(reference.warp_loss, scores, labels, offsets, **options)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-12)
        slopes = reference.gradients(reference.warp_gradient, scores, labels, offsets, **options)
        np.testing.assert_allclose(gradient(*given, **options), slopes, rtol=1e-12, atol=1e-14)


def test_by_hand():
    """Grades 2, 1, 0, 0 with scores 1, 2, 1.5, -9 and margin 1/4.

    The 2 is violated by 2 and 1.5: L(2)/2 (1.25 + 0.75). The 1 has the zeros below it, none within the margin.
    """
    given = tensors([1.0, 2.0, 1.5, -9.0], [2.0, 1.0, 0.0, 0.0], [0, 4])
    both = (1 + 1 / math.log2(3)) / 2 * 2.0
    assert float(F.warp_loss(*given, margin=0.25)) == pytest.approx(both / 2, abs=1e-15)
    assert float(F.warp_loss(*given, margin=0.25, negatives="zero")) == pytest.approx(0.75 / 2, abs=1e-15)
    slopes = np.array([-2.0, 1.0, 1.0, 0.0]) * (1 + 1 / math.log2(3)) / 2 / 2
    np.testing.assert_allclose(gradient(*given, margin=0.25).numpy(), slopes, atol=1e-15)
    zero = np.array([-1.0, 0.0, 1.0, 0.0]) / 2
    np.testing.assert_allclose(gradient(*given, margin=0.25, negatives="zero").numpy(), zero, atol=1e-15)


def test_a_gap_of_exactly_the_margin_is_no_violation():
    """margin + f(p-) > f(p+) is strict: the pair counts neither in |V| nor in the gradient."""
    given = tensors([0.25, 0.0, 0.125], [1.0, 0.0, 0.0], [0, 3])
    assert float(F.warp_loss(*given, margin=0.25)) == pytest.approx(0.125, abs=1e-15)
    np.testing.assert_allclose(gradient(*given, margin=0.25).numpy(), [-1.0, 0.0, 1.0], atol=1e-15)
    tied = tensors([1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0, 3])
    assert float(F.warp_loss(*tied, margin=0.0)) == 0
    assert not gradient(*tied, margin=0.0).any()


def test_zero_negatives_leave_out_lists_without_a_zero():
    """Grades 1 and 2 only: every document of grade 2 has a lower one, but none of label 0."""
    given = tensors([0.0, 1.0, 2.0, 0.5], [2.0, 1.0, 1.0, 2.0], [0, 4])
    assert float(F.warp_loss(*given, negatives="zero")) == 0
    assert not gradient(*given, negatives="zero").any()
    assert float(F.warp_loss(*given)) > 0


def test_negatives_are_the_same_where_there_are_two_grades():
    scores, labels, offsets = random_batch(34)
    given = tensors(scores, np.minimum(labels, 1), offsets)
    lower, zero = (F.warp_loss(*given, negatives=negatives) for negatives in ("lower", "zero"))
    np.testing.assert_allclose(lower.numpy(), zero.numpy(), rtol=1e-13, atol=1e-14)


def test_equal_scores_give_the_margin_times_the_exact_loss():
    """Every negative is a violator by the margin itself, and eq. 15 counts ties: eq. 17 = margin * eq. 14."""
    _, labels, offsets = random_batch(35)
    scores = np.zeros(len(labels))
    actual = F.warp_loss(*tensors(scores, labels, offsets), margin=0.5)
    expected = 0.5 * per_list(reference.exact_warp, scores, labels, offsets)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_a_long_list_against_counts():
    """10,000 entries, 20 million pairs: |V| and sums of violators from numpy's broadcast comparison, row by row."""
    draw = np.random.default_rng(5)
    scores, labels = draw.normal(size=10_000), draw.integers(0, 3, 10_000)
    below, sums = np.zeros(10_000, dtype=int), np.zeros(10_000)
    for i in range(10_000):
        terms = (0.1 - scores[i] + scores)[(labels < labels[i]) & (0.1 + scores > scores[i])]
        below[i], sums[i] = len(terms), terms.sum()
    rank_weight = np.concatenate([[0], np.cumsum(1 / np.log2(np.arange(2, 10_002)))])[below]
    expected = (rank_weight * sums / np.maximum(below, 1)).sum() / (labels > 0).sum()
    loss = F.warp_loss(torch.tensor(scores), torch.tensor(labels), torch.tensor([0, 10_000]))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


# --- gradients ---


@pytest.mark.parametrize("real", [False, True])
@every_option
def test_gradient_is_finite_differences(options, real):
    """On scores without a gap at the margin, where the loss has no slope to compare with."""
    scores, labels, offsets = random_batch(36, real=real)
    scores = np.random.default_rng(36).normal(size=len(scores))
    expected = finite_differences(scores, labels, offsets, **options)
    actual = gradient(*tensors(scores, labels, offsets), **options)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-8)


def test_no_violator_no_loss_no_gradient():
    _, labels, offsets = random_batch(38)
    given = tensors(labels * 0.2, labels, offsets)  # neighbouring grades are twice the margin apart
    assert not F.warp_loss(*given).any()
    assert not gradient(*given).any()


# --- numbers at the edge ---


def test_float32_and_huge_scores():
    batch = random_batch(39)
    actual = F.warp_loss(*tensors(*batch, dtype=torch.float32), margin=0.125)
    assert actual.dtype == torch.float32
    expected = per_list(reference.warp_loss, *batch, margin=0.125)
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=1e-5, atol=1e-5)
    for dtype in (torch.float32, torch.float64):
        given = tensors([1e4, -1e4, 3e4, 0.0], [0.0, 1.0, 2.0, 4.0], [0, 4], dtype)
        expected = reference.warp_loss([1e4, -1e4, 3e4, 0.0], [0, 1, 2, 4])
        assert float(F.warp_loss(*given)) == pytest.approx(expected, rel=1e-6)
        assert gradient(*given).isfinite().all()


def test_margin_and_scores_share_a_unit():
    scores, labels, offsets = tensors(*random_batch(40))
    scaled = F.warp_loss(4 * scores, labels, offsets, margin=1.0)
    expected = F.warp_loss(scores, labels, offsets, margin=0.25).numpy()
    np.testing.assert_allclose(scaled.numpy(), 4 * expected, rtol=1e-12)
    shifted = F.warp_loss(scores + 0.5, labels, offsets, margin=0.25)
    np.testing.assert_allclose(shifted.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_a_list_keeps_its_digits_beside_a_large_one():
    """A sum over all lists, or over all scores of a list, would lose them."""
    small, labels = torch.tensor([1e-9, 0.0, 1e-9]).double(), torch.tensor([0, 1, 2])
    alone = F.warp_loss(small, labels, torch.tensor([0, 3]), margin=1e-9)
    scores = torch.cat([1e12 * torch.tensor([1.0, -1, 1]).double(), small])
    both = F.warp_loss(scores, labels.repeat(2), torch.tensor([0, 3, 6]), margin=1e-9)
    assert both[1] == alone[0]
    far = torch.cat([small, torch.tensor([1e12, -1e12]).double()])  # its ends are in order: they add nothing
    loss = F.warp_loss(far, torch.tensor([1, 2, 2, 3, 0]), torch.tensor([0, 5]), margin=1e-9)
    expected = reference.warp_loss(far.tolist(), [1, 2, 2, 3, 0], margin=1e-9)
    assert loss.item() == pytest.approx(expected, rel=1e-14)


def test_infinite_and_undefined_scores():
    inf, labels, offsets = torch.inf, torch.tensor([1, 1, 0, 0, 1]), torch.tensor([0, 5])
    right = torch.tensor([inf, inf, -inf, -inf, 0.0])
    assert F.warp_loss(right, labels, offsets) == 0
    assert F.warp_loss(-right, labels, offsets) == inf
    for some in ([0], [1], [2], [3], [4], [0, 1, 2, 3, 4]):  # a fit that diverged must not look perfect
        broken = torch.tensor([0.0, 1.0, 0.5, -1.0, -2.0]).index_fill(0, torch.tensor(some), torch.nan)
        assert F.warp_loss(broken, labels, offsets).isnan()


def test_unknown_negatives_are_refused():
    with pytest.raises(ValueError, match="unknown negatives='some': choose one of lower, zero"):
        F.warp_loss(*tensors([1.0, 0.0], [1, 0], [0, 2]), negatives="some")

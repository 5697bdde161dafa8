"""Losses against the double loop over pairs, at the extremes of the scores, and their gradients."""

import itertools

import numpy as np
import plain
import pytest
import torch

import torchrank.functional as F
from torchrank.functional import LOSSES, losses


def batch(seed, lists=25, longest=8, scale=1.0, real=False):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, longest + 1, lists)
    labels = draw.normal(size=lengths.sum()).round(1) if real else draw.integers(0, 4, lengths.sum())
    labels = np.where(np.repeat(draw.random(lists) < 0.2, lengths), 2, labels)  # some lists have one distinct label
    scores = torch.tensor((draw.normal(size=lengths.sum()) * scale).round(1))
    return scores, torch.tensor(labels), torch.tensor([0, *lengths.cumsum()])


def sizes(labels, offsets):
    num_pairs = sum(len(plain.pairs(labels[a:b].tolist())) for a, b in itertools.pairwise(offsets))
    return {"max_length": 8, "num_grades": 4, "num_pairs": num_pairs}


CASES = [
    ("listnet", {}),
    ("ranknet", {}),
    ("lambdarank", {}),
    ("lambdarank", {"k": 1}),
    ("lambdarank", {"k": 3}),
    ("domination", {}),
    ("warp", {}),
    ("warp", {"margin": 1.0, "negatives": "zero"}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_value_equals_the_double_loop(name, options, scale):
    scores, labels, offsets = batch(0, scale=scale)
    expected = plain.each(getattr(plain, name + "_loss"), scores, labels, offsets, **options)
    for given in ({}, sizes(labels, offsets)):
        np.testing.assert_allclose(
            LOSSES[name](scores, labels, offsets, **options, **given), expected, rtol=1e-12, atol=1e-14
        )
    low = LOSSES[name](scores.float(), labels, offsets, **options)
    assert low.dtype == torch.float32
    expected = plain.each(getattr(plain, name + "_loss"), scores.float(), labels, offsets, **options)
    np.testing.assert_allclose(low, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["listnet", "ranknet", "domination", "warp"])
def test_real_labels(name):
    scores, labels, offsets = batch(1, real=True)
    expected = plain.each(getattr(plain, name + "_loss"), scores, labels, offsets)
    np.testing.assert_allclose(LOSSES[name](scores, labels, offsets), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradient(name, options):
    scores, labels, offsets = batch(2)
    scores = (scores + torch.linspace(0, 0.01, len(scores), dtype=scores.dtype)).requires_grad_()
    torch.autograd.gradcheck(lambda s: LOSSES[name](s, labels, offsets, **options), scores)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_distinct_label_gives_a_connected_zero(name, options, dtype):
    scores = torch.tensor([3e4, -3e4, 1.0, 5.0], dtype=dtype, requires_grad=True)
    loss = LOSSES[name](scores, torch.tensor([2, 2, 2, 0]), torch.tensor([0, 3, 3, 4]), **options)
    assert loss.tolist() == [0, 0, 0] and loss.requires_grad
    loss.sum().backward()
    assert scores.grad.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradient_is_finite_and_sums_to_zero_at_large_scores(name, options):
    for dtype in (torch.float32, torch.float64):
        scores, labels, offsets = batch(3, scale=1e4)
        scores = scores.to(dtype).requires_grad_()
        LOSSES[name](scores, labels, offsets, **options).sum().backward()
        assert scores.grad.isfinite().all() and scores.grad.abs().sum() > 0
        for a, b in itertools.pairwise(offsets):
            assert scores.grad[a:b].sum().abs() <= 1e-5 * scores.grad[a:b].abs().sum() + 1e-7


def test_pieces_of_any_size_give_the_same_loss_and_gradient(monkeypatch):
    scores, labels, offsets = batch(4)

    def run():
        leaf = scores.clone().requires_grad_()
        loss = F.lambdarank_loss(leaf, labels, offsets, k=5)
        loss.sum().backward()
        return torch.cat([loss.detach(), leaf.grad])

    whole = run()
    for size in (1, 7, 64):
        monkeypatch.setattr(losses, "PAIRS_AT_ONCE", size)
        torch.testing.assert_close(run(), whole, rtol=1e-12, atol=1e-13)


def test_lambdarank_weights_are_constants():
    """Its gradient is that of the weighted sum with the weights frozen: -w sigmoid(-(s_i - s_j))."""
    scores, labels = [0.3, 0.1, -0.5, 0.2], [0, 2, 1, 0]
    leaf = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    F.lambdarank_loss(leaf, torch.tensor(labels), torch.tensor([0, 4])).backward()
    rank = {i: r for r, i in enumerate(plain.order(scores), start=1)}
    ideal = plain.dcg(sorted(labels, reverse=True), None, plain.GAIN["exp2"], plain.DISCOUNT["log2p1"])
    expected = np.zeros(4)
    for i, j in plain.pairs(labels):
        discounts = [1 / np.log2(1 + rank[e]) for e in (i, j)]
        weight = (2.0 ** labels[i] - 2.0 ** labels[j]) * abs(discounts[0] - discounts[1]) / ideal
        slope = weight / (1 + np.exp(scores[i] - scores[j]))
        expected += slope * (np.eye(4)[j] - np.eye(4)[i])
    np.testing.assert_allclose(leaf.grad, expected, rtol=1e-12)


@pytest.mark.parametrize("negatives", ["lower", "zero"])
@pytest.mark.parametrize("margin", [0.0, 0.1, 0.25, 2.0])
@pytest.mark.parametrize("real", [False, True])
def test_warp_equals_the_double_loop_with_ties_at_the_margin(negatives, margin, real):
    """Scores are multiples of 1/8: many stand at exactly the margin, where an entry is no violator."""
    options = {"margin": margin, "negatives": negatives}
    for seed in range(5):
        scores, labels, offsets = batch(seed, longest=20, real=real)
        scores, labels = ((8 * scores).round() / 8).requires_grad_(), labels.abs()
        loss = F.warp_loss(scores, labels, offsets, **options)
        loss.sum().backward()
        lists = [(scores[a:b].tolist(), labels[a:b].tolist()) for a, b in itertools.pairwise(offsets)]
        expected = [plain.warp_loss(*one, **options) for one in lists]
        np.testing.assert_allclose(loss.detach(), expected, rtol=1e-13, atol=1e-14)
        slopes = np.concatenate([plain.warp_gradient(*one, **options) for one in lists])
        np.testing.assert_allclose(scores.grad, slopes, rtol=1e-12, atol=1e-15)


def test_warp_rank_weights():
    table = {0: 0, 1: 1, 2: 1.63092975, 3: 2.13092975, 4: 2.56160631, 5: 2.94845912, 10: 4.54355934, 100: 20.93867087}
    weights = F.rank_weights(100)
    assert weights.shape == (101,) and weights.dtype == torch.float64
    np.testing.assert_allclose(weights[list(table)], list(table.values()), atol=5e-9)


def test_warp_without_violators_is_exactly_zero():
    scores = torch.tensor([2.0, 1.0, 0.5, 3.0], requires_grad=True)
    loss = F.warp_loss(scores, torch.tensor([2, 1, 0, 4]), torch.tensor([0, 4]), margin=0.5)  # 0.5 + 0.5 > 1.0 is false
    loss.backward()
    assert loss == 0 and not scores.grad.any()


def test_warp_keeps_the_digits_of_a_list_beside_a_large_one():
    """A sum over all lists, or over all scores of a list, would lose them."""
    small, labels = torch.tensor([1e-9, 0.0, 1e-9]).double(), torch.tensor([0, 1, 2])
    alone = F.warp_loss(small, labels, torch.tensor([0, 3]), margin=1e-9)
    scores = torch.cat([1e12 * torch.tensor([1.0, -1, 1]).double(), small])
    both = F.warp_loss(scores, labels.repeat(2), torch.tensor([0, 3, 6]), margin=1e-9)
    assert both[1] == alone[0]
    far = torch.cat([small, torch.tensor([1e12, -1e12]).double()])  # its ends are in order: they add nothing
    loss = F.warp_loss(far, torch.tensor([1, 2, 2, 3, 0]), torch.tensor([0, 5]), margin=1e-9)
    expected = plain.warp_loss(far.tolist(), [1, 2, 2, 3, 0], margin=1e-9)
    assert loss.item() == pytest.approx(expected, rel=1e-14)


def test_warp_of_infinite_and_undefined_scores():
    inf, labels, offsets = torch.inf, torch.tensor([1, 1, 0, 0, 1]), torch.tensor([0, 5])
    right = torch.tensor([inf, inf, -inf, -inf, 0.0])
    assert F.warp_loss(right, labels, offsets) == 0
    assert F.warp_loss(-right, labels, offsets) == inf
    for some in ([0], [1], [2], [3], [4], [0, 1, 2, 3, 4]):  # a fit that diverged must not look perfect
        broken = torch.tensor([0.0, 1.0, 0.5, -1.0, -2.0]).index_fill(0, torch.tensor(some), torch.nan)
        assert F.warp_loss(broken, labels, offsets).isnan()


def test_warp_of_a_long_list_against_counts():
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


def test_warp_refuses_unknown_negatives():
    with pytest.raises(ValueError, match='"lower" or "zero", got \'all\''):
        F.warp_loss(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([0, 2]), negatives="all")

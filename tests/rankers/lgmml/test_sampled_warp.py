"""Sampled WARP: its mean move against the gradient and against the sum over all outcomes, and steps without chance."""

import math

import numpy as np
import pytest
import torch

import torchrank.functional as F
from tests.reference.local_metrics import negatives_of, rank_loss
from torchrank.rankers.lgmml.sampled_warp import sampled_warp

LABELS = [0, 2, 0, 1, 1, 0, 0, 0]


def one_list(seed, num_features=3):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(LABELS), num_features, generator=generator, dtype=torch.float64)
    return features, torch.randn(num_features, generator=generator, dtype=torch.float64)


def moves(features, labels, weights, draws=20_000, seed=0, **options):
    """Independent single steps: as many copies of the list as draws, each with its own row of weights, (draws, M)."""
    n = len(labels)
    moved = sampled_warp(
        features.repeat(draws, 1),
        torch.tensor(labels).repeat(draws),
        torch.arange(0, n * draws + 1, n),
        weights.repeat(draws, 1),
        torch.arange(draws),
        lr=torch.ones(draws, dtype=torch.float64),
        generator=torch.Generator().manual_seed(seed),
        nonneg=False,
        **options,
    )
    return moved - weights


def assert_mean(samples, expected):
    error = samples.std(0) / math.sqrt(len(samples))
    assert ((samples.mean(0) - expected).abs() <= 4.5 * error + 1e-12).all()


# ---- the mean move ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("negatives", ["lower", "zero"])
@pytest.mark.parametrize("seed", [0, 1])
def test_where_all_negatives_violate_the_margin_the_mean_move_is_the_gradient(seed, negatives):
    """The first draw is a violator then, so that the rank is exact and the cap does not matter."""
    features, weights = one_list(seed)
    weights.requires_grad_()
    options = {"margin": 100.0, "negatives": negatives}
    F.warp_loss(features @ weights, torch.tensor(LABELS), torch.tensor([0, len(LABELS)]), **options).backward()
    samples = moves(features, LABELS, weights.detach(), **options)
    assert weights.grad.abs().max() > 0.1
    assert_mean(samples, -weights.grad)


def expected_pay(violators, negatives):
    """Mean of L(max(1, floor(negatives / draws))) over the draws up to the first violator; how often it is found."""
    chance = violators / negatives
    chances = [(1 - chance) ** (n - 1) * chance for n in range(1, negatives + 1)]
    pays = [rank_loss(max(1, negatives // n)) for n in range(1, negatives + 1)]
    return np.dot(chances, pays), sum(chances)


@pytest.mark.parametrize("negatives", ["lower", "zero"])
@pytest.mark.parametrize("seed", [2, 3])
def test_the_mean_move_of_the_paper_is_the_sum_over_all_outcomes(seed, negatives):
    features, weights = one_list(seed)
    scores = (features @ weights).tolist()
    expected, positives = np.zeros(3), [i for i, y in enumerate(LABELS) if y > 0]
    for i in positives:
        below = negatives_of(i, LABELS, negatives)
        found = [j for j in below if 0.1 + scores[j] > scores[i]]
        if found:
            pay, _ = expected_pay(len(found), len(below))
            expected -= pay / len(positives) * (features[found].mean(0) - features[i]).numpy()
    assert_mean(moves(features, LABELS, weights, negatives=negatives), torch.from_numpy(expected))


@pytest.mark.parametrize(("negatives", "bias"), [(10, 1.36), (100, 1.77)])
def test_one_violator_is_paid_too_much_and_found_in_two_thirds_of_the_steps(negatives, bias):
    features = torch.zeros(negatives + 1, 2, dtype=torch.float64)
    features[0, 0], features[1, 0], features[:2, 1] = 1, 2, torch.tensor([0, 1])
    samples = moves(features, [1] + [0] * negatives, torch.tensor([1.0, 0]).double(), draws=5_000)
    pay, found = expected_pay(1, negatives)
    assert pay == pytest.approx(bias, abs=0.01) and found == pytest.approx(0.65, abs=0.02)
    assert_mean(samples[:, 1:], torch.tensor([-pay]))
    assert_mean((samples[:, 1:] != 0).double(), torch.tensor([found]))


# ---- steps without chance --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonneg", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_lists_of_two_leave_nothing_to_chance(nonneg, own):
    """One positive, one negative: every step is known. numpy takes them one after the other."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(30, 4)), np.tile([1, 0, 0, 3, 2, 1], 5)
    steps, lr = draw.integers(0, 15, 200), draw.random(200) / 5
    weights = np.ones((15, 4) if own else 4)
    expected = weights.copy()
    for q, rate in zip(steps, lr, strict=True):
        row = expected[q] if own else expected
        low, high = sorted([2 * q, 2 * q + 1], key=lambda i: y[i])
        if 0.5 + x[low] @ row > x[high] @ row:
            row -= rate * (x[low] - x[high])
            if nonneg:
                np.maximum(row, 0, out=row)
    given = torch.tensor(weights)
    found = sampled_warp(
        torch.tensor(x), torch.tensor(y), torch.arange(0, 31, 2), given, torch.tensor(steps), lr=torch.tensor(lr),
        generator=torch.Generator(), margin=0.5, nonneg=nonneg,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (found.min() >= 0) == nonneg
    assert (given == 1).all()


def one_step(features, labels, weights, steps=1, **options):
    """Steps of size 1/2 on the single list."""
    given = (torch.tensor(part, dtype=torch.float64) for part in (features, labels))
    return sampled_warp(
        *given, torch.tensor([0, len(labels)]), torch.tensor(weights, dtype=torch.float64),
        torch.zeros(steps, dtype=torch.int64), lr=torch.full((steps,), 0.5), generator=torch.Generator(), **options,
    ).tolist()  # fmt: skip


def test_the_rank_is_estimated_by_the_number_of_draws():
    """All five negatives are violators and alike: the first draw finds one, so k = floor(5/1)."""
    found = one_step([[0.0], *[[1.0]] * 5], [1, 0, 0, 0, 0, 0], [10.0])
    assert found == pytest.approx([10 - 0.5 * rank_loss(5)], abs=1e-14)


def test_no_violator_no_step():
    assert one_step([[5.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [2, 1, 0], [1.0, 1.0], steps=20) == [1.0, 1.0]
    assert one_step([[1.0], [0.75]], [1, 0], [1.0], margin=0.25) == [1.0]  # a gap of exactly the margin
    assert one_step([[1.0], [0.76]], [1, 0], [1.0], margin=0.25) != [1.0]


# ---- edges -----------------------------------------------------------------------------------------------------------


def run(labels, offsets, *, steps, negatives="lower", seed=0, dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(labels), 5, generator=generator)
    return sampled_warp(
        features, torch.tensor(labels), torch.tensor(offsets), torch.ones(5, dtype=dtype),
        torch.tensor(steps, dtype=torch.int64),
        lr=torch.full((len(steps),), 0.1), generator=torch.Generator().manual_seed(seed), negatives=negatives,
        margin=10.0, **options,
    )  # fmt: skip


def test_lists_without_a_positive_are_passed_over():
    labels, offsets = [0, 0, 1, 2, 2, 0, 1], [0, 0, 2, 4, 5, 7, 7]
    for q in (0, 1, 3, 5):
        assert (run(labels, offsets, steps=[q]) == 1).all()
    assert (run(labels, offsets, steps=[2]) != 1).any()
    assert (run(labels, offsets, steps=[2], negatives="zero") == 1).all()  # labels 1 and 2: nothing at 0
    assert (run(labels, offsets, steps=[4], negatives="zero") != 1).any()
    assert (run([], [0, 0], steps=[0]) == 1).all()
    assert (run([], [0], steps=[]) == 1).all()


def test_the_seed_decides_and_the_dtype_of_the_weights_stays():
    labels, offsets, steps = [0, 1, 0, 2, 1, 0] * 4, [0, 6, 12, 18, 24], [0, 1, 2, 3] * 5
    first = run(labels, offsets, steps=steps)
    assert torch.equal(first, run(labels, offsets, steps=steps))
    assert not torch.equal(first, run(labels, offsets, steps=steps, seed=1))
    double = run(labels, offsets, steps=steps, dtype=torch.float64)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), first, rtol=1e-4, atol=1e-5)


def test_it_learns():
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(50 * 20, 6, generator=generator)
    signal = features @ torch.tensor([2.0, 1.0, 0.5, 0, 0, 0])
    labels, offsets = (signal > 1.9).long() + (signal > 2.5).long(), torch.arange(0, 1001, 20)
    steps = torch.randint(50, (3000,), generator=generator)
    start = torch.ones(6)
    lr = torch.linspace(0.05, 0, 3000)
    end = sampled_warp(features, labels, offsets, start, steps, lr=lr, generator=generator)
    before, after = (F.warp_loss(features @ w, labels, offsets).mean() for w in (start, end))
    assert after < 0.1 * before


@pytest.mark.parametrize("weights", [(4,), (1, 5), (2, 4), ()])
def test_wrong_shapes_are_refused(weights):
    with pytest.raises(ValueError, match="M = 5, Q = 2"):
        sampled_warp(
            torch.zeros(4, 5), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 2, 4]), torch.ones(weights),
            torch.tensor([0]), lr=torch.ones(1), generator=torch.Generator(),
        )  # fmt: skip

"""WARP against plain loops over positives and negatives, and its sampled step against every draw enumerated.

L(k) = sum_{i<=k} 1/log2(i+1) (eq. 16). A violator of p+ is a less relevant p- with margin + f(p-) > f(p+) (eq. 18); the
loss of a list is the mean over p+ of L(|V|)/|V| times the sum of margin - f(p+) + f(p-) over V (eq. 17), 0 without one.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from torchrank import functional as F
from torchrank.solvers.local_metrics.warp import sampled_warp

from . import reference
from .reference import tensors

OPTIONS = [
    {},
    {"margin": 0.0},
    {"margin": 0.25},
    {"margin": 3.0},
    {"negatives": "zero"},
    {"margin": 0.25, "negatives": "zero"},
]


# --- the loss typed again ---


def rank_loss(k: int) -> float:
    """L(k), eq. 16."""
    return math.fsum(1.0 / math.log2(i + 1) for i in range(1, k + 1))


def negatives_of(label: float, labels, negatives: str) -> list[int]:
    """Places of the less relevant documents: all of them, or those of label 0."""
    return [j for j, other in enumerate(labels) if other < label and (negatives == "lower" or other == 0)]


def violators(score: float, scores, lower: list[int], margin: float) -> list[int]:
    return [j for j in lower if margin + scores[j] > score]


def frozen_weights(scores, labels, margin=0.1, negatives="lower") -> dict[int, float]:
    """L(|V|)/|V| of each positive that has a negative at all."""
    weights = {}
    for i, label in enumerate(labels):
        lower = negatives_of(label, labels, negatives)
        if lower:
            count = len(violators(scores[i], scores, lower, margin))
            weights[i] = rank_loss(count) / count if count else 0.0
    return weights


def warp_loss(scores, labels, *, margin=0.1, negatives="lower", weights=None) -> float:
    """Eq. 17. Finite differences hold the `weights` fixed, as the gradient does."""
    weights = frozen_weights(scores, labels, margin, negatives) if weights is None else weights
    if not weights:
        return 0.0
    total = 0.0
    for i, weight in weights.items():
        for j in negatives_of(labels[i], labels, negatives):
            total += weight * max(0.0, margin - scores[i] + scores[j])
    return total / len(weights)


def exact_loss(scores, labels) -> float:
    """Eq. 14-15: the mean of L(number of less relevant documents that score as high or higher)."""
    ranks = []
    for i, label in enumerate(labels):
        lower = negatives_of(label, labels, "lower")
        if lower:
            ranks.append(sum(scores[j] - scores[i] >= 0 for j in lower))
    return math.fsum(rank_loss(rank) for rank in ranks) / len(ranks) if ranks else 0.0


def gradient(scores, labels, offsets, **options):
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(F.warp_loss(scores, labels, offsets, **options).sum(), scores)[0]


def finite_differences(scores, labels, offsets, **options):
    """Central differences, exact for a piecewise linear function that has no kink within a step."""
    result, step = np.zeros(len(scores)), 1e-5
    for block in reference.blocks(offsets):
        own_scores, own_labels = scores[block].tolist(), labels[block].tolist()
        weights = frozen_weights(own_scores, own_labels, **options)
        for i in range(len(own_scores)):
            up, down = list(own_scores), list(own_scores)
            up[i] += step
            down[i] -= step
            ends = [warp_loss(moved, own_labels, weights=weights, **options) for moved in (up, down)]
            result[block.start + i] = (ends[0] - ends[1]) / (2 * step)
    return result


# --- L(k) ---


def test_table_of_rank_losses():
    table = {1: 1, 2: 1.63092975, 3: 2.13092975, 4: 2.56160631, 5: 2.94845912, 10: 4.54355934, 20: 7.04026838}
    found = F.rank_weights(100, torch.device("cpu"))
    assert found.shape == (101,)
    assert found.dtype == torch.float64
    assert found[0] == 0
    for k, value in (table | {100: 20.93867087}).items():
        assert float(found[k]) == pytest.approx(value, abs=5e-9)
    np.testing.assert_allclose(found.numpy(), [rank_loss(k) for k in range(101)], rtol=1e-14)
    assert F.rank_weights(0, torch.device("cpu")).tolist() == [0.0]


# --- values ---


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values(options, real):
    for seed in (30, 31, 32):
        batch = reference.random_batch(seed, real=real)
        actual = F.warp_loss(*tensors(*batch), **options)
        expected = reference.per_list(warp_loss, *batch, **options)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_sizes_that_the_batch_knows_change_nothing():
    scores, labels, offsets = reference.random_batch(33)
    lengths = np.diff(offsets)
    pairs = sum(
        sum(a > b for a, b in itertools.product(labels[block], repeat=2)) for block in reference.blocks(offsets)
    )
    sizes = {"max_length": int(lengths.max()), "num_grades": 5, "num_pairs": int(pairs)}
    arguments = tensors(scores, labels, offsets)
    for options in OPTIONS:
        plain, sized = F.warp_loss(*arguments, **options), F.warp_loss(*arguments, **options, **sizes)
        np.testing.assert_allclose(sized.numpy(), plain.numpy(), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(
            gradient(*arguments, **options, **sizes).numpy(), gradient(*arguments, **options).numpy(), atol=1e-13
        )


def test_by_hand():
    """Grades 2, 1, 0, 0 with scores 1, 2, 1.5, -9 and margin 1/4.

    The 2 is violated by 2 and 1.5: L(2)/2 (1.25 + 0.75). The 1 has the zeros below it, none within the margin.
    """
    arguments = tensors([1.0, 2.0, 1.5, -9.0], [2.0, 1.0, 0.0, 0.0], [0, 4])
    both = (1 + 1 / math.log2(3)) / 2 * 2.0
    assert float(F.warp_loss(*arguments, margin=0.25)) == pytest.approx(both / 2, abs=1e-15)
    assert float(F.warp_loss(*arguments, margin=0.25, negatives="zero")) == pytest.approx(0.75 / 2, abs=1e-15)
    slopes = np.array([-2.0, 1.0, 1.0, 0.0]) * (1 + 1 / math.log2(3)) / 2 / 2
    np.testing.assert_allclose(gradient(*arguments, margin=0.25).numpy(), slopes, atol=1e-15)
    zero = np.array([-1.0, 0.0, 1.0, 0.0]) / 2
    np.testing.assert_allclose(gradient(*arguments, margin=0.25, negatives="zero").numpy(), zero, atol=1e-15)


def test_a_gap_of_exactly_the_margin_is_no_violation():
    """margin + f(p-) > f(p+) is strict: the pair counts neither in |V| nor in the gradient."""
    arguments = tensors([0.25, 0.0, 0.125], [1.0, 0.0, 0.0], [0, 3])
    assert float(F.warp_loss(*arguments, margin=0.25)) == pytest.approx(0.125, abs=1e-15)
    np.testing.assert_allclose(gradient(*arguments, margin=0.25).numpy(), [-1.0, 0.0, 1.0], atol=1e-15)
    tied = tensors([1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0, 3])
    assert float(F.warp_loss(*tied, margin=0.0)) == 0
    assert not gradient(*tied, margin=0.0).any()


def test_zero_negatives_leave_out_lists_without_a_zero():
    """Grades 1 and 2 only: every document of grade 2 has a lower one, but none of label 0."""
    arguments = tensors([0.0, 1.0, 2.0, 0.5], [2.0, 1.0, 1.0, 2.0], [0, 4])
    assert float(F.warp_loss(*arguments, negatives="zero")) == 0
    assert not gradient(*arguments, negatives="zero").any()
    assert float(F.warp_loss(*arguments)) > 0


def test_negatives_are_the_same_where_there_are_two_grades():
    scores, labels, offsets = reference.random_batch(34)
    arguments = tensors(scores, np.minimum(labels, 1), offsets)
    lower, zero = (F.warp_loss(*arguments, negatives=negatives) for negatives in ("lower", "zero"))
    np.testing.assert_allclose(lower.numpy(), zero.numpy(), rtol=1e-13, atol=1e-14)


def test_equal_scores_give_the_margin_times_the_exact_loss():
    """Every negative is a violator by the margin itself, and eq. 15 counts ties: eq. 17 = margin * eq. 14."""
    _, labels, offsets = reference.random_batch(35)
    scores = np.zeros(len(labels))
    actual = F.warp_loss(*tensors(scores, labels, offsets), margin=0.5)
    expected = 0.5 * reference.per_list(exact_loss, scores, labels, offsets)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-14)


# --- gradients ---


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradient_is_finite_differences(options, real):
    """On scores without a gap at the margin, where the loss has no slope to compare with."""
    scores, labels, offsets = reference.random_batch(36, real=real)
    scores = np.random.default_rng(36).normal(size=len(scores))
    expected = finite_differences(scores, labels, offsets, **options)
    actual = gradient(*tensors(scores, labels, offsets), **options)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-8)


def test_gradient_of_a_weighted_sum_of_lists():
    scores, labels, offsets = tensors(*reference.random_batch(37))
    weights = torch.linspace(-1, 2, len(offsets) - 1, dtype=torch.float64)
    moving = scores.clone().requires_grad_()
    (F.warp_loss(moving, labels, offsets) * weights).sum().backward()
    lists = torch.repeat_interleave(weights, offsets.diff())
    np.testing.assert_allclose(
        moving.grad.numpy(), (gradient(scores, labels, offsets) * lists).numpy(), rtol=1e-12, atol=1e-13
    )


def test_no_violator_no_loss_no_gradient():
    _, labels, offsets = reference.random_batch(38)
    arguments = tensors(labels * 0.2, labels, offsets)  # neighbouring grades are twice the margin apart
    assert not F.warp_loss(*arguments).any()
    assert not gradient(*arguments).any()


def test_one_distinct_label_is_a_connected_zero():
    scores, labels, offsets = tensors([1.0, 2.0, 3.0, 4.0, 5.0, -1.0], [0, 0, 2, 2, 2, 1], [0, 0, 2, 5, 6, 6])
    scores.requires_grad_()
    for negatives in ("lower", "zero"):
        value = F.warp_loss(scores, labels, offsets, negatives=negatives)
        np.testing.assert_array_equal(value.detach().numpy(), np.zeros(5))
        (slopes,) = torch.autograd.grad(value.sum(), scores)
        assert not slopes.any()
    empty = F.warp_loss(*tensors([], [], [0]))
    assert empty.shape == (0,)


def test_float32_and_huge_scores():
    batch = reference.random_batch(39)
    actual = F.warp_loss(*tensors(*batch, dtype=torch.float32), margin=0.125)
    assert actual.dtype == torch.float32
    expected = reference.per_list(warp_loss, *batch, margin=0.125)
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=1e-5, atol=1e-5)
    for dtype in (torch.float32, torch.float64):
        arguments = tensors([1e4, -1e4, 3e4, 0.0], [0.0, 1.0, 2.0, 4.0], [0, 4], dtype)
        assert float(F.warp_loss(*arguments)) == pytest.approx(warp_loss([1e4, -1e4, 3e4, 0.0], [0, 1, 2, 4]), rel=1e-6)
        assert gradient(*arguments).isfinite().all()


def test_margin_and_scores_share_a_unit():
    scores, labels, offsets = tensors(*reference.random_batch(40))
    scaled = F.warp_loss(4 * scores, labels, offsets, margin=1.0)
    np.testing.assert_allclose(
        scaled.numpy(), 4 * F.warp_loss(scores, labels, offsets, margin=0.25).numpy(), rtol=1e-12
    )
    shifted = F.warp_loss(scores + 0.5, labels, offsets, margin=0.25)
    np.testing.assert_allclose(
        shifted.numpy(), F.warp_loss(scores, labels, offsets, margin=0.25).numpy(), rtol=1e-10, atol=1e-12
    )


def test_unknown_negatives_are_refused():
    with pytest.raises(ValueError, match="some"):
        F.warp_loss(*tensors([1.0, 0.0], [1, 0], [0, 2]), negatives="some")


# --- the sampled step ---


def one_list(features, labels, weights, steps=1, lr=0.5, seed=0, **options):
    """`steps` steps of size `lr` on the single list."""
    return sampled_warp(
        torch.tensor(features, dtype=torch.float64),
        torch.tensor(labels, dtype=torch.float64),
        torch.tensor([0, len(labels)]),
        torch.tensor(weights, dtype=torch.float64),
        torch.zeros(steps, dtype=torch.int64),
        lr=torch.full((steps,), lr, dtype=torch.float64),
        generator=torch.Generator().manual_seed(seed),
        **{"margin": 0.1, "negatives": "lower", "nonneg": True} | options,
    )


def test_a_step_with_one_choice():
    """One positive, one violator: omega - lr L(1) (phi(p-) - phi(p+))."""
    found = one_list([[1.0, 0.0], [3.0, 1.0]], [1, 0], [2.0, 1.0], lr=0.25)
    np.testing.assert_allclose(found.numpy(), [2.0 - 0.25 * 2, 1.0 - 0.25 * 1], atol=1e-15)


def test_weights_stay_nonnegative_only_if_asked():
    features, labels = [[0.0, 0.0], [4.0, -1.0]], [1, 0]
    np.testing.assert_allclose(one_list(features, labels, [1.0, 1.0]).numpy(), [0.0, 1.5], atol=1e-15)
    np.testing.assert_allclose(one_list(features, labels, [1.0, 1.0], nonneg=False).numpy(), [-1.0, 1.5], atol=1e-15)


def test_the_rank_is_estimated_by_the_number_of_draws():
    """All five negatives are violators and alike: the first draw finds one, so k = floor(5/1)."""
    features, labels = [[0.0], *[[1.0]] * 5], [1, 0, 0, 0, 0, 0]
    expected = 10 - 0.5 * rank_loss(5)
    assert float(one_list(features, labels, [10.0])) == pytest.approx(expected, abs=1e-14)
    assert float(one_list(features, labels, [10.0], exact_rank=True)) == pytest.approx(expected, abs=1e-14)


def test_no_violator_no_step():
    features, labels = [[5.0, 1.0], [1.0, 1.0], [0.0, 0.0]], [2, 1, 0]
    for capped in (True, False):
        found = one_list(features, labels, [1.0, 1.0], steps=20, capped=capped)
        assert found.tolist() == [1.0, 1.0]
    tied = one_list([[1.0], [0.75]], [1, 0], [1.0], margin=0.25)  # a gap of exactly the margin
    assert tied.tolist() == [1.0]


def test_lists_without_a_pair_are_skipped():
    for labels in ([0, 0], [2, 2]):
        assert one_list([[1.0], [2.0]], labels, [1.0], steps=3).tolist() == [1.0]
    assert one_list([[1.0], [2.0]], [2, 1], [1.0], steps=3, negatives="zero").tolist() == [1.0]
    assert one_list([[1.0], [2.0]], [2, 1], [1.0]).tolist() != [1.0]


def test_one_row_of_weights_per_list():
    """A step on list 1 moves row 1 only, and the input is not written into."""
    features = torch.tensor([[0.0], [1.0], [0.0], [2.0]], dtype=torch.float64)
    labels, offsets = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 2, 4])
    weights = torch.full((2, 1), 3.0, dtype=torch.float64)
    found = sampled_warp(
        features, labels, offsets, weights, torch.tensor([1]), lr=torch.tensor([0.5], dtype=torch.float64),
        margin=0.1, negatives="lower", nonneg=True, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found.tolist() == [[3.0], [2.0]]
    assert weights.tolist() == [[3.0], [3.0]]


FEATURES = np.array([[0.3, -1.0], [0.1, 0.4], [0.8, -0.2], [0.5, 0.5], [-0.6, 0.1], [0.2, 0.3]])
GRADES = [2, 1, 0, 1, 0, 0]


def drawn_steps(capped: bool, exact_rank: bool, negatives: str):
    """Every outcome of one step from weights of 1: (probability, L(k), p+, p-). Draws are with replacement."""
    scores = FEATURES.sum(1)
    positives = [i for i, label in enumerate(GRADES) if negatives_of(label, GRADES, negatives)]
    for i in positives:
        lower = negatives_of(GRADES[i], GRADES, negatives)
        found = violators(scores[i], scores, lower, 0.1)
        share = len(found) / len(lower)
        for draws in range(1, len(lower) + 1 if capped else 200):
            chance = (1 - share) ** (draws - 1) / len(lower) / len(positives)
            rank = len(found) if exact_rank else max(1, len(lower) // draws)
            for j in found:
                yield chance, rank_loss(rank), i, j


@pytest.mark.parametrize("negatives", ["lower", "zero"])
@pytest.mark.parametrize(("capped", "exact_rank"), [(False, True), (True, True), (True, False), (False, False)])
def test_mean_of_the_sampled_steps(capped, exact_rank, negatives):
    """The step size is so small that the weights stand still; the mean step is compared with all outcomes summed."""
    steps, lr = 3000, 1e-9
    outcomes = [(p, weight * (FEATURES[j] - FEATURES[i])) for p, weight, i, j in
                drawn_steps(capped, exact_rank, negatives)]  # fmt: skip
    expected = sum(p * slope for p, slope in outcomes)
    deviation = np.sqrt(sum(p * slope**2 for p, slope in outcomes) - expected**2)
    options = {"capped": capped, "exact_rank": exact_rank, "negatives": negatives, "nonneg": False}
    moved = one_list(FEATURES.tolist(), GRADES, [1.0, 1.0], steps, lr=lr, **options)
    actual = (1 - moved.numpy()) / (lr * steps)
    assert (np.abs(actual - expected) <= 5 * deviation / steps**0.5 + 1e-5).all()
    if exact_rank and not capped:  # then the expectation is the gradient of the exact form
        scores, labels, offsets = tensors(FEATURES.sum(1), GRADES, [0, len(GRADES)])
        slopes = gradient(scores, labels, offsets, negatives=negatives).numpy() @ FEATURES
        np.testing.assert_allclose(slopes, expected, atol=1e-12)


def test_same_generator_same_steps():
    runs = [one_list(FEATURES.tolist(), GRADES, [1.0, 1.0], 50, lr=0.05, seed=seed).tolist() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]

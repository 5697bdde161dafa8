"""The losses and their gradients against the plain transcription in `reference.py`, and cases worked out by hand."""

import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch

from torchrank import functional as F

from . import reference
from .reference import tensors

LOSSES = [
    ("listnet_loss", {}),
    ("ranknet_loss", {}),
    ("lambdarank_loss", {}),
    ("lambdarank_loss", {"k": 1}),
    ("lambdarank_loss", {"k": 3}),
    ("lambdarank_loss", {"k": 30}),
]


def gradient(name, scores, labels, offsets, **options):
    """Of the sum over the lists."""
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(getattr(F, name)(scores, labels, offsets, **options).sum(), scores)[0]


def finite_differences(name, scores, labels, offsets, **options):
    """Central differences of the transcription, list by list; LambdaRank's weights stay those of the given scores."""
    result, step = np.zeros(len(scores)), 1e-5
    for block in reference.blocks(offsets):
        own_scores, own_labels = scores[block].tolist(), labels[block].tolist()
        loss = getattr(reference, name)
        if name == "lambdarank_loss":
            loss = partial(loss, weights=reference.swap_weights(own_scores, own_labels, **options))
        for i in range(len(own_scores)):
            up, down = list(own_scores), list(own_scores)
            up[i] += step
            down[i] -= step
            result[block.start + i] = (loss(up, own_labels) - loss(down, own_labels)) / (2 * step)
    return result


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_values(name, options, real):
    """Some lists have scores of the order of 1e4, hence the relative tolerance."""
    for seed in (20, 21):
        batch = reference.random_batch(seed, real=real)
        actual = getattr(F, name)(*tensors(*batch), **options)
        expected = reference.per_list(getattr(reference, name), *batch, **options)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_gradients_are_finite_differences(name, options, real):
    scores, labels, offsets = reference.random_batch(22, real=real)
    scores = np.where(np.abs(scores) > 10, scores / 1e4, scores)  # a difference needs digits behind the point
    expected = finite_differences(name, scores, labels, offsets, **options)
    actual = gradient(name, *tensors(scores, labels, offsets), **options)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_float32(name, options):
    batch = reference.random_batch(23)
    actual = getattr(F, name)(*tensors(*batch, dtype=torch.float32), **options)
    expected = reference.per_list(getattr(reference, name), *batch, **options)
    np.testing.assert_allclose(actual.double().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_huge_scores_stay_finite(name, options):
    for dtype in (torch.float32, torch.float64):
        scores, labels, offsets = tensors([1e4, -1e4, 3e4, 0.0], [0.0, 1.0, 2.0, 4.0], [0, 4], dtype)
        value = getattr(F, name)(scores, labels, offsets, **options)
        expected = getattr(reference, name)(scores.tolist(), labels.tolist(), **options)
        assert value.item() == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-12)
        assert gradient(name, scores, labels, offsets, **options).isfinite().all()


@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_one_distinct_label_is_a_connected_zero(name, options):
    scores, labels, offsets = tensors([1.0, 2.0, 3.0, 4.0, 5.0, -1.0], [0, 0, 2, 2, 2, 1], [0, 0, 2, 5, 6, 6])
    scores.requires_grad_()
    value = getattr(F, name)(scores, labels, offsets, **options)
    np.testing.assert_array_equal(value.detach().numpy(), np.zeros(5))
    assert value.requires_grad
    value.sum().backward()
    np.testing.assert_array_equal(scores.grad.numpy(), np.zeros(6))


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_nothing_in_the_batch(name, options, offsets):
    scores, labels, offsets = tensors([], [], offsets)
    scores.requires_grad_()
    value = getattr(F, name)(scores, labels, offsets, **options)
    assert value.shape == (len(offsets) - 1,)
    value.sum().backward()
    assert scores.grad.shape == (0,)


@pytest.mark.parametrize(("name", "options"), LOSSES, ids=str)
def test_the_counts_of_the_batch_change_nothing(name, options):
    scores, labels, offsets = reference.random_batch(24)
    pairs = sum(len(reference.ordered_pairs(labels[block])) for block in reference.blocks(offsets))
    counts = {"max_length": 12, "num_grades": 5, "num_pairs": pairs}
    known = {key: value for key, value in counts.items() if key in inspect.signature(getattr(F, name)).parameters}
    batch = tensors(scores, labels, offsets)
    for function in (getattr(F, name), partial(gradient, name)):
        plain = function(*batch, **options)
        torch.testing.assert_close(function(*batch, **options, **known), plain, rtol=1e-13, atol=1e-13)


# --- by hand ---


def test_listnet_by_hand():
    # Labels log 3 and 0: target 3/4, 1/4. Scores 0 and log 4: model 1/5, 4/5.
    scores, labels, offsets = tensors([0.0, math.log(4)], [math.log(3), 0.0], [0, 2])
    expected = -(3 / 4) * math.log(1 / 5) - (1 / 4) * math.log(4 / 5)
    assert F.listnet_loss(scores, labels, offsets).item() == pytest.approx(expected, abs=1e-14)
    # Gradient: model minus target.
    slope = gradient("listnet_loss", scores, labels, offsets)
    np.testing.assert_allclose(slope, [1 / 5 - 3 / 4, 4 / 5 - 1 / 4], atol=1e-14)


def test_ranknet_by_hand():
    # Labels 2, 1, 1: pairs (0,1) and (0,2); score differences -log 3 and 0: log(1 + 3) + log(1 + 1) = log 8.
    scores, labels, offsets = tensors([0.0, math.log(3), 0.0], [2, 1, 1], [0, 3])
    assert F.ranknet_loss(scores, labels, offsets).item() == pytest.approx(math.log(8), abs=1e-14)
    # Each pair pulls with 1 / (1 + exp(difference)): 3/4 and 1/2.
    np.testing.assert_allclose(gradient("ranknet_loss", scores, labels, offsets), [-5 / 4, 3 / 4, 1 / 2], atol=1e-14)


def test_lambdarank_by_hand():
    # Order: entry 1, then entry 0 (tied with entry 2, but it stands before it), then entry 2.
    # Gains of the entries 3, 1, 0; discounts at their ranks 1/log2(3), 1, 1/2. Ideal 3 + 1/log2(3).
    d = 1 / math.log2(3)
    ideal = 3 + d
    w01, w02, w12 = (3 - 1) * (1 - d) / ideal, (3 - 0) * (d - 1 / 2) / ideal, (1 - 0) * (1 - 1 / 2) / ideal
    scores, labels, offsets = tensors([0.0, math.log(3), 0.0], [2, 1, 0], [0, 3])
    expected = w01 * math.log(4) + w02 * math.log(2) + w12 * math.log(4 / 3)
    assert F.lambdarank_loss(scores, labels, offsets).item() == pytest.approx(expected, abs=1e-14)
    # k = 1: only rank 1 counts (discounts 1, 0, 0; ideal 3), so the pair (0, 2) at ranks 2 and 3 has no weight.
    expected = 2 / 3 * math.log(4) + 1 / 3 * math.log(4 / 3)
    assert F.lambdarank_loss(scores, labels, offsets, k=1).item() == pytest.approx(expected, abs=1e-14)
    # The weights are constants: the gradient is theirs times the logistic slopes 3/4 (pair 01), 1/4 (pair 12).
    slope = gradient("lambdarank_loss", scores, labels, offsets, k=1)
    np.testing.assert_allclose(slope, [-2 / 3 * 3 / 4, 2 / 3 * 3 / 4 - 1 / 3 * 1 / 4, 1 / 3 * 1 / 4], atol=1e-14)

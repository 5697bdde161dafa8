"""The losses and their gradients against plain loops (tests/reference/losses.py), and cases worked out by hand.

WARP and the domination loss, which have margins, have files of their own; here they are rows of the table.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch

from tests.laws.cases import POINTWISE
from tests.reference import losses as reference
from tests.reference import soft
from tests.reference.measures import blocks, per_list, random_batch, tensors
from torchrank import functional as F
from torchrank.functional import LOSSES

CASES = [
    ("listnet_loss", {}),
    ("ranknet_loss", {}),
    ("lambdarank_loss", {}),
    ("lambdarank_loss", {"k": 1}),
    ("lambdarank_loss", {"k": 3}),
    ("lambdarank_loss", {"k": 30}),
    ("domination_loss", {}),
    ("warp_loss", {}),
    ("warp_loss", {"margin": 1.0, "negatives": "zero"}),
    ("softmax_loss", {}),
    ("softmax_loss", {"gain": "exp2", "normalize": True}),
    ("unique_softmax_loss", {}),
    ("unique_softmax_loss", {"gain": "linear"}),
    ("poly1_softmax_loss", {}),
    ("poly1_softmax_loss", {"epsilon": 0.1, "gain": "exp2"}),
    ("listmle_loss", {}),
    ("listmle_loss", {"discount": "log2p1"}),
    ("mse_loss", {}),
    ("bce_loss", {}),
    ("ordinal_loss", {}),
    ("logistic_loss", {}),
    ("hinge_loss", {}),
    ("soft_zero_one_loss", {}),
    ("pairwise_mse_loss", {}),
    *(("lambda_loss", {"scheme": scheme}) for scheme in ("ndcg1", "ndcg2", "lambdarank", "arp1", "arp2", "ranknet")),
    ("lambda_loss", {"k": 3, "mu": 2.0}),
    ("approx_ndcg_loss", {}),
    ("approx_ndcg_loss", {"k": 3, "temperature": 0.5, "gain": "linear"}),
    ("approx_mrr_loss", {}),
    ("neural_ndcg_loss", {}),
    ("neural_ndcg_loss", {"k": 3, "temperature": 0.5, "gain": "linear"}),
]
SMOOTH = [
    case for case in CASES if case[0] not in ("warp_loss", "hinge_loss", "neural_ndcg_loss")
]  # whose reference has slopes everywhere
every_loss = pytest.mark.parametrize(("name", "options"), CASES, ids=str)
every_smooth_loss = pytest.mark.parametrize(("name", "options"), SMOOTH, ids=str)


def gradient(name, scores, labels, offsets, **options):
    """Of the sum over the lists."""
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(getattr(F, name)(scores, labels, offsets, **options).sum(), scores)[0]


def finite_differences(name, scores, labels, offsets, **options):
    """Central differences of the transcription, list by list; LambdaRank's weights stay those of the given scores."""
    result, step = np.zeros(len(scores)), 1e-5
    for block in blocks(offsets):
        own_scores, own_labels = scores[block].tolist(), labels[block].tolist()
        loss, own = getattr(reference, name), options
        if name == "lambdarank_loss":
            own = {}
            loss = partial(loss, weights=reference.swap_weights(own_scores, own_labels, **options))
        if name == "lambda_loss":
            own = {}
            loss = partial(loss, weights=soft.lambda_weights(own_scores, own_labels, **options))
        for i in range(len(own_scores)):
            up, down = list(own_scores), list(own_scores)
            up[i] += step
            down[i] -= step
            result[block.start + i] = (loss(up, own_labels, **own) - loss(down, own_labels, **own)) / (2 * step)
    return result


def test_every_loss_has_a_name_and_a_row():
    assert {f"{name}_loss" for name in LOSSES} - {"structured_hinge_loss"} == {name for name, _ in CASES}
    assert all(LOSSES[name.removesuffix("_loss")] is getattr(F, name) for name, _ in CASES)
    assert LOSSES["structured_hinge"] is F.structured_hinge


@pytest.mark.parametrize("real", [False, True])
@every_loss
def test_values(name, options, real):
    """Some lists have scores of the order of 1e4, hence the relative tolerance."""
    for seed in (20, 21):
        batch = random_batch(seed, real=real)
        actual = getattr(F, name)(*tensors(*batch), **options)
        expected = per_list(getattr(reference, name), *batch, **options)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("real", [False, True])
@every_smooth_loss
def test_gradients_are_finite_differences(name, options, real):
    scores, labels, offsets = random_batch(22, real=real)
    scores = np.where(np.abs(scores) > 10, scores / 1e4, scores)  # a difference needs digits behind the point
    expected = finite_differences(name, scores, labels, offsets, **options)
    actual = gradient(name, *tensors(scores, labels, offsets), **options)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-8)


@every_loss
def test_huge_scores_stay_finite_and_gradients_sum_to_zero(name, options):
    for dtype in (torch.float32, torch.float64):
        scores, labels, offsets = tensors(
            [1e4, -1e4, 3e4, 0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 4.0, 1.0, 0.0], [0, 4, 6], dtype
        )
        value = getattr(F, name)(scores, labels, offsets, **options)
        expected = per_list(getattr(reference, name), scores, labels, offsets, **options)
        np.testing.assert_allclose(value.double(), expected, rtol=1e-5 if dtype == torch.float32 else 1e-12)
        slopes = gradient(name, scores, labels, offsets, **options)
        assert slopes.isfinite().all() and slopes.abs().sum() > 0
        if getattr(F, name) in POINTWISE:
            continue
        for part in slopes.split([4, 2]):
            assert part.sum().abs() <= 1e-6 * part.abs().sum()


# --- ListNet ---


@pytest.mark.parametrize("real", [False, True])
def test_the_gradient_of_listnet_is_the_difference_of_the_softmaxes(real):
    scores, labels, offsets = random_batch(25, real=real)
    expected = reference.gradients(reference.listnet_gradient, scores, labels, offsets)
    actual = gradient("listnet_loss", *tensors(scores, labels, offsets))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-14)


def test_infinite_scores_in_a_list_with_pairs():
    """-inf at a label is a probability of 0 there: the loss is infinite. NaN scores make it NaN, in their list only."""
    labels, offsets = torch.tensor([1, 0, 1, 0]), torch.tensor([0, 2, 4])
    for first, expected in (([-math.inf, 0.0], math.inf), ([math.nan, 0.0], math.nan)):
        value = F.listnet_loss(torch.tensor([*first, 1.0, 0.5]), labels, offsets)
        assert value[0].item() == pytest.approx(expected, nan_ok=True)
        assert value[1].item() == pytest.approx(reference.listnet_loss([1.0, 0.5], [1, 0]), rel=1e-6)


def test_listnet_tells_large_integers_apart():
    """2^24 and 2^24 + 1 are one number in float32."""
    labels = torch.tensor([0, 1]) + 2**24
    value = F.listnet_loss(torch.tensor([1.0, 0.5]), labels, torch.tensor([0, 2]))
    assert value.item() == pytest.approx(reference.listnet_loss([1.0, 0.5], [0, 1]), rel=1e-6)


@pytest.mark.parametrize("k", [None, 1, 2])
def test_lambdarank_weights_are_constants(k):
    """Its gradient is that of the weighted sum with the weights frozen: -w sigmoid(-(s_i - s_j))."""
    scores, labels, expected = [0.3, 0.1, -0.5, 0.2], [0, 2, 1, 0], np.zeros(4)
    for (i, j), weight in reference.swap_weights(scores, labels, k=k).items():
        slope = weight / (1 + math.exp(scores[i] - scores[j]))
        expected += slope * (np.eye(4)[j] - np.eye(4)[i])
    slopes = gradient("lambdarank_loss", *tensors(scores, labels, [0, 4]), k=k)
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=1e-15)


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


# --- edges; see also tests/laws/test_numbers.py ---


@pytest.mark.parametrize("measure", ["map", "auc", "mrr", "ndcg"])
@pytest.mark.parametrize("huge", [1e308, 1.7e308, 1e300])
def test_the_structured_hinge_of_huge_scores_is_finite(measure, huge):
    labels, offsets = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0, 3, 5])
    for scores in ([huge, -huge, 0.0, 1.0, 0.5], [-huge, huge, 0.0, 1.0, 0.5]):
        scores = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
        values = F.structured_hinge(scores, labels, offsets, measure=measure)
        values.sum().backward()
        assert torch.isfinite(values).all() and torch.isfinite(scores.grad).all()
        near = F.structured_hinge(scores.detach()[3:], labels[3:], torch.tensor([0, 2]), measure=measure)
        assert torch.equal(values[1:].detach(), near), "the other lists have the value that they have alone"
        small = torch.where(scores.detach().abs() > 1e200, scores.detach() / huge * 1e9, scores.detach())
        small.requires_grad_()
        F.structured_hinge(small, labels, offsets, measure=measure).sum().backward()
        assert torch.equal(scores.grad, small.grad), "the most violated ranking is that of smaller scores"
    assert values[0] == 0, "relevant entries far above the others"

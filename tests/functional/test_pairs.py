"""The sums over pairs: both forms against a plain (L, L) matrix per list, in all dtypes and for odd lists."""

import math
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.reference import soft as reference
from torchrank.functional import lambda_loss, lambdarank_loss, ranknet_loss
from torchrank.functional.losses import pairs

LOSSES = [(ranknet_loss, {}), (lambdarank_loss, {}), (lambdarank_loss, {"k": 10})]
every_loss = pytest.mark.parametrize(("loss", "options"), LOSSES, ids=lambda each: getattr(each, "__name__", str(each)))


def draw(seed, *, real=False, scale=1.0):
    """Lists of 0 to 90 entries and one of 700, about half of the labels 0; more pairs than `FEW_PAIRS`."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([rng.integers(0, 90, 25), [1, 700, 0]])
    total = lengths.sum()
    labels = rng.normal(size=total).round(2).clip(0) if real else rng.choice(5, total, p=[0.52, 0.32, 0.13, 0.02, 0.01])
    scores = rng.normal(size=total).round(1) * scale  # with ties
    return torch.tensor(scores), torch.tensor(labels), torch.tensor([0, *lengths.cumsum()])


def plain(scores, labels, weighted, k):
    """The loss of one list and its slopes in float64, from the whole matrix of pairs."""
    rises = scores[None, :] - scores[:, None]
    weights = (labels[:, None] > labels[None, :]).astype(float)
    if weighted and len(scores):
        rank = np.empty(len(scores))
        rank[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
        cut = len(scores) if k is None else k
        discounts, gains = np.where(rank <= cut, 1 / np.log2(rank + 1), 0), 2.0**labels - 1
        ideal = (np.sort(gains)[::-1][:cut] / np.log2(np.arange(2, len(gains) + 2))[:cut]).sum()
        weights *= np.abs(gains[:, None] - gains) * np.abs(discounts[:, None] - discounts) / (ideal or 1)
    pulls = weights * 0.5 * (1 + np.tanh(rises / 2))
    return (weights * np.logaddexp(0, rises)).sum(), pulls.sum(0) - pulls.sum(1)


def expected(loss, options, scores, labels, offsets):
    bounds = offsets.tolist()
    found = [
        plain(scores[a:b].double().numpy(), labels[a:b].double().numpy(), loss is lambdarank_loss, options.get("k"))
        for a, b in pairwise(bounds)
    ]
    return np.array([value for value, _ in found]), np.concatenate([slopes for _, slopes in found])


def found(loss, options, scores, labels, offsets):
    scores = scores.clone().requires_grad_()
    value = loss(scores, labels, offsets, **options)
    value.sum().backward()
    return value.detach(), scores.grad


@pytest.mark.parametrize("form", ["dense", "flat"])
@pytest.mark.parametrize("real", [False, True])
@every_loss
def test_float64_is_exact(loss, options, real, form, monkeypatch):
    monkeypatch.setattr(pairs, "FEW_PAIRS", 2**13 if form == "dense" else 2**62)
    batch = draw(1, real=real)
    value, slopes = found(loss, options, *batch)
    values, gradient = expected(loss, options, *batch)
    np.testing.assert_allclose(value, values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slopes, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["dense", "flat"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [None, 10])
@pytest.mark.parametrize("scheme", ["ndcg2", "lambdarank", "ndcg2++", "arp2", "ranknet"])
def test_lambda_loss_in_both_forms(scheme, k, weighted, form, monkeypatch):
    monkeypatch.setattr(pairs, "FEW_PAIRS", 1 if form == "dense" else 2**62)
    draws = np.random.default_rng(4)
    offsets = torch.tensor([0, *np.cumsum([30, 0, 1, 45, 2, 17])])
    scores = torch.tensor(draws.normal(size=95).round(1))
    labels, options = torch.tensor(draws.choice(5, 95)), {"scheme": scheme, "k": k, "sigma": 1.5}
    if weighted:  # by ones; others are in the laws of weights
        options["weights"] = torch.ones(95)
    value, slopes = found(lambda_loss, options, scores, labels, offsets)
    plainly = [
        reference.lambda_loss(scores[a:b].tolist(), labels[a:b].tolist(), scheme=scheme, k=k, sigma=1.5)
        for a, b in pairwise(offsets.tolist())
    ]
    np.testing.assert_allclose(value, plainly, rtol=1e-12, atol=1e-12)
    module = sys.modules[lambda_loss.__module__]
    monkeypatch.setattr(module, "readable", lambda _: False)  # all pairs, as on a device
    value, expected = found(lambda_loss, options, scores, labels, offsets)
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(1, 1), (100, 7), (2**10, 2**16)])
@every_loss
def test_blocks_of_any_size_and_height_give_the_same(loss, options, sizes, monkeypatch):
    batch = draw(2)
    values, gradient = expected(loss, options, *batch)
    for tallest in (1, 4, 1024):
        monkeypatch.setattr(pairs, "TALLEST", tallest)
        monkeypatch.setattr(pairs, "BLOCK_PAIRS", 2**12 * sizes[0])
        monkeypatch.setattr(pairs, "FEW_PAIRS", sizes[1])
        monkeypatch.setattr(pairs, "MOST_PAIRS", 2**9 * sizes[0])
        value, slopes = found(loss, options, *batch)
        np.testing.assert_allclose(value, values, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(slopes, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_loss
def test_float32_pairs_are_as_good_as_the_result(loss, options, dtype, scale):
    """Values to 1e-6 of their own, slopes to 1e-6 of the largest (half precision: to their own rounding)."""
    scores, labels, offsets = draw(3, scale=scale)
    scores = scores.to(dtype)
    value, slopes = found(loss, options, scores, labels, offsets)
    values, gradient = expected(loss, options, scores, labels, offsets)
    assert value.dtype == torch.float32 and slopes.dtype == dtype
    np.testing.assert_allclose(value.double(), values, rtol=1e-6, atol=1e-30)
    bound = max(1e-6, 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 0)
    np.testing.assert_allclose(slopes.double(), gradient, rtol=bound, atol=bound * np.abs(gradient).max())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@every_loss
def test_scores_that_are_not_finite_stay_in_their_list(loss, options, bad):
    scores, labels, offsets = draw(4)
    a, b = offsets[3].item(), offsets[4].item()
    broken = scores.clone()
    broken[a] = bad
    value, slopes = found(loss, options, broken, labels, offsets)
    others = torch.arange(len(value)) != 3
    values, gradient = expected(loss, options, scores, labels, offsets)
    np.testing.assert_allclose(value[others], values[others], rtol=1e-12, atol=1e-12)
    gradient[a:b] = slopes[a:b]
    np.testing.assert_allclose(slopes, gradient, atol=1e-12)
    if math.isnan(bad):
        assert value[3].isnan() and slopes[a].isnan()
    elif loss is ranknet_loss:
        assert not value[3].isnan() and not slopes[a:b].isnan().any()


@every_loss
def test_memory_does_not_grow_with_the_pairs(loss, options):
    """A list of 3,000 entries has 2.7 million pairs; no tensor of their number is made."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.multinomial(torch.tensor([0.52, 0.32, 0.16]), 3000, replacement=True, generator=generator)
    scores, offsets = torch.randn(3000, generator=generator, requires_grad=True), torch.tensor([0, 3000])
    with torch.profiler.profile(profile_memory=True) as profile:
        loss(scores, labels, offsets, **options).sum().backward()
    assert max(event.self_cpu_memory_usage for event in profile.events()) < 2**21


def test_memory_does_not_grow_with_the_list():
    """64 relevant entries next to each other share 70,000 partners, which are not taken all at once."""
    labels, offsets = torch.zeros(70_064), torch.tensor([0, 70_064])
    labels[:64] = 1
    scores = torch.randn(70_064, generator=torch.Generator().manual_seed(5))
    with torch.profiler.profile(profile_memory=True) as profile:
        value, slopes = pairs.pair_sums(scores, labels, offsets)
    assert max(event.self_cpu_memory_usage for event in profile.events()) <= 8 * pairs.MOST_PAIRS
    rises = scores[64:].double() - scores[:64, None].double()
    torch.testing.assert_close(value[0], torch.nn.functional.softplus(rises).sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(slopes[64:], rises.sigmoid().sum(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(slopes[:64], -rises.sigmoid().sum(1), rtol=1e-5, atol=0)


PLAIN = {  # f, f' and f'' of the rise of a pair
    "logistic": (
        lambda r: np.logaddexp(0, r),
        lambda r: 1 / (1 + np.exp(-r)),
        lambda r: np.exp(-r) / (1 + np.exp(-r)) ** 2,
    ),
    "hinge": (lambda r: np.maximum(0, 1 + r), lambda r: (r > -1).astype(float), np.zeros_like),
    "soft_zero_one": (
        lambda r: 1 / (1 + np.exp(-r)),
        lambda r: np.exp(-r) / (1 + np.exp(-r)) ** 2,
        lambda r: np.exp(-r) * (np.exp(-r) - 1) / (1 + np.exp(-r)) ** 3,
    ),
}


@pytest.mark.parametrize("form", ["dense", "flat"])
@pytest.mark.parametrize("pair", pairs.PAIRS)
def test_every_function_of_a_pair_with_weights(pair, form, monkeypatch):
    """Values, slopes, and the second derivative times a direction."""
    monkeypatch.setattr(pairs, "FEW_PAIRS", 2**13 if form == "dense" else 2**62)
    scores, labels, offsets = draw(6)
    weights, along = (torch.rand(2, len(scores), generator=torch.Generator().manual_seed(6)) * 2).double()
    loss, slopes = pairs.pair_sums(scores, labels, offsets, weights, pair=pair)
    products = pairs.pair_products(scores, labels, offsets, weights, along, pair=pair)
    value, slope, curvature = PLAIN[pair]
    for q, (a, b) in enumerate(pairwise(offsets.tolist())):
        s, y, w, v = (part[a:b].numpy() for part in (scores, labels, weights, along))
        rises, counts = s[None] - s[:, None], w[:, None] * (y[:, None] > y)
        pulls, turns = counts * slope(rises), counts * curvature(rises) * (v[None] - v[:, None])
        assert loss[q].item() == pytest.approx((counts * value(rises)).sum(), rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(slopes[a:b], pulls.sum(0) - pulls.sum(1), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(products[a:b], turns.sum(0) - turns.sum(1), rtol=1e-11, atol=1e-11)

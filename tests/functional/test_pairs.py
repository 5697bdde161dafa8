"""The sums over pairs against a plain (L, L) matrix per list, in all dtypes and for odd lists."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.reference import soft as reference
from torchrank.functional import LOSSES, derivatives, lambda_loss, lambdarank_loss, ranknet_loss

PAIRS = [(ranknet_loss, {}), (lambdarank_loss, {}), (lambdarank_loss, {"k": 10})]
every_loss = pytest.mark.parametrize(("loss", "options"), PAIRS, ids=lambda each: getattr(each, "__name__", str(each)))


def draw(seed, *, real=False, scale=1.0):
    """Lists of 0 to 90 entries and one of 700, about half of the labels 0; too many pairs to take all at once."""
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


@pytest.mark.parametrize("real", [False, True])
@every_loss
def test_float64_is_exact(loss, options, real):
    batch = draw(1, real=real)
    value, slopes = found(loss, options, *batch)
    values, gradient = expected(loss, options, *batch)
    np.testing.assert_allclose(value, values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slopes, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [None, 10])
@pytest.mark.parametrize("scheme", ["ndcg1", "ndcg2", "lambdarank", "ndcg2++", "arp1", "arp2", "ranknet"])
def test_lambda_loss_and_its_derivatives(scheme, k, weighted):
    draws = np.random.default_rng(4)
    offsets = torch.tensor([0, *np.cumsum([30, 0, 1, 45, 2, 17])])
    scores = torch.tensor(draws.normal(size=95).round(1))
    labels, options = torch.tensor(draws.choice(5, 95)), {"scheme": scheme, "k": k, "sigma": 1.5}
    if weighted:  # by ones; others are in the laws of weights
        options["weights"] = torch.ones(95)
    value = lambda_loss(scores, labels, offsets, **options)
    gradient, diagonal = derivatives(lambda_loss)(scores, labels, offsets, **options)
    for q, (a, b) in enumerate(pairwise(offsets.tolist())):
        s, y = scores[a:b].tolist(), labels[a:b].tolist()
        weights = reference.lambda_weights(s, y, scheme=scheme, k=k)
        assert value[q].item() == pytest.approx(reference.lambda_loss(s, y, weights=weights, sigma=1.5), rel=1e-12)
        slopes, curvatures = np.zeros((2, b - a))
        for (i, j), weight in weights.items():
            share = reference.sigmoid(1.5 * (s[j] - s[i]))
            slopes += 1.5 / math.log(2) * weight * share * (np.eye(b - a)[j] - np.eye(b - a)[i])
            curvatures[[i, j]] += 1.5**2 / math.log(2) * weight * share * (1 - share) * (i != j)
        np.testing.assert_allclose(gradient[a:b], slopes, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(diagonal[a:b], curvatures, rtol=1e-12, atol=1e-12)


LAMBDA = [("lambda", {"scheme": scheme, "k": k}) for scheme in ("ndcg1", "ndcg2++", "arp1") for k in (None, 10)]
BOTH = [
    *((name, {}) for name in LOSSES if name not in ("ordinal", "neural_ndcg")),
    *LAMBDA,
    *(("lambdarank", {"k": k, "pair": pair}) for k in (3, 60) for pair in ("logistic", "hinge")),
    ("warp", {"negatives": "zero", "margin": 1.0}),
    ("neural_ndcg", {"iterations": 2}),
]


@pytest.mark.parametrize(("name", "options"), BOTH, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_large_batch_is_its_lists_alone(name, options, weighted):
    """A few short lists are compared as they are, all pairs at once; others are sorted first, and taken in blocks."""
    scores, labels, offsets = draw(2)
    scores, labels, offsets = scores[: offsets[-3]], labels[: offsets[-3]], offsets[:-2]  # without the list of 700
    weights = torch.rand(len(scores), generator=torch.Generator().manual_seed(0)).double() if weighted else None
    one = derivatives(LOSSES[name])
    found = [LOSSES[name](scores, labels, offsets, weights=weights, **options)]
    found += one(scores, labels, offsets, weights=weights, **options)
    alone = []
    for a, b in pairwise(offsets.tolist()):
        lists = scores[a:b], labels[a:b], torch.tensor([0, b - a])
        own = options | {"weights": weights[a:b] if weighted else None}
        alone.append((LOSSES[name](*lists, **own), *one(*lists, **own)))
    for whole, parts in zip(found, zip(*alone, strict=True), strict=True):
        if whole is not None:
            torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-11, atol=1e-11)


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
        value, slopes = found(ranknet_loss, {}, scores, labels, offsets)
    assert max(event.self_cpu_memory_usage for event in profile.events()) < 2**21
    rises = scores[64:].double() - scores[:64, None].double()
    torch.testing.assert_close(
        value[0], torch.nn.functional.softplus(rises).sum(), rtol=1e-6, atol=0, check_dtype=False
    )
    wanted = torch.cat([-rises.sigmoid().sum(1), rises.sigmoid().sum(0)])
    torch.testing.assert_close(slopes, wanted, rtol=1e-5, atol=0, check_dtype=False)


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


@pytest.mark.parametrize("pair", PLAIN)
def test_every_function_of_a_pair_with_weights(pair):
    """Values, gradients, and the diagonal of the second derivative."""
    scores, labels, offsets = draw(6)
    weights = (torch.rand(len(scores), generator=torch.Generator().manual_seed(6)) * 2).double()
    loss = LOSSES[pair](scores, labels, offsets, weights=weights)
    slopes, curvatures = derivatives(LOSSES[pair])(scores, labels, offsets, weights=weights)
    value, slope, curvature = PLAIN[pair]
    for q, (a, b) in enumerate(pairwise(offsets.tolist())):
        s, y, w = (part[a:b].numpy() for part in (scores, labels, weights))
        rises, counts = s[None] - s[:, None], w[:, None] * (y[:, None] > y)
        pulls, turns = counts * slope(rises), counts * curvature(rises)
        assert loss[q].item() == pytest.approx((counts * value(rises)).sum(), rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(slopes[a:b], pulls.sum(0) - pulls.sum(1), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(curvatures[a:b], turns.sum(0) + turns.sum(1), rtol=1e-11, atol=1e-11)

"""Moments and Gaussians of clouds against plain numpy, list by list, and the divergences between Gaussians.

Divergences by their formulas with `inv` and `slogdet` (Banerjee, Dubey, Machchhar & Chakrabarti 2009, section 2).
"""

import itertools

import numpy as np
import pytest
import torch

from tests.functional.cloud_rows import clouds, draw, each, same
from torchrank.errors import NotPositiveDefinite
from torchrank.functional import cloud_gaussians, cloud_moments, gaussian_divergence

DIVERGENCES = ["jeffreys", "bhattacharyya"]


def plain_divergence(kind, m1, s1, m2, s2):
    gap = m1 - m2
    if kind == "bhattacharyya":
        middle = (s1 + s2) / 2
        logs = [np.linalg.slogdet(s)[1] for s in (middle, s1, s2)]
        return gap @ np.linalg.inv(middle) @ gap / 8 + (logs[0] - (logs[1] + logs[2]) / 2) / 2

    def kullback(first, second):
        inverse, logs = np.linalg.inv(second), np.linalg.slogdet(second)[1] - np.linalg.slogdet(first)[1]
        return (logs + np.trace(inverse @ first) + gap @ inverse @ gap - len(gap)) / 2

    return (kullback(s1, s2) + kullback(s2, s1)) / 2


def test_moments():
    x, offsets = clouds(10)
    found = cloud_moments(x, offsets)
    for number, rows in enumerate(each(x, offsets)):
        mean, variance, skew = np.zeros((3, 8))
        for j, column in enumerate(rows.T if len(rows) else []):
            mean[j] = sum(column) / len(column)
            variance[j] = sum((column - mean[j]) ** 2) / len(column)
            if variance[j] > 1e-12:
                skew[j] = sum((column - mean[j]) ** 3) / len(column) / variance[j] ** 1.5
        for part, expected in zip(found, (mean, variance, skew), strict=True):
            np.testing.assert_allclose(part[number], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shrink, ridge", [(0.1, 1e-6), (0.0, 0.0), (1.0, 0.5)])
def test_gaussians(shrink, ridge):
    x, offsets = clouds(11)
    means, covariances = cloud_gaussians(x, offsets, shrink=shrink, ridge=ridge)
    for number, rows in enumerate(each(x, offsets)):
        plain = np.cov(rows.T, bias=True) if len(rows) else np.zeros((8, 8))
        expected = (1 - shrink) * plain + (shrink * np.trace(plain) / 8 + ridge) * np.eye(8)
        np.testing.assert_allclose(covariances[number], expected, atol=1e-12)
        np.testing.assert_allclose(means[number], rows.mean(0) if len(rows) else np.zeros(8), atol=1e-12)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_divergences_by_the_textbook(kind):
    first = cloud_gaussians(*clouds(12))
    second = cloud_gaussians(*clouds(13, lengths=[20, 3, 1]))
    found = gaussian_divergence(*first, *second, kind=kind)
    pairs = itertools.product(zip(*first, strict=True), zip(*second, strict=True))
    expected = [plain_divergence(kind, *(part.numpy() for part in (*one, *other))) for one, other in pairs]
    np.testing.assert_allclose(found.flatten(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_divergence_laws(kind):
    """Symmetric, 0 for equal ones alone, and the same in all coordinates."""
    means, covariances = cloud_gaussians(*clouds(14, lengths=[9, 20, 3, 14]))
    found = gaussian_divergence(means, covariances, means, covariances, kind=kind)
    torch.testing.assert_close(found, found.T, rtol=1e-9, atol=1e-9)
    assert (found.diagonal() < 1e-9).all() and (found + torch.eye(4) > 1e-3).all()
    turn = torch.tensor(np.random.default_rng(0).normal(size=(8, 8)))
    moved, spread = (means + 100) @ turn, turn.T @ covariances @ turn
    torch.testing.assert_close(
        gaussian_divergence(moved, spread, moved, spread, kind=kind), found, rtol=1e-6, atol=1e-6
    )


def test_many_pairs():
    """More pairs than are solved at once."""
    first, second = cloud_gaussians(*draw([5, 4] * 20, 60)), cloud_gaussians(*draw([9, 1] * 10, 60, seed=1))
    found = gaussian_divergence(*first, *second, kind="bhattacharyya")
    for q, one in enumerate(zip(*first, strict=True)):
        row = gaussian_divergence(*(part[None] for part in one), *second, kind="bhattacharyya")
        same(found[q], row[0], 1e-9)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[5, 1, 9, 30, 8, 0, 7], [900] * 40], ids=["unlike", "many"])
def test_a_batch_is_its_lists_one_by_one(lengths, threads):
    x, offsets = draw(lengths, 10, seed=3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = [*cloud_moments(x, offsets), *cloud_gaussians(x, offsets)]
    finally:
        torch.set_num_threads(before)
    for number, rows in enumerate(x.split(lengths)):
        alone = rows, torch.tensor([0, len(rows)])
        for part, one in zip(found, [*cloud_moments(*alone), *cloud_gaussians(*alone)], strict=True):
            same(part[number], one[0])


@pytest.mark.parametrize("options", [{"shrink": 1.5}, {"shrink": -0.1}, {"ridge": -1.0}], ids=str)
def test_shrinkage_and_ridge_are_checked(options):
    shown = {"shrink": 0.1, "ridge": 1e-6} | options
    message = "shrink must be from 0 to 1 and ridge >= 0, got shrink={shrink} and ridge={ridge}".format(**shown)
    with pytest.raises(ValueError, match=message):
        cloud_gaussians(*draw([5, 4]), **options)


def test_gaussians_that_are_refused():
    means, covariances = cloud_gaussians(*draw([5, 4]))
    broken = covariances.clone()
    broken[1, 2, 2] = -1
    with pytest.raises(NotPositiveDefinite, match=r"covariances_v\[1\] is not positive definite"):
        gaussian_divergence(means, covariances, means, broken)
    with pytest.raises(ValueError, match="unknown kind='kl': choose one of jeffreys, bhattacharyya"):
        gaussian_divergence(means, covariances, means, covariances, kind="kl")
    with pytest.raises(ValueError, match="the same number of features, got 6 and 3"):
        gaussian_divergence(means, covariances, means[:, :3], covariances[:, :3, :3])
    with pytest.raises(ValueError, match=r"means must be \(Q, D\) .*, got \(2, 6\) and \(1, 6, 6\)"):
        gaussian_divergence(means, covariances[:1], means, covariances)
    many = torch.zeros(1001, 1), torch.ones(1001, 1, 1)
    with pytest.raises(ValueError, match="1 x 1001 pairs, but at most 1000 on a side are allowed"):
        gaussian_divergence(many[0][:1], many[1][:1], *many, kind="bhattacharyya")

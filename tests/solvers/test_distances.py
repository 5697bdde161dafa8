"""Distances between clouds by name against their formulas, list by list."""

import numpy as np
import pytest
import torch
from scipy import stats

from torchrank.functional import cloud_pca, cloud_similarity
from torchrank.solvers.distances import DISTANCES, cloud_distances


def draw(lengths, seed):
    random = np.random.default_rng(seed)
    rows = [
        random.standard_normal((n, 5)) @ random.standard_normal((5, 5)) + random.standard_normal(5) for n in lengths
    ]
    return torch.tensor(np.concatenate(rows)), torch.tensor([0, *np.cumsum(lengths)])


def gaussian(rows):
    spread = np.cov(rows.T, bias=True)
    return rows.mean(0), 0.9 * spread + (0.1 * np.trace(spread) / 5 + 1e-6) * np.eye(5)


def jeffreys(x, y):
    (m, s), (n, t) = gaussian(x), gaussian(y)
    one = np.trace(np.linalg.inv(t) @ s) + (m - n) @ np.linalg.inv(t) @ (m - n)
    other = np.trace(np.linalg.inv(s) @ t) + (m - n) @ np.linalg.inv(s) @ (m - n)
    return (one + other - 10) / 4


def bhattacharyya(x, y):
    """The logarithm of the integral of sqrt(p q), by its closed form with determinants."""
    (m, s), (n, t) = gaussian(x), gaussian(y)
    middle = (s + t) / 2
    ratio = np.linalg.det(middle) / np.sqrt(np.linalg.det(s) * np.linalg.det(t))
    return (m - n) @ np.linalg.inv(middle) @ (m - n) / 8 + np.log(ratio) / 2


PLAIN = {
    "mean": lambda x, y: np.linalg.norm(x.mean(0) - y.mean(0)),
    "variance": lambda x, y: np.linalg.norm(x.var(0) - y.var(0)),
    "skew": lambda x, y: np.linalg.norm(stats.skew(x) - stats.skew(y)),
    "jeffreys": jeffreys,
    "bhattacharyya": bhattacharyya,
}


@pytest.mark.parametrize("kind", PLAIN)
def test_by_formula(kind):
    (x, offsets), (y, bounds) = draw([9, 30, 6], 0), draw([8, 25], 1)
    found = cloud_distances(x, offsets, y, bounds, kind=kind)
    first, second = (np.split(rows.numpy(), ends[1:-1]) for rows, ends in ((x, offsets), (y, bounds)))
    np.testing.assert_allclose(found, [[PLAIN[kind](a, b) for b in second] for a in first], rtol=1e-9, atol=1e-12)


def test_directions():
    (x, offsets), (y, bounds) = draw([9, 1, 6], 0), draw([8, 25], 1)
    (u, _, _, r), (v, _, _, s) = cloud_pca(x, offsets, 3), cloud_pca(y, bounds, 3)
    found = cloud_distances(x, offsets, y, bounds, components=3)
    assert torch.equal(found, 1 - cloud_similarity(u, r, v, s)) and (found[1] == 1).all()


@pytest.mark.parametrize("kind", DISTANCES)
def test_of_a_set_to_itself(kind):
    x, offsets = draw([9, 30, 6], 2)
    found = cloud_distances(x, offsets, x, offsets, kind=kind)
    torch.testing.assert_close(found, cloud_distances(x, offsets, x.clone(), offsets, kind=kind), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, found.T, rtol=1e-9, atol=1e-9)
    assert found.diagonal().abs().max() < 1e-9
    assert cloud_distances(x.float(), offsets, x.float(), offsets, kind=kind).dtype == torch.float32


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="kind is 'cosine', choose one of"):
        cloud_distances(*draw([3], 0), *draw([3], 0), kind="cosine")

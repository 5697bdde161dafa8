"""Clouds against plain numpy, list by list and pair by pair, and the invariances of their similarity.

Principal directions by svd of the centred rows; similarities and divergences by their formulas in double loops, the
divergences with `inv` and `slogdet` (Banerjee, Dubey, Machchhar & Chakrabarti 2009, section 2).
"""

import itertools

import numpy as np
import pytest
import torch

from torchrank import functional as F

KINDS = ["ordered", "squared", "subspace", "weighted"]
DIVERGENCES = ["jeffreys", "bhattacharyya"]
LENGTHS = [9, 0, 1, 3, 40, 2, 17, 8, 1, 25, 7]


# --- plain forms ---


def clouds(seed, *, lengths=LENGTHS, features=8, ratio=2.0):
    """Rows of lists whose standard deviations along random axes fall by `ratio`: no two directions are close."""
    draw = np.random.default_rng(seed)
    parts = []
    for length in lengths:
        axes = np.linalg.qr(draw.normal(size=(features, features)))[0]
        parts.append(
            draw.normal(size=(length, features)) * ratio ** -np.arange(features) @ axes + draw.normal(size=features)
        )
    return torch.tensor(np.concatenate(parts)), torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))


def plain_pca(rows, components):
    """Directions, variances, total and rank of one cloud of distinct rows."""
    n, features = rows.shape
    u, variances = np.zeros((components, features)), np.zeros(components)
    if n < 2:
        return u, variances, 0.0, 0
    middle = rows - rows.mean(0)
    _, singular, axes = np.linalg.svd(middle, full_matrices=False)
    rank = min(n - 1, features, components)
    for p in range(rank):
        u[p] = axes[p] * np.sign(axes[p][np.abs(axes[p]).argmax()])
        variances[p] = singular[p] ** 2 / n
    return u, variances, (middle**2).sum() / n, rank


def plain_similarity(kind, u, r, lam, v, s, mu):
    """One pair of clouds with `r` and `s` directions."""
    if max(r, s) == 0:
        return 0.0
    if kind == "subspace":
        return sum((u[p] @ v[q]) ** 2 for p in range(r) for q in range(s)) / max(r, s)
    cosines = [abs(u[p] @ v[p]) for p in range(min(r, s))]
    if kind == "weighted":
        weighed = sum(np.sqrt(lam[p] * mu[p]) * cosine for p, cosine in enumerate(cosines))
        return weighed / np.sqrt(sum(lam[:r]) * sum(mu[:s])) if min(r, s) else 0.0
    return sum(cosine ** (2 if kind == "squared" else 1) for cosine in cosines) / max(r, s)


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


def each(x, offsets):
    return [x[a:b].numpy() for a, b in itertools.pairwise(offsets.tolist())]


def similarity(first, second, kind, components=4):
    """Of all clouds of two (rows, offsets)."""
    u, lam, _, r = F.cloud_pca(*first, components)
    v, mu, _, s = F.cloud_pca(*second, components)
    return F.cloud_similarity(u, r, v, s, kind=kind, eigenvalues=lam, eigenvalues_v=mu)


# --- values ---


@pytest.mark.parametrize("components", [1, 4, 8, 11])
@pytest.mark.parametrize("seed", [0, 1])
def test_principal_directions(seed, components):
    x, offsets = clouds(seed)
    found = F.cloud_pca(x, offsets, components)
    for number, rows in enumerate(each(x, offsets)):
        for part, expected in zip(found, plain_pca(rows, components), strict=True):
            np.testing.assert_allclose(part[number].numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [2, 3])
def test_both_routes_and_the_covariance_agree(seed):
    """Clouds around the number of features, one shorter and one longer: eigenvectors of the covariance for all."""
    x, offsets = clouds(seed, lengths=[11, 12, 13, 14, 12, 6, 30], features=12, ratio=1.7)
    u, variances, total, _ = F.cloud_pca(x, offsets, 5)
    for number, rows in enumerate(each(x, offsets)):
        values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
        np.testing.assert_allclose(variances[number], values[::-1][:5], atol=1e-12)
        np.testing.assert_allclose(total[number], values.sum(), rtol=1e-12)
        cosines = np.abs((u[number].numpy() * vectors.T[::-1][:5]).sum(1))
        assert (cosines > 1 - 1e-8).all()


@pytest.mark.parametrize("lengths", [[40, 30, 26], [17, 60, 20]])
def test_the_subspace_route_on_falling_variances(lengths):
    x, offsets = clouds(4, lengths=lengths, features=24, ratio=1.5)
    exact, subspace = (F.cloud_pca(x, offsets, 4, route=route) for route in ("exact", "subspace"))
    for one, other in zip(exact, subspace, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8)


def test_float32_rows():
    x, offsets = clouds(5)
    x = x.float()
    found = F.cloud_pca(x, offsets, 4)
    assert [part.dtype for part in found] == [torch.float32] * 3 + [torch.int64]
    for number, rows in enumerate(each(x.double(), offsets)):
        for part, expected in zip(found, plain_pca(rows, 4), strict=True):
            np.testing.assert_allclose(part[number].numpy(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_pair_by_pair(kind):
    first, second = clouds(6), clouds(7, lengths=[4, 1, 2, 30, 0, 9])
    u, lam, _, r = F.cloud_pca(*first, 4)
    v, mu, _, s = F.cloud_pca(*second, 4)
    found = F.cloud_similarity(u, r, v, s, kind=kind, eigenvalues=lam, eigenvalues_v=mu)
    left, right = (
        zip(u.numpy(), r.tolist(), lam.numpy(), strict=True),
        list(zip(v.numpy(), s.tolist(), mu.numpy(), strict=True)),
    )
    expected = [[plain_similarity(kind, *one, *other) for other in right] for one in left]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_the_nearest_are_the_first_of_the_full_order(kind, k):
    """With ties: every third cloud of v comes twice."""
    u, lam, _, r = F.cloud_pca(*clouds(8), 4)
    v, mu, _, s = F.cloud_pca(*clouds(9, lengths=[4, 1, 2, 30, 0, 9, 2, 6]), 4)
    again = torch.tensor([0, 1, 2, 3, 0, 4, 5, 6, 3, 7, 6])
    v, mu, s = v[again], mu[again], s[again]
    weights = {"eigenvalues": lam, "eigenvalues_v": mu}
    full = F.cloud_similarity(u, r, v, s, kind=kind, **weights).numpy()
    found, index = F.nearest_clouds(u, r, v, s, k, kind=kind, **weights)
    for row, values, places in zip(full, found.numpy(), index.tolist(), strict=True):
        order = sorted((-value, place) for place, value in enumerate(row) if s[place] > 0)[:k]
        assert places == [place for _, place in order]
        assert values.tolist() == [-value for value, _ in order]


def test_moments():
    x, offsets = clouds(10)
    found = F.cloud_moments(x, offsets)
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
    means, covariances = F.cloud_gaussians(x, offsets, shrink=shrink, ridge=ridge)
    for number, rows in enumerate(each(x, offsets)):
        plain = np.cov(rows.T, bias=True) if len(rows) else np.zeros((8, 8))
        expected = (1 - shrink) * plain + (shrink * np.trace(plain) / 8 + ridge) * np.eye(8)
        np.testing.assert_allclose(covariances[number], expected, atol=1e-12)
        np.testing.assert_allclose(means[number], rows.mean(0) if len(rows) else np.zeros(8), atol=1e-12)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_divergences_by_the_textbook(kind):
    first = F.cloud_gaussians(*clouds(12))
    second = F.cloud_gaussians(*clouds(13, lengths=[20, 3, 1]))
    found = F.gaussian_divergence(*first, *second, kind=kind)
    pairs = itertools.product(zip(*first, strict=True), zip(*second, strict=True))
    expected = [plain_divergence(kind, *(part.numpy() for part in (*one, *other))) for one, other in pairs]
    np.testing.assert_allclose(found.flatten(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_divergence_laws(kind):
    """Symmetric, 0 for equal ones alone, and the same in all coordinates."""
    means, covariances = F.cloud_gaussians(*clouds(14, lengths=[9, 20, 3, 14]))
    found = F.gaussian_divergence(means, covariances, means, covariances, kind=kind)
    torch.testing.assert_close(found, found.T, rtol=1e-9, atol=1e-9)
    assert (found.diagonal() < 1e-9).all() and (found + torch.eye(4) > 1e-3).all()
    turn = torch.tensor(np.random.default_rng(0).normal(size=(8, 8)))
    moved, spread = (means + 100) @ turn, turn.T @ covariances @ turn
    torch.testing.assert_close(
        F.gaussian_divergence(moved, spread, moved, spread, kind=kind), found, rtol=1e-6, atol=1e-6
    )


# --- invariances of the similarity ---


def shuffled(x, offsets):
    draw = np.random.default_rng(1)
    order = np.concatenate([a + draw.permutation(b - a) for a, b in itertools.pairwise(offsets.tolist())])
    return x[order], offsets


def moved(x, offsets):
    shift = torch.tensor(np.random.default_rng(2).normal(size=(len(offsets) - 1, x.shape[1])) * 10)
    return x + shift.repeat_interleave(offsets.diff(), 0), offsets


def scaled(x, offsets):
    factors = torch.tensor([-3.0, 1e-3, 0.5, 700.0, -1.0, -1e4, 2.0, 1.0, 5.0, -0.1, 30.0], dtype=torch.float64)
    return x * factors.repeat_interleave(offsets.diff())[:, None], offsets


def repeated(x, offsets):
    return x.repeat_interleave(3, 0), 3 * offsets


CHANGES = {change.__name__: change for change in (shuffled, moved, scaled, repeated)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_that_leave_the_shape(kind, change):
    first, second = clouds(15), clouds(16, lengths=[5, 12, 1, 3])
    expected = similarity(first, second, kind)
    torch.testing.assert_close(similarity(change(*first), second, kind), expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(similarity(second, change(*first), kind), expected.T, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_rotation_changes_nothing_that_of_one_side_does(kind):
    first, second = clouds(17), clouds(18, lengths=[5, 12, 1, 3])
    turn = torch.tensor(np.linalg.qr(np.random.default_rng(3).normal(size=(8, 8)))[0])
    expected = similarity(first, second, kind)
    turned = [(x @ turn, offsets) for x, offsets in (first, second)]
    torch.testing.assert_close(similarity(*turned, kind), expected, rtol=0, atol=1e-8)
    assert (similarity(turned[0], second, kind) - expected).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_lie_between_0_and_1_are_symmetric_and_1_for_itself(kind):
    x, offsets = clouds(19)
    found = similarity((x, offsets), (x, offsets), kind)
    assert (found >= 0).all() and (found <= 1).all()
    torch.testing.assert_close(found, found.T, rtol=0, atol=1e-12)
    shape = (offsets.diff() > 1).double()
    torch.testing.assert_close(found.diagonal(), shape, rtol=0, atol=1e-12)
    assert (found[shape == 0] == 0).all()


def test_the_span_knows_no_order():
    """`subspace` is blind to the order of directions and to a rotation inside their span, the others are not."""
    u = torch.eye(6, dtype=torch.float64)[None, :3]
    turn = torch.tensor(np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0])
    rank = torch.tensor([3])
    for other in (u.flip(1), turn @ u):
        assert F.cloud_similarity(u, rank, other, rank, kind="subspace").item() == pytest.approx(1, abs=1e-12)
        assert F.cloud_similarity(u, rank, other, rank).item() < 0.9


@pytest.mark.parametrize("kind", ["squared", "subspace"])
def test_squares_of_full_rank_clouds_are_positive_definite(kind):
    u, _, _, rank = F.cloud_pca(*clouds(20, lengths=[6] * 30), 3)
    assert np.linalg.eigvalsh(F.cloud_similarity(u, rank, u, rank, kind=kind).numpy()).min() > -1e-10

"""Matrix functions against their definitions in 60 digits, and against plain loops."""

import functools
import itertools

import mpmath
import numpy as np
import pytest
import torch

from torchrank.functional import (
    geometric_mean,
    gmml,
    gmml_factor,
    gmml_residual,
    mahalanobis,
    pair_scatter,
    project_psd,
    spd,
)

TIMES = (0, 0.25, 0.5, 0.75, 1)
METHODS = ("auto", "eigh", "svd", "dbase", "gemm")
CONDITIONS = [(1, 1), (1e3, 1e3), (1e6, 1), (1, 1e6), (1e6, 1e6), (1e8, 1), (1, 1e8), (1e8, 1e8)]


def precise(function):
    def run(*arguments):
        with mpmath.workdps(60):
            return np.array(function(*arguments).tolist(), dtype=float)

    return run


def powers(matrix, *exponents):
    values, vectors = mpmath.eigsy(matrix)
    values = [max(value, mpmath.mpf(0)) for value in values]
    return [vectors * mpmath.diag([value ** mpmath.mpf(e) for value in values]) * vectors.T for e in exponents]


@precise
def exact_gmml(similar, dissimilar, t):
    """S^-1/2 (S^1/2 D S^1/2)^t S^-1/2."""
    s, d = mpmath.matrix(similar.tolist()), mpmath.matrix(dissimilar.tolist())
    root, inverse = powers(s, 0.5, -0.5)
    return inverse * powers(root * d * root, t)[0] * inverse


@precise
def exact_mean(a, b, t):
    """A^1/2 (A^-1/2 B A^-1/2)^t A^1/2."""
    a, b = mpmath.matrix(a.tolist()), mpmath.matrix(b.tolist())
    root, inverse = powers(a, 0.5, -0.5)
    return root * powers(inverse * b * inverse, t)[0] * root


def error(actual, expected):
    return np.linalg.norm(np.asarray(actual) - expected) / np.linalg.norm(expected)


def conditioned(draw, size, condition):
    turn, _ = np.linalg.qr(draw.standard_normal((size, size)))
    matrix = (turn * np.geomspace(1, 1 / condition, size)) @ turn.T
    return (matrix + matrix.T) / 2


def scatters(draw, size, rows=60):
    parts = draw.standard_normal((rows, size)), 3 * draw.standard_normal((rows, size))
    return [x.T @ x / rows for x in parts]


def pair(seed, batch=(), size=6):
    """A batch of well-conditioned scatters."""
    x, y = torch.randn(2, *batch, 3 * size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.mT @ x / size, y.mT @ y


@functools.cache
def conditioned_case(of_similar, of_dissimilar):
    draw = np.random.default_rng(3)
    s, d = conditioned(draw, 10, of_similar), conditioned(draw, 10, of_dissimilar)
    return torch.tensor(s), torch.tensor(d), {t: exact_gmml(s, d, t) for t in TIMES}


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_metric_to_60_digits(conditions, method):
    s, d, expected = conditioned_case(*conditions)
    limit = 1e-8 if max(conditions) > 1e6 else 1e-9
    for t in TIMES:
        factor = gmml_factor(s, d, t, method=method)
        assert error(factor @ factor.T, expected[t]) < limit
        assert error(gmml(s, d, t), expected[t]) < limit


@pytest.mark.parametrize("ridge", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("dead_in", ["both", "similar", "dissimilar"])
def test_dead_features_with_a_tiny_ridge(ridge, dead_in):
    draw, dead = np.random.default_rng(5), [0, 3, 4]
    s, d = scatters(draw, 8)
    for matrix in {"both": (s, d), "similar": (s,), "dissimilar": (d,)}[dead_in]:
        matrix[dead], matrix[:, dead] = 0, 0
    s, d = s + ridge * np.eye(8), d + ridge * np.eye(8)
    for t in (0, 0.25, 0.5, 1):
        expected = exact_gmml(s, d, t)
        for method in METHODS:
            factor = gmml_factor(torch.tensor(s), torch.tensor(d), t, method=method)
            assert error(factor @ factor.T, expected) < 1e-12, (t, method)


def test_features_of_very_different_scale():
    draw = np.random.default_rng(6)
    scale = draw.permutation(np.geomspace(1e-4, 1, 10))  # a condition of 1e8, and yet few digits are lost
    s, d = (matrix * scale * scale[:, None] for matrix in scatters(draw, 10))
    for t in TIMES:
        assert error(gmml(torch.tensor(s), torch.tensor(d), t), exact_gmml(s, d, t)) < 1e-11, t


@pytest.mark.parametrize("method", METHODS)
def test_fewer_pairs_than_features_and_a_ridge(method):
    draw = np.random.default_rng(7)
    x, y = draw.standard_normal((5, 12)), draw.standard_normal((40, 12))
    s, d = x.T @ x / 5 + 1e-6 * np.eye(12), y.T @ y / 40 + 1e-6 * np.eye(12)
    factor = gmml_factor(torch.tensor(s), torch.tensor(d), method=method)
    assert error(factor @ factor.T, exact_gmml(s, d, 0.5)) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_nearly_repeated_features(method):
    draw = np.random.default_rng(12)
    x, y = draw.standard_normal((30, 6)), draw.standard_normal((40, 6))
    x[:, 4] = x[:, 1] + 1e-5 * x[:, 4]  # a condition of 1e11: suspect, but of full rank
    s, d = x.T @ x, y.T @ y
    for t, limit in zip((0, 0.25, 0.5, 1), (1e-4, 1e-4, 1e-4, 1e-14), strict=True):
        factor = gmml_factor(torch.tensor(s), torch.tensor(d), t, method=method)
        assert error(factor @ factor.T, exact_gmml(s, d, t)) < limit


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
def test_geometric_mean_to_60_digits(conditions):
    draw = np.random.default_rng(8)
    a, b = (conditioned(draw, 8, condition) for condition in conditions)
    for t in TIMES:
        assert error(geometric_mean(torch.tensor(a), torch.tensor(b), t), exact_mean(a, b, t)) < 1e-9


def test_geometric_mean_from_either_end():
    a, b = pair(0, (5,))
    for t in TIMES:
        torch.testing.assert_close(geometric_mean(a, b, t), geometric_mean(b, a, 1 - t))
        torch.testing.assert_close(geometric_mean(torch.linalg.inv(a), b, t), gmml(a, b, t))


def test_the_residual_is_that_of_the_equation():
    s, d = pair(1, (4,))
    factor = gmml_factor(s, d)
    for m, x, y in zip((factor @ factor.mT).numpy(), s.numpy(), d.numpy(), strict=True):
        assert error(m @ x @ m, y) < 1e-10
    assert gmml_residual(factor, s, d).max() < 1e-10
    wrong = gmml_residual(2 * factor, s, d)
    torch.testing.assert_close(wrong, torch.full((4,), 15.0, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", TIMES)
def test_laws_of_the_metric(method, t):
    s, d = pair(2, (3,))
    factor = gmml_factor(s, d, t, method=method)
    metric = factor @ factor.mT
    assert torch.linalg.eigvalsh(metric).min() > 0
    torch.testing.assert_close(torch.linalg.inv(metric), gmml(d, s, 1 - t))
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    torch.testing.assert_close(gmml(turn.T @ s @ turn, turn.T @ d @ turn, t), turn.T @ metric @ turn)
    torch.testing.assert_close(gmml(9 * s, 9 * d, t), 9 ** (2 * t - 1) * metric)
    diagonal_s, diagonal_d = s.diagonal(dim1=1, dim2=2), d.diagonal(dim1=1, dim2=2)
    commuting = gmml(diagonal_s.diag_embed(), diagonal_d.diag_embed(), t)
    torch.testing.assert_close(commuting, (diagonal_s ** (t - 1) * diagonal_d**t).diag_embed())


def test_the_metric_is_the_minimum():
    s, d = pair(3)
    metric = gmml(s, d)

    def objective(m):
        return torch.trace(m @ s) + torch.trace(torch.linalg.inv(m) @ d)

    m = metric.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(m), m)
    assert slope.abs().max() < 1e-10 * s.abs().max()
    for seed in range(20):
        change = 1e-3 * torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert objective(metric) < objective(metric + change + change.T)


@pytest.mark.parametrize("method", METHODS)
def test_shapes(method):
    for batch in [(), (1,), (2, 3), (0,), (2, 0)]:
        s, d = pair(4, batch)
        assert gmml_factor(s, d, method=method).shape == gmml(s, d).shape == geometric_mean(s, d).shape == s.shape
    s, d = pair(5, (2, 3))
    torch.testing.assert_close(gmml_factor(s, d, method=method)[1, 2], gmml_factor(s[1, 2], d[1, 2], method=method))
    torch.testing.assert_close(gmml(s, d[0, 0])[1, 2], gmml(s[1, 2], d[0, 0]))
    one = gmml_factor(torch.tensor([[4.0]]), torch.tensor([[9.0]]), 0.25, method=method)
    assert one.item() ** 2 == pytest.approx(4**-0.75 * 9**0.25, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_float32_is_solved_in_float64(method):
    s, d = (torch.tensor(conditioned(np.random.default_rng(seed), 10, 1e5)).float() for seed in (0, 1))
    expected = exact_gmml(s.numpy(), d.numpy(), 0.5)
    assert gmml(s, d).dtype == torch.float32 and error(gmml(s, d), expected) < 1e-7
    factor = gmml_factor(s, d, method=method)
    assert factor.dtype == torch.float32 and error(factor.double() @ factor.double().T, expected) < 1e-6


def test_only_the_symmetric_part_counts():
    s, d = pair(6)
    twist = torch.triu(torch.ones(6, 6, dtype=torch.float64), 1)
    torch.testing.assert_close(gmml(s + twist - twist.T, d), gmml(s, d))


def test_products_alone_solve_what_is_well_conditioned(monkeypatch):
    s, d = pair(7, (20,), size=40)
    expected = gmml_factor(s, d, method="svd")
    hard = torch.tensor(np.stack([conditioned(np.random.default_rng(seed), 40, 1e8) for seed in range(2)]))
    redone = []

    def counted(root_s, root_d, t, solve=spd._svd):
        redone.append(len(root_s))
        return solve(root_s, root_d, t)

    monkeypatch.setattr(spd, "_svd", counted)
    for method in ("gemm", "eigh", "dbase"):
        factor = gmml_factor(s, d, method=method)
        assert not redone
        torch.testing.assert_close(factor @ factor.mT, expected @ expected.mT, rtol=1e-11, atol=1e-12)
        mixed = torch.cat([s[:3], hard, s[5:]])
        factor = gmml_factor(mixed, d, method=method)
        assert sum(redone) == 2 and gmml_residual(factor, mixed, d).max() < 1e-8
        redone.clear()


def test_singular_similar_is_named():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 46, dtype=torch.float64, generator=draw)
    good = torch.eye(46, dtype=torch.float64)
    batch = torch.stack([good, good, good, x.T @ x])
    for function in (gmml, gmml_factor):
        with pytest.raises(ValueError, match=r"similar\[3\] is singular: rank 12 of 46"):
            function(batch, good)
        with pytest.raises(ValueError, match=r"similar\[3\] is singular: rank 12 of 46"):
            function(batch.float(), good.float())
    with pytest.raises(ValueError, match=r"similar\[1, 1\] is singular: rank 12 of 46"):
        gmml(batch.view(2, 2, 46, 46), good)
    with pytest.raises(ValueError, match=r"^b is singular: rank 12 of 46"):
        geometric_mean(good, batch[3])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [0, 0.5, 1])
def test_every_kind_of_singular_similar_raises(method, t):
    good, draw = torch.eye(5, dtype=torch.float64), torch.Generator().manual_seed(1)
    for seed in range(30):
        x = torch.randn(9, 5, dtype=torch.float64, generator=draw)
        x[:, seed % 5] = x[:, (seed + 2) % 5] * (1 + seed % 3)  # a feature that repeats another one
        with pytest.raises(ValueError, match="similar is singular: rank 4 of 5"):
            gmml_factor(x.T @ x, good, t, method=method)
    dead = torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match="rank 3 of 5"):
        gmml_factor(dead, good.float(), t, method=method)
    with pytest.raises(ValueError, match="similar is not positive definite: rank 4 of 5"):
        gmml_factor(torch.diag(torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0])), good.float(), t, method=method)
    with pytest.raises(ValueError, match=r"similar\[1\] has values that are not finite"):
        gmml_factor(torch.stack([good, good * torch.nan]), good, t, method=method)
    with pytest.raises(ValueError, match="dissimilar has values that are not finite"):
        gmml_factor(good, good * torch.inf, t, method=method)
    with pytest.raises(ValueError, match=r"dissimilar is not positive semi-definite"):
        gmml_factor(good, torch.diag(torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0])).double(), t, method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", TIMES)
def test_singular_dissimilar_gives_the_limit(method, t):
    draw = np.random.default_rng(9)
    x, y = draw.standard_normal((30, 7)), draw.standard_normal((3, 7))
    s, d = torch.tensor(np.stack([x.T @ x] * 2)), torch.tensor(np.stack([y.T @ y, np.eye(7)]))
    factor = gmml_factor(s, d, t, method=method)
    metric = (factor @ factor.mT).numpy()
    tolerance = 1e-12 if t in (0, 1) else 1e-3 if t == 0.25 else 1e-6  # a zero is known to 1e-16, its power to less
    assert error(metric[0], exact_gmml(s[0].numpy(), d[0].numpy(), t)) < tolerance
    assert error(metric[1], exact_gmml(s[1].numpy(), d[1].numpy(), t)) < 1e-12
    assert gmml(s[0], torch.zeros(7, 7, dtype=torch.float64), 0.5).abs().max() == 0


def test_arguments_are_checked():
    s, d = pair(8)
    with pytest.raises(ValueError, match=r"t is 1.5"):
        gmml(s, d, 1.5)
    with pytest.raises(ValueError, match=r"choose one of .*'eigh'"):
        gmml_factor(s, d, method="qr")
    for wrong in (d[:5], d[:, :5], d[:5, :5], d[0]):
        with pytest.raises(ValueError, match="same D"):
            gmml(s, wrong)


def scatter_loop(positives, negatives):
    similar = sum((np.outer(x - y, x - y) for x, y in itertools.combinations(positives, 2)), np.zeros((4, 4)))
    dissimilar = sum((np.outer(x - y, x - y) for x in positives for y in negatives), np.zeros((4, 4)))
    return similar, dissimilar


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (1, 0), (1, 1), (5, 0), (6, 9)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e3, 2.0**40])
def test_scatter_is_that_of_all_pairs(sizes, offset):
    draw = np.random.default_rng(10)
    rows = (draw.integers(-64, 64, (sum(sizes), 4)) / 16) + offset  # numbers to which the offset does nothing
    positives, negatives = rows[: sizes[0]], rows[sizes[0] :]
    similar, dissimilar, pairs, mixed = pair_scatter(torch.tensor(positives), torch.tensor(negatives))
    for actual, expected in zip((similar, dissimilar), scatter_loop(positives, negatives), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-9)
    assert (pairs.item(), mixed.item()) == (sizes[0] * (sizes[0] - 1) // 2, sizes[0] * sizes[1])
    assert pairs.shape == mixed.shape == ()


def test_scatter_in_float32_far_from_zero():
    draw = np.random.default_rng(11)
    positives, negatives = (1e3 + draw.standard_normal((n, 4)) for n in (20, 30))
    low = pair_scatter(torch.tensor(positives).float(), torch.tensor(negatives).float())
    assert low[0].dtype == low[1].dtype == torch.float32
    for actual, expected in zip(low[:2], scatter_loop(positives, negatives), strict=True):
        assert error(actual, expected) < 1e-3


def test_nearest_semidefinite_matrix():
    a = torch.randn(4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nearest, part = project_psd(a), (a + a.mT) / 2
    values, vectors = np.linalg.eigh(part.numpy())
    expected = (vectors * np.maximum(values, 0)[:, None]) @ vectors.transpose(0, 2, 1)
    np.testing.assert_allclose(nearest, expected, atol=1e-13)
    torch.testing.assert_close(project_psd(nearest), nearest)
    # the rest points out of the cone at a right angle, which is what makes it nearest
    assert torch.linalg.eigvalsh(nearest).min() > -1e-12 and torch.linalg.eigvalsh(part - nearest).max() < 1e-12
    assert (nearest * (part - nearest)).sum((1, 2)).abs().max() < 1e-12
    assert torch.equal(nearest, nearest.mT)


def places(seed, rows=7, metrics=3, size=5, width=5, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    shapes = (rows, size), (metrics, size), (metrics, size, width)
    return [torch.randn(*shape, dtype=dtype, generator=draw) for shape in shapes]


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_distances_one_by_one(width):
    x, anchors, factors = places(0, width=width)
    expected = [
        [np.sqrt((p - a) @ f @ f.T @ (p - a)) for a, f in zip(anchors.numpy(), factors.numpy(), strict=True)]
        for p in x.numpy()
    ]
    np.testing.assert_allclose(mahalanobis(x, anchors, factors), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_an_anchor_is_at_distance_zero_from_itself(dtype, offset):
    for seed in range(100):
        rows, metrics, size, width = np.random.default_rng(seed).integers(1, [70, 9, 300, 60]).tolist()
        x, _, factors = places(seed, rows, metrics, size, width, dtype)
        if seed % 2:  # sums without cancellation round the most
            x, factors = x.abs(), factors.abs()
        x = x + offset
        own = torch.arange(metrics) % rows
        distances = mahalanobis(x, x[own], factors)
        assert (distances[own, torch.arange(metrics)] == 0).all()
        assert rows < metrics or (distances == 0).sum() == metrics


def test_gradient_of_distances():
    inputs = [part.requires_grad_() for part in places(1, width=2)]
    torch.autograd.gradcheck(mahalanobis, inputs)


def test_the_gradient_at_an_anchor_is_finite():
    x, _, factors = places(2)
    for anchors in (x[:3], x[:1]):
        parts = [part.clone().requires_grad_() for part in (x, anchors, factors[: len(anchors)])]
        mahalanobis(*parts).sum().backward()
        assert all(part.grad.isfinite().all() for part in parts)


def test_no_rows_and_no_metrics():
    x, anchors, factors = places(3)
    assert mahalanobis(x[:0], anchors, factors).shape == (0, 3)
    assert mahalanobis(x, anchors[:0], factors[:0]).shape == (7, 0)

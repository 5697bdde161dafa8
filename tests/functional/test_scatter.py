"""Scatters of pairs, the projection and Mahalanobis distances, pair by pair."""

import numpy as np
import pytest
import torch

from tests.reference.matrices import distances_by_loop, error, exact_gmml, scatter_by_pairs
from torchrank.functional import gmml, mahalanobis, pair_scatter, project_psd

# --- scatter ---


@pytest.mark.parametrize("sizes", [(7, 11), (2, 1), (1, 4), (1, 1), (3, 0), (1, 0), (0, 3), (0, 0), (20, 2)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e3, 2.0**40])
def test_scatter_is_that_of_all_pairs(sizes, offset):
    rng = np.random.default_rng(10)
    rows = (rng.integers(-64, 64, (sum(sizes), 4)) / 16) * [1, 4, 0.5, 0] + offset  # the offset costs no digits
    positives, negatives = rows[: sizes[0]], rows[sizes[0] :]
    found = pair_scatter(torch.tensor(positives), torch.tensor(negatives))
    for actual, expected in zip(found, scatter_by_pairs(positives, negatives), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-9)
    assert found[2].shape == found[3].shape == ()


def test_scatter_knows_no_origin():
    """A constant added to all documents cancels; in float32 with 1e3 the documents themselves have three digits."""
    rng = np.random.default_rng(20)
    positives, negatives = rng.normal(size=(9, 5)), rng.normal(size=(30, 5)) + 0.5
    expected = scatter_by_pairs(positives, negatives)
    for dtype, shift, tolerance in ((torch.float64, 1e3, 1e-9), (torch.float32, 1e3, 1e-3), (torch.float32, 0, 1e-6)):
        moved = pair_scatter(*(torch.tensor(part + shift, dtype=dtype) for part in (positives, negatives)))
        assert moved[0].dtype == moved[1].dtype == dtype
        assert error(moved[0], expected[0]) <= tolerance
        assert error(moved[1], expected[1]) <= tolerance


def test_scatter_of_float32_rows_sums_in_float64():
    rng = np.random.default_rng(21)
    positives, negatives = (torch.tensor(rng.normal(size=(n, 3)) * 1e3 + 1e4, dtype=torch.float32) for n in (40, 60))
    expected = scatter_by_pairs(positives.double().numpy(), negatives.double().numpy())
    actual = pair_scatter(positives, negatives)
    assert error(actual[0], expected[0]) <= 2e-7
    assert error(actual[1], expected[1]) <= 2e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_scatters_with_the_default_ridge(dtype):
    """Fewer positives than features, a doubled and a constant column: relative ridge 0.1, no NaN, known condition."""
    rng = np.random.default_rng(22)
    rows = rng.normal(size=(12, 6))
    rows[:, 1], rows[:, 4] = rows[:, 0], 3.0
    similar, dissimilar, similar_pairs, dissimilar_pairs = pair_scatter(*torch.tensor(rows, dtype=dtype).split([3, 9]))
    similar, dissimilar = similar / similar_pairs, dissimilar / dissimilar_pairs
    ridged = [m + 0.1 * m.trace() / 6 * torch.eye(6, dtype=m.dtype) for m in (similar, dissimilar)]
    assert np.linalg.cond(ridged[0].double().numpy()) <= 1 + 6 / 0.1
    expected = exact_gmml(*(m.double().numpy() for m in ridged), 0.5)
    assert error(gmml(*ridged), expected) <= (1e-6 if dtype == torch.float32 else 1e-12)
    assert expected[4, 4] == pytest.approx(float((dissimilar.trace() / similar.trace()) ** 0.5), rel=1e-5)  # 1.6


# --- projection ---


def test_nearest_positive_semidefinite_matrix():
    a = torch.randn(4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nearest, part = project_psd(a), (a + a.mT) / 2
    values, vectors = np.linalg.eigh(part.numpy())
    expected = (vectors * np.maximum(values, 0)[:, None]) @ vectors.transpose(0, 2, 1)
    np.testing.assert_allclose(nearest, expected, atol=1e-13)
    torch.testing.assert_close(project_psd(nearest), nearest)
    # the nearest point of a cone: the rest is orthogonal to it and negative semi-definite
    assert torch.linalg.eigvalsh(nearest).min() > -1e-12 and torch.linalg.eigvalsh(part - nearest).max() < 1e-12
    assert (nearest * (part - nearest)).sum((1, 2)).abs().max() < 1e-12
    assert torch.equal(nearest, nearest.mT)
    eye = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(project_psd(torch.stack([-eye, eye])), torch.stack([0 * eye, eye]), rtol=0, atol=1e-13)


# --- distances ---


def places(seed, rows=7, metrics=3, size=5, width=5, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    shapes = (rows, size), (metrics, size), (metrics, size, width)
    return [torch.randn(*shape, dtype=dtype, generator=draw) for shape in shapes]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_distances_one_by_one(width):
    x, anchors, factors = places(0, width=width)
    expected = distances_by_loop(x.numpy(), anchors.numpy(), factors.numpy())
    np.testing.assert_allclose(mahalanobis(x, anchors, factors), expected, rtol=1e-12)
    single = mahalanobis(x.float(), anchors.float(), factors.float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 100.0, 1e3])
def test_an_anchor_is_at_distance_zero_from_itself(dtype, offset):
    """Exactly, wherever in the rows it is and however far from the origin."""
    for seed in range(100):
        rows, metrics, size, width = np.random.default_rng(seed).integers(1, [70, 9, 300, 60]).tolist()
        x, _, factors = places(seed, rows, metrics, size, width, dtype)
        if seed % 2:  # sums without cancellation round the most
            x, factors = x.abs(), factors.abs()
        x = x + offset
        own = torch.arange(metrics) % rows
        distances = mahalanobis(x, x[own], factors)
        assert (distances[own, torch.arange(metrics)] == 0).all()
        assert offset == 1e3 or rows < metrics or (distances == 0).sum() == metrics


def test_gradient_of_distances():
    """By autograd's check, and by central differences of the loop, with respect to all three arguments."""
    torch.autograd.gradcheck(mahalanobis, [part.requires_grad_() for part in places(1, width=2)])
    parts, weights = [part.numpy() for part in places(2, 3, 2, 4, 3)], np.random.default_rng(26).normal(size=(3, 2))
    tensors = [torch.tensor(part, requires_grad=True) for part in parts]
    (mahalanobis(*tensors) * torch.tensor(weights)).sum().backward()
    for which, tensor in enumerate(tensors):
        for place in np.ndindex(parts[which].shape):
            values = []
            for sign in (1, -1):
                moved = [part.copy() for part in parts]
                moved[which][place] += sign * 1e-6
                values.append((distances_by_loop(*moved) * weights).sum())
            assert float(tensor.grad[place]) == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)


def test_the_gradient_at_an_anchor_is_finite():
    for shift, (x, _, factors) in ((0, places(2)), (1e3, places(3, 33, 7, 136, 136))):
        x = x + shift
        for anchors in (x[:3], x[:1]):
            parts = [part.clone().requires_grad_() for part in (x, anchors, factors[: len(anchors)])]
            found = mahalanobis(*parts)
            (torch.exp(-found.square()).sum() + found.sum()).backward()
            assert all(part.grad.isfinite().all() for part in parts)


def test_no_rows_and_no_metrics():
    x, anchors, factors = places(3)
    assert mahalanobis(x[:0], anchors, factors).shape == (0, 3)
    assert mahalanobis(x, anchors[:0], factors[:0]).shape == (7, 0)

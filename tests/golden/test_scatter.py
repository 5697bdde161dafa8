"""Scatters, the projection and Mahalanobis distances, pair by pair."""

from itertools import combinations, product

import numpy as np
import pytest
import torch

from torchrank import functional as F

from .test_spd import error, exact_mean

# --- scatter ---


def scatter_by_pairs(positives: np.ndarray, negatives: np.ndarray):
    """Every unordered pair of positives once (eq. 4), every positive with every negative (eq. 5)."""
    size = positives.shape[1]
    similar, dissimilar = np.zeros((size, size)), np.zeros((size, size))
    for a, b in combinations(positives, 2):
        similar += np.outer(a - b, a - b)
    for a, b in product(positives, negatives):
        dissimilar += np.outer(a - b, a - b)
    return similar, dissimilar, len(positives) * (len(positives) - 1) // 2, len(positives) * len(negatives)


@pytest.mark.parametrize(("highs", "lows"), [(7, 11), (2, 1), (1, 4), (3, 0), (0, 3), (0, 0), (20, 2)])
def test_scatter_is_the_pair_loop(highs, lows):
    rng = np.random.default_rng(19)
    positives, negatives = rng.normal(size=(highs, 4)) + 2, rng.normal(size=(lows, 4)) * [1, 5, 0.1, 0]
    actual = F.pair_scatter(torch.tensor(positives), torch.tensor(negatives))
    expected = scatter_by_pairs(positives, negatives)
    for found, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), right, rtol=1e-12, atol=1e-12)


def test_scatter_knows_no_origin():
    """A constant added to all documents cancels; in float32 with 1e3 the documents themselves have three digits."""
    rng = np.random.default_rng(20)
    positives, negatives = rng.normal(size=(9, 5)), rng.normal(size=(30, 5)) + 0.5
    plain = scatter_by_pairs(positives, negatives)
    for dtype, shift, tolerance in ((torch.float64, 1e3, 1e-9), (torch.float32, 1e3, 1e-3), (torch.float32, 0, 1e-6)):
        moved = F.pair_scatter(*(torch.tensor(part + shift, dtype=dtype) for part in (positives, negatives)))
        assert error(moved[0], plain[0]) <= tolerance
        assert error(moved[1], plain[1]) <= tolerance


def test_scatter_of_float32_rows_sums_in_float64():
    rng = np.random.default_rng(21)
    positives, negatives = (torch.tensor(rng.normal(size=(n, 3)) * 1e3 + 1e4, dtype=torch.float32) for n in (40, 60))
    expected = scatter_by_pairs(positives.double().numpy(), negatives.double().numpy())
    actual = F.pair_scatter(positives, negatives)
    assert error(actual[0], expected[0]) <= 2e-7
    assert error(actual[1], expected[1]) <= 2e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_scatters_with_the_default_ridge(dtype):
    """Fewer positives than features, a doubled and a constant column: relative ridge 0.1, no NaN, known condition."""
    rng = np.random.default_rng(22)
    rows = rng.normal(size=(12, 6))
    rows[:, 1], rows[:, 4] = rows[:, 0], 3.0
    similar, dissimilar, similar_pairs, dissimilar_pairs = F.pair_scatter(
        *torch.tensor(rows, dtype=dtype).split([3, 9])
    )
    similar, dissimilar = similar / similar_pairs, dissimilar / dissimilar_pairs
    ridged = [m + 0.1 * m.trace() / 6 * torch.eye(6, dtype=m.dtype) for m in (similar, dissimilar)]
    assert np.linalg.cond(ridged[0].double().numpy()) <= 1 + 6 / 0.1
    expected = exact_mean(*(m.double().numpy() for m in ridged), 0.5, invert_a=True)
    assert error(F.gmml(*ridged), expected) <= (1e-6 if ridged[0].dtype == torch.float32 else 1e-12)
    assert expected[4, 4] == pytest.approx(float((dissimilar.trace() / similar.trace()) ** 0.5), rel=1e-5)  # 1.6


# --- projection and distances ---


def test_nearest_positive_semidefinite_matrix():
    rng = np.random.default_rng(23)
    matrix = rng.normal(size=(5, 5))
    symmetric = (matrix + matrix.T) / 2
    projected = F.project_psd(torch.tensor(matrix)).numpy()
    np.testing.assert_allclose(projected, projected.T, atol=1e-14)
    assert np.linalg.eigvalsh(projected).min() >= -1e-13
    # the nearest point of a cone: the rest is orthogonal to it and negative semidefinite
    rest = symmetric - projected
    assert abs((rest * projected).sum()) <= 1e-12
    assert np.linalg.eigvalsh(rest).max() <= 1e-13
    np.testing.assert_allclose(F.project_psd(torch.tensor(projected)).numpy(), projected, atol=1e-13)
    batch = F.project_psd(torch.tensor(np.stack([matrix, -np.eye(5), np.eye(5)])))
    np.testing.assert_allclose(batch.numpy(), np.stack([projected, np.zeros((5, 5)), np.eye(5)]), atol=1e-13)


def distances_by_loop(rows: np.ndarray, anchors: np.ndarray, factors: np.ndarray) -> np.ndarray:
    result = np.zeros((len(rows), len(anchors)))
    for i, row in enumerate(rows):
        for r, (anchor, factor) in enumerate(zip(anchors, factors, strict=True)):
            difference = row - anchor
            result[i, r] = np.sqrt(difference @ (factor @ factor.T) @ difference)
    return result


@pytest.mark.parametrize("columns", [1, 3, 5])
def test_distances(columns):
    rng = np.random.default_rng(24)
    rows, anchors, factors = rng.normal(size=(9, 5)), rng.normal(size=(4, 5)) * 3, rng.normal(size=(4, 5, columns))
    expected = distances_by_loop(rows, anchors, factors)
    actual = F.mahalanobis(torch.tensor(rows), torch.tensor(anchors), torch.tensor(factors))
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-13)
    single = F.mahalanobis(*(torch.tensor(part, dtype=torch.float32) for part in (rows, anchors, factors)))
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert F.mahalanobis(torch.zeros(0, 5), torch.zeros(4, 5), torch.zeros(4, 5, columns)).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_anchor_is_at_distance_zero_of_itself(dtype):
    """Exactly 0 and with a finite gradient, wherever in the rows it stands and however far from the origin."""
    generator = torch.Generator().manual_seed(25)
    for size, count in ((3, 5), (46, 33), (136, 7)):
        anchors = 1e3 + torch.randn(count, size, generator=generator, dtype=dtype)
        factors = torch.randn(count, size, size, generator=generator, dtype=dtype)
        rows = torch.cat([torch.randn(11, size, generator=generator, dtype=dtype), anchors]).requires_grad_()
        found = F.mahalanobis(rows, anchors, factors)
        assert (found[11:].diagonal() == 0).all()
        gradient = torch.autograd.grad(torch.exp(-found.square()).sum() + found.sum(), rows)[0]
        assert gradient.isfinite().all()


def test_gradient_of_the_distances():
    """By central differences of the loop, away from the anchors, with respect to all three arguments."""
    rng = np.random.default_rng(26)
    parts = [rng.normal(size=(3, 4)), rng.normal(size=(2, 4)), rng.normal(size=(2, 4, 3))]
    weights = rng.normal(size=(3, 2))
    tensors = [torch.tensor(part, requires_grad=True) for part in parts]
    (F.mahalanobis(*tensors) * torch.tensor(weights)).sum().backward()
    for which, tensor in enumerate(tensors):
        for place in np.ndindex(parts[which].shape):
            values = []
            for sign in (1, -1):
                moved = [part.copy() for part in parts]
                moved[which][place] += sign * 1e-6
                values.append((distances_by_loop(*moved) * weights).sum())
            assert float(tensor.grad[place]) == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)

"""Regularisers: steps and bounds against their definitions."""

import numpy as np
import pytest
import torch

from torchrank.solvers.cutting_plane.interior_point import interior_point
from torchrank.solvers.cutting_plane.regularisers import (
    REGULARISERS,
    GroupSparse,
    least_around,
    make_regulariser,
    shrink_spectrum,
)

D = 5


def symmetric(seed, size=D):
    a = np.random.default_rng(seed).normal(size=(size, size))
    return (a + a.T) / 2


def semidefinite(seed, rank=D):
    a = np.random.default_rng(seed).normal(size=(D, rank))
    return a @ a.T / rank


def test_values():
    w = np.array([[3.0, 4.0], [4.0, 9.0]])
    anchor = torch.eye(2)
    assert make_regulariser("trace").value(w) == 12
    assert make_regulariser("fro").value(w) == (9 + 16 + 16 + 81) / 2
    assert make_regulariser("fro", anchor=anchor).value(w) == (4 + 16 + 16 + 64) / 2
    assert make_regulariser("l21", lam=2.0).value(w) == pytest.approx(12 + 2 * (5 + 97**0.5))
    assert make_regulariser("l21", 2.0, anchor).value(w) == pytest.approx(50 + 2 * (20**0.5 + 80**0.5))
    assert make_regulariser("l21", 2.0, torch.tensor(w)).value(w) == 0
    assert make_regulariser("diagonal").value(np.array([1.0, 2.0])) == 3
    assert make_regulariser("linear").value(np.array([1.0, -2.0])) == 2.5


def test_the_shrunken_spectrum_is_the_nearest_point_with_a_price_on_the_trace():
    """KKT of |Z - a|^2 / 2 + t tr Z over Z >= 0: Z - a + t I = S >= 0, ZS = 0."""
    a = symmetric(1)
    z = shrink_spectrum(a, 0.3)
    s = z - a + 0.3 * np.eye(D)
    assert np.linalg.eigvalsh(z)[0] > -1e-12 and np.linalg.eigvalsh(s)[0] > -1e-12
    np.testing.assert_allclose(z @ s, 0, atol=1e-12)


@pytest.mark.parametrize("anchored", [False, True])
def test_the_step_of_frobenius_minimises(anchored):
    """KKT of |Z - W0|^2 / 2 + rho/2 |Z - v|^2 over Z >= 0."""
    anchor = semidefinite(3) if anchored else np.zeros((D, D))
    omega = make_regulariser("fro", anchor=torch.tensor(anchor) if anchored else None)
    w, u, rho = symmetric(1), symmetric(2)[None], 1.7
    z, new = omega.step(w, np.zeros((D, D)), u, rho)
    s = z - anchor + rho * (z - w - u[0])
    assert np.linalg.eigvalsh(z)[0] > -1e-12 and np.linalg.eigvalsh(s)[0] > -1e-12
    np.testing.assert_allclose(z @ s, 0, atol=1e-12)
    np.testing.assert_allclose(new[0], u[0] + w - z, atol=1e-15)


def test_the_step_of_a_sparse_change_minimises():
    """KKT of |Z - W0|^2 / 2 + rho/2 |Z - p|^2 + rho/2 |Z - r|^2 over Z >= 0, and rows r that are nearest to Z - U with
    a price on |r - W0|."""
    anchor, rho, lam = semidefinite(3), 1.7, 0.6
    omega = make_regulariser("l21", lam, torch.tensor(anchor))
    w, u = symmetric(1), np.stack((symmetric(2), np.random.default_rng(7).normal(size=(D, D))))
    z, new = omega.step(w, anchor, u, rho)
    points = new + z
    np.testing.assert_allclose(points[0], w + u[0], atol=1e-15)
    s = z - anchor + rho * (2 * z - points[0] - points[1])
    s = (s + s.T) / 2
    assert np.linalg.eigvalsh(z)[0] > -1e-12 and np.linalg.eigvalsh(s)[0] > -1e-12
    np.testing.assert_allclose(z @ s, 0, atol=1e-12)
    rows = (points[1] - u[1] + 0.6 * anchor) / 1.6  # before relaxation by 1.6, from Z = W0
    for row, own, away in zip(rows, anchor, -u[1], strict=True):
        far = np.linalg.norm(away)  # of Z - U_V from W0
        np.testing.assert_allclose(row, own + away * max(0, 1 - lam / rho / far), atol=1e-12)


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_the_least_value_is_where_the_positive_eigenvalues_are(size):
    anchor, slope = semidefinite(1), size * symmetric(2)
    w = shrink_spectrum(anchor + slope, 0.0)
    found = least_around(anchor, slope)
    assert found == pytest.approx(np.square(w - anchor).sum() / 2 - (slope * (w - anchor)).sum(), rel=1e-10)
    at = [np.square(p - anchor).sum() / 2 - (slope * (p - anchor)).sum() for p in (anchor, 0 * anchor, semidefinite(5))]
    assert found <= min(at)


@pytest.mark.parametrize(("lam", "size"), [(0.01, 0.1), (0.5, 0.1), (0.5, 5.0), (0.0, 1.0), (30.0, 5.0)])
def test_the_bound_of_a_sparse_change_is_that_of_the_formula(lam, size):
    """-|(W0 + A - Bs)_+|^2 / 2 + |W0|^2 / 2 - <B, W0> + a.M, for the clipped multiplier B, which is not symmetric."""
    anchor, slope, rho, gain = semidefinite(1), size * symmetric(2), 0.8, 90.0
    z, u = semidefinite(4), np.random.default_rng(6).normal(size=(2, D, D))
    b = np.array([row * min(1.0, lam / np.linalg.norm(row)) for row in rho * (z - u[1] - anchor)])
    values = np.linalg.eigvalsh(anchor + slope - (b + b.T) / 2)
    square = np.square(values[values > 0]).sum()
    formula = gain - square / 2 + np.square(anchor).sum() / 2 - (b * anchor).sum()
    omega = make_regulariser("l21", lam, torch.tensor(anchor))
    bound = omega.bound(gain, 3.0, slope, omega.row_multiplier(z, u, rho))
    assert bound == pytest.approx(max(formula, 0), rel=1e-10)
    assert lam > 0 or bound == make_regulariser("fro", anchor=torch.tensor(anchor)).bound(gain, 3.0, slope)


@pytest.mark.parametrize("kind", ["identity", "dense", "low rank", "blocks"])
def test_a_candidate_has_the_rows_of_the_anchor_and_is_semidefinite(kind):
    blocks = np.pad(semidefinite(1)[:3, :3], 1) + np.diag([1.0, 0, 0, 0, 2.0])
    anchors = {"identity": np.eye(D), "dense": semidefinite(1), "low rank": semidefinite(1, 2), "blocks": blocks}
    anchor = anchors[kind]
    omega, point = make_regulariser("l21", 1.0, torch.tensor(anchor)), semidefinite(2, 3)
    for number in range(2**D):
        kept = np.array([bool(number >> place & 1) for place in range(D)])
        changed = anchor + np.eye(D) * kept  # of which `without` reads what may change
        found = omega.without(point, changed)
        np.testing.assert_array_equal(found[~kept], anchor[~kept])
        np.testing.assert_array_equal(found, found.T)
        assert np.linalg.eigvalsh(found)[0] > -1e-12
        if not anchor[np.ix_(kept, ~kept)].any():
            np.testing.assert_array_equal(found[np.ix_(kept, kept)], point[np.ix_(kept, kept)])
        mixed = omega.between(found, anchor, 0.1)
        np.testing.assert_array_equal(mixed[~kept], anchor[~kept])
        again = omega.without(mixed, changed)  # what is semi-definite already stays
        np.testing.assert_allclose(again, mixed, atol=1e-7 if kind == "low rank" else 1e-12)


@pytest.mark.parametrize("name", ["trace", "fro", "anchor", "l21", "diagonal", "change"])
def test_no_point_is_below_the_bound(name):
    """Omega(W) + C max(0, M - <W, Psi>) at many W, and the bound of any weight of this one cut."""
    random = np.random.default_rng(4)
    anchor = torch.tensor(semidefinite(9)) if name in ("anchor", "change") else None
    omega = make_regulariser({"anchor": "fro", "change": "l21"}.get(name, name), lam=0.4, anchor=anchor)
    psi, loss, C = symmetric(6), 0.8, 3.0
    psi = np.diag(psi) if name == "diagonal" else psi
    u = random.normal(size=(2, *psi.shape))
    bounds = []
    for weight in (1e-6, 0.01, 0.1, 0.5, 1.0, 3.0):
        z = semidefinite(2) if psi.ndim == 2 else random.uniform(size=D)
        bounds.append(omega.bound(weight * loss, C / weight, weight * psi, omega.row_multiplier(z, u, 0.7)))
    points = [scale * semidefinite(seed, 1 + seed % D) for seed in range(300) for scale in (0.0, 0.02, 0.1, 0.5, 2.0)]
    if psi.ndim == 1:
        points = [np.diag(point) for point in points]
    values = [omega.value(w) + C * max(0.0, loss - (w * psi).sum()) for w in points]
    assert max(bounds) <= min(values) + 1e-12
    assert max(bounds) > 0


def test_rows_inside_the_ball_are_the_zero_rows():
    omega = GroupSparse(0.5)
    z, u = np.diag([3.0, 0.1, 2.0]), np.zeros((2, 3, 3))
    np.testing.assert_array_equal(omega.candidate(z, u, 1.0), np.diag([3.0, 0, 2.0]))
    np.testing.assert_array_equal(omega.candidate(z, u, 10.0), z)


def test_without_a_price_on_rows_l21_is_the_trace():
    w, u = symmetric(1), np.zeros((2, D, D))
    assert GroupSparse(0.0).value(w) == pytest.approx(np.trace(w))
    bound = GroupSparse(0.0).bound(1.0, 2.0, symmetric(2), GroupSparse(0.0).row_multiplier(w, u, 1.0))
    assert bound == make_regulariser("trace").bound(1.0, 2.0, symmetric(2))


def test_the_interior_point_has_no_weights_without_losses():
    w, weights, _ = interior_point(symmetric(1)[None], np.zeros(1), 1.0, 1e-9)
    assert np.trace(w) < 1e-8 and np.isfinite(weights).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=f"choose one of {', '.join(REGULARISERS)}"):
        make_regulariser("nuclear")
    with pytest.raises(ValueError, match="anchor needs regulariser='fro' or 'l21', got 'trace'"):
        make_regulariser("trace", anchor=torch.eye(2))
    with pytest.raises(ValueError, match="lam must be >= 0, got -1"):
        make_regulariser("l21", lam=-1)

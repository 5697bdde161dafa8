"""Regularisers: steps and bounds against their definitions."""

import numpy as np
import pytest
import torch

from torchrank.solvers.cutting_plane.interior_point import interior_point
from torchrank.solvers.cutting_plane.regularisers import REGULARISERS, GroupSparse, make_regulariser, shrink_spectrum

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


@pytest.mark.parametrize("name", ["trace", "fro", "anchor", "l21", "diagonal"])
def test_no_point_is_below_the_bound(name):
    """Omega(W) + C max(0, M - <W, Psi>) at many W, and the bound of any weight of this one cut."""
    random = np.random.default_rng(4)
    anchor = torch.tensor(semidefinite(9)) if name == "anchor" else None
    omega = make_regulariser("fro" if name == "anchor" else name, lam=0.4, anchor=anchor)
    psi, loss, C = symmetric(6), 0.8, 3.0
    psi = np.diag(psi) if name == "diagonal" else psi
    u = random.normal(size=(2, *psi.shape))
    bounds = []
    for weight in (1e-6, 0.01, 0.1, 0.5, 1.0, 3.0):
        z = semidefinite(2) if psi.ndim == 2 else random.uniform(size=D)
        bounds.append(omega.bound(weight * loss, C / weight, weight * psi, z, u, 0.7))
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
    bound = GroupSparse(0.0).bound(1.0, 2.0, symmetric(2), w, u, 1.0)
    assert bound == make_regulariser("trace").bound(1.0, 2.0, symmetric(2), w, u, 1.0)


def test_the_interior_point_has_no_weights_without_losses():
    w, weights, _ = interior_point(symmetric(1)[None], np.zeros(1), 1.0, 1e-9)
    assert np.trace(w) < 1e-8 and np.isfinite(weights).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=f"choose one of {', '.join(REGULARISERS)}"):
        make_regulariser("nuclear")
    with pytest.raises(ValueError, match="anchor needs regulariser='fro'"):
        make_regulariser("trace", anchor=torch.eye(2))
    with pytest.raises(ValueError, match="lam must be >= 0, got -1"):
        make_regulariser("l21", lam=-1)

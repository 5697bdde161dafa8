"""The cutting plane against an interior-point solver, its bounds, and an explicit maximum of affine functions."""

import cvxpy
import numpy as np
import pytest
import torch

from torchrank.solvers.admm import Cuts, Reduced, admm
from torchrank.solvers.reduced import solve_reduced
from torchrank.solvers.regularisers import make_regulariser

NAMES = ("trace", "fro", "l21", "diagonal", "linear", "anchor")


def options(name, size):
    """Options of add_cut for a name of the tests: `anchor` is `fro` with one."""
    if name == "anchor":
        root = np.random.default_rng(5).normal(size=(size, size)) / size
        return {"regulariser": "fro", "anchor": torch.tensor(root @ root.T)}
    return {"regulariser": name, **({"lam": 0.7} if name == "l21" else {})}


def pieces(seed, name, count=12, size=4):
    """Cuts like those of rankings: losses in 0..1, psi with a direction in common so that W = 0 is not the optimum."""
    random = np.random.default_rng(seed)
    psi = random.normal(size=(count, size, size)) + np.diag(np.linspace(3, -1, size))
    psi = (psi + psi.transpose(0, 2, 1)) / 2
    if name in ("diagonal", "linear"):
        psi = np.einsum("rdd->rd", psi).copy()
    return psi, random.uniform(0.1, 1, size=count)


def solved(psi, loss, C, name):
    """Minimum of Omega(W) + C max(0, max_R M_R - <W, Psi_R>) by CLARABEL."""
    size = psi.shape[-1]
    if psi.ndim == 2:
        w = cvxpy.Variable(size, nonneg=name == "diagonal")
        omega = cvxpy.sum(w) if name == "diagonal" else cvxpy.sum_squares(w) / 2
        products = psi @ w
    else:
        w = cvxpy.Variable((size, size), PSD=True)
        anchor = options("anchor", size)["anchor"].numpy() if name == "anchor" else 0
        omega = {
            "trace": lambda: cvxpy.trace(w),
            "l21": lambda: cvxpy.trace(w) + 0.7 * cvxpy.sum(cvxpy.norm(w, 2, axis=1)),
            "fro": lambda: cvxpy.sum_squares(w) / 2,
            "anchor": lambda: cvxpy.sum_squares(w - anchor) / 2,
        }[name]()
        products = cvxpy.hstack([cvxpy.sum(cvxpy.multiply(each, w)) for each in psi])
    problem = cvxpy.Problem(cvxpy.Minimize(omega + C * cvxpy.pos(cvxpy.max(loss - products))))
    return problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)


def reduced(psi, loss, C, name, tolerance, **limits):
    omega = make_regulariser(**{{"regulariser": "name"}.get(k, k): v for k, v in options(name, psi.shape[-1]).items()})
    flat = psi.reshape(len(psi), -1)
    zeros = np.zeros(psi.shape[1:])
    first = Reduced(zeros, np.zeros((omega.splits, *zeros.shape)), 0.0, np.zeros(len(psi)), zeros, np.inf, 0.0, 0)
    cuts = Cuts(flat, loss, flat @ flat.T)
    if limits:
        return omega, admm(cuts, first, omega, C, tolerance, **limits)
    found = solve_reduced(cuts, first, omega, C, tolerance, np.zeros(len(psi)))
    return omega, found


def objective(omega, psi, loss, C, w):
    return omega.value(w) + C * max(0.0, max(m - (p * w).sum() for p, m in zip(psi, loss, strict=True)))


@pytest.mark.parametrize("C", [0.01, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_reduced_problem_has_the_minimum_of_an_interior_point_solver(name, C):
    for seed in range(2):
        psi, loss = pieces(seed, name)
        true = solved(psi, loss, C, name)
        omega, found = reduced(psi, loss, C, name, 1e-6 * max(true, 1e-3))
        slack = 1e-7 * (1 + abs(true))  # of the other solver
        assert found.upper - found.lower <= 1e-6 * max(true, 1e-3)
        assert found.lower <= true + slack and true <= found.upper + slack
        assert found.upper == pytest.approx(objective(omega, psi, loss, C, found.point), rel=1e-12)
        if name not in ("diagonal", "linear"):
            np.testing.assert_array_equal(found.point, found.point.T)
            assert np.linalg.eigvalsh(found.point)[0] >= -1e-12


@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "linear"])
def test_with_few_steps_the_bounds_still_hold(name, steps):
    for C in (0.1, 5.0, 300.0):
        psi, loss = pieces(7, name)
        true = solved(psi, loss, C, name)
        _, found = reduced(psi, loss, C, name, 0.0, max_steps=steps)
        assert found.lower <= true + 1e-7 * (1 + true) and true <= found.upper + 1e-7 * (1 + true)
        assert found.steps <= steps

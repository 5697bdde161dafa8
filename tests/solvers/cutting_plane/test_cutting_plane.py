"""The cutting plane against an interior-point solver, its bounds, and an explicit maximum of affine functions."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from torchrank.solvers.cutting_plane.interior_point import interior_point
from torchrank.solvers.cutting_plane.plane import PATIENCE, add_cut, gap, rest, restart, start
from torchrank.solvers.cutting_plane.reduced_problem import Cuts, Reduced, admm, solve_reduced
from torchrank.solvers.cutting_plane.regularisers import make_regulariser

NAMES = ("trace", "fro", "l21", "diagonal", "linear", "anchor", "change")


def options(name, size):
    """Options of add_cut for a name of the tests: `anchor` is `fro` with one, `change` is `l21` with one."""
    if name in ("anchor", "change"):
        root = np.random.default_rng(5).normal(size=(size, size)) / size
        kind = {"regulariser": "fro"} if name == "anchor" else {"regulariser": "l21", "lam": 0.2}
        return kind | {"anchor": torch.tensor(root @ root.T)}
    return {"regulariser": name, **({"lam": 0.7} if name == "l21" else {})}


def pieces(seed, name, count=12, size=4):
    """Cuts like those of rankings: losses in 0..1, psi with a direction in common so that W = 0 is not the optimum."""
    random = np.random.default_rng(seed)
    psi = random.normal(size=(count, size, size)) + np.diag(np.linspace(3, -1, size))
    psi = (psi + psi.transpose(0, 2, 1)) / 2
    if name in ("diagonal", "linear"):
        psi = np.einsum("rdd->rd", psi).copy()
    return psi, random.uniform(0.1, 1, size=count)


def solved(psi, loss, C, name, anchor=None, lam=0.2):
    """Minimum by CLARABEL of Omega(W) + C mean_q max(0, max_R M_qR - <W, Psi_qR>), of one q or of many."""
    cvxpy = pytest.importorskip("cvxpy")
    size = psi.shape[-1]
    lists = len(loss) if loss.ndim == 2 else 1
    psi = psi.reshape(loss.size, *psi.shape[loss.ndim :])
    if psi.ndim == 2:
        w = cvxpy.Variable(size, nonneg=name == "diagonal")
        omega = cvxpy.sum(w) if name == "diagonal" else cvxpy.sum_squares(w) / 2
        products = psi @ w
    else:
        w = cvxpy.Variable((size, size), PSD=True)
        anchor = options("anchor", size)["anchor"].numpy() if anchor is None else anchor
        omega = {
            "trace": lambda: cvxpy.trace(w),
            "l21": lambda: cvxpy.trace(w) + 0.7 * cvxpy.sum(cvxpy.norm(w, 2, axis=1)),
            "fro": lambda: cvxpy.sum_squares(w) / 2,
            "anchor": lambda: cvxpy.sum_squares(w - anchor) / 2,
            "change": lambda: cvxpy.sum_squares(w - anchor) / 2 + lam * cvxpy.sum(cvxpy.norm(w - anchor, 2, axis=1)),
        }[name]()
        products = cvxpy.hstack([cvxpy.sum(cvxpy.multiply(each, w)) for each in psi])
    margins = cvxpy.reshape(loss.ravel() - products, (lists, loss.size // lists), order="C")
    hinges = cvxpy.pos(cvxpy.max(margins, axis=1))
    return cvxpy.Problem(cvxpy.Minimize(omega + C * cvxpy.sum(hinges) / lists)).solve(solver="CLARABEL")


def omega_of(name, size=4):
    choices = options(name, size)
    return make_regulariser(choices.pop("regulariser"), **choices)


def reduced(psi, loss, C, name, tolerance, **limits):
    omega = omega_of(name, psi.shape[-1])
    flat = psi.reshape(len(psi), -1)
    zeros = np.zeros(psi.shape[1:])
    first = Reduced(zeros, np.zeros((omega.splits, *zeros.shape)), 0.0, np.zeros(len(psi)), zeros, np.inf, 0.0)
    cuts = Cuts(flat, loss, flat @ flat.T)
    if limits:
        return omega, admm(cuts, first, omega, C, tolerance, **limits)
    found = solve_reduced(cuts, first, omega, C, tolerance, np.zeros(len(psi)))
    return omega, found


def objective(omega, psi, loss, C, w):
    return omega.value(w) + C * max(0.0, max(m - (p * w).sum() for p, m in zip(psi, loss, strict=True)))


@pytest.mark.peers
@pytest.mark.parametrize("C", [0.01, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_reduced_problem_has_the_minimum_of_an_interior_point_solver(name, C):
    for seed in range(2):
        psi, loss = pieces(seed, name)
        true = solved(psi, loss, C, name)
        omega, found = reduced(psi, loss, C, name, 1e-6 * max(true, 1e-3))
        slack = 1e-6 * (1 + abs(true))  # of the other solver
        assert found.upper - found.lower <= 1e-6 * max(true, 1e-3)
        assert found.lower <= true + slack and true <= found.upper + slack
        assert found.upper == pytest.approx(objective(omega, psi, loss, C, found.point), rel=1e-12)
        if name not in ("diagonal", "linear"):
            np.testing.assert_array_equal(found.point, found.point.T)
            assert np.linalg.eigvalsh(found.point)[0] >= -1e-12


@pytest.mark.peers
@pytest.mark.parametrize("name", ["trace", "diagonal"])
def test_the_interior_point_method_alone_finds_the_minimum(name):
    for seed, C in ((1, 0.5), (2, 40.0), (3, 1e4)):
        psi, loss = pieces(seed, name, count=20)
        true = solved(psi, loss, C, name)
        w, weights, complement = interior_point(psi, loss, C, 1e-8 * max(true, 1.0))
        value = objective(omega_of(name), psi, loss, C, w)
        assert value == pytest.approx(true, rel=1e-6)
        assert value - weights @ loss <= 1e-8 * max(true, 1.0)
        assert weights.min() > 0 and weights.sum() < C and complement > 0


@pytest.mark.peers
def test_a_diagonal_has_zeros_whichever_method_solves_it():
    """At the minimum a weight or what is left of its bound is 0: as many weights as cuts that bind, at most."""
    for seed, C in ((1, 0.5), (2, 40.0), (3, 1e4)):
        psi, loss = pieces(seed, "diagonal", count=8)
        psi = np.tile(psi, (1, 4)) * np.random.default_rng(seed).uniform(0.5, 1.5, (8, 16))
        true = solved(psi, loss, C, "diagonal")
        omega, found = reduced(psi, loss, C, "diagonal", 1e-7 * max(true, 1.0))
        assert found.upper == pytest.approx(true, rel=1e-5, abs=1e-6)
        assert found.upper == pytest.approx(objective(omega, psi, loss, C, found.point), rel=1e-12)
        assert 0 < np.count_nonzero(found.point) <= 8


@pytest.mark.peers
@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("name", ["trace", "fro", "l21", "diagonal", "anchor", "change"])
def test_with_few_steps_the_bounds_still_hold(name, steps):
    for C in (0.1, 5.0, 300.0):
        psi, loss = pieces(7, name)
        true = solved(psi, loss, C, name)
        _, found = reduced(psi, loss, C, name, 0.0, max_steps=steps)
        assert found.lower <= true + 1e-6 * (1 + true) and true <= found.upper + 1e-6 * (1 + true)


def oracle_of(psi, loss):
    """The worst piece of each list, or none, averaged over the lists."""
    rows = np.arange(len(loss))

    def oracle(w):
        margins = loss - psi.reshape(*loss.shape, -1) @ w.numpy().ravel()
        worst, used = margins.argmax(1), margins.max(1) > 0
        chosen = psi[rows, worst][used].sum(0) / len(loss)
        return torch.tensor(chosen), torch.tensor(loss[rows, worst][used].sum() / len(loss))

    return oracle


def structured(seed, name, lists=6, count=8, size=4):
    """The pieces of each list (lists, count, *shape), and their oracle."""
    found = [pieces(100 * seed + each, name, count, size) for each in range(lists)]
    psi, loss = np.stack([psi for psi, _ in found]), np.stack([loss for _, loss in found])
    return psi, loss, oracle_of(psi, loss)


def true_value(psi, loss, omega, C, w):
    margins = loss - psi.reshape(*loss.shape, -1) @ w.numpy().ravel()
    return omega.value(w.numpy()) + C * np.maximum(margins.max(1), 0).mean()


def run(oracle, plane, rounds=400, *, C, eps, **choices):
    for _ in range(rounds):
        plane = add_cut(plane, *oracle(plane.probe), C=C, eps=eps, **choices)
        if gap(plane) <= C * eps:
            break
    return plane


@pytest.mark.peers
@pytest.mark.parametrize("C", [0.3, 20.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_fit_ends_at_the_minimum_of_an_interior_point_solver(name, C):
    psi, loss, oracle = structured(1, name)
    plane = run(oracle, start(psi.shape[2:]), C=C, eps=1e-6, **options(name, 4))
    true = solved(psi, loss, C, name)
    assert gap(plane) <= C * 1e-6
    assert float(plane.upper) == pytest.approx(true, rel=1e-5, abs=2e-6 * C)
    assert plane.lower <= true + 1e-6 * (1 + true)
    assert float(plane.upper) == pytest.approx(true_value(psi, loss, omega_of(name), C, plane.best), rel=1e-12)
    if plane.best.ndim == 2:
        assert torch.linalg.eigvalsh(plane.best)[0] >= -1e-12


@pytest.mark.parametrize("name", NAMES)
def test_stabilised_or_not_the_minimum_is_the_same(name):
    psi, _, oracle = structured(2, name)
    ends = [
        run(oracle, start(psi.shape[2:]), C=5.0, eps=1e-4, stabilise=share, **options(name, 4)) for share in (1.0, 0.3)
    ]
    assert all(gap(end) <= 5e-4 for end in ends)
    assert abs(ends[0].upper - ends[1].upper) <= 5e-4
    assert ends[0].lower <= ends[1].upper and ends[1].lower <= ends[0].upper


@pytest.mark.parametrize("name", ["trace", "fro", "linear"])
def test_dropping_cuts_does_not_change_the_minimum(name):
    """Cuts that had no weight in three rounds are made to look as if they had none in as many as are allowed."""
    psi, _, oracle = structured(3, name)
    kept = run(oracle, start(psi.shape[2:]), C=20.0, eps=1e-5, **options(name, 4))
    dropped = start(psi.shape[2:])
    while not gap(dropped) <= 20.0 * 1e-5:
        dropped = dropped._replace(idle=torch.where(dropped.idle >= 2, PATIENCE, dropped.idle))
        dropped = add_cut(dropped, *oracle(dropped.probe), C=20.0, eps=1e-5, **options(name, 4))
    assert len(dropped.loss) < len(kept.loss)
    assert gap(dropped) <= 2e-4 and abs(dropped.upper - kept.upper) <= 2e-4
    flat = dropped.psi.flatten(1)
    torch.testing.assert_close(dropped.gram, flat @ flat.T)


@pytest.mark.peers
@pytest.mark.parametrize("name", NAMES)
def test_bounds_hold_and_close_in_every_round(name):
    psi, loss, oracle = structured(4, name)
    true, plane = solved(psi, loss, 10.0, name), start(psi.shape[2:])
    for _ in range(15):
        before = plane
        plane = add_cut(plane, *oracle(plane.probe), C=10.0, **options(name, 4))
        assert before.lower <= plane.lower <= true + 1e-5
        assert before.upper >= plane.upper >= true - 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("name", NAMES)
def test_a_path_of_C_takes_its_cuts_along(name):
    psi, loss, oracle = structured(5, name)
    plane, choices = start(psi.shape[2:]), options(name, 4)
    plane = restart(plane, C=1.0, **choices)  # nothing to start from yet
    for C in (1.0, 10.0, 3.0):
        plane = restart(plane, C=C, **choices)
        if len(plane.loss):
            assert float(plane.upper) == pytest.approx(true_value(psi, loss, omega_of(name), C, plane.best), rel=1e-9)
            assert plane.lower <= solved(psi, loss, C, name) + 1e-5
        plane = run(oracle, plane, C=C, eps=1e-4, **choices)
        cold = run(oracle, start(psi.shape[2:]), C=C, eps=1e-4, **choices)
        assert gap(plane) <= C * 1e-4
        assert abs(plane.upper - cold.upper) <= C * 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_the_same_input_gives_the_same_bits(name):
    psi, _, oracle = structured(6, name)
    first, second = (run(oracle, start(psi.shape[2:]), C=30.0, eps=1e-3, **options(name, 4)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["trace", "fro", "l21", "diagonal", "linear"])
def test_extremes_give_no_nan(name):
    shape = (3,) if name in ("diagonal", "linear") else (3, 3)
    choices, ones = options(name, 3), torch.ones(shape, dtype=torch.float64)
    for C in (1e-9, 1.0, 1e9):
        for psi in (0 * ones, ones, -ones, 1e-9 * ones, 1e6 * ones):
            plane = start(shape)
            for _ in range(4):  # the same cut again and again
                plane = add_cut(plane, psi, torch.tensor(0.5), C=C, eps=0.0, **choices)
            assert all(torch.isfinite(part).all() for part in plane)
            assert plane.upper >= plane.lower * (1 - 1e-9)


@pytest.mark.parametrize("name", ["anchor", "change"])
def test_no_digits_are_lost_near_the_anchor(name):
    """Where C is small the bounds differ from 0 by 1e-16 of |W0|^2, and close to a millionth of that."""
    psi, loss, oracle = structured(9, name)
    choices = options(name, 4) | {"anchor": torch.eye(4, dtype=torch.float64)}
    plane = run(oracle, start(psi.shape[2:], anchor=choices["anchor"]), 10, C=1e-16, eps=1e-6, **choices)
    assert 0 <= gap(plane) <= 1e-22 and 0 < plane.lower <= plane.upper < 1e-15
    hinges = np.maximum((loss - np.einsum("qrdd->qr", psi)).max(1), 0).mean()
    assert float(plane.upper) == pytest.approx(1e-16 * hinges, rel=1e-6)


@pytest.mark.parametrize("name", ["fro", "l21"])
def test_admm_leaves_a_point_at_zero(name):
    """As long as Z = 0 the residuals of ADMM have no ratio, and rho has to grow all the same."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        psi, loss, C = random.normal(size=(2, 1, 1)) * 10.0 ** random.uniform(-3, 3), random.uniform(0.1, 1, 2), 300.0
        nothing = np.zeros((1, 1))
        omega = make_regulariser(name, 0.1)
        state = Reduced(nothing, np.zeros((omega.splits, 1, 1)), 0.0, np.zeros(2), nothing, np.inf, -np.inf)
        cuts = Cuts(psi.reshape(2, 1), loss, psi.reshape(2, 1) @ psi.reshape(1, 2))
        found = admm(cuts, state, omega, C, 1e-3 * C, max_steps=500)
        assert found.upper - found.lower <= 1e-3 * C


@pytest.mark.parametrize("name", ["trace", "l21", "diagonal"])
def test_a_small_C_keeps_W_at_zero(name):
    psi, _, oracle = structured(7, name)
    plane = run(oracle, start(psi.shape[2:]), C=0.01, eps=1e-6, **options(name, 4))
    assert gap(plane) <= 1e-8 and not plane.best.any()


@pytest.mark.peers
def test_rows_without_use_are_exactly_zero():
    """Features 4..9 are noise around 0 in psi."""
    random = np.random.default_rng(8)
    psi = np.zeros((5, 6, 10, 10))
    psi[..., :4, :4] = random.normal(size=(5, 6, 4, 4)) + np.diag([3.0, 2, 2, 1])
    psi = psi + 0.05 * random.normal(size=psi.shape)
    psi, loss = (psi + psi.swapaxes(2, 3)) / 2, random.uniform(0.2, 1, size=(5, 6))

    plane = run(oracle_of(psi, loss), start((10, 10)), C=10.0, eps=1e-4, **options("l21", 10))
    assert gap(plane) <= 1e-3
    assert not plane.best[4:].any() and not plane.best[:, 4:].any() and plane.best[0].any()
    assert float(plane.upper) == pytest.approx(solved(psi, loss, 10.0, "l21"), abs=2e-3)


@pytest.mark.peers
@pytest.mark.parametrize("seed", [8, 9])
def test_rows_that_do_not_change_are_those_of_the_anchor(seed):
    """Features 4..9 are noise around 0 in psi. The anchor of the second problem joins every feature to every other."""
    random = np.random.default_rng(seed)
    psi = np.zeros((5, 6, 10, 10))
    psi[..., :4, :4] = random.normal(size=(5, 6, 4, 4)) + np.diag([3.0, 2, 2, 1])
    psi = psi + 0.05 * random.normal(size=psi.shape)
    psi, loss = (psi + psi.swapaxes(2, 3)) / 2, random.uniform(2, 9, size=(5, 6))
    anchor = torch.eye(10).double() + 0.3 * (seed == 9)
    choices = {"regulariser": "l21", "lam": 0.5, "anchor": anchor}

    plane = run(oracle_of(psi, loss), start((10, 10), anchor=anchor), C=3.0, eps=1e-6, **choices)
    same = (plane.best == anchor).all(1)
    assert gap(plane) <= 3e-6 and same[4:].all() and not same[:4].all()
    assert torch.equal(plane.best, plane.best.T) and torch.linalg.eigvalsh(plane.best)[0] >= -1e-12
    true = solved(psi, loss, 3.0, "change", anchor=anchor.numpy(), lam=0.5)
    assert float(plane.upper) == pytest.approx(true, abs=1e-5) and plane.lower <= true + 1e-6


def test_a_state_at_rest_is_the_anchor_and_keeps_its_cuts():
    psi, _, oracle = structured(3, "change")
    anchor, choices = torch.eye(4, dtype=torch.float64), options("change", 4) | {"anchor": torch.eye(4).double()}
    first = start(psi.shape[2:], anchor=anchor)
    none = rest(first, anchor)
    assert torch.equal(none.best, anchor) and none.upper == none.lower == 0 and not len(none.loss)
    again = restart(none, C=2.0, **choices)
    assert all(torch.equal(a, b) for a, b in zip(again, restart(first, C=2.0, **choices), strict=True))
    plane = run(oracle, first, C=2.0, eps=1e-4, **choices)
    quiet = rest(plane, anchor)
    assert torch.equal(quiet.best, anchor) and gap(quiet) == 0 and torch.equal(quiet.psi, plane.psi)
    back = run(oracle, restart(quiet, C=2.0, **choices), C=2.0, eps=1e-4, **choices)
    assert gap(back) <= 2e-4 and abs(back.upper - plane.upper) <= 2e-4


def test_a_state_can_rest_in_single_precision_input():
    """Cuts in float32 are taken in float64, and the state stays there."""
    psi, _, oracle = structured(9, "trace")
    plane = start(psi.shape[2:])
    for _ in range(3):
        cut, loss = oracle(plane.probe)
        plane = add_cut(plane, cut.float(), loss.float(), C=1.0)
    assert all(part.dtype == torch.float64 for name, part in plane._asdict().items() if name != "idle")


def test_the_threads_are_given_back():
    before = [library["num_threads"] for library in threadpool_info()]
    add_cut(start((2, 2)), torch.eye(2), torch.tensor(1.0), C=5.0)
    assert [library["num_threads"] for library in threadpool_info()] == before


@pytest.mark.parametrize("name", NAMES)
def test_a_round_and_a_restart_leave_the_state_they_start_from_as_it_was(name):
    """The state may lie in buffers: a round that is interrupted must not have changed them."""
    psi, _, oracle = structured(10, name)
    plane = run(oracle, start(psi.shape[2:]), 4, C=20.0, eps=1e-6, **options(name, 4))
    before = [part.clone() for part in plane]
    add_cut(plane, *oracle(plane.probe), C=20.0, eps=1e-6, **options(name, 4))
    restart(plane, C=50.0, eps=1e-6, **options(name, 4))
    assert all(torch.equal(part, old) for part, old in zip(plane, before, strict=True))


def test_cuts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"a cut must be finite, of shape \(2, 2\), got \(2,\) with 0 values"):
        add_cut(start((2, 2)), torch.ones(2), torch.tensor(1.0), C=1.0)
    with pytest.raises(ValueError, match=r"got \(2,\) with 1 values that are not finite, loss 1.0"):
        add_cut(start((2,)), torch.tensor([1.0, torch.nan]), torch.tensor(1.0), C=1.0, regulariser="diagonal")
    with pytest.raises(ValueError, match="loss inf"):
        add_cut(start((2,)), torch.ones(2), torch.tensor(torch.inf), C=1.0, regulariser="linear")

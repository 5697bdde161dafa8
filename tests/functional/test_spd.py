"""Geometric means and the closed form of GMML against 60-digit arithmetic, and their laws.

The metric is S^-1 #_t D with A #_t B = A^1/2 (A^-1/2 B A^-1/2)^t A^1/2: t = 0 is S^-1, t = 1 is D (Su, King & Lyu 2017,
eq. 6-9; Zadeh, Hosseini & Sra 2016).
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from tests.reference.matrices import conditioned, error, exact_gmml, exact_mean
from torchrank.errors import NotPositiveDefinite
from torchrank.functional import geometric_mean, gmml, gmml_factor, gmml_residual

TIMES = (0, 0.25, 0.5, 0.75, 1)
CONDITIONS = [(1, 1), (1e2, 1e2), (1e4, 1e4), (1e6, 1e6), (1e6, 1), (1, 1e6), (1e8, 1e8), (1e8, 1e2), (1e2, 1e8)]


def pairs_of_conditions():
    """Both, either one, different axes or the same, with the accuracy that is asked for."""
    for seed, (first, second) in enumerate(CONDITIONS):
        rng = np.random.default_rng(seed)
        tolerance = 1e-9 if max(first, second) <= 1e6 else 1e-8
        yield f"{first:g}/{second:g}", conditioned(rng, 10, first), conditioned(rng, 10, second), tolerance


def special_cases():
    rng = np.random.default_rng(100)
    hilbert = np.array([[1 / (i + j + 1) for j in range(5)] for i in range(5)])  # condition 5e5
    units = np.diag([1e-2, 1.0, 1e2, 1.0, 10.0])  # the same features in other units
    dead = conditioned(rng, 5, 10)
    dead[2] = dead[:, 2] = 0
    few = rng.normal(size=(2, 5))
    similar, ridge = few.T @ few, 0.1 * np.eye(5)
    yield "one feature", np.array([[4.0]]), np.array([[9.0]]), 1e-13
    yield "hilbert", hilbert, conditioned(rng, 5, 10), 1e-9
    yield "hilbert twice", hilbert, hilbert[::-1, ::-1].copy(), 1e-9
    yield "units", units @ conditioned(rng, 5, 10) @ units, conditioned(rng, 5, 10), 1e-8
    yield "dead feature", dead + 0.1 * np.eye(5) * np.trace(dead) / 5, dead + ridge, 1e-12
    yield "rank 2 of 5", similar + ridge * np.trace(similar) / 5, conditioned(rng, 5, 100), 1e-12
    yield "tiny ridge", similar + 1e-5 * ridge, conditioned(rng, 5, 100), 1e-9
    yield "equal", dead + ridge, dead + ridge, 1e-12
    yield "small and large", conditioned(rng, 5, 100, 1e-12), conditioned(rng, 5, 100, 1e12), 1e-12
    yield "identity", np.eye(4), np.eye(4), 1e-14


CASES = {name: (similar, dissimilar, tolerance) for name, similar, dissimilar, tolerance in
         [*pairs_of_conditions(), *special_cases()]}  # fmt: skip
every_case = pytest.mark.parametrize("name", CASES)


@cache
def exact(name: str, t: float) -> np.ndarray:
    """The 60-digit metric of a case."""
    return exact_gmml(*CASES[name][:2], t)


def scatters(rng, size, rows=60):
    parts = rng.standard_normal((rows, size)), 3 * rng.standard_normal((rows, size))
    return [x.T @ x / rows for x in parts]


def pair(seed, batch=(), size=6):
    """A batch of well-conditioned scatters."""
    x, y = torch.randn(2, *batch, 3 * size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.mT @ x / size, y.mT @ y


def metric_of(similar, dissimilar, t=0.5):
    factor = gmml_factor(torch.as_tensor(similar), torch.as_tensor(dissimilar), t)
    return factor.double() @ factor.double().mT


# --- 60 digits ---


def test_the_reference_knows_a_case_by_hand():
    """Diagonal matrices commute: S_jj^(t-1) D_jj^t."""
    similar, dissimilar = np.diag([4.0, 0.5]), np.diag([9.0, 2.0])
    for t in TIMES:
        by_hand = np.diag([4.0 ** (t - 1) * 9.0**t, 0.5 ** (t - 1) * 2.0**t])
        np.testing.assert_allclose(exact_gmml(similar, dissimilar, t), by_hand, rtol=1e-15, atol=1e-30)


@every_case
def test_the_metric_to_60_digits(name):
    similar, dissimilar, tolerance = CASES[name]
    for t in TIMES:
        assert error(gmml(torch.tensor(similar), torch.tensor(dissimilar), t), exact(name, t)) <= tolerance, t


@every_case
def test_the_factor_to_60_digits(name):
    similar, dissimilar, tolerance = CASES[name]
    for t in TIMES:
        assert error(metric_of(similar, dissimilar, t), exact(name, t)) <= tolerance, t


@pytest.mark.parametrize("ridge", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("dead_in", ["both", "similar", "dissimilar"])
def test_dead_features_with_a_tiny_ridge(ridge, dead_in):
    rng, dead = np.random.default_rng(5), [0, 3, 4]
    s, d = scatters(rng, 8)
    for matrix in {"both": (s, d), "similar": (s,), "dissimilar": (d,)}[dead_in]:
        matrix[dead], matrix[:, dead] = 0, 0
    s, d = s + ridge * np.eye(8), d + ridge * np.eye(8)
    for t in (0, 0.25, 0.5, 1):
        expected = exact_gmml(s, d, t)
        assert error(metric_of(s, d, t), expected) < 1e-12, t


def test_features_of_very_different_scale():
    rng = np.random.default_rng(6)
    scale = rng.permutation(np.geomspace(1e-4, 1, 10))  # a condition of 1e8, and yet few digits are lost
    s, d = (matrix * scale * scale[:, None] for matrix in scatters(rng, 10))
    for t in TIMES:
        assert error(gmml(torch.tensor(s), torch.tensor(d), t), exact_gmml(s, d, t)) < 1e-11, t


def test_fewer_pairs_than_features_and_a_ridge():
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((5, 12)), rng.standard_normal((40, 12))
    s, d = x.T @ x / 5 + 1e-6 * np.eye(12), y.T @ y / 40 + 1e-6 * np.eye(12)
    assert error(metric_of(s, d), exact_gmml(s, d, 0.5)) < 1e-9


def test_nearly_repeated_features():
    rng = np.random.default_rng(12)
    x, y = rng.standard_normal((30, 6)), rng.standard_normal((40, 6))
    x[:, 4] = x[:, 1] + 1e-5 * x[:, 4]  # a condition of 1e11: suspect, but of full rank
    s, d = x.T @ x, y.T @ y
    for t, limit in zip((0, 0.25, 0.5, 1), (1e-4, 1e-4, 1e-4, 1e-14), strict=True):
        assert error(metric_of(s, d, t), exact_gmml(s, d, t)) < limit


@pytest.mark.parametrize("t", TIMES)
def test_a_singular_dissimilar_gives_the_limit(t):
    rng = np.random.default_rng(9)
    x, y = rng.standard_normal((30, 7)), rng.standard_normal((3, 7))
    s, d = torch.tensor(np.stack([x.T @ x] * 2)), torch.tensor(np.stack([y.T @ y, np.eye(7)]))
    metric = metric_of(s, d, t).numpy()
    tolerance = 1e-12 if t in (0, 1) else 1e-3 if t == 0.25 else 1e-6  # a zero is known to 1e-16, its power to less
    assert error(metric[0], exact_gmml(s[0].numpy(), d[0].numpy(), t)) < tolerance
    assert error(metric[1], exact_gmml(s[1].numpy(), d[1].numpy(), t)) < 1e-12
    assert gmml(s[0], torch.zeros(7, 7, dtype=torch.float64), 0.5).abs().max() == 0


@every_case
def test_the_geometric_mean_to_60_digits_from_either_end(name):
    first, second, tolerance = CASES[name]
    for t in (*TIMES, 0.8):
        expected = exact_mean(first, second, t)
        assert error(geometric_mean(torch.tensor(first), torch.tensor(second), t), expected) <= tolerance, t
        assert error(geometric_mean(torch.tensor(second), torch.tensor(first), 1 - t), expected) <= tolerance, t


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_matrices_are_solved_in_float64(dtype):
    """Condition 1e5 times 1e5 would leave no digit to float32; the last rounding is the only one."""
    rng = np.random.default_rng(18)
    s, d = (torch.tensor(conditioned(rng, 10, 1e5), dtype=dtype) for _ in range(2))
    expected = exact_gmml(s.double().numpy(), d.double().numpy(), 0.5)
    metric, factor = gmml(s, d), gmml_factor(s, d)
    assert metric.dtype == factor.dtype == dtype
    assert error(metric, expected) <= (1e-7 if dtype == torch.float32 else 1e-9)
    assert error(factor.double() @ factor.double().mT, expected) <= (1e-6 if dtype == torch.float32 else 1e-9)


# --- laws ---


def residual(metric: np.ndarray, similar: np.ndarray, dissimilar: np.ndarray) -> float:
    return float(np.linalg.norm(metric @ similar @ metric - dissimilar) / np.linalg.norm(dissimilar))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_the_equation_that_defines_the_metric(dtype, tolerance):
    """M S M = D (eq. 8), M symmetric and positive definite, up to condition 1e4."""
    rng = np.random.default_rng(11)
    for condition in (1.0, 1e2, 1e4):
        similar, dissimilar = (torch.tensor(conditioned(rng, 40, condition), dtype=dtype) for _ in range(2))
        factor = gmml_factor(similar, dissimilar)
        assert factor.dtype == dtype
        metric = factor.double() @ factor.double().mT
        expected = residual(metric.numpy(), similar.double().numpy(), dissimilar.double().numpy())
        assert expected <= tolerance
        assert np.linalg.eigvalsh(metric.numpy()).min() > 0
        own = float(gmml_residual(factor.double(), similar.double(), dissimilar.double()))
        assert own == pytest.approx(expected, rel=1e-2, abs=1e-14)


def test_the_residual_of_any_factor():
    rng = np.random.default_rng(13)
    factors = rng.normal(size=(3, 4, 4))
    similar, dissimilar = (np.stack([conditioned(rng, 4, 9)] * 3) for _ in range(2))
    expected = [residual(f @ f.T, s, d) for f, s, d in zip(factors, similar, dissimilar, strict=True)]
    actual = gmml_residual(*(torch.tensor(part) for part in (factors, similar, dissimilar)))
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)
    s, d = pair(1, (4,))
    wrong = gmml_residual(2 * gmml_factor(s, d), s, d)  # 4 M S 4 M = 16 D
    torch.testing.assert_close(wrong, torch.full((4,), 15.0, dtype=torch.float64))


def test_the_metric_is_symmetric_and_only_the_symmetric_part_counts():
    rng = np.random.default_rng(12)
    s, d = (torch.tensor(conditioned(rng, 9, 1e3)) for _ in range(2))
    twist = torch.triu(torch.ones(9, 9, dtype=torch.float64), 1)
    for t in TIMES:
        metric = gmml(s, d, t)
        assert torch.equal(metric, metric.mT)
        torch.testing.assert_close(gmml(s + twist - twist.T, d, t), metric)


@pytest.mark.parametrize("t", [*TIMES, 0.7])
def test_laws_of_the_closed_form(t):
    rng = np.random.default_rng(14)
    similar, dissimilar = torch.tensor(conditioned(rng, 7, 1e3)), torch.tensor(conditioned(rng, 7, 1e2))
    axes = torch.tensor(np.linalg.qr(rng.normal(size=(7, 7)))[0])
    metric = metric_of(similar, dissimilar, t)
    assert torch.linalg.eigvalsh(metric).min() > 0
    assert error(torch.linalg.inv(metric), metric_of(dissimilar, similar, 1 - t).numpy()) <= 1e-10
    turned = metric_of(axes.T @ similar @ axes, axes.T @ dissimilar @ axes, t)
    assert error(turned, (axes.T @ metric @ axes).numpy()) <= 1e-10
    assert error(geometric_mean(torch.linalg.inv(similar), dissimilar, t), metric.numpy()) <= 1e-10
    for scale in (1e-6, 3.0, 1e6):  # the unit of all features together, and that of the dissimilar pairs
        both, one = metric_of(scale * similar, scale * dissimilar, t), scale ** (2 * t - 1) * metric
        assert error(both, one.numpy()) <= 1e-11
        assert error(metric_of(similar, scale * dissimilar, t), (scale**t * metric).numpy()) <= 1e-11
    if t in (0, 1):
        expected = dissimilar.numpy() if t else np.linalg.inv(similar.numpy())
        assert error(metric, expected) <= 1e-11


def test_a_large_ridge_leaves_the_euclidean_metric():
    rng = np.random.default_rng(14)
    similar, dissimilar = torch.tensor(conditioned(rng, 7, 1e3)), torch.tensor(conditioned(rng, 7, 1e2))
    ridge = 1e9 * torch.eye(7, dtype=torch.float64)
    assert error(metric_of(similar + ridge, dissimilar + ridge), np.eye(7)) <= 1e-8


@pytest.mark.parametrize("t", TIMES)
def test_commuting_matrices(t):
    """M_jj = S_jj^(t-1) D_jj^t: a pure ratio at t = 1/2, so a feature's unit is not absorbed."""
    similar, dissimilar = np.array([0.5, 1.0, 4.0, 30.0]), np.array([2.0, 1.0, 0.1, 7.0])
    metric = metric_of(np.diag(similar), np.diag(dissimilar), t)
    assert error(metric, np.diag(similar ** (t - 1) * dissimilar**t)) <= 1e-12


def test_the_metric_is_the_minimum():
    """M minimises h(M) = tr(M S) + tr(M^-1 D) (eq. 6): its numerical gradient is 0 and every step goes up."""
    rng = np.random.default_rng(16)
    similar, dissimilar = conditioned(rng, 4, 20), conditioned(rng, 4, 20)
    metric = gmml(torch.tensor(similar), torch.tensor(dissimilar)).numpy()

    def h(m):
        return np.trace(m @ similar) + np.trace(np.linalg.inv(m) @ dissimilar)

    for i, j in product(range(4), repeat=2):
        step = np.zeros((4, 4))
        step[i, j] += 1e-5
        step[j, i] += 1e-5
        assert abs(h(metric + step) - h(metric - step)) / 2e-5 <= 1e-7 * h(metric)
    for _ in range(50):
        step = rng.normal(size=(4, 4)) * 1e-2
        assert h(metric + step @ metric + metric @ step.T) > h(metric)


# --- batches ---


@pytest.mark.parametrize("t", [0.25, 0.5])
def test_a_batch_is_its_elements(t):
    """Easy and hard elements in one batch do not disturb each other."""
    rng = np.random.default_rng(15)
    conditions = [1, 1e4, 10, 1e2, 1e3, 1e4]
    similar = np.stack([conditioned(rng, 5, c, 10.0 ** rng.integers(-3, 4)) for c in conditions])
    dissimilar = np.stack([conditioned(rng, 5, c) for c in reversed(conditions)])
    whole = metric_of(similar.reshape(2, 3, 5, 5), dissimilar.reshape(2, 3, 5, 5), t)
    assert whole.shape == (2, 3, 5, 5)
    for metric, s, d in zip(whole.view(6, 5, 5), similar, dissimilar, strict=True):
        assert error(metric, metric_of(s, d, t).numpy()) <= 1e-10
        assert error(metric, exact_gmml(s, d, t)) <= 1e-9


def test_shapes():
    for batch in [(), (1,), (2, 3), (0,), (2, 0)]:
        s, d = pair(4, batch)
        assert gmml_factor(s, d).shape == gmml(s, d).shape == geometric_mean(s, d).shape == s.shape
    s, d = pair(5, (2, 3))
    torch.testing.assert_close(gmml(s, d[0, 0])[1, 2], gmml(s[1, 2], d[0, 0]))
    one = gmml_factor(torch.tensor([[4.0]]), torch.tensor([[9.0]]), 0.25)
    assert one.item() ** 2 == pytest.approx(4**-0.75 * 9**0.25, rel=1e-6)


def test_badly_conditioned_matrices_among_others_are_solved_with_more_care():
    s, d = pair(7, (20,), size=40)
    expected = gmml_factor(s, d)
    hard = torch.tensor(np.stack([conditioned(np.random.default_rng(seed), 40, 1e8) for seed in range(2)]))
    mixed = torch.cat([s[:3], hard, s[5:]])
    factor = gmml_factor(mixed, d)
    assert gmml_residual(factor, mixed, d).max() < 1e-8
    easy = [*range(3), *range(5, 20)]
    torch.testing.assert_close(factor[easy], expected[easy], rtol=0, atol=0)


# --- refusals ---


def test_singular_matrices_are_named():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(12, 46, dtype=torch.float64, generator=draw)
    good = torch.eye(46, dtype=torch.float64)
    batch = torch.stack([good, good, good, x.T @ x])
    for function in (gmml, gmml_factor):
        with pytest.raises(NotPositiveDefinite, match=r"similar\[3\] is singular: rank 12 of 46"):
            function(batch, good)
        with pytest.raises(NotPositiveDefinite, match=r"similar\[3\] is singular: rank 12 of 46"):
            function(batch.float(), good.float())
        with pytest.raises(NotPositiveDefinite, match="similar is singular: rank 0 of 46"):
            function(0 * good, good)
    with pytest.raises(NotPositiveDefinite, match=r"similar\[1, 1\] is singular: rank 12 of 46"):
        gmml(batch.view(2, 2, 46, 46), good)
    with pytest.raises(NotPositiveDefinite, match=r"^b is singular: rank 12 of 46"):
        geometric_mean(good, batch[3])


@pytest.mark.parametrize("t", [0, 0.5, 1])
def test_every_kind_of_singular_similar_raises(t):
    good, draw = torch.eye(5, dtype=torch.float64), torch.Generator().manual_seed(1)
    for seed in range(30):
        x = torch.randn(9, 5, dtype=torch.float64, generator=draw)
        x[:, seed % 5] = x[:, (seed + 2) % 5] * (1 + seed % 3)  # a feature that repeats another one
        with pytest.raises(NotPositiveDefinite, match="similar is singular: rank 4 of 5"):
            gmml_factor(x.T @ x, good, t)
    dead = torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0, 1.0]))
    with pytest.raises(NotPositiveDefinite, match="rank 3 of 5"):
        gmml_factor(dead, good.float(), t)
    indefinite = torch.diag(torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0])).double()
    with pytest.raises(NotPositiveDefinite, match="similar is not positive definite: rank 4 of 5"):
        gmml_factor(indefinite, good, t)
    with pytest.raises(NotPositiveDefinite, match="dissimilar is not positive semi-definite"):
        gmml_factor(good, indefinite, t)
    with pytest.raises(ValueError, match=r"similar\[1\] has values that are not finite"):
        gmml_factor(torch.stack([good, good * torch.nan]), good, t)
    with pytest.raises(ValueError, match="dissimilar has values that are not finite"):
        gmml_factor(good, good * torch.inf, t)


def test_arguments_are_checked():
    s, d = pair(8)
    with pytest.raises(ValueError, match=r"t must be from 0 to 1, got 1.5"):
        gmml(s, d, 1.5)
    for wrong in (d[:5], d[:, :5], d[:5, :5], d[0]):
        with pytest.raises(ValueError, match="same D"):
            gmml(s, wrong)

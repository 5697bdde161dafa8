"""The closed form of GMML against 60-digit arithmetic, and its laws.

The metric is S^-1 #_t D with A #_t B = A^1/2 (A^-1/2 B A^-1/2)^t A^1/2: t = 0 is S^-1, t = 1 is D (Su, King & Lyu 2017,
eq. 6-9; Zadeh, Hosseini & Sra 2016).
"""

from itertools import product

import mpmath
import numpy as np
import pytest
import torch

from torchrank import functional as F

METHODS = ["auto", "eigh", "svd", "dbase", "gemm"]
EXPONENTS = [0.0, 0.25, 0.5, 1.0]


# --- 60 digits ---


def power(matrix: mpmath.matrix, exponent: float) -> mpmath.matrix:
    values, vectors = mpmath.eigsy(matrix)
    assert min(values) > 0
    return vectors * mpmath.diag([value**exponent for value in values]) * vectors.T


def exact_mean(a: np.ndarray, b: np.ndarray, t: float, invert_a: bool = False) -> np.ndarray:
    """A #_t B by its definition, the given float64 numbers taken as exact; `invert_a`: A^-1 #_t B."""
    with mpmath.workdps(60):
        sign = -1 if invert_a else 1
        first, second = mpmath.matrix(a.tolist()), mpmath.matrix(b.tolist())
        root, inverse_root = power(first, sign * mpmath.mpf("0.5")), power(first, -sign * mpmath.mpf("0.5"))
        inner = inverse_root * second * inverse_root
        result = root * power((inner + inner.T) / 2, mpmath.mpf(t)) * root
        return np.array([[float(x) for x in row] for row in result.tolist()])


def error(actual: torch.Tensor, expected: np.ndarray) -> float:
    """Relative, in the Frobenius norm."""
    return float(np.linalg.norm(actual.double().numpy() - expected) / np.linalg.norm(expected))


def spd(rng: np.random.Generator, size: int, condition: float, scale: float = 1.0) -> np.ndarray:
    """Random axes, eigenvalues evenly spread in the logarithm over the whole condition."""
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    matrix = (axes * np.geomspace(1.0, 1.0 / condition, size)) @ axes.T * scale
    return (matrix + matrix.T) / 2


def pairs_of_conditions():
    """Both, either one, different axes or the same, with the accuracy that is asked for."""
    for seed, (first, second) in enumerate(
        [(1, 1), (1e2, 1e2), (1e4, 1e4), (1e6, 1e6), (1e6, 1), (1, 1e6), (1e8, 1e8), (1e8, 1e2), (1e2, 1e8)]
    ):
        rng = np.random.default_rng(seed)
        tolerance = 1e-9 if max(first, second) <= 1e6 else 1e-8
        yield f"{first:g}/{second:g}", spd(rng, 6, first), spd(rng, 6, second), tolerance


def special_cases():
    rng = np.random.default_rng(100)
    hilbert = np.array([[1 / (i + j + 1) for j in range(5)] for i in range(5)])  # condition 5e5
    units = np.diag([1e-2, 1.0, 1e2, 1.0, 10.0])  # the same features in other units
    dead = spd(rng, 5, 10)
    dead[2] = dead[:, 2] = 0
    few = rng.normal(size=(2, 5))
    similar, ridge = few.T @ few, 0.1 * np.eye(5)
    yield "one feature", np.array([[4.0]]), np.array([[9.0]]), 1e-13
    yield "hilbert", hilbert, spd(rng, 5, 10), 1e-9
    yield "hilbert twice", hilbert, hilbert[::-1, ::-1].copy(), 1e-9
    yield "units", units @ spd(rng, 5, 10) @ units, spd(rng, 5, 10), 1e-8
    yield "dead feature", dead + 0.1 * np.eye(5) * np.trace(dead) / 5, dead + ridge, 1e-12
    yield "rank 2 of 5", similar + ridge * np.trace(similar) / 5, spd(rng, 5, 100), 1e-12
    yield "tiny ridge", similar + 1e-5 * ridge, spd(rng, 5, 100), 1e-9
    yield "equal", dead + ridge, dead + ridge, 1e-12
    yield "small and large", spd(rng, 5, 100, 1e-12), spd(rng, 5, 100, 1e12), 1e-12
    yield "identity", np.eye(4), np.eye(4), 1e-14


CASES = {name: (similar, dissimilar, tolerance) for name, similar, dissimilar, tolerance in
         [*pairs_of_conditions(), *special_cases()]}  # fmt: skip


@pytest.fixture(scope="module")
def exact():
    """The 60-digit metric of a case, worked out once."""
    found: dict = {}

    def metric(name: str, t: float) -> np.ndarray:
        if (name, t) not in found:
            similar, dissimilar, _ = CASES[name]
            found[name, t] = exact_mean(similar, dissimilar, t, invert_a=True)
        return found[name, t]

    return metric


def test_the_reference_knows_a_case_by_hand():
    """Diagonal matrices commute: S_jj^(t-1) D_jj^t."""
    similar, dissimilar = np.diag([4.0, 0.5]), np.diag([9.0, 2.0])
    for t in EXPONENTS:
        by_hand = np.diag([4.0 ** (t - 1) * 9.0**t, 0.5 ** (t - 1) * 2.0**t])
        np.testing.assert_allclose(exact_mean(similar, dissimilar, t, invert_a=True), by_hand, rtol=1e-15, atol=1e-30)


@pytest.mark.parametrize("t", EXPONENTS)
@pytest.mark.parametrize("name", CASES)
def test_closed_form(name, t, exact):
    similar, dissimilar, tolerance = CASES[name]
    metric = F.gmml(torch.tensor(similar), torch.tensor(dissimilar), t)
    assert error(metric, exact(name, t)) <= tolerance


@pytest.mark.parametrize("t", EXPONENTS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", ["auto", "svd"])
def test_factor(name, t, method, exact):
    similar, dissimilar, tolerance = CASES[name]
    factor = F.gmml_factor(torch.tensor(similar), torch.tensor(dissimilar), t, method=method)
    assert error(factor @ factor.mT, exact(name, t)) <= tolerance


@pytest.mark.parametrize("t", EXPONENTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_where_none_is_in_trouble(method, t, exact):
    for name in ("1/1", "100/100", "10000/10000", "dead feature", "rank 2 of 5", "one feature", "equal"):
        similar, dissimilar, tolerance = CASES[name]
        factor = F.gmml_factor(torch.tensor(similar), torch.tensor(dissimilar), t, method=method)
        assert error(factor @ factor.mT, exact(name, t)) <= tolerance, name


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_geometric_mean(t):
    for name in ("100/100", "1e+06/1e+06", "hilbert", "one feature"):
        first, second, tolerance = CASES[name]
        actual = F.geometric_mean(torch.tensor(first), torch.tensor(second), t)
        assert error(actual, exact_mean(first, second, t)) <= tolerance, name
        swapped = F.geometric_mean(torch.tensor(second), torch.tensor(first), 1 - t)
        assert error(swapped, actual.numpy()) <= 2 * tolerance, name


def test_many_features_are_as_exact():
    """Twice the features of the cases above, so that no method owes its digits to small matrices."""
    rng = np.random.default_rng(7)
    similar, dissimilar = spd(rng, 12, 1e6), spd(rng, 12, 1e6)
    for t in (0.25, 0.5):
        metric = F.gmml(torch.tensor(similar), torch.tensor(dissimilar), t)
        assert error(metric, exact_mean(similar, dissimilar, t, invert_a=True)) <= 1e-9


# --- laws ---


def residual(metric: np.ndarray, similar: np.ndarray, dissimilar: np.ndarray) -> float:
    return float(np.linalg.norm(metric @ similar @ metric - dissimilar) / np.linalg.norm(dissimilar))


@pytest.mark.parametrize(("method", "dtype", "tolerance"), [
    *((method, torch.float64, 1e-10) for method in METHODS), ("svd", torch.float32, 1e-5)
])  # fmt: skip
def test_the_equation_that_defines_the_metric(method, dtype, tolerance):
    """M S M = D (eq. 8), M symmetric and positive definite, up to condition 1e4."""
    rng = np.random.default_rng(11)
    for condition in (1.0, 1e2, 1e4):
        similar, dissimilar = (torch.tensor(spd(rng, 40, condition), dtype=dtype) for _ in range(2))
        factor = F.gmml_factor(similar, dissimilar, method=method)
        assert factor.dtype == dtype
        metric = factor.double() @ factor.double().mT
        expected = residual(metric.numpy(), similar.double().numpy(), dissimilar.double().numpy())
        assert expected <= tolerance
        assert np.linalg.eigvalsh(metric.numpy()).min() > 0
        own = float(F.gmml_residual(factor.double(), similar.double(), dissimilar.double()))
        assert own == pytest.approx(expected, rel=1e-2, abs=1e-14)


def test_metric_is_symmetric():
    rng = np.random.default_rng(12)
    similar, dissimilar = torch.tensor(spd(rng, 9, 1e3)), torch.tensor(spd(rng, 9, 1e3))
    for t in EXPONENTS:
        metric = F.gmml(similar, dissimilar, t)
        assert float((metric - metric.mT).abs().max()) <= 1e-14 * float(metric.abs().max())


def test_residual_of_any_factor():
    rng = np.random.default_rng(13)
    factors, similar, dissimilar = rng.normal(size=(3, 4, 4)), *(np.stack([spd(rng, 4, 9)] * 3) for _ in range(2))
    expected = [residual(f @ f.T, s, d) for f, s, d in zip(factors, similar, dissimilar, strict=True)]
    actual = F.gmml_residual(*(torch.tensor(part) for part in (factors, similar, dissimilar)))
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_laws_of_the_closed_form(method):
    rng = np.random.default_rng(14)
    similar, dissimilar = torch.tensor(spd(rng, 7, 1e3)), torch.tensor(spd(rng, 7, 1e2))
    axes = torch.tensor(np.linalg.qr(rng.normal(size=(7, 7)))[0])

    def metric(s, d, t=0.5):
        factor = F.gmml_factor(s, d, t, method=method)
        return factor @ factor.mT

    for t in (0.0, 0.25, 0.5, 0.7, 1.0):
        plain = metric(similar, dissimilar, t)
        assert error(torch.linalg.inv(plain), metric(dissimilar, similar, 1 - t).numpy()) <= 1e-10
        turned = metric(axes.T @ similar @ axes, axes.T @ dissimilar @ axes, t)
        assert error(turned, (axes.T @ plain @ axes).numpy()) <= 1e-10
    assert error(metric(similar, dissimilar, 0.0), np.linalg.inv(similar.numpy())) <= 1e-11
    assert error(metric(similar, dissimilar, 1.0), dissimilar.numpy()) <= 1e-11
    for scale in (1e-6, 3.0, 1e6):  # the unit of all features together
        assert error(metric(scale * similar, scale * dissimilar), metric(similar, dissimilar).numpy()) <= 1e-11
        assert error(metric(similar, scale * dissimilar), scale**0.5 * metric(similar, dissimilar).numpy()) <= 1e-11
    ridge = 1e9 * torch.eye(7, dtype=torch.float64)
    assert error(metric(similar + ridge, dissimilar + ridge), np.eye(7)) <= 1e-8


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", EXPONENTS)
def test_commuting_matrices(method, t):
    """M_jj = S_jj^(t-1) D_jj^t: a pure ratio at t = 1/2, so a feature's unit is not absorbed."""
    similar, dissimilar = np.array([0.5, 1.0, 4.0, 30.0]), np.array([2.0, 1.0, 0.1, 7.0])
    factor = F.gmml_factor(torch.diag(torch.tensor(similar)), torch.diag(torch.tensor(dissimilar)), t, method=method)
    assert error(factor @ factor.mT, np.diag(similar ** (t - 1) * dissimilar**t)) <= 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [0.25, 0.5])
def test_a_batch_is_its_elements(method, t):
    """Easy and hard elements in one batch do not disturb each other."""
    rng = np.random.default_rng(15)
    conditions = [1, 1e4, 10, 1e2, 1e3, 1e4]
    similar = torch.tensor(np.stack([spd(rng, 5, c, 10.0 ** rng.integers(-3, 4)) for c in conditions]))
    dissimilar = torch.tensor(np.stack([spd(rng, 5, c) for c in reversed(conditions)]))
    shaped = F.gmml_factor(similar.view(2, 3, 5, 5), dissimilar.view(2, 3, 5, 5), t, method=method)
    assert shaped.shape == (2, 3, 5, 5)
    whole = (shaped @ shaped.mT).view(6, 5, 5)
    for i in range(6):
        factor = F.gmml_factor(similar[i], dissimilar[i], t, method=method)
        assert error(whole[i], (factor @ factor.mT).numpy()) <= 1e-10
        if method == "auto":
            assert error(whole[i], exact_mean(similar[i].numpy(), dissimilar[i].numpy(), t, invert_a=True)) <= 1e-9
    none = F.gmml_factor(similar[:0], dissimilar[:0], t, method=method)
    assert none.shape == (0, 5, 5)


def test_first_order_optimality():
    """M minimises h(M) = tr(M S) + tr(M^-1 D) (eq. 6): its numerical gradient is 0 and every step goes up."""
    rng = np.random.default_rng(16)
    similar, dissimilar = spd(rng, 4, 20), spd(rng, 4, 20)
    metric = F.gmml(torch.tensor(similar), torch.tensor(dissimilar)).numpy()

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


def test_a_singular_similar_matrix_is_named():
    rng = np.random.default_rng(17)
    few = rng.normal(size=(2, 5))
    similar = torch.tensor(np.stack([spd(rng, 5, 10), few.T @ few, np.eye(5)]))
    dissimilar = torch.tensor(np.stack([spd(rng, 5, 10)] * 3))
    for function in (F.gmml, F.gmml_factor):
        with pytest.raises(ValueError, match=r"\b1\b.*\b2\b"):  # element 1 has rank 2
            function(similar, dissimilar)
        with pytest.raises(ValueError):
            function(torch.zeros(5, 5, dtype=torch.float64), dissimilar[0])
        with pytest.raises(ValueError):
            function(-similar[0], dissimilar[0])
        with pytest.raises(ValueError):
            function(similar[0] + float("nan"), dissimilar[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_matrices_are_solved_in_float64(dtype):
    """Condition 1e5 times 1e5 would leave no digit to float32; the last rounding is the only one."""
    rng = np.random.default_rng(18)
    similar, dissimilar = (torch.tensor(spd(rng, 5, 1e5), dtype=dtype) for _ in range(2))
    expected = exact_mean(similar.double().numpy(), dissimilar.double().numpy(), 0.5, invert_a=True)
    metric, factor = F.gmml(similar, dissimilar), F.gmml_factor(similar, dissimilar)
    assert metric.dtype == factor.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-9
    assert error(metric, expected) <= tolerance
    assert error(factor.double() @ factor.double().mT, expected) <= tolerance

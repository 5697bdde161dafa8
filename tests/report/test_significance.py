"""Paired tests against scipy.stats and brute force; Holm typed by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from torchrank.report.gain import Gain
from torchrank.report.significance import holm, paired_t, randomisation


def pairs(size, seed, shift=0.05):
    generator = np.random.default_rng(seed)
    a = generator.random(size)
    return a, np.clip(a + generator.normal(-shift, 0.2, size), 0, 1)


@pytest.mark.parametrize("seed", range(5))
def test_t_agrees_with_scipy_and_drops_nan_pairs(seed):
    a, b = pairs(40, seed)
    a[3] = b[7] = np.nan
    keep = ~np.isnan(a) & ~np.isnan(b)
    assert paired_t(a, b) == pytest.approx(stats.ttest_rel(a[keep], b[keep]).pvalue, rel=1e-12)
    assert paired_t(a, b) == pytest.approx(paired_t(b, a), rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, 5, 9, 14])
def test_randomisation_is_exact_for_few_queries(size):
    a, b = pairs(size, size)
    flips = np.array(list(itertools.product([-1, 1], repeat=size)))
    means = np.abs((flips * (a - b)).mean(axis=1))
    expected = np.mean(means >= abs((a - b).mean()) - 1e-12)
    assert randomisation(a, b, rounds=1) == expected
    if size > 1:
        options = {"permutation_type": "samples", "n_resamples": np.inf}
        test = stats.permutation_test((a, b), lambda x, y: np.mean(x - y), **options)
        assert randomisation(a, b) == pytest.approx(test.pvalue, abs=1e-12)


def test_exact_ties_of_the_statistic_count_in_spite_of_rounding():
    a, b = np.array([0.1, 0.2, 0.3, 0.6]), np.zeros(4)  # 0.1 + 0.2 + 0.3 = 0.6 only up to rounding
    assert randomisation(a[[0, 1, 2]], b[:3]) == 2 / 8
    assert randomisation(a * [1, 1, 1, -1], b) == 1.0  # the difference is 0: every pattern is as large


@pytest.mark.parametrize("seed", range(3))
def test_monte_carlo_agrees_with_scipy(seed):
    a, b = pairs(60, seed, shift=0.03)
    test = stats.permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", n_resamples=20_000,
        rng=np.random.default_rng(1), vectorized=True,
    )  # fmt: skip
    p = randomisation(a, b, rounds=20_000)
    assert abs(p - test.pvalue) < 5 * math.sqrt(2 * 0.25 / 20_000)
    assert p == randomisation(a, b, rounds=20_000)  # seeded
    assert p == pytest.approx(randomisation(b, a, rounds=20_000), abs=1e-12)
    assert p != randomisation(a, b, rounds=20_000, seed=1)


def test_monte_carlo_never_gives_zero_and_is_the_same_in_blocks():
    a = np.full(6000, 0.5)  # 2**22 // 6000 rounds fit into a block
    assert randomisation(a, np.zeros(6000), rounds=1500) == 1 / 1501


def test_p_values_are_uniform_under_the_null():
    generator = np.random.default_rng(0)
    p = [randomisation(*generator.random((2, 30)), rounds=200) for _ in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_no_difference_is_one_and_no_pairs_is_nan():
    a = np.array([0.3, 0.5, np.nan])
    assert paired_t(a, a + 1e-16) == randomisation(a, a + 1e-16) == 1.0  # rounding is no difference
    assert math.isnan(paired_t([], [])) and math.isnan(randomisation([], []))
    assert math.isnan(randomisation([np.nan], [0.5])) and math.isnan(paired_t([0.4], [0.5]))
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        paired_t([1, 2], [1, 2, 3])


def test_queries_without_difference_do_not_change_the_randomisation_test():
    a, b = pairs(10, 0)
    assert randomisation(np.r_[a, np.ones(50)], np.r_[b, np.ones(50)]) == randomisation(a, b)


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, running maximum .02 .03 .06 .06
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1, 1])
    np.testing.assert_allclose(holm([0.02, np.nan, 0.03]), [0.04, np.nan, 0.04])
    assert holm([]).shape == (0,)


@pytest.mark.parametrize(
    ("low", "p", "told"), [(0.01, 0.01, False), (0.01, 0.05, True), (-0.01, 0.04, True), (0.0, 0.04, True)]
)
def test_a_gain_is_within_noise_by_its_test_or_its_interval(low, p, told):
    assert str(Gain("map", 0.02, low, 0.05, p, 40)).endswith(": within noise") == told


def test_a_gain_says_where_less_is_better():
    assert "-0.3000 arp, of which less is better, (" in str(Gain("arp", -0.3, -0.4, -0.2, 0.001, 40))

"""Clairvoyant choice against plain loops, its chance levels by enumeration, and the placebo."""

import itertools

import numpy as np
import pytest

from torchrank.report.clairvoyant import clairvoyant, clairvoyant_sheet, deal
from torchrank.report.figure1 import figure1_sheet, nearer
from torchrank.report.tables import markdown


def draw(seed, queries=30, models=5, levels=4):
    """Values with many ties and a query without any; similarities with ties."""
    random = np.random.default_rng(seed)
    values = random.integers(levels, size=(queries, models)) / 3
    values[7] = np.nan
    return values, random.integers(6, size=(queries, models)) / 5


@pytest.mark.parametrize("seed", range(3))
def test_by_loops(seed):
    values, similarity = draw(seed)
    found = clairvoyant(values, similarity)
    assert found.known.tolist() == [place != 7 for place in range(30)]
    for place, query in enumerate(np.flatnonzero(found.known)):
        order = sorted(range(5), key=lambda model: (-similarity[query, model], model))
        best = max(values[query])
        assert found.best[place] == best and found.similar[place] == values[query, order[0]]
        assert found.rank[place] == 1 + next(i for i, model in enumerate(order) if values[query, model] == best)
        assert found.average[place] == pytest.approx(sum(values[query]) / 5)


def test_chance_is_the_mean_over_all_orders():
    values, similarity = draw(3, queries=12, models=4)
    found = clairvoyant(values, similarity)
    orders = [clairvoyant(values, np.tile(order, (12, 1))).rank for order in itertools.permutations(range(4))]
    np.testing.assert_allclose(np.mean(orders, 0), found.chance_rank)
    np.testing.assert_allclose(np.mean(np.array(orders) == 1, 0), found.chance_first)


def test_values_that_differ_by_rounding_are_equal():
    found = clairvoyant([[0.3, 0.1 + 0.2]], [[1.0, 0.0]])
    assert found.rank.tolist() == [1] and found.chance_first.tolist() == [1.0]


def test_the_placebo_has_the_same_sizes_and_other_members():
    labels = np.random.default_rng(0).integers(-1, 4, 200)
    dealt = [deal(labels, seed) for seed in range(3)]
    for each in dealt:
        assert np.array_equal(np.bincount(each + 1), np.bincount(labels + 1))
        assert np.array_equal(each < 0, labels < 0) and (each != labels).sum() > 80
    assert np.array_equal(dealt[0], deal(labels, 0)) and not np.array_equal(dealt[0], dealt[1])


def test_equally_good_models_gain_by_noise_alone():
    """What the placebo is for: the clairvoyant gain of pure noise is that of the largest of M numbers."""
    random = np.random.default_rng(1)
    found = [clairvoyant(random.normal(size=(4000, models)), random.normal(size=(4000, models))) for models in (2, 8)]
    assert [each.best.mean() for each in found] == pytest.approx([0.564, 1.424], abs=0.04)  # of 2 and of 8 normals
    for each in found:
        assert abs(each.similar.mean()) < 0.05 and abs(each.rank.mean() - each.chance_rank.mean()) < 0.15


def test_sheet():
    values, similarity = draw(4)
    found, reference = clairvoyant(values, similarity), np.where(np.arange(30) == 7, np.nan, 0.5)
    sheet = clairvoyant_sheet({"5": found, "6": found}, {"5": found}, measure="map", reference=reference)
    gain = found.similar - 0.5
    expected = f"{gain.mean():+.4f} ±{gain.std(ddof=1) / np.sqrt(29):.4f}"
    assert [row[3] for row in sheet.rows] == [expected, expected]
    assert sheet.rows[0][4] == sheet.rows[0][5] == f"{found.best.mean():.4f}" != sheet.rows[1][5]
    assert "0.5000" in sheet.below[-1] and "placebo" in markdown(sheet)
    with pytest.raises(ValueError, match="shape \\(29,\\), the models have 30 test queries"):
        clairvoyant_sheet({"5": found}, measure="map", reference=np.ones(29))


@pytest.mark.parametrize("shapes", [((3, 2), (3, 3)), ((3,), (3,)), ((3, 0), (3, 0))], ids=str)
def test_other_shapes_are_refused(shapes):
    with pytest.raises(ValueError, match=r"\(T, M\) of test queries and models"):
        clairvoyant(*(np.zeros(shape) for shape in shapes))


def test_figure1_sheet():
    distances = {"pca": [[0.1, 0.7], [0.2, 0.1], [0.3, 0.3]]}
    sheet = figure1_sheet([[0.9, 0.4], [0.8, 0.5], [0.1, 0.6]], distances)
    assert sheet.header == ["", "AP", "pca"]
    assert sheet.rows == [["q2", "0.600", "0.200"], ["q3", "0.500", "0.367"], ["q2 first", "2 of 3", "1 of 3"]]
    assert nearer([[1, 0], [0, 1], [1, 1]]) == 1 and "pca 0.177 and 0.81" in sheet.below[-1]
    with pytest.raises(ValueError, match="pca has shape"):
        figure1_sheet([[0.9, 0.4]], distances)

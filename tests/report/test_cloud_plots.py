"""Figures of local models: what they draw is what they were given; chance by counting."""

from math import comb

import numpy as np
import pytest

from torchrank.report.clairvoyant import clairvoyant
from torchrank.report.plots.clouds import plot_clouds, plot_numbers, plot_ranks, within_by_chance

pytest.importorskip("matplotlib")


def test_clouds_around_their_means():
    random = np.random.default_rng(0)
    clouds = {name: (random.normal(size=(10, 3)) + 50 * far, np.arange(10) < 3) for far, name in enumerate("ab")}
    figure = plot_clouds(clouds, np.eye(3)[:2])
    place, *panels = figure.axes
    assert [axes.get_title() for axes in panels] == ["a, around its mean", "b, around its mean"]
    drawn = [np.asarray(part.get_offsets()) for part in place.collections]
    assert [len(points) for points in drawn] == [7, 3, 7, 3]
    np.testing.assert_allclose(drawn[3], clouds["b"][0][:3, :2])
    for axes, (x, _) in zip(panels, clouds.values(), strict=True):
        middle = np.concatenate([part.get_offsets() for part in axes.collections])
        np.testing.assert_allclose(np.sort(middle, 0), np.sort(x[:, :2] - x[:, :2].mean(0), 0))
        assert np.abs(middle).max() < axes.get_xlim()[1]


@pytest.mark.parametrize("models", [1, 4, 7])
def test_chance_by_counting(models):
    best = np.arange(1, models + 1)
    found = within_by_chance(best / models, models)
    expected = [[1 - comb(models - b, r) / comb(models, r) for r in range(1, models + 1)] for b in best]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_ranks():
    values, similarity = np.array([[0.1, 0.5], [0.9, 0.2], [0.3, 0.3]]), np.array([[1.0, 0.0]] * 3)
    axes = plot_ranks({"map": clairvoyant(values, similarity)}, 2).axes[0]
    drawn, chance = (line.get_ydata() for line in axes.lines)
    np.testing.assert_allclose(drawn, [2 / 3, 1])
    np.testing.assert_allclose(chance, [(0.5 + 0.5 + 1) / 3, 1])


def test_numbers():
    lines = {"local": [0.5, 0.4], "placebo": [0.5, 0.3], "clairvoyant": [0.5, 0.6]}
    axes = plot_numbers([1, 2], lines, errors={"local": [0.1, 0.1]}, levels={"one": 0.5}, ylabel="map").axes[0]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", ":", "-."]
    assert [list(line.get_ydata()) for line in axes.lines[:3]] == [*lines.values()]
    assert len(axes.collections) == 1 and axes.get_xlabel() == "clusters" and axes.get_ylabel() == "map"

"""The code of localrank.ipynb: models of groups against one solve at a time, the clairvoyant choice against loops, its
chance levels by enumeration, the placebo, and figures that draw what they were given."""

import itertools
from math import comb

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from notebooks.localrank import (
    clairvoyant,
    clairvoyant_sheet,
    deal,
    figure1_sheet,
    group_models,
    measure_models,
    nearer,
    plot_clouds,
    plot_numbers,
    plot_ranks,
    within_by_chance,
)
from torchrank.data.batch import make_batch
from torchrank.functional import average_precision, ndcg
from torchrank.report.tables import markdown
from torchrank.solvers.linear.many_models import join_lists

# ---- models of groups ------------------------------------------------------------------------------------------------


def draw_lists(seed, lengths=(5, 8, 3, 6, 4, 7)):
    random = np.random.default_rng(seed)
    x, offsets = random.standard_normal((sum(lengths), 3)), np.concatenate([[0], np.cumsum(lengths)])
    labels = random.integers(3, size=len(x)).astype(float)
    labels[offsets[2] : offsets[3]] = 1.0  # the third list has one label
    return torch.tensor(x), torch.tensor(labels), torch.tensor(offsets)


def plain_listnet(x, labels, offsets, lists, l2):
    """Minimum over w of the mean cross entropy of the lists, by scipy."""

    def objective(w):
        total = 0.0
        for q in lists:
            rows = slice(int(offsets[q]), int(offsets[q + 1]))
            if len(np.unique(labels[rows])) > 1:
                total -= softmax(labels[rows].numpy()) @ log_softmax(x[rows].numpy() @ w)
        return total / len(lists) + l2 / 2 * w @ w

    return minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x


def test_each_group_has_the_model_of_its_lists():
    x, labels, offsets = draw_lists(0)
    lists = join_lists([make_batch(x, labels, offsets)])
    weight = group_models(lists, torch.tensor([0, 1, 1, -1, 0, 1]), l2=0.1, tolerance=1e-9)
    expected = [plain_listnet(x, labels, offsets, each, 0.1) for each in ([0, 4], [1, 2, 5])]
    np.testing.assert_allclose(weight, expected, atol=1e-5)


def test_a_group_without_pairs_has_the_model_of_all_lists():
    x, labels, offsets = draw_lists(1)
    lists = join_lists([make_batch(x, labels, offsets)])
    weight = group_models(lists, torch.tensor([0, 0, 1, 0, 0, 0]), l2=0.1, tolerance=1e-9)
    np.testing.assert_allclose(weight[1], plain_listnet(x, labels, offsets, range(6), 0.1), atol=1e-5)


@pytest.mark.parametrize("block", [1, 70, 2**22])
def test_measures_are_those_of_one_model_at_a_time(monkeypatch, block):
    x, labels, offsets = draw_lists(2)
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr("torchrank.functional.ragged.CACHED_SCORES", block)
    for measure, options in ((ndcg, {"k": 3}), (average_precision, {})):
        found = measure_models(weight, x, labels, offsets, measure, **options)
        alone = [measure(x @ w, labels, offsets, **options) for w in weight]
        torch.testing.assert_close(found, torch.stack(alone, 1), equal_nan=True)


# ---- the clairvoyant choice ------------------------------------------------------------------------------------------


def draw_values(seed, queries=30, models=5, levels=4):
    """Values with many ties and a query without any; similarities with ties."""
    random = np.random.default_rng(seed)
    values = random.integers(levels, size=(queries, models)) / 3
    values[7] = np.nan
    return values, random.integers(6, size=(queries, models)) / 5


@pytest.mark.parametrize("seed", range(3))
def test_by_loops(seed):
    values, similarity = draw_values(seed)
    found = clairvoyant(values, similarity)
    assert found.known.tolist() == [place != 7 for place in range(30)]
    for place, query in enumerate(np.flatnonzero(found.known)):
        order = sorted(range(5), key=lambda model: (-similarity[query, model], model))
        best = max(values[query])
        assert found.best[place] == best and found.similar[place] == values[query, order[0]]
        assert found.rank[place] == 1 + next(i for i, model in enumerate(order) if values[query, model] == best)
        assert found.average[place] == pytest.approx(sum(values[query]) / 5)


def test_chance_is_the_mean_over_all_orders():
    values, similarity = draw_values(3, queries=12, models=4)
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
    values, similarity = draw_values(4)
    found, reference = clairvoyant(values, similarity), np.where(np.arange(30) == 7, np.nan, 0.5)
    sheet = clairvoyant_sheet({"5": found, "6": found}, {"5": found}, measure="map", reference=reference)
    gain = found.similar - 0.5
    expected = f"{gain.mean():+.4f} ±{gain.std(ddof=1) / np.sqrt(29):.4f}"
    assert [row[3] for row in sheet.rows] == [expected, expected]
    assert sheet.rows[0][4] == sheet.rows[0][5] == f"{found.best.mean():.4f}" != sheet.rows[1][5]
    assert "0.5000" in sheet.below[-1] and "placebo" in markdown(sheet)
    with pytest.raises(ValueError, match=r"reference must have the shape \(30,\) of the test queries, got \(29,\)"):
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
    with pytest.raises(ValueError, match=r"pca must be \(1, 2\), a row for each world"):
        figure1_sheet([[0.9, 0.4]], distances)


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("matplotlib")
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


@pytest.mark.usefixtures("matplotlib")
def test_ranks():
    values, similarity = np.array([[0.1, 0.5], [0.9, 0.2], [0.3, 0.3]]), np.array([[1.0, 0.0]] * 3)
    axes = plot_ranks({"map": clairvoyant(values, similarity)}, 2).axes[0]
    drawn, chance = (line.get_ydata() for line in axes.lines)
    np.testing.assert_allclose(drawn, [2 / 3, 1])
    np.testing.assert_allclose(chance, [(0.5 + 0.5 + 1) / 3, 1])


@pytest.mark.usefixtures("matplotlib")
def test_numbers():
    lines = {"local": [0.5, 0.4], "placebo": [0.5, 0.3], "clairvoyant": [0.5, 0.6]}
    axes = plot_numbers([1, 2], lines, errors={"local": [0.1, 0.1]}, levels={"one": 0.5}, ylabel="map").axes[0]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", ":", "-."]
    assert [list(line.get_ydata()) for line in axes.lines[:3]] == [*lines.values()]
    assert len(axes.collections) == 1 and axes.get_xlabel() == "clusters" and axes.get_ylabel() == "map"

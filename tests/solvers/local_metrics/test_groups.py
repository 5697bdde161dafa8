"""Groups of similar queries: sums over pairs, centres, shrinkage, metrics and far anchors against plain numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.reference import groups as plain
from tests.reference.groups import plain_lists
from torchrank import RankingSet
from torchrank.data.training import TrainingLists
from torchrank.solvers.local_metrics.drawn_metrics import MetricOptions
from torchrank.solvers.local_metrics.groups import (
    averages,
    canonical_order,
    find_centres,
    nearest_centre,
    points_of,
    query_points,
    shares_of,
    shrink,
    solve_factors,
    solve_spectra,
    sum_groups,
    within,
)
from torchrank.solvers.local_metrics.scatter import PairSums

WIDTH = 4
OPTIONS = MetricOptions(ridge=0.1)


def lists(seed=0, num_lists=17, far=0.0, dead=()) -> RankingSet:
    """Lists of 0..10 documents: empty ones, of one document, of one label, with one high document; grades 0..4."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(2, 11, num_lists)
    lengths[:3] = 0, 1, 5
    lengths[-1] = 0
    labels = [draw.integers(0, 5, n) for n in lengths]
    labels[2][:] = 2  # no high document
    labels[3][:] = 0
    labels[3][0] = 1  # one high document
    labels[4][:] = 1
    labels[4][-1] = 3  # the low label is not 0
    x = draw.normal(size=(lengths.sum(), WIDTH)) @ draw.normal(size=(WIDTH, WIDTH)) + far
    x[:, list(dead)] = 7.0
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
    return RankingSet(torch.from_numpy(x), torch.from_numpy(np.concatenate(labels)).float(), offsets)


def divided(ranking_set, cells, count) -> list[list[plain.List]]:
    return [[each for each, cell in zip(plain_lists(ranking_set), cells, strict=True) if cell == g]
            for g in range(count)]  # fmt: skip


def divisions(num_lists, seed=3):
    """One group, three groups of which one has no list, and each list by itself."""
    cells = [torch.zeros(num_lists, dtype=torch.int64), torch.arange(num_lists)]
    cells.insert(1, torch.from_numpy(np.random.default_rng(seed).choice([0, 2], num_lists)))
    return cells, [1, 3, num_lists]


def summed(ranking_set, cells, count, high="half") -> PairSums:
    return sum_groups(TrainingLists(ranking_set), [torch.as_tensor(cells)], [count], high)[0]


def tensor(values) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("high", ["half", "max", "positive"])
@pytest.mark.parametrize("budget", [1, 13, 20_000])
def test_sums_of_several_divisions_are_those_of_the_loops_over_all_pairs(high, budget):
    train = lists()
    cells, counts = divisions(len(train))
    found = sum_groups(TrainingLists(train, budget=budget), cells, counts, high)
    assert len(found) == 3
    for sums, own, count in zip(found, cells, counts, strict=True):
        assert all(part.dtype == torch.float64 and len(part) == count for part in sums)
        for g, some in enumerate(divided(train, own.tolist(), count)):
            right = plain.sums(some, WIDTH, high)
            assert sums.pairs[g].tolist() == list(right.pairs)
            assert sums.lists[g] == right.lists
            for name in ("similar", "dissimilar", "means"):
                np.testing.assert_allclose(getattr(sums, name)[g], getattr(right, name), rtol=1e-11, atol=1e-11)


def test_sums_do_not_lose_digits_far_from_the_origin():
    near, there = lists(1), lists(1, far=2.0**20)
    one, other = (summed(each, torch.zeros(len(each), dtype=torch.int64), 1) for each in (near, there))
    for name in ("similar", "dissimilar"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-7, atol=1e-7)


def test_sums_over_a_shared_corpus_are_those_of_rows_of_their_own():
    flat = lists(2)
    order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
    shared = RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())
    cells = divisions(len(flat))[0][1]
    for one, other in zip(summed(flat, cells, 3), summed(shared, cells, 3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_groups_add_up_to_all_lists_and_without_some_are_the_others():
    train = lists(4)
    cells = torch.arange(len(train)) % 3
    parts, whole = summed(train, cells, 3), summed(train, cells * 0, 1)
    for one, other in zip(parts.added(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    first = PairSums(*(part[:1] for part in parts))
    others = plain.sums([each for q, each in enumerate(plain_lists(train)) if q % 3], WIDTH)
    for part, right in zip(whole.without(first), others, strict=True):
        np.testing.assert_allclose(part[0], right, rtol=1e-10, atol=1e-10)


def test_averages_are_sums_over_numbers_and_0_where_there_are_none():
    train = lists(5)
    cells = divisions(len(train))[0][1]
    found = averages(summed(train, cells, 3))
    for g, some in enumerate(divided(train, cells.tolist(), 3)):
        for part, right in zip(found, plain.averages(plain.sums(some, WIDTH)), strict=True):
            np.testing.assert_allclose(part[g], right, rtol=1e-10, atol=1e-11)
    assert all((part[1] == 0).all() for part in found)


# ---- points and centres ----------------------------------------------------------------------------------------------


def test_a_point_is_the_query_vector_or_else_the_mean_of_the_documents():
    train = lists(6)
    right = np.array([rows.mean(0) for rows, _ in plain_lists(train) if len(rows)])
    full = torch.from_numpy(train.lengths > 0)
    for budget in (1, 20_000):
        np.testing.assert_allclose(points_of(TrainingLists(train, budget=budget))[full], right, rtol=1e-12, atol=1e-12)
    queries = train.x[: len(train)].float()
    given = RankingSet(train.x, train.labels, train.offsets, index=torch.arange(len(train.x)), queries=queries)
    assert query_points(given[:]).equal(queries.double())
    assert points_of(TrainingLists(given, budget=9)).equal(queries.double())


def test_points_in_canonical_order_do_not_depend_on_the_order_they_are_given_in():
    points = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (30, 3)).astype(float))
    ordered = points[canonical_order(points)]
    assert ordered.tolist() == sorted(points.tolist())
    for seed in range(3):
        mixed = points[torch.randperm(30, generator=torch.Generator().manual_seed(seed))]
        assert mixed[canonical_order(mixed)].equal(ordered)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [2, 3])
def test_the_spread_of_a_few_points_in_clumps_is_the_least_of_all_divisions(seed, count):
    draw = np.random.default_rng(seed)
    points = 2 * draw.normal(size=(count, 2))[np.arange(8) % count] + 0.7 * draw.normal(size=(8, 2))
    found = find_centres(tensor(points), count).numpy()
    assert found.shape == (count, 2)
    assert plain.spread(points, found) <= plain.least_spread(points, count) * (1 + 1e-12)


def test_the_spread_of_points_without_clumps_is_near_the_least():
    ratios = []
    for points in np.random.default_rng(0).normal(size=(20, 8, 2)):
        ratios.append(plain.spread(points, find_centres(tensor(points), 2).numpy()) / plain.least_spread(points, 2))
    assert np.mean(ratios) <= 1.02
    assert np.median(ratios) <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_spread_of_clusters_is_not_larger_than_the_best_of_scipy(seed):
    draw = np.random.default_rng(seed)
    middles = 4 * draw.normal(size=(5, 3))
    points = middles[draw.integers(0, 5, 120)] + draw.normal(size=(120, 3))
    found = find_centres(tensor(points), 5, seed=seed).numpy()
    assert plain.spread(points, found) <= plain.spread(points, plain.kmeans(points, 5)) * 1.01
    cells = np.array([plain.squared(point, found).argmin() for point in points])  # and it is a fixed point of Lloyd's
    np.testing.assert_allclose(found, [points[cells == g].mean(0) for g in range(5)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_centres_do_not_depend_on_the_order_of_the_points_to_the_bit(count):
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(60, 4)))
    first = find_centres(points, count)
    assert count > 1 or first.allclose(points.mean(0, keepdim=True), rtol=1e-12, atol=1e-12)
    for seed in range(4):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
        assert find_centres(points[order], count).equal(first)


def test_there_are_no_more_centres_than_different_points():
    points = torch.tensor([[0.0, 1.0], [2.0, 2.0], [0.0, 1.0], [0.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    for count in (2, 3, 9):
        assert np.array(sorted(find_centres(points, count).tolist())) == pytest.approx(np.array([[0, 1], [2, 2]]))
    assert find_centres(points[:1], 4).tolist() == [[0.0, 1.0]]
    assert find_centres(points[[0, 2]], 2).tolist() == [[0.0, 1.0]]


def test_a_point_goes_to_the_nearest_centre_and_of_equals_to_the_first():
    draw = np.random.default_rng(2)
    points, centres = draw.normal(size=(50, 3)), draw.normal(size=(6, 3))
    right = [plain.squared(point, centres).argmin() for point in points]
    assert nearest_centre(tensor(points), tensor(centres)).tolist() == right
    twice = np.concatenate([centres, centres])
    assert nearest_centre(tensor(points), tensor(twice)).tolist() == right
    far = nearest_centre(tensor(points + 2.0**20), tensor(centres + 2.0**20))  # where |p|^2 - 2 p'c + |c|^2 cancels
    assert far.tolist() == right


@pytest.mark.parametrize("width", [1e-3, 0.3, 1.0, 50.0])
def test_shares_are_the_posterior_of_a_mixture_of_gaussians(width):
    draw = np.random.default_rng(3)
    points, centres = draw.normal(size=(20, 3)), draw.normal(size=(4, 3))
    found = shares_of(tensor(points), tensor(centres), torch.tensor(width, dtype=torch.float64)).numpy()
    right = [plain.posterior(point, centres, width) for point in points]
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


def test_shares_of_width_0_are_those_of_the_nearest_centre_and_far_points_have_shares_too():
    points, centres = (tensor(np.random.default_rng(n).normal(size=(n, 3))) for n in (20, 4))
    found = shares_of(points, centres, torch.tensor(0.0, dtype=torch.float64))
    assert found.equal(torch.eye(4, dtype=found.dtype)[nearest_centre(points, centres)])
    far = shares_of(1e6 * points, centres, torch.tensor(1e-4, dtype=torch.float64))
    torch.testing.assert_close(far.sum(1), torch.ones(20, dtype=far.dtype))


def test_the_width_is_the_mean_squared_distance_per_feature():
    draw = np.random.default_rng(4)
    points, centres = draw.normal(size=(30, 3)), draw.normal(size=(4, 3))
    assert float(within(tensor(points), tensor(centres))) == pytest.approx(
        plain.spread(points, centres) / 90, rel=1e-12
    )
    assert float(within(tensor(centres), tensor(centres))) == 0


# ---- shrinkage -------------------------------------------------------------------------------------------------------


def sums_and_whole(train, cells, count):
    sums = summed(train, cells, count)
    return sums, averages(sums.added())


@pytest.mark.parametrize("alpha", [0.0, 0.5, 10.0, 1e9, math.inf])
def test_averages_are_shrunk_by_n_over_n_plus_alpha(alpha):
    train = lists(7)
    cells = divisions(len(train))[0][1]
    sums, whole = sums_and_whole(train, cells, 3)
    found = shrink(sums, whole, alpha)
    right_whole = plain.averages(plain.sums(plain_lists(train), WIDTH))
    for g, some in enumerate(divided(train, cells.tolist(), 3)):
        right = plain.shrunk(plain.sums(some, WIDTH), right_whole, alpha)
        for part, expected in zip(found, right, strict=True):
            np.testing.assert_allclose(part[g], expected, rtol=1e-10, atol=1e-11)


def test_alpha_0_is_the_group_itself_and_alpha_inf_all_lists_to_the_bit():
    train = lists(8)
    sums, whole = sums_and_whole(train, torch.arange(len(train)) % 2, 2)
    for part, own in zip(shrink(sums, whole, 0.0), averages(sums), strict=True):
        assert part.equal(own)
    for part, all_ in zip(shrink(sums, whole, math.inf), whole, strict=True):
        assert part.equal(all_.expand_as(part))


@pytest.mark.parametrize("alpha", [0.0, 3.0, math.inf])
def test_a_group_without_pairs_of_a_kind_takes_the_average_of_all_lists_to_the_bit(alpha):
    train = lists(9)
    alone = {3: 0, 2: 1}  # list 3 has one high document, list 2 none
    cells = torch.tensor([alone.get(q, 2) for q in range(len(train))])
    sums, whole = sums_and_whole(train, cells, 4)  # group 3 has no list at all
    found = shrink(sums, whole, alpha)
    for g in (1, 3):
        assert all(part[g].equal(all_[0]) for part, all_ in zip(found, whole, strict=True))
    assert found.similar[0].equal(whole.similar[0])
    right_whole = plain.averages(plain.sums(plain_lists(train), WIDTH))
    right = plain.shrunk(plain.sums(divided(train, cells.tolist(), 4)[0], WIDTH), right_whole, alpha)
    for part, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(part[0], expected, rtol=1e-10, atol=1e-11)


# ---- metrics ---------------------------------------------------------------------------------------------------------

TS = [0.0, 0.25, 0.5, 1.0]


def found_averages(dead=()):
    train = lists(10, num_lists=24, dead=dead)
    sums, whole = sums_and_whole(train, torch.arange(len(train)) % 3, 3)
    return shrink(sums, whole, 4.0)


@pytest.mark.parametrize("dead", [(), (1,), (0, 3)])
@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_factors_and_directions_are_those_of_the_geometric_mean(dead, ridge):
    found, live = found_averages(dead), [d for d in range(WIDTH) if d not in dead]
    spectra = solve_spectra(found, replace(OPTIONS, ridge=ridge))
    directions = spectra.directions(found.delta, TS)
    assert directions.shape == (3, len(TS), WIDTH)
    for place, t in enumerate(TS):
        factors = solve_factors(found, replace(OPTIONS, ridge=ridge, t=t))
        assert factors.shape == (3, WIDTH, len(live))
        for g in range(3):
            own = plain.Averages(*(part[g].numpy() for part in found))
            right, delta = plain.metric(own, t, ridge, np.array(live)), own.delta
            actual = (factors[g] @ factors[g].T).numpy()
            np.testing.assert_allclose(actual, right, rtol=1e-8, atol=1e-10 * np.abs(right).max())
            slope = right @ delta / math.sqrt(delta @ right @ delta)
            np.testing.assert_allclose(directions[g, place], slope, rtol=1e-8, atol=1e-10 * np.abs(slope).max())
            assert (directions[g, place, list(dead)] == 0).all()

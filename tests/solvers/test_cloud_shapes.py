"""Shapes of clouds, compared under one name, against the formulas, list by list."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.cluster import hierarchy

from torchrank.solvers.cloud_clustering import (
    DIRECTIONS,
    MOMENTS,
    SHAPES,
    cluster,
    compare,
    make_shapes,
    most_similar,
)


def draw(lengths, seed):
    random = np.random.default_rng(seed)
    rows = [
        random.standard_normal((n, 5)) @ random.standard_normal((5, 5)) + random.standard_normal(5) for n in lengths
    ]
    return torch.tensor(np.concatenate(rows)), torch.tensor([0, *np.cumsum(lengths)])


def gaussian(rows):
    spread = np.cov(rows.T, bias=True)
    return rows.mean(0), 0.9 * spread + (0.1 * np.trace(spread) / 5 + 1e-6) * np.eye(5)


def jeffreys(x, y):
    (m, s), (n, t) = gaussian(x), gaussian(y)
    one = np.trace(np.linalg.inv(t) @ s) + (m - n) @ np.linalg.inv(t) @ (m - n)
    other = np.trace(np.linalg.inv(s) @ t) + (m - n) @ np.linalg.inv(s) @ (m - n)
    return (one + other - 10) / 4


def bhattacharyya(x, y):
    """The logarithm of the integral of sqrt(p q), by its closed form with determinants."""
    (m, s), (n, t) = gaussian(x), gaussian(y)
    middle = (s + t) / 2
    ratio = np.linalg.det(middle) / np.sqrt(np.linalg.det(s) * np.linalg.det(t))
    return (m - n) @ np.linalg.inv(middle) @ (m - n) / 8 + np.log(ratio) / 2


PLAIN = {
    "mean": lambda x, y: np.linalg.norm(x.mean(0) - y.mean(0)),
    "variance": lambda x, y: np.linalg.norm(x.var(0) - y.var(0)),
    "skew": lambda x, y: np.linalg.norm(stats.skew(x) - stats.skew(y)),
    "jeffreys": jeffreys,
    "bhattacharyya": bhattacharyya,
}


def shapes(lengths, seed, kind):
    return make_shapes(*draw(lengths, seed), kind, 3)[0]


@pytest.mark.parametrize("kind", PLAIN)
def test_by_formula(kind):
    (x, offsets), (y, bounds) = draw([9, 30, 6], 0), draw([8, 25], 1)
    found = compare(shapes([9, 30, 6], 0, kind), shapes([8, 25], 1, kind), kind)
    first, second = (np.split(rows.numpy(), ends[1:-1]) for rows, ends in ((x, offsets), (y, bounds)))
    np.testing.assert_allclose(-found, [[PLAIN[kind](a, b) for b in second] for a in first], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_most_similar_one_is_the_largest(kind):
    """Lists without documents have no shape; those of one document have a mean, and no direction."""
    a, b = shapes([9, 0, 6, 1], 2, kind), shapes([0, 8, 25, 9], 3, kind)
    similarity, place = most_similar(a, b, kind)
    every = compare(a, b, kind)
    assert place[1] == -1 and (place[3] == -1) == (kind not in (*MOMENTS, "jeffreys", "bhattacharyya"))
    for query in (0, 2):
        assert place[query] == 1 + every[query, 1:].argmax()
        assert similarity[query] == pytest.approx(float(every[query, 1:].max()), rel=1e-9)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_most_similar_one_in_pieces(kind):
    """Also of no list, and with nothing to be compared with."""
    a, b = shapes([9, 7, 6, 0, 12, 8, 5], 6, kind), shapes([8, 25, 9, 11], 7, kind)
    whole = most_similar(a, b, kind)
    for found, expected in zip(most_similar(a, b, kind, at_once=9), whole, strict=True):
        torch.testing.assert_close(found, expected)
    assert [part.tolist() for part in most_similar(a.of(slice(0, 0)), b, kind)] == [[], []]
    assert most_similar(a, shapes([0, 0], 7, kind), kind)[1].tolist() == [-1] * 7


@pytest.mark.parametrize("kind", SHAPES)
def test_lists_without_a_shape_have_no_cluster(kind):
    found = cluster(shapes([9, 0, 6, 30, 8], 8, kind), [1, 2, 4], kind, min_size=1, seed=0).labels
    assert found[:, 1].tolist() == [0, -1, -1] and found[2, [0, 2, 3, 4]].tolist() == [0, 1, 2, 3]
    nothing = cluster(shapes([0, 0], 8, kind), [1, 2], kind, min_size=1, seed=0).labels
    assert nothing.tolist() == [[0, 0], [-1, -1]]


@pytest.mark.parametrize("kind", SHAPES)
def test_clusters_are_those_of_the_distances(kind):
    """scipy's, on all pairs; every number of clusters from one tree."""
    every = shapes([9, 12, 6, 30, 8, 7, 15], 4, kind)
    found = cluster(every, [1, 2, 4], kind, min_size=1, seed=0)
    distances = -compare(every, every, kind).numpy()
    tree = hierarchy.linkage((distances - distances.min())[np.triu_indices(7, 1)], "complete")
    for labels, number in zip(found.labels, (1, 2, 4), strict=True):
        expected = hierarchy.fcluster(tree, number, "maxclust")
        assert len(set(zip(labels.tolist(), expected.tolist(), strict=True))) == len(set(labels.tolist())) == number


@pytest.mark.parametrize("kind", sorted({*SHAPES} - {*DIRECTIONS}))
def test_above_a_number_of_lists_a_sample_is_clustered(kind):
    """Each other list is where its most similar drawn one is; those without documents stay outside."""
    lengths = [9, 12, 0, 30, 8, 7, 15, 20]
    every, (x, offsets) = shapes(lengths, 4, kind), draw(lengths, 4)
    found = cluster(every, [3, 1], kind, min_size=1, seed=3, max_exact=6, sample=4)
    usable = [0, 1, 3, 4, 5, 6, 7]
    drawn = [usable[i] for i in torch.randperm(7, generator=torch.Generator().manual_seed(3))[:4].sort().values]
    part = cluster(every.of(torch.tensor(drawn)), [3], kind, min_size=1, seed=0).labels[0].tolist()
    rows = np.split(x.numpy(), offsets[1:-1])
    nearest = {q: min(range(4), key=lambda i: PLAIN[kind](rows[q], rows[drawn[i]])) for q in usable}
    pairs = {(int(found.labels[0, q]), part[nearest[q]]) for q in usable}
    assert found.sampled and len(pairs) == 3 and found.labels[0, 2] == -1 and found.labels[1].tolist() == [0] * 8


@pytest.mark.parametrize("kind", SHAPES)
def test_total_variance(kind):
    x, offsets = draw([9, 30, 1], 5)
    total = make_shapes(x, offsets, kind, 2)[1]
    np.testing.assert_allclose(total, [rows.var(0).sum() for rows in np.split(x.numpy(), offsets[1:-1])], atol=1e-12)

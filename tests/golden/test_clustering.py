"""Complete link against the definition: sets that merge, two at the smallest largest distance, in plain loops.

Also scipy's own flat clusters of data without ties, and the rule for small clusters and for samples typed again
(Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 2).
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from torchrank.functional import cloud_pca, cloud_similarity
from torchrank.solvers.clouds import shapes
from torchrank.solvers.clouds.clustering import cluster_similar, cut, link, merge_small

# --- plain forms ---


def similarities(seed, lists=13, symmetric=False):
    found = np.random.default_rng(seed).random((lists, lists))
    return (found + found.T) / 2 if symmetric else found


def plain_distances(similarity):
    found = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(found, 0)
    return found


def farthest(distances, one, other):
    return max(distances[i, j] for i in one for j in other)


def plain_levels(distances):
    """Clusters as sets of lists: from all lists alone to one cluster, and the distance of each merge."""
    clusters = [{number} for number in range(len(distances))]
    levels, heights = [[set(one) for one in clusters]], []
    while len(clusters) > 1:
        pairs = itertools.combinations(range(len(clusters)), 2)
        i, j = min(pairs, key=lambda pair: farthest(distances, clusters[pair[0]], clusters[pair[1]]))
        heights.append(farthest(distances, clusters[i], clusters[j]))
        clusters[i] |= clusters.pop(j)
        levels.append([set(one) for one in clusters])
    return levels, heights


def as_labels(clusters, lists):
    """Numbered by the smallest member."""
    labels = [-1] * lists
    for number, members in enumerate(sorted(clusters, key=min)):
        for member in members:
            labels[member] = number
    return labels


def as_sets(labels):
    return [{i for i, found in enumerate(labels) if found == label} for label in sorted(set(labels) - {-1})]


def plain_merge(clusters, distances, min_size, counts=None):
    """The smallest cluster (of equal ones that with the smallest member) joins the nearest, until all are large."""
    counts = [1] * len(distances) if counts is None else counts

    def size(members):
        return sum(counts[i] for i in members)

    clusters = sorted((set(one) for one in clusters), key=min)
    while len(clusters) > 1 and min(map(size, clusters)) < min_size:
        small = min(clusters, key=size)
        others = [one for one in clusters if one is not small]
        nearest = min(others, key=lambda one: farthest(distances, small, one))
        nearest |= small
        clusters = sorted(others, key=min)
    return clusters


# --- values ---


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_all_levels_of_the_dendrogram(seed, symmetric):
    similarity = similarities(seed, symmetric=symmetric)
    distances = plain_distances(similarity)
    levels, heights = plain_levels(distances)
    tree = link(torch.tensor(similarity))
    np.testing.assert_allclose(tree.heights, heights, rtol=0, atol=1e-12)
    for clusters in range(1, 14):
        assert cut(tree, clusters).tolist() == as_labels(levels[13 - clusters], 13)


@pytest.mark.parametrize("lists", [40, 600])  # the second in more than one block
def test_scipys_flat_clusters(lists):
    similarity = similarities(4, lists, symmetric=True)
    distances = plain_distances(similarity)
    peer = linkage(squareform(distances, checks=False), "complete")
    tree = link(torch.tensor(similarity))
    np.testing.assert_allclose(tree.heights, peer[:, 2], rtol=0, atol=1e-12)
    for clusters in (1, 2, 5, 31, lists):
        expected = as_sets(fcluster(peer, clusters, "maxclust").tolist())
        assert cut(tree, clusters).tolist() == as_labels(expected, lists)


def test_float32_is_summed_in_float64():
    similarity = torch.tensor(similarities(5)).float()
    expected = link(similarity.double())
    for found, wanted in zip(link(similarity), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("min_size", [1, 2, 3, 5, 13, 40])
@pytest.mark.parametrize("seed", range(3))
def test_small_clusters_join_the_nearest(seed, min_size):
    similarity = similarities(seed)
    labels = np.random.default_rng(seed).integers(0, 7, 13)
    counts = np.random.default_rng(seed).integers(1, 5, 13)
    for weights in (None, counts):
        found = merge_small(
            torch.tensor(labels),
            torch.tensor(similarity),
            min_size,
            counts=None if weights is None else torch.tensor(weights),
        )
        expected = plain_merge(as_sets(labels.tolist()), plain_distances(similarity), min_size, weights)
        assert found.tolist() == as_labels(expected, 13)


def test_equal_distances_join_the_first():
    """All distances are equal: cluster 1 is the smallest one, and joins cluster 0; then 2 is, and joins 0."""
    found = merge_small(torch.tensor([0, 0, 1, 2, 2, 3, 3, 3]), torch.full((8, 8), 0.5), 3)
    assert found.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("min_size", [1, 3])
def test_clusters_by_any_similarity(min_size):
    """Minus a distance; lists 2 and 7 take no part, but for one cluster."""
    usable = np.array([q not in (2, 7) for q in range(13)])
    points = np.random.default_rng(8).normal(size=(11, 3))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    levels, _ = plain_levels(distances)
    found = cluster_similar(torch.tensor(-distances), torch.tensor(usable), [1, 2, 5], min_size=min_size)
    assert found.labels[0].tolist() == [0] * 13 and not found.sampled
    for clusters, labels in zip([2, 5], found.labels[1:].tolist(), strict=True):
        sets = [
            {int(np.flatnonzero(usable)[i]) for i in one}
            for one in plain_merge(levels[11 - clusters], distances, min_size)
        ]
        assert labels == as_labels(sets, 13)


# --- clouds ---


def clouds(seed, lengths=(9, 1, 12, 3, 40, 2, 17, 8, 1, 25, 7, 30, 6)):
    """Directions, ranks and variances of clouds with their own axes; those of one document have rank 0."""
    draw = np.random.default_rng(seed)
    parts = []
    for length in lengths:
        axes = np.linalg.qr(draw.normal(size=(6, 6)))[0]
        parts.append(draw.normal(size=(length, 6)) * 2.0 ** -np.arange(6) @ axes)
    x, offsets = torch.tensor(np.concatenate(parts)), torch.tensor([0, *np.cumsum(lengths)])
    u, eigenvalues, _, ranks = cloud_pca(x, offsets, 3)
    return u, ranks, eigenvalues


def full_similarity(u, ranks, eigenvalues, kind):
    return cloud_similarity(
        u, ranks, u, ranks, kind=kind, eigenvalues=eigenvalues, eigenvalues_v=eigenvalues
    ).numpy()  # fmt: skip


@pytest.mark.parametrize("min_size", [1, 3])
@pytest.mark.parametrize("kind", ["ordered", "squared", "subspace", "weighted"])
def test_clusters_of_clouds(kind, min_size):
    u, ranks, eigenvalues = clouds(6)
    usable = [number for number, rank in enumerate(ranks.tolist()) if rank]
    distances = plain_distances(full_similarity(u, ranks, eigenvalues, kind))
    levels, _ = plain_levels(distances[np.ix_(usable, usable)])
    found = shapes.cluster(shapes.Shapes(u, eigenvalues, ranks), [2, 4, 11], kind, min_size=min_size, seed=0)
    assert not found.sampled
    for clusters, labels in zip([2, 4, 11], found.labels.tolist(), strict=True):
        sets = [{usable[i] for i in one} for one in levels[len(usable) - clusters]]
        assert labels == as_labels(plain_merge(sets, distances, min_size), len(u))


@pytest.mark.parametrize("min_size", [1, 4])
@pytest.mark.parametrize("kind", ["ordered", "weighted"])
def test_a_sample_leads_the_others(kind, min_size, monkeypatch):
    """Drawn: places 1, 4, 5, 8, 9 of the lists with a shape. Sizes are those of all lists, distances of the drawn."""
    u, ranks, eigenvalues = clouds(7)
    usable = np.flatnonzero(ranks.numpy())
    drawn = usable[[1, 4, 5, 8, 9]]
    monkeypatch.setattr(shapes, "draw_lists", lambda lists, sample, seed: torch.tensor([1, 4, 5, 8, 9]))
    monkeypatch.setattr(shapes, "MAX_EXACT", 10)
    similarity = full_similarity(u, ranks, eigenvalues, kind)
    leader = [list(drawn).index(q) if q in drawn else int(np.argmax(similarity[q, drawn])) for q in usable]
    distances = plain_distances(similarity[np.ix_(drawn, drawn)])
    levels, _ = plain_levels(distances)
    found = shapes.cluster(shapes.Shapes(u, eigenvalues, ranks), [3, 2], kind, min_size=min_size, seed=0)
    assert found.sampled
    for clusters, labels in zip([3, 2], found.labels.tolist(), strict=True):
        merged = plain_merge(levels[5 - clusters], distances, min_size, np.bincount(leader, minlength=5))
        sets = [{int(q) for q, place in zip(usable, leader, strict=True) if place in one} for one in merged]
        assert labels == as_labels(sets, len(u))

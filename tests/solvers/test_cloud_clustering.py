"""Complete link against the definition: sets that merge, two at the smallest largest distance, in plain loops.

Also scipy's own flat clusters of data without ties, and the rule for small clusters and for samples typed again
(Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 2). Then the edges: ties, few lists, clouds without a shape,
samples, and what is refused.
"""

import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from torchrank import DataWarning
from torchrank.functional import cloud_pca, cloud_similarity
from torchrank.functional.ragged import subsample
from torchrank.solvers.cloud_clustering import Shapes, cluster, cluster_similar, cut, link, merge_small

# ---- plain forms -----------------------------------------------------------------------------------------------------


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


# ---- against the plain forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_all_levels_of_the_dendrogram(seed, symmetric):
    similarity = similarities(seed, symmetric=symmetric)
    distances = plain_distances(similarity)
    levels, heights = plain_levels(distances)
    tree = link(torch.tensor(similarity))
    np.testing.assert_allclose(tree[:, 2], heights, rtol=0, atol=1e-12)
    for clusters in range(1, 14):
        assert cut(tree, clusters).tolist() == as_labels(levels[13 - clusters], 13)


@pytest.mark.parametrize("lists", [40, 600])  # the second in more than one block
def test_scipys_flat_clusters(lists):
    similarity = similarities(4, lists, symmetric=True)
    distances = plain_distances(similarity)
    peer = linkage(squareform(distances, checks=False), "complete")
    tree = link(torch.tensor(similarity))
    np.testing.assert_allclose(tree[:, 2], peer[:, 2], rtol=0, atol=1e-12)
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


# ---- clouds ----------------------------------------------------------------------------------------------------------


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
    found = cloud_similarity(u, ranks, u, ranks, kind=kind, eigenvalues=eigenvalues, eigenvalues_v=eigenvalues)
    return found.numpy()


@pytest.mark.parametrize("min_size", [1, 3])
@pytest.mark.parametrize("kind", ["ordered", "squared", "subspace", "weighted"])
def test_clusters_of_clouds(kind, min_size):
    u, ranks, eigenvalues = clouds(6)
    usable = [number for number, rank in enumerate(ranks.tolist()) if rank]
    distances = plain_distances(full_similarity(u, ranks, eigenvalues, kind))
    levels, _ = plain_levels(distances[np.ix_(usable, usable)])
    found = cluster(Shapes(u, eigenvalues, ranks), [2, 4, 11], kind, min_size=min_size, seed=0)
    assert not found.sampled
    for clusters, labels in zip([2, 4, 11], found.labels.tolist(), strict=True):
        sets = [{usable[i] for i in one} for one in levels[len(usable) - clusters]]
        assert labels == as_labels(plain_merge(sets, distances, min_size), len(u))


@pytest.mark.parametrize("min_size", [1, 4])
@pytest.mark.parametrize("kind", ["ordered", "weighted"])
def test_a_sample_leads_the_others(kind, min_size):
    """Sizes are those of all lists, distances those of the five drawn ones."""
    u, ranks, eigenvalues = clouds(7)
    usable = np.flatnonzero(ranks.numpy())
    drawn = usable[subsample(len(usable), 5, 3).numpy()]
    similarity = full_similarity(u, ranks, eigenvalues, kind)
    leader = [list(drawn).index(q) if q in drawn else int(np.argmax(similarity[q, drawn])) for q in usable]
    distances = plain_distances(similarity[np.ix_(drawn, drawn)])
    levels, _ = plain_levels(distances)
    limits = {"max_exact": 10, "sample": 5}
    found = cluster(Shapes(u, eigenvalues, ranks), [3, 2], kind, min_size=min_size, seed=3, **limits)
    assert found.sampled
    for clusters, labels in zip([3, 2], found.labels.tolist(), strict=True):
        merged = plain_merge(levels[5 - clusters], distances, min_size, np.bincount(leader, minlength=5))
        sets = [{int(q) for q, place in zip(usable, leader, strict=True) if place in one} for one in merged]
        assert labels == as_labels(sets, len(u))


# ---- edges -----------------------------------------------------------------------------------------------------------


def cluster_clouds(u, ranks, clusters, *, kind="ordered", min_size=1, seed=0, **limits):
    spread = torch.ones(u.shape[:2], dtype=u.dtype)
    return cluster(Shapes(u, spread, ranks), clusters, kind, min_size=min_size, seed=seed, **limits)


def groups(sizes, features=6, spread=0.01, seed=0):
    """Directions (Q, 2, D) around those of each group in turn, their ranks, and the groups."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64))[0]
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    group = group[torch.randperm(len(group), generator=generator)]
    u = torch.stack([axes[group], axes[(group + 3) % features]], 1)
    u = u + spread * torch.randn(u.shape, generator=generator, dtype=torch.float64)
    return u / u.norm(dim=2, keepdim=True), torch.full((len(u),), 2), group


def same_partition(one, other):
    return torch.equal(one[:, None] == one, other[:, None] == other)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("clusters", [1, 2, 5, 9])
def test_exactly_as_many_clusters_as_asked_for_when_all_distances_are_equal(value, clusters):
    labels = cut(link(torch.full((9, 9), value)), clusters)
    assert labels.unique().tolist() == list(range(clusters)) and labels[0] == 0


def test_labels_follow_the_first_list():
    labels = cut(link(torch.rand(50, 50, generator=torch.Generator().manual_seed(0))), 12)
    firsts = [labels.tolist().index(label) for label in range(12)]
    assert firsts == sorted(firsts)


def test_fewer_lists_than_clusters():
    tree = link(torch.eye(3))
    with pytest.warns(DataWarning, match="5 clusters were requested of 3 lists"):
        assert cut(tree, 5).tolist() == [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cut(tree, 3).tolist() == [0, 1, 2]


def test_one_list():
    tree = link(torch.ones(1, 1))
    assert tree.shape == (0, 4) and cut(tree, 1).tolist() == [0]
    assert merge_small(torch.tensor([0]), torch.ones(1, 1), 10).tolist() == [0]


def test_a_long_chain():
    """Gaps double, so every merge adds one list: the tree is as deep as it can be."""
    place = 2.0 ** torch.arange(50, dtype=torch.float64)
    labels = cut(link(1 - (place[:, None] - place).abs()), 2)
    assert labels.tolist() == [0] * 49 + [1]


@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (4,)])
def test_similarities_are_square(shape):
    with pytest.raises(ValueError, match=r"similarity must be \(Q, Q\) of at least one list, got"):
        link(torch.zeros(shape))


def test_the_input_stays_as_it_is():
    labels, similarity = torch.tensor([3, 0, 1, 1]), torch.rand(4, 4)
    before = labels.clone(), similarity.clone()
    merge_small(labels, similarity, 3)
    link(similarity)
    assert torch.equal(labels, before[0]) and torch.equal(similarity, before[1])


# ---- clouds at the edges ---------------------------------------------------------------------------------------------


def test_one_cluster_holds_all_lists():
    found = cluster_clouds(torch.zeros(4, 2, 3), torch.tensor([2, 0, 1, 0]), [1, 1], max_exact=1, sample=1)
    assert found.labels.tolist() == [[0] * 4] * 2 and found.labels.dtype == torch.int64 and not found.sampled


def test_no_list_with_a_shape():
    found = cluster_clouds(torch.zeros(3, 2, 4), torch.zeros(3, dtype=torch.int64), [1, 2])
    assert found.labels.tolist() == [[0, 0, 0], [-1, -1, -1]]
    assert cluster_clouds(torch.zeros(0, 2, 4), torch.zeros(0, dtype=torch.int64), [2]).labels.shape == (1, 0)


def test_as_many_clusters_as_lists():
    u, ranks, _ = groups([3, 4])
    assert cluster_clouds(u, ranks, [7]).labels.tolist() == [list(range(7))]


def test_groups_are_found_and_outliers_join_the_nearest():
    u, ranks, group = groups([30, 25, 2])
    found = cluster_clouds(u, ranks, [3])
    assert same_partition(found.labels[0], group)
    merged = cluster_clouds(u, ranks, [3], min_size=3).labels[0]
    assert merged.unique().tolist() == [0, 1]
    assert same_partition(merged[group < 2], group[group < 2]) and len(merged[group == 2].unique()) == 1


def test_a_sample_finds_the_groups_and_knows_the_seed():
    u, ranks, group = groups([60, 50, 40])
    ranks[5] = 0
    exact = cluster_clouds(u, ranks, [3, 2])
    found = [cluster_clouds(u, ranks, [3, 2], seed=seed, max_exact=100, sample=30) for seed in (0, 0, 1)]
    assert all(one.sampled for one in found) and not exact.sampled
    assert torch.equal(found[0].labels, found[1].labels)
    for one in (exact, *found):
        assert one.labels[0, 5] == one.labels[1, 5] == -1
        assert same_partition(one.labels[0, ranks > 0], group[ranks > 0])


def test_a_sample_of_all_lists_changes_nothing():
    u, ranks, _ = groups([10, 10], spread=1.0)
    exact = cluster_clouds(u, ranks, [4])
    assert torch.equal(cluster_clouds(u, ranks, [4], max_exact=5, sample=20).labels, exact.labels)


def test_equal_lists_of_a_sample_lead_themselves():
    u, ranks = torch.ones(4, 1, 1), torch.ones(4, dtype=torch.int64)
    assert cluster_clouds(u, ranks, [4], max_exact=3, sample=4).labels.tolist() == [[0, 1, 2, 3]]


def test_the_draw_is_uniform_without_repetition():
    drawn = torch.stack([subsample(10, 4, seed) for seed in range(300)])
    assert (drawn.diff(dim=1) > 0).all()
    assert (drawn.flatten().bincount(minlength=10) - 120).abs().max() < 45  # five standard deviations


@pytest.mark.parametrize(
    "options, text",
    [
        ({"clusters": [2, 0]}, "clusters must be >= 1, got 0"),
        ({"clusters": [2], "min_size": 0}, "min_size must be >= 1, got 0"),
        ({"clusters": [1], "min_size": 0}, "min_size must be >= 1, got 0"),
    ],
)
def test_what_is_refused(options, text):
    u, ranks, _ = groups([3, 4])
    with pytest.raises(ValueError, match=text):
        cluster_clouds(u, ranks, **options)

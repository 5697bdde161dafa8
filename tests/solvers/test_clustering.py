"""Clusters at the edges: ties, few lists, clouds without a shape, samples, and what is refused."""

import warnings

import pytest
import torch

from torchrank.solvers.clouds import shapes
from torchrank.solvers.clouds.clustering import cut, draw_lists, link, merge_small


def cluster_clouds(u, ranks, clusters, *, kind="ordered", min_size=1, seed=0):
    spread = torch.ones(u.shape[:2], dtype=u.dtype)
    return shapes.cluster(shapes.Shapes(u, spread, ranks), clusters, kind, min_size=min_size, seed=seed)


def draw_a_sample(monkeypatch, above, sample):
    monkeypatch.setattr(shapes, "MAX_EXACT", above)
    monkeypatch.setattr(shapes, "SAMPLE", sample)


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
    with pytest.warns(UserWarning, match="5 clusters of 3 lists"):
        assert cut(tree, 5).tolist() == [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cut(tree, 3).tolist() == [0, 1, 2]


def test_one_list():
    tree = link(torch.ones(1, 1))
    assert tree.merges.shape == (0, 2) and cut(tree, 1).tolist() == [0]
    assert merge_small(torch.tensor([0]), torch.ones(1, 1), 10).tolist() == [0]


def test_a_long_chain():
    """Gaps double, so every merge adds one list: the tree is as deep as it can be."""
    place = 2.0 ** torch.arange(50, dtype=torch.float64)
    labels = cut(link(1 - (place[:, None] - place).abs()), 2)
    assert labels.tolist() == [0] * 49 + [1]


@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (4,)])
def test_similarities_are_square(shape):
    with pytest.raises(ValueError, match="must be \\(Q, Q\\)"):
        link(torch.zeros(shape))


def test_the_input_stays_as_it_is():
    labels, similarity = torch.tensor([3, 0, 1, 1]), torch.rand(4, 4)
    before = labels.clone(), similarity.clone()
    merge_small(labels, similarity, 3)
    link(similarity)
    assert torch.equal(labels, before[0]) and torch.equal(similarity, before[1])


# --- clouds ---


def test_one_cluster_holds_all_lists_and_compares_none(monkeypatch):
    monkeypatch.setattr(shapes, "compare", None)  # a call would fail
    draw_a_sample(monkeypatch, 1, 1)
    found = cluster_clouds(torch.zeros(4, 2, 3), torch.tensor([2, 0, 1, 0]), [1, 1])
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


def test_a_sample_finds_the_groups_and_knows_the_seed(monkeypatch):
    u, ranks, group = groups([60, 50, 40])
    ranks[5] = 0
    exact = cluster_clouds(u, ranks, [3, 2])
    draw_a_sample(monkeypatch, 100, 30)
    found = [cluster_clouds(u, ranks, [3, 2], seed=seed) for seed in (0, 0, 1)]
    assert all(one.sampled for one in found) and not exact.sampled
    assert torch.equal(found[0].labels, found[1].labels)
    for one in (exact, *found):
        assert one.labels[0, 5] == one.labels[1, 5] == -1
        assert same_partition(one.labels[0, ranks > 0], group[ranks > 0])


def test_a_sample_of_all_lists_changes_nothing(monkeypatch):
    u, ranks, _ = groups([10, 10], spread=1.0)
    exact = cluster_clouds(u, ranks, [4])
    draw_a_sample(monkeypatch, 5, 20)
    assert torch.equal(cluster_clouds(u, ranks, [4]).labels, exact.labels)


def test_equal_lists_of_a_sample_lead_themselves(monkeypatch):
    draw_a_sample(monkeypatch, 3, 4)
    u, ranks = torch.ones(4, 1, 1), torch.ones(4, dtype=torch.int64)
    assert cluster_clouds(u, ranks, [4]).labels.tolist() == [[0, 1, 2, 3]]


def test_the_draw_is_uniform_without_repetition():
    drawn = torch.stack([draw_lists(10, 4, seed) for seed in range(300)])
    assert (drawn.diff(dim=1) > 0).all()
    assert (drawn.flatten().bincount(minlength=10) - 120).abs().max() < 45  # five standard deviations


@pytest.mark.parametrize(
    "options, text",
    [
        ({"clusters": [2, 0]}, "clusters is 0"),
        ({"clusters": [2], "min_size": 0}, "min_size is 0"),
        ({"clusters": [1], "min_size": 0}, "min_size is 0"),
    ],
)
def test_what_is_refused(options, text):
    u, ranks, _ = groups([3, 4])
    with pytest.raises(ValueError, match=text):
        cluster_clouds(u, ranks, **options)

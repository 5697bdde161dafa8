"""LocalRank against a plain form of it, in numpy and scipy: clusters, models, assignments.

The choice of clusters, bases, forms of data and refusals: tests/rankers/localrank/test_localrank_fits.py.
"""

from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tests.rankers.by_hand import begin, take_rounds
from tests.reference.localrank import Plain, labels_of, queries, rows_of
from torchrank import AdaRank, DataWarning, ListNet, LocalRank, NeuralRanker, RankBoost
from torchrank.rankers.localrank.clusters import group_similarity

L2 = {"base_options": {"l2": 0.3, "tolerance": 1e-7}}


def fit(train=None, **options):
    given = {"transform": None, "min_lists": 1, "rounds": 60, **L2, **options}
    val = queries(1, 9) if isinstance(options["clusters"], list) else None
    return LocalRank(4, **given).fit(train or queries(0), val, batch_documents=50)


@cache
def three(assignment):
    return fit(clusters=3, assignment=assignment)


@cache
def alone(*members):
    """ListNet fitted by itself on these training lists; on all of them."""
    train = queries(0).subset(np.array(members)) if members else queries(0)
    return ListNet(4, transform=None, rounds=60, **L2["base_options"]).fit(train, batch_documents=50)


def cluster_weights(labels, clusters):
    """Weights of all lists, then of each cluster; those of all lists where a cluster has no pair."""
    whole = alone().scorer.weight.numpy()
    found = [whole]
    for cluster in range(clusters):
        members = np.flatnonzero(labels == cluster)
        found.append(alone(*members).scorer.weight.numpy() if queries(0).pairs[members].any() else whole)
    return np.array(found)


def expected_scores(weights, cluster, lists):
    return np.concatenate([rows @ weights[number + 1] for rows, number in zip(rows_of(lists), cluster, strict=True)])


def scores_of(ranker, lists):
    return ranker(lists.x, lists.offsets).detach().numpy()


# ---- hard: the paper ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clusters", "options"), [(3, {"components": 2}), (12, {"variance": 0.5})])
def test_hard_against_the_plain_form(clusters, options):
    """Labels, the number of directions, the assignment and the scores of every list."""
    train, test = queries(0), queries(2, 8)
    ranker = fit(clusters=clusters, **options)
    plain = Plain(train, **options)
    labels, assigned = plain.labels(clusters), plain.assign(test, plain.labels(clusters))
    assert ranker.clusters.labels[0].tolist() == labels.tolist() and labels.max() + 1 == clusters
    assert ranker.findings["components"] == plain.components == ranker.clusters.points.shape[1]
    assert ranker.findings["cluster sizes"] == {str(clusters): np.bincount(labels[labels >= 0]).tolist()}
    told = ranker.nearest(test.x, test.offsets)
    assert told["cluster"].tolist() == assigned.tolist() and set(assigned[[2, 5]]) == {-1}
    shaped = assigned >= 0
    np.testing.assert_allclose(told["similarity"][shaped], plain.similarities(test).max(1)[shaped], atol=1e-5)
    weights = cluster_weights(labels, clusters)
    np.testing.assert_allclose(scores_of(ranker, test), expected_scores(weights, assigned, test), rtol=1e-4, atol=1e-5)


def test_as_many_clusters_as_lists():
    """A model for every list that has a shape and a pair; fewer clusters than were asked for."""
    train = queries(0)
    with pytest.warns(DataWarning, match="14 clusters were requested of 12 lists"):
        ranker = fit(clusters=14)
    labels = ranker.clusters.labels[0]
    assert labels.tolist() == [0, 1, -1, 2, 3, -1, *range(4, 12)]
    assert ranker.models[0].tolist()[:12] == [1, 2, 3, 4, 0, *range(5, 12)]  # list 6, cluster 4, has no pair
    assert ranker.nearest(train.x, train.offsets)["cluster"].tolist() == labels.tolist()
    weights = cluster_weights(labels.numpy(), 12)
    expected = expected_scores(weights, labels.tolist(), train)
    np.testing.assert_allclose(scores_of(ranker, train), expected, rtol=1e-4, atol=1e-5)


def test_lists_without_a_shape_and_clusters_without_a_pair_are_ranked_by_the_global_model():
    train = queries(0)
    whole = alone()
    for assignment in ("hard", "soft", "shrink"):
        ranker = three(assignment)
        for number in (2, 5):
            part = train.subset(np.array([number]))
            assert ranker.nearest(part.x, part.offsets)["list"].tolist() == [-1]
            assert ranker.nearest(part.x, part.offsets)["part"].tolist() == [0]
            assert np.array_equal(scores_of(ranker, part), scores_of(whole, part))
    ranker = fit(clusters=12)
    part = train.subset(np.array([6]))
    assert ranker.nearest(part.x, part.offsets)["cluster"] == 4 and not part.pairs.any()
    assert np.array_equal(scores_of(ranker, part), scores_of(whole, part))


def test_clusters_below_a_size_join_others():
    ranker = fit(clusters=8, min_lists=5)
    labels = ranker.clusters.labels[0]
    sizes = labels[labels >= 0].bincount().tolist()
    assert min(sizes) >= 5 and len(sizes) == 2 and ranker.models[0].tolist() == [1, 2, *[0] * 6]


def test_the_decision_is_made_by_the_whole_list():
    ranker, test = three("hard"), queries(3, 6, flat=False)
    batch = scores_of(ranker, test)
    for number in range(6):
        part = test.subset(np.array([number]))
        inside = slice(int(test.offsets[number]), int(test.offsets[number + 1]))
        np.testing.assert_allclose(scores_of(ranker, part), batch[inside], rtol=1e-6)


@pytest.mark.parametrize("assignment", ["hard", "soft", "shrink"])
def test_rows_in_float64(assignment):
    ranker, test = three(assignment), queries(2, 8)
    found = ranker(test.x.double(), test.offsets)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.detach(), scores_of(ranker, test), rtol=1e-4, atol=1e-5)


def test_no_list_and_empty_ones():
    ranker, test = three("hard"), queries(2, 8)
    assert ranker(test.x[:0], torch.tensor([0])).shape == ranker(test.x[:0], torch.tensor([0, 0])).shape == (0,)
    offsets = torch.tensor([0, 0, *test.offsets[1:].tolist(), len(test.x)])
    assert np.array_equal(ranker(test.x, offsets).detach(), scores_of(ranker, test))


# ---- one cluster: the base ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "make", "transform"),
    [("listnet", ListNet, "standard"), ("rankboost", RankBoost, None), ("adarank", AdaRank, None)],
)
def test_one_cluster_is_the_base_bit_by_bit(base, make, transform):
    options, test = {"rounds": 4, "transform": transform}, queries(2, 8)
    one, several = (LocalRank(4, base=base, clusters=clusters, min_lists=1, **options) for clusters in (1, [1, 2]))
    plain = make(4, **options)
    for ranker in (one, several, plain):
        begin(ranker, queries(0), 50)
        take_rounds(ranker, 0, 4)
    assert np.array_equal(scores_of(one, test), scores_of(plain, test))
    for ranker in (one, several):
        for name, tensor in plain.state_dict().items():
            if isinstance(tensor, torch.Tensor) and not name.startswith(("transform", "step_token")):
                assert torch.equal(ranker.parts[0].state_dict()[name], tensor), name
    assert one.findings["cluster sizes"] == {"1": [14]} and len(several.parts) == 3


def test_one_cluster_of_a_network_is_the_network_bit_by_bit():
    options = {"scorer": "mlp", "loss": "ranknet", "scorer_options": {"hidden": [5]}, "lr": 0.05, "weight_decay": 0.01}
    plain = NeuralRanker(4, transform="standard", **options)
    local = LocalRank(4, base="neural", base_options=options, clusters=1, transform="standard")
    found = [scores_of(each.fit(queries(0), epochs=4, batch_documents=50), queries(2, 8)) for each in (plain, local)]
    assert np.array_equal(*found) and found[0].std() > 0


def test_one_cluster_has_no_nearest_lists():
    test = queries(2, 8)
    with pytest.raises(ValueError, match="nearest needs clusters > 1"):
        fit(clusters=1).nearest(test.x, test.offsets)


# ---- soft and shrunk ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clusters", "temperature"), [(2, 0.05), (12, 0.3)])
def test_soft_scores_are_mixed_by_the_formula(clusters, temperature):
    train, test = queries(0), queries(2, 8)
    ranker = fit(clusters=clusters, assignment="soft", temperature=temperature, components=2)
    plain = Plain(train, 2)
    labels, similarities = plain.labels(clusters), plain.similarities(test)
    weights = cluster_weights(labels, clusters)
    closest = np.stack([similarities[:, labels == cluster].max(1) for cluster in range(clusters)], 1)
    shares = softmax(closest / temperature, 1)
    flat = plain.assign(test, labels)[:, None] < 0  # the global model
    shares = np.where(flat, np.eye(clusters + 1)[0], np.pad(shares, ((0, 0), (1, 0))))
    expected = np.concatenate([rows @ (share @ weights) for rows, share in zip(rows_of(test), shares, strict=True)])
    np.testing.assert_allclose(scores_of(ranker, test), expected, rtol=1e-3, atol=1e-4)


def shrunk(train, labels, clusters, l2, stiffness):
    """w_0 and d_c of the joint problem, (C + 1, D), by scipy."""
    used = [
        (rows, softmax(grades), cluster)
        for rows, grades, cluster in zip(rows_of(train), labels_of(train), labels, strict=True)
        if len(set(grades)) > 1
    ]

    def objective(flat):
        weights = flat.reshape(clusters + 1, -1)
        gradient = l2 * np.array([1.0, *[stiffness] * clusters])[:, None] * weights
        value = (gradient * weights).sum() / 2
        for rows, target, cluster in used:
            scores = rows @ (weights[0] + (weights[cluster + 1] if cluster >= 0 else 0))
            value -= target @ log_softmax(scores) / len(train)
            slope = rows.T @ (softmax(scores) - target) / len(train)
            for place in {0, cluster + 1}:
                gradient[place] += slope
        return value, gradient.flatten()

    start = np.zeros((clusters + 1) * train.num_features)
    return minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10}).x.reshape(clusters + 1, -1)


@pytest.mark.parametrize(("clusters", "stiffness"), [(2, 3.0), (3, 0.5), (12, 1.0)])
def test_shrunk_models_solve_the_joint_problem(clusters, stiffness):
    train, test = queries(0), queries(2, 8)
    ranker = fit(clusters=clusters, assignment="shrink", stiffness=stiffness)
    plain = Plain(train)
    labels = plain.labels(clusters)
    joint = shrunk(train, labels, clusters, 0.3, stiffness)
    whole = alone().scorer.weight.numpy()
    paired = [(train.pairs > 0)[labels == cluster].any() for cluster in range(clusters)]
    found = [joint[0] + joint[cluster + 1] if paired[cluster] else whole for cluster in range(clusters)]
    expected = expected_scores(np.array([whole, *found]), plain.assign(test, labels), test)
    np.testing.assert_allclose(scores_of(ranker, test), expected, rtol=1e-3, atol=1e-4)


def test_the_first_cluster_may_be_without_a_pair():
    train = queries(0)
    train.labels[: train.offsets[1]] = 1
    ranker = fit(train, clusters=12, assignment="shrink")
    assert ranker.models[0].tolist() == [0, 1, 1, 1, 0, *[1] * 7]
    first = train.subset(np.array([0]))
    assert ranker.nearest(first.x, first.offsets)["cluster"] == ranker.nearest(first.x, first.offsets)["part"] == 0
    assert torch.equal(ranker(first.x, first.offsets), ranker.parts[0](first.x, first.offsets))


def test_shrunk_where_small_clusters_leave_fewer_numbers():
    """One list is unlike all others: two clusters become one again, three become two."""
    train = queries(0, 13, flat=False)
    train.x[: train.offsets[1]] *= torch.tensor([0.0, 0.0, 0.0, 9.0])
    train.x[train.offsets[1] :] *= torch.tensor([1.0, 1.0, 0.2, 0.0])
    train.x[train.offsets[1] :, :2] += 0.2 * train.x[train.offsets[1] :, [1, 0]]
    ranker = fit(train, clusters=[2, 3], min_lists=3, assignment="shrink", components=1)
    sizes = ranker.findings["cluster sizes"]
    assert sizes["2"] == [13] and len(sizes["3"]) == 2 and ranker.models.tolist() == [[0] * 3, [0] * 3, [1, 1, 0]]
    assert np.isfinite(scores_of(ranker, queries(2, 8))).all()


def test_similarity_to_groups_is_that_of_their_nearest_member():
    similarity = torch.rand(7, 9, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, -1, 2, 0, 1, 1, -1])
    found = group_similarity(similarity, labels)
    for row, best in zip(similarity.tolist(), found.tolist(), strict=True):
        assert best == [max(s for s, label in zip(row, labels.tolist(), strict=True) if label == c) for c in range(3)]
    minus = group_similarity(-similarity, labels)  # minus distances too
    assert (minus < 0).all() and (minus > -1).all()

"""The first round of GMML and L-GMML against the plain transcription, and laws of the whole method."""

import numpy as np
import pytest
import torch

from torchrank import GMML, LGMML, RankingSet

from . import local_reference as plain
from .local_fits import (
    DEAD,
    FEATURES,
    QUERY_LEVEL,
    close,
    compare,
    first_round,
    graded,
    rows_of,
    run,
    scores_of,
    state,
    write,
)
from .reference import blocks

pytestmark = pytest.mark.filterwarnings("ignore:Total length of")  # there are no validation lists
LIVE = [0, 1, 2, 3, 5, 6]


# --- the draw of the source lists ---


@pytest.mark.parametrize(("metrics", "each"), [(4, 3), (10, 1), (3, 10), (7, 4), (2, 40)])
def test_source_lists(metrics, each):
    """Usable and distinct within a metric; all are used before one is used again; -1 fills up rows."""
    train = graded(0)
    ranker = first_round(train, metrics=metrics, queries_per_metric=each)
    possible = [q for q, block in enumerate(blocks(train.offsets)) if plain.usable(train.labels[block].numpy(), "half")]
    assert len(ranker.sources) == metrics
    counts = dict.fromkeys(possible, 0)
    for row in ranker.sources.tolist():
        drawn = [q for q in row if q >= 0]
        assert len(drawn) == min(each, len(possible)) == len(set(drawn))
        assert row == drawn + [-1] * (len(row) - len(drawn))
        for q in drawn:
            counts[q] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    again, other = (first_round(train, metrics=metrics, queries_per_metric=each, seed=seed) for seed in (0, 1))
    assert torch.equal(again.sources, ranker.sources)
    if metrics > 1 and each < len(possible):
        assert not torch.equal(other.sources, ranker.sources)


# --- the first round ---

OPTIONS = [
    {},
    {"t": 0.0},
    {"t": 0.25},
    {"t": 1.0},
    {"high": "max"},
    {"high": "positive"},
    {"ridge": 1.0},
    {"ridge": 0.01},
    {"ridge": 0.5, "ridge_mode": "absolute"},
    {"scatter": "sum"},
    {"scatter": "sum", "ridge_mode": "absolute"},
    {"kappa": 0.0},
    {"kappa": 3.0},
    {"metrics": 9, "queries_per_metric": 1},
    {"metrics": 2, "queries_per_metric": 40},
    {"tau": "q95"},
    {"tau": "max"},
    {"tau": 2.5},
    {"distance": "eq12"},
    {"distance": "eq12", "kernel": "rbf", "tau": "q95"},
    {"kernel": "paper", "tau": "q95"},
    {"kernel": "demo", "tau": 1.0},
    {"kernel": "rbf"},
    {"kernel": "rbf", "beta": 0.5},
    {"kernel": "laplace"},
    {"kernel": "laplace", "beta": 1.0},
    {"kernel": "localized"},
    {"kernel": "localized", "beta": 4.0, "tau": "max"},
    {"weights": "per_query"},
    {"weights": "per_query", "fallback": "ones"},
    {"weights": "per_query", "fallback": "knn"},
    {"weights": "amortized"},
    {"weights": "amortized", "kernel": "rbf"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_first_round(options):
    train, test = graded(1), graded(2)
    compare(first_round(train, **options), train, test, **options)


@pytest.mark.parametrize("options", [
    {"kernel": "rbf"},
    {"kernel": "rbf", "queries_per_metric": 1, "metrics": 9},
    {"kernel": "paper", "queries_per_metric": 1, "metrics": 9, "scatter": "sum", "ridge_mode": "absolute", "tau": 1.0},
    {"kernel": "distance", "queries_per_metric": 10, "t": 0.25},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("seed", [3, 4])
def test_best_anchor(seed, options):
    """The relevant document that ranks its own source lists best by NDCG@10, ties to the first."""
    train, test = graded(seed, top=3), graded(5)
    options = {"anchor": "best", "anchor_candidates": 1000} | options
    compare(first_round(train, **options), train, test, **options)


@pytest.mark.parametrize("options", [
    {"anchor": "best", "exclude_self": True},
    {"anchor": "best", "exclude_self": True, "queries_per_metric": 1, "metrics": 9},
    {"anchor": "search"},
    {"anchor": "search", "queries_per_metric": 1, "metrics": 9},
], ids=str)  # fmt: skip
def test_other_choices_of_the_anchor(options):
    """Without ranking itself, or among the real documents and then virtual ones with kappa 1, 3, 10, 30."""
    train, test = graded(47, top=3), graded(48)
    compare(first_round(train, anchor_candidates=1000, **options), train, test, **options)


def test_source_lists_with_different_highest_grades():
    """Candidates have the highest grade of all source lists of the metric together."""
    train, test = graded(45), graded(46)
    options = {"anchor": "best", "anchor_candidates": 1000}
    compare(first_round(train, **options), train, test, **options)


def test_anchor_candidates_are_at_most_as_many_as_asked():
    """Any of the candidates may be drawn; the anchor is one of the documents with the highest grade."""
    train = graded(6, top=2)
    ranker = first_round(train, anchor="best", anchor_candidates=1, kernel="rbf")
    rows, labels = rows_of(train), train.labels.numpy()
    lists = [(rows[block], labels[block]) for block in blocks(train.offsets)]
    for anchor, places in zip(state(ranker, train).anchors, ranker.sources.tolist(), strict=True):
        candidates = np.concatenate([rows[labels == 2] for rows, labels in (lists[q] for q in places if q >= 0)])
        assert np.abs(candidates - anchor).max(1).min() <= 1e-6


def test_without_a_transform():
    train, test = graded(7), graded(8)
    compare(first_round(train, transform=None), train, test, standard=False)


def test_even_number_of_rows_and_real_scales():
    """The median of an even number of distances lies between the two middle ones."""
    train, test = graded(9).subset(torch.arange(3, 13)), graded(10)
    train = train if len(train.x) % 2 == 0 else graded(11).subset(torch.arange(3, 13))
    assert len(train.x) % 2 == 0
    compare(first_round(train), train, test)


# --- GMML ---


@pytest.mark.parametrize("options", [{}, {"t": 0.25}, {"kappa": 3.0}, {"ridge": 0.5, "ridge_mode": "absolute"},
                                     {"anchor": "best", "anchor_candidates": 1000}], ids=str)  # fmt: skip
def test_one_metric_over_all_lists(options):
    train, test = graded(12, top=3), graded(13)
    ranker = first_round(train, GMML, **options)
    possible = [q for q, block in enumerate(blocks(train.offsets)) if plain.usable(train.labels[block].numpy(), "half")]
    assert len(ranker.factors) == 1
    assert sorted(q for q in ranker.sources[0].tolist() if q >= 0) == possible
    compare(ranker, train, test, tau=1.0, **options)  # the unit of a single distance orders nothing


def test_one_metric_also_learns_from_lists_with_one_positive():
    """They add dissimilar pairs and a mean; only as the single source of a metric they are useless."""
    train, test = graded(49, top=2), graded(50)
    for block in blocks(train.offsets)[3:8]:
        train.labels[block] = 0
        train.labels[block.start + 1] = 2
    ranker = first_round(train, GMML)
    assert {3, 4, 5, 6, 7} < set(ranker.sources[0].tolist())
    compare(ranker, train, test, tau=1.0)


# --- features that say nothing ---


@pytest.mark.parametrize("anchor", ["virtual", "best"])
@pytest.mark.parametrize("transform", ["standard", None])
def test_a_feature_that_was_constant_in_training_is_ignored(transform, anchor):
    train, test = graded(14, top=3), graded(15)
    changed = RankingSet(test.x.clone(), test.labels, test.offsets)
    changed.x[:, DEAD] = torch.randn(len(test.x), generator=torch.Generator().manual_seed(0)) * 100
    for cls in (LGMML, GMML):
        ranker = first_round(train, cls, transform=transform, anchor=anchor)
        np.testing.assert_array_equal(scores_of(ranker, changed), scores_of(ranker, test))


def test_a_dead_feature_changes_no_score():
    """With and without its column: the same live rows, the same draw, the same scores."""
    train, test = graded(16), graded(17)
    without = [RankingSet(lists.x[:, LIVE], lists.labels, lists.offsets) for lists in (train, test)]
    full, less = first_round(train), first_round(without[0])
    assert torch.equal(full.sources, less.sources)
    close(scores_of(full, test), scores_of(less, without[1]), 1e-5)


def test_features_that_are_constant_in_every_list():
    """Kept by default, because they say how far an anchor's query is; dropped when asked."""
    train, test = graded(51), graded(52)
    changed = RankingSet(test.x.clone(), test.labels, test.offsets)
    changed.x[:, QUERY_LEVEL] += 1
    kept, dropped = first_round(train, kernel="rbf"), first_round(train, kernel="rbf", drop_query_constant=True)
    assert not np.allclose(scores_of(kept, changed), scores_of(kept, test))
    np.testing.assert_array_equal(scores_of(dropped, changed), scores_of(dropped, test))
    rest = [RankingSet(lists.x[:, :QUERY_LEVEL], lists.labels, lists.offsets) for lists in (train, test)]
    close(scores_of(dropped, test), scores_of(first_round(rest[0], kernel="rbf"), rest[1]), 1e-5)


def test_fewer_documents_than_features():
    """One source list with two positives: S has rank 1 of 6, and the ridge makes the metric finite and positive."""
    train, test = graded(18), graded(19)
    for options in ({"anchor": "best", "kernel": "rbf"}, {}):
        ranker = first_round(train, metrics=9, queries_per_metric=1, **options)
        assert (np.linalg.eigvalsh(state(ranker, train).metrics) > 0).all()
        assert np.isfinite(scores_of(ranker, test)).all()


# --- laws of the whole method ---


def test_unit_and_axes_of_all_features_together():
    """X -> a X: same metrics, scales times a, same scores. X -> X Q: same scores (relative ridge, no transform)."""
    train, test = graded(20, dead=False), graded(21, dead=False)
    base = first_round(train, transform=None)
    axes = torch.tensor(np.linalg.qr(np.random.default_rng(22).normal(size=(FEATURES, FEATURES)))[0]).float()
    for change in (lambda x: 8 * x, lambda x: x @ axes):
        moved = [RankingSet(change(lists.x), lists.labels, lists.offsets) for lists in (train, test)]
        other = first_round(moved[0], transform=None)
        assert torch.equal(other.sources, base.sources)
        close(scores_of(other, moved[1]), scores_of(base, test), 1e-4)
    scaled = first_round(RankingSet(8 * train.x, train.labels, train.offsets), transform=None)
    close(state(scaled, train).metrics, state(base, train).metrics, 1e-5)
    close(state(scaled, train).tau, 8 * state(base, train).tau, 1e-5)


def test_a_huge_ridge_is_euclid():
    metrics = state(first_round(graded(23), ridge=1e9), graded(23)).metrics
    for metric in metrics:
        close(metric, np.eye(len(metric)) * metric[0, 0], 1e-6)


@pytest.mark.parametrize("t", [0.0, 0.5])
def test_a_far_virtual_anchor_is_a_linear_ranker(t):
    """With weights M (mu+ - mu-); at t = 0 this is Fisher's discriminant."""
    train = graded(44)
    ranker = first_round(train, GMML, kappa=1e4, t=t).double()
    rows, labels = rows_of(train), train.labels.numpy()
    lists = [(rows[block], labels[block]) for block in blocks(train.offsets)]
    own = [lists[q] for q in ranker.sources[0].tolist() if q >= 0]
    direction = plain.virtual_anchor(own, "half", 1.0) - plain.virtual_anchor(own, "half", 0.0)
    linear = rows @ state(ranker, train).metrics[0] @ direction
    with torch.no_grad():
        scores = ranker(train.x.double(), train.offsets).numpy()
    assert np.corrcoef(scores, linear)[0, 1] > 1 - 1e-5


KERNELS = ["distance", "paper", "demo", "rbf", "laplace", "localized"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_permuted_documents_and_permuted_metrics(kernel):
    train, test = graded(24), graded(25)
    ranker = first_round(train, kernel=kernel)
    weights = torch.rand(ranker.weights.shape, generator=torch.Generator().manual_seed(0))
    write(ranker.weights, weights)
    plain_scores = scores_of(ranker, test)
    rng = np.random.default_rng(26)
    places = np.concatenate([block.start + rng.permutation(block.stop - block.start) for block in blocks(test.offsets)])
    permuted = RankingSet(test.x[places], test.labels[places], test.offsets)
    close(scores_of(ranker, permuted), plain_scores[places], 2e-6)
    assert np.array_equal(
        ranker.rank(permuted.x, test.offsets).numpy(), np.argsort(places)[ranker.rank(test.x, test.offsets).numpy()]
    )
    order = torch.tensor(rng.permutation(len(ranker.tau)))
    for part in (ranker.factors, ranker.anchors, ranker.tau, ranker.weights):
        write(part, part[order].clone())
    close(scores_of(ranker, test), plain_scores, 2e-6)


def test_lists_do_not_disturb_each_other():
    """A batch is the concatenation of its lists, in every weights mode."""
    train, test = graded(27), graded(28)
    for options in ({}, {"weights": "amortized"}, {"weights": "per_query", "fallback": "knn"}):
        ranker = run(LGMML(FEATURES, metrics=4, queries_per_metric=3, rounds=3, **options), train, 3)
        whole = scores_of(ranker, test)
        for block in blocks(test.offsets):
            one = RankingSet(test.x[block], test.labels[block], torch.tensor([0, block.stop - block.start]))
            close(scores_of(ranker, one), whole[block], 5e-6, str(options))


@pytest.mark.parametrize("options", [{}, {"anchor": "best"}, {"weights": "per_query"}, {"weights": "amortized"}],
                         ids=str)  # fmt: skip
def test_batches_are_only_a_way_to_read(options):
    train, test = graded(53), graded(54)
    found = [
        run(LGMML(FEATURES, metrics=4, queries_per_metric=3, rounds=3, **options), train, 3, test, documents=documents)
        for documents in (15, 10_000)
    ]
    close(found[1], found[0].double().numpy(), 1e-5)

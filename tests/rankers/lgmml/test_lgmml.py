"""GMML and L-GMML: the draw of lists, metrics, anchors, scales and scores against the plain transcription; options."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import (
    DEAD,
    GIVEN,
    KERNELS,
    WEIGHTS,
    close,
    compare,
    fitted,
    graded,
    rows_of,
    scores_of,
    split,
    state,
    with_feature,
    write,
)
from tests.rankers.small import FEATURES, lists
from tests.reference import local_metrics as plain
from tests.reference.measures import blocks
from torchrank import GMML, LGMML, NotFittedError, RankingSet
from torchrank.data import SameClass

# ---- the draw of the source lists ------------------------------------------------------------------------------------


def usable_lists(train):
    return [q for q, labels in enumerate(split(train.labels.numpy(), train.offsets)) if plain.usable(labels, "half")]


@pytest.mark.parametrize(("metrics", "each"), [(4, 3), (10, 1), (3, 10), (7, 4), (2, 40)])
def test_source_lists_are_usable_and_all_are_used_before_one_is_used_again(metrics, each):
    train = graded(0)
    ranker, possible = fitted(train, metrics=metrics, queries_per_metric=each), usable_lists(train)
    assert ranker.sources.shape == (metrics, min(each, len(possible)))
    counts = dict.fromkeys(possible, 0)
    for row in ranker.sources.tolist():
        assert len(set(row)) == len(row)
        for q in row:
            counts[q] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    again, other = (fitted(train, metrics=metrics, queries_per_metric=each, seed=seed) for seed in (0, 1))
    assert torch.equal(again.sources, ranker.sources)
    assert not torch.equal(other.sources, ranker.sources)


def test_classes_take_turns_as_sources():
    classes = torch.arange(20) % 4
    x = torch.randn(20, FEATURES, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(4, FEATURES)[classes]
    train = RankingSet(x, SameClass(classes, classes, tuple("abcd"), own=torch.arange(20)), queries=x)
    turns = classes[fitted(train, queries_per_metric=1, metrics=8).sources.flatten()]
    assert sorted(turns[:4].tolist()) == sorted(turns[4:].tolist()) == [0, 1, 2, 3]


# ---- the first round -------------------------------------------------------------------------------------------------

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
@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_first_round(options, wide):
    train, test = graded(1), graded(2)
    compare(fitted(train, wide=wide, **options), train, test, **options)


@pytest.mark.parametrize("options", [
    {"kernel": "rbf"},
    {"kernel": "rbf", "queries_per_metric": 1, "metrics": 9},
    {"kernel": "paper", "queries_per_metric": 1, "metrics": 9, "scatter": "sum", "ridge_mode": "absolute", "tau": 1.0},
    {"kernel": "distance", "queries_per_metric": 10, "t": 0.25},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("seed", [3, 4])
def test_the_best_anchor_ranks_its_own_source_lists_best_by_ndcg(seed, options):
    """Among the relevant documents; ties go to the first."""
    train, test = graded(seed, top=3), graded(5)
    options = {"anchor": "best", "anchor_candidates": 1000} | options
    compare(fitted(train, **options), train, test, **options)


@pytest.mark.parametrize("options", [{}, {"queries_per_metric": 1, "metrics": 9}], ids=str)
def test_a_search_also_tries_virtual_anchors(options):
    """After the real documents: those with kappa 1, 3, 10, 30."""
    train, test = graded(47, top=3), graded(48)
    compare(fitted(train, anchor="search", anchor_candidates=1000, **options), train, test, anchor="search")


def test_source_lists_with_different_highest_grades():
    """Candidates have the highest grade of all source lists of the metric together."""
    train, test = graded(45), graded(46)
    options = {"anchor": "best", "anchor_candidates": 1000}
    compare(fitted(train, **options), train, test, **options)


def test_anchor_candidates_are_at_most_as_many_as_asked():
    """Any of the candidates may be drawn; the anchor is one of the documents with the highest grade."""
    train = graded(6, top=2)
    ranker = fitted(train, anchor="best", anchor_candidates=1, kernel="rbf")
    rows, labels = split(rows_of(train), train.offsets), split(train.labels.numpy(), train.offsets)
    for anchor, places in zip(state(ranker, train).anchors, ranker.sources.tolist(), strict=True):
        candidates = np.concatenate([rows[q][labels[q] == 2] for q in places])
        assert np.abs(candidates - anchor).max(1).min() <= 1e-6


def test_without_a_transform():
    train, test = graded(7), graded(8)
    compare(fitted(train, transform=None), train, test, standard=False)


def test_the_median_of_an_even_number_of_distances_lies_between_the_two_middle_ones():
    train, test = graded(9).subset(torch.arange(3, 13)), graded(10)
    train = train if len(train.x) % 2 == 0 else graded(11).subset(torch.arange(3, 13))
    assert len(train.x) % 2 == 0
    compare(fitted(train), train, test)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", [{}, {"beta": 0.5, "tau": "q95"}, {"anchor": "best"}], ids=str)
def test_scores_with_any_weights(kernel, options):
    train, test, weights = lists(0), lists(2), [0.5, 1.0, 0.0, 2.0]
    ranker = fitted(train, wide=True, kernel=kernel, **options)
    write(ranker.weights, torch.tensor(weights))
    rows, form = rows_of(train, test), {"kernel": kernel, "beta": options.get("beta", 2.0)}
    expected = plain.scores(state(ranker, train), rows, test.offsets, np.array(weights), **form)
    np.testing.assert_allclose(ranker(test.x.double(), test.offsets), expected, rtol=1e-5, atol=1e-5)


# ---- GMML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"t": 0.25}, {"kappa": 3.0}, {"ridge": 0.5, "ridge_mode": "absolute"},
                                     {"anchor": "best", "anchor_candidates": 1000}], ids=str)  # fmt: skip
def test_gmml_is_one_metric_over_all_lists(options):
    train, test = graded(12, top=3), graded(13)
    ranker = fitted(train, GMML, **GIVEN | options)
    assert len(ranker.factors) == 1 and ranker.sources[0].tolist() == usable_lists(train)
    assert ranker.tau.tolist() == ranker.weights.tolist() == [1]
    compare(ranker, train, test, tau=1.0, **options)  # the unit of a single distance orders nothing
    same = fitted(train, metrics=1, queries_per_metric=None, tau=1.0, **options)
    assert torch.equal(ranker.factors, same.factors) and torch.equal(ranker.anchors, same.anchors)


def test_gmml_also_learns_from_lists_with_one_positive():
    """They add dissimilar pairs and a mean; only as the single source of a metric they are useless."""
    train, test = graded(49, top=2), graded(50)
    labels = train.labels.clone()
    for block in blocks(train.offsets)[3:8]:
        labels[block] = 0
        labels[block.start + 1] = 2
    train = RankingSet(train.x, labels, train.offsets)
    ranker = fitted(train, GMML, **GIVEN)
    assert {3, 4, 5, 6, 7} < set(ranker.sources[0].tolist())
    compare(ranker, train, test, tau=1.0)


# ---- features that say nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"anchor": "best"},
    {"transform": None},
    {"transform": None, "anchor": "best"},
    *({"rounds": 3, **mode} for mode in WEIGHTS.values()),
    *({"rounds": 3, "weights": "amortized", "transform": transform} for transform in (None, "l2")),
    {"make": GMML},
    {"make": GMML, "transform": None, "anchor": "best"},
], ids=str)  # fmt: skip
def test_a_feature_that_was_constant_in_training_is_ignored(options):
    train, test = graded(14, top=3), graded(15)
    noise = 100 * torch.randn(len(test.x), generator=torch.Generator().manual_seed(0))
    ranker, changed = fitted(train, **options), with_feature(test, DEAD, noise)
    np.testing.assert_array_equal(scores_of(ranker, changed), scores_of(ranker, test))
    assert not ranker.factors[:, DEAD].any()


def test_a_dead_feature_changes_no_score():
    """With and without its column: the same live rows, the same draw, the same scores."""
    train, test = graded(16), graded(17)
    keep = [j for j in range(train.num_features) if j != DEAD]
    without = [RankingSet(part.x[:, keep], part.labels, part.offsets) for part in (train, test)]
    full, less = fitted(train), fitted(without[0])
    assert torch.equal(full.sources, less.sources)
    close(scores_of(full, test), scores_of(less, without[1]), 1e-5)


def test_fewer_documents_than_features():
    """One source list with two positives: S has rank 1 of 6, and the ridge makes the metric finite and positive."""
    train, test = graded(18), graded(19)
    for options in ({"anchor": "best", "kernel": "rbf"}, {}):
        ranker = fitted(train, metrics=9, queries_per_metric=1, **options)
        assert (np.linalg.eigvalsh(state(ranker, train).metrics) > 0).all()
        assert np.isfinite(scores_of(ranker, test)).all()


# ---- options ---------------------------------------------------------------------------------------------------------

EFFECTS = [
    ({}, {"metrics": 5}),
    ({}, {"queries_per_metric": 2}),
    ({}, {"high": "max"}),
    ({"high": "max"}, {"high": "positive"}),
    ({}, {"t": 0.2}),
    ({}, {"ridge": 1.0}),
    ({}, {"ridge_mode": "absolute"}),
    ({"tau": 1.0}, {"scatter": "sum"}),
    ({}, {"anchor": "best"}),
    ({}, {"anchor": "search"}),
    ({}, {"kappa": 1.0}),
    ({"anchor": "best"}, {"anchor_candidates": 1}),
    ({}, {"kernel": "rbf"}),
    ({"kernel": "laplace"}, {"beta": 1.0}),
    ({}, {"tau": "max"}),
    ({}, {"seed": 1}),
    ({}, {"transform": "l2"}),
    ({}, {"rounds": 3}),
    ({"rounds": 3}, {"mode": "sgd"}),
    ({"rounds": 3, "mode": "sgd"}, {"margin": 2.0}),
    ({"rounds": 3}, {"margin": 2.0}),
    ({"rounds": 3}, {"negatives": "zero"}),
    ({"rounds": 3, "mode": "sgd"}, {"negatives": "zero"}),
    ({"rounds": 3}, {"lr": 0.01}),
    ({"rounds": 3, "mode": "sgd", "lr": 5.0}, {"nonneg": False}),
    ({"rounds": 6, "lr": 0.9, "anchor": "best", "kernel": "rbf"}, {"nonneg": False}),
    ({"rounds": 3}, {"weights": "per_query"}),
    ({"rounds": 3}, {"weights": "amortized"}),
    ({"rounds": 3, "weights": "per_query"}, {"fallback": "ones"}),
    ({"rounds": 3, "weights": "per_query"}, {"fallback": "knn"}),
]


@pytest.mark.parametrize(("base", "change"), EFFECTS, ids=str)
def test_every_option_has_an_effect(base, change):
    one, other = (scores_of(fitted(**options), lists(2)) for options in (base, base | change))
    assert np.isfinite(other).all() and np.abs(one - other).max() > 1e-4


@pytest.mark.parametrize(("change", "message"), [
    ({"kernel": "x"}, "unknown kernel='x': choose one of paper"),
    ({"weights": "x"}, "unknown weights"),
    ({"fallback": "x"}, "unknown fallback"),
    ({"mode": "x"}, "unknown mode"),
    ({"negatives": "x"}, "unknown negatives"),
    ({"tau": "x"}, "unknown tau='x': choose one of median, q95, max or a number"),
    ({"tau": 0.0}, "tau must be > 0 and finite, got 0.0"),
    ({"kernel": "localized", "nonneg": False}, "needs nonneg=true"),
    ({"weights": "amortized", "mode": "sgd"}, "mode=sgd needs scores linear"),
    ({"beta": 0.0}, "beta must be > 0, got 0.0"),
    ({"lr": -1.0}, "lr must be > 0 and < 1, got -1.0"),
    ({"lr": 1.0}, "lr must be > 0 and < 1, got 1.0"),
])  # fmt: skip
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        LGMML(FEATURES, **change)


# ---- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [
    lambda ranker, x, offsets: ranker(x, offsets),
    lambda ranker, x, offsets: ranker.explain(x, offsets, torch.tensor([[0, 1]])),
    lambda ranker, x, offsets: ranker.training_scores(x, offsets, torch.tensor([0])),
    lambda ranker, x, offsets: ranker.compiled(),
    lambda ranker, x, offsets: ranker.on_predict_start(),
], ids=["scores", "explain", "training_scores", "compiled", "predict"])  # fmt: skip
@pytest.mark.parametrize("mode", WEIGHTS)
def test_a_ranker_that_is_not_fitted_says_so(mode, use):
    with pytest.raises(NotFittedError, match="this LGMML is not fitted: call fit first"):
        use(
            LGMML(FEATURES, groups="random", transform=None, **WEIGHTS[mode]),
            torch.zeros(2, FEATURES),
            torch.tensor([0, 2]),
        )


@pytest.mark.parametrize("mode", WEIGHTS)
def test_empty_lists(mode):
    ranker = fitted(**WEIGHTS[mode])
    for offsets in ([0], [0, 0], [0, 0, 0]):
        assert ranker(torch.zeros(0, FEATURES), torch.tensor(offsets)).shape == (0,)


@pytest.mark.parametrize("mode", WEIGHTS)
def test_a_copy_scores_in_another_dtype(mode):
    ranker, test = fitted(rounds=2, **WEIGHTS[mode]), lists(2)
    wide = deepcopy(ranker).double()(test.x.double(), test.offsets)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(ranker(test.x, test.offsets).double(), wide, rtol=1e-4, atol=1e-4)

"""L-GMML with groups of similar queries, whole fits: against plain numpy, and the laws that its scores obey."""

import io
import itertools
import math

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import close, graded, write
from tests.reference import groups as plain
from tests.reference.groups import given_of, mean_ndcg, plain_lists, scored, world
from tests.reference.local_metrics import standardise
from tests.reference.measures import blocks
from torchrank import GMML, LGMML, RankingSet

GIVEN = {"num_groups": 1, "alpha": 4.0, "t": 0.25, "ridge": 0.1, "gate": "hard", "kappa": math.inf, "transform": None}
MODES = {
    "one": {},
    "one, finite": {"kappa": 3.0},
    "hard": {"num_groups": 3},
    "soft": {"num_groups": 3, "gate": "soft"},
    "hard, finite": {"num_groups": 3, "kappa": 0.5, "t": 0.5},
    "soft, finite": {"num_groups": 3, "kappa": 20.0, "gate": "soft", "high": "max"},
    "own metrics": {"num_groups": 3, "alpha": 0.0, "t": 0.0, "high": "positive"},
    "shared metric": {"num_groups": 3, "alpha": math.inf, "t": 1.0, "ridge": 1e-3},
}
QUERY_MODES = {name: MODES[name] for name in ("one", "hard", "soft", "own metrics")}
FAR = {"kappa": 1e12}


def fitted(train, val=None, *, wide=True, documents=20_000, rounds=1, **options) -> LGMML:
    ranker = LGMML(train.num_features, **GIVEN | {"rounds": rounds} | options)
    return (ranker.double() if wide else ranker).fit(train, val, batch_documents=documents)


def reference(train, test, *, rows=None, weights=None, **options) -> np.ndarray:
    """Scores of the test lists; `rows`: of both sets, transformed; `centres`: of the groups, where they are given."""
    options = GIVEN | options
    del options["transform"]
    queries = train.queries.double().numpy() if train.has_queries else None
    own, others = (None, None) if rows is None else rows
    model = plain.fit(plain_lists(train, own), groups=options.pop("num_groups"), queries=queries, **options)
    model = model if weights is None else model._replace(weights=weights)
    asked = test.queries.double().numpy() if test.has_queries else [None] * len(test)
    found = zip(plain_lists(test, others), asked, strict=True)
    return np.concatenate([plain.scores(model, each[0], query) for each, query in found])


# ---- the second opinion ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("mode", MODES)
def test_scores_are_those_of_the_formulas(mode, wide):
    train, test = world(0), world(1, 9)
    ranker = fitted(train, wide=wide, documents=20, **MODES[mode])
    close(scored(ranker, test), reference(train, test, **MODES[mode]), 1e-9 if wide else 1e-5)


@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("mode", QUERY_MODES)
def test_scores_from_query_vectors_are_those_of_the_formulas(mode, wide):
    train, test = world(2, queries=True), world(3, 9, queries=True)
    ranker = fitted(train, wide=wide, documents=20, **QUERY_MODES[mode])
    limit = 1e-9 if wide else 1e-5
    close(scored(ranker, test), reference(train, test, **QUERY_MODES[mode]), limit)


@pytest.mark.parametrize("options", [{}, {"high": "max", "t": 0.0}, {"high": "positive", "kappa": 5.0}], ids=str)
def test_scores_of_standardised_rows_with_features_that_never_vary_are_those_of_the_formulas(options):
    train, test = graded(0, 20), graded(1, 6)
    ranker = fitted(train, transform="standard", **options)
    own = train.x.double().numpy()
    rows = standardise(own, own), standardise(own, test.x.double().numpy())
    close(scored(ranker, test), reference(train, test, rows=rows, **options), 1e-6)
    close(scored(fitted(train, transform="standard", wide=False, **options), test), scored(ranker, test), 1e-5)


ROUNDS = [(41, {"t": 1.0}), (41, {"t": 0.5, "alpha": 0.0, "gate": "soft"}), (40, MODES["soft, finite"] | {"t": 1.0})]


@pytest.mark.parametrize(("seed", "options"), ROUNDS, ids=str)
def test_scores_after_rounds_are_those_of_the_formulas_with_the_learned_weights(seed, options):
    train, test, options = world(seed), world(11, 6), {"num_groups": 3} | options
    ranker = fitted(train, rounds=20, **options)
    weights, centres = ranker.weights.detach().numpy(), ranker.scorer.centres.numpy()
    close(scored(ranker, test), reference(train, test, weights=weights, centres=centres, **options), 1e-9)
    assert (weights >= 0).all()
    assert weights.tolist() != [0, 1, 1, 1]


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["one", "hard", "soft"])
def test_scores_tend_to_the_linear_limit(mode):
    train, test = world(4), world(5, 9)
    right = scored(fitted(train, **MODES[mode]), test)
    close(scored(fitted(train, **MODES[mode] | FAR), test), right, 1e-9)
    close(scored(fitted(train, **MODES[mode] | FAR, wide=False), test), right, 1e-5)
    gaps = [np.abs(scored(fitted(train, **MODES[mode] | {"kappa": far}), test) - right).max() for far in (1e2, 1e4)]
    assert gaps[1] < 0.02 * gaps[0]


def test_without_shrinkage_groups_are_alone_and_with_infinite_shrinkage_they_are_all_the_same_to_the_bit():
    train = world(6)
    ranker = fitted(train, num_groups=3, alpha=math.inf)
    for part in (ranker.factors, ranker.anchors, ranker.scorer.deltas, ranker.scorer.slopes):
        assert all(part[r].equal(part[0]) for r in range(1, 4))
    ranker = fitted(train, num_groups=3, alpha=0.0)
    points = np.array([rows.mean(0) for rows, _ in plain_lists(train)])
    own = np.array([plain.squared(point, ranker.scorer.centres.numpy()).argmin() for point in points])
    for g in range(3):
        alone = fitted(train.subset(np.flatnonzero(own == g)))
        metrics = [each @ each.T for each in (ranker.factors[1 + g], alone.factors[0])]
        close(metrics[0].detach(), metrics[1].detach(), 1e-10)
        close(ranker.anchors[1 + g].detach(), alone.anchors[0].detach(), 1e-10)


def test_gmml_is_one_group():
    train, test = world(0), world(1, 6)
    options = {name: GIVEN[name] for name in ("t", "ridge", "kappa", "transform")}
    assert (scored(GMML(4, **options).double().fit(train), test) == scored(fitted(train), test)).all()


# ---- laws of every mode ----------------------------------------------------------------------------------------------


def weighted(ranker) -> LGMML:
    """With weights that all count."""
    write(ranker.weights, torch.tensor([0.3, 1.2, 0.6, 0.9])[: len(ranker.weights)])
    return ranker


def all_modes():
    for name, mode in MODES.items():
        yield name, weighted(fitted(world(0), **mode)), world(1, 9)
    for name, mode in QUERY_MODES.items():
        yield f"{name}, queries", weighted(fitted(world(2, queries=True), **mode)), world(3, 9, queries=True)


def test_the_order_of_the_training_lists_does_not_matter():
    for queries in (False, True):
        train, test = world(2, queries=queries), world(3, 9, queries=queries)
        order = np.random.default_rng(0).permutation(len(train))
        for mode in (QUERY_MODES if queries else MODES).values():
            one, other = fitted(train, **mode), fitted(train.subset(order), **mode)
            close(scored(other, test), scored(one, test), 1e-9, str(mode))


def test_the_order_of_the_training_lists_does_not_change_the_choice():
    train, test = world(8, 60), world(9, 9)
    order = np.random.default_rng(0).permutation(len(train))
    for options in ({}, {"num_groups": 3}):
        one, other = (LGMML(4, **options, rounds=1).double().fit(each) for each in (train, train.subset(order)))
        assert one.findings["chosen"] == other.findings["chosen"]
        close(scored(other, test), scored(one, test), 1e-9)


def test_labels_of_the_scored_lists_do_not_matter():
    for name, ranker, test in all_modes():
        batch = test[:]
        batch = batch._replace(x=batch.x.double(), queries=None if batch.queries is None else batch.queries.double())
        order = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(0))
        right = ranker.score(batch)
        assert ranker.score(batch._replace(labels=batch.labels[order])).equal(right), name
        assert ranker.score(batch._replace(labels=torch.full_like(batch.labels, math.nan))).equal(right), name


def test_a_list_has_the_same_scores_by_itself_and_among_others():
    for name, ranker, test in all_modes():
        alone = [scored(ranker, test.subset([q])) for q in range(len(test))]
        close(np.concatenate(alone), scored(ranker, test), 1e-12, name)


def test_explanations_sum_to_differences_of_scores():
    for name, ranker, test in all_modes():
        found = scored(ranker, test)
        pairs = torch.tensor([[i, j] for b in blocks(test.offsets) for i in range(b.start, b.stop)
                              for j in (b.start, b.stop - 1)])  # fmt: skip
        parts = ranker.explain(test.x.double(), test.offsets, pairs, **given_of(test)).detach()
        assert parts.shape == (len(pairs), len(ranker.factors), 4), name
        first, second = pairs.T.numpy()
        close(parts.sum((1, 2)), found[first] - found[second], 1e-9, name)
        assert (parts[first == second] == 0).all(), name


@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("mode", [name for name in MODES if "finite" not in name])
def test_compiled_scores_are_the_scores(mode, wide):
    train, test = world(0), world(1, 9)
    for transform in (None, "standard"):
        ranker = weighted(fitted(train, wide=wide, **MODES[mode] | {"transform": transform}))
        rows = ranker.inputs(test.x.to(ranker.factors.dtype), test.offsets).x
        with torch.no_grad():
            found = ranker.compiled()(rows, test.offsets)
        close(found, scored(ranker, test), 1e-10 if wide else 1e-5)


def test_a_state_dict_brings_all_back_to_the_bit():
    for name, ranker, test in all_modes():
        file = io.BytesIO()
        torch.save(ranker.state_dict(), file)
        file.seek(0)
        other = LGMML(4, transform=None).double()
        other.load_state_dict(torch.load(file, weights_only=True))
        assert (scored(other.eval(), test) == scored(ranker, test)).all(), name
        assert other.findings == ranker.findings, name


def test_a_state_dict_brings_the_choice_back():
    train, test = world(8, 60), world(9, 9)
    ranker = LGMML(4).double().fit(train)
    other = LGMML(4).double()
    other.load_state_dict(ranker.state_dict())
    assert (scored(other.eval(), test) == scored(ranker, test)).all()
    assert other.findings["chosen"] == ranker.findings["chosen"]


# ---- rounds ----------------------------------------------------------------------------------------------------------


def test_weights_start_at_0_for_all_lists_and_1_for_the_groups():
    for mode in ("hard", "soft", "soft, finite"):
        assert fitted(world(0), **MODES[mode]).weights.tolist() == [0, 1, 1, 1]
    assert fitted(world(0)).weights.tolist() == [1]


def test_one_metric_has_no_round_of_warp():
    for mode in ("one", "one, finite"):
        assert scored(fitted(world(0), rounds=9, **MODES[mode]), world(1)).tolist() == scored(
            fitted(world(0), **MODES[mode]), world(1)).tolist()  # fmt: skip


@pytest.mark.parametrize(("seed", "options"), ROUNDS, ids=str)
def test_every_round_that_is_kept_raises_the_ndcg_of_the_training_lists(seed, options):
    train, options = world(seed), {"num_groups": 3} | options
    fits = [fitted(train, rounds=rounds, **options) for rounds in range(1, 7)]
    weights = [ranker.weights.tolist() for ranker in fits]
    values = [mean_ndcg(ranker, train) for ranker in fits]
    assert values[1] > values[0]
    for (before, after), (first, second) in zip(itertools.pairwise(values), itertools.pairwise(weights), strict=True):
        assert after > before or first == second
    assert mean_ndcg(fitted(train, rounds=50, **options), train) >= values[-1]


# ---- corners ---------------------------------------------------------------------------------------------------------


def test_one_list_with_a_relevant_document_is_enough():
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    train = RankingSet(x, (torch.arange(30) < 2).float(), torch.arange(0, 31, 6))
    assert np.isfinite(scored(LGMML(3).fit(train), train)).all()


def test_query_vectors_that_are_the_same_share_a_group():
    train = world(2, 30, queries=True)
    queries = train.queries[torch.arange(30) % 5]
    for scale in range(1, 20):
        given = {"index": train.index, "queries": queries / scale}
        ranker = fitted(RankingSet(train.x, train.labels, train.offsets, **given), num_groups=8)
        assert len(ranker.scorer.centres) == 5


def test_a_group_whose_scores_are_all_the_same_has_scale_1():
    train = world(0, 20)
    for seed in range(20):
        x, first = train.x.clone(), int(train.offsets[10])
        x[:first] = 5 + torch.randn(4, generator=torch.Generator().manual_seed(seed))
        scales = fitted(RankingSet(x, train.labels, train.offsets), num_groups=2).tau
        assert scales.min() > 1e-3


def test_a_kappa_beyond_the_root_of_the_largest_number_is_the_limit():
    train = world(0)
    right = scored(fitted(train, wide=False), train)
    close(scored(fitted(train, wide=False, kappa=1e30), train), right, 1e-5)


def test_an_explanation_takes_no_index_as_a_call_does():
    test = world(1, 3)
    fitted(world(0)).explain(test.x.double(), test.offsets, torch.tensor([[0, 1]]), index=None)


@pytest.mark.parametrize("gate", ["hard", "soft"])
def test_compiled_scores_with_a_finite_kappa(gate):
    test = world(1, 6)
    ranker = fitted(world(0), gate=gate, kappa=3.0)
    rows = ranker.transform(test.x.double(), test.offsets)
    torch.testing.assert_close(ranker.compiled()(rows, test.offsets), ranker(test.x.double(), test.offsets))

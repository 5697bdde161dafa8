"""The choice of the settings of L-GMML: values against fits without the fold in plain numpy, the rule typed again."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch

from tests.reference import groups as plain
from tests.reference.groups import mean_ndcg, plain_lists, scored, world
from tests.reference.measures import ndcg
from torchrank import LGMML, RankingSet
from torchrank.data.batch import make_batch
from torchrank.data.training import TrainingLists
from torchrank.rankers.lgmml.choice_of_settings import (
    FOLDS,
    Grid,
    Setting,
    Trial,
    choose_setting,
    distance_scores,
    draw_sample,
)
from torchrank.solvers.local_metrics.drawn_metrics import MetricOptions
from torchrank.solvers.local_metrics.groups import Averages, points_of, solve_spectra

INF = math.inf
START = Setting("given", 3, 5.0, 0.25, 0.1)


def folds_of(train) -> torch.Tensor:
    return draw_sample(points_of(TrainingLists(train)), torch.from_numpy(train.lengths), seed=0, most=10**9)[1]


def trial_of(train, val=None, *, name="given", high="half", budget=20_000) -> Trial:
    other = None if val is None else TrainingLists(val, budget=budget)
    return Trial(name, TrainingLists(train, budget=budget), other, folds_of(train), MetricOptions(high=high))


def out_of_fold(setting, train, val, centres, *, high="half", width=0.0) -> np.ndarray:
    """NDCG@10 of each training list by a fit without its fold, and of each validation list by a fit of all lists."""
    options = {"alpha": setting.alpha, "t": setting.t, "ridge": setting.ridge, "kappa": setting.kappa, "high": high}
    folds = folds_of(train).tolist()
    own = list(zip(plain_lists(train), queries_of(train), folds, strict=True))
    others = [] if val is None else list(zip(plain_lists(val), queries_of(val), itertools.repeat(FOLDS)))
    values, models = [], {}
    for (rows, labels), query, fold in own + others:
        if fold not in models:
            kept = [(each, asked) for each, asked, place in own if place != fold]
            given = None if query is None else np.array([asked for _, asked in kept])
            model = plain.fit([each for each, _ in kept], queries=given, centres=centres, **options)
            if setting.gate == "soft":
                model = model._replace(width=width)
                model = model._replace(deviations=plain.deviations(model, *zip(*kept, strict=True)))
            models[fold] = model
        values.append(ndcg(plain.scores(models[fold], rows, query).tolist(), labels.tolist(), k=10))
    return np.array(values)


def queries_of(ranking_set) -> list:
    return list(ranking_set.queries.double().numpy()) if ranking_set.has_queries else [None] * len(ranking_set)


def assert_same(actual, expected) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


# ---- folds -----------------------------------------------------------------------------------------------------------


def test_folds_are_as_large_as_each_other_and_do_not_depend_on_the_order_of_the_lists():
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(53, 3)))
    lengths = torch.from_numpy(np.random.default_rng(1).integers(1, 9, 53))
    for most in (10**6, 100):
        chosen, folds = draw_sample(points, lengths, seed=0, most=most)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        counts = folds.bincount(minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
        assert int(lengths[chosen].sum()) <= most + 8
        order = torch.randperm(53, generator=torch.Generator().manual_seed(3))
        again, others = draw_sample(points[order], lengths[order], seed=0, most=most)
        assert dict(zip(order[again].tolist(), others.tolist(), strict=True)) == dict(
            zip(chosen.tolist(), folds.tolist(), strict=True))  # fmt: skip
    assert draw_sample(points, lengths, seed=0, most=10**6)[0].tolist() == list(range(53))
    assert not draw_sample(points, lengths, seed=1, most=10**6)[1].equal(
        draw_sample(points, lengths, seed=0, most=10**6)[1])  # fmt: skip


def test_sums_without_a_fold_are_those_of_the_other_lists():
    train = world(0, 30)
    division, folds = trial_of(train).divide([3])[3], folds_of(train).tolist()
    for fold in range(FOLDS + 1):
        sums = division.learned_without(fold)
        for g in range(3):
            own = zip(plain_lists(train), division.own[0].tolist(), folds, strict=True)
            right = plain.sums([each for each, cell, place in own if cell == g and place != fold], 4)
            np.testing.assert_allclose(sums.similar[g], right.similar, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(sums.dissimilar[g], right.dissimilar, rtol=1e-9, atol=1e-9)
            assert (sums.lists[g], sums.pairs[g].tolist()) == (right.lists, list(right.pairs))


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [False, True], ids=["documents", "queries"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("validated", [False, True])
def test_values_are_those_of_fits_without_the_fold(groups, queries, validated):
    train, val = world(0, 30, queries=queries), world(1, 9, queries=queries) if validated else None
    trial = trial_of(train, val, budget=50)
    division = trial.divide([groups])[groups]
    found = trial.try_all(division, [INF if groups == 1 else 5.0], [0.0, 0.5], [0.01])
    assert [setting.t for setting in found] == [0.0, 0.5]
    for setting, values in found.items():
        assert (setting.groups, setting.ridge, setting.gate, setting.kappa) == (groups, 0.01, "hard", INF)
        assert_same(values, out_of_fold(setting, train, val, division.centres.numpy()))


def test_values_of_finite_kappas_are_those_of_fits_without_the_fold():
    train, val = world(2, 30), world(3, 6)
    trial = trial_of(train, val, high="positive")
    division = trial.divide([3])[3]
    for setting, values in trial.try_finite(division, START, [0.5, 10.0]).items():
        assert_same(values, out_of_fold(setting, train, val, division.centres.numpy(), high="positive"))


def test_values_of_the_soft_gate_are_those_of_fits_without_the_fold():
    train, val = world(0, 40), world(1, 12)
    trial = trial_of(train, val)
    division = trial.divide([3])[3]
    points = np.array([rows.mean(0) for rows, _ in plain_lists(train)])
    width = plain.spread(points, division.centres.numpy()) / points.size
    right = out_of_fold(replace(START, gate="soft"), train, val, division.centres.numpy(), width=width)
    assert_same(trial.try_soft(division, START), right)


# ---- the rule --------------------------------------------------------------------------------------------------------


def gain(values, base) -> tuple[float, float]:
    gains = (values - base)[~np.isnan(values - base)]
    return gains.mean(), gains.std(ddof=1) / math.sqrt(len(gains))


def better(base, values):
    """The largest gain of those above one standard error."""
    gains = {each: gain(values[each], values[base]) for each in values if each != base}
    sure = {each: mean for each, (mean, error) in gains.items() if mean > error}
    return max(sure, key=sure.get) if sure else base


def chosen_by_rule(trials, grid, enough):
    """The setting and the number of all that were tried; only the values are those of the trials."""
    one = {}
    for trial, ridge in itertools.product(trials, grid.ridge):
        one |= trial.try_all(trial.divide([1])[1], [INF], grid.t, [ridge])
    one = {each: values.numpy() for each, values in one.items()}
    base = max(one, key=lambda each: round(float(np.nanmean(one[each])), 12))
    trial = next(each for each in trials if each.transform == base.transform)
    divisions = trial.divide([1, *enough])
    values = dict(one)
    for groups, alpha in itertools.product(enough, grid.alpha):
        found = trial.try_all(divisions[groups], [alpha], grid.t, [base.ridge])
        values |= {each: part.numpy() for each, part in found.items()}
    hard = chosen = better(base, values)
    tried = len(values)
    if hard.groups > 1:
        soft = replace(hard, gate="soft")
        pair = {hard: values[hard], soft: trial.try_soft(divisions[hard.groups], hard).numpy()}
        chosen, tried = better(hard, pair), tried + 1
    if chosen.gate == "hard":
        finite = trial.try_finite(divisions[hard.groups], chosen, [kappa for kappa in grid.kappa if kappa != INF])
        tried += len(finite)
        chosen = better(chosen, {chosen: values[chosen]} | {each: part.numpy() for each, part in finite.items()})
    return chosen, tried, gain(values[hard], values[base]) if hard.groups > 1 else None


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_that_of_the_rule_and_tells_the_truth(seed):
    train, val = world(30 + seed, 60), world(50 + seed, 12) if seed % 2 else None
    squashed = [None if each is None else RankingSet(each.x.tanh(), each.labels, each.offsets) for each in (train, val)]
    trials = [trial_of(train, val, name="plain"), trial_of(*squashed, name="squashed")]
    choice = choose_setting(trials, Grid())
    expected, tried, gained = chosen_by_rule(trials, Grid(), [2, 3])
    assert choice.setting == expected
    by = "60 training lists out of fold" + (" and 12 validation lists" if val is not None else "")
    assert choice.findings["chosen by"] == f"NDCG@10 of {by}, best of {tried} settings"
    told = choice.findings["locality"]
    if gained is None:
        assert told == "no number of groups gains more than one standard error over 1"
    else:
        assert told == f"{expected.groups} groups gain {gained[0]:+.4f} ±{gained[1]:.4f} over the best setting with 1"
    assert ("validation" in choice.findings) == (val is not None)


def settings_tried(ranker) -> int:
    return int(re.search(r"best of (\d+) settings", ranker.findings["chosen by"])[1])


@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"num_groups": 1}], ids=str)
def test_at_most_100_settings_are_tried(options):
    ranker = LGMML(4, rounds=1, **options).fit(world(4, 260))
    assert 24 <= settings_tried(ranker) <= 100


# ---- worlds ----------------------------------------------------------------------------------------------------------


def two_kinds(seed, num_lists, opposite) -> RankingSet:
    """Lists in two places; what is good in one place is bad in the other, or else good in both."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(num_lists, 9, 4))
    sides = np.where(np.arange(num_lists) % 2, 1, -1)[:, None]
    signal = (sides if opposite else 1) * x[..., 1] + 0.4 * x[..., 2] + 0.4 * draw.normal(size=(num_lists, 9))
    x[..., 0] += 3 * sides
    labels = (signal > 0.3).astype(float) + (signal > 1.2)
    offsets = torch.arange(0, 9 * num_lists + 1, 9)
    return RankingSet(torch.tensor(x).float().flatten(0, 1), torch.tensor(labels).float().flatten(), offsets)


@pytest.mark.parametrize("seed", range(3))
def test_kinds_of_queries_that_need_opposite_weights_get_groups_of_their_own(seed):
    train, val, test = (two_kinds(10 * seed + part, 80, opposite=True) for part in range(3))
    ranker = LGMML(4).fit(train, val)
    assert ranker.findings["chosen"]["groups"] > 1
    assert ranker.findings["locality"].startswith(f"{ranker.findings['chosen']['groups']} groups gain +")
    assert mean_ndcg(ranker, test) > mean_ndcg(LGMML(4, num_groups=1).fit(train, val), test) + 0.1


@pytest.mark.parametrize("seed", range(3))
def test_queries_that_are_alike_stay_in_one_group(seed):
    train, val, test = (two_kinds(10 * seed + part, 80, opposite=False) for part in range(3))
    ranker = LGMML(4).fit(train, val)
    assert mean_ndcg(ranker, test) > mean_ndcg(LGMML(4, num_groups=1).fit(train, val), test) - 0.01
    assert ranker.findings["chosen"]["groups"] == 1


# ---- what may change -------------------------------------------------------------------------------------------------

OPTIONS = {"groups": "num_groups"}
USER = [
    {"num_groups": 2, "alpha": 7.0},
    {"num_groups": 3, "gate": "soft", "t": 0.4},
    {"num_groups": 2, "gate": "hard", "ridge": 0.03, "kappa": 2.0},
    {"num_groups": 2, "gate": "soft", "kappa": 2.0},
    {"num_groups": 1, "kappa": INF},
    {"t": 1.0, "ridge": 7.0},
    {"kappa": 4.0},
]


@pytest.mark.parametrize("given", USER, ids=str)
def test_options_that_the_user_has_given_are_not_changed(given):
    ranker = LGMML(4, rounds=1, **given).fit(two_kinds(5, 60, opposite=True))
    found = {OPTIONS.get(name, name): value for name, value in ranker.findings["chosen"].items()}
    for name, value in given.items():
        assert found[name] == ("inf" if value == INF else value)
    assert float(ranker.scorer.kappa) == given.get("kappa", float(ranker.scorer.kappa))
    assert len(ranker.scorer.centres) == given.get("num_groups", len(ranker.scorer.centres))


def chosen_options(ranker) -> dict:
    chosen = {OPTIONS.get(name, name): value for name, value in ranker.findings["chosen"].items()}
    return {name: INF if value == "inf" else value for name, value in chosen.items()}


@pytest.mark.parametrize("shuffled", [False, True])
def test_validation_lists_do_nothing_but_choose(shuffled):
    train, val, test = (two_kinds(60 + part, 60, opposite=True) for part in range(3))
    labels = val.labels[torch.randperm(len(val.labels), generator=torch.Generator().manual_seed(0))]
    val = RankingSet(val.x, labels if shuffled else val.labels, val.offsets)
    ranker = LGMML(4, rounds=1).double().fit(train, val)
    again = LGMML(4, rounds=1, **chosen_options(ranker)).double().fit(train)
    np.testing.assert_allclose(scored(again, test), scored(ranker, test), rtol=1e-12)


def test_the_same_lists_and_seed_choose_the_same():
    train, val = world(70, 60), world(71, 20)
    one, other = (LGMML(4, rounds=1, seed=3).fit(train, val, batch_documents=size) for size in (20_000, 30))
    assert one.findings == other.findings
    np.testing.assert_allclose(scored(other, val), scored(one, val), rtol=1e-5, atol=1e-5)


def test_a_choice_by_a_sample_of_the_lists_does_not_depend_on_their_order(monkeypatch):
    monkeypatch.setattr("torchrank.rankers.lgmml.choice_of_settings.DOCUMENTS", 200)
    train, val, test = world(8, 60), world(9, 40), world(10, 9)
    turned = train.subset(np.arange(60)[::-1].copy()), val.subset(np.arange(40)[::-1].copy())
    one, other = (LGMML(4, rounds=1).double().fit(*each) for each in ((train, val), turned))
    lists = [int(number) for number in re.findall(r"(\d+) (?:training|validation)", one.findings["chosen by"])]
    assert 20 <= lists[0] < 40
    assert 20 <= lists[1] < 40
    assert one.findings == other.findings
    np.testing.assert_allclose(scored(other, test), scored(one, test), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("held", [1.0, 0.05])
def test_distances_from_query_vectors_over_a_corpus(held):
    """By images of the corpus or of each list: -sqrt((x - q)' M_t (x - q)), also where x is q."""
    rng = np.random.default_rng(0)
    corpus, queries, own = rng.normal(size=(60, 5)), rng.normal(size=(4, 5)), np.array([1, 0, 1, 1])
    queries[2] = corpus[7]
    rows = [np.sort(rng.choice(60, int(60 * held), replace=False)) for _ in range(4)]
    rows[2][0] = 7
    roots = rng.normal(size=(2, 2, 9, 5))
    similar, dissimilar = np.einsum("kgni,kgnj->kgij", roots, roots)
    found = Averages(torch.tensor(similar), torch.tensor(dissimilar), torch.zeros(2, 5), torch.zeros(2, 5).double())
    spectra = solve_spectra(found, MetricOptions(ridge=0.0, ridge_mode="absolute"))
    metrics = spectra.basis, torch.stack([spectra.values**t for t in (0.0, 0.25)], 2)
    index, offsets = torch.tensor(np.concatenate(rows)), torch.arange(5) * len(rows[0])
    batch = make_batch(
        torch.tensor(corpus), torch.zeros(len(index)), offsets, index=index, queries=torch.tensor(queries)
    )
    scores = distance_scores(metrics, batch, torch.tensor(own))
    for column, t in enumerate((0.0, 0.25)):
        expected = []
        for q, group in enumerate(own):
            inverse, gaps = np.linalg.inv(similar[group]), corpus[rows[q]] - queries[q]
            half = np.linalg.cholesky(inverse)
            back = np.linalg.inv(half)
            middle = scipy.linalg.fractional_matrix_power(back @ dissimilar[group] @ back.T, t)
            expected.append(-np.sqrt(np.einsum("ni,ij,nj->n", gaps, half @ middle @ half.T, gaps)))
        np.testing.assert_allclose(scores[:, column], np.concatenate(expected), rtol=1e-10, atol=1e-14)

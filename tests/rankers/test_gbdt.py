"""GBDTRanker: the trees of LightGBM itself, validation tree by tree, refusals."""

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.by_hand import begin, take_rounds
from tests.rankers.small import FEATURES, lists
from torchrank import CheckpointError, DataError, GBDTRanker, RankingSet, TrainingLists
from torchrank.data import SparseRows
from torchrank.functional import ndcg
from torchrank.rankers.trees.lightgbm import LightGBM

lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
SMALL = {"rounds": 8, "min_leaf": 3, "leaves": 4, "threads": 1}


def beside(given):
    """Weights and positions: those of each list are a permutation of 0, 1, 2, ..."""
    generator = torch.Generator().manual_seed(3)
    shown = torch.cat([torch.randperm(length, generator=generator) for length in given.lengths.tolist()])
    return {"weights": torch.rand(len(shown), generator=generator), "positions": shown}


def scores_of(ranker, given):
    return ranker(given.x, given.offsets)


@pytest.mark.peers
@pytest.mark.parametrize("objective", ["lambdarank", "rank_xendcg", "regression"])
def test_the_trees_are_those_of_lightgbm(objective):
    train, test = lists(0), lists(2)
    ranker = GBDTRanker(FEATURES, objective, **SMALL).fit(train)
    options = {"objective": objective, "learning_rate": 0.05, "num_leaves": 4, "min_data_in_leaf": 3, "verbosity": -1}
    options |= {"num_threads": 1, "seed": 0, "deterministic": True, "force_row_wise": True}
    data = lightgbm.Dataset(train.x.numpy(), train.labels.numpy(), group=train.offsets.diff().numpy())
    peer = lightgbm.train(options, data, num_boost_round=8)
    np.testing.assert_allclose(scores_of(ranker, test), peer.predict(test.x.numpy(), raw_score=True), rtol=1e-12)


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["plain", "weights", "positions"])
def test_lightgbm_gets_weights_and_positions(kind):
    train, given = lists(0), beside(lists(0))
    own = {name: given[name] for name in (kind,) if kind != "plain"}
    ranker = GBDTRanker(FEATURES, **SMALL).fit(RankingSet(train.x, train.labels, train.offsets, **own))
    options = {"objective": "lambdarank", "learning_rate": 0.05, "num_leaves": 4, "min_data_in_leaf": 3}
    options |= {"num_threads": 1, "seed": 0, "deterministic": True, "force_row_wise": True, "verbosity": -1}
    theirs = {name.removesuffix("s"): value.numpy() for name, value in own.items()}
    data = lightgbm.Dataset(train.x.numpy(), train.labels.numpy(), group=train.offsets.diff().numpy(), **theirs)
    peer = lightgbm.train(options, data, num_boost_round=8)
    assert np.array_equal(scores_of(ranker, train), peer.predict(train.x.numpy(), raw_score=True))
    if kind == "positions":
        off = GBDTRanker(FEATURES, **SMALL, options={"lambdarank_unbiased": False})
        off.fit(RankingSet(train.x, train.labels, train.offsets, **own))
        assert torch.equal(scores_of(off, train), scores_of(GBDTRanker(FEATURES, **SMALL).fit(train), train))
        assert not torch.equal(scores_of(off, train), scores_of(ranker, train))


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("monotone_constraints", [-1, *[0] * (FEATURES - 2), 1], f"(-1,{'0,' * (FEATURES - 2)}1)"),
        ("interaction_constraints", [[0, 1], [2]], "[[0, 1], [2]]"),
    ],
)
def test_constraints_of_xgboost_may_be_lists(name, given, text):
    train = lists(0)
    ranker = GBDTRanker(FEATURES, rounds=8, lr=0.1, threads=1, options={name: given}, engine="xgboost").fit(train)
    peer = xgboost.XGBRanker(n_estimators=8, learning_rate=0.1, n_jobs=1, **{name: text})
    peer.fit(train.x.numpy(), train.labels.numpy(), group=train.offsets.diff().numpy())
    assert np.array_equal(scores_of(ranker, train), peer.predict(train.x.numpy()))


@pytest.mark.peers
@pytest.mark.parametrize("objective", ["lambdarank", "rank:pairwise", "regression"])
@pytest.mark.parametrize("options", [{}, {"max_depth": 3, "reg_lambda": 2.0}, {"subsample": 0.7, "gamma": 0.01}])
def test_the_trees_are_those_of_xgboost(objective, options):
    train, test = lists(0), lists(2)
    ranker = GBDTRanker(FEATURES, objective, 8, 0.1, threads=1, options=options, engine="xgboost").fit(train)
    names = {"lambdarank": "rank:ndcg", "regression": "reg:squarederror"}
    kind = xgboost.XGBRegressor if objective == "regression" else xgboost.XGBRanker
    peer = kind(objective=names.get(objective, objective), n_estimators=8, learning_rate=0.1, n_jobs=1, **options)
    group = {} if objective == "regression" else {"group": train.offsets.diff().numpy()}
    peer.fit(train.x.numpy(), train.labels.numpy(), **group)
    assert np.array_equal(scores_of(ranker, test), peer.predict(test.x.numpy()))


@pytest.mark.peers
def test_xgboost_gets_weights_of_lists_and_documents_in_the_order_of_their_positions():
    train, shown = lists(0), beside(lists(0))["positions"]
    group, options = train.offsets.diff(), {"lambdarank_unbiased": True}
    weights = torch.rand(len(train), generator=torch.Generator().manual_seed(1)).repeat_interleave(group)
    given = RankingSet(train.x, train.labels, train.offsets, weights=weights, positions=shown)
    ranker = GBDTRanker(FEATURES, rounds=8, lr=0.1, threads=1, options=options, engine="xgboost").fit(given)
    order = np.lexsort((shown.numpy(), np.repeat(np.arange(len(train)), group)))
    peer = xgboost.XGBRanker(n_estimators=8, learning_rate=0.1, n_jobs=1, **options)
    per_list = weights[train.offsets[:-1]].numpy()
    peer.fit(train.x.numpy()[order], train.labels.numpy()[order], group=group.numpy(), sample_weight=per_list)
    assert np.array_equal(scores_of(ranker, train), peer.predict(train.x.numpy()))
    off = GBDTRanker(FEATURES, rounds=8, lr=0.1, threads=1, engine="xgboost")
    with pytest.warns(torchrank.DataWarning, match="which XGBoost uses with the option lambdarank_unbiased=true alone"):
        off.fit(given)
    assert not torch.equal(scores_of(off, train), scores_of(ranker, train))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_leaves": 1}, r"Check failed: \(num_leaves\) > \(1\)$"),
        ({"max_depth": "x"}, r"should be of type int, got .x.$"),
    ],
)
def test_what_lightgbm_refuses_is_one_line(options, told):
    with pytest.raises(ValueError, match=f"^LightGBM refuses this: .*{told}"):
        GBDTRanker(FEATURES, **SMALL, options=options).fit(lists(0))


def test_linear_trees_are_scored_but_not_explained():
    ranker, test = GBDTRanker(FEATURES, **SMALL, options={"linear_tree": True}).fit(lists(0)), lists(2)
    assert scores_of(ranker, test).isfinite().all()
    with pytest.raises(ValueError, match=r"LightGBM refuses this: .*not implemented for linear trees"):
        torchrank.explain(ranker, test.x, test.offsets, (0, 1))


def test_what_xgboost_cannot_do_here_is_refused():
    train, made = lists(0), {"rounds": 2, "threads": 1, "engine": "xgboost"}
    uneven = RankingSet(train.x, train.labels, train.offsets, weights=torch.arange(len(train.labels)) + 1.0)
    nothing = RankingSet(train.x, train.labels, train.offsets, weights=torch.zeros(len(train.labels)))
    cases = [
        ({}, uneven, "one weight for each list, but list 0 has different ones"),
        ({}, nothing, "all weights are 0"),
        ({"objective": "regression"}, nothing, "all weights are 0"),
        ({"objective": "rank:map"}, train, "rank:map takes labels 0 and 1 only"),
        ({"options": {"num_leafs": 3}}, train, "XGBoost has no option num_leafs with objective=rank:ndcg"),
        ({"options": {"max_depth": -3}}, train, "XGBoost refuses this: .*max_depth"),
        ({}, RankingSet(train.x / 3, train.labels / 3, train.offsets), "integer grades, but the labels are real"),
        ({}, RankingSet(train.x, train.labels * 20, train.offsets), "labels up to 31, but the highest label is"),
        (
            {},
            RankingSet(train.x.double() * 1e39, train.labels, train.offsets),
            "row 0 is beyond float32, in which rows",
        ),
        ({"options": {"updater": "refresh"}}, train, "XGBoost refuses this: Updater: `refresh` can not"),
        ({}, RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets), "does not take sparse rows"),
    ]
    for options, given, message in cases:
        with pytest.raises(ValueError, match=message) as told:
            GBDTRanker(FEATURES, **made | options).fit(given)
        assert "\n" not in str(told.value)
    gaps = RankingSet(train.x, train.labels, train.offsets, positions=torch.zeros(len(train.labels), dtype=torch.int64))
    with pytest.warns(torchrank.DataWarning, match=r"positions of a list are not 0, 1, 2"):
        GBDTRanker(FEATURES, **made, options={"lambdarank_unbiased": True}).fit(gaps)


def test_scores_of_validation_lists_grow_tree_by_tree():
    """Each tree is asked once in a fit, and the sums are the scores of all trees."""
    ranker, val = GBDTRanker(FEATURES, **SMALL), lists(1)
    begin(ranker, lists(0))
    batches = [val[0:7], val[7:12]]
    for number in range(6):
        take_rounds(ranker, number, number + 1)
        for batch in batches if number != 3 else []:  # a round that is not validated
            torch.testing.assert_close(ranker.validation_scores(batch), ranker.score(batch), rtol=1e-12, atol=1e-12)
    ranker.release()
    assert torch.equal(ranker.validation_scores(batches[0]), ranker.score(batches[0]))


def test_validation_keeps_the_best_number_of_trees():
    train, val = lists(0), lists(1)
    best, whole = (GBDTRanker(FEATURES, **SMALL | {"rounds": 30, "lr": 0.5}) for _ in range(2))
    best.fit(train, val)
    whole.fit(train)
    values = []
    for trees in range(1, 31):
        scores = whole.booster.predict(val.x.numpy(), raw_score=True, num_iteration=trees)
        values.append(float(ndcg(torch.from_numpy(scores), val.labels, val.offsets, k=10).nanmean()))
    assert best.booster.current_iteration() == 1 + int(np.argmax(np.round(values, 6))) < 30


def test_sparse_rows_are_dense_ones():
    train, test = lists(0), lists(2)
    sparse = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets)
    one, other = (GBDTRanker(FEATURES, **SMALL).fit(given) for given in (train, sparse))
    assert torch.equal(scores_of(one, test), scores_of(other, test)) and scores_of(one, test).std() > 0


def test_real_valued_labels_are_for_regression():
    train, test = lists(0), lists(2)
    real = RankingSet(train.x, train.labels / 3 + 0.2, train.offsets)
    with pytest.raises(DataError, match="the labels are real-valued: use objective=regression"):
        GBDTRanker(FEATURES, **SMALL).fit(real)
    assert scores_of(GBDTRanker(FEATURES, "regression", **SMALL).fit(real), test).std() > 0


def test_what_lightgbm_cannot_do_here_is_refused():
    with pytest.raises(ValueError, match="unknown objective='map': choose one of lambdarank, rank_xendcg, regression"):
        GBDTRanker(FEATURES, "map")
    with pytest.raises(ValueError, match="GBDTRanker trains in one process, but there are 2: use trainer=cpu"):
        GBDTRanker(FEATURES).open(TrainingLists(lists(0), world=2))
    with pytest.raises(ValueError, match="options cannot have boosting=dart"):
        GBDTRanker(FEATURES, options={"boosting": "dart"})


def test_aliases_of_lightgbm_are_what_they_are_called_there():
    """Beside the main names, which the ranker sets, LightGBM would ignore them."""
    from lightgbm.basic import _ConfigAliases

    for name, aliases in LightGBM.aliases.items():
        assert {name, *aliases} == _ConfigAliases.get(name)
    train, test = lists(0), lists(2)
    given = GBDTRanker(FEATURES, lr=0.3, leaves=3, min_leaf=2, rounds=5, threads=1).fit(train)
    options = {"eta": 0.3, "max_leaf": 3, "min_child_samples": 2, "n_jobs": 1, "random_state": 0}
    ranker = GBDTRanker(FEATURES, rounds=5, options=options).fit(train)
    assert torch.equal(scores_of(given, test), scores_of(ranker, test))


def test_options_that_lightgbm_would_ignore_are_refused():
    options = {"bagging_fraction": 0.5, "subsample": 0.6}
    with pytest.raises(ValueError, match="options have bagging_fraction twice, as bagging_fraction and subsample"):
        GBDTRanker(FEATURES, **SMALL, options=options).fit(lists(0))
    with pytest.raises(ValueError, match="LightGBM has no option max_leef: see its list of parameters"):
        GBDTRanker(FEATURES, **SMALL, options={"max_leef": 3}).fit(lists(0))
    with pytest.raises(DataError, match="lambdarank_unbiased needs the position of each document"):
        GBDTRanker(FEATURES, **SMALL, options={"lambdarank_unbiased": True}).fit(lists(0))


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
def test_a_round_grows_several_trees(engine):
    """A fiftieth of them by default; a resumed fit goes on as it began."""
    assert GBDTRanker(FEATURES, engine=engine).trees_per_round == 20
    assert [GBDTRanker(FEATURES, rounds=rounds).trees_per_round for rounds in (1, 99, 100, 5000)] == [1, 1, 2, 100]
    one = GBDTRanker(FEATURES, rounds=7, leaves=4, threads=1, engine=engine).fit(lists(0))
    ranker = GBDTRanker(FEATURES, rounds=7, leaves=4, threads=1, engine=engine, trees_per_round=3)
    assert ranker.rounds == 3 and torch.equal(scores_of(ranker.fit(lists(0)), lists(2)), scores_of(one, lists(2)))
    longer = GBDTRanker(FEATURES, rounds=30, leaves=4, threads=1, engine=engine)
    longer.load_state_dict(ranker.state_dict())
    assert (longer.trees_per_round, longer.rounds) == (3, 10)
    ranker.fit(lists(0), lists(1))
    assert ranker.engine.rounds(ranker.booster) in (3, 6, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.1, "learning_rate": 0.1}, "options have learning_rate twice, as eta and learning_rate"),
        ({"n_estimators": 5}, "options cannot have n_estimators=5: rounds are an option of the ranker"),
        ({"boosting": "dart"}, "options cannot have boosting=dart: it changes trees that are already validated"),
        ("max_bin=3", "options must be a mapping of names to values, got 'max_bin=3'"),
        ({"early_stopping_rounds": 5}, "options cannot have early_stopping_rounds=5: torchrank stops early"),
        ({"loss": "binary"}, "unknown options.objective='binary'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GBDTRanker(FEATURES, options=options)


@pytest.mark.parametrize("engine", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("lr", [0, -1, float("nan")])
def test_a_learning_rate_is_above_0(engine, lr):
    with pytest.raises(ValueError, match=r"lr must be .*> 0, got"):
        GBDTRanker(FEATURES, lr=lr, engine=engine)


def test_limits_of_lightgbm_are_told():
    x, labels = torch.rand(10_001, 1), torch.arange(10_001) % 2
    long = RankingSet(x, labels, torch.tensor([0, 10_001]))
    with pytest.raises(DataError, match="lists of 10000 documents at most, but one has 10001: use objective=rank"):
        GBDTRanker(1, rounds=1).fit(long)
    GBDTRanker(1, "rank_xendcg", rounds=1).fit(long)
    high = RankingSet(x[:40], torch.arange(40), torch.tensor([0, 40]))
    with pytest.raises(DataError, match="labels up to 30, but the highest label is 39: give its option label_gain"):
        GBDTRanker(1, rounds=1).fit(high)
    GBDTRanker(1, rounds=1, options={"label_gain": list(range(40))}).fit(high)


def test_a_damaged_booster_is_refused():
    state = GBDTRanker(FEATURES, **SMALL).fit(lists(0)).state_dict()
    state["_extra_state"]["booster"] = state["_extra_state"]["booster"].replace("num_leaves=4", "num_leaves=400000")
    with pytest.raises(CheckpointError, match="the trees in this state are damaged"):
        GBDTRanker(FEATURES, **SMALL).load_state_dict(state)

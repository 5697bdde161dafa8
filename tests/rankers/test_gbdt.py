"""GBDTRanker: the trees of LightGBM itself, validation tree by tree, refusals."""

import numpy as np
import pytest
import torch

from tests.rankers.by_hand import begin, take_rounds
from tests.rankers.small import FEATURES, lists
from torchrank import CheckpointError, DataError, GBDTRanker, RankingSet, TrainingLists
from torchrank.data import SparseRows
from torchrank.functional import ndcg
from torchrank.rankers.trees.lightgbm import LightGBM

lightgbm = pytest.importorskip("lightgbm")
SMALL = {"rounds": 8, "min_leaf": 3, "leaves": 4, "threads": 1}


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.1, "learning_rate": 0.1}, "options have learning_rate twice, once as learning_rate"),
        ({"n_estimators": 5}, "options cannot have n_estimators=5: rounds are an option of the ranker"),
        ({"boosting": "dart"}, "options cannot have boosting=dart"),
        ({"loss": "binary"}, "unknown options.objective='binary'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GBDTRanker(FEATURES, options=options)


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

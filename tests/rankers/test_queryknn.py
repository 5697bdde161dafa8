"""QueryKNN: neighbours and models by plain loops, ListNet as its limit, rounds, resume, refusals.

Its solver is compared with scipy in tests/golden/test_many_linear.py.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import torchrank
from tests.golden.test_many_linear import objective
from tests.rankers.rounds import check_every_cut, equal_states, interrupted
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import ListNet, QueryKNN, RankingDataModule, RankingSet
from torchrank.data import SparseRows
from torchrank.solvers import query_means as module_of_vectors
from torchrank.solvers.query_means import nearest_queries, query_vectors

QUICK = {"neighbours": 3, "l2": 0.1, "transform": None}


def fit(folder, module=None, **options):
    module = module or data()
    ranker = QueryKNN(module.num_features, **QUICK | options)
    trainer(folder, 100, monitor=None).fit(ranker, datamodule=module)
    return ranker


def vectors_of(given, top=None, reference=None, features=None):
    found = []
    for q in range(len(given)):
        x = given.x[given.offsets[q] : given.offsets[q + 1]].double().numpy()
        if top is not None:
            x = x[np.argsort(-x[:, reference], kind="stable")[:top]]
        found.append(x.mean(0) if features is None else x.mean(0)[features])
    return np.array(found)


def order_from(vector, others):
    return np.argsort([np.sqrt(((vector - other) ** 2).sum()) for other in others], kind="stable")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"standardise": False, "base": "ranksvm"},
        {"top": 4, "reference_feature": 2, "features": [0, 3, 5]},
    ],
    ids=str,
)
def test_models_and_choices_are_those_of_loops(tmp_path, options):
    train, test = lists(0, num_lists=6), lists(2)
    ranker = fit(tmp_path, RankingDataModule.from_sets(train=train, val=test), tolerance=1e-8, **options)
    how = {"top": options.get("top"), "reference": options.get("reference_feature")}
    mine, others = (vectors_of(given, features=options.get("features"), **how) for given in (train, test))
    if options.get("standardise", True):
        mean, deviation = mine.mean(0), mine.std(0)
        mine, others = (mine - mean) / deviation, (others - mean) / deviation
    plain = (train.x.double().numpy(), train.labels.double().numpy(), train.offsets.numpy())
    weights = []
    for q in range(len(train)):
        chosen = [q, *(i for i in order_from(mine[q], mine) if i != q)][:4]
        arguments = (*plain, chosen, ranker.base, 0.1, np.eye(FEATURES))
        weights.append(minimize(objective, np.zeros(FEATURES), arguments, options={"gtol": 1e-6}).x)
    np.testing.assert_allclose(ranker.weight.numpy(), weights, atol=2e-5)
    scores = ranker(test.x, test.offsets)
    for q in range(len(test)):
        x = test.x[test.offsets[q] : test.offsets[q + 1]]
        expected = x.double().numpy() @ ranker.weight[order_from(others[q], mine)[0]].numpy()
        np.testing.assert_allclose(scores[test.offsets[q] : test.offsets[q + 1]].numpy(), expected, atol=1e-6)


def test_all_other_queries_as_neighbours_are_listnet(tmp_path):
    module = data()
    ranker = fit(tmp_path / "knn", neighbours=11, l2=0.1, tolerance=1e-8, transform="standard")
    more = fit(tmp_path / "more", neighbours=400, l2=0.1, tolerance=1e-8, transform="standard")
    whole = ListNet(FEATURES, l2=0.1, tolerance=1e-8)
    trainer(tmp_path, 500, monitor=None, limit_val_batches=0).fit(whole, datamodule=module)
    for found in (ranker, more):
        torch.testing.assert_close(found.weight, whole.scorer.weight.expand(12, -1), rtol=1e-6, atol=1e-6)
    test = lists(2)
    torch.testing.assert_close(ranker(test.x, test.offsets), whole(test.x, test.offsets), rtol=1e-5, atol=1e-5)


def test_models_without_a_pair_are_the_model_of_all_lists(tmp_path):
    train = lists(0)
    labels = train.labels.clone()
    labels[: train.offsets[3]] = 1.0
    given = RankingSet(train.x, labels, train.offsets)
    ranker = fit(tmp_path, RankingDataModule.from_sets(train=given, val=given), neighbours=0, tolerance=1e-8)
    whole = ListNet(FEATURES, l2=0.1, tolerance=1e-8, transform=None)
    module = RankingDataModule.from_sets(train=given, val=given)
    trainer(tmp_path, 500, monitor=None, limit_val_batches=0).fit(whole, datamodule=module)
    torch.testing.assert_close(ranker.weight[:3], whole.scorer.weight.expand(3, -1), rtol=1e-6, atol=1e-6)
    assert (ranker.weight[3:] - whole.scorer.weight).abs().amax(1).max() > 0.01


# ---- query vectors --------------------------------------------------------------------------------------------------


def test_neighbours_of_copies_and_in_blocks(monkeypatch):
    """Of equal distances the first, and every query is its own neighbour even where it has copies."""
    vectors = torch.randint(0, 3, (30, 2), generator=torch.Generator().manual_seed(0)).double()
    expected = [order_from(v, vectors.numpy()) for v in vectors.numpy()]
    for block in (2**22, 70):
        monkeypatch.setattr(module_of_vectors, "BLOCK", block)
        assert nearest_queries(vectors, vectors, 5).tolist() == [e[:5].tolist() for e in expected]
        assert nearest_queries(vectors, vectors, 1).tolist() == [e[:1].tolist() for e in expected]
        own = nearest_queries(vectors[4:9], vectors, 5, first=4)
        assert own.tolist() == [[q, *(i for i in expected[q].tolist() if i != q)][:5] for q in range(4, 9)]


def test_lists_without_documents():
    assert query_vectors(torch.ones(2, 3), torch.tensor([0, 0, 2]), top=5, reference=1).tolist() == [[0] * 3, [1] * 3]
    assert nearest_queries(torch.ones(0, 3), torch.ones(4, 3), 2).shape == (0, 2)


# ---- rounds and checkpoints -----------------------------------------------------------------------------------------


def test_rounds_of_few_models_and_batches_change_nothing(tmp_path):
    whole, small = fit(tmp_path / "1"), fit(tmp_path / "2", data(batch_documents=25), models_per_round=5)
    assert (whole.trainer.current_epoch, small.trainer.current_epoch) == (1, 3)
    for name in ("weight", "vectors"):
        torch.testing.assert_close(small.state_dict()[name], whole.state_dict()[name], rtol=1e-5, atol=1e-5)
    assert whole.converged and whole.certificate["gradient"] <= whole.certificate["tolerance"] == 1e-6


def test_cut_after_any_round_the_fit_ends_the_same(tmp_path):
    check_every_cut(tmp_path, lambda: QueryKNN(FEATURES, models_per_round=6, **QUICK), 2)


def test_an_interrupt_loses_one_round(tmp_path):
    """A round asks for many sums: at some of them."""
    whole = QueryKNN(FEATURES, models_per_round=6, **QUICK)
    calls = interrupted(whole)
    trainer(tmp_path / "whole", 100, monitor=None).fit(whole, datamodule=data())
    for stop in (2, len(calls) - 3):
        cut, resumed = (QueryKNN(FEATURES, models_per_round=6, **QUICK) for _ in range(2))
        interrupted(cut, stop)
        with pytest.raises(SystemExit):
            trainer(tmp_path / str(stop), 100, monitor=None).fit(cut, datamodule=data())
        last = tmp_path / str(stop) / "last.ckpt"
        again = trainer(tmp_path / str(stop), 100, monitor=None)
        again.fit(resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True)
        equal_states(whole, resumed, exact=True)


def test_fitted_again_saved_and_measured(tmp_path):
    ranker, other = fit(tmp_path / "one", transform={"name": "pca", "variance": 0.9}), lists(5, num_lists=8)
    module = RankingDataModule.from_sets(train=other, val=lists(1), test=lists(2))
    again = trainer(tmp_path / "again", 100)
    again.fit(ranker, datamodule=module)
    again.test(ranker, datamodule=module, verbose=False)
    assert ranker.weight.shape == (8, ranker.transform.num_outputs)
    assert ranker.measured["test"]["default"]["measures"]["ndcg@10"] > 0.6
    loaded, test = torchrank.load(tmp_path / "again" / "last.ckpt"), lists(2)
    assert torch.equal(loaded(test.x, test.offsets), ranker(test.x, test.offsets))


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": "rankboost"}, "unknown base='rankboost': choose one of listnet, ranksvm"),
        ({"neighbours": -1}, "integers, neighbours 0 or more"),
        ({"neighbours": 2.5}, "neighbours=2.5 and models_per_round=.*: they have to be integers"),
        ({"models_per_round": 0}, "models_per_round 1 or more"),
        ({"top": 3}, "top=3 and reference_feature=None: give both"),
        ({"top": 0, "reference_feature": 1}, "top=0 and reference_feature=1: give both, top from 1"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        QueryKNN(FEATURES, **given)


def test_features_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"features \[6\] of 6: they are counted from 0"):
        fit(tmp_path, features=[0, 6])


def test_other_forms_of_data_are_refused(tmp_path):
    train = lists(0)
    given = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets)
    with pytest.raises(ValueError, match="does not take sparse rows"):
        fit(tmp_path, RankingDataModule.from_sets(train=given, val=given))


def test_scores_before_a_fit_are_refused():
    test = lists(2)
    with pytest.raises(ValueError, match="this QueryKNN is not fitted"):
        QueryKNN(FEATURES, transform=None)(test.x, test.offsets)

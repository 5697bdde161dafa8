"""QueryKNN: neighbours and models by plain loops, ListNet as its limit, rounds, refusals.

Its solver is compared with scipy in tests/solvers/linear/test_many_linear.py.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.rankers.by_hand import begin, resumed, same_state, take_rounds
from tests.rankers.small import FEATURES, lists
from tests.reference.linear import objective
from torchrank import ListNet, QueryKNN, RankingSet, TrainingLists
from torchrank.data import SparseRows
from torchrank.functional import ndcg
from torchrank.rankers import queryknn
from torchrank.solvers.linear.scores import nearest_queries, query_vectors

QUICK = {"neighbours": 3, "l2": 0.1, "transform": None}


def fit(train=None, batch_documents=40, **options):
    train = lists(0) if train is None else train
    return QueryKNN(train.num_features, **QUICK | options).fit(train, batch_documents=batch_documents)


def vectors_of(given, top=None, reference=None):
    found = []
    for q in range(len(given)):
        x = given.x[given.offsets[q] : given.offsets[q + 1]].double().numpy()
        if top is not None:
            x = x[np.argsort(-x[:, reference], kind="stable")[:top]]
        found.append(x.mean(0))
    return np.array(found)


def order_from(vector, others):
    return np.argsort([np.sqrt(((vector - other) ** 2).sum()) for other in others], kind="stable")


@pytest.mark.parametrize(
    "options",
    [{}, {"standardise": False, "base": "ranksvm"}, {"top": 4, "reference_feature": 2}],
    ids=str,
)
def test_models_and_choices_are_those_of_loops(options):
    train, test = lists(0, num_lists=6), lists(2)
    ranker = fit(train, tolerance=1e-8, **options)
    how = {"top": options.get("top"), "reference": options.get("reference_feature")}
    mine, others = (vectors_of(given, **how) for given in (train, test))
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


def test_all_other_queries_as_neighbours_are_listnet():
    options, test = {"l2": 0.1, "tolerance": 1e-8, "transform": "standard"}, lists(2)
    ranker, more = (fit(neighbours=neighbours, **options) for neighbours in (11, 400))
    whole = ListNet(FEATURES, **options).fit(lists(0))
    for found in (ranker, more):
        torch.testing.assert_close(found.weight, whole.scorer.weight.expand(12, -1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ranker(test.x, test.offsets), whole(test.x, test.offsets), rtol=1e-5, atol=1e-5)


def test_models_without_a_pair_are_the_model_of_all_lists():
    train = lists(0)
    labels = train.labels.clone()
    labels[: train.offsets[3]] = 1.0
    given = RankingSet(train.x, labels, train.offsets)
    ranker = fit(given, neighbours=0, tolerance=1e-8)
    whole = ListNet(FEATURES, l2=0.1, tolerance=1e-8, transform=None).fit(given)
    torch.testing.assert_close(ranker.weight[:3], whole.scorer.weight.expand(3, -1), rtol=1e-6, atol=1e-6)
    assert (ranker.weight[3:] - whole.scorer.weight).abs().amax(1).max() > 0.01


# ---- query vectors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [30, 2100])  # 2,100 queries have more distances than are computed at once
def test_the_neighbours_of_copies(count):
    """Of equal distances the first, and every query is its own neighbour even where it has copies."""
    vectors = torch.randint(0, 3, (count, 2), generator=torch.Generator().manual_seed(0)).double()
    expected = [order_from(v, vectors.numpy()) for v in vectors.numpy()]
    assert nearest_queries(vectors, vectors, 5).tolist() == [e[:5].tolist() for e in expected]
    assert nearest_queries(vectors, vectors, 1).tolist() == [e[:1].tolist() for e in expected]
    own = nearest_queries(vectors[4:9], vectors, 5, first=4)
    assert own.tolist() == [[q, *(i for i in expected[q].tolist() if i != q)][:5] for q in range(4, 9)]


def test_lists_without_documents():
    assert query_vectors(torch.ones(2, 3), torch.tensor([0, 0, 2]), top=5, reference=1).tolist() == [[0] * 3, [1] * 3]
    assert nearest_queries(torch.ones(0, 3), torch.ones(4, 3), 2).shape == (0, 2)


# ---- rounds ---------------------------------------------------------------------------------------------------------


def make():
    return QueryKNN(FEATURES, **QUICK)


def test_rounds_of_few_models_and_batches_change_nothing(monkeypatch):
    whole, small = make(), make()
    begin(whole, lists(0), 10_000)
    assert take_rounds(whole, 0, 9) == 1
    monkeypatch.setattr("torchrank.rankers.queryknn.MODELS", 5)
    begin(small, lists(0), 25)
    assert take_rounds(small, 0, 9) == 3
    for name in ("weight", "vectors"):
        torch.testing.assert_close(small.state_dict()[name], whole.state_dict()[name], rtol=1e-5, atol=1e-5)
    assert whole.converged and whole.certificate.proved and whole.certificate.limit == 1e-6


def test_a_fit_of_several_rounds_loses_one_round_by_an_interrupt(monkeypatch):
    """At some of the many sums over processes; the fit of the laws of all rankers has one round only."""
    monkeypatch.setattr("torchrank.rankers.queryknn.MODELS", 4)
    calls, reduce = [], TrainingLists.reduce
    stop = 0

    def counted(self, tensor):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return reduce(self, tensor)

    monkeypatch.setattr(TrainingLists, "reduce", counted)
    whole = make()
    training = begin(whole, lists(0))
    calls.clear()
    assert take_rounds(whole, 0, 9) == 3
    total, rounds = len(calls), set()
    for place in (1, total // 2, total):
        cut, stop = make(), 0
        begin(cut, lists(0))
        calls.clear()
        stop = place
        with pytest.raises(KeyboardInterrupt):
            take_rounds(cut, 0, 9)
        again, stop = resumed(cut, make, training), 0
        rounds.add(len(cut.slope) // 4)
        take_rounds(again, len(cut.slope) // 4, 9)
        same_state(whole, again)
    assert rounds == {0, 1, 2}


def test_fitted_again_with_a_transform_that_decides_the_width():
    ranker, test = fit(transform={"name": "pca", "variance": 0.9}), lists(2)
    ranker.fit(lists(5, num_lists=8))
    assert ranker.weight.shape == (8, ranker.transform.num_outputs)
    assert ndcg(ranker(test.x, test.offsets), test.labels, test.offsets, k=10).nanmean() > 0.6
    same_state(ranker, fit(lists(5, num_lists=8), 20_000, transform={"name": "pca", "variance": 0.9}))


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": "rankboost"}, "unknown base='rankboost': choose one of listnet, ranksvm"),
        ({"neighbours": -1}, "neighbours must be >= 0, got -1"),
        ({"neighbours": 2.5}, "neighbours must be an integer >= 0, got 2.5"),
        ({"top": 3}, "top >= 1 and reference_feature must be given together, or neither; got top=3"),
        ({"top": 0, "reference_feature": 1}, "top >= 1 and reference_feature must be given together, .* got top=0"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        QueryKNN(FEATURES, **given)


@pytest.mark.parametrize("feature", [-1, 6])
def test_a_feature_that_is_not_there_is_refused(feature):
    with pytest.raises(ValueError, match=f"reference_feature must be from 0 to 5, got {feature}"):
        fit(top=2, reference_feature=feature)


def test_other_forms_of_data_are_refused():
    train = lists(0)
    with pytest.raises(ValueError, match="does not take sparse rows"):
        fit(RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets))


def test_it_says_how_long_the_rest_will_take(monkeypatch, caplog):
    monkeypatch.setattr(queryknn, "MODELS", 2)
    monkeypatch.setattr(queryknn, "LONG", 0)
    with caplog.at_level("INFO", queryknn.__name__):
        QueryKNN(FEATURES, neighbours=1).fit(lists(0))
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("2 of ")

"""TransductivePCA: a model for each list by plain loops, its limits, boosting of many models, laws, refusals."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.rankers.by_hand import same_state
from tests.rankers.small import FEATURES, lists
from tests.reference import boosting as boosting_reference
from tests.reference.linear import objective
from torchrank import ListNet, RankBoost, RankingSet, TransductivePCA
from torchrank.data import SparseRows
from torchrank.functional import ndcg
from torchrank.rankers import transductive
from torchrank.rankers.transductive import project, rule_scores
from torchrank.solvers.boosting import Rules, boost_many

QUICK = {"components": 2, "l2": 0.1, "transform": None}


def fit(train=None, **options):
    train = lists(0) if train is None else train
    return TransductivePCA(train.num_features, **QUICK | options).fit(train, batch_documents=40)


def directions(x, count):
    """Of rows (n, D), by the eigenvectors of their covariance; those without variance are left out.

    The entry of largest size is positive: rules x > t and -x > -t part equal documents in different ways.
    """
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(x))
    large = values[::-1] > 1e-6 * max(values[-1], 1e-9)
    found = vectors[:, ::-1].T[large][:count]
    return np.array([u * np.sign(u[np.argmax(np.abs(u))]) for u in found]).reshape(-1, x.shape[1])


def blocks(given):
    x, offsets = given.x.double().numpy(), given.offsets.tolist()
    return [x[a:b] for a, b in pairwise(offsets)]


@pytest.mark.parametrize("options", [{}, {"base": "ranksvm", "components": 3}, {"augment": True}], ids=str)
def test_scores_are_those_of_a_model_for_each_list(options):
    train, test = lists(0, num_lists=6), lists(2, num_lists=7)
    test.x[test.offsets[2] : test.offsets[3]] = 1.0  # a list without a direction
    ranker = fit(train, tolerance=1e-8, **options)
    plain = (train.x.double().numpy(), train.labels.double().numpy(), train.offsets.numpy())
    expected = []
    for x in blocks(test):
        basis = directions(x, ranker.components)
        if options.get("augment") or not len(basis):
            basis = np.concatenate([basis, np.eye(FEATURES)])
        arguments = (*plain, range(6), ranker.base, 0.1, basis)
        expected.append(x @ basis.T @ minimize(objective, np.zeros(len(basis)), arguments, options={"gtol": 1e-6}).x)
    with torch.inference_mode():
        scores = ranker(test.x, test.offsets)
    np.testing.assert_allclose(scores.numpy(), np.concatenate(expected), atol=1e-4)


def test_all_directions_of_full_clouds_are_listnet():
    x, generator = lists(2).x, torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, 30, 42, len(x)])
    ranker = fit(components=FEATURES, l2=1e-2, transform="standard", tolerance=1e-8)
    whole = ListNet(FEATURES, l2=1e-2, tolerance=1e-8).fit(lists(0))
    torch.testing.assert_close(ranker(x, offsets), whole(x, offsets), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ranker.weight[0], whole.scorer.weight.detach(), rtol=1e-6, atol=1e-6)
    one = torch.randn(1, FEATURES, generator=generator)  # no direction: the model of all features
    torch.testing.assert_close(ranker(one, torch.tensor([0, 1])), whole(one, torch.tensor([0, 1])))


def test_as_many_directions_as_explain_the_variance():
    train = lists(0)
    x = train.x * torch.tensor([9.0, 5.0, 3.0, 2.0, 1.0, 1.0])
    given = RankingSet(x, train.labels, train.offsets)
    ranker = fit(given, components="auto")
    shares = []
    for block in blocks(given):
        values = np.clip(np.linalg.eigvalsh(np.cov(block.T, bias=True))[::-1], 0, None)
        if len(block) > 1:
            shares.append(values.cumsum() / values.sum())
    assert ranker.directions == 1 + int((np.mean(shares, 0) < 0.8).sum()) == ranker.findings["components"]
    assert 1 < ranker.directions < FEATURES


# ---- boosting -------------------------------------------------------------------------------------------------------


def paired(seed):
    """Lists with at least two labels."""
    train = lists(seed)
    return train.subset(torch.tensor(np.flatnonzero(train.pairs > 0)))


@pytest.mark.parametrize("bins", [256, 5])
def test_rules_of_each_model_equal_a_loop_over_pairs(monkeypatch, bins):
    train, generator = paired(3), torch.Generator().manual_seed(0)
    basis = torch.randn(3, 2, FEATURES, generator=generator).double()
    basis[2, 1] = 0  # a cloud of rank 1
    found = boost_many(train.x, train.labels, train.offsets, basis, rounds=6, bins=bins)
    for m in range(3):
        z = train.x.double().numpy() @ basis[m].numpy().T
        edges = [np.unique(column) for column in z.T]
        edges = [e if len(e) < bins else e[np.arange(bins - 1) * len(e) // (bins - 1)] for e in edges]
        expected, *_ = boosting_reference.rankboost(z, train.labels.numpy(), train.offsets.numpy(), 6, edges=edges)
        features, thresholds, alphas, _ = (np.array(part) for part in zip(*expected, strict=True))
        assert found.feature[m].tolist() == features.tolist()
        np.testing.assert_allclose(found.threshold[m].numpy(), thresholds, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.alpha[m].numpy(), alphas, rtol=1e-9, atol=1e-12)


def test_boosted_scores():
    """Lists with directions by their own rules, others by those of RankBoost on all features."""
    test = lists(2, num_lists=4)
    test.x[: test.offsets[1]] = 1.0
    ranker = fit(base="rankboost", boosting_rounds=5)
    whole = RankBoost(FEATURES, rounds=5).fit(lists(0))
    train, expected = paired(0), []
    for x in blocks(test):
        basis = directions(x, 2)
        if not len(basis):
            offsets = torch.tensor([0, len(x)])
            expected.append(whole(torch.tensor(x).float(), offsets).numpy())
            continue
        rules = boost_many(train.x, train.labels, train.offsets, torch.tensor(basis)[None], rounds=5)
        z = x @ basis.T
        steps = zip(*(part[0].tolist() for part in rules), strict=True)
        expected.append(sum(a * (z[:, f] > t) for f, t, a in steps))
    with torch.inference_mode():
        scores = ranker(test.x, test.offsets)
    np.testing.assert_allclose(scores.numpy(), np.concatenate(expected), atol=1e-6)
    assert len(np.unique(expected[1])) > 2


def test_rules_on_projected_rows():
    generator = torch.Generator().manual_seed(0)
    x, basis = torch.randn(5, 3, generator=generator), torch.randn(2, 2, 3, generator=generator)
    rules = Rules(torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0.0, 0.1], [-0.2, 0.3]]), torch.rand(2, 2))
    z = project(x, torch.tensor([0, 2, 5]), basis)
    scores = rule_scores(z, torch.tensor([0, 2, 5]), rules)
    for i, m in enumerate([0, 0, 1, 1, 1]):
        row = basis[m] @ x[i]
        torch.testing.assert_close(z[i], row)
        parts = [rules.alpha[m, t] * (row[rules.feature[m, t]] > rules.threshold[m, t]) for t in range(2)]
        torch.testing.assert_close(scores[i], sum(parts))


# ---- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"base": "rankboost", "boosting_rounds": 4, "augment": True}], ids=str)
def test_lists_one_by_one_after_a_second_fit(options):
    options, test = {"transform": {"name": "pca", "variance": 0.9}, **options}, lists(2)
    ranker = fit(**options)
    ranker.fit(lists(5, num_lists=8))
    same_state(ranker, fit(lists(5, num_lists=8), **options))
    scores = ranker(test.x, test.offsets)
    assert ranker.converged and ndcg(scores, test.labels, test.offsets, k=10).nanmean() > 0.6
    for q in (0, 5):
        rows = slice(int(test.offsets[q]), int(test.offsets[q + 1]))
        alone = ranker(test.x[rows], torch.tensor([0, rows.stop - rows.start]))
        torch.testing.assert_close(alone, scores[rows], rtol=1e-4, atol=1e-5)
    assert len(ranker(test.x[:0], torch.tensor([0]))) == 0


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": "svmmap"}, "unknown base='svmmap': choose one of listnet, ranksvm, rankboost"),
        ({"components": 0}, "components must be an integer >= 1 or auto, got 0"),
        ({"components": 2.5}, "components must be an integer >= 1 or auto, got 2.5"),
        ({"components": "all"}, "components must be an integer >= 1 or auto, got 'all'"),
        ({"boosting_rounds": 0}, "boosting_rounds must be >= 1, got 0"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        TransductivePCA(FEATURES, **given)


def test_other_forms_of_data_are_refused():
    train = lists(0)
    flat = RankingSet(train.x, torch.ones_like(train.labels), train.offsets)
    sparse = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets)
    for given, message in ((flat, "no training list has two different labels"), (sparse, "does not take sparse rows")):
        with pytest.raises(ValueError, match=message):
            fit(given, base="rankboost")


def test_it_says_how_long_a_validation_takes(caplog):
    with caplog.at_level("INFO", transductive.__name__):
        TransductivePCA(FEATURES).fit(lists(0), lists(1))
    (told,) = caplog.messages
    assert f"so a validation of {len(lists(1))} lists takes up to" in told

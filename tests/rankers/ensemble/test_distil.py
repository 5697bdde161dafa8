"""Distillation: the labels of a student are the scores of its teacher, by plain numpy; students of every kind."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

import torchrank
from tests.laws.rankers import CASES, sets
from tests.rankers.small import lists
from tests.reference import ensembles as plain
from torchrank import (
    AdaRank,
    DominationRank,
    Ensemble,
    GBDTRanker,
    LambdaRank,
    ListNet,
    NeuralRanker,
    RankBoost,
    RankingSet,
    RankSVM,
    distil,
)
from torchrank.rankers.ensemble.distil import distilled

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def teacher():
    train = lists(0, 30)
    return Ensemble([ListNet(6).fit(train), GBDTRanker(6, rounds=20, min_leaf=3, threads=1).fit(train)])


def by_hand(scores, labels, offsets, alpha, grades):
    """The labels of a student in plain numpy."""
    mixed = alpha * plain.standardised(scores, offsets)
    mixed = mixed + (1 - alpha) * plain.standardised(labels, offsets)
    for a, b in pairwise(offsets):
        if b > a:
            mixed[a:b] -= mixed[a:b].min()
            if grades is not None and mixed[a:b].max() > 0:
                mixed[a:b] = np.round(mixed[a:b] / mixed[a:b].max() * (grades - 1))
    return mixed


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("grades", [None, 2, 5])
def test_labels_are_the_standardised_scores_of_the_teacher(teacher, alpha, grades):
    train = lists(3)
    found = distilled(teacher, ListNet(6), train, alpha=alpha, grades=grades)
    scores = teacher(train.x, train.offsets).numpy()
    expected = by_hand(scores, train.labels.numpy(), train.offsets.tolist(), alpha, grades)
    np.testing.assert_allclose(found.labels, expected, atol=1e-6)
    assert found.labels.min() >= 0 and torch.equal(found.offsets, train.offsets) and found.x is train.x


def test_the_minimum_of_listnet_is_that_of_the_same_labels_by_hand(teacher):
    train, val = lists(3), lists(1)
    labels = by_hand(teacher(train.x, train.offsets).numpy(), train.labels.numpy(), train.offsets.tolist(), 1.0, None)
    expected = ListNet(6).fit(RankingSet(train.x, labels, train.offsets))
    found = distil(teacher, ListNet(6), train, val)
    torch.testing.assert_close(found.scorer.weight, expected.scorer.weight, atol=1e-5, rtol=1e-5)


STUDENTS = {
    "listnet": (lambda: ListNet(6), 0),
    "lambdarank": (lambda: LambdaRank(6, lr=0.1), 0),
    "mse": (lambda: NeuralRanker(6, loss="mse", scorer_options={"hidden": [8]}, lr=0.05), 0),
    "bce": (lambda: NeuralRanker(6, loss="bce", scorer_options={"hidden": [8]}, lr=0.05), 3),
    "trees": (lambda: GBDTRanker(6, rounds=30, min_leaf=3, threads=1), 3),
    "regression": (lambda: GBDTRanker(6, objective="regression", rounds=30, min_leaf=3, threads=1), 0),
    "rankboost": (lambda: RankBoost(6, rounds=30), 3),
    "adarank": (lambda: AdaRank(6, "ndcg@10", rounds=30), 3),
    "ranksvm": (lambda: RankSVM(6, eps=1e-2), 3),
    "domination": (lambda: DominationRank(6, l2=0.1), 3),
}


@pytest.mark.parametrize("name", STUDENTS)
def test_students_of_every_kind_rank_like_their_teacher_from_lists_without_judgements(teacher, name):
    make, grades = STUDENTS[name]
    judged = lists(3, 40)
    train = RankingSet(judged.x, torch.arange(len(judged.labels)) % 3, judged.offsets)  # labels that say nothing
    assert distilled(teacher, make(), train).num_grades == grades
    student, test = distil(teacher, make(), train, lists(1), epochs=30), lists(2, 40)
    true = torchrank.functional.ndcg(student(test.x, test.offsets).detach().double(), test.labels, test.offsets, k=10)
    assert true.nanmean() > 0.8
    agreed = []
    for a, b in pairwise(test.offsets.tolist()):
        if b - a > 4:
            both = (each(test.x[a:b], [0, b - a]).detach().numpy() for each in (student, teacher))
            agreed.append(np.corrcoef(*both)[0, 1])
    assert np.mean(agreed) > 0.6


def test_checkpoints_teach_and_true_labels_validate(teacher, tmp_path):
    train, val = lists(3), lists(1)
    path = teacher.save(tmp_path / "teacher.ckpt")
    own, other = distil(path, ListNet(6), train, val), distil(teacher, ListNet(6), train, val)
    assert torch.equal(own.scorer.weight, other.scorer.weight)
    assert torch.equal(train.labels, lists(3).labels) and torch.equal(val.labels, lists(1).labels)
    found = distilled(teacher, RankBoost(6), train)
    assert found.max_label == 2 and found.name == train.name


def test_lists_over_a_corpus_with_query_vectors():
    for kind, name in (("queries", "mlr"), ("points", "mlr_points")):
        own = sets(kind)
        teacher = CASES[name].make().fit(own["train"])
        found = distilled(teacher, CASES["svmmap"].make(), own["train"])
        assert len(found) == len(own["train"]) and torch.equal(found[:].index, own["train"][:].index)
        student = distil(teacher, CASES[name].make(), own["train"], own["val"])
        assert student.by_query


def test_refusals_are_one_line(teacher):
    train = lists(3)
    for options, message in (({"alpha": 1.5}, "alpha must be >= 0 and <= 1"), ({"grades": 1}, "grades must be >= 2")):
        with pytest.raises(ValueError, match=message):
            distil(teacher, ListNet(6), train, **options)
    narrow = RankingSet(train.x[:, :5], train.labels, train.offsets)
    with pytest.raises(torchrank.DataError, match="ranks rows of 6 features, but these have 5"):
        distil(teacher, ListNet(5), narrow)
    with pytest.raises(torchrank.NotFittedError):
        distil(ListNet(6, transform="standard"), ListNet(6), train)
    with pytest.raises(FileNotFoundError, match="checkpoint not found"):
        distil("no/such/run", ListNet(6), train)
    spoilt = copy.copy(train)
    spoilt.x, spoilt._finite = train.x.clone(), False
    spoilt.x[3, 2] = torch.nan
    with pytest.raises(torchrank.DataError, match=r"feature 2 \(counted from 0\) of row 3 is nan"):
        distil(teacher, ListNet(6), spoilt)

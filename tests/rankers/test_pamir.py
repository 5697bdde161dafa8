"""PAMIR as a ranker: the same fit for every form of the data, topics apart, refusals."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import torchrank
from tests.rankers.small import FEATURES, lists, measured, trainer
from torchrank import PAMIR, RankingDataModule, RankingEvaluation, RankingSet
from torchrank.data import SparseRows
from torchrank.data.relevance import Judged
from torchrank.data.training import TrainingLists
from torchrank.functional import average_precision, ndcg
from torchrank.functional.ragged import pairs
from torchrank.solvers.passive_aggressive import SAMPLINGS

TOPICS, DOCUMENTS, WORDS = 4, 60, 30
OPTIONS = [
    {},
    {"averaged": False},
    {"l2": 1e-3},
    {"minibatch": 8},
    {"minibatch": 8, "averaged": False, "l2": 1e-3},
]


def fit(train, batch_documents=40, **options):
    return PAMIR(train.x.shape[1], transform=None, **options).fit(train, batch_documents=batch_documents)


def recorded(ranker):
    """The rows x_i - x_j of the steps of a fit, model by model, as the ranker hands them to its solver."""
    taken, by_model = [], ranker._by_model

    def record(*given):
        found = list(by_model(*given))
        taken.extend((model, rows if isinstance(rows, torch.Tensor) else rows.dense()) for model, _, rows in found)
        return found

    ranker._by_model = record
    return taken


def plain(rows, C, l2, minibatch):
    """Iterates from 0 over rows in minibatches: the mean of the individual steps."""
    iterates, w = [], np.zeros(rows.shape[1])
    for begin in range(0, len(rows), minibatch):
        points = []
        for v in rows[begin : begin + minibatch]:
            tau = np.clip((1 + 2 * l2 - w @ v) / (v @ v), 0, C) if v @ v > 0 else 0.0
            points.append((w + tau * v) / (1 + 2 * l2))
        w = np.mean(points, axis=0)
        iterates.append(w)
    return np.array(iterates)


def corpus(split, *, shared=True, sparse=True, names=None):
    """Every document of a split in the list of every topic; a topic prefers words of its own."""
    generator = torch.Generator().manual_seed(len(split))
    x = torch.rand(DOCUMENTS, WORDS, generator=generator) * (torch.rand(DOCUMENTS, WORDS, generator=generator) < 0.3)
    scores = x @ torch.randn(WORDS, TOPICS, generator=torch.Generator().manual_seed(9))
    labels = (scores > scores.quantile(torch.tensor([0.6, 0.7, 0.8, 0.9]), 0).diagonal()).float().T.flatten()
    index = torch.arange(DOCUMENTS).repeat(TOPICS)
    rows = x if shared else x[index]
    return RankingSet(
        SparseRows.from_dense(rows) if sparse else rows,
        labels,
        torch.arange(0, TOPICS * DOCUMENTS + 1, DOCUMENTS),
        index=index if shared else None,
        query_ids=names or [f"topic {t}" for t in range(TOPICS)],
        name=split,
    )


def topic_data():
    return RankingDataModule.from_sets(**{split: corpus(split) for split in ("train", "val", "test")})


# ---- one model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_fit_is_the_plain_steps_on_its_triplets(sampling, options):
    """Over several rounds; the triplets keep the order in which they were drawn, whatever batch they come from."""
    ranker = PAMIR(FEATURES, transform=None, rounds=3, sampling=sampling, C=0.2, **options)
    taken = recorded(ranker)
    train = lists(0)
    ranker.fit(train, batch_documents=30)
    count = sum(int((train[q].labels > train[q].labels.min()).sum()) for q in range(len(train)))
    minibatch = ranker.minibatch
    assert [len(rows) for _, rows in taken] == [-(-count // minibatch) * minibatch] * 3
    iterates = plain(np.concatenate([rows for _, rows in taken]), 0.2, ranker.l2, minibatch)
    expected = iterates.mean(0) if ranker.averaged else iterates[-1]
    np.testing.assert_allclose(ranker.weight[0], expected, rtol=1e-9, atol=1e-12)
    assert int(ranker.made) == len(iterates)


def test_every_triplet_is_a_pair_of_one_list():
    ranker = PAMIR(FEATURES, transform=None, rounds=2, steps=300)
    taken = recorded(ranker)
    train = lists(0)
    ranker.fit(train, batch_documents=30)
    possible = set()
    for q in range(len(train)):
        x, y = train[q].x.double(), train[q].labels
        for i in range(len(y)):
            for j in range(len(y)):
                if y[i] > y[j]:
                    possible.add(tuple((x[i] - x[j]).tolist()))
    drawn = {tuple(v.tolist()) for _, rows in taken for v in rows}
    assert drawn <= possible and len(drawn) > 200


@pytest.mark.parametrize("options", OPTIONS)
def test_batches_and_portions_change_nothing(options, monkeypatch):
    whole, small = (fit(lists(0), size, rounds=2, **options) for size in (10_000, 25))
    torch.testing.assert_close(small.weight, whole.weight, rtol=1e-12, atol=1e-14)
    monkeypatch.setattr("torchrank.rankers.pamir.NUMBERS", 16 * FEATURES)  # other draws, as many steps
    parts = fit(lists(0), rounds=2, **options)
    assert torch.equal(parts.made, whole.made)
    assert torch.nn.functional.cosine_similarity(parts.weight[0], whole.weight[0], dim=0) > 0.8


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("per_topic", [False, True])
def test_sparse_and_shared_rows_change_nothing(options, per_topic):
    found, test = [], {}
    for shared in (True, False):
        for sparse in (True, False):
            form = {"shared": shared, "sparse": sparse}
            found.append(fit(corpus("train", **form), 100, rounds=2, per_topic=per_topic, **options))
            test[shared, sparse] = corpus("test", **form)
    scores = [ranker(test.x, test.offsets, index=test.index) for ranker, test in zip(found, test.values(), strict=True)]
    for other, score in zip(found[1:], scores[1:], strict=True):
        torch.testing.assert_close(other.weight, found[0].weight, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(score, scores[0])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("minibatch", [1, 16])
def test_it_learns(sampling, minibatch):
    ranker = fit(lists(0), rounds=10, sampling=sampling, minibatch=minibatch)
    test = lists(2)
    found = ndcg(ranker(test.x, test.offsets), test.labels, test.offsets, k=10).nanmean()
    by_chance = ndcg(torch.zeros(len(test.labels)), test.labels, test.offsets, k=10, ties="average").nanmean()
    assert found > by_chance + 0.2
    truth = torch.tensor([0, 1, 0, -0.5, 0, 0]).double()
    assert torch.nn.functional.cosine_similarity(ranker.weight[0], truth, dim=0) > 0.9


def test_short_steps_on_pairs_minimise_their_mean_hinge():
    """The least mean hinge over all pairs by linear programming: minimise mean(slack), slack >= 0 and 1 - w.v."""
    train = lists(0)
    first, second = pairs(train.labels, train.offsets)
    v = (train.x[first] - train.x[second]).double().numpy()
    solved = linprog(
        np.concatenate([np.zeros(FEATURES), np.full(len(v), 1 / len(v))]),
        A_ub=np.hstack([-v, -np.eye(len(v))]),
        b_ub=-np.ones(len(v)),
        bounds=[(None, None)] * FEATURES + [(0, None)] * len(v),
    )
    ranker = fit(train, rounds=3, steps=8000, C=0.003, sampling="pair")
    found = np.maximum(0, 1 - v @ ranker.weight[0].numpy()).mean()
    assert solved.fun <= found < 1.05 * solved.fun  # at w = 0 it is 1, the least 0.14; the start is part of the mean


def test_the_seed_decides():
    first, again, other = (fit(lists(0), rounds=1, seed=seed).weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_lists_of_one_grade_teach_nothing():
    train = lists(0)
    ranker = fit(RankingSet(train.x, torch.ones(len(train.labels)), train.offsets), rounds=3)
    assert ranker.converged and (ranker.weight == 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"C": 0.0}, "C must be > 0, got 0.0"),
        ({"C": float("nan")}, "C must be a number > 0, got nan"),
        ({"l2": float("nan")}, "l2 must be a number >= 0, got nan"),
        ({"l2": float("inf")}, "l2 must be a number >= 0, got inf"),
        ({"l2": -1.0}, "l2 must be >= 0, got -1.0"),
        ({"minibatch": 0}, "minibatch must be >= 1, got 0"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"sampling": "all"}, "unknown sampling='all': choose one of positive, query, pair"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        PAMIR(FEATURES, **given)


@pytest.mark.parametrize("options", [{"minibatch": 2}, {"per_topic": True}])
def test_sequential_steps_need_one_process(options):
    two = TrainingLists(lists(0), rank=0, world=2, reduce=torch.clone)
    with pytest.raises(ValueError, match=r"PAMIR with minibatch=1 runs in one process, got 2: set model\.minibatch=64"):
        PAMIR(FEATURES).open(two)
    PAMIR(FEATURES, **options).open(two)


# ---- one model for each topic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sampling", ["positive", "query"])
def test_topics_are_problems_of_their_own(options, sampling):
    ranker = PAMIR(WORDS, transform=None, rounds=3, per_topic=True, sampling=sampling, C=0.5, **options)
    taken = recorded(ranker)
    ranker.fit(corpus("train"), batch_documents=100)
    assert ranker.weight.shape == (TOPICS, WORDS)
    for topic in range(TOPICS):
        iterates, w = [], np.zeros(WORDS)
        for rows in (rows.numpy() for model, rows in taken if model == topic):  # a round starts a minibatch
            for begin in range(0, len(rows), ranker.minibatch):
                part = rows[begin : begin + ranker.minibatch]
                tau = np.clip((1 + 2 * ranker.l2 - part @ w) / (part * part).sum(1), 0, 0.5)
                w = (w + (tau[:, None] * part).mean(0)) / (1 + 2 * ranker.l2)
                iterates.append(w)
        expected = np.mean(iterates, axis=0) if ranker.averaged else w
        np.testing.assert_allclose(ranker.weight[topic], expected, rtol=1e-9, atol=1e-12)
        assert ranker.made[topic] == len(iterates)


def test_topics_with_more_positives_get_more_steps():
    made = {}
    for sampling in SAMPLINGS:
        ranker = fit(corpus("train"), rounds=1, steps=8000, per_topic=True, sampling=sampling)
        made[sampling] = (ranker.made / 8000).tolist()
    positives = corpus("train").labels.view(TOPICS, DOCUMENTS).sum(1)
    both = positives * (DOCUMENTS - positives)
    assert made["positive"] == pytest.approx((positives / positives.sum()).tolist(), abs=0.03)
    assert made["query"] == pytest.approx([0.25] * 4, abs=0.03)
    assert made["pair"] == pytest.approx((both / both.sum()).tolist(), abs=0.03)


@pytest.mark.parametrize("sparse", [False, True])
def test_topic_scores_of_every_form(sparse):
    ranker = fit(corpus("train"), rounds=2, per_topic=True)
    test, flat = corpus("test", sparse=sparse), corpus("test", sparse=sparse, shared=False)
    x = test.x.dense() if sparse else test.x
    expected = (x.double() @ ranker.weight.T).T.flatten().float()
    options = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ranker(test.x, test.offsets, index=test.index), expected, **options)
    torch.testing.assert_close(ranker(flat.x, flat.offsets), expected, **options)
    query, rows = torch.tensor([3, 1]), torch.tensor([5, 7, 5, 50])  # few rows of the corpus, other topics
    short = ranker(test.x, torch.tensor([0, 2, 4]), index=rows, query=query)
    scores = expected.view(TOPICS, -1)
    torch.testing.assert_close(short, scores[[3, 3, 1, 1], rows], **options)


def test_topics_learn_and_are_measured(tmp_path):
    shared, own = fit(corpus("train"), rounds=20), fit(corpus("train"), rounds=20, per_topic=True, C=1.0)
    found = []
    for ranker in (shared, own):
        runner = trainer(tmp_path, 1, monitor=None, callbacks=[RankingEvaluation(["map"])])
        runner.test(ranker, datamodule=topic_data(), verbose=False)
        found.append(measured(runner, "test")["measures"]["map"])
    test = corpus("test")
    by_hand = average_precision(own(test.x, test.offsets, index=test.index), test.labels, test.offsets).mean()
    assert found[1] == pytest.approx(float(by_hand), abs=1e-6)
    assert found[1] > 0.7 and found[1] > found[0] + 0.2


@pytest.mark.parametrize("options", OPTIONS)
def test_a_corpus_whose_entries_are_made_on_demand_changes_nothing(options):
    def judged(split):
        whole = corpus(split)
        relevant = whole.labels.view(TOPICS, DOCUMENTS)
        rows, counts = relevant.nonzero()[:, 1].numpy(), relevant.sum(1).long().numpy()
        relevance = Judged.make(rows, np.ones(len(rows)), counts, DOCUMENTS)
        return RankingSet(whole.x, relevance, query_ids=whole.query_ids, name=split)

    made, held = (fit(train, 100, rounds=2, per_topic=True, **options) for train in (judged("train"), corpus("train")))
    torch.testing.assert_close(made.weight, held.weight, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(made.score(judged("val")[:]), held.score(corpus("val")[:]), rtol=1e-6, atol=1e-7)


def test_other_topics_are_refused():
    turned = corpus("val", names=[f"topic {t}" for t in (0, 2, 1, 3)])
    ranker = PAMIR(WORDS, transform=None, per_topic=True)
    with pytest.raises(
        torchrank.DataError, match="list 1 of the set 'val' is topic 'topic 2', but in the training lists"
    ):
        ranker.fit(corpus("train"), turned)
    with pytest.raises(torchrank.DataError, match="weights for 4 topics, but the set 'val' has 3 lists"):
        ranker.fit(corpus("train"), corpus("val").subset(torch.arange(3)))


def test_a_loaded_ranker_knows_its_topics(tmp_path):
    ranker = PAMIR(WORDS, transform=None, rounds=1, per_topic=True)
    trainer(tmp_path, 1).fit(ranker, datamodule=topic_data())
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.topics == [f"topic {t}" for t in range(TOPICS)]
    test_only = RankingDataModule.from_sets(test=corpus("test", names=["a", "b", "c", "d"]))
    with pytest.raises(torchrank.DataError, match="is topic 'a', but in the training lists it is 'topic 0'"):
        trainer(tmp_path, 1, monitor=None).test(loaded, datamodule=test_only, verbose=False)

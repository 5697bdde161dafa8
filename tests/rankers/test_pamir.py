"""PAMIR as a ranker: the same fit for every form of the data, topics apart, refusals, resume."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import PAMIR, RankingDataModule, RankingSet
from torchrank.data import SparseRows
from torchrank.data.corpus import CorpusSet, Judged
from torchrank.functional import average_precision, ndcg
from torchrank.functional.ragged import pairs
from torchrank.solvers.pamir import SAMPLINGS

TOPICS, DOCUMENTS, WORDS = 4, 60, 30
OPTIONS = [
    {},
    {"averaged": False},
    {"l2": 1e-3},
    {"minibatch": 8},
    {"minibatch": 8, "averaged": False, "l2": 1e-3},
]


def fit(folder, ranker, module):
    trainer(folder, ranker.rounds, monitor=f"val/{module.measures[-1]}").fit(ranker, datamodule=module)
    return ranker


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


def topic_data(batch_documents=100, **options):
    return RankingDataModule.from_sets(
        **{split: corpus(split, **options) for split in ("train", "val", "test")},
        batch_documents=batch_documents, measures=["map"],
    )  # fmt: skip


def topic_trainer(folder, rounds):
    return trainer(folder, rounds, monitor="val/map")


# ---- one model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_fit_is_the_plain_steps_on_its_triplets(tmp_path, sampling, options):
    """Over several rounds; the triplets go on in the order in which they were drawn, whatever batch they come from."""
    ranker = PAMIR(FEATURES, transform=None, rounds=3, sampling=sampling, C=0.2, **options)
    taken = recorded(ranker)
    fit(tmp_path, ranker, data(batch_documents=30))
    train = lists(0)
    count = sum(int((train[q].labels > train[q].labels.min()).sum()) for q in range(len(train)))
    minibatch = ranker.minibatch
    assert [len(rows) for _, rows in taken] == [-(-count // minibatch) * minibatch] * 3
    iterates = plain(np.concatenate([rows for _, rows in taken]), 0.2, ranker.l2, minibatch)
    expected = iterates.mean(0) if ranker.averaged else iterates[-1]
    np.testing.assert_allclose(ranker.weight[0], expected, rtol=1e-9, atol=1e-12)
    assert int(ranker.made) == len(iterates)


def test_every_triplet_is_a_pair_of_one_list(tmp_path):
    ranker = PAMIR(FEATURES, transform=None, rounds=2, steps=300)
    taken = recorded(ranker)
    fit(tmp_path, ranker, data(batch_documents=30))
    train = lists(0)
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
def test_batches_and_portions_change_nothing(tmp_path, options, monkeypatch):
    whole = fit(tmp_path / "whole", PAMIR(FEATURES, transform=None, rounds=2, **options), data(batch_documents=10_000))
    small = fit(tmp_path / "small", PAMIR(FEATURES, transform=None, rounds=2, **options), data(batch_documents=25))
    torch.testing.assert_close(small.weight, whole.weight, rtol=1e-12, atol=1e-14)
    monkeypatch.setattr("torchrank.rankers.pamir.NUMBERS", 16 * FEATURES)  # other draws, as many steps
    parts = fit(tmp_path / "parts", PAMIR(FEATURES, transform=None, rounds=2, **options), data())
    assert torch.equal(parts.made, whole.made)
    assert torch.nn.functional.cosine_similarity(parts.weight[0], whole.weight[0], dim=0) > 0.8


@pytest.mark.parametrize("options", OPTIONS)
def test_sparse_and_shared_rows_change_nothing(tmp_path, options):
    found = []
    for shared in (True, False):
        for sparse in (True, False):
            ranker = PAMIR(WORDS, transform=None, rounds=2, **options)
            found.append(fit(tmp_path / f"{shared}{sparse}", ranker, topic_data(shared=shared, sparse=sparse)))
    for other in found[1:]:
        torch.testing.assert_close(other.weight, found[0].weight, rtol=1e-9, atol=1e-12)
        assert other.measured["val"]["default"]["measures"] == pytest.approx(
            found[0].measured["val"]["default"]["measures"]
        )


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("minibatch", [1, 16])
def test_it_learns(tmp_path, sampling, minibatch):
    ranker = fit(tmp_path, PAMIR(FEATURES, transform=None, rounds=10, sampling=sampling, minibatch=minibatch), data())
    test = lists(2)
    found = ndcg(ranker(test.x, test.offsets), test.labels, test.offsets, k=10).nanmean()
    by_chance = ndcg(torch.zeros(len(test.labels)), test.labels, test.offsets, k=10, ties="average").nanmean()
    assert found > by_chance + 0.2
    truth = torch.tensor([0, 1, 0, -0.5, 0, 0]).double()
    assert torch.nn.functional.cosine_similarity(ranker.weight[0], truth, dim=0) > 0.9
    loaded = torchrank.load(tmp_path / "last.ckpt")
    torch.testing.assert_close(loaded(test.x, test.offsets), ranker(test.x, test.offsets), rtol=0, atol=0)


def test_short_steps_on_pairs_minimise_their_mean_hinge(tmp_path):
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
    ranker = fit(tmp_path, PAMIR(FEATURES, transform=None, rounds=3, steps=8000, C=0.003, sampling="pair"), data())
    found = np.maximum(0, 1 - v @ ranker.weight[0].numpy()).mean()
    assert solved.fun <= found < 1.05 * solved.fun  # at w = 0 it is 1, the least 0.14; the start is part of the mean


def test_the_seed_decides(tmp_path):
    first, again, other = (
        fit(tmp_path / str(i), PAMIR(FEATURES, transform=None, rounds=1, seed=seed), data()).weight
        for i, seed in enumerate((0, 0, 1))
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("per_topic", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_fit_cut_in_two_is_the_whole_fit(tmp_path, options, per_topic):
    def make():
        return PAMIR(WORDS, transform=None, rounds=4, per_topic=per_topic, **options)

    whole, part, resumed = make(), make(), make()
    topic_trainer(tmp_path / "whole", 4).fit(whole, datamodule=topic_data())
    topic_trainer(tmp_path / "part", 2).fit(part, datamodule=topic_data())
    again = topic_trainer(tmp_path / "part", 4)
    again.fit(resumed, datamodule=topic_data(), ckpt_path=tmp_path / "part/last.ckpt", weights_only=True)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=1e-12, atol=1e-14, msg=name)
    torch.testing.assert_close(torchrank.load(tmp_path / "part/last.ckpt").weight, whole.weight)


def test_lists_of_one_grade_teach_nothing(tmp_path):
    flat = lists(0)
    flat.labels.fill_(1.0)
    ranker = PAMIR(FEATURES, transform=None, rounds=3)
    trainer(tmp_path, 3).fit(ranker, datamodule=RankingDataModule.from_sets(train=flat, val=lists(1)))
    assert ranker.converged and (ranker.weight == 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"C": 0.0}, "C has to be above 0"),
        ({"C": float("nan")}, "C has to be above 0"),
        ({"l2": float("nan")}, "l2 at least 0 and finite"),
        ({"l2": float("inf")}, "l2 at least 0 and finite"),
        ({"l2": -1.0}, "l2 at least 0"),
        ({"minibatch": 0}, "minibatch=0"),
        ({"steps": 0}, "steps=0"),
        ({"sampling": "all"}, "unknown sampling 'all': choose one of positive, query, pair"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        PAMIR(FEATURES, **given)


def test_one_step_after_another_needs_one_process(tmp_path, monkeypatch):
    runner = trainer(tmp_path, 1)
    monkeypatch.setattr(type(runner), "world_size", 2)
    ranker = PAMIR(FEATURES)
    ranker._trainer = runner
    with pytest.raises(ValueError, match="in one process: set model"):
        ranker.round()


# ---- one model for each topic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sampling", ["positive", "query"])
def test_topics_are_problems_of_their_own(tmp_path, options, sampling):
    ranker = PAMIR(WORDS, transform=None, rounds=3, per_topic=True, sampling=sampling, C=0.5, **options)
    taken = recorded(ranker)
    topic_trainer(tmp_path, 3).fit(ranker, datamodule=topic_data())
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


def test_topics_with_more_positives_get_more_steps(tmp_path):
    made = {}
    for sampling in SAMPLINGS:
        ranker = PAMIR(WORDS, transform=None, rounds=1, steps=8000, per_topic=True, sampling=sampling)
        topic_trainer(tmp_path / sampling, 1).fit(ranker, datamodule=topic_data())
        made[sampling] = (ranker.made / 8000).tolist()
    positives = corpus("train").labels.view(TOPICS, DOCUMENTS).sum(1)
    both = positives * (DOCUMENTS - positives)
    assert made["positive"] == pytest.approx((positives / positives.sum()).tolist(), abs=0.03)
    assert made["query"] == pytest.approx([0.25] * 4, abs=0.03)
    assert made["pair"] == pytest.approx((both / both.sum()).tolist(), abs=0.03)


@pytest.mark.parametrize("sparse", [False, True])
def test_topic_scores_of_every_form(tmp_path, sparse):
    ranker = PAMIR(WORDS, transform=None, rounds=2, per_topic=True)
    topic_trainer(tmp_path, 2).fit(ranker, datamodule=topic_data())
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
    shared, own = (
        PAMIR(WORDS, transform=None, rounds=20),
        PAMIR(WORDS, transform=None, rounds=20, per_topic=True, C=1.0),
    )
    for ranker in (shared, own):
        runner = topic_trainer(tmp_path / str(ranker.per_topic), 20)
        runner.fit(ranker, datamodule=topic_data())
        runner.test(ranker, datamodule=topic_data(), verbose=False)
    test = corpus("test")
    by_hand = average_precision(own(test.x, test.offsets, index=test.index), test.labels, test.offsets).mean()
    found = own.measured["test"]["default"]["measures"]["map"]
    assert found == pytest.approx(float(by_hand), abs=1e-6)
    assert found > 0.7 and found > shared.measured["test"]["default"]["measures"]["map"] + 0.2


@pytest.mark.parametrize("options", OPTIONS)
def test_a_corpus_whose_entries_are_made_on_demand_changes_nothing(tmp_path, options):
    def judged(split):
        whole = corpus(split)
        relevant = whole.labels.view(TOPICS, DOCUMENTS)
        rows, counts = relevant.nonzero()[:, 1].numpy(), relevant.sum(1).long().numpy()
        relevance = Judged.make(rows, np.ones(len(rows)), counts)
        return CorpusSet(whole.x, None, relevance, query_ids=whole.query_ids, name=split)

    made = RankingDataModule.from_sets(train=judged("train"), val=judged("val"), measures=["map"], batch_documents=100)
    one, other = (PAMIR(WORDS, transform=None, rounds=2, per_topic=True, **options) for _ in range(2))
    topic_trainer(tmp_path / "made", 2).fit(one, datamodule=made)
    topic_trainer(tmp_path / "held", 2).fit(other, datamodule=topic_data())
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-12, atol=1e-14)
    measured = [ranker.measured["val"]["default"]["measures"]["map"] for ranker in (one, other)]
    assert measured[0] == pytest.approx(measured[1], abs=1e-12)


def test_other_topics_are_refused(tmp_path):
    turned = [f"topic {t}" for t in (0, 2, 1, 3)]
    module = RankingDataModule.from_sets(train=corpus("train"), val=corpus("val", names=turned), measures=["map"])
    with pytest.raises(ValueError, match="list 1 of the set 'val' is topic 'topic 2', that of the training"):
        topic_trainer(tmp_path, 1).fit(PAMIR(WORDS, transform=None, per_topic=True), datamodule=module)
    fewer = RankingDataModule.from_sets(train=corpus("train"), val=corpus("val").subset(torch.arange(3)))
    with pytest.raises(ValueError, match="weights for 4 topics, but the set 'val' has 3 lists"):
        topic_trainer(tmp_path, 1).fit(PAMIR(WORDS, transform=None, per_topic=True), datamodule=fewer)


def test_a_loaded_ranker_knows_its_topics(tmp_path):
    topic_trainer(tmp_path, 1).fit(PAMIR(WORDS, transform=None, rounds=1, per_topic=True), datamodule=topic_data())
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.topics == [f"topic {t}" for t in range(TOPICS)]
    test_only = RankingDataModule.from_sets(test=corpus("test", names=["a", "b", "c", "d"]), measures=["map"])
    with pytest.raises(ValueError, match="is topic 'a', that of the training lists 'topic 0'"):
        topic_trainer(tmp_path, 1).test(loaded, datamodule=test_only, verbose=False)

"""DominationRank on every form of the data: batches, sparse and shared rows, topics, drawn negatives."""

import pytest
import torch

import torchrank
from tests.rankers.domination.fits import (
    SOLVERS,
    TOPICS,
    WORDS,
    close,
    corpus,
    fit,
    topic_data,
    topic_reference,
)
from tests.rankers.small import FEATURES, lists, measured, trainer
from torchrank import DominationRank, RankingDataModule, RankingEvaluation, RankingSet
from torchrank.data.training import TrainingLists
from torchrank.functional import average_precision

FORMS = [(True, True), (True, False), (False, True), (False, False)]  # shared, sparse


@pytest.mark.parametrize("penalty", [{"l2": 0.3}, {"l1": 0.4, "l2": 0.0}])
def test_pooled_lists_are_one_list(penalty):
    train = lists(0)
    one = RankingSet(train.x, train.labels, torch.tensor([0, len(train.labels)]))
    close(fit(group="pooled", **penalty), fit(one, **penalty))


@pytest.mark.parametrize("name", SOLVERS)
def test_batches_change_nothing(name):
    whole, small = (fit(batch_documents=size, **SOLVERS[name]) for size in (10_000, 25))
    close(whole, small, atol=1e-6)
    assert whole.certificate.found <= 1e-6


@pytest.mark.parametrize("name", ["lbfgs", "fista", "pooled", "induction", "negatives"])
@pytest.mark.parametrize("per_topic", [False, True])
def test_sparse_and_shared_rows_change_nothing(name, per_topic):
    if per_topic and name == "pooled":
        return
    found = [
        fit(corpus("train", shared=shared, sparse=sparse), batch_documents=100, per_topic=per_topic, **SOLVERS[name])
        for shared, sparse in FORMS
    ]
    for other in found[1:]:
        close(other, found[0])
        assert torch.equal(other.weight != 0, found[0].weight != 0)


def test_the_same_negatives_for_every_batch():
    drawn = []
    for size in (25, 10_000):
        ranker = DominationRank(FEATURES, transform=None, negatives=0.4)
        given = TrainingLists(lists(0), budget=size)
        ranker.begin(given)
        ranker.resume(given)
        drawn.append(torch.cat([batch.x for batch in ranker.kept.objective.lists]))
    assert torch.equal(*drawn) and len(drawn[0]) < len(lists(0).x)


def test_negatives_are_never_drawn_for_evaluation(tmp_path):
    runner = trainer(tmp_path, 1, callbacks=[RankingEvaluation(["map"])], monitor="val/map")
    ranker = DominationRank(FEATURES, transform=None, negatives=0.2, rounds=1)
    runner.fit(ranker, datamodule=RankingDataModule.from_sets(train=lists(0), val=lists(1)))
    val = lists(1)
    expected = average_precision(ranker(val.x, val.offsets), val.labels, val.offsets)
    found = measured(runner, "val")["per_query"]["map"]
    torch.testing.assert_close(torch.tensor(found).float(), expected.float(), equal_nan=True)


# ---- topics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SOLVERS["lbfgs"], SOLVERS["fista"], {"l1": 0.2, "l2": 0.2, "induction": 2}])
def test_topics_are_fits_of_their_own(options):
    together = fit(corpus("train"), batch_documents=100, per_topic=True, **options)
    assert together.weight.shape == (TOPICS, WORDS) and together.converged
    for t in range(TOPICS):
        alone = fit(corpus("train").subset(torch.tensor([t])), **options)
        torch.testing.assert_close(together.weight[t], alone.weight[0], rtol=0, atol=1e-5)
        plain = topic_reference(t, l1=options.get("l1", 0.0), l2=options["l2"])
        assert plain.violation(together.weight[t].numpy()) < 2e-6


@pytest.mark.parametrize("sparse", [False, True])
def test_topic_scores_of_every_form(sparse):
    ranker = fit(corpus("train"), per_topic=True)
    test, flat = corpus("test", sparse=sparse), corpus("test", sparse=sparse, shared=False)
    x = test.x.dense() if sparse else test.x
    expected = (x.double() @ ranker.weight.T).T.flatten().float()
    close_to = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ranker(test.x, test.offsets, index=test.index), expected, **close_to)
    torch.testing.assert_close(ranker(flat.x, flat.offsets), expected, **close_to)
    query, rows = torch.tensor([3, 1]), torch.tensor([5, 7, 5, 30])  # few rows of the corpus, other topics
    short = ranker(test.x, torch.tensor([0, 2, 4]), index=rows, query=query)
    torch.testing.assert_close(short, expected.view(TOPICS, -1)[[3, 3, 1, 1], rows], **close_to)


def test_topics_learn_and_are_measured(tmp_path):
    ranker = fit(corpus("train"), per_topic=True, l2=0.1)
    runner = trainer(tmp_path, 1, monitor=None, callbacks=[RankingEvaluation(["map"])])
    runner.test(ranker, datamodule=topic_data(), verbose=False)
    test = corpus("test")
    by_hand = average_precision(ranker(test.x, test.offsets, index=test.index), test.labels, test.offsets)
    found = measured(runner, "test")["measures"]["map"]
    assert found == pytest.approx(float(by_hand.nanmean()), abs=1e-6) and found > 0.6


TURNED = [f"topic {t}" for t in (0, 2, 1, 3)]


@pytest.mark.parametrize(
    ("val", "message"),
    [
        (corpus("val", names=TURNED), "list 1 of the set 'val' is topic 'topic 2', but in the training lists it is"),
        (corpus("val").subset(torch.arange(3)), "weights for 4 topics, but the set 'val' has 3 lists"),
    ],
)
def test_other_topics_are_refused(tmp_path, val, message):
    """By a fit with or without a trainer, by a fitted ranker, and by a loaded one."""
    with pytest.raises(torchrank.DataError, match=message):
        fit(corpus("train"), val, per_topic=True)
    module = RankingDataModule.from_sets(train=corpus("train"), val=val)
    with pytest.raises(torchrank.DataError, match=message):
        trainer(tmp_path, 1).fit(DominationRank(WORDS, per_topic=True, transform=None), datamodule=module)
    ranker = DominationRank(WORDS, per_topic=True, transform=None, rounds=1)
    trainer(tmp_path, 1).fit(ranker, datamodule=topic_data())
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.topics == ranker.topics == [f"topic {t}" for t in range(TOPICS)]
    for given in (ranker, loaded):
        with pytest.raises(torchrank.DataError, match=message):
            trainer(tmp_path, 1, monitor=None).validate(given, datamodule=RankingDataModule.from_sets(val=val))


def test_topics_without_names_are_compared_by_their_number():
    named, val = corpus("train"), corpus("val")
    unnamed = RankingSet(val.x, val.labels, val.offsets, index=val.index, name="val")
    assert fit(named, unnamed, per_topic=True, tolerance=1.0).topics == [f"topic {t}" for t in range(TOPICS)]


def test_a_fit_that_failed_does_not_stand_in_the_way_of_other_topics(tmp_path, monkeypatch):
    """What it has kept is not compared with the lists of the next fit."""
    ranker = DominationRank(WORDS, per_topic=True, transform=None, tolerance=1.0)

    def failing(lists, number):
        raise RuntimeError("cut")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="cut"):
        patched.setattr(ranker, "round", failing, raising=False)
        trainer(tmp_path, 1).fit(ranker, datamodule=topic_data())
    few = {split: corpus(split).subset(torch.tensor([2, 0])) for split in ("train", "val")}
    trainer(tmp_path, 5).fit(ranker, datamodule=RankingDataModule.from_sets(**few))
    assert ranker.weight.shape == (2, WORDS) and ranker.topics == ["topic 2", "topic 0"]

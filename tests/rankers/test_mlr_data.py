"""MLR on every form of the data: batches, copies of rows, other orders, relevance that is not mutual."""

import numpy as np
import pytest
import torch

from tests.rankers.metric_fits import KINDS, D, data, fit, graded, objective, points, rows
from tests.rankers.small import trainer
from torchrank import MLR, RankingDataModule, RankingSet
from torchrank.data.corpus import CorpusSet, Judged, SameClass
from torchrank.functional import average_precision


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_copies_of_rows_change_nothing(tmp_path, kind, monkeypatch):
    one = fit(tmp_path / "one", data(10_000, "corpus"), **KINDS[kind])
    monkeypatch.setattr("torchrank.MLR.corpus_entries", 0)
    monkeypatch.setattr("torchrank.rankers.metric.mlr.KEPT", 0)
    other = fit(tmp_path / "flat", data(12, "flat" if kind != "map" else "corpus"), **KINDS[kind])
    torch.testing.assert_close(other.metric, one.metric, rtol=1e-7, atol=1e-7)
    assert other.trainer.current_epoch == one.trainer.current_epoch


@pytest.mark.parametrize(("entries", "batches"), [(0, 9), (60, 3), (2**20, 1)])
def test_lists_over_a_corpus_are_measured_many_at_a_time(tmp_path, entries, batches, monkeypatch):
    monkeypatch.setattr("torchrank.MLR.corpus_entries", entries)
    runner, module, ranker = trainer(tmp_path, 1), data(batch_documents=15), MLR(D, transform=None)
    ranker.metric.data = torch.tensor(np.diag([2.0, 0.0, 1.0, 0.0, 0.5]))
    runner.test(ranker, datamodule=module, verbose=False)
    assert runner.num_test_batches == [batches]
    test = points()["test"]
    scores = -((test.queries[:, None] - test.x) ** 2 @ ranker.metric.data.diag()).flatten()
    value = float(average_precision(scores, test[:].labels, test[:].offsets).mean())
    assert ranker.measured["test"]["default"]["measures"]["map"] == pytest.approx(value, abs=1e-7)
    few = graded("corpus")
    few = RankingSet(few.x.repeat(4, 1), few.labels, few.offsets, index=few.index, queries=few.queries)
    one = torch.cat([torch.arange(30), torch.arange(30), torch.arange(3)])
    uneven = RankingSet(few.x[:30], torch.ones(63), torch.tensor([0, 30, 60, 63]), index=one, queries=few.queries[:3])
    for lists in (graded("flat"), few, uneven):  # a row is copied for every entry: batch_documents says how many
        runner.test(ranker, datamodule=RankingDataModule.from_sets(test=lists, batch_documents=15), verbose=False)
        assert runner.num_test_batches[0] > 1


def test_moving_all_points_and_turning_the_corpus_change_nothing(tmp_path):
    train, ranker = points()["train"], fit(tmp_path / "here")
    moved = CorpusSet(train.x + 7, train.x + 7, train.relevance, own=train.own)
    turn = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    classes = train.relevance.classes[turn]
    turned = CorpusSet(train.x[turn], train.x[turn], SameClass(classes, classes, ("a", "b", "c")), own=torch.arange(15))
    for name, other in (("moved", moved), ("turned", turned)):
        module = RankingDataModule.from_sets(train=other, val=points()["val"], measures=["map"])
        torch.testing.assert_close(fit(tmp_path / name, module).metric, ranker.metric, rtol=1e-6, atol=1e-6)


def test_relevance_need_not_be_mutual(tmp_path):
    """Point q is near q + 1 and q + 2, not the other way round: lists over one corpus, as of songs."""
    x = rows(0, 20)[0]
    near = np.stack([(np.arange(20) + step) % 20 for step in (1, 2)], 1).flatten()
    judged = Judged.make(near, np.ones(40), np.full(20, 2))
    train = CorpusSet(x, x, judged, own=torch.arange(20))
    module = RankingDataModule.from_sets(train=train, val=train, measures=["map"])
    ranker = fit(tmp_path, module, C=100.0, measure="auc")
    metric = ranker.metric.numpy()
    expected = np.trace(metric) + 100 * objective(train, metric, "auc")
    assert ranker.converged and ranker.certificate["upper"] == pytest.approx(expected, rel=1e-9)

"""MLR on every form of the data: batches, copies of rows, other orders, relevance that is not mutual, query vectors."""

import numpy as np
import pytest
import torch

from tests.rankers.metric.fits import KINDS, D, data, fit, graded, objective, of_classes, points, rows
from tests.rankers.small import measured, trainer
from torchrank import GMML, MLR, LowRankMLR, MetricBaseline, RankingDataModule, RankingEvaluation, RankingSet, SVMMap
from torchrank.data.relevance import Judged
from torchrank.functional import average_precision


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_copies_of_rows_change_nothing(kind, monkeypatch):
    one = fit(graded(), batch_documents=10_000, **KINDS[kind])
    monkeypatch.setattr("torchrank.MLR.corpus_entries", 0)
    monkeypatch.setattr("torchrank.rankers.metric.mlr.KEPT", 0)
    other = fit(graded("flat" if kind != "map" else "corpus"), batch_documents=12, **KINDS[kind])
    torch.testing.assert_close(other.metric, one.metric, rtol=1e-7, atol=1e-7)
    assert len(other.cuts.loss) == len(one.cuts.loss)  # as many rounds


@pytest.mark.parametrize(("entries", "batches"), [(0, 9), (60, 3), (2**20, 1)])
def test_lists_over_a_corpus_are_measured_many_at_a_time(tmp_path, entries, batches, monkeypatch):
    monkeypatch.setattr("torchrank.MLR.corpus_entries", entries)
    ranker, runner = MLR(D, transform=None), trainer(tmp_path, 1, callbacks=[RankingEvaluation(["map"])])
    ranker.metric.data = torch.tensor(np.diag([2.0, 0.0, 1.0, 0.0, 0.5]))
    runner.test(ranker, datamodule=data(batch_documents=15), verbose=False)
    assert runner.num_test_batches == [batches]
    test = points()["test"]
    scores = -((test.queries[:, None] - test.x) ** 2 @ ranker.metric.data.diag()).flatten()
    value = float(average_precision(scores, test[:].labels, test[:].offsets).mean())
    assert measured(runner, "test")["measures"]["map"] == pytest.approx(value, abs=1e-7)
    few = graded("corpus")
    few = RankingSet(few.x.repeat(4, 1), few.labels, few.offsets, index=few.index, queries=few.queries)
    one = torch.cat([torch.arange(30), torch.arange(30), torch.arange(3)])
    uneven = RankingSet(few.x[:30], torch.ones(63), torch.tensor([0, 30, 60, 63]), index=one, queries=few.queries[:3])
    for lists in (graded("flat"), few, uneven):  # a row is copied for every entry: batch_documents says how many
        runner.test(ranker, datamodule=RankingDataModule.from_sets(test=lists, batch_documents=15), verbose=False)
        assert runner.num_test_batches[0] > 1


def test_moving_all_points_and_turning_the_corpus_change_nothing():
    train, ranker = points()["train"], fit()
    moved = RankingSet(train.x + 7, train.relevance, queries=train.x + 7)
    turn = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    for other in (moved, of_classes(train.x[turn], train.classes[turn])):
        torch.testing.assert_close(fit(other).metric, ranker.metric, rtol=1e-6, atol=1e-6)


def test_relevance_need_not_be_mutual():
    """Point q is near q + 1 and q + 2, not the other way round: lists over one corpus, as of songs."""
    x = rows(0, 20)[0]
    near = np.stack([(np.arange(20) + step) % 20 for step in (1, 2)], 1).flatten()
    judged = Judged.make(near, np.ones(40), np.full(20, 2), 20, own=torch.arange(20))
    train = RankingSet(x, judged, queries=x)
    ranker = fit(train, C=100.0, measure="auc")
    metric = ranker.metric.numpy()
    expected = np.trace(metric) + 100 * objective(train, metric, "auc")
    assert ranker.converged and ranker.certificate.bounds["upper"] == pytest.approx(expected, rel=1e-9)


# ---- query vectors have one way through a transform -------------------------------------------------------------

TRANSFORMS = [
    "standard",
    {"name": "pca", "variance": 0.95},
    "quantile",
    "l2",
    ["quantile", {"name": "pca", "variance": 0.9}],
]
RANKERS = {
    "mlr": lambda transform: MLR(D, C=3000.0, eps=1e-2, transform=transform),
    "lowrank_mlr": lambda transform: LowRankMLR(D, rank=2, C=10.0, transform=transform),
    "euclidean": lambda transform: MetricBaseline(D, transform=transform),
    "svmmap": lambda transform: SVMMap(D, C=3000.0, eps=1e-2, transform=transform),
    "gmml": lambda transform: GMML(D, transform=transform),
}


def whole_corpus(lists=6):
    """Lists that all hold the whole corpus, as a shared corpus and as flat rows; their numbers are those of float32."""
    (x, classes), (queries, own) = rows(0, 21), rows(1, lists)
    x, queries = 3 * x.float() + 20, 3 * queries.float() + 20  # neither scaled nor centred
    labels, offsets = (own[:, None] == classes).float().flatten(), torch.arange(0, 21 * lists + 1, 21)
    shared = RankingSet(x, labels, offsets, index=torch.arange(21).repeat(lists), queries=queries)
    return shared, RankingSet(x.repeat(lists, 1), labels, offsets, queries=queries)


def scores_of(ranker, lists, step):
    """Batch by batch, as trainers do it."""
    with torch.no_grad():
        return torch.cat([ranker.validation_step(lists[first : first + step]) for first in range(0, len(lists), step)])


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("name", RANKERS)
def test_every_way_of_the_rows_gives_the_same_scores(name, transform):
    """Shared or flat, resident or streamed, in batches or by a call: the query vectors are transformed as the rows."""
    shared, flat = whole_corpus()
    ranker = RANKERS[name](transform).fit(shared, **{"epochs": 3} if name == "lowrank_mlr" else {})
    x, queries = (ranker.transform(part, torch.tensor([0, len(part)])) for part in (shared.x, shared.queries))
    ready = RankingSet(x, shared.labels, shared.offsets, index=shared.index, queries=queries)
    with torch.no_grad():
        expected = ranker.score(ready[:])
        found = {
            "a call, shared": ranker(shared.x, shared.offsets, index=shared.index, queries=shared.queries),
            "a call, flat": ranker(flat.x, flat.offsets, queries=flat.queries),
            "a call in float64": ranker(flat.x.double(), flat.offsets, queries=flat.queries.double()).float(),
        }
    for form, lists in (("shared", shared), ("flat", flat)):
        for step in (1, 4, 6):
            found[f"resident {form}, {step}"] = scores_of(ranker, lists.to("cpu", ranker.transform), step)
            found[f"streamed {form}, {step}"] = scores_of(ranker, lists.streamed("cpu", ranker.transform), step)
    assert expected.std() > 1e-4  # they tell the entries apart
    for way, scores in found.items():
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()), msg=way)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("resident", [True, False])
def test_a_trainer_predicts_what_a_call_does(tmp_path, transform, resident):
    shared, flat = whole_corpus()
    ranker = RANKERS["mlr"](transform).fit(shared)
    for lists in (shared, flat):
        module = RankingDataModule.from_sets(test=lists, batch_documents=50, resident=resident)
        predicted = torch.cat(trainer(tmp_path, 1).predict(ranker, datamodule=module))
        called = ranker(lists.x, lists.offsets, index=lists.index, queries=lists.queries)
        torch.testing.assert_close(predicted, called, rtol=1e-4, atol=1e-5 * float(called.abs().max()))


@pytest.mark.parametrize("transform", TRANSFORMS[:2], ids=str)
def test_a_fit_on_flat_rows_is_that_on_the_corpus(transform):
    """Every row is there as often as every other, so the transform learns the same too."""
    ranker, other = (MLR(D, C=30.0, eps=1e-2, transform=transform).fit(lists) for lists in whole_corpus())
    assert ranker.metric.any() and len(other.cuts.loss) == len(ranker.cuts.loss)
    torch.testing.assert_close(other.metric, ranker.metric, rtol=1e-4, atol=1e-5)

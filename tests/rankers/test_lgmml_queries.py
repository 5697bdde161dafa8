"""LGMML and GMML with query vectors."""

import math

import numpy as np
import pytest
import torch

from tests.rankers.local import fit, judged, plain_scores, split, with_queries
from tests.rankers.small import FEATURES, trainer
from torchrank import LGMML, RankingDataModule, RankingSet
from torchrank.data.corpus import CorpusSet, SameClass

# ---- query vectors ---------------------------------------------------------------------------------------------------


QUERY_FITS = [
    {"kernel": "localized", "tau": 1.0},
    {"kernel": "localized", "beta": 0.5, "rounds": 3},
    {"kernel": "paper", "tau": 1.0},
    {"kernel": "distance", "rounds": 3},
    {"kernel": "rbf", "weights": "per_query", "rounds": 2},
]


@pytest.mark.parametrize("change", QUERY_FITS, ids=str)
def test_scores_with_query_vectors(tmp_path, change):
    ranker, test = with_queries(tmp_path, anchor="best", precision="64-true", **change), judged(2)
    assert len(set(ranker.tau.tolist())) == 1  # the weights compare metrics with each other
    batch = test[:]
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    offsets = torch.tensor([0, len(batch.x)])
    rows, queries = (ranker.transform(part, offsets).double().numpy() for part in (batch.x, batch.queries))
    weights = ranker.weights.mean(0) if ranker.weights.dim() == 2 else ranker.weights
    options = {"kernel": change["kernel"], "beta": change.get("beta", 2.0)}
    expected = np.concatenate(
        [
            plain_scores(ranker, rows[index], weights.tolist(), query=query, **options)
            for index, query in zip(split(batch.index.numpy(), batch.offsets), queries, strict=True)
        ]
    )
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    flat = ranker(batch.x[batch.index], batch.offsets, queries=batch.queries)
    torch.testing.assert_close(flat, scores, rtol=1e-10, atol=1e-10)
    module = RankingDataModule.from_sets(train=judged(0), val=judged(1), test=test, batch_documents=30)
    predicted = torch.cat(trainer(tmp_path, precision="64-true").predict(ranker, datamodule=module))
    torch.testing.assert_close(predicted, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", QUERY_FITS, ids=str)
def test_a_corpus_with_queries_is_its_flat_copy(tmp_path, change):
    change = change | {"tau": 1.0, "transform": "none", "anchor": "best", "precision": "64-true"}
    corpus = with_queries(tmp_path, **change)

    def flat(seed):
        batch = judged(seed)[:]
        return RankingSet(batch.x[batch.index], batch.labels, batch.offsets, queries=batch.queries)

    copy = fit(tmp_path, RankingDataModule.from_sets(train=flat(0), val=flat(1)), **change)
    for name in ("factors", "anchors", "weights"):
        tensor, other = (getattr(ranker, name) for ranker in (corpus, copy))
        torch.testing.assert_close(tensor, other, rtol=1e-9, atol=1e-9)


def test_the_nearest_anchor_alone(tmp_path):
    ranker, batch = with_queries(tmp_path, kernel="localized", beta=math.inf, tau=1.0, anchor="best"), judged(2)[:]
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    rows, queries = (ranker.transform(part, torch.tensor([0, len(part)])) for part in (batch.x, batch.queries))
    for query, index, found in zip(
        queries, split(batch.index, batch.offsets), split(scores, batch.offsets), strict=True
    ):
        gaps = [((query - a) @ f).norm() for f, a in zip(ranker.factors, ranker.anchors, strict=True)]
        nearest = ranker.factors[int(torch.stack(gaps).argmin())]
        torch.testing.assert_close(found, -((rows[index] - query) @ nearest).square().sum(1), rtol=1e-4, atol=1e-4)


def test_queries_far_from_every_anchor(tmp_path):
    ranker, batch = with_queries(tmp_path, kernel="localized", tau=1e-4, anchor="best"), judged(2)[:]
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    assert scores.isfinite().all() and (scores < 0).any()


def test_classes_take_turns_as_sources(tmp_path):
    classes = torch.arange(20) % 4
    x = torch.randn(20, FEATURES, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(4, FEATURES)[classes]
    train = CorpusSet(x, x, SameClass(classes, classes, tuple("abcd")), own=torch.arange(20))
    ranker = fit(tmp_path, RankingDataModule.from_sets(train=train, val=train), queries_per_metric=1, metrics=8)
    turns = classes[ranker.sources.flatten()]
    assert sorted(turns[:4].tolist()) == sorted(turns[4:].tolist()) == [0, 1, 2, 3]


def test_relevance_from_a_file_need_not_be_mutual(tmp_path):
    draw = np.random.default_rng(0)
    corpus = draw.normal(size=(30, FEATURES))
    relevant = [[(q + 1) % 30, (q + 2) % 30, (q + 3) % 30] for q in range(30)]  # q -> q + 1, never back
    np.savez(
        tmp_path / "circle.npz",
        corpus=corpus,
        queries=corpus,
        query_rows=np.arange(30),
        relevant=np.concatenate(relevant),
        relevant_offsets=np.arange(31) * 3,
        split=["train"] * 20 + ["val"] * 5 + ["test"] * 5,
    )
    module = RankingDataModule("retrieval", root=tmp_path, file="circle.npz")
    module.setup()
    ranker = fit(tmp_path, module, kernel="localized", anchor="best", queries_per_metric=1, rounds=3)
    trainer(tmp_path).test(ranker, datamodule=module, verbose=False)
    assert ranker.measured["test"]["default"]["lists"] == 5


def test_local_metrics_beat_one_metric_on_gaussian_classes(tmp_path):
    module = RankingDataModule("gaussian", centres=10, batch_documents=20_000)
    module.setup()
    found = {}
    for metrics in (1, 10):
        ranker = LGMML(
            module.num_features, metrics, 1, ridge=0.05, anchor="best", kernel="localized", tau=1.0, rounds=1,
            anchor_candidates=8, transform="none",
        )  # fmt: skip
        runner = trainer(tmp_path, 1, monitor=None)
        runner.fit(ranker, datamodule=module)
        runner.test(ranker, datamodule=module, verbose=False)
        found[metrics] = ranker.measured["test"]["default"]["measures"]["map"]
    assert found[10] > found[1] + 0.1

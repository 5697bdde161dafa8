"""L-GMML on data with query vectors: distances from the query, and metrics that are weighted at the query."""

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import close, fitted, judged, scores_of, split, state, tolerance, with_queries
from tests.rankers.small import FEATURES, lists, trainer
from tests.reference import local_metrics as plain
from torchrank import LGMML, DataError, RankingDataModule, RankingSet
from torchrank.functional import average_precision

FITS = [
    {"kernel": "localized", "tau": 1.0},
    {"kernel": "localized", "beta": 0.5, "rounds": 3},
    {"kernel": "paper", "tau": 1.0},
    {"kernel": "distance", "rounds": 3},
    {"kernel": "rbf", "weights": "per_query", "rounds": 2},
]


def standardised(train, *parts):
    own = train.x.double().numpy()
    return [plain.standardise(own, part.double().numpy()) for part in parts]


@pytest.mark.parametrize("options", [
    {"tau": 1.0},
    {"tau": 3.0, "beta": 1.0},
    {"tau": "median"},
    {"tau": "q95"},
    {"tau": 1.0, "metrics": 8, "queries_per_metric": 1},
    {"tau": 1.0, "anchor": "virtual", "kappa": 0.0},
    {"tau": 0.001},  # exp(-delta / tau) of every metric would be 0
    {"tau": 1.0, "kernel": "paper"},
    {"tau": "median", "kernel": "rbf"},
    {"tau": "median", "kernel": "distance"},
    {"tau": 1.0, "beta": float("inf")},  # the nearest anchor alone
], ids=str)  # fmt: skip
def test_first_round(options):
    """`localized` weighs the metrics at the query; other kernels take distances from the query, not the anchors."""
    train, test = with_queries(38), with_queries(39)
    base = {"anchor": "best", "anchor_candidates": 1000, "kernel": "localized", "metrics": 5, "queries_per_metric": 2}
    options = base | options
    ranker = fitted(train, **options)
    corpus, rows, queries = standardised(train, train.x, test.x, test.queries)
    expected = plain.fit(
        corpus[train.index.numpy()], train.labels.numpy(), train.offsets.numpy(), ranker.sources.numpy(),
        anchor=options["anchor"], kappa=options.get("kappa", 10.0), tau=1.0,
    )  # fmt: skip
    pooled = plain.distances(expected, corpus).reshape(-1, 1)  # one scale for all metrics
    expected = expected._replace(tau=np.repeat(plain.scales(pooled, options["tau"]), len(expected.tau)))
    limit, actual = tolerance(ranker), state(ranker, train)
    close(actual.metrics, expected.metrics, limit, "metrics")
    close(actual.anchors, expected.anchors, limit, "anchors")
    close(actual.tau, expected.tau, limit, "tau")
    found, ones = scores_of(ranker, test, index=test.index, queries=test.queries), np.ones(len(expected.tau))
    form = {"kernel": options["kernel"], "beta": options.get("beta", 2.0)}
    for query, own, index in zip(
        queries, split(found, test.offsets), split(test.index.numpy(), test.offsets), strict=True
    ):
        right = plain.query_scores(expected, query, rows[index], ones, **form)
        close(own, right, 1e-4 if options["tau"] == 0.001 else 10 * limit, "scores")


@pytest.mark.parametrize("options", FITS, ids=str)
def test_scores_with_learned_weights(tmp_path, options):
    train, test = judged(0), judged(2)
    ranker = fitted(train, wide=True, anchor="best", **options)
    assert len(set(ranker.tau.tolist())) == 1  # the weights compare metrics with each other
    batch, local = test[:], state(ranker, train)
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    rows, queries = standardised(train, batch.x, batch.queries)
    weights = (ranker.weights.mean(0) if ranker.weights.dim() == 2 else ranker.weights).numpy()
    form = {"kernel": options["kernel"], "beta": options.get("beta", 2.0)}
    expected = [
        plain.query_scores(local, query, rows[index], weights, **form)
        for index, query in zip(split(batch.index.numpy(), batch.offsets), queries, strict=True)
    ]
    np.testing.assert_allclose(scores, np.concatenate(expected), rtol=1e-5, atol=1e-5)
    flat = ranker(batch.x[batch.index], batch.offsets, queries=batch.queries)
    torch.testing.assert_close(flat, scores, rtol=1e-10, atol=1e-10)
    module = RankingDataModule.from_sets(test=test, batch_documents=30)
    predicted = torch.cat(trainer(tmp_path, precision="64-true").predict(ranker, datamodule=module))
    torch.testing.assert_close(predicted, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["localized", "distance"])
def test_the_second_round_goes_down_the_gradient(kernel):
    """phi_r(p) = -w_r(q) ||p - q||_r^2 is linear in the shared weights too."""
    train = with_queries(61)
    options = {"queries_per_metric": 2, "kernel": kernel, "anchor": "best", "rounds": 3, "lr": 0.01}
    first, second = (fitted(train, epochs=epochs, **options) for epochs in (1, 2))
    local, phi = state(first, train), []
    rows, queries = standardised(train, train.x, train.queries)
    for query, index in zip(queries, split(train.index.numpy(), train.offsets), strict=True):
        near = plain.distances(local, query[None])[0]
        shares = np.exp(-(near - near.min()) / local.tau)
        away = plain.distances(local._replace(anchors=np.tile(query, (4, 1))), rows[index])
        phi.append(-shares * away**2 if kernel == "localized" else -away / local.tau)
    scale = np.concatenate(phi).std(0).mean()
    labels = split(train.labels.tolist(), train.offsets)
    downhill = -sum(plain.warp_slope(part / scale, own) for part, own in zip(phi, labels, strict=True))
    moved = (second.weights - first.weights).double().numpy()
    close(moved / np.linalg.norm(moved), downhill / np.linalg.norm(downhill), 1e-3)


@pytest.mark.parametrize("options", FITS, ids=str)
def test_a_corpus_with_queries_is_its_flat_copy(options):
    options = options | {"tau": 1.0, "transform": "none", "anchor": "best", "wide": True}
    batch = judged(0)[:]
    flat = RankingSet(batch.x[batch.index], batch.labels, batch.offsets, queries=batch.queries)
    corpus, copy = (fitted(train, **options) for train in (judged(0), flat))
    for name in ("factors", "anchors", "weights"):
        tensor, other = (getattr(ranker, name) for ranker in (corpus, copy))
        torch.testing.assert_close(tensor, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", ["distance", "localized"])
def test_a_fit_without_query_vectors_refuses_them_wherever_it_scores(tmp_path, kernel):
    """Also where the compiled scorer predicts, which would not look at them."""
    ranker, points = fitted(lists(0), kernel=kernel), judged(2)
    batch = points[:]
    module = RankingDataModule.from_sets(test=points, batch_documents=30)
    for use in (
        lambda: ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries),
        lambda: trainer(tmp_path).test(ranker, datamodule=module, verbose=False),
        lambda: trainer(tmp_path).predict(ranker, datamodule=module),
    ):
        with pytest.raises(DataError, match="LGMML was fitted without query vectors"):
            use()


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
    train, test = module.sets["train"], module.sets["test"]
    ranker = fitted(train, kernel="localized", anchor="best", queries_per_metric=1, rounds=3)
    scores = scores_of(ranker, test, index=test.index, queries=test.queries)
    assert len(test) == 5 and np.isfinite(scores).all()


def test_local_metrics_beat_one_metric_on_gaussian_classes():
    module = RankingDataModule("gaussian", centres=10)
    module.setup()
    train, test = module.sets["train"], module.sets["test"]
    found = {}
    for metrics in (1, 10):
        ranker = LGMML(
            module.num_features, "random", metrics=metrics, queries_per_metric=1, ridge=0.05, anchor="best",
            kernel="localized", tau=1.0, rounds=1, anchor_candidates=8, transform="none",
        ).fit(train)  # fmt: skip
        scores = ranker(test.x, test.offsets, index=test.index, queries=test.queries)
        found[metrics] = average_precision(scores, test.labels, test.offsets).nanmean()
    assert found[10] > found[1] + 0.1

"""LowRankMLR: its loss by brute force, its start, and that it comes near the minimum of the convex problem."""

import numpy as np
import pytest
import torch

from tests.rankers.metric import fits as metric_fits
from tests.rankers.metric.fits import D, graded, points
from tests.reference.mlr import brute_force
from torchrank import DataError, LowRankMLR, MetricBaseline, RankingSet
from torchrank.data.sources.points import load_points
from torchrank.functional import average_precision


def started(**options):
    ranker = LowRankMLR(D, transform=None, **options)
    with torch.no_grad():
        ranker.components.copy_(torch.randn(ranker.components.shape, generator=torch.Generator().manual_seed(0)) / 3)
    return ranker


def fit(epochs, train=None, **options):
    train = points()["train"] if train is None else train
    return LowRankMLR(D, **options).fit(train, epochs=epochs, batch_documents=60)


@pytest.mark.parametrize("form", ["corpus", "flat"])
@pytest.mark.parametrize(("measure", "k"), [("map", None), ("auc", None), ("mrr", None), ("precision", 3), ("ndcg", 3)])
def test_the_loss_is_hinge_and_penalty(form, measure, k):
    ranker, train = started(measure=measure, C=2.0, rank=3).double(), graded(form)
    components = ranker.components.detach().numpy()
    metric, expected = components.T @ components, []
    for q in range(len(train)):
        batch = train[q].flat()
        gaps, relevant = (batch.x - batch.queries[0]).numpy(), batch.labels.numpy() >= 1
        usable = relevant.any() and not relevant.all()
        scores = -np.einsum("nd,de,ne->n", gaps, metric, gaps)
        expected.append(brute_force(scores, relevant, measure, k) + np.trace(metric) / 2 if usable else 0.0)
    np.testing.assert_allclose(ranker.loss(train[:]).detach().numpy(), expected, atol=1e-10)


def test_near_rows_are_told_apart_in_training_as_after_it():
    """Two groups 2,000 times as far apart as their rows are."""
    draw = np.random.default_rng(0)
    x = torch.tensor(draw.normal(size=(20, D)) + 2000 * (np.arange(20) % 2)[:, None], dtype=torch.float32)
    ranker, offsets, index = started(), torch.arange(0, 401, 20), torch.arange(20).repeat(20)
    trained = ranker.train()(x, offsets, index=index, queries=x).detach()
    assert torch.equal(ranker.eval()(x, offsets, index=index, queries=x), trained)
    gaps = (x[:, None] - x).double() @ ranker.components.detach().double().T
    torch.testing.assert_close(trained.view(20, 20).double(), -gaps.square().sum(2), rtol=1e-6, atol=0)


def test_the_gradient_is_that_of_the_loss():
    """By central differences along random directions; the loss is smooth away from ties."""
    for threshold in (1, "sweep"):
        ranker, batch = started(threshold=threshold, rank=2).double(), graded()[:]
        ranker.loss(batch).sum().backward()
        slope, point = ranker.components.grad.clone(), ranker.components.detach().clone()
        for seed in range(3):
            way = torch.randn(point.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            values = []
            for side in (1e-6, -1e-6):
                with torch.no_grad():
                    ranker.components.copy_(point + side * way)
                    values.append(float(ranker.loss(batch).sum()))
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(float((slope * way).sum()), rel=1e-5)


@pytest.mark.parametrize("init", ["pca", "random"])
def test_the_start_has_unit_distances(init):
    ranker = fit(1, init=init, rank=3, lr=0.0, transform=None)
    components, x = ranker.components.detach().double(), points()["train"].x
    gaps = (x[:, None] - x[None]) @ components.T
    assert gaps.square().sum(2).mean() == pytest.approx(1.0, rel=1e-5) and components.shape == (3, D)
    gram = components @ components.T
    torch.testing.assert_close(gram, gram[0, 0] * torch.eye(3).double(), rtol=1e-5, atol=1e-6)
    if init == "pca":
        _, _, directions = torch.linalg.svd(x - x.mean(0))
        overlap = (components / components.norm(dim=1, keepdim=True)) @ directions[:3].T
        torch.testing.assert_close(overlap.abs(), torch.eye(3).double(), rtol=1e-4, atol=1e-4)


def test_it_comes_near_the_convex_minimum():
    """With all directions nothing is lost but convexity: within a few percent of F / C."""
    best = metric_fits.fit(C=3.0, eps=1e-3).certificate.bounds
    ranker = fit(80, C=3.0, lr=0.03, transform=None)
    value = float(ranker.double().loss(points()["train"][:]).mean())
    assert best["lower"] / 3 <= value <= 1.05 * best["upper"] / 3


def test_scores_are_distances_of_embedded_rows():
    ranker = fit(30, C=10.0, rank=2, transform={"name": "pca", "variance": 0.9})
    test = points()["test"][:]
    found = ranker(test.x, test.offsets, index=test.index, queries=test.queries)
    images, queries = ranker.embed(test.x), ranker.embed(test.queries)
    gaps = images[test.index] - queries[torch.repeat_interleave(torch.arange(9), test.offsets.diff())]
    torch.testing.assert_close(found, -gaps.square().sum(1), rtol=1e-6, atol=1e-6)
    assert torch.linalg.matrix_rank(ranker.get_mahalanobis_matrix()) == 2


def test_it_learns():
    """Wine: with two directions fewer errors of order than by all features as they are."""
    sets = load_points("wine")
    test = sets["test"][:]

    def mean_precision(ranker):
        scores = ranker(test.x, test.offsets, index=test.index, queries=test.queries)
        return average_precision(scores, test.labels, test.offsets).mean()

    learned = mean_precision(LowRankMLR(13, rank=2, C=30.0, lr=0.03).fit(sets["train"], epochs=30))
    assert learned > mean_precision(MetricBaseline(13).fit(sets["train"])) + 0.05 and learned > 0.9


@pytest.mark.parametrize("optimizer", [{"name": "SGD", "momentum": 0.9}, "AdamW"], ids=str)
def test_other_optimizers_and_schedules_learn_too(optimizer):
    """The mean loss falls, by other ways than by Adam at a constant rate."""
    train, scheduler = points()["train"], {"name": "CosineAnnealingLR", "T_max": 20, "warmup": 2}
    options = {"C": 3.0, "lr": 0.03, "transform": None}
    ends = [
        float(fit(epochs, optimizer=optimizer, scheduler=scheduler, **options).loss(train.to("cpu")[:]).mean())
        for epochs in (1, 20)
    ]
    assert ends[1] < 0.9 * ends[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"init": "zero"}, "unknown init='zero': choose pca or random"),
        ({"C": 0.0}, "C must be a single number > 0, got 0.0"),
        ({"C": float("nan")}, "C must be a single number > 0, got nan"),
        ({"C": [1.0, 2.0]}, r"C must be a single number > 0, got \[1.0, 2.0\]"),
        ({"rank": 0}, "rank must be >= 1, got 0"),
        ({"rank": 1.5}, "rank must be an integer >= 1, got 1.5"),
        ({"measure": "err"}, "unknown measure='err': choose one of auc, map"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        LowRankMLR(D, **given)


def test_data_without_query_vectors_is_refused():
    flat = graded("flat")
    with pytest.raises(DataError, match="LowRankMLR learns distances from query vectors"):
        fit(1, RankingSet(flat.x, flat.labels, flat.offsets))

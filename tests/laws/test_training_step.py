"""A training step of a gradient ranker never waits for the device and has no constant of another device in it."""

import pytest
import torch

from tests.laws.test_functions import Synchronisations
from tests.rankers.lgmml.fits import fitted
from tests.rankers.small import FEATURES, lists
from torchrank import MLR, LGMMLNet, LowRankMLR, NeuralRanker, SVMMap
from torchrank.data.batch import Batch
from torchrank.functional.losses import LOSSES
from torchrank.rankers.neural.scorers import SCORERS

EACH_LOSS = ("linear", "mlp", "local")
CHOICES = [(scorer, loss) for scorer in SCORERS for loss in (LOSSES if scorer in EACH_LOSS else ("listnet",))]


@pytest.mark.parametrize(("scorer", "loss"), CHOICES)
def test_no_synchronisation(scorer, loss):
    ranker, train = NeuralRanker(FEATURES, scorer, loss), lists(0)
    optimizer = ranker.configure_optimizers()["optimizer"]
    batch = train[torch.tensor([3, 1, 4])]
    with Synchronisations() as counter:
        values = ranker.loss(batch)
        values.sum().backward()
    optimizer.step()
    assert counter.found == [] and values.shape == (3,)


@pytest.mark.parametrize(("scorer", "loss"), CHOICES)
def test_meta_device(scorer, loss):
    ranker, batch = NeuralRanker(FEATURES, scorer, loss).to("meta"), lists(0)[:].to("meta")
    values = ranker.loss(batch)
    values.sum().backward()
    assert values.device.type == "meta" and all(p.grad is not None for p in ranker.parameters() if p.requires_grad)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("freeze", [(), ("metrics", "anchors", "tau", "weights", "linear")], ids=["free", "frozen"])
def test_local_metrics(loss, freeze):
    batch = lists(0)[torch.tensor([3, 1, 4])]
    ranker = LGMMLNet(FEATURES, groups="random", metrics=3, kernel="laplace", loss=loss, freeze=list(freeze))
    with Synchronisations() as counter:
        ranker.loss(batch).sum().backward()
    assert counter.found == []
    values = ranker.to("meta").loss(batch.to("meta"))
    values.sum().backward()
    assert values.device.type == "meta" and all(p.grad is not None for p in ranker.parameters() if p.requires_grad)


@pytest.mark.parametrize("options", [
    {},
    {"kernel": "rbf"},
    {"kernel": "localized"},
    {"weights": "per_query"},
    {"weights": "per_query", "fallback": "knn"},
    {"weights": "amortized"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("queries", [False, True])
@torch.no_grad()
def test_scoring_by_local_metrics_never_waits(options, queries):
    ranker, flat = fitted(transform="none", **options), lists(0)[torch.tensor([3, 1, 4])]
    vectors, ranker.by_query = torch.rand(3, FEATURES) if queries else None, queries
    batch = Batch(*flat._replace(queries=vectors, index=torch.arange(len(flat.x))))
    expected = ranker.score(batch)
    with Synchronisations() as counter:
        assert torch.equal(ranker.score(batch), expected)
    assert counter.found == [] and expected.isfinite().all()
    assert ranker.to("meta").score(batch.to("meta")).shape == expected.shape


@pytest.mark.parametrize("options", [{}, {"measure": "ndcg", "threshold": "sweep"}, {"measure": "precision"}], ids=str)
def test_low_rank_metrics(options):
    ranker, flat = LowRankMLR(FEATURES, **options), lists(0)[torch.tensor([3, 1, 4])]
    ranker.components.data.normal_(generator=torch.Generator().manual_seed(0))
    batch = flat._replace(queries=torch.rand(3, FEATURES), index=torch.arange(len(flat.x)))
    with Synchronisations() as counter:
        ranker.loss(batch).sum().backward()
    assert counter.found == [] and ranker.components.grad.isfinite().all()
    values = ranker.to("meta").loss(batch.to("meta"))
    values.sum().backward()
    assert values.device.type == "meta" and values.shape == (3,)


@pytest.mark.parametrize("make", [MLR, SVMMap])
@torch.no_grad()
def test_scoring_by_cutting_planes_never_waits(make):
    """A metric is taken apart once, when it is new."""
    ranker, flat = make(FEATURES, transform=None), lists(0)[torch.tensor([3, 1, 4])]
    learned = ranker.metric if make is MLR else ranker.weight
    learned.copy_(torch.eye(FEATURES) if make is MLR else torch.ones(FEATURES))
    batch = flat._replace(queries=torch.rand(3, FEATURES), index=torch.arange(len(flat.x)))
    expected = ranker.score(batch)
    with Synchronisations() as counter:
        assert torch.equal(ranker.score(batch), expected)
    assert counter.found == [] and expected.isfinite().all()

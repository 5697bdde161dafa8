"""A training step of a gradient ranker never waits for the device and has no constant of another device in it."""

import pytest
import torch

from tests.laws.test_functions import Synchronisations
from tests.rankers.small import FEATURES, lists
from torchrank import NeuralRanker
from torchrank.functional.losses import LOSSES

CHOICES = [(scorer, loss) for scorer in ("linear", "mlp") for loss in LOSSES]


@pytest.mark.parametrize(("scorer", "loss"), CHOICES)
def test_no_synchronisation(scorer, loss):
    ranker, train = NeuralRanker(FEATURES, scorer, loss), lists(0)
    (optimizer,) = [ranker.configure_optimizers()]
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

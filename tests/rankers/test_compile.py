"""`compile=True` of a NeuralRanker: the same fit, one graph for all batches, the same files."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import NeuralRanker
from torchrank.rankers.neural import ranker as neural


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """torch.compile without a C++ compiler; a graph break is an error."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    neural._in_graph.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    yield
    neural._in_graph.cache_clear()
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self, num_inputs):
        super().__init__()
        self.last = nn.Linear(num_inputs, 1, bias=False)  # a bias has no gradient but rounding

    def forward(self, x):
        return self.last(x)


def fitted(compile, scorer="mlp", loss="lambdarank"):
    torch.manual_seed(0)
    return NeuralRanker(FEATURES, scorer, loss, lr=0.01, compile=compile)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize(("scorer", "loss"), [("mlp", "lambdarank"), (Net, "listnet")], ids=["mlp", "own"])
def test_the_fit_is_the_same_in_one_graph(scorer, loss):
    plain, compiled = (fitted(compile, scorer, loss).fit(lists(0), lists(1), epochs=3, batch_documents=60)
                       for compile in (False, True))  # fmt: skip
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    for name, value in plain.scorer.state_dict().items():
        torch.testing.assert_close(compiled.scorer.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    x = torch.randn(4, FEATURES)
    assert torch.equal(deepcopy(compiled)(x, [0, 4]), compiled(x, [0, 4]))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("compile", [False, True])
def test_checkpoints_load_with_and_without_it(compile, tmp_path):
    ranker = fitted(compile, "linear", "ranknet")
    trainer(tmp_path, max_epochs=2).fit(ranker, datamodule=data())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"]
    assert not [name for name in saved if "_orig_mod" in name]
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.in_graph is compile
    other = fitted(not compile, "linear", "ranknet")
    trainer(tmp_path / "other", max_epochs=3).fit(other, datamodule=data(), ckpt_path=tmp_path / "last.ckpt")
    assert other.scorer.weight.isfinite().all()
    assert not torch.equal(other.scorer.weight, loaded.scorer.weight)  # it has gone on

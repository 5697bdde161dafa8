"""Losses and measures in torch.compile: one graph without a break, the same result, and no other graph for batches of
other sizes. A few of them stand for all, because a graph takes seconds to make."""

import pytest
import torch
from torch._dynamo.utils import counters

from tests.laws.cases import ROWS, batch
from torchrank.functional import LOSSES, evaluate

pytestmark = pytest.mark.weekly
NAMES = ["softmax_loss", "lambdarank_loss@2", "approx_ndcg_loss@2", "ndcg@2", "average_precision"]
SIZES = [(31, 30, 12), (32, 37, 9), (33, 45, 30)]  # seed, lists, longest


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(function, backend="eager"):
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True)


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", NAMES)
def test_one_graph_for_all_batches(name):
    row = ROWS[name]
    loss = row.function in LOSSES.values()
    function = compiled(row.function, "aot_eager" if loss else "eager")  # measures have no backward pass
    for seed, lists, longest in SIZES:
        scores, labels, offsets = batch(seed, lists=lists, longest=longest)
        scores.requires_grad_(loss)
        pair = [f(scores, labels, offsets, **row.options) for f in (function, row.function)]
        same(*pair)
        if loss:
            same(*(torch.autograd.grad(values.sum(), scores)[0] for values in pair))
    assert counters["stats"]["unique_graphs"] == 1


def test_measures_together():
    scores, labels, offsets = batch(34)
    measures = ["ndcg@10", "map"]
    found = compiled(lambda *lists: evaluate(*lists, measures=measures))(scores, labels, offsets)
    for name, expected in evaluate(scores, labels, offsets, measures=measures).items():
        same(found[name], expected)


def test_values_are_not_checked_in_a_graph():
    """Not even NaN, which gives NaN; eagerly it is an error."""
    scores, labels, offsets = batch(35)
    scores[0] = torch.nan
    row = ROWS["ndcg@2"]
    with pytest.raises(ValueError, match="NaN"):
        row(scores, labels, offsets)
    assert compiled(row.function)(scores, labels, offsets, **row.options).isnan().all()

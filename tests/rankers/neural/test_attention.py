"""Self-attention over lists: a plain transformer of one list at a time, typed again, and the laws of ragged lists."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.laws.test_functions import Synchronisations
from torchrank import NeuralRanker
from torchrank.functional import to_offsets
from torchrank.rankers.neural.attention import AttentionScorer, lay_out, padded_lengths

FEATURES = 5
RAGGED = [7, 1, 0, 40, 16, 17, 7, 131, 2, 0, 33]


def rows(lengths, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), FEATURES, generator=generator, dtype=dtype), to_offsets(lengths)


def scorer(dtype=torch.float32, **options):
    torch.manual_seed(3)
    made = AttentionScorer(FEATURES, **{"width": 12, "heads": 3, "hidden": 20} | options).to(dtype).eval()
    for each in made.parameters():  # also those that start at 0 or 1
        each.data += 0.1 * torch.randn_like(each)
    return made


def norm(x, layer):
    centred = x - x.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * layer.weight
    return scaled if layer.bias is None else scaled + layer.bias


def plain(network, x):
    """One list, head by head and document by document."""
    values = x @ network.first.weight.T + network.first.bias
    for block in network.blocks:
        queries, keys, shown = (norm(values, block.norms[0]) @ block.views.weight.T).chunk(3, 1)
        size, seen = queries.shape[1] // block.heads, torch.zeros_like(queries)
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            for i in range(len(x)):
                likeness = keys[:, part] @ queries[i, part] / math.sqrt(size)
                share = likeness.exp() / likeness.exp().sum()
                seen[i, part] = share @ shown[:, part]
        values = values + seen @ block.mix.weight.T + block.mix.bias
        inside = (norm(values, block.norms[1]) @ block.first.weight.T + block.first.bias).clamp(min=0)
        values = values + inside @ block.second.weight.T + block.second.bias
    return (norm(values, network.norm) @ network.last.weight.T)[:, 0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@torch.no_grad()
def test_the_scores_are_those_of_a_plain_transformer_of_each_list(dtype, tolerance):
    network, (x, offsets) = scorer(dtype), rows(RAGGED, dtype=dtype)
    expected = torch.cat([plain(network, part) for part in x.split(RAGGED)])
    torch.testing.assert_close(network(x, offsets, max(RAGGED)), expected, rtol=0, atol=tolerance)
    longest = x[: RAGGED[0]]
    torch.testing.assert_close(network(longest), expected[: RAGGED[0]], rtol=0, atol=tolerance)


def test_slopes_are_those_of_the_plain_transformer():
    network, (x, offsets) = scorer(torch.float64, width=4, heads=2, hidden=3), rows([5, 0, 19, 1], 1, torch.float64)
    weights = torch.randn(len(x), dtype=torch.float64)
    found = torch.autograd.grad(network(x, offsets) @ weights, list(network.parameters()))
    whole = torch.cat([plain(network, part) for part in x.split([5, 0, 19, 1])]) @ weights
    for one, other in zip(found, torch.autograd.grad(whole, list(network.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_the_order_of_documents_does_not_matter():
    network, (x, offsets) = scorer(), rows(RAGGED)
    generator = torch.Generator().manual_seed(1)
    order = torch.cat([a + torch.randperm(n, generator=generator)
                       for a, n in zip(offsets.tolist(), RAGGED, strict=False)])  # fmt: skip
    torch.testing.assert_close(network(x[order], offsets), network(x, offsets)[order], rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_scores_of_a_list_do_not_depend_on_its_neighbours():
    network, (x, offsets) = scorer(torch.float64), rows(RAGGED, dtype=torch.float64)
    together = network(x, offsets).split(RAGGED)
    for part, found in zip(x.split(RAGGED), together, strict=True):
        torch.testing.assert_close(network(part, to_offsets([len(part)])), found, rtol=0, atol=1e-13)
    changed = x.clone()
    changed[: RAGGED[0]] = 1e6  # whatever a neighbour has
    for one, other in zip(network(changed, offsets).split(RAGGED)[1:], together[1:], strict=True):
        assert torch.equal(one, other)


def test_a_list_attends_to_itself_alone():
    network, (x, offsets) = scorer(), rows(RAGGED)
    x.requires_grad_()
    first, last = 8, 48  # the list of 40
    (slope,) = torch.autograd.grad(network(x, offsets)[first:last].sum(), x)
    assert (slope[first:last] != 0).all() and (slope[:first] == 0).all() and (slope[last:] == 0).all()


@pytest.mark.parametrize("lengths", [RAGGED, [3] * 9, [0, 0], [], [1], [600, 1, 1, 1, 1, 1, 1, 1]], ids=str)
@torch.no_grad()
def test_without_reading_lengths_the_scores_are_the_same(lengths, monkeypatch):
    """As on a device."""
    network, (x, offsets) = scorer(), rows(lengths)
    expected, longest = network(x, offsets), max(lengths, default=0)
    monkeypatch.setattr("torchrank.rankers.neural.attention.host", lambda values: None)
    with Synchronisations() as counter:
        found = network(x, offsets, longest), network(x, offsets)
    assert counter.found == []
    for each in found:
        torch.testing.assert_close(each, expected, rtol=0, atol=1e-5)
    places = len(lay_out(offsets, len(x), longest).source)
    assert places <= max(1, len(x)) * (1 + math.log2(max(1, len(lengths))))


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **options or {})
        for each in tree_leaves(found):
            self.numbers = max(self.numbers, each.numel() if torch.is_tensor(each) else 0)
        return found


def test_no_tensor_is_larger_than_the_documents_of_a_batch_ask_for():
    """A list of 1,251 documents among 3,000: its matrix of pairs would have 1.5 million numbers for each head."""
    lengths = [1251] + [20] * 87
    network, (x, offsets) = scorer(), rows(lengths)
    with Largest() as largest:
        network(x, offsets, 1251).sum().backward()
    assert largest.numbers <= 1.125 * len(x) * 3 * 12  # queries, keys and values of each place


def test_blocks_have_few_empty_places():
    lengths = torch.arange(0, 3000, 7)
    padded = padded_lengths(lengths)
    assert (padded >= lengths).all() and (padded <= lengths * 1.125).all()
    assert len(padded.unique()) < 80
    layout = lay_out(to_offsets(lengths), int(lengths.sum()), 2996)
    assert len(layout.source) == int(padded.sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rows_of_other_types_and_large_values(dtype):
    network, (x, offsets) = scorer(), rows([4, 30])
    found = network(x.to(dtype), offsets)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), network(x, offsets), rtol=0.1, atol=0.1)
    assert network(1e4 * x, offsets).isfinite().all()


def test_widths_that_heads_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="width must be a multiple of heads, got width=10 and heads=4"):
        NeuralRanker(FEATURES, "attention", scorer_options={"width": 10})

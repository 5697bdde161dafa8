"""Draws of lists and of candidate documents, and the few index computations around them, against plain loops."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from torchrank import DataError, DataWarning
from torchrank.data.batch import make_batch
from torchrank.solvers.local_metrics.drawn_lists import (
    ListTable,
    draw_candidates,
    draw_sources,
    found_in,
    own_rows,
    take_lists,
)
from torchrank.solvers.local_metrics.drawn_metrics import add_table
from torchrank.solvers.local_metrics.scatter import high_and_low

LABELS = torch.tensor([0.0, 1, 2, 3, 4, 1, 1, 2, 0, 0, 2, 1, 3, 1, 0.5, 0.25])
OFFSETS = torch.tensor([0, 5, 8, 10, 10, 11, 14, 16])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def blocks(values, offsets=OFFSETS):
    return [values[a:b] for a, b in itertools.pairwise(offsets.tolist())]


@pytest.mark.parametrize("high", ["half", "max", "positive"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_high_and_low(high, dtype):
    labels = LABELS.to(dtype)
    found = high_and_low(labels, OFFSETS, high)
    for own, highs, lows in zip(blocks(labels), blocks(found[0]), blocks(found[1]), strict=True):
        values = own.tolist()
        if values:
            top, bottom = max(values), min(values)
            least = {"half": max(1, math.ceil(top / 2)), "max": top, "positive": 1e-9}[high]
            assert highs.tolist() == [value >= least and value != bottom for value in values]
            assert lows.tolist() == [value == bottom for value in values]
    assert not (found[0] & found[1]).any()


def test_the_table_of_lists():
    batch = make_batch(torch.zeros(16, 1), LABELS, OFFSETS, query=torch.tensor([8, 2, 0, 1, 3, 7, 4]))
    table = torch.full((9, 3), -7.0, dtype=torch.float64)
    add_table(batch, table, "half")
    for place, own in zip(batch.query.tolist(), blocks(LABELS), strict=True):
        values = own.tolist()
        top = max(values, default=0)
        high = sum(value >= max(1, math.ceil(top / 2)) and value != min(values) for value in values)
        assert table[place].tolist() == [high, top, values.count(top)]
    assert (table[5:7] == -7).all()  # the other lists are not touched


@pytest.mark.parametrize(("metrics", "lists"), [(1, 1), (7, 1), (20, 1), (5, 3), (12, 4), (4, 7), (3, 100)])
def test_no_list_is_drawn_again_before_all_were(metrics, lists):
    highs = torch.tensor([2, 1, 3, 0, 9, 2, 2, 1, 4, 2])
    usable = [0, 2, 4, 5, 6, 8, 9]
    sources = draw_sources(highs, metrics, lists, generator())
    assert sources.shape == (metrics, min(lists, len(usable))) and sources.dtype == torch.int64
    assert all(len(set(row)) == len(row) for row in sources.tolist())
    drawn = sources.flatten().tolist()
    for end in range(len(drawn) + 1):  # a row takes from the next shuffle only what it does not hold already
        counts = Counter({position: 0 for position in usable} | Counter(drawn[:end]))
        assert set(counts) == set(usable) and max(counts.values()) - min(counts.values()) <= 1 + (end % 7 > 0)
    if lists == 1:
        for begin in range(0, metrics, len(usable)):
            part = drawn[begin : begin + len(usable)]
            assert len(set(part)) == len(part)


def test_metrics_that_are_all_learned_from_the_same_lists_are_told():
    with pytest.warns(DataWarning, match=r"learned from the same 3 lists: lower queries_per_metric \(now 40\)"):
        draw_sources(torch.tensor([2, 2, 0, 3]), 2, 40, generator())


def test_the_seed_draws_and_all_lists_have_the_same_chance():
    highs = torch.full((6,), 2)
    assert torch.equal(draw_sources(highs, 4, 2, generator(3)), draw_sources(highs, 4, 2, generator(3)))
    first = Counter(int(draw_sources(highs, 1, 1, generator(seed))) for seed in range(600))
    assert sorted(first) == list(range(6)) and min(first.values()) > 60


def test_all_lists_for_one_metric():
    found = draw_sources(torch.tensor([2, 1, 0, 5]), 2, None, generator())
    assert found.tolist() == [[0, 1, 3], [0, 1, 3]]  # one high document has no similar pair, but dissimilar ones


@pytest.mark.parametrize("lists", [1, None])
def test_no_usable_list(lists):
    wanted = "one high document" if lists is None else "two high documents"
    with pytest.raises(DataError, match=f"none of the 3 training lists has {wanted} and a lower one"):
        draw_sources(torch.tensor([0, 0, 0]), 2, lists, generator())


@pytest.mark.parametrize("seed", range(5))
def test_classes_take_turns(seed):
    classes = torch.tensor([0, 0, 0, 0, 0, 1, 1, 3, 3, 3])
    found = draw_sources(torch.full((10,), 2), 23, 1, generator(seed), classes).flatten()
    one_pass, rest = found[:10], found[10:20]
    for part in (one_pass, rest):
        assert sorted(part.tolist()) == list(range(10))
        turns = classes[part].tolist()
        assert [set(turns[:3]), set(turns[3:6]), set(turns[6:8]), set(turns[8:])] == [{0, 1, 3}, {0, 1, 3}, {0, 3}, {0}]


@pytest.mark.parametrize("count", [0, 1, 3, 5, 50])
def test_candidates_have_the_largest_label_of_all_lists_of_the_metric(count):
    table = ListTable(
        torch.tensor([2.0, 3, 2, 4]), torch.tensor([2.0, 3.0, 3.0, 1.0]), torch.tensor([2.0, 1.0, 4.0, 3.0])
    )
    sources = torch.tensor([[0, 3], [2, 1], [3, 0], [1, 0]])
    lists, numbers = draw_candidates(table, sources, count, generator())
    assert lists.shape == numbers.shape == (4, count)
    everyone = [[(0, 0), (0, 1)], [(2, 0), (2, 1), (2, 2), (2, 3), (1, 0)], [(0, 0), (0, 1)], [(1, 0)]]
    for row, expected in enumerate(everyone):
        pairs = list(zip(lists[row].tolist(), numbers[row].tolist(), strict=True))
        kept = [pair for pair in pairs if pair[0] >= 0]
        assert len(kept) == min(count, len(expected)) and pairs[len(kept) :] == [(-1, -1)] * (count - len(kept))
        assert [pair for pair in expected if pair in kept] == kept  # in their order
        assert count < len(expected) or kept == expected


def test_found_in_a_batch():
    batch = make_batch(torch.zeros(16, 1), LABELS, OFFSETS, query=torch.tensor([8, 2, 0, 1, 3, 7, 4]))
    positions = torch.tensor([[2, 5, 8], [-1, 0, 2], [6, -1, -1]])
    lists, rows, columns = found_in(batch, positions)
    expected = {
        (row, column): batch.query.tolist().index(value)
        for (row, column), value in np.ndenumerate(positions.numpy())
        if value in batch.query.tolist()
    }
    keys = zip(rows.tolist(), columns.tolist(), strict=True)
    assert dict(zip(keys, lists.tolist(), strict=True)) == expected and len(rows) == len(expected)
    empty = make_batch(torch.zeros(0, 1), torch.zeros(0), torch.tensor([0]))
    assert [len(part) for part in found_in(empty, positions)] == [0, 0, 0]


@pytest.mark.parametrize("shared", [False, True])
def test_lists_are_taken_in_any_order_and_more_than_once(shared):
    corpus = torch.randn(9, 2, generator=generator())
    index = torch.randint(9, (16,), generator=generator(1)) if shared else None
    x = corpus if shared else torch.randn(16, 2, generator=generator())
    batch = make_batch(x, LABELS, OFFSETS, index=index)
    rows, labels, offsets = take_lists(batch, torch.tensor([5, 0, 3, 5]))
    entries = [11, 12, 13, 0, 1, 2, 3, 4, 11, 12, 13]
    expected = x[index[entries]] if shared else x[entries]
    assert rows.dtype == torch.float64 and torch.equal(rows, expected.double())
    assert torch.equal(labels, LABELS[entries]) and offsets.tolist() == [0, 3, 8, 8, 11]
    assert torch.equal(own_rows(batch, torch.tensor(entries)), expected.double())

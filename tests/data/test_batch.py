"""The three integers of a batch by brute force, and the parts that do not fit together."""

import itertools

import numpy as np
import pytest
import torch

from torchrank.data import Batch, SparseRows, make_batch
from torchrank.data.batch import count_pairs, grades_of, unlabelled
from torchrank.errors import DataError
from torchrank.functional.lists import MAX_GRADES


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def random_lists(random: np.random.Generator, labels):
    lengths = random.integers(0, 7, random.integers(0, 9))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return random.choice(labels, offsets[-1]), offsets


def brute_pairs(labels, offsets):
    lists = [labels[a:b] for a, b in itertools.pairwise(offsets)]
    return [sum(first > second for first in part for second in part) for part in lists]


@pytest.mark.parametrize("labels", [[0.0, 1.0, 2.0, 4.0], [-1.0, 0.5, 0.25, 3.0], [1e6, 3.0, 0.0], [2.0]])
def test_pairs_by_brute_force(labels):
    random = np.random.default_rng(0)
    for _ in range(100):
        values, offsets = random_lists(random, labels)
        expected = brute_pairs(values, offsets)
        assert count_pairs(values, offsets, grades_of(torch.from_numpy(values))).tolist() == expected
        assert count_pairs(values, offsets, 0).tolist() == expected


def test_grades():
    assert grades_of(torch.tensor([0, 1, 4], dtype=torch.float32)) == 5
    assert grades_of(torch.tensor([0, 1, 4])) == 5 and grades_of(torch.tensor([True, False])) == 2
    assert grades_of(torch.tensor([3.0])) == 4
    assert grades_of(torch.tensor([0.0, 1.5])) == 0
    assert grades_of(torch.tensor([-1.0, 1.0])) == 0
    assert grades_of(torch.tensor([0.0, MAX_GRADES])) == 0
    assert grades_of(torch.tensor([])) == 0
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(DataError, match=r"of entry 1: labels must be finite"):
            grades_of(torch.tensor([0.0, bad]))


def test_batch_counts_what_its_lists_hold():
    random = np.random.default_rng(1)
    for _ in range(30):
        labels, offsets = random_lists(random, [0.0, 1.0, 2.0])
        x = torch.randn(len(labels), 3)
        batch = make_batch(x, torch.from_numpy(labels), torch.from_numpy(offsets))
        assert batch.max_length == max(np.diff(offsets), default=0)
        assert batch.num_pairs == sum(brute_pairs(labels, offsets))
        assert batch.num_lists == len(offsets) - 1 and batch.query.tolist() == list(range(len(offsets) - 1))


def test_flat_copies_the_shared_rows():
    x, index = torch.randn(4, 2), torch.tensor([3, 0, 3])
    labels, offsets = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0, 2, 3])
    for corpus in (x, SparseRows.from_dense(x)):
        batch = make_batch(corpus, labels, offsets, index=index, queries=torch.randn(2, 2))
        flat = batch.flat()
        rows = flat.x.dense() if isinstance(flat.x, SparseRows) else flat.x
        assert torch.equal(rows, x[index]) and flat.index is None and flat.queries is batch.queries
        assert flat.flat() is flat


@pytest.mark.parametrize("labels", [[0.0, 1.0, 2.0], [0.5, -1.0, 7.25]])
def test_take_is_the_lists_one_by_one(labels):
    """Of own rows, of a corpus, of sparse rows; any order, the same list twice, no list."""
    random = np.random.default_rng(2)
    for trial in range(30):
        grades, offsets = random_lists(random, labels)
        chosen = random.integers(0, len(offsets) - 1, random.integers(0, 5)) if len(offsets) > 1 else np.zeros(0, int)
        index = torch.from_numpy(random.integers(0, 9, len(grades))) if trial % 3 == 0 else None
        x = torch.randn(len(grades) if index is None else 9, 3)
        whole = make_batch(
            SparseRows.from_dense(x) if trial % 2 else x,
            torch.from_numpy(grades),
            torch.from_numpy(offsets),
            query=10 + torch.arange(len(offsets) - 1),
            index=index,
            queries=torch.randn(len(offsets) - 1, 3) if trial % 5 == 0 else None,
        )
        part, entries = whole.take(torch.from_numpy(chosen))
        bounds = [(int(offsets[q]), int(offsets[q + 1])) for q in chosen]
        expected = [i for a, b in bounds for i in range(a, b)]
        assert entries.tolist() == expected and part.query.tolist() == (10 + chosen).tolist()
        assert part.offsets.tolist() == [0, *np.cumsum([b - a for a, b in bounds])]
        assert part.labels.tolist() == grades[expected].tolist()
        rows = part.flat().x
        rows = rows.dense() if isinstance(rows, SparseRows) else rows
        assert torch.equal(rows, x[expected] if index is None else x[index[expected]])
        assert (index is None) == (part.index is None) and (index is None or part.x is whole.x)
        assert whole.queries is None or torch.equal(part.queries, whole.queries[chosen])
        assert part.max_length == max((b - a for a, b in bounds), default=0)
        assert part.num_pairs == sum(sum(brute_pairs(grades, bound)) for bound in bounds)
        assert part.num_grades == whole.num_grades


def test_dense_rows_are_those_of_the_entries_and_sparse_ones_are_refused():
    x, index = torch.randn(4, 2), torch.tensor([3, 0, 3])
    batch = make_batch(x, torch.zeros(3), torch.tensor([0, 3]), index=index)
    assert torch.equal(batch.dense, x[index]) and torch.equal(batch.at_entries(x), x[index])
    own = make_batch(x, torch.zeros(4), torch.tensor([0, 4]))
    assert own.dense is x and own.at_entries(x) is x
    with pytest.raises(DataError, match=r"sparse: set data\.sparse=false"):
        _ = make_batch(SparseRows.from_dense(x), torch.zeros(4), torch.tensor([0, 4])).dense


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int64])
def test_lists_without_labels_take_integers_of_any_width(kind):
    x, offsets = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=kind), torch.tensor([0, 1, 4], dtype=kind)
    batch = unlabelled(x, offsets, index=torch.tensor([2, 0, 0, 1], dtype=kind), query=torch.tensor([7, 5], dtype=kind))
    assert batch.x.dtype == torch.float64 and batch.x.tolist() == x.tolist() and batch.labels.tolist() == [0.0] * 4
    assert (batch.num_lists, batch.max_length, batch.num_pairs, batch.num_grades) == (2, 3, 0, 1)
    assert batch.offsets.dtype == batch.query.dtype == torch.int64 and batch.query.tolist() == [7, 5]
    for query in (torch.tensor([0]), torch.tensor([0.0, 1.0])):
        with pytest.raises(DataError, match="query must hold the integer position of each of 2 lists"):
            unlabelled(x, offsets, index=torch.zeros(4, dtype=kind), query=query)


def test_to_moves_every_part():
    batch = make_batch(SparseRows.from_dense(torch.eye(3)), torch.zeros(3), torch.tensor([0, 3]), index=torch.arange(3))
    moved = batch.to("meta")
    assert isinstance(moved, Batch) and moved.x.device.type == moved.device.type == moved.index.device.type == "meta"
    assert moved.queries is None and moved.max_length == 3


def test_empty_batch():
    batch = make_batch(torch.zeros(0, 5), torch.zeros(0), torch.tensor([0]))
    assert (batch.num_lists, batch.max_length, batch.num_pairs) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": torch.tensor([0, 4])}, "offsets end at 4 but there are 3 entries"),
        ({"offsets": torch.tensor([0, 2, 1, 3])}, "never decrease"),
        ({"offsets": torch.tensor([1, 3])}, "start at 0"),
        ({"offsets": torch.tensor([], dtype=torch.int64)}, "start at 0"),
        ({"offsets": torch.tensor([0.0, 3.0])}, "int64 offsets"),
        ({"x": torch.zeros(3)}, r"expected x \(n, D\)"),
        ({"x": torch.zeros(5, 2)}, "5 rows for 3 entries"),
        ({"index": torch.tensor([0, 1])}, r"integer row of each of 3 entries \(N,\), got torch.int64 \(2,\)"),
        ({"index": torch.tensor([True, False, True])}, "got torch.bool"),
        ({"index": torch.tensor([0.0, 1.0, 2.0])}, "got torch.float32"),
        ({"index": torch.tensor([0, 1, 3])}, r"0\.\.3 but the corpus has 3 rows"),
        ({"index": torch.tensor([0, -1, 2])}, r"-1\.\.2"),
        ({"queries": torch.zeros(2, 2)}, r"\(2, 2\) for lists and features \(1, 2\)"),
        ({"query": torch.arange(2)}, "2 positions for 1 lists"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message):
    parts = {"x": torch.zeros(3, 2), "labels": torch.zeros(3), "offsets": torch.tensor([0, 3])} | change
    with pytest.raises(DataError, match=message):
        make_batch(**parts)

"""The three relevances against a plain double loop over queries and rows, and against each other."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from torchrank.data import Explicit, Judged, SameClass
from torchrank.errors import DataError

SEEDS = range(8)


def table(relevance, random: np.random.Generator, num_lists: int, num_rows: int, own: list[int]):
    """Labels by a plain double loop: `relevance(q, row)` for every row but the query's own, list by list."""
    labels, index, offsets = [], [], [0]
    for query in range(num_lists):
        for row in range(num_rows):
            if row != own[query]:
                labels.append(relevance(query, row))
                index.append(row)
        offsets.append(len(labels))
    return labels, index, offsets


def pairs_of(labels, offsets) -> list[int]:
    lists = [labels[a:b] for a, b in pairwise(offsets)]
    return [sum(first > second for first in part for second in part) for part in lists]


def own_rows(random: np.random.Generator, num_lists: int, num_rows: int, kind: str) -> list[int]:
    """No query is a row, every query is one, or some are; `num_rows` stands for none."""
    own = random.integers(0, num_rows, num_lists)
    return np.where(random.random(num_lists) < {"none": 1.0, "all": 0.0, "some": 0.5}[kind], num_rows, own).tolist()


def by_class(seed: int, kind: str):
    random = np.random.default_rng(seed)
    num_lists, num_rows, names = int(random.integers(0, 7)), int(random.integers(1, 9)), ("a", "b", "c")
    own = own_rows(random, num_lists, num_rows, kind)
    corpus, classes = random.integers(0, 3, num_rows), random.integers(0, 3, num_lists)
    if seed % 2:  # a query that is a row is of its class
        classes = np.where(np.array(own) < num_rows, np.append(corpus, 0)[own], classes).astype(np.int64)
    relevance = SameClass(torch.from_numpy(classes), torch.from_numpy(corpus), names, torch.tensor(own).long())
    return relevance, table(lambda q, row: float(corpus[row] == classes[q]), random, num_lists, num_rows, own)


def by_judgement(seed: int, kind: str, grades=(1, 2, 4)):
    random = np.random.default_rng(seed)
    num_lists, num_rows = int(random.integers(0, 7)), int(random.integers(1, 9))
    own = own_rows(random, num_lists, num_rows, kind)
    judged = {}
    for query in range(num_lists):
        for row in random.permutation(num_rows):  # in any order
            if row != own[query] and random.random() < 0.4:
                judged[query, int(row)] = float(random.choice(grades))
    counts = np.bincount(np.array([query for query, _ in judged], dtype=np.int64), minlength=num_lists)
    rows, values = np.array([row for _, row in judged]), np.array(list(judged.values()))
    relevance = Judged.make(rows, values, counts, num_rows, torch.tensor(own).long())
    return relevance, table(lambda q, row: judged.get((q, row), 0.0), random, num_lists, num_rows, own)


def check(relevance, labels, index, offsets):
    """Every selection of lists holds the entries of the table."""
    count = len(offsets) - 1
    assert len(relevance) == count and relevance.offsets.tolist() == relevance.bounds.tolist() == offsets
    assert relevance.lengths.tolist() == np.diff(offsets).tolist()
    assert relevance.pairs.tolist() == pairs_of(labels, offsets)
    everything = [slice(a, b) for a in range(count + 1) for b in range(a, count + 1)]
    for positions in [*everything, np.arange(count)[::-1], np.zeros(0, dtype=np.int64), np.arange(count).repeat(2)]:
        positions = positions.copy() if isinstance(positions, np.ndarray) else positions
        lists = list(range(count))[positions] if isinstance(positions, slice) else positions.tolist()
        found = relevance.entries(positions, torch.tensor(lists, dtype=torch.int64))
        wanted = [entry for q in lists for entry in range(offsets[q], offsets[q + 1])]
        assert found.labels.tolist() == [labels[entry] for entry in wanted]
        assert found.index.tolist() == [index[entry] for entry in wanted]
        assert found.offsets.tolist() == [0, *np.cumsum([offsets[q + 1] - offsets[q] for q in lists]).tolist()]


@pytest.mark.parametrize("kind", ["none", "all", "some"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [by_class, by_judgement])
def test_entries_are_those_of_a_plain_double_loop(make, seed, kind):
    relevance, (labels, index, offsets) = make(seed, kind)
    check(relevance, labels, index, offsets)
    explicit = Explicit(torch.tensor(labels), torch.tensor(offsets), torch.tensor(index, dtype=torch.int64))
    check(explicit, labels, index, offsets)
    assert relevance.shared and explicit.shared
    assert relevance.num_grades == 2 if make is by_class else relevance.num_grades in (1, 2, 3, 5)


@pytest.mark.parametrize("kind", ["none", "all", "some"])
@pytest.mark.parametrize("seed", SEEDS)
def test_real_valued_grades_are_judged_like_integers(seed, kind):
    relevance, (labels, index, offsets) = by_judgement(seed, kind, grades=(0.5, 2.25))
    assert relevance.num_grades == (0 if any(labels) else 1)
    check(relevance, labels, index, offsets)


@pytest.mark.parametrize("kind", ["none", "all", "some"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_class_judged_row_by_row_is_the_same_relevance(seed, kind):
    """Same class = judged = explicit, wherever they describe the same lists."""
    classes, (labels, index, offsets) = by_class(seed, kind)
    relevant = np.array(labels) > 0
    query = np.repeat(np.arange(len(classes)), np.diff(offsets))
    rows, counts = np.array(index, dtype=np.int64)[relevant], np.bincount(query[relevant], minlength=len(classes))
    judged = Judged.make(rows, np.ones(len(rows)), counts, classes.num_rows, classes.own)
    explicit = Explicit(torch.tensor(labels), torch.tensor(offsets), torch.tensor(index, dtype=torch.int64))
    place = torch.arange(len(classes))
    found = [each.entries(slice(0, len(classes)), place) for each in (classes, judged, explicit)]
    for other in found[1:]:
        assert torch.equal(found[0].labels, other.labels) and found[0].labels.dtype == other.labels.dtype
        assert torch.equal(found[0].index, other.index) and torch.equal(found[0].offsets, other.offsets)
    assert classes.pairs.tolist() == judged.pairs.tolist() == explicit.pairs.tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [by_class, by_judgement])
def test_taking_and_moving_lists_keeps_what_the_host_knows(make, seed):
    relevance, _ = make(seed, "some")
    count = len(relevance)
    for positions in (np.arange(count)[::-1].copy(), np.arange(count).repeat(2), np.zeros(0, dtype=np.int64)):
        part = relevance.take(positions).to("cpu")
        fresh = copy.deepcopy(part)
        for name in ("lengths", "pairs", "bounds", "offsets"):
            fresh.__dict__.pop(name, None)  # counted again by itself
        place = torch.from_numpy(positions)
        one = part.entries(slice(0, len(positions)), torch.arange(len(positions)))
        other = relevance.entries(positions, place)
        assert torch.equal(one.labels, other.labels) and torch.equal(one.index, other.index)
        assert len(part) == len(positions) and part.num_grades == relevance.num_grades
        assert part.lengths.tolist() == relevance.lengths[positions].tolist() == fresh.lengths.tolist()
        assert part.pairs.tolist() == relevance.pairs[positions].tolist() == fresh.pairs.tolist()
        assert torch.equal(part.offsets, other.offsets)


def test_moving_to_a_device_asks_it_for_nothing():
    for relevance in (by_class(3, "some")[0], by_judgement(3, "some")[0]):
        moved = relevance.to("meta")  # a meta tensor cannot be read
        assert moved.lengths.tolist() == relevance.lengths.tolist() and moved.pairs.tolist() == relevance.pairs.tolist()
        assert moved.offsets.device.type == "meta"
        found = moved.entries(slice(0, 2), torch.arange(2, device="meta"))
        assert found.labels.shape == found.index.shape == (int(relevance.lengths[:2].sum()),)


def test_explicit_lists_have_rows_of_their_own_or_share_them():
    labels, offsets = torch.tensor([0.0, 2.0, 1.0]), torch.tensor([0, 2, 3])
    own, shared = Explicit(labels, offsets), Explicit(labels, offsets, torch.tensor([4, 0, 4]))
    assert not own.shared and own.entries(slice(1, 2), torch.tensor([1])).rows == slice(2, 3)
    assert own.entries(np.array([1, 0]), torch.tensor([1, 0])).rows.tolist() == [2, 0, 1]
    assert own.entries(slice(0, 2), torch.arange(2)).index is None
    assert shared.shared and shared.entries(slice(0, 2), torch.arange(2)).index.tolist() == [4, 0, 4]
    assert shared.take(np.array([1])).index.tolist() == [4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [0, 5]}, r"row 5 with grade 2 for query 1: the corpus has rows 0\.\.4"),
        ({"rows": [-1, 1]}, r"row -1 with grade 1 for query 0: the corpus has rows 0\.\.4"),
        ({"grades": [1, -2]}, "row 3 with grade -2 for query 1: grades must be 0 or more"),
        ({"grades": [np.nan, 1]}, "labels must be finite numbers"),
        ({"rows": [0, 2]}, r"row 2 with grade 2 for query 1: a query cannot be judged for itself \(own\)"),
        ({"rows": [0, 0], "counts": [2, 0]}, "row 0 with grade 2 for query 0: it is judged twice"),
        ({"grades": [1]}, "every judgement needs a row and a grade"),
        ({"counts": [1, 2]}, "counts that sum to 3"),
        ({"grades": [np.nan, 1]}, "labels must be finite"),
        (
            {"own": torch.tensor([2])},
            r"own must hold the corpus row of each of 2 queries as int64, got torch.int64 \(1,\)",
        ),
        ({"own": torch.tensor([2.0, 5.0])}, "as int64, got torch.float32"),
    ],
)
def test_judgements_that_make_no_sense_are_refused(change, message):
    given = {"rows": [0, 3], "grades": [1, 2], "counts": [1, 1], "num_rows": 5, "own": torch.tensor([5, 2])} | change
    with pytest.raises(DataError, match=message):
        Judged.make(**given)


def test_the_rows_of_queries_must_fit_the_queries():
    with pytest.raises(DataError, match=r"own must hold the corpus row of each of 2 queries as int64"):
        SameClass(torch.tensor([0, 1]), torch.tensor([0, 1, 0]), ("a", "b"), own=torch.arange(3))

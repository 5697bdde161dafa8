"""Cleaning against a plain double loop, with duplicates made on purpose."""

import itertools

import numpy as np
import pytest
import torch

from torchrank.data import RankingSet, SparseRows, clean
from torchrank.data import cleaning as module
from torchrank.errors import DataError


def brute_force(x: np.ndarray, labels: np.ndarray, offsets: np.ndarray, drop_all_same: bool):
    """Kept entries and lists, documents deleted, lists without relevant, lists with one label."""
    entries, lists, counts = [], [], [0, 0, 0]
    for number, (start, stop) in enumerate(itertools.pairwise(offsets)):
        kept = []
        for i in range(start, stop):
            twins = [j for j in range(start, stop) if np.array_equal(x[i], x[j])]
            kept += [i] if len({labels[j] for j in twins}) == 1 else []
        counts[0] += stop - start - len(kept)
        if not any(labels[i] >= 1 for i in kept):
            counts[1] += 1
        elif drop_all_same and len({labels[i] for i in kept}) == 1:
            counts[2] += 1
        else:
            entries.append(kept)
            lists.append(number)
    return entries, lists, tuple(counts)


def random_set(seed: int, form: str):
    """Few distinct values, so that many rows are equal; some zeros are negative."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(random.integers(0, 9, random.integers(1, 12)))))
    corpus = random.choice([0.0, -0.0, 1.0, 0.1], (6, 3)).astype(np.float64 if seed % 2 else np.float32)
    index = random.integers(0, 6, offsets[-1])
    labels = random.choice([0.0, 0.0, 1.0, 2.0], offsets[-1]).astype(np.float32)
    x = torch.from_numpy(corpus if form == "shared" else corpus[index])
    lists = RankingSet(
        SparseRows.from_dense(x) if form == "sparse" else x,
        torch.from_numpy(labels),
        torch.from_numpy(offsets),
        index=torch.from_numpy(index) if form == "shared" else None,
        queries=torch.arange(len(offsets) - 1.0)[:, None].expand(-1, 3),
        query_ids=[str(i) for i in range(len(offsets) - 1)],
        document_ids=[str(i) for i in range(len(labels))],
    )
    return lists, corpus[index], labels, offsets


@pytest.mark.parametrize("drop_all_same", [False, True])
@pytest.mark.parametrize("form", ["dense", "sparse", "shared"])
@pytest.mark.parametrize("seed", range(25))
def test_agrees_with_the_double_loop(seed, form, drop_all_same):
    lists, x, labels, offsets = random_set(seed, form)
    entries, numbers, counts = brute_force(x, labels, offsets, drop_all_same)
    cleaned, report = clean(lists, drop_all_same=drop_all_same)
    assert tuple(report) == counts and report.queries_removed == counts[1] + counts[2]
    flat = cleaned[:].flat()
    rows = flat.x.dense() if isinstance(flat.x, SparseRows) else flat.x
    order = [i for kept in entries for i in kept]
    np.testing.assert_array_equal(rows.numpy(), x[order])
    np.testing.assert_array_equal(flat.labels.numpy(), labels[order])
    assert cleaned.lengths.tolist() == [len(kept) for kept in entries]
    assert list(cleaned.query_ids) == [str(i) for i in numbers]
    assert list(cleaned.document_ids) == [str(i) for i in order]
    assert cleaned.queries[:, 0].tolist() == numbers
    assert clean(cleaned, drop_all_same=drop_all_same)[0] is cleaned  # nothing left to do


@pytest.mark.parametrize("form", ["dense", "sparse", "shared"])
def test_rows_with_one_key_by_chance_are_told_apart(form, monkeypatch):
    """All keys equal: only the verification can find the groups."""
    monkeypatch.setattr(module, "row_keys", lambda x: np.zeros(len(x), dtype=np.uint64))
    monkeypatch.setattr(module, "ELEMENTS", 6)  # verified in several blocks
    for seed in range(25):
        lists, x, labels, offsets = random_set(seed, form)
        cleaned, report = clean(lists)
        entries, _, counts = brute_force(x, labels, offsets, False)
        assert tuple(report) == counts and cleaned.lengths.tolist() == [len(kept) for kept in entries]


def test_keys_are_equal_for_equal_rows_only_here():
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        x = torch.from_numpy(np.unique(random.integers(0, 4, (20_000, 12)), axis=0).astype(dtype))
        keys = module.row_keys(x)
        assert len(np.unique(keys)) == len(x)  # small whole numbers, whose bits are mostly zeros
        assert (module.row_keys(SparseRows.from_dense(x)) == keys).all()
    assert len(np.unique(module.row_keys(torch.tensor([[0.0, 1.0], [-0.0, 1.0]])))) == 1


def test_the_same_row_in_two_lists_is_no_contradiction():
    lists = RankingSet(torch.ones(2, 1), torch.tensor([1.0, 2.0]), torch.tensor([0, 1, 2]))
    cleaned, report = clean(lists)
    assert cleaned is lists and tuple(report) == (0, 0, 0)


@pytest.mark.parametrize("sparse", [False, True])
def test_nan_is_refused_with_its_row(sparse):
    x = torch.ones(5, 2)
    x[3, 1] = torch.nan
    lists = RankingSet(SparseRows.from_dense(x) if sparse else x, torch.ones(5), torch.tensor([0, 5]))
    with pytest.raises(DataError, match="row 3 contains NaN"):
        clean(lists)

"""RankingSet in all its forms: the laws of the design, views instead of copies, no synchronisation."""

import time

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchrank.data import RankingSet, SparseRows, make_batch, make_transform
from torchrank.data.datamodule import StreamedSet

LENGTHS = [3, 0, 5, 1, 4]
OFFSETS = torch.tensor([0, 3, 3, 8, 9, 13])
FORMS = ["dense", "sparse", "shared", "shared sparse"]


def make_set(form: str, queries: bool = False) -> RankingSet:
    generator = torch.Generator().manual_seed(0)
    corpus = torch.randn(7, 4, generator=generator).relu()
    index = torch.randint(7, (13,), generator=generator)
    labels = torch.randint(3, (13,), generator=generator).float()
    shared = "shared" in form
    x = corpus if shared else corpus[index]
    return RankingSet(
        SparseRows.from_dense(x) if "sparse" in form else x,
        labels,
        OFFSETS,
        index=index if shared else None,
        queries=torch.randn(5, 4, generator=generator) if queries else None,
        query_ids=[f"q{i}" for i in range(5)],
        document_ids=np.array([f"d{i}" for i in range(13)]),
        name=form,
    )


def plain(batch):
    """A batch as dense own rows, to compare forms."""
    flat = batch.flat()
    rows = flat.x.dense() if isinstance(flat.x, SparseRows) else flat.x
    counts = (flat.max_length, flat.num_pairs, flat.num_grades)
    queries = [] if flat.queries is None else flat.queries.tolist()
    return rows.tolist(), flat.labels.tolist(), flat.offsets.tolist(), flat.query.tolist(), queries, counts


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_hold_the_same_lists(form, queries):
    reference, other = make_set("dense", queries), make_set(form, queries)
    for positions in [slice(None), slice(1, 4), slice(2, 2), torch.tensor([4, 0, 2]), np.array([1]), [3, 3], []]:
        assert plain(reference[positions]) == plain(other[positions])


@pytest.mark.parametrize("form", FORMS)
def test_batch_is_what_its_lists_are(form):
    lists = make_set(form, queries=True)
    rows = make_set("dense").x
    batch = lists[torch.tensor([4, 1, 0])]
    entries = [9, 10, 11, 12, 0, 1, 2]
    assert batch.query.tolist() == [4, 1, 0] and batch.offsets.tolist() == [0, 4, 4, 7]
    assert plain(batch)[0] == rows[entries].tolist()
    assert torch.equal(batch.labels, lists.labels[entries])
    assert torch.equal(batch.queries, lists.queries[[4, 1, 0]])
    again = make_batch(batch.x, batch.labels, batch.offsets, index=batch.index, num_grades=lists.num_grades)
    assert (batch.max_length, batch.num_pairs) == (again.max_length, again.num_pairs)


@pytest.mark.parametrize("form", FORMS)
def test_slices_positions_and_concatenation_agree(form):
    lists = make_set(form, queries=True)
    assert plain(lists[1:4]) == plain(lists[torch.tensor([1, 2, 3])])
    whole, parts = plain(lists[:]), [plain(lists[a:b]) for a, b in [(0, 2), (2, 2), (2, 5)]]
    for place in (0, 1, 3, 4):  # rows, labels, positions, query vectors
        assert whole[place] == [value for part in parts for value in part[place]]
    assert whole[5][1] == sum(part[5][1] for part in parts)
    assert [plain(lists[i]) for i in range(5)] == [plain(batch) for batch in lists]
    assert plain(lists[-1]) == plain(lists[4:5])


@pytest.mark.parametrize("form", FORMS)
def test_subset_renumbers_and_keeps_the_ids(form):
    lists = make_set(form, queries=True)
    some = lists.subset(np.array([4, 2]))
    batch, expected = plain(some[:]), plain(lists[[4, 2]])
    assert batch[:3] == expected[:3] and batch[4:] == expected[4:] and batch[3] == [0, 1]
    assert list(some.query_ids) == ["q4", "q2"]
    assert list(some.document_ids) == [f"d{i}" for i in [9, 10, 11, 12, 3, 4, 5, 6, 7]]
    assert (some.x is lists.x) == ("shared" in form)


def test_slices_are_views_and_a_shared_corpus_is_not_gathered():
    lists = make_set("dense")
    batch = lists[2:4]
    assert batch.x.data_ptr() == lists.x[3:].data_ptr() and batch.labels.data_ptr() == lists.labels[3:].data_ptr()
    shared = make_set("shared")
    assert shared[2:4].x is shared.x and shared[torch.tensor([1])].x is shared.x


def test_memory_mapped_rows_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((13, 4), dtype=np.float32))
    x = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    lists = RankingSet(x, torch.zeros(13), OFFSETS)
    for same in (lists, lists.to("cpu"), lists.to("cpu", make_transform("none", 4))):
        assert same.x.data_ptr() == x.data_ptr() and same[0:2].x.data_ptr() == x.data_ptr()


def test_opening_a_set_of_the_size_of_mslr30k_costs_milliseconds():
    offsets = torch.arange(31_532) * 120
    x, labels = torch.empty(31_531 * 120, 136), torch.empty(31_531 * 120)  # pages that are never touched
    start = time.perf_counter()
    RankingSet(x, labels, offsets)
    assert time.perf_counter() - start < 0.1


class Synchronisations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", ["dense", "shared"])
def test_batches_are_made_without_synchronisation(form):
    lists = make_set(form, queries=True)
    with Synchronisations() as mode:
        lists[1:4], lists[torch.tensor([4, 2])]
    assert mode.count == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("option", ["l2", "log1p", "standard", {"name": "pca", "variance": 0.5}, "quadratic"])
def test_to_applies_the_transform_to_rows_and_query_vectors(form, option, monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 20)  # several chunks
    lists = make_set(form, queries=True)
    rows = lists.x.dense() if lists.is_sparse else lists.x
    transform = make_transform(option, 4).fit(rows.double())
    if lists.is_sparse and transform.sparse_refusal:
        with pytest.raises(ValueError, match="sparse"):
            lists.to("cpu", transform)
        return
    ready = lists.to("cpu", transform)
    expected = transform(rows.double(), torch.tensor([0, len(rows)])).float()
    assert torch.allclose(ready.x.dense() if ready.is_sparse else ready.x, expected)
    assert torch.allclose(ready.queries, transform(lists.queries, torch.tensor([0, 5])))
    assert ready.x.dtype == ready.queries.dtype == torch.float32
    assert ready.num_features == transform.num_outputs and ready.query_ids == lists.query_ids


def test_transforms_inside_lists_see_whole_lists(monkeypatch):
    monkeypatch.setattr("torchrank.data.rows.ELEMENTS", 5)
    lists, transform = make_set("dense"), make_transform("query_minmax", 4)
    ready = lists.to("cpu", transform)
    for i in range(5):
        assert torch.equal(ready[i].x, transform(lists[i].x, lists[i].offsets))


def test_float64_sets_become_float32():
    lists = RankingSet(torch.eye(2, dtype=torch.float64), torch.zeros(2), torch.tensor([0, 2]))
    assert lists.to("cpu").x.dtype == torch.float32


def test_nan_in_a_later_split_is_refused_with_its_row():
    x = torch.ones(6, 2)
    transform = make_transform("standard", 2).fit(x)
    x[4, 1] = torch.nan
    with pytest.raises(ValueError, match=r"feature 1 .* of row 4 is nan"):
        RankingSet(x, torch.zeros(6), torch.tensor([0, 6])).to("cpu", transform)


@pytest.mark.parametrize("as_array", [False, True])
def test_tiebreak_is_the_descending_text_order_of_the_ids(as_array):
    ids = ["9", "10", "b", "a", "a", "Ü", "z", "c", "x1", "x10", "x2", "x2", "x02"]
    lists = RankingSet(torch.zeros(13, 1), torch.zeros(13), OFFSETS, document_ids=np.array(ids) if as_array else ids)
    order = lists.tiebreak()
    for start, stop in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True):
        expected = sorted(range(start, stop), key=lambda i: [-ord(c) for c in ids[i]] + [1])
        assert sorted(range(start, stop), key=lambda i: order[i]) == expected
    ids[2] = ids[7] = ""
    lists.document_ids = np.array(ids) if as_array else ids
    with pytest.raises(ValueError, match=r"2 of 13 entries .* have no document id"):
        lists.tiebreak()
    with pytest.raises(ValueError, match="no document ids"):
        RankingSet(torch.zeros(13, 1), torch.zeros(13), OFFSETS).tiebreak()


def test_counts_given_by_a_cache_are_used():
    lists = RankingSet(torch.zeros(2, 1), torch.zeros(2), torch.tensor([0, 2]), pairs=np.array([7]), num_grades=9)
    assert lists[0:1].num_pairs == 7 and lists.num_grades == 9


def test_empty_sets_and_bad_positions():
    empty = RankingSet(torch.zeros(0, 3), torch.zeros(0), torch.tensor([0]))
    assert len(empty) == 0 and empty[:].num_lists == 0 and empty[[]].num_lists == 0
    lists = make_set("dense")
    for bad in ([5], [-1, 2]):
        with pytest.raises(IndexError, match="set of 5 lists"):
            lists[torch.tensor(bad)]
    for bad in (torch.tensor([True, False]), np.array([0.5]), [[0, 1]]):
        with pytest.raises(IndexError, match="whole numbers"):
            lists[bad]
    with pytest.raises(IndexError, match="position 5 of a set of 5 lists"):
        lists[5]
    with pytest.raises(ValueError, match="step 1"):
        lists[::2]
    with pytest.raises(ValueError, match="2 ids for 5 lists in the set 'mine'"):
        RankingSet(lists.x, lists.labels, OFFSETS, query_ids=["a", "b"], name="mine")


def test_repr_says_what_it_holds():
    assert repr(make_set("shared")) == "RankingSet('shared': 5 lists, 13 entries, 4 features, dense, shared corpus)"


def test_offsets_that_move_to_shared_memory_leave_the_lists_as_they_are():
    """torch.multiprocessing moves the tensors of a set that it sends to another process."""
    lists = RankingSet(torch.arange(6.0)[:, None], torch.ones(6), torch.tensor([0, 2, 6]))
    lists.offsets.share_memory_()
    others = [torch.full((3,), 99) for _ in range(50)]
    assert lists[1].x.flatten().tolist() == [2.0, 3.0, 4.0, 5.0] and len(others) == 50


@pytest.mark.parametrize(("form", "queries"), [("shared", False), ("dense", True), ("shared", True)])
def test_transforms_by_list_refuse_what_belongs_to_no_list(form, queries):
    lists = make_set(form, queries=queries)
    transform = make_transform("query_minmax", lists.num_features)
    ways = (lambda: lists.to("cpu", transform), lambda: StreamedSet(lists, transform, torch.device("cpu"))[0:2])
    for way in ways:
        with pytest.raises(ValueError, match="works inside each list, but these lists share rows or have a vector"):
            way()

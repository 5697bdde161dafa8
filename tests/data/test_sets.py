"""RankingSet in all its forms: the laws of the design, views instead of copies, no synchronisation."""

import pickle
import time

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchrank.data import Explicit, Judged, RankingSet, SameClass, SparseRows, clean, make_batch, make_transform
from torchrank.errors import DataError

OFFSETS = torch.tensor([0, 3, 3, 8, 9, 13])
FORMS = ["dense", "sparse", "shared", "shared sparse"]
WHOLE = ["classes", "judged"]  # every list holds the whole corpus


POSITIONS = [slice(None), slice(1, 4), slice(2, 2), torch.tensor([4, 0, 2]), np.array([1]), [3, 3], [], 3, -1]


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
        relevant_from=2,
        max_label=4,
    )


def make_whole(form: str, queries: bool = True, sparse: bool = False) -> RankingSet:
    """Five queries over a corpus of 7 rows; the second and the fourth are rows 6 and 2 of it."""
    generator = torch.Generator().manual_seed(1)
    x, own = torch.randn(7, 4, generator=generator).relu(), torch.tensor([7, 6, 7, 2, 7])
    if form == "classes":
        corpus = torch.randint(3, (7,), generator=generator)
        classes = torch.cat((corpus, corpus[:1]))[own]
        relevance = SameClass(classes, corpus, ("a", "b", "c"), own)
    else:
        counts, rows = np.array([2, 0, 1, 3, 1]), np.array([0, 6, 3, 0, 4, 5, 2])
        relevance = Judged.make(rows, np.array([1, 2, 3, 1, 1, 2, 1]), counts, 7, own)
    return RankingSet(
        SparseRows.from_dense(x) if sparse else x,
        relevance,
        queries=torch.randn(5, 4, generator=generator) if queries else None,
        query_ids=[f"q{i}" for i in range(5)],
        document_ids=[f"d{i}" for i in range(7)],
        name=form,
        relevant_from=2,
        max_label=4,
    )


def explicit(lists: RankingSet) -> RankingSet:
    """The same set with its entries written out."""
    ids = None if lists.document_ids is None else np.asarray(lists.document_ids)[lists.index]
    labels, index = lists.labels.clone(), lists.index.clone()
    return RankingSet(
        lists.x,
        labels,
        lists.offsets.clone(),
        index=index,
        queries=lists.queries,
        query_ids=lists.query_ids,
        document_ids=ids,
        name=lists.name,
        relevant_from=lists.relevant_from,
        max_label=lists.max_label,
    )


def known(lists: RankingSet) -> tuple:
    """What every set that is made of another one has to keep."""
    return lists.name, lists.relevant_from, lists.max_label


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
    for positions in POSITIONS:
        assert plain(reference[positions]) == plain(other[positions])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("form", WHOLE)
def test_entries_that_are_made_when_they_are_needed_are_those_written_out(form, queries, sparse):
    lists = make_whole(form, queries, sparse)
    reference = explicit(lists)
    assert lists.lengths.tolist() == [7, 6, 7, 6, 7] == reference.lengths.tolist()
    assert lists.num_grades == reference.num_grades and lists.pairs.tolist() == reference.pairs.tolist()
    assert torch.equal(lists.offsets, reference.offsets) and lists.is_shared and lists.has_queries == queries
    for positions in POSITIONS:
        assert plain(lists[positions]) == plain(reference[positions])
        assert lists[positions].x is lists.x


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
    assert plain(lists[-1]) == plain(lists[4:5]) == plain(lists[np.int32(-1)])


@pytest.mark.parametrize("form", FORMS)
def test_subset_renumbers_and_keeps_the_ids(form):
    lists = make_set(form, queries=True)
    some = lists.subset(np.array([4, 2]))
    batch, expected = plain(some[:]), plain(lists[[4, 2]])
    assert batch[:3] == expected[:3] and batch[4:] == expected[4:] and batch[3] == [0, 1]
    assert list(some.query_ids) == ["q4", "q2"] and known(some) == known(lists)
    assert list(some.document_ids) == [f"d{i}" for i in [9, 10, 11, 12, 3, 4, 5, 6, 7]]
    assert (some.x is lists.x) == ("shared" in form)
    assert some.pairs.tolist() == lists.pairs[[4, 2]].tolist() and some.num_grades == lists.num_grades


@pytest.mark.parametrize("form", WHOLE)
def test_subset_of_a_whole_corpus_keeps_the_corpus_and_makes_no_entries(form, monkeypatch):
    lists = make_whole(form)
    reference = explicit(lists).subset(np.array([3, 0, 3]))
    with monkeypatch.context() as context:
        context.setattr(type(lists.relevance), "entries", None)  # 39 million of them on IsoLet
        some = lists.subset(torch.tensor([3, 0, 3])).subset([0, 1, 2]).to("cpu")
    assert plain(some[:]) == plain(reference[:]) and some[:].query.tolist() == [0, 1, 2]
    assert list(some.query_ids) == ["q3", "q0", "q3"] and list(some.document_ids) == list(lists.document_ids)
    assert some.x is lists.x and known(some) == known(lists)
    assert some.pairs.tolist() == reference.pairs.tolist() and some.lengths.tolist() == [6, 7, 6]
    assert type(some.relevance) is type(lists.relevance)


def all_forms() -> list[RankingSet]:
    return [*(make_set(form, queries=True) for form in FORMS), *map(make_whole, WHOLE)]


@pytest.mark.parametrize("number", range(6))
def test_subset_takes_positions_of_every_kind(number):
    lists = all_forms()[number]
    expected = plain(lists.subset(np.array([1, 2, 3]))[:])
    for positions in (slice(1, 4), torch.tensor([1, 2, 3]), [1, 2, 3], np.array([1, 2, 3], dtype=np.uint8)):
        assert plain(lists.subset(positions)[:]) == expected
    for positions in ([], slice(3, 1), np.zeros(0, dtype=np.int64)):
        empty = lists.subset(positions)
        assert len(empty) == empty[:].num_lists == len(empty[:].labels) == 0 and empty.num_features == 4
        assert list(empty.query_ids) == [] and empty.pairs.tolist() == [] and empty.num_grades == lists.num_grades
    assert list(lists.subset(4).query_ids) == ["q4"]


@pytest.mark.parametrize("number", range(6))
def test_pick_keeps_some_entries_of_some_lists_with_their_ids(number):
    lists = all_forms()[number]
    starts, offsets = lists.offsets.tolist(), torch.tensor([0, 2, 3])
    entries = torch.tensor([starts[4] + 3, starts[4], starts[2] + 1])
    some, whole = lists.pick(np.array([4, 2]), entries, offsets), lists[:].flat()
    rows = whole.x.dense() if isinstance(whole.x, SparseRows) else whole.x
    assert plain(some[:])[0] == rows[entries].tolist() and torch.equal(some.labels, whole.labels[entries])
    assert torch.equal(some.queries, lists.queries[[4, 2]]) and list(some.query_ids) == ["q4", "q2"]
    named = entries if number < 4 else lists.index[entries]
    assert list(some.document_ids) == [f"d{i}" for i in named.tolist()]
    assert known(some) == known(lists) and some.num_grades == lists.num_grades
    assert some.tiebreak().shape == (3,)


def test_cleaning_a_set_with_the_ids_of_its_corpus_keeps_them():
    """Rows 0 and 1 are equal, and to query 0 only one of them is relevant; nothing is relevant to query 1."""
    x, relevance = torch.tensor([[1.0], [1.0], [2.0]]), Judged.make([0, 2], [1, 1], [2, 0], 3)
    cleaned, report = clean(RankingSet(x, relevance, query_ids=["a", "b"], document_ids=["x", "y", "z"]))
    assert report.documents_removed == 2 and report.queries_without_relevant == 1
    assert cleaned.query_ids == ["a"] and cleaned.document_ids == ["z"] and cleaned.labels.tolist() == [1.0]


def test_slices_are_views_and_a_shared_corpus_is_not_gathered():
    lists = make_set("dense")
    batch = lists[2:4]
    assert batch.x.data_ptr() == lists.x[3:].data_ptr() and batch.labels.data_ptr() == lists.labels[3:].data_ptr()
    shared = make_set("shared")
    assert shared[2:4].x is shared.x and shared[torch.tensor([1])].x is shared.x


def test_what_somebody_does_to_a_batch_stays_with_it():
    """Slices are known again by their positions and offsets, which must not become others."""
    lists = make_set("dense")
    batch = lists[1:4]
    batch.offsets.add_(1)
    batch.query.fill_(0)
    assert lists[1:4].offsets.tolist() == [0, 0, 5, 6] and lists[1:4].query.tolist() == [1, 2, 3]
    assert lists[1:4].offsets is lists[1:4].offsets
    lists.relevance = Explicit(lists.labels, torch.tensor([0, 1, 3, 8, 9, 13]))
    assert lists[1:4].offsets.tolist() == [0, 2, 7, 8]


def test_memory_mapped_rows_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((13, 4), dtype=np.float32))
    x = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    lists = RankingSet(x, torch.zeros(13), OFFSETS)
    for same in (lists, lists.to("cpu"), lists.to("cpu", make_transform("none", 4))):
        assert same.x.data_ptr() == x.data_ptr() and same[0:2].x.data_ptr() == x.data_ptr()


def test_opening_a_set_of_the_size_of_mslr30k_costs_milliseconds():
    offsets = torch.arange(31_532) * 120
    x, labels = torch.empty(31_531 * 120, 136), torch.zeros(31_531 * 120)  # pages that are never touched
    start = time.perf_counter()
    RankingSet(x, labels, offsets)
    assert time.perf_counter() - start < 0.1


class Synchronisations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", ["dense", "shared", *WHOLE])
def test_batches_are_made_without_synchronisation(form):
    lists = make_whole(form) if form in WHOLE else make_set(form, queries=True)
    lists = lists.to("cpu")  # on which pairs and grades are counted
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
        with pytest.raises(DataError, match="sparse"):
            lists.to("cpu", transform)
        return
    ready = lists.to("cpu", transform)
    expected = transform(rows.double(), torch.tensor([0, len(rows)])).float()
    assert torch.allclose(ready.x.dense() if ready.is_sparse else ready.x, expected)
    assert torch.allclose(ready.queries, transform(lists.queries, torch.tensor([0, 5])))
    assert ready.x.dtype == ready.queries.dtype == torch.float32
    assert ready.num_features == transform.num_outputs and ready.query_ids == lists.query_ids
    assert known(ready) == known(lists) and list(ready.document_ids) == list(lists.document_ids)
    assert torch.equal(ready.labels, lists.labels) and ready.pairs.tolist() == lists.pairs.tolist()


@pytest.mark.parametrize("form", WHOLE)
def test_query_vectors_that_are_the_corpus_are_transformed_once(form):
    lists = make_whole(form)
    lists = RankingSet(lists.x, SameClass(torch.zeros(7).long(), torch.zeros(7).long(), ("a",)), queries=lists.x)
    ready = lists.to("cpu", make_transform("standard", 4).fit(lists.x))
    assert ready.queries is ready.x


OPTIONS = [None, "none", "l2", "log1p", "standard", "query_minmax", "quantile", "quadratic", ["standard", "pca"]]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("number", range(6))
def test_streamed_batches_are_those_of_a_resident_set(number, option, kind):
    lists = all_forms()[number]
    x, queries = lists.x.to(dtype=torch.float32), (8 * lists.queries).to(kind)
    x = x.with_values((8 * x.values).to(kind)) if lists.is_sparse else (8 * x).to(kind)
    lists = RankingSet(x, lists.relevance, queries=queries, query_ids=lists.query_ids)
    rows = (x.dense() if lists.is_sparse else x).double()
    transform = None if option is None else make_transform(option, 4).fit(rows)
    if transform is not None and (transform.per_query or (lists.is_sparse and transform.sparse_refusal)):
        return
    resident, streamed = lists.to("cpu", transform), lists.streamed("cpu", transform)
    for positions in POSITIONS:
        one, other = resident[positions], streamed[positions]
        assert plain(one) == plain(other)
        assert one.x.dtype == other.x.dtype == one.queries.dtype == other.queries.dtype == torch.float32
    assert known(streamed) == known(lists) and list(streamed.query_ids) == list(lists.query_ids)
    some = streamed.subset([4, 0])
    assert plain(some[:]) == plain(resident.subset([4, 0])[:])
    assert torch.equal(streamed.labels, lists.labels) and len(streamed.index if lists.is_shared else []) in (0, 13, 33)


def test_streamed_transforms_inside_lists_are_those_of_a_resident_set():
    lists, transform = make_set("dense"), make_transform(["log1p", "query_minmax"], 4)
    for positions in POSITIONS:
        assert plain(lists.to("cpu", transform)[positions]) == plain(lists.streamed("cpu", transform)[positions])


def test_a_streamed_set_is_made_ready_from_its_stored_rows():
    """A transform is never applied twice."""
    lists = make_set("dense")
    double = make_transform("standard", 4).fit(lists.x)
    streamed = lists.streamed("cpu", double)
    assert streamed.x is lists.x
    assert plain(streamed.to("cpu", double)[:]) == plain(streamed.streamed("cpu", double)[:]) == plain(streamed[:])
    assert plain(streamed.to("cpu")[:]) == plain(lists[:])


def test_streamed_batches_are_on_the_device_and_the_set_is_not():
    streamed = make_set("dense", queries=True).streamed("meta")
    batch = streamed[0:2]
    assert batch.device.type == batch.x.device.type == batch.queries.device.type == "meta"
    assert streamed.device.type == streamed.x.device.type == "cpu"


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
    with pytest.raises(DataError, match=r"feature 1 .* of row 4 is nan"):
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
    with pytest.raises(DataError, match=r"2 of 13 documents of the set '' have no id"):
        lists.tiebreak()
    with pytest.raises(DataError, match="no document ids"):
        RankingSet(torch.zeros(13, 1), torch.zeros(13), OFFSETS).tiebreak()


@pytest.mark.parametrize("form", WHOLE)
def test_tiebreak_of_a_whole_corpus_orders_every_list_as_if_it_were_written_out(form):
    lists = make_whole(form)
    lists.document_ids = ["9", "10", "b", "a", "Ü", "x1", "x10"]
    one, other = lists.tiebreak(), explicit(lists).tiebreak()
    for start, stop in zip(lists.offsets[:-1].tolist(), lists.offsets[1:].tolist(), strict=True):
        assert one[start:stop].argsort().tolist() == other[start:stop].argsort().tolist()
    lists.document_ids[3] = ""
    with pytest.raises(DataError, match=f"1 of 7 documents of the set '{form}' have no id"):
        lists.tiebreak()


@pytest.mark.parametrize("number", range(6))
def test_the_outline_tells_sets_and_orders_apart(number):
    lists = all_forms()[number]
    outline = lists.outline()
    assert outline == all_forms()[number].outline() and outline["lists"] == 5
    assert outline["entries"] == int(lists.lengths.sum())
    shuffled = lists.subset([0, 1, 2, 4, 3]).outline()
    assert shuffled["lists"] == 5 and shuffled["labels"] != outline["labels"]
    assert shuffled["query vectors"] != outline["query vectors"]
    assert (shuffled["rows"] == outline["rows"]) == lists.is_shared
    rows = lists.x.with_values(lists.x.values + 1) if lists.is_sparse else lists.x + 1
    other = RankingSet(rows, lists.relevance, queries=lists.queries).outline()
    assert {part for part in outline if other[part] != outline[part]} == {"rows"}


def test_the_outline_sees_numbers_as_fits_do():
    x, labels, offsets = torch.tensor([[0.0], [0.1]]), torch.tensor([0, 1]), torch.tensor([0, 2])
    outline = RankingSet(x, labels, offsets).outline()
    assert RankingSet(-0.0 - x.double() * -1, labels.float(), offsets).outline() == outline
    assert RankingSet(x, labels.flip(0), offsets).outline()["labels"] != outline["labels"]
    assert RankingSet(x, labels, torch.tensor([0, 1, 2])).outline()["labels"] != outline["labels"]


def test_counts_given_by_a_cache_are_used():
    relevance = Explicit(torch.zeros(2), torch.tensor([0, 2]), pairs=np.array([7]), num_grades=9)
    lists = RankingSet(torch.zeros(2, 1), relevance)
    assert lists[0:1].num_pairs == 7 and lists.num_grades == 9


@pytest.mark.parametrize("number", range(6))
def test_sets_survive_a_pickle(number):
    lists = all_forms()[number]
    again = pickle.loads(pickle.dumps(lists))
    assert plain(again[:]) == plain(lists[:]) and again.outline() == lists.outline()


def test_empty_sets_and_bad_positions():
    empty = RankingSet(torch.zeros(0, 3), torch.zeros(0), torch.tensor([0]))
    assert len(empty) == 0 and empty[:].num_lists == 0 and empty[[]].num_lists == 0
    lists = make_set("dense")
    for lists in all_forms():
        for bad in ([5], [-1, 2]):
            with pytest.raises(IndexError, match="outside a set of 5 lists"):
                lists[torch.tensor(bad)]
        for bad in (torch.tensor([True, False]), np.array([0.5]), [[0, 1]]):
            with pytest.raises(IndexError, match="vector of integers"):
                lists[bad]
        for bad in (5, -6):
            with pytest.raises(IndexError, match=f"position {bad} is outside a set of 5 lists"):
                lists[bad]
        with pytest.raises(ValueError, match="step 1"):
            lists[::2]


def test_parts_that_do_not_fit_together_are_refused():
    lists, whole = make_set("dense"), make_whole("judged")
    for parts, options, message in (
        ((lists.labels, OFFSETS), {"query_ids": ["a", "b"]}, "2 ids for 5 lists in the set 'mine'"),
        ((lists.labels, OFFSETS), {"document_ids": ["a"]}, "1 ids for 13 entries in the set 'mine'"),
        ((lists.labels,), {}, "say which rows make up a list"),
        ((lists.labels, OFFSETS), {"queries": torch.ones(4, 4)}, r"\(4, 4\) for lists and features \(5, 4\)"),
        ((whole.relevance,), {}, "relevance of 7 rows for a corpus of 13 rows in the set 'mine'"),
        ((Explicit(lists.labels, OFFSETS), OFFSETS), {}, "give no offsets and no index beside it"),
    ):
        with pytest.raises(DataError, match=message):
            RankingSet(lists.x, *parts, **options, name="mine")
    for options, message in (
        ({"query_ids": ["a"]}, "1 ids for 5 lists in the set 'mine'"),
        ({"document_ids": ["a"]}, "1 ids for 7 rows in the set 'mine'"),
        ({"queries": torch.ones(3, 4)}, r"\(3, 4\) for lists and features \(5, 4\) in the set 'mine'"),
    ):
        with pytest.raises(DataError, match=message):
            RankingSet(whole.x, whole.relevance, **options, name="mine")


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
    for way in (lambda: lists.to("cpu", transform), lambda: lists.streamed("cpu", transform)[0:2]):
        with pytest.raises(DataError, match="works inside each list, but these lists share rows or have query vectors"):
            way()


# ---- topics that share one corpus and have no vectors, against a plain label matrix ----------------------------------


def make_topics(seed: int = 0, num_rows: int = 12, num_topics: int = 4, sparse: bool = True):
    """A set of topics over one corpus, and the same as rows x (n, D) and labels y (n, T)."""
    random = np.random.default_rng(seed)
    x = random.poisson(0.5, (num_rows, 7)).astype(np.float32)
    y = (random.random((num_rows, num_topics)) < 0.3).astype(np.float32)
    topic, row = y.T.nonzero()
    relevance = Judged.make(row, np.ones(len(row)), np.bincount(topic, minlength=num_topics), num_rows)
    corpus = SparseRows.from_dense(torch.from_numpy(x)) if sparse else torch.from_numpy(x)
    return RankingSet(corpus, relevance, query_ids=[f"topic {t}" for t in range(num_topics)], name="train"), x, y


@pytest.mark.parametrize("sparse", [False, True])
def test_a_list_is_a_topic_over_all_rows(sparse):
    lists, _, y = make_topics(sparse=sparse)
    assert len(lists) == 4 and lists.is_shared and not lists.has_queries and lists.is_sparse == sparse
    assert lists.lengths.tolist() == [12] * 4 and lists.num_features == 7 and lists.num_grades == 2
    assert lists.pairs.tolist() == [int(column.sum() * (1 - column).sum()) for column in y.T]
    for batch in (lists[2:4], lists[torch.tensor([2, 3])]):
        assert batch.x is lists.x and batch.queries is None and batch.query.tolist() == [2, 3]
        assert batch.index.tolist() == [*range(12), *range(12)] and batch.offsets.tolist() == [0, 12, 24]
        assert batch.labels.tolist() == y[:, 2:4].T.ravel().tolist()
    assert lists[-1].labels.tolist() == y[:, 3].tolist()


def test_subsets_and_moves_keep_the_topics_without_vectors():
    lists, x, y = make_topics()
    part = lists.subset(np.array([3, 1])).to("cpu").subset(torch.tensor([1, 0]))
    assert list(part.query_ids) == ["topic 1", "topic 3"] and part.queries is None
    assert part[:].labels.tolist() == y[:, [1, 3]].T.ravel().tolist()
    assert torch.equal(part.x.dense(), torch.from_numpy(x))


def test_sparse_rows_go_through_the_transform_in_blocks(monkeypatch):
    lists, x, _ = make_topics()
    transform = make_transform(["log1p", "l2"], 7).fit(lists.x)
    whole = lists.to("cpu", transform).x
    expected = np.log1p(x.astype(np.float64))
    norm = np.linalg.norm(expected, axis=0)
    np.testing.assert_allclose(whole.dense().numpy(), expected / np.where(norm > 0, norm, 1), rtol=1e-6)
    monkeypatch.setattr("torchrank.data.sparse.BLOCK", 5)
    parts = lists.to("cpu", transform).x
    assert torch.equal(parts.values, whole.values) and parts.values.dtype == torch.float32
    assert parts.columns.data_ptr() == lists.x.columns.data_ptr()  # the columns are not copied


def test_the_flat_copy_is_the_same_set():
    lists, x, y = make_topics()
    flat = RankingSet(torch.from_numpy(np.tile(x, (4, 1))), torch.from_numpy(y.T.ravel().copy()), lists.offsets)
    batch = lists[:].flat()
    assert torch.equal(batch.x.dense(), flat.x) and torch.equal(batch.labels, flat.labels)
    assert np.array_equal(flat.pairs, lists.pairs)


def test_classes_need_no_vectors_either():
    classes = torch.tensor([0, 1, 0])
    lists = RankingSet(torch.eye(3), SameClass(classes, classes, ("a", "b"), own=torch.arange(3)))
    assert len(lists) == 3 and lists[:].labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert lists.classes.tolist() == lists.corpus_classes.tolist() == [0, 1, 0]
    assert lists.subset(np.array([2])).queries is None and make_set("dense").classes is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_negative_labels_are_refused_or_filled_by_the_option_unjudged(dtype):
    labels = torch.tensor([1, 0, -1, -2], dtype=dtype)
    with pytest.raises(DataError, match=r"label -1 of entry 2 of the set 'mine': labels must be 0 or more.*unjudged=0"):
        RankingSet(torch.eye(4), labels, torch.tensor([0, 4]), name="mine")
    filled = RankingSet(torch.eye(4), labels, torch.tensor([0, 4]), unjudged=0)
    assert filled.labels.tolist() == [1, 0, 0, 0] and filled.labels.dtype == dtype and labels.tolist()[2] == -1
    with pytest.raises(ValueError, match="unjudged must be >= 0, got -1"):
        RankingSet(torch.eye(4), labels, torch.tensor([0, 4]), unjudged=-1)
    with pytest.raises(DataError, match="label -2 of entry 0"):
        RankingSet(torch.eye(2), [-2, 1], group=[2])


def test_complex_labels_are_refused():
    with pytest.raises(DataError, match="labels must hold real numbers"):
        RankingSet(torch.eye(2), torch.zeros(2, dtype=torch.complex64), torch.tensor([0, 2]))

"""A set made of arrays of any kind is the set of the same tensors."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from torchrank import DataError, RankingSet, SparseRows, to_offsets

DRAW = np.random.default_rng(0)
X, LABELS = DRAW.normal(size=(7, 3)), DRAW.integers(0, 3, 7)
GROUP = [2, 4, 1]
QID = ["b", "b", "a", "a", "a", "a", "c"]
NAMES = ("bm25", "length", "age")
EXPECTED = RankingSet(torch.tensor(X), torch.tensor(LABELS), torch.tensor([0, 2, 6, 7]), query_ids=["b", "a", "c"])


def same(found, expected=EXPECTED, names=None):
    assert found.outline() == expected.outline() and found.feature_names == names
    assert found.x.dtype == expected.x.dtype and found.offsets.tolist() == expected.offsets.tolist()


@pytest.mark.parametrize(
    ("x", "names"),
    [
        (X, None),
        (np.asfortranarray(X), None),
        (X.tolist(), None),
        (pd.DataFrame(X), None),
        (pd.DataFrame(X, columns=NAMES), NAMES),
        (pd.DataFrame(X, columns=NAMES, index=list("gfedcba")), NAMES),
        (pd.DataFrame(X, columns=NAMES).convert_dtypes(), NAMES),
        (pl.DataFrame(X, schema=NAMES), NAMES),
        (pa.table(dict(zip(NAMES, X.T, strict=True))), NAMES),
    ],
)
def test_rows_of_any_kind(x, names):
    for labels in (LABELS, LABELS.tolist(), pd.Series(LABELS, index=range(7, 0, -1)), pl.Series(LABELS)):
        same(RankingSet(x, labels, group=GROUP), names=names)
    same(RankingSet(x, LABELS, np.array([0, 2, 6, 7], dtype=np.int32)), names=names)


@pytest.mark.parametrize("qid", [QID, np.array(QID), pd.Series(QID), pl.Series(QID), pd.Series(QID, dtype="category")])
def test_query_ids_name_the_lists(qid):
    lists = RankingSet(X, LABELS, qid=qid)
    same(lists)
    assert lists.query_ids == ["b", "a", "c"] and lists.subset([2, 0]).query_ids == ["c", "b"]
    assert RankingSet(X, LABELS, qid=qid, query_ids=["x", "y", "z"]).query_ids == ["x", "y", "z"]


def test_query_ids_that_are_numbers_are_written_without_a_point():
    assert RankingSet(X, LABELS, qid=np.repeat([10, 7, 8], GROUP)).query_ids == ["10", "7", "8"]
    assert RankingSet(X, LABELS, qid=np.repeat([10.0, 7.0, 8.5], GROUP)).query_ids == ["10", "7", "8.5"]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_sparse_matrices_become_sparse_rows(form, kind):
    x = X * (DRAW.random(X.shape) > 0.5)
    lists = RankingSet(kind(x).asformat(form), LABELS, group=GROUP)
    assert isinstance(lists.x, SparseRows) and torch.equal(lists.x.dense(), torch.tensor(x))
    whole = RankingSet(sparse.csr_array((x * 10).astype(np.int8)), LABELS, group=GROUP)
    assert torch.equal(whole.x.dense(), torch.tensor((x * 10).astype(np.int8), dtype=torch.float32))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("i1", "float32"), ("u2", "float32"), ("?", "float32"), ("i4", "float64"), ("u8", "float64"), ("f2", "float16"),
     ("f4", "float32"), (">f4", "float32"), ("g", "float64"), (object, "float64")],
)  # fmt: skip
def test_the_dtype_of_rows(dtype, expected):
    whole = np.abs(X * 10).astype(int)
    found = RankingSet(whole.astype(dtype), LABELS, group=GROUP).x
    assert found.dtype == getattr(torch, expected) and (found.numpy() == whole.astype(dtype)).all()


def test_a_memory_map_is_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert RankingSet(x, LABELS, group=GROUP).x.data_ptr() == x.ctypes.data


def test_names_are_kept():
    lists = RankingSet(pd.DataFrame(X, columns=NAMES), LABELS, group=GROUP)
    entries, offsets = torch.tensor([0, 3]), torch.tensor([0, 1, 2])
    for other in (lists.subset([1]), lists.pick(np.array([0, 1]), entries, offsets), lists.to("cpu")):
        assert other.feature_names == NAMES
    assert RankingSet(X, LABELS, group=GROUP, feature_names=list(NAMES)).feature_names == NAMES
    assert RankingSet(pd.DataFrame(X, columns=NAMES), LABELS, group=GROUP, feature_names="xyz").feature_names[0] == "x"


def test_a_corpus_with_queries_from_arrays():
    index, vectors = np.array([0, 1, 1, 2, 0]), X[:2]
    lists = RankingSet(X, LABELS[:5], group=[2, 3], index=index, queries=vectors, document_ids=pd.Series(list("abcde")))
    assert torch.equal(lists[:].index, torch.tensor(index)) and torch.equal(lists.queries, torch.tensor(vectors))
    assert list(lists.subset([1]).document_ids) == ["c", "d", "e"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "one of offsets.* got none of them"),
        ({"group": GROUP, "qid": QID}, "got group and qid"),
        ({"group": [2, 2]}, "the sizes in group sum to 4, but labels has 7"),
        ({"qid": ["a", "b", "a", "b", "b", "b", "b"]}, "query 'a' are not together in qid: sort the rows by query"),
        ({"x": pd.DataFrame({"url": ["a"] * 7}), "group": GROUP}, "column 'url' of x must hold numbers"),
        ({"x": X[0], "group": GROUP}, r"expected x \(n, D\)"),
        ({"labels": ["good"] * 7, "group": GROUP}, "labels must hold numbers, got the string 'good'"),
        ({"x": X[:5], "group": GROUP}, "5 rows for 7 entries"),
        ({"x": {"a": X}, "group": GROUP}, "x is a dict: give a tensor, a numpy array"),
        ({"feature_names": ["a"], "group": GROUP}, "1 feature names for 3 features"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(parts, message):
    with pytest.raises(DataError, match=message) as caught:
        RankingSet(**{"x": X, "labels": LABELS} | parts)
    assert "\n" not in str(caught.value)


def test_a_relevance_takes_no_group():
    with pytest.raises(DataError, match="a Relevance knows the entries"):
        RankingSet(X, EXPECTED.relevance, group=GROUP)


def test_offsets_by_name():
    assert to_offsets(GROUP).tolist() == to_offsets(qid=QID).tolist() == [0, 2, 6, 7]
    assert to_offsets([]).tolist() == to_offsets(qid=[]).tolist() == [0]
    for wrong in ({}, {"group": GROUP, "qid": QID}):
        with pytest.raises(DataError, match="one of the two"):
            to_offsets(**wrong)

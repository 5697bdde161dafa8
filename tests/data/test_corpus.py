"""Topics that share one corpus and have no vectors, against a plain label matrix."""

import numpy as np
import pytest
import torch

from torchrank.data import RankingSet, SparseRows, make_transform
from torchrank.data.corpus import CorpusSet, Judged, SameClass
from torchrank.data.datamodule import RankingDataModule


def make(seed: int = 0, num_rows: int = 12, num_topics: int = 4, sparse: bool = True):
    """A set of topics over one corpus, and the same as rows x (n, D) and labels y (n, T)."""
    random = np.random.default_rng(seed)
    x = random.poisson(0.5, (num_rows, 7)).astype(np.float32)
    y = (random.random((num_rows, num_topics)) < 0.3).astype(np.float32)
    topic, row = y.T.nonzero()
    relevance = Judged.make(row, np.ones(len(row)), np.bincount(topic, minlength=num_topics))
    corpus = SparseRows.from_dense(torch.from_numpy(x)) if sparse else torch.from_numpy(x)
    names = [f"topic {t}" for t in range(num_topics)]
    return CorpusSet(corpus, None, relevance, query_ids=names, name="train"), x, y


@pytest.mark.parametrize("sparse", [False, True])
def test_a_list_is_a_topic_over_all_rows(sparse):
    lists, _, y = make(sparse=sparse)
    assert len(lists) == 4 and lists.is_shared and not lists.has_queries and lists.is_sparse == sparse
    assert lists.lengths.tolist() == [12] * 4 and lists.num_features == 7 and lists.num_grades == 2
    assert lists.pairs.tolist() == [int(column.sum() * (1 - column).sum()) for column in y.T]
    for batch in (lists[2:4], lists[torch.tensor([2, 3])]):
        assert batch.x is lists.x and batch.queries is None and batch.query.tolist() == [2, 3]
        assert batch.index.tolist() == [*range(12), *range(12)] and batch.offsets.tolist() == [0, 12, 24]
        assert batch.labels.tolist() == y[:, 2:4].T.ravel().tolist()
    assert lists[-1].labels.tolist() == y[:, 3].tolist()


def test_subsets_and_moves_keep_the_topics_without_vectors():
    lists, x, y = make()
    part = lists.subset(np.array([3, 1])).to("cpu").subset(torch.tensor([1, 0]))
    assert list(part.query_ids) == ["topic 1", "topic 3"] and part.queries is None
    assert part[:].labels.tolist() == y[:, [1, 3]].T.ravel().tolist()
    assert torch.equal(part.x.dense(), torch.from_numpy(x))


def test_rows_go_through_the_transform_in_blocks(monkeypatch):
    lists, x, _ = make()
    transform = make_transform(["log1p", "l2"], 7).fit(lists.x)
    whole = lists.to("cpu", transform).x
    expected = np.log1p(x.astype(np.float64))
    norm = np.linalg.norm(expected, axis=0)
    np.testing.assert_allclose(whole.dense().numpy(), expected / np.where(norm > 0, norm, 1), rtol=1e-6)
    monkeypatch.setattr("torchrank.data.sparse.BLOCK", 5)
    parts = lists.to("cpu", transform).x
    assert torch.equal(parts.values, whole.values) and parts.values.dtype == torch.float32
    assert parts.columns.data_ptr() == lists.x.columns.data_ptr()  # the places are not copied


def test_batches_of_a_data_module_never_hold_all_entries():
    lists, _, y = make(num_rows=30)
    data = RankingDataModule.from_sets(train=lists, batch_documents=20)
    data.attach(make_transform(None, 7), torch.device("cpu"))
    batches = list(data.training_shard())
    assert [len(batch.labels) for batch in batches] == [30] * 4
    assert torch.cat([batch.labels for batch in batches]).tolist() == y.T.ravel().tolist()


def test_the_flat_copy_is_the_same_set():
    lists, x, y = make()
    flat = RankingSet(torch.from_numpy(np.tile(x, (4, 1))), torch.from_numpy(y.T.ravel().copy()), lists.offsets)
    batch = lists[:].flat()
    assert torch.equal(batch.x.dense(), flat.x) and torch.equal(batch.labels, flat.labels)
    assert np.array_equal(flat.pairs, lists.pairs)


def test_classes_need_no_vectors_either():
    classes = torch.tensor([0, 1, 0])
    lists = CorpusSet(torch.eye(3), None, SameClass(classes, classes, ("a", "b")), own=torch.arange(3))
    assert (
        len(lists) == 3
        and lists[:].labels.tolist() == [0, 1, 0, 0, 1, 0]
        and lists.subset(np.array([2])).queries is None
    )


def test_parts_of_other_lengths_are_refused_with_numbers():
    relevance = Judged.make(np.array([0]), np.ones(1), np.array([1, 0]))
    with pytest.raises(ValueError, match="1 query ids for the relevance of 2 queries in 'train'"):
        CorpusSet(torch.eye(3), None, relevance, query_ids=["a"], name="train")
    with pytest.raises(ValueError, match="3 query vectors for the relevance of 2"):
        CorpusSet(torch.eye(3), torch.eye(3), relevance)

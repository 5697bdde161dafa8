"""Linear scores and their gradients, for every form of the rows, with one model or one for each list."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchrank import RankingSet
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.data.training import TrainingLists
from torchrank.rankers.core.selection import take_columns, take_features
from torchrank.solvers.linear.scores import add_gradient, column_extremes, entry_scores

LENGTHS, ROWS, FEATURES, TOPICS = [4, 0, 1, 6], 9, 5, 7


def batches():
    """The same lists with rows of their own and with a corpus (a document stands in a list twice), dense and sparse."""
    random = torch.Generator().manual_seed(0)
    corpus = torch.randn(ROWS, FEATURES, generator=random) * (torch.rand(ROWS, FEATURES, generator=random) < 0.6)
    index = torch.randint(ROWS, (sum(LENGTHS),), generator=random)
    index[1] = index[0]
    labels = torch.randint(0, 3, index.shape, generator=random)
    offsets, query = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)]), torch.tensor([5, 0, 2, 6])
    found = {}
    for name, kind in (("dense", torch.clone), ("sparse", SparseRows.from_dense)):
        found[f"{name} corpus"] = make_batch(kind(corpus), labels, offsets, query=query, index=index)
        found[f"{name} rows"] = make_batch(kind(corpus[index]), labels, offsets, query=query)
    return found


BATCHES = batches()
WEIGHT = torch.randn(TOPICS, FEATURES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_hand(per_topic):
    """Score of every entry, one dot product at a time."""
    rows, batch, found = BATCHES["dense rows"].x.double(), BATCHES["dense rows"], []
    for q in range(len(LENGTHS)):
        model = int(batch.query[q]) if per_topic else 0
        found += [rows[i] @ WEIGHT[model] for i in range(int(batch.offsets[q]), int(batch.offsets[q + 1]))]
    return torch.stack(found)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("per_topic", [False, True])
def test_scores(name, per_topic):
    torch.testing.assert_close(entry_scores(BATCHES[name], WEIGHT, per_topic), by_hand(per_topic))


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("per_topic", [False, True])
def test_the_gradient_is_that_of_autograd(name, per_topic):
    weight = WEIGHT.clone().requires_grad_()
    slopes = torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (slopes * entry_scores(BATCHES["dense rows"], weight, per_topic)).sum().backward()
    found = torch.ones_like(WEIGHT)  # it adds
    add_gradient(BATCHES[name], slopes, found, per_topic)
    torch.testing.assert_close(found - 1, weight.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["dense rows", "sparse rows"])
@pytest.mark.parametrize("per_topic", [False, True])
def test_lists_add_up(name, per_topic):
    whole, parts = (torch.zeros_like(WEIGHT) for _ in range(2))
    batch = BATCHES[name]
    slopes = torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    add_gradient(batch, slopes, whole, per_topic)
    for q in range(len(LENGTHS)):
        a, b = int(batch.offsets[q]), int(batch.offsets[q + 1])
        one = make_batch(batch.x[a:b], batch.labels[a:b], torch.tensor([0, b - a]), query=batch.query[q : q + 1])
        add_gradient(one, slopes[a:b], parts, per_topic)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """The most numbers that a tensor made on the way holds."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **options or {})
        self.numbers = max(self.numbers, made.numel() if isinstance(made, torch.Tensor) else 0)
        return made


@pytest.mark.parametrize("kind", [torch.clone, SparseRows.from_dense])
def test_rows_of_their_own_are_scored_by_their_own_topic_only(kind):
    """No table of all rows and all topics."""
    x, labels = torch.randn(300, 4, generator=torch.Generator().manual_seed(4)), torch.zeros(300)
    batch, weight = make_batch(kind(x), labels, torch.arange(301)), torch.zeros(300, 4, dtype=torch.float64)
    with Largest() as largest:
        scores = entry_scores(batch, weight, per_topic=True)
        add_gradient(batch, scores + 1, weight, per_topic=True)
    assert largest.numbers <= 2 * x.numel()
    torch.testing.assert_close(weight, x.double())


@pytest.mark.parametrize("per_topic", [False, True])
def test_no_lists(per_topic):
    for x in (torch.zeros(0, FEATURES), SparseRows.from_dense(torch.zeros(0, FEATURES))):
        empty = make_batch(x, torch.zeros(0), torch.tensor([0]))
        assert len(entry_scores(empty, WEIGHT, per_topic)) == 0
        into = torch.zeros_like(WEIGHT)
        add_gradient(empty, torch.zeros(0, dtype=torch.float64), into, per_topic)
        assert (into == 0).all()


def training_lists(name, budget=20_000):
    batch = BATCHES[name]
    return TrainingLists(RankingSet(batch.x, batch.labels.float(), batch.offsets, index=batch.index), budget=budget)


def dense(x):
    return x.dense() if isinstance(x, SparseRows) else x


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("features", [[3], [0, 2, 4], [4, 1], []])
def test_fewer_features(name, features):
    features = torch.tensor(features, dtype=torch.int64)
    whole = training_lists(name)
    few = take_features(whole, features)
    (one,), (before,) = few, whole
    assert before.x.shape[1] == FEATURES  # those of the lists stay
    torch.testing.assert_close(dense(one.flat().x), BATCHES["dense rows"].x[:, features])
    full = torch.zeros_like(WEIGHT).index_copy(1, features, WEIGHT[:, features])
    for per_topic in (False, True):
        found, expected = entry_scores(one, WEIGHT[:, features], per_topic), entry_scores(before, full, per_topic)
        torch.testing.assert_close(found, expected)
    twice = take_features(few, torch.arange(len(features)).flip(0))  # features of features
    (again,) = twice
    torch.testing.assert_close(dense(again.flat().x), dense(one.flat().x).flip(1))


@pytest.mark.parametrize("name", ["sparse corpus", "dense corpus"])
def test_a_corpus_that_is_shared_stays_shared(name):
    few = take_features(training_lists(name, budget=4), torch.tensor([1, 2]))
    first, *others = few
    assert others and all(batch.x is first.x for batch in others) and few.corpus is first.x
    assert take_features(few, torch.tensor([1])).corpus.shape == (ROWS, 1)


def test_columns_of_int32_rows():
    x = BATCHES["sparse rows"].x
    narrow = SparseRows(x.values, x.columns.int(), x.row_offsets, x.num_features)
    torch.testing.assert_close(take_columns(narrow, torch.tensor([4, 0])).dense(), x.dense()[:, [4, 0]])


def test_extremes_of_columns():
    """Absent values are zeros; a column that stands twice in a row is its sum."""
    for x in (BATCHES["dense rows"].x, BATCHES["sparse rows"].x):
        dense = BATCHES["dense rows"].x.double()
        torch.testing.assert_close(column_extremes(x), torch.stack((-dense.min(0).values, dense.max(0).values)))
    twice = SparseRows(torch.tensor([2.0, 3.0, -1.0]), torch.tensor([1, 1, 0]), torch.tensor([0, 2, 3]), 3)
    torch.testing.assert_close(column_extremes(twice).float(), torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 0.0]]))

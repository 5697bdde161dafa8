"""TrainingLists: sums over the lists of all processes, which are threads here that add up what they reduce."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from torchrank.data import Judged, RankingSet, SparseRows, TrainingLists, make_transform
from torchrank.errors import DataError

WORLDS = [1, 2, 3, 4]


def run(world: int, work, lists: RankingSet, budget: int = 9, reduced: list | None = None) -> list:
    """What `work(training_lists)` returns on each of `world` processes; `reduce` sums over them."""
    slots: list = [None] * world
    barrier = threading.Barrier(world, timeout=20)

    def process(rank: int):
        def reduce(tensor: torch.Tensor) -> torch.Tensor:
            if reduced is not None:
                reduced.append(tensor)
            slots[rank] = tensor.clone()
            barrier.wait()  # all have written
            total = sum(slots[1:], start=slots[0].clone())
            barrier.wait()  # all have read
            return total

        try:
            return work(TrainingLists(lists, budget=budget, rank=rank, world=world, reduce=reduce))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(process, range(world)))


def make(lengths, kind: str = "own", seed: int = 0) -> RankingSet:
    """Lists of these lengths with integer features, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
    count, num_lists = int(offsets[-1]), len(lengths)
    labels = torch.from_numpy(random.integers(0, 3, count).astype(np.float32))
    queries = torch.from_numpy(random.integers(-4, 5, (num_lists, 3)).astype(np.float32))
    shared = "shared" in kind
    x = torch.from_numpy(random.integers(-4, 5, (11 if shared else count, 3)).astype(np.float32))
    index = torch.from_numpy(random.integers(0, 11, count)) if shared else None
    x = SparseRows.from_dense(x) if "sparse" in kind else x
    return RankingSet(x, labels, offsets, index=index, queries=queries, name="train")


LENGTHS = {
    "many": np.random.default_rng(1).integers(0, 12, 40),
    "few": [3, 1],
    "one": [5],
    "none": [],
    "empty": [0, 0, 0],
    "long": [1, 1, 100, 1],
}


def sums(batch):
    """A tensor of each kind of thing that batches hold."""
    rows = batch.flat().x
    rows = rows.dense() if isinstance(rows, SparseRows) else rows
    return (
        (batch.labels[:, None] * rows).double().sum(0),
        torch.tensor([batch.num_lists, batch.num_pairs, len(batch.labels)]),
        batch.queries.double().sum(0),
        batch.query.double().sum(),
    )


def equal(one, other) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("budget", [1, 9, 1000])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", ["own", "shared", "sparse", "shared sparse"])
def test_the_shares_of_all_processes_are_the_whole(kind, lengths, world, budget):
    lists = make(LENGTHS[lengths], kind)
    whole = sums(lists[:])

    def work(training):
        def add(batch, into):
            for place, value in enumerate(sums(batch)):
                into[place].add_(value)

        one = training.total(lambda batch: sums(batch)[0])
        several = training.total(sums)
        into = tuple(training.zeros(*each.shape) for each in whole)
        assert training.total(add, into=into) is not None
        added = training.total(add, into=tuple(training.zeros(*each.shape) for each in whole))
        return [batch.query.tolist() for batch in training], one, several, added

    found = run(world, work, lists, budget)
    seen = [query for batches, *_ in found for batch in batches for query in batch]
    assert seen == list(range(len(lists)))  # each once, in order
    assert all(batches for batches, *_ in found)  # at least one batch, perhaps an empty one
    for _, one, several, added in found:
        assert torch.equal(one, whole[0]) and equal(several, whole)
        assert equal(added, [each.double() for each in whole])


@pytest.mark.parametrize("world", WORLDS)
def test_whatever_is_summed_over_lists_is_summed_over_processes(world):
    """Functions of random numbers of each list: shapes and types of any kind."""
    lists = make(LENGTHS["many"])
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randint(-9, 10, (len(lists), *shape), generator=generator).to(kind)
        for shape in ((), (2,), (2, 3), (1, 0))
        for kind in (torch.float64, torch.float32, torch.int64)
    ]
    found = run(
        world, lambda training: training.total(lambda batch: tuple(t[batch.query].sum(0) for t in tables)), lists
    )
    for each in found:
        assert equal(each, [table.sum(0) for table in tables])


def test_every_tensor_is_reduced_by_itself_and_never_as_a_view():
    """gloo adds up the memory behind a view."""
    reduced: list = []

    def work(training):
        wide = torch.ones(4, 6)
        return training.total(lambda batch: (wide.T, wide[:, ::2], wide[1:2]))

    (found,) = run(1, work, make([2, 3]), 100, reduced)
    assert len(reduced) == 3 and all(each.is_contiguous() for each in reduced)
    assert [tuple(each.shape) for each in found] == [(6, 4), (4, 3), (1, 6)]
    training = TrainingLists(make([2, 3]), reduce=lambda tensor: tensor * 10)
    assert training.reduce(torch.ones(2)).tolist() == [10.0, 10.0]
    assert TrainingLists(make([2, 3])).reduce(torch.ones(2)).tolist() == [1.0, 1.0]


def test_sums_that_are_no_tensors_are_refused():
    training = TrainingLists(make([2, 3]))
    for wrong, name in ((1.0, "float"), (None, "NoneType"), ([torch.ones(1)], "list")):
        with pytest.raises(TypeError, match=f"fn must return a tensor or a tuple of tensors, got {name}"):
            training.total(lambda batch, wrong=wrong: wrong)
    for into in (torch.zeros(1), [torch.zeros(1)]):
        with pytest.raises(TypeError, match="into must be a tuple of tensors"):
            training.total(lambda batch, into: None, into=into)


def test_zeros_and_sizes():
    training = TrainingLists(make([2, 3]), device="meta")
    assert training.zeros(2, 3).shape == (2, 3) and training.zeros().dtype == torch.float64
    assert training.zeros(1).device.type == training.device.type == "meta"
    assert len(training) == 2 and training.num_entries == 5 and (training.rank, training.world) == (0, 1)
    assert TrainingLists(make([2, 3])).device.type == "cpu"


# ---- rows and lists of all processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("option", [None, "standard", ["standard", {"name": "pca", "variance": 0.9}], "quadratic"])
@pytest.mark.parametrize("kind", ["own", "shared"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_sample_of_rows_is_the_same_on_every_process(world, kind, option, streamed):
    raw = make(LENGTHS["many"], kind)
    transform = None if option is None else make_transform(option, 3).fit(raw.x)
    ready = raw.to("cpu", transform)
    lists = raw.streamed("cpu", transform) if streamed else ready
    for count, seed in ((5, 0), (5, 1), (10_000, 0), (0, 0)):
        found = run(world, lambda training, count=count, seed=seed: training.sample_rows(count, seed), lists)
        for sample in found:
            assert sample.dtype == torch.float64 and torch.equal(sample, found[0])
            assert sample.shape == (min(count, len(ready.x)), ready.num_features)
        rows = {tuple(row) for row in ready.x.double().tolist()}
        assert all(tuple(row) in rows for row in found[0].tolist())
        if count > len(ready.x):
            assert torch.equal(found[0], ready.x.double())
    draws = [TrainingLists(lists).sample_rows(5, seed) for seed in range(3)]
    assert not torch.equal(draws[0], draws[1]) or not torch.equal(draws[0], draws[2])
    assert torch.equal(draws[0], TrainingLists(lists, budget=1).sample_rows(5, 0))


@pytest.mark.parametrize("lengths", ["few", "one", "none", "empty", "long"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_sample_of_few_rows_needs_no_share_of_every_process(world, lengths):
    lists = make(LENGTHS[lengths])
    for sample in run(world, lambda training: training.sample_rows(1000), lists):
        assert torch.equal(sample, lists.x.double())


@pytest.mark.parametrize("kind", ["sparse", "shared sparse"])
def test_a_sample_of_sparse_rows_is_refused(kind):
    with pytest.raises(DataError, match=r"sparse: set data\.sparse=false"):
        TrainingLists(make([2, 3], kind)).sample_rows(2)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["own", "shared", "sparse", "shared sparse"])
@pytest.mark.parametrize("world", WORLDS)
def test_all_lists_are_gathered_on_every_process(world, kind, streamed):
    raw = make(LENGTHS["many"], kind)
    transform = make_transform("l2", 3).fit(raw.x)
    lists = raw.streamed("cpu", transform) if streamed else raw.to("cpu", transform)
    expected = raw.to("cpu", transform)[:].flat()
    for batch in run(world, lambda training: training.gathered(), lists):
        assert batch.index is None and equal(sums(batch), sums(expected)) and torch.equal(batch.query, expected.query)
        assert torch.equal(batch.offsets, expected.offsets) and torch.equal(batch.labels, expected.labels)
        sizes = (expected.max_length, expected.num_pairs, expected.num_grades)
        assert (batch.max_length, batch.num_pairs, batch.num_grades) == sizes


@pytest.mark.parametrize("positions", [[3], [39, 0, 7, 7, 21], list(range(0, 40, 3)), []])
@pytest.mark.parametrize("kind", ["own", "shared"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_subset_is_divided_among_the_processes_again(world, kind, positions):
    lists = make(LENGTHS["many"], kind)
    expected = sums(lists.subset(positions)[:])

    def work(training):
        part = training.subset(torch.tensor(positions, dtype=torch.int64))
        assert (part.budget, part.rank, part.world, part.device) == (9, training.rank, world, training.device)
        return len(part), [batch.query.tolist() for batch in part], part.total(sums), part.sample_rows(1000)

    found = run(world, work, lists)
    assert [query for _, batches, *_ in found for batch in batches for query in batch] == list(range(len(positions)))
    for count, _, total, sample in found:
        assert count == len(positions) and equal(total, expected)
        assert torch.equal(sample, lists.subset(positions).x.double())


# ---- lists that were changed -----------------------------------------------------------------------------------------


def halved(batch):
    """Every other list, with one feature."""
    part, _ = batch.take(torch.arange(0, batch.num_lists, 2))
    return part._replace(x=part.x[:, :1], queries=None)


@pytest.mark.parametrize("kind", ["own", "shared"])
@pytest.mark.parametrize("world", WORLDS)
def test_changed_lists_are_made_once_and_summed_like_others(world, kind):
    lists, calls = make(LENGTHS["many"], kind), []

    def change(batch):
        calls.append(batch.num_lists)
        return batch._replace(labels=batch.labels + 1, x=batch.x[:, :2])

    def labels_and_rows(batch):
        return batch.labels.sum(), batch.flat().x.double().sum(0)

    def work(training):
        batches = len(list(training))
        changed = training.changed(change)
        assert len(list(changed)) == batches and next(iter(changed)) is next(iter(changed))
        again = changed.changed(lambda batch: batch._replace(labels=batch.labels * 2))
        return batches, *(part.total(labels_and_rows) for part in (changed, again, training))

    found = run(world, work, lists)
    rows = lists[:].flat().x.double().sum(0)
    for _, changed, again, before in found:
        assert equal(changed, (lists.labels.sum() + len(lists.labels), rows[:2]))
        assert equal(again, (2 * changed[0], rows[:2])) and equal(before, (lists.labels.sum(), rows))
    assert len(calls) == sum(batches for batches, *_ in found)


@pytest.mark.parametrize("world", WORLDS)
def test_changed_lists_may_be_fewer(world):
    lists = make(LENGTHS["many"])

    def work(training):
        kept = [query for batch in training for query in batch.query[::2].tolist()]
        return kept, training.changed(halved).total(lambda batch: batch.query.sum())

    found = run(world, work, lists)
    expected = sum(query for kept, _ in found for query in kept)
    assert all(int(total) == expected for _, total in found)


def test_what_changed_lists_do_not_know_is_refused():
    changed = TrainingLists(make([2, 3])).changed(halved)
    for ask, done in (
        (lambda: changed.sample_rows(2), "sampled"),
        (lambda: changed.gathered(), "gathered"),
        (lambda: changed.subset(torch.tensor([0])), "made a subset of"),
    ):
        with pytest.raises(ValueError, match=rf"changed lists cannot be {done}: do that before changed\(\)"):
            ask()


def test_the_corpus_is_what_batches_share():
    own, shared = make([2, 3]), make([2, 3], "shared")
    transform = make_transform("standard", 3).fit(shared.x)
    assert TrainingLists(own).corpus is None
    assert TrainingLists(shared).corpus is shared.x
    ready = shared.to("cpu", transform)
    assert TrainingLists(ready).corpus is ready.x
    assert torch.equal(TrainingLists(shared.streamed("cpu", transform)).corpus, ready.x)
    few = shared.x[:, :1]
    assert TrainingLists(shared).changed(lambda batch: batch._replace(x=few)).corpus is few
    assert TrainingLists(shared).changed(lambda batch: batch.flat()).corpus is None


def test_a_corpus_that_all_lists_hold_is_never_written_out():
    """Four topics over 30 rows, in batches of one list."""
    random = np.random.default_rng(0)
    y = random.random((4, 30)) < 0.3
    relevance = Judged.make(y.nonzero()[1], np.ones(y.sum()), y.sum(1), 30)
    x = torch.from_numpy(random.random((30, 7), dtype=np.float32))
    training = TrainingLists(RankingSet(x, relevance), budget=20)
    batches = list(training)
    assert [len(batch.labels) for batch in batches] == [30] * 4 and training.num_entries == 120
    assert torch.cat([batch.labels for batch in batches]).tolist() == y.ravel().astype(float).tolist()
    assert torch.equal(training.sample_rows(100), x.double())

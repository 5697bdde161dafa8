"""Properties of the batch plans over many random sets of lengths."""

import itertools

import numpy as np
import pytest
import torch

from torchrank.data import BatchLoader, BudgetSampler, RankingSet, ranges, shard


def random_lengths(random: np.random.Generator) -> np.ndarray:
    kind = random.integers(4)
    count = int(random.integers(0, 60))
    if kind == 0:
        return random.integers(0, 4, count)  # many lists without entries
    if kind == 1:
        return np.exp(random.normal(3, 1.5, count)).astype(np.int64) + 1
    return random.integers(1, 30 if kind == 2 else 400, count)


CASES = [(seed, shuffle) for seed in range(60) for shuffle in (False, True)]


@pytest.mark.parametrize(("seed", "shuffle"), CASES)
def test_every_list_once_whatever_the_number_of_processes(seed, shuffle):
    random = np.random.default_rng(seed)
    lengths, budget = random_lengths(random), int(random.integers(1, 300))
    plans = []
    for world in range(1, 6):
        samplers = [BudgetSampler(lengths, budget=budget, shuffle=shuffle, rank=r, world=world) for r in range(world)]
        for sampler in samplers:
            sampler.set_epoch(seed)
        steps = [[share.tolist() for share in sampler] for sampler in samplers]
        assert {len(step) for step in steps} == {len(samplers[0])}
        whole = [sorted(itertools.chain(*shares)) for shares in zip(*steps, strict=True)]
        assert sorted(itertools.chain(*whole)) == list(range(len(lengths)))
        sizes = [[len(share) for share in shares] for shares in zip(*steps, strict=True)]
        assert all(max(size) - min(size) <= 1 for size in sizes)
        plans.append(whole)
    assert all(plan == plans[0] for plan in plans)


@pytest.mark.parametrize(("seed", "shuffle"), CASES)
def test_budget_is_exceeded_by_the_last_list_only(seed, shuffle):
    random = np.random.default_rng(seed)
    lengths, budget = random_lengths(random), int(random.integers(1, 300))
    sampler = BudgetSampler(lengths, budget=budget, shuffle=shuffle, seed=seed)
    batches = [batch.numpy() for batch in sampler]
    assert len(batches) == len(sampler)
    assert all(lengths[batch[:-1]].sum() <= budget for batch in batches)
    assert all(len(batch) for batch in batches) or len(lengths) == 0
    if not shuffle:
        assert np.concatenate(batches).tolist() == list(range(len(lengths)))


def plan(seed: int, epoch: int) -> list[list[int]]:
    lengths = np.random.default_rng(5).integers(1, 100, 500)
    sampler = BudgetSampler(lengths, budget=400, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return [batch.tolist() for batch in sampler]


def test_same_seed_same_order_and_epochs_differ():
    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(1, 1)
    assert plan(1, 0) != plan(2, 0)
    assert len(plan(1, 0)) == len(plan(1, 1)) == len(plan(2, 7))  # Lightning asks for the length once


def test_lengths_are_alike_inside_a_batch_but_batches_come_in_random_order():
    lengths = np.random.default_rng(5).integers(1, 400, 3000)
    batches = list(BudgetSampler(lengths, budget=4000, shuffle=True))
    spread = np.mean([np.ptp(lengths[batch.numpy()]) for batch in batches])
    assert spread < 0.1 * 400
    means = [lengths[batch.numpy()].mean() for batch in batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


@pytest.mark.parametrize("seed", range(40))
def test_shards_cover_all_lists_and_are_balanced(seed):
    random = np.random.default_rng(seed)
    lengths = random_lengths(random)
    for world in range(1, 6):
        shards = [shard(lengths, rank, world) for rank in range(world)]
        assert shards[0][0] == 0 and shards[-1][1] == len(lengths)
        assert all(left[1] == right[0] for left, right in itertools.pairwise(shards))
        assert all(first <= last for first, last in shards)
        documents = [lengths[first:last].sum() for first, last in shards]
        longest = lengths.max(initial=0)
        assert max(documents) - min(documents) <= 2 * longest


@pytest.mark.parametrize("seed", range(40))
def test_ranges_cover_a_share_of_the_lists(seed):
    random = np.random.default_rng(seed)
    lengths, budget = random_lengths(random), int(random.integers(1, 300))
    first, last = np.sort(random.integers(0, len(lengths) + 1, 2))
    parts = ranges(lengths, budget, first, last)
    assert parts[0][0] == first and parts[-1][1] == last
    assert all(left[1] == right[0] for left, right in itertools.pairwise(parts))
    assert all(a < b for a, b in parts) or (first == last and parts == [(first, last)])
    assert all(lengths[a:b][:-1].sum() <= budget for a, b in parts)


def test_one_list_larger_than_the_budget_is_never_split():
    assert ranges(np.array([1000, 1, 1, 1000]), 10, 0, 4)[0] == (0, 1)
    batches = list(BudgetSampler([1000, 1, 1, 1000], budget=10, shuffle=False))
    assert sorted(i for batch in batches for i in batch.tolist()) == [0, 1, 2, 3]


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="budget must be >= 1, got 0"):
        BudgetSampler([1], budget=0, shuffle=False)
    with pytest.raises(ValueError, match=r"rank must be one of 0\.\.1 \(world=2\), got 2"):
        BudgetSampler([1], budget=1, shuffle=False, rank=2, world=2)
    with pytest.raises(ValueError, match=r"rank must be one of 0\.\.2 .*got 3"):
        shard(np.array([1]), 3, 3)


def loader() -> BatchLoader:
    """Ten lists of one entry in batches of two."""
    lists = RankingSet(torch.eye(10), torch.ones(10), torch.arange(11))
    return BatchLoader(lists, BudgetSampler(lists.lengths, budget=2, shuffle=True, seed=3))


def passes(loader: BatchLoader, epochs) -> list[list[int]]:
    found = []
    for epoch in epochs:
        loader.set_epoch(epoch)
        found += [batch.query.tolist() for batch in loader]
    return found


@pytest.mark.parametrize("given", range(16))
def test_a_loader_resumes_after_any_batch(given):
    """After the last batch of an epoch too: the next epoch follows, and none is repeated."""
    whole, first, seen = passes(loader(), range(3)), loader(), []
    for epoch in range(3):
        if len(seen) == given:
            break
        first.set_epoch(epoch)
        for batch in first:
            seen.append(batch.query.tolist())
            if len(seen) == given:
                break
    state = first.state_dict()
    assert first.state_dict() == state == {"epoch": given // 5, "given": given % 5}
    resumed = loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state  # also before its first batch
    assert seen + passes(resumed, range(state["epoch"], 3)) == whole


def test_a_loader_that_was_used_before_forgets_it_when_it_loads_a_state():
    one, state = loader(), loader().state_dict()
    passes(one, [0])
    one.load_state_dict(state)
    assert one.state_dict() == {"epoch": 0, "given": 0} and passes(one, [0]) == passes(loader(), [0])


def test_a_new_epoch_begins_with_its_first_batch_whoever_announces_it():
    """Lightning sets the epoch of the sampler, and may ask for the state before the first batch."""
    one = loader()
    passes(one, [0])
    one.sampler.set_epoch(1)
    assert one.state_dict() == {"epoch": 1, "given": 0}
    half = iter(one)
    next(half)
    assert one.state_dict() == {"epoch": 1, "given": 1} and one.given == 1
    one.set_epoch(2)
    assert one.state_dict() == {"epoch": 2, "given": 0} and len(passes(one, [2])) == len(one) == 5


def test_a_loader_reads_no_batch_that_it_leaves_out():
    class Counted:
        read = 0

        def __getitem__(self, positions):
            self.read += 1
            return positions

    one = BatchLoader(Counted(), BudgetSampler(np.ones(10), budget=2, shuffle=False))
    one.load_state_dict({"epoch": 4, "given": 3})
    assert [batch.tolist() for batch in one] == [[6, 7], [8, 9]] and one.lists.read == 2 and one.sampler.epoch == 4

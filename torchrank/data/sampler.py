"""Which lists go into which batch and to which process: whole lists, balanced by documents, each exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows

Place = TypeVar("Place")
WINDOW = 50  # batches whose lists are sorted by length together: lengths are similar in a batch, and still shuffled


class BudgetSampler(Sampler[Tensor]):
    """Batches of about `budget` documents: a batch without its last list never exceeds the budget.

    The plan of an epoch depends on (seed, epoch) only. Each process takes a share of every batch, so that all processes
    make the same number of steps; some of their batches may be empty. A share is every `world`-th list, or without
    shuffling consecutive lists, whose rows need no copy. The number of batches is the same in every epoch.

    Args:
        lengths: (Q,) documents of each list.
        budget: documents of a batch, over all processes.
        shuffle: whether to draw a new order for each epoch; lists of similar length then are in one batch.
        seed: draws the order.
        rank: the number of this process, from 0.
        world: the number of processes.

    Example:
        >>> sampler = BudgetSampler([3, 1, 2, 5], budget=6, shuffle=False)
        >>> list(sampler)
        [tensor([0, 1, 2]), tensor([3])]
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        *,
        budget: int,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        if budget < 1:
            raise ValueError(f"budget must be >= 1, got {budget}")
        _check_rank(rank, world)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.budget, self.shuffle, self.seed, self.rank, self.world = budget, shuffle, seed, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, on which the order depends."""
        self.epoch = epoch

    def __len__(self) -> int:
        return num_cuts(self.lengths, self.budget)

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.plan():
            yield torch.from_numpy(batch[self._share(batch)].copy())

    def _share(self, batch: np.ndarray) -> slice:
        """What this process takes of a batch."""
        if self.shuffle:
            return slice(self.rank, None, self.world)
        return slice(len(batch) * self.rank // self.world, len(batch) * (self.rank + 1) // self.world)

    def plan(self) -> list[np.ndarray]:
        """The batches of this epoch over all processes, each as positions of lists."""
        if not self.shuffle:
            return np.split(np.arange(len(self.lengths)), cut(self.lengths, self.budget)[1:-1])
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.lengths))
        window = np.cumsum(self.lengths[order]) // (WINDOW * self.budget)
        order = order[np.lexsort((self.lengths[order], window))]
        batches = np.split(order, cut(self.lengths[order], self.budget)[1:-1])
        return [batches[i] for i in random.permutation(len(batches))]


def num_cuts(lengths: np.ndarray, budget: int) -> int:
    """The number of batches for these lists: total / budget rounded up, but at least one and at most one per list.

    Example:
        >>> num_cuts(np.array([3, 1, 2, 5]), budget=6), num_cuts(np.array([50, 50]), budget=6)
        (2, 2)
    """
    return max(1, min(len(lengths), -(-int(lengths.sum()) // budget)))


def cut(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Boundaries (batches + 1,) of consecutive lists in equal shares of at most `budget` documents plus one list.

    Example:
        >>> cut(np.array([3, 1, 2, 5, 1]), budget=6)
        array([0, 3, 5])
    """
    count = num_cuts(lengths, budget)
    starts = np.cumsum(lengths) - lengths
    step = np.arange(count)
    cuts = np.searchsorted(starts * count, step * int(lengths.sum()))
    cuts = np.maximum.accumulate(cuts - step) + step  # a list longer than a share leaves no batch empty
    return np.append(np.minimum(cuts, max(len(lengths) - count, 0) + step), len(lengths))


def ranges(lengths: np.ndarray, budget: int, first: int, last: int) -> list[tuple[int, int]]:
    """The lists first..last-1 in consecutive ranges of about `budget` documents; one empty range if there are none.

    Args:
        lengths: (Q,) documents of each list.
        budget: documents of a range; without its last list a range never exceeds it.
        first: the first list.
        last: the list after the last one.

    Returns:
        Pairs (first list, list after the last one), in order.

    Example:
        >>> ranges(np.array([3, 1, 2, 5]), 6, 1, 4)
        [(1, 3), (3, 4)]
    """
    cuts = first + cut(np.asarray(lengths)[first:last], budget)
    return [(int(a), int(b)) for a, b in pairwise(cuts)]


def shard(lengths: np.ndarray, rank: int, world: int) -> tuple[int, int]:
    """The share of one process: consecutive lists, balanced by documents; it may be empty.

    Args:
        lengths: (Q,) documents of each list.
        rank: the number of the process, from 0.
        world: the number of processes.

    Returns:
        The first list, and the list after the last one.

    Example:
        >>> [shard(np.array([3, 1, 2, 5]), rank, 2) for rank in range(2)]
        [(0, 3), (3, 4)]
    """
    _check_rank(rank, world)
    lengths = np.asarray(lengths, dtype=np.int64)
    centres = np.cumsum(lengths) - lengths / 2
    cuts = np.searchsorted(centres, lengths.sum() * np.arange(1, world) / world)
    cuts = np.concatenate(([0], cuts, [len(lengths)]))
    return int(cuts[rank]), int(cuts[rank + 1])


def _check_rank(rank: int, world: int) -> None:
    if not 0 <= rank < world:
        raise ValueError(f"rank must be one of 0..{world - 1} (world={world}), got {rank}")


class BatchLoader:
    """The batches of an epoch. It counts those it has yielded, so that a loop can resume in the middle of an epoch.

    Call `set_epoch` before each epoch (Lightning does). Save `state_dict()` after a step; `load_state_dict` makes the
    next pass start with the batch after it.

    Args:
        lists: a `RankingSet`, or anything that returns a batch for positions.
        sampler: yields the positions of each batch.

    Example:
        >>> from torchrank import RankingSet
        >>> lists = RankingSet(torch.eye(3), torch.ones(3), torch.arange(4))
        >>> loader = BatchLoader(lists, BudgetSampler(lists.lengths, budget=1, shuffle=True))
        >>> loader.set_epoch(1)
        >>> whole = [int(batch.query) for batch in loader]
        >>> _ = next(iter(loader))
        >>> resumed = BatchLoader(lists, BudgetSampler(lists.lengths, budget=1, shuffle=True))
        >>> resumed.load_state_dict(loader.state_dict())
        >>> [int(batch.query) for batch in resumed] == whole[1:]
        True
    """

    batch_sampler = None  # Lightning reads it, and calls sampler.set_epoch

    def __init__(self, lists: Any, sampler: BudgetSampler):
        self.lists, self.sampler = lists, sampler
        self.given = self._skip = 0  # batches of the pass that were yielded, and that the next pass leaves out
        self._epoch: int | None = None  # of the pass

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        self.given, self._skip, self._epoch = self._skip, 0, self.sampler.epoch
        positions, lists = islice(self.sampler, self.given, None), self.lists
        batches = lists.batches(positions) if hasattr(lists, "batches") else map(lists.__getitem__, positions)
        for batch in batches:
            self.given += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, on which the order of the batches depends."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its batches were yielded; after the last one it is the start of the next epoch."""
        epoch = self.sampler.epoch
        given = self._skip or (self.given if self._epoch == epoch else 0)
        return {"epoch": epoch, "given": given} if given < len(self) else {"epoch": epoch + 1, "given": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next pass start after the batches that were already yielded."""
        self.set_epoch(state["epoch"])
        self.given, self._skip, self._epoch = 0, state["given"] % len(self), None


def read_ahead(read: Callable[[Place], Batch], places: Iterable[Place]) -> Iterator[Batch]:
    """`read(place)` of each place, in order: while one is used, a thread reads the next, so that two are in memory.

    On a CUDA device the thread copies and computes in a stream of its own, and whoever takes a batch lets the current
    stream wait for it.

    >>> from torchrank.data import RankingSet
    >>> lists = RankingSet(torch.eye(2), torch.ones(2), torch.arange(3))
    >>> [batch.query.tolist() for batch in read_ahead(lists.__getitem__, [0, 1])]
    [[0], [1]]
    """
    stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    def fetch(place: Place) -> Batch:
        with torch.no_grad(), torch.cuda.stream(stream):
            return read(place)

    with ThreadPoolExecutor(1, "torchrank-read-ahead") as thread:
        coming: list[Future[Batch]] = []
        for place in places:
            ready = [taken(each.result(), stream) for each in coming]
            coming = [thread.submit(fetch, place)]
            while ready:
                yield ready.pop()  # and hold it no longer: the thread makes another
        while coming:
            yield taken(coming.pop().result(), stream)


def taken(batch: Batch, stream: torch.cuda.Stream | None) -> Batch:
    """The batch for the current stream, which begins when the stream that made it is done."""
    if stream is not None and batch.offsets.device.type == "cuda":
        current = torch.cuda.current_stream(batch.offsets.device)
        current.wait_stream(stream)
        for tensor in _tensors(batch):
            tensor.record_stream(current)
    return batch


def _tensors(batch: Batch) -> list[Tensor]:
    rows = (batch.x.row_offsets, batch.x.columns, batch.x.values) if isinstance(batch.x, SparseRows) else (batch.x,)
    return [part for part in (*rows, *batch[1:]) if isinstance(part, Tensor)]

"""Which lists go into which batch, and to which process: by documents, whole lists, none repeated, none lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

WINDOW = 50  # batches whose lists are sorted by length together: lengths are alike inside a batch, and still shuffled


class BudgetSampler(Sampler):
    """Batches of about `budget` documents: a batch without its last list never exceeds the budget.

    The plan of an epoch depends on (seed, epoch) only. Process `rank` takes every `world`-th list of every batch, so
    that all processes make the same number of steps; some of its batches may be empty. The number of batches is the
    same in every epoch.

    >>> sampler = BudgetSampler([3, 1, 2, 5], budget=6, shuffle=False)
    >>> list(sampler)
    [tensor([0, 1, 2]), tensor([3])]
    """

    def __init__(self, lengths, *, budget: int, shuffle: bool, seed: int = 0, rank: int = 0, world: int = 1):
        if budget < 1:
            raise ValueError(f"a budget of {budget} documents holds no list: give at least 1")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not one of {world} processes")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.budget, self.shuffle, self.seed, self.rank, self.world = budget, shuffle, seed, rank, world
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return num_cuts(self.lengths, self.budget)

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.plan():
            yield torch.from_numpy(batch[self.rank :: self.world].copy())

    def plan(self) -> list[np.ndarray]:
        """The batches of this epoch over all processes, as positions of lists."""
        if not self.shuffle:
            return np.split(np.arange(len(self.lengths)), cut(self.lengths, self.budget)[1:-1])
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.lengths))
        window = np.cumsum(self.lengths[order]) // (WINDOW * self.budget)
        order = order[np.lexsort((self.lengths[order], window))]
        batches = np.split(order, cut(self.lengths[order], self.budget)[1:-1])
        return [batches[i] for i in random.permutation(len(batches))]


def num_cuts(lengths: np.ndarray, budget: int) -> int:
    """Batches needed for these lists: total / budget rounded up, but at least one and at most one per list.

    >>> num_cuts(np.array([3, 1, 2, 5]), budget=6), num_cuts(np.array([50, 50]), budget=6)
    (2, 2)
    """
    return max(1, min(len(lengths), -(-int(lengths.sum()) // budget)))


def cut(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Boundaries (batches + 1,) of consecutive lists in equal shares of at most `budget` documents plus one list.

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

    >>> ranges(np.array([3, 1, 2, 5]), 6, 1, 4)
    [(1, 3), (3, 4)]
    """
    cuts = first + cut(np.asarray(lengths)[first:last], budget)
    return [(int(a), int(b)) for a, b in pairwise(cuts)]


def shard(lengths: np.ndarray, rank: int, world: int) -> tuple[int, int]:
    """The consecutive lists (first, last) of one process, balanced by documents; may be empty.

    >>> [shard(np.array([3, 1, 2, 5]), rank, 2) for rank in range(2)]
    [(0, 3), (3, 4)]
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world} processes")
    lengths = np.asarray(lengths, dtype=np.int64)
    centres = np.cumsum(lengths) - lengths / 2
    cuts = np.searchsorted(centres, lengths.sum() * np.arange(1, world) / world)
    cuts = np.concatenate(([0], cuts, [len(lengths)]))
    return int(cuts[rank]), int(cuts[rank + 1])

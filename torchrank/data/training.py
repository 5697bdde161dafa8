"""What a ranker learns from: its lists as one argument, with sums over the lists of all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sampler import ranges, shard
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import subsample
from torchrank.progress import bar

Reduce = Callable[[Tensor], Tensor]  # the sum of a tensor over all processes
INDEXED = 2**31  # numbers that the kernels of a device can count


class TrainingLists:
    """The lists of a fit: transformed, on the device, and divided among the processes.

    Iteration yields the batches of this process: at least one, which may be empty. `total` sums over the lists of all
    processes, so that every process takes the same decisions.

    Args:
        lists: all training lists, whose batches are transformed: by `RankingSet.to` or `RankingSet.streamed`.
        budget: entries of a batch.
        device: the device of the batches; by default that of the lists.
        rank: the number of this process, from 0.
        world: the number of processes.
        reduce: the sum of a tensor over all processes.

    Example:
        >>> lists = RankingSet(torch.eye(3), torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]))
        >>> lists = TrainingLists(lists, budget=1)
        >>> [batch.labels.tolist() for batch in lists]
        [[0.0, 2.0], [1.0]]
        >>> lists.total(lambda batch: batch.labels.sum())
        tensor(3.)
    """

    def __init__(
        self,
        lists: RankingSet,
        *,
        budget: int = 20_000,
        device: torch.device | str | None = None,
        rank: int = 0,
        world: int = 1,
        reduce: Reduce | None = None,
    ):
        self.lists, self.budget, self.rank, self.world = lists, budget, rank, world
        self.device = torch.device(lists.device if device is None else device)
        self._reduce = reduce
        self._made: list[Batch] | None = None

    def __len__(self) -> int:
        """The number of lists of all processes."""
        return len(self.lists)

    def __iter__(self) -> Iterator[Batch]:
        if self._made is not None:
            return iter(self._made)
        first, last = shard(self.lists.lengths, self.rank, self.world)
        return self.lists.batches(slice(a, b) for a, b in ranges(self.lists.lengths, self.budget, first, last))

    @property
    def num_entries(self) -> int:
        """Entries of the lists of all processes, as they were before `changed`."""
        return int(self.lists.lengths.sum())

    @property
    def corpus(self) -> Tensor | SparseRows | None:
        """The rows that all batches share; None where entries have rows of their own."""
        batch = self._any()
        return None if batch.index is None else batch.x

    @property
    def is_sparse(self) -> bool:
        """Whether the rows of the batches are `SparseRows`."""
        return isinstance(self._any().x, SparseRows)

    def _any(self) -> Batch:
        return self.lists[:0] if self._made is None else self._made[0]

    def reduce(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        # gloo adds up the memory behind a view, not its entries
        return tensor if self._reduce is None else self._reduce(tensor.contiguous())

    def total(self, fn: Callable[..., Any], into: tuple[Tensor, ...] | None = None) -> Any:
        """The sum of a function over the lists of all processes.

        Args:
            fn: `fn(batch)` returns a tensor or a tuple of tensors, the sums over the lists of a batch. With `into`,
                `fn(batch, into)` adds to these tensors in place.
            into: tensors of zeros, in float64.

        Returns:
            A tensor or a tuple, as `fn` returns it; the same on every process. Each tensor is reduced by itself.

        Example:
            >>> lists = TrainingLists(RankingSet(torch.eye(3), torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3])))
            >>> def add_labels(batch, into):
            ...     into[0][:] += batch.labels.sum()
            >>> lists.total(add_labels, into=(lists.zeros(1),))
            (tensor([3.], dtype=torch.float64),)
        """
        if isinstance(into, Tensor | list):
            raise TypeError("into must be a tuple of tensors")
        sums: Any = into
        for batch in self._with_progress():
            if into is not None:
                fn(batch, into)
            elif sums is None:
                sums = fn(batch)
            elif isinstance(sums, tuple):
                sums = tuple(a + b for a, b in zip(sums, fn(batch), strict=True))
            else:
                sums = sums + fn(batch)
        if not isinstance(sums, Tensor | tuple):
            raise TypeError(f"fn must return a tensor or a tuple of tensors, got {type(sums).__name__}")
        return tuple(map(self.reduce, sums)) if isinstance(sums, tuple) else self.reduce(sums)

    def _with_progress(self) -> Iterator[Batch]:
        batches: Iterator[Batch] = bar(iter(self), desc="sum over lists", shown=self.rank == 0)
        return batches

    def zeros(self, *shape: int) -> Tensor:
        """A float64 tensor of zeros on the device, for `total`."""
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    def sample_rows(self, count: int, seed: int = 0) -> Tensor:
        """A random sample of the rows of all processes, transformed.

        Args:
            count: the number of rows; all rows if there are fewer.
            seed: draws the rows.

        Returns:
            Dense rows (n, D) in float64, ascending by their place; the same on every process.
        """
        self._refuse_changed("sampled")
        nothing, chosen = self.lists[:0], subsample(len(self.lists.x), count, seed).to(self.device)
        if nothing.index is not None:
            return nothing._replace(index=chosen).dense.double()

        def gather(batch: Batch, into: tuple[Tensor, ...]) -> None:
            start = int(self.lists.relevance.bounds[int(batch.query[0])]) if batch.num_lists else 0
            here = (chosen >= start) & (chosen < start + len(batch.labels))
            into[0][here] = batch.dense[chosen[here] - start].double()

        sample: Tensor = self.total(gather, into=(self.zeros(len(chosen), nothing.x.shape[1]),))[0]
        return sample

    def gathered(self) -> Batch:
        """All lists of all processes as one batch with rows of their own: the same on every process."""
        self._refuse_changed("gathered")
        return self.lists[:].flat()

    def subset(self, positions: Tensor) -> TrainingLists:
        """The lists at these positions (of all lists), divided among the processes again."""
        self._refuse_changed("made a subset of")
        return self.over(self.lists.subset(positions))

    def changed(self, fn: Callable[[Batch], Batch]) -> TrainingLists:
        """The same lists after `fn(batch)`, which is called once for every batch: with fewer entries, other labels, or
        other features. They can be iterated over and summed, but `lists` still are those before the change."""
        new = self.over(self.lists)
        new._made = [fn(batch) for batch in self]
        return new

    def over(self, lists: RankingSet) -> TrainingLists:
        """Other lists, on this device and divided among the same processes."""
        new = copy(self)
        new.lists, new._made = lists, None
        return new

    def _refuse_changed(self, done: str) -> None:
        if self._made is not None:
            raise ValueError(f"changed lists cannot be {done}: do that before changed()")


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None for the CPU, and for devices that do not tell.

    >>> free_memory(torch.device("cpu")) is None
    True
    """
    backend = None if device.type == "cpu" else getattr(torch, device.type, None)
    if not hasattr(backend, "mem_get_info"):
        return None
    free = int(backend.mem_get_info(device)[0])  # type: ignore[union-attr]
    if device.type == "cuda":  # torch keeps memory that no tensor has any more
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free


def pass_room(device: torch.device) -> int | None:
    """Bytes that a pass may take on a device by default, half of those that are free; None where that is unknown."""
    free = free_memory(device)
    return None if free is None else free // 2


def batch_entries(lists: RankingSet, batch_documents: int, ranker: Any = None, room: int | None = None) -> int:
    """Entries of a batch that is scored or summed over.

    Sums over lists do not depend on it, and a device is busy only with large batches.

    Args:
        lists: the set that is cut into batches.
        batch_documents: the number of entries in general.
        ranker: its `corpus_entries` count instead, if they are more and every list holds at least a quarter of a
            shared corpus: every batch then costs a pass over the corpus. Its `entry_bytes(width)` are what an entry
            with so many features takes.
        room: bytes that a batch may take on the device; as many entries as fit, if they are more, rounded down to a
            power of two, so that a little more free memory changes nothing. None: `batch_documents` decide.

    Example:
        >>> from torchrank.data import Explicit
        >>> lists = RankingSet(torch.eye(4), Explicit(torch.ones(2), torch.tensor([0, 2]), torch.tensor([0, 3])))
        >>> batch_entries(lists, 10), batch_entries(lists, 10, ranker=type("Ranker", (), {"corpus_entries": 50}))
        (10, 50)
        >>> batch_entries(lists, 10, ranker=type("Ranker", (), {"entry_bytes": lambda width: 8 * width}), room=3200)
        64
    """
    whole = lists.is_shared and 4 * int(lists.lengths.min(initial=len(lists.x))) >= len(lists.x)
    least = max(batch_documents, getattr(ranker, "corpus_entries", 0) if whole else 0)
    need = 0 if room is None or not hasattr(ranker, "entry_bytes") else ranker.entry_bytes(_width(lists, ranker))
    if room is None or need == 0:
        return least
    fitting = min(room // need, INDEXED // _width(lists, ranker))
    return max(least, 1 << max(fitting.bit_length() - 1, 0))


def _width(lists: RankingSet, ranker: Any) -> int:
    """Numbers of a transformed row; of a sparse one those that are stored, on average."""
    if isinstance(lists.x, SparseRows):
        return -(-len(lists.x.values) // max(len(lists.x), 1)) + 1
    outputs: int = getattr(getattr(ranker, "transform", None), "num_outputs", 0)
    return max(lists.num_features, outputs, 1)

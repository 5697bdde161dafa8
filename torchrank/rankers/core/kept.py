"""What a fit computes for its validation lists, found again whenever they are validated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows

KEPT_BYTES = 2**32  # a fit keeps values of its lists up to this size, and computes the others whenever it needs them


class BatchMemory:
    """Values of batches, which are found again only for the same batch: consecutive lists of the same set, in the same
    memory, which nobody has written to since.

    Everything else, such as lists that are read anew from a file, has no values here. The rows of a set are not kept
    alive. It lies in `self.kept`, as everything that lives as long as a fit.

    Args:
        room: bytes that the values may take.

    Example:
        >>> from torchrank.data import RankingSet
        >>> lists = RankingSet(torch.eye(3), torch.ones(3), torch.tensor([0, 2, 3]))
        >>> memory = BatchMemory(room=1000)
        >>> memory.keep(lists[:1], torch.tensor([5.0, 6.0]))
        >>> memory.find(lists[:1]), memory.find(lists[1:])
        (tensor([5., 6.]), None)
    """

    def __init__(self, room: int):
        self.room = room
        self._held: dict[tuple[Any, ...], _Held] = {}

    def find(self, batch: Batch) -> Any:
        """What was kept for this batch; None if there is nothing."""
        held = self._held.get(_key(batch))
        return held.value if held is not None and held.is_of(batch) else None

    def keep(self, batch: Batch, value: Any) -> None:
        """Keep a value, such as a tensor or a tuple of tensors, in place of the one before, if there is room."""
        if not len(batch.labels):
            return
        key, made, values = _key(batch), _made(batch), value if isinstance(value, tuple) else (value,)
        size = sum(part.numel() * part.element_size() for part in (*values, *made) if isinstance(part, Tensor))
        self._make_room(key)
        if self.reserve(size):
            self._held[key] = _Held([_State.of(part) for part in _parts(batch)], made, value, size)

    def reserve(self, size: int) -> bool:
        """Take so many bytes of the room, and say whether there were so many."""
        fits = size <= self.room
        self.room -= size if fits else 0
        return fits

    def _make_room(self, key: tuple[Any, ...]) -> None:
        """Drop what was kept under this key or, if it is new, everything whose rows are gone."""
        gone = [key] if key in self._held else [each for each, held in self._held.items() if held.is_lost]
        self.room += sum(self._held.pop(each).size for each in gone)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles start empty: their batches are in other memory."""
        return {"room": self.room + sum(held.size for held in self._held.values()), "_held": {}}


def grown_scores(memory: BatchMemory | None, batch: Batch, rules: Tensor, add: Callable[[int], Tensor]) -> Tensor:
    """Scores (N,) of a sum that grows by rules from validation to validation: those of the last one plus the new rules.

    Args:
        memory: of the fit; None outside of one.
        batch: the lists.
        rules: (R, T) what decides the rules, in the order in which they were found; scores under other rules than the
            first of these are not used.
        add: `add(first)` are the scores under the rules from `first` on.

    Example:
        >>> from torchrank.data import RankingSet
        >>> lists, memory = RankingSet(torch.eye(2), torch.ones(2), torch.tensor([0, 2])), BatchMemory(room=1000)
        >>> rules = torch.tensor([[1.0, 2.0, 4.0]])
        >>> sums = lambda first, last: rules[0, first:last].sum().expand(2).double()
        >>> grown_scores(memory, lists[:], rules[:, :2], lambda first: sums(first, 2))
        tensor([3., 3.], dtype=torch.float64)
        >>> grown_scores(memory, lists[:], rules, lambda first: sums(first, 3))  # asks for the third alone
        tensor([7., 7.], dtype=torch.float64)
    """
    before = None if memory is None else memory.find(batch)
    known = 0 if before is None else before[0].shape[1]
    if before is None or known > rules.shape[1] or not torch.equal(before[0], rules[:, :known]):
        scores = add(0)
    else:
        scores = before[1] if known == rules.shape[1] else before[1] + add(known)
    if memory is None:
        return scores
    memory.keep(batch, (rules, scores))
    return scores.clone()  # callers may write to theirs


class _State(NamedTuple):
    """A tensor as it was, without keeping its memory alive."""

    storage: StorageWeakRef
    place: tuple[Any, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> _State:
        return cls(StorageWeakRef(tensor.untyped_storage()), _place(tensor))

    def is_of(self, tensor: Tensor) -> bool:
        return self.storage.cdata == tensor.untyped_storage()._cdata and self.place == _place(tensor)


class _Held(NamedTuple):
    states: list[_State]
    made: list[Tensor]
    value: Any
    size: int

    def is_of(self, batch: Batch) -> bool:
        parts, made = _parts(batch), _made(batch)
        if len(parts) != len(self.states) or len(made) != len(self.made):
            return False
        same = all(state.is_of(part) for state, part in zip(self.states, parts, strict=True))
        return same and all(map(torch.equal, self.made, made))

    @property
    def is_lost(self) -> bool:
        return bool(self.states[0].storage.expired())


def _parts(batch: Batch) -> list[Tensor]:
    """What scores depend on, rows first, in the memory of the set."""
    rows = [batch.x.values, batch.x.columns] if isinstance(batch.x, SparseRows) else [batch.x]
    return [*rows, batch.offsets, batch.query] + ([] if batch.queries is None else [batch.queries])


def _made(batch: Batch) -> list[Tensor]:
    """What scores depend on, too, and sets make again for every batch; so it is compared by its values."""
    made = (batch.x.row_offsets if isinstance(batch.x, SparseRows) else None, batch.index)
    return [part for part in made if part is not None]


def _key(batch: Batch) -> tuple[Any, ...]:
    rows, positions = _parts(batch)[0], batch.query
    return rows.untyped_storage()._cdata, rows.storage_offset(), positions.untyped_storage()._cdata


def _place(tensor: Tensor) -> tuple[Any, ...]:
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, version

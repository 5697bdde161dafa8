"""One split of a ranking data set: rows, labels, offsets, and what the host has to know about the lists."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchrank.data.batch import Batch, check_lists, count_grades, count_pairs
from torchrank.data.rows import Chunks, parts_of
from torchrank.data.sparse import SparseRows
from torchrank.data.transforms import Identity
from torchrank.data.transforms.base import Transform
from torchrank.functional.ragged import entries_of

Ids = Sequence[str] | np.ndarray


class RankingSet(Dataset):
    """Lists laid end to end; `ranking_set[positions]` is a `Batch`. See `Batch` for `index` and `queries`.

    The tensors may be views of memory-mapped files: nothing here copies all rows except `to` with a transform.

    >>> lists = RankingSet(torch.eye(3), torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]), query_ids=["a", "b"])
    >>> len(lists), lists.num_grades, lists[1:2].query, lists[torch.tensor([1, 0])].labels
    (2, 3, tensor([1]), tensor([1., 0., 2.]))
    """

    def __init__(
        self,
        x: Tensor | SparseRows,
        labels: Tensor,
        offsets: Tensor,
        *,
        index: Tensor | None = None,
        queries: Tensor | None = None,
        query_ids: Ids | None = None,
        document_ids: Ids | None = None,
        name: str = "",
        pairs: np.ndarray | None = None,
        num_grades: int | None = None,
    ):
        """`document_ids` has one id per entry. `pairs` and `num_grades` are counted on first use unless given."""
        check_lists(x, labels, offsets, index=index, queries=queries)
        for ids, count, what in ((query_ids, len(offsets) - 1, "lists"), (document_ids, len(labels), "entries")):
            if ids is not None and len(ids) != count:
                raise ValueError(f"{len(ids)} ids for {count} {what} in the set '{name}'")
        self.x, self.labels, self.offsets, self.index, self.queries = x, labels, offsets, index, queries
        self.query_ids, self.document_ids, self.name = query_ids, document_ids, name
        self._bounds = offsets.cpu().numpy().copy()  # on the host; a copy, since torch may move it to shared memory
        self.lengths = np.diff(self._bounds)
        if pairs is not None:
            self.pairs = pairs
        if num_grades is not None:
            self.num_grades = num_grades

    @cached_property
    def num_grades(self) -> int:
        """K when all labels are integers of 0..K-1, otherwise 0."""
        return count_grades(self.labels.cpu().numpy())

    @cached_property
    def pairs(self) -> np.ndarray:
        """Pairs with different labels in each list (Q,)."""
        return count_pairs(self.labels.cpu().numpy(), self._bounds, self.num_grades)

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.x, SparseRows)

    @property
    def is_shared(self) -> bool:
        """Whether the lists share the rows of one corpus."""
        return self.index is not None

    @property
    def has_queries(self) -> bool:
        return self.queries is not None

    @property
    def classes(self) -> Tensor | None:
        """(Q,) class of each query, where relevance means to be of the same class."""
        return None

    @property
    def corpus_classes(self) -> Tensor | None:
        """(n,) class of each row, where relevance means to be of the same class."""
        return None

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        kind = ("sparse" if self.is_sparse else "dense") + (", shared corpus" if self.is_shared else "")
        sizes = f"{len(self)} lists, {len(self.labels)} entries, {self.num_features} features"
        return f"RankingSet('{self.name}': {sizes}, {kind})"

    def __getitem__(self, positions: int | slice | Tensor | np.ndarray) -> Batch:
        """The lists at these positions: a slice gives views, positions gather their rows. No synchronisation."""
        if isinstance(positions, int | np.integer):
            positions = slice(*_one(int(positions), len(self)))
        if isinstance(positions, slice):
            return self._slice(*positions.indices(len(self)))
        host = self._host(positions)
        place, entries, offsets = self._places(host)
        x = self.x if self.is_shared else self.x[entries]
        index = None if self.index is None else self.index[entries]
        queries = None if self.queries is None else self.queries[place]
        return self._batch(host, x, self.labels[entries], offsets, place, index, queries)

    def _slice(self, start: int, stop: int, step: int) -> Batch:
        if step != 1:
            raise ValueError(f"lists can be sliced with step 1 only, got step {step}: use positions")
        stop = max(start, stop)
        entries = slice(int(self._bounds[start]), int(self._bounds[stop]))
        x = self.x if self.is_shared else self.x[entries]
        index = None if self.index is None else self.index[entries]
        queries = None if self.queries is None else self.queries[start:stop]
        offsets = self.offsets[start : stop + 1] - entries.start
        query = torch.arange(start, stop, device=self.device)
        return self._batch(slice(start, stop), x, self.labels[entries], offsets, query, index, queries)

    def _batch(self, host: slice | np.ndarray, x, labels, offsets, query, index, queries) -> Batch:
        longest, pairs = int(self.lengths[host].max(initial=0)), int(self.pairs[host].sum())
        return Batch(x, labels, offsets, query, index, queries, longest, pairs, self.num_grades)

    def _host(self, positions: Tensor | np.ndarray) -> np.ndarray:
        positions = positions.cpu() if isinstance(positions, Tensor) else positions
        host = np.asarray(positions)
        if host.ndim != 1 or (len(host) and host.dtype.kind not in "iu"):
            raise IndexError(f"positions must be a row of whole numbers, got {host.dtype} of shape {host.shape}")
        host = host.astype(np.int64, copy=False)
        if len(host) and (host.min() < 0 or host.max() >= len(self)):
            raise IndexError(f"positions {host.min()}..{host.max()} of a set of {len(self)} lists")
        return host

    def _places(self, host: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """On the device: positions (Q,), entries of these lists one after another (N,), their new offsets (Q + 1,)."""
        place = torch.from_numpy(host).to(self.device, non_blocking=True)
        return place, *entries_of(self.offsets, place, int(self.lengths[host].sum()))

    def subset(self, positions: Tensor | np.ndarray) -> RankingSet:
        """A new set of these lists, in this order, with their ids; a shared corpus stays shared."""
        host = self._host(positions)
        _, entries, offsets = self._places(host)
        return self.pick(host, entries, offsets, pairs=self.pairs[host])

    def pick(self, lists: np.ndarray, entries: Tensor, offsets: Tensor, pairs: np.ndarray | None = None) -> RankingSet:
        """A new set of `lists` (Q',) with these of their entries (N',), cut by new `offsets` (Q' + 1,)."""
        return RankingSet(
            self.x if self.is_shared else self.x[entries],
            self.labels[entries],
            offsets,
            index=None if self.index is None else self.index[entries],
            queries=None if self.queries is None else self.queries[torch.from_numpy(lists).to(self.device)],
            query_ids=_take(self.query_ids, lists),
            document_ids=_take(self.document_ids, entries.cpu().numpy()),
            name=self.name,
            pairs=pairs,
            num_grades=self.num_grades,
        )

    def to(self, device: torch.device | str, transform: Transform | None = None) -> RankingSet:
        """The set on a device, its rows and query vectors in float32 and sent through a fitted transform.

        The transform runs on the device in chunks of whole lists; without one, rows already there are not copied.
        """
        if transform is None or isinstance(transform, Identity):
            x, queries = self.x.to(device=device, dtype=torch.float32), self.queries
        else:
            x, queries = self._transformed(device, transform)
        return RankingSet(
            x,
            self.labels.to(device),
            self.offsets.to(device),
            index=None if self.index is None else self.index.to(device),
            queries=None if queries is None else queries.to(device=device, dtype=torch.float32),
            query_ids=self.query_ids,
            document_ids=self.document_ids,
            name=self.name,
            pairs=self.pairs,
            num_grades=self.num_grades,
        )

    @torch.no_grad()
    def _transformed(
        self, device: torch.device | str, transform: Transform
    ) -> tuple[Tensor | SparseRows, Tensor | None]:
        """Rows and query vectors after the transform; the rows are written in place, in float32."""
        transform.check_lists(shared=self.is_shared, vectors=self.has_queries)
        queries = self.queries if self.queries is None else transform(self.queries.to(device), self.offsets.to(device))
        if isinstance(self.x, SparseRows):
            return _change_values(self.x.to(device), transform), queries
        rows = torch.empty(len(self.x), transform.num_outputs, dtype=torch.float32, device=device)
        start = 0
        chunks = Chunks(self.x, None if self.is_shared else self.offsets, device, self.num_features)
        for part, _ in chunks.through(transform, transform.num_outputs):
            rows[start : start + len(part)] = part
            start += len(part)
        return rows, queries

    def outline(self) -> dict[str, int]:
        """What tells this set from others, and from itself in another order: its sizes, and a checksum of each part."""
        sizes = {"lists": len(self), "entries": int(self.lengths.sum())}
        x = [self.x.values, self.x.columns, self.x.row_offsets] if isinstance(self.x, SparseRows) else [self.x]
        parts: dict[str, list] = {
            "rows": x,
            "query vectors": [self.queries],
            "labels": [self.offsets, *self._judgements()],
        }
        return sizes | {name: _checksum(tensors) for name, tensors in parts.items()}

    def _judgements(self) -> list[Tensor | None]:
        """What the labels are made of."""
        return [self.labels.float(), self.index]

    def tiebreak(self) -> Tensor:
        """Place of each entry in its list by document id, descending (N,): trec_eval's order among equal scores.

        Ids are compared as text ("9" before "10"), as trec_eval does.
        """
        if self.document_ids is None:
            raise ValueError(f"the set '{self.name}' has no document ids to break ties by: use another convention")
        ids = np.asarray(self.document_ids)
        if missing := int((ids == "").sum()):
            raise ValueError(
                f"{missing} of {len(ids)} entries of the set '{self.name}' have no document id, so ties cannot be "
                "broken by them: give every row a comment with its id, or use another convention than trec"
            )
        codes = np.unique(ids, return_inverse=True)[1]
        lists = np.repeat(np.arange(len(self)), self.lengths)
        order = np.lexsort((-codes, lists))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - self._bounds[lists]
        return torch.from_numpy(place).to(self.device)


def _change_values(x: SparseRows, transform: Transform) -> SparseRows:
    """Sparse rows after a transform, which changes the stored values only: made block by block, in float32."""
    values, start = torch.empty(len(x.values), dtype=torch.float32, device=x.device), 0
    for _, block in x.blocks():
        rows = torch.tensor([0, len(block)], device=x.device)
        values[start : start + len(block.values)] = transform(block, rows).values
        start += len(block.values)
    return x.with_values(values)


def _checksum(tensors: list[Tensor | None]) -> int:
    """Of numbers one after another, real ones as float32, in which fits take them; -0 is 0."""
    found = 0
    for tensor in tensors:
        for _, part in parts_of(tensor):
            numbers = part.float() + 0.0 if part.is_floating_point() else part.long()
            found = zlib.crc32(numbers.cpu().contiguous().numpy(), found)  # type: ignore[arg-type]
    return found


def _one(position: int, count: int) -> tuple[int, int]:
    if not -count <= position < count:
        raise IndexError(f"position {position} of a set of {count} lists")
    return position % count, position % count + 1


def _take(ids: Ids | None, places: np.ndarray) -> Ids | None:
    if ids is None or isinstance(ids, np.ndarray):
        return None if ids is None else ids[places]
    return [ids[i] for i in places]

"""Queries or topics that all rank one corpus: the entries of a batch are made when it is asked for, not all at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch, count_grades, count_pairs
from torchrank.data.sets import Ids, RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.transforms.base import Transform
from torchrank.functional.ragged import entries_of, list_ids, per_entry, positions_within


@dataclass(frozen=True, eq=False)
class SameClass:
    """Relevance by class: an entry has label 1 where its class is that of the query, otherwise 0."""

    classes: Tensor  # (Q,) class of each query, int64
    corpus_classes: Tensor  # (n,) class of each corpus row
    class_names: tuple[str, ...]
    num_grades: int = 2

    def __len__(self) -> int:
        return len(self.classes)

    def pairs(self, lengths: np.ndarray, num_rows: int) -> np.ndarray:
        sizes = np.bincount(self.corpus_classes.numpy(), minlength=len(self.class_names))
        same = sizes[self.classes.numpy()] - (lengths < num_rows)  # a query that is a row has its own class
        return same * (lengths - same)

    def labels(self, place: Tensor, entries: Entries) -> Tensor:
        wanted = per_entry(self.classes[place], entries.offsets, len(entries.index))
        return (self.corpus_classes.index_select(0, entries.index) == wanted).float()

    def parts(self) -> list[Tensor]:
        return [self.classes, self.corpus_classes]

    def take(self, host: np.ndarray) -> SameClass:
        return replace(self, classes=self.classes[torch.from_numpy(host).to(self.classes.device)])

    def to(self, device: torch.device | str) -> SameClass:
        return replace(self, classes=self.classes.to(device), corpus_classes=self.corpus_classes.to(device))


@dataclass(frozen=True, eq=False)
class Judged:
    """Relevance by lists: the rows `rows[offsets[q]:offsets[q + 1]]` have these grades (above 0), all others have 0."""

    rows: Tensor  # (J,) corpus rows
    grades: Tensor  # (J,) float32
    offsets: Tensor  # (Q + 1,)
    counts: np.ndarray  # (Q,) judged rows of each query, on the host
    num_grades: int

    @classmethod
    def make(cls, rows: np.ndarray, grades: np.ndarray, counts: np.ndarray) -> Judged:
        offsets = np.concatenate(([0], np.cumsum(counts)))
        grades = grades.astype(np.float32)
        num_grades = count_grades(np.append(grades, np.float32(0)))
        rows_, grades_, offsets_ = map(torch.from_numpy, (rows.astype(np.int64), grades, offsets))
        return cls(rows_, grades_, offsets_, counts, num_grades)

    def __len__(self) -> int:
        return len(self.counts)

    def pairs(self, lengths: np.ndarray, num_rows: int) -> np.ndarray:
        among = count_pairs(self.grades.numpy(), self.offsets.numpy(), self.num_grades)
        return among + self.counts * (lengths - self.counts)

    def labels(self, place: Tensor, entries: Entries) -> Tensor:
        judged, offsets = entries_of(self.offsets, place, int(self.counts[entries.host].sum()))
        lists, rows = list_ids(offsets, len(judged)), self.rows[judged]
        labels = self.grades.new_zeros(len(entries.index))  # whatever the default dtype is (precision=64-true)
        labels[entries.offsets[lists] + rows - (rows > entries.own[lists]).long()] = self.grades[judged]
        return labels

    def parts(self) -> list[Tensor]:
        return [self.offsets, self.rows, self.grades]

    def take(self, host: np.ndarray) -> Judged:
        judged, _ = entries_of(self.offsets.cpu(), torch.from_numpy(host))
        rows, grades = self.rows.cpu()[judged].numpy(), self.grades.cpu()[judged].numpy()
        return replace(Judged.make(rows, grades, self.counts[host]), num_grades=self.num_grades).to(self.rows.device)

    def to(self, device: torch.device | str) -> Judged:
        rows, grades, offsets = (part.to(device) for part in (self.rows, self.grades, self.offsets))
        return replace(self, rows=rows, grades=grades, offsets=offsets)


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of some lists: made by `CorpusSet`, labelled by its relevance."""

    host: np.ndarray  # (Q,) positions on the host
    offsets: Tensor  # (Q + 1,)
    index: Tensor  # (N,) corpus row of each entry
    own: Tensor  # (Q,) the query's own corpus row, n without one


class CorpusSet(RankingSet):
    """A RankingSet whose lists hold every corpus row but the query's own.

    IsoLet's 6,238 training points are 39 million entries: `index` and `labels` would take 470 MB. Here they are made
    for the lists of a batch. The properties `index` and `labels` make them all; use them on small sets only.
    `queries=None`: the lists have no vector, as the topics of a text collection, each with a model of its own.

    >>> relevance = SameClass(torch.tensor([0, 1, 0]), torch.tensor([0, 1, 0]), ("a", "b"))
    >>> batch = CorpusSet(torch.eye(3), torch.eye(3), relevance, own=torch.arange(3))[1:]
    >>> batch.index, batch.labels, batch.offsets
    (tensor([0, 2, 0, 1]), tensor([0., 0., 1., 0.]), tensor([0, 2, 4]))
    """

    def __init__(
        self,
        x: Tensor | SparseRows,
        queries: Tensor | None,
        relevance: SameClass | Judged,
        *,
        own: Tensor | None = None,
        query_ids: Ids | None = None,
        corpus_ids: Ids | None = None,
        name: str = "",
        pairs: np.ndarray | None = None,
    ):
        """`own` (Q,) is the corpus row that a query is and does not rank; len(x), the default, where it is none."""
        if queries is not None and (queries.dim() != 2 or queries.shape[1] != x.shape[1]):
            raise ValueError(f"query vectors {tuple(queries.shape)} do not fit a corpus {tuple(x.shape)} in '{name}'")
        for what, part in (("query vectors", queries), ("query ids", query_ids), ("own rows", own)):
            if part is not None and len(part) != len(relevance):
                raise ValueError(f"{len(part)} {what} for the relevance of {len(relevance)} queries in '{name}'")
        self.x, self.queries, self.relevance = x, queries, relevance
        self.own = torch.full((len(relevance),), len(x), device=x.device) if own is None else own
        self.query_ids, self.document_ids, self.corpus_ids, self.name = query_ids, None, corpus_ids, name
        self.lengths = len(x) - (self.own < len(x)).cpu().numpy().astype(np.int64)
        self._bounds = np.concatenate(([0], np.cumsum(self.lengths)))
        self.offsets = torch.from_numpy(self._bounds).to(x.device)
        self.pairs = relevance.pairs(self.lengths, len(x)) if pairs is None else pairs
        self.num_grades = relevance.num_grades

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        """(N,) labels of all entries, made anew at each call."""
        return self[:].labels

    @property
    def index(self) -> Tensor | None:  # type: ignore[override]
        """(N,) corpus rows of all entries, made anew at each call."""
        return self[:].index

    def _judgements(self) -> list[Tensor | None]:
        return [self.own, *self.relevance.parts()]

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def classes(self) -> Tensor | None:
        return self.relevance.classes if isinstance(self.relevance, SameClass) else None

    @property
    def corpus_classes(self) -> Tensor | None:
        return self.relevance.corpus_classes if isinstance(self.relevance, SameClass) else None

    @property
    def device(self) -> torch.device:
        return self.x.device

    def __repr__(self) -> str:
        return f"CorpusSet('{self.name}': {len(self)} queries, {len(self.x)} rows, D={self.num_features})"

    def __getitem__(self, positions: int | slice | Tensor | np.ndarray) -> Batch:
        """The lists at these positions, their entries in the order of the corpus. No synchronisation."""
        if isinstance(positions, int | np.integer):
            positions = np.array([range(len(self))[positions]])
        host = np.arange(len(self))[positions] if isinstance(positions, slice) else self._host(positions)
        bounds = np.concatenate(([0], np.cumsum(self.lengths[host])))
        place, offsets = (torch.from_numpy(array).to(self.device, non_blocking=True) for array in (host, bounds))
        entries = self._entries(host, place, offsets, int(bounds[-1]))
        labels, queries = self.relevance.labels(place, entries), self._vectors(place)
        return self._batch(host, self.x, labels, offsets, place, entries.index, queries)

    def _vectors(self, place: Tensor) -> Tensor | None:
        return None if self.queries is None else self.queries[place]

    def _entries(self, host: np.ndarray, place: Tensor, offsets: Tensor, count: int) -> Entries:
        index, own = positions_within(offsets, count), self.own[place]
        index += index >= per_entry(own, offsets, count)  # step over the query's own row
        return Entries(host, offsets, index, own)

    def subset(self, positions: Tensor | np.ndarray) -> CorpusSet:
        """A new set of these queries on the same corpus."""
        host = self._host(positions)
        place = torch.from_numpy(host).to(self.device)
        ids = None if self.query_ids is None else np.asarray(self.query_ids)[host]
        return CorpusSet(
            self.x,
            self._vectors(place),
            self.relevance.take(host),
            own=self.own[place],
            query_ids=ids,
            corpus_ids=self.corpus_ids,
            name=self.name,
            pairs=self.pairs[host],
        )

    def to(self, device: torch.device | str, transform: Transform | None = None) -> CorpusSet:
        """The set on a device in float32, corpus and query vectors sent through a fitted transform."""
        x, queries = _moved(self.x, device, transform, self.name), self.queries
        if queries is not None:
            queries = x if queries is self.x else _moved(queries, device, transform, self.name)
        return CorpusSet(
            x,
            queries,
            self.relevance.to(device),
            own=self.own.to(device),
            query_ids=self.query_ids,
            corpus_ids=self.corpus_ids,
            name=self.name,
            pairs=self.pairs,
        )

    def tiebreak(self) -> Tensor:
        """Place of each entry's corpus id in descending order (N,): smaller goes first among equal scores."""
        if self.corpus_ids is None:
            raise ValueError(f"the set '{self.name}' has no document ids to break ties by: use another convention")
        codes = np.unique(np.asarray(self.corpus_ids), return_inverse=True)[1]
        return torch.from_numpy(codes.max(initial=0) - codes).to(self.device)[self.index]


def _moved(rows: Any, device: torch.device | str, transform: Transform | None, name: str) -> Any:
    """Rows through RankingSet's own transform in chunks: a set of no lists over a shared corpus."""
    none, offsets = torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return RankingSet(rows, none.float(), offsets, index=none, name=name, num_grades=0).to(device, transform).x

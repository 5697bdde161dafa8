"""Which entries the lists of a set have and how relevant they are: given one by one, by class, or by judgements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import count_pairs, grades_of
from torchrank.errors import DataError
from torchrank.functional.ragged import entries_of, list_ids, per_entry, positions_within

Positions = slice | np.ndarray  # of lists, on the host; a slice has step 1


@dataclass(frozen=True)
class Entries:
    """The entries of some lists."""

    labels: Tensor  # (N,)
    offsets: Tensor  # (Q + 1,)
    index: Tensor | None  # (N,) row of each entry in the shared corpus; None: every entry has a row of its own
    rows: Any = None  # the rows of the entries if they are not shared: a slice or positions


class Relevance(ABC):
    """What a `RankingSet` knows about its lists beyond their rows: their entries, and the labels of these.

    Attributes:
        shared: whether the lists share the rows of one corpus.
        num_grades: K where the labels are the integers 0..K-1; 0 where they are real-valued.
        lengths: (Q,) entries of each list, on the host.
        pairs: (Q,) pairs of entries with different labels in each list, on the host.

    Example:
        >>> relevance: Relevance = Explicit(torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]))
        >>> relevance.shared, relevance.lengths, relevance.bounds
        (False, array([2, 1]), array([0, 2, 3]))
    """

    shared: bool
    num_grades: int
    lengths: np.ndarray
    pairs: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def bounds(self) -> np.ndarray:
        """(Q + 1,) the offsets on the host."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @property
    @abstractmethod
    def offsets(self) -> Tensor:
        """(Q + 1,) where each list begins and ends."""

    @abstractmethod
    def entries(self, positions: Positions, place: Tensor) -> Entries:
        """The entries of the lists at these positions; `place` holds these on the device. Never synchronises."""

    @abstractmethod
    def take(self, positions: np.ndarray) -> Relevance:
        """The relevance of these lists alone."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Relevance:
        """The same relevance on a device."""

    @abstractmethod
    def parts(self) -> list[Tensor | None]:
        """The tensors that define it, for checksums."""

    def _counted(self, source: Relevance, positions: Positions = slice(None)) -> Self:
        """This relevance, with the counts of the lists taken from another one, so that no device is asked for them."""
        self.lengths, self.pairs = source.lengths[positions], source.pairs[positions]
        return self


class Explicit(Relevance):
    """A label for every entry. Entries have rows of their own or, with `index`, rows of a shared corpus.

    Args:
        labels: (N,) relevance of each entry.
        offsets: (Q + 1,) where each list begins and ends.
        index: (N,) the corpus row of each entry, where the lists share a corpus.
        pairs: (Q,) pairs with different labels in each list; counted on first use unless given.
        num_grades: K where the labels are the integers 0..K-1, 0 otherwise; counted on first use unless given.

    Example:
        >>> relevance = Explicit(torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]))
        >>> len(relevance), relevance.num_grades, relevance.pairs
        (2, 3, array([1, 0]))
    """

    def __init__(
        self,
        labels: Tensor,
        offsets: Tensor,
        index: Tensor | None = None,
        *,
        pairs: np.ndarray | None = None,
        num_grades: int | None = None,
    ):
        self.labels, self.index, self._offsets = labels, index, offsets
        self.bounds = offsets.cpu().numpy().copy()  # a copy, since torch may move the original to shared memory
        self.lengths = np.diff(self.bounds)
        self.shared = index is not None
        if pairs is not None:
            self.pairs = pairs
        if num_grades is not None:
            self.num_grades = num_grades

    @cached_property
    def num_grades(self) -> int:  # type: ignore[override]
        return grades_of(self.labels)

    @cached_property
    def pairs(self) -> np.ndarray:  # type: ignore[override]
        return count_pairs(self.labels.cpu().numpy(), self.bounds, self.num_grades)

    @property
    def offsets(self) -> Tensor:
        return self._offsets

    def entries(self, positions: Positions, place: Tensor) -> Entries:
        rows: slice | Tensor
        if isinstance(positions, slice):
            rows = slice(int(self.bounds[positions.start]), int(self.bounds[positions.stop]))
            offsets = self._offsets[positions.start : positions.stop + 1] - rows.start
        else:
            rows, offsets = entries_of(self._offsets, place, int(self.lengths[positions].sum()))
        return Entries(self.labels[rows], offsets, None if self.index is None else self.index[rows], rows)

    def take(self, positions: np.ndarray) -> Explicit:
        found = self.entries(positions, torch.from_numpy(positions).to(self.labels.device))
        pairs, num_grades = self.pairs[positions], self.num_grades
        return Explicit(found.labels, found.offsets, found.index, pairs=pairs, num_grades=num_grades)

    def to(self, device: torch.device | str) -> Explicit:
        index = None if self.index is None else self.index.to(device)
        labels, offsets = self.labels.to(device), self._offsets.to(device)
        return Explicit(labels, offsets, index, pairs=self.pairs, num_grades=self.num_grades)

    def parts(self) -> list[Tensor | None]:
        return [self._offsets, self.labels.float(), self.index]


class WholeCorpus(Relevance):
    """Every list holds the whole corpus, except the row that is its query itself.

    The 6,238 training points of IsoLet have 39 million entries: labels and index would take 470 MB. So they are made
    for the lists of one batch at a time. `own` (Q,) is the corpus row of each query itself; `num_rows` if it has none.
    """

    shared = True
    own: Tensor
    num_rows: int

    @cached_property
    def lengths(self) -> np.ndarray:  # type: ignore[override]
        return self.num_rows - (self.own < self.num_rows).cpu().numpy().astype(np.int64)

    @cached_property
    def offsets(self) -> Tensor:
        return torch.from_numpy(self.bounds).to(self.own.device)

    def entries(self, positions: Positions, place: Tensor) -> Entries:
        """The entries are in the order of the corpus."""
        bounds = np.concatenate(([0], np.cumsum(self.lengths[positions])))
        offsets, count = torch.from_numpy(bounds).to(self.own.device, non_blocking=True), int(bounds[-1])
        index, own = positions_within(offsets, count), self.own[place]
        index += index >= per_entry(own, offsets, count)  # skip the row of the query itself
        return Entries(self._labels(positions, place, offsets, index), offsets, index)

    @abstractmethod
    def _labels(self, positions: Positions, place: Tensor, offsets: Tensor, index: Tensor) -> Tensor:
        """The label of each entry (N,)."""

    def _set_own(self, num_lists: int, device: torch.device) -> None:
        """Check `own`; None becomes `num_rows` for every list."""
        if self.own is None:
            self.own = torch.full((num_lists,), self.num_rows, device=device)
        if self.own.shape != (num_lists,) or self.own.dtype != torch.int64:
            found = f"{self.own.dtype} {tuple(self.own.shape)}"
            raise DataError(f"own must hold the corpus row of each of {num_lists} queries as int64, got {found}")


@dataclass(eq=False)
class SameClass(WholeCorpus):
    """A corpus row is relevant (label 1) to the queries of its class, and irrelevant (0) to all others.

    Args:
        classes: (Q,) the class of each query, int64.
        corpus_classes: (n,) the class of each corpus row, int64.
        class_names: the names of the classes 0, 1, ...
        own: (Q,) the corpus row that is the query itself and not in its list, n if there is none; None: for no query.
        num_grades: the number of different labels, always 2: relevant or not.

    Example:
        >>> relevance = SameClass(torch.tensor([0, 1]), torch.tensor([0, 1, 0]), ("a", "b"))
        >>> relevance.entries(slice(0, 1), torch.tensor([0])).labels
        tensor([1., 0., 1.])
    """

    classes: Tensor
    corpus_classes: Tensor
    class_names: tuple[str, ...]
    own: Any = None
    num_grades: int = 2

    def __post_init__(self) -> None:
        self.num_rows = len(self.corpus_classes)
        self._set_own(len(self.classes), self.classes.device)

    @cached_property
    def pairs(self) -> np.ndarray:  # type: ignore[override]
        corpus, classes, own = (part.cpu().numpy() for part in (self.corpus_classes, self.classes, self.own))
        sizes = np.bincount(corpus, minlength=len(self.class_names))
        same = sizes[classes] - (np.append(corpus, -1)[own] == classes)  # without the query itself
        pairs: np.ndarray = same * (self.lengths - same)
        return pairs

    def _labels(self, positions: Positions, place: Tensor, offsets: Tensor, index: Tensor) -> Tensor:
        wanted = per_entry(self.classes[place], offsets, len(index))
        return (self.corpus_classes.index_select(0, index) == wanted).float()

    def take(self, positions: np.ndarray) -> SameClass:
        place = torch.from_numpy(positions).to(self.own.device)
        return replace(self, classes=self.classes[place], own=self.own[place])._counted(self, positions)

    def to(self, device: torch.device | str) -> SameClass:
        classes, corpus_classes, own = (part.to(device) for part in (self.classes, self.corpus_classes, self.own))
        return replace(self, classes=classes, corpus_classes=corpus_classes, own=own)._counted(self)

    def parts(self) -> list[Tensor | None]:
        return [self.own, self.classes, self.corpus_classes]


@dataclass(eq=False)
class Judged(WholeCorpus):
    """Some corpus rows are judged for a query; all other rows have grade 0. `Judged.make` builds it.

    Args:
        rows: (J,) the corpus rows that are judged, query by query.
        grades: (J,) their grades, float32, 0 or more.
        counts: (Q,) judged rows of each query, on the host.
        num_rows: rows of the corpus, n.
        own: (Q,) the corpus row that is the query itself and not in its list, n if there is none; None: for no query.
        num_grades: K where the grades are integers of 0..K-1, 0 otherwise; -1: counted.

    Example:
        >>> rows, grades = torch.tensor([2, 0]), torch.tensor([1.0, 3.0])
        >>> relevance = Judged(rows, grades, np.array([1, 1]), num_rows=3)
        >>> relevance.num_grades, relevance.entries(slice(1, 2), torch.tensor([1])).labels
        (4, tensor([3., 0., 0.]))
    """

    rows: Tensor
    grades: Tensor
    counts: np.ndarray
    num_rows: int
    own: Any = None
    num_grades: int = -1

    def __post_init__(self) -> None:
        self._set_own(len(self.counts), self.rows.device)
        self._judgements = np.concatenate(([0], np.cumsum(self.counts)))
        if self.num_grades < 0:
            self.num_grades = grades_of(torch.cat((self.grades, self.grades.new_zeros(1))))

    @classmethod
    def make(
        cls, rows: np.ndarray, grades: np.ndarray, counts: np.ndarray, num_rows: int, own: Tensor | None = None
    ) -> Judged:
        """The relevance from arrays of judgements, which are checked.

        Args:
            rows: (J,) the corpus rows that are judged, those of query 0 first, then those of query 1, ...
            grades: (J,) their grades, 0 or more.
            counts: (Q,) judged rows of each query.
            num_rows: rows of the corpus, n.
            own: (Q,) the corpus row that is the query itself and not in its list, n if there is none.

        Returns:
            The relevance of Q lists that all hold the whole corpus.

        Example:
            >>> relevance = Judged.make(np.array([2, 0]), np.array([1, 3]), np.array([1, 1]), num_rows=3)
            >>> relevance.entries(slice(0, 2), torch.tensor([0, 1])).labels
            tensor([0., 0., 1., 3., 0., 0.])
        """
        rows, counts = np.asarray(rows).astype(np.int64), np.asarray(counts, dtype=np.int64)
        grades = np.asarray(grades).astype(np.float32)
        made = cls(torch.from_numpy(rows), torch.from_numpy(grades), counts, num_rows, own)
        made._check(rows, grades)
        return made

    def _check(self, rows: np.ndarray, grades: np.ndarray) -> None:
        if rows.shape != grades.shape or rows.shape != (int(self.counts.sum()),):
            found = f"rows {rows.shape}, grades {grades.shape} and counts that sum to {self.counts.sum()}"
            raise DataError(f"every judgement needs a row and a grade, got {found}")
        query = np.repeat(np.arange(len(self.counts)), self.counts)
        keys = query * self.num_rows + rows
        again = np.zeros(len(keys), dtype=bool)
        if (np.diff(keys) <= 0).any():  # sorted rows, which are the rule, need no second look
            again[:] = True
            again[np.unique(keys, return_index=True)[1]] = False
        for wrong, reason in (
            ((rows < 0) | (rows >= self.num_rows), f"the corpus has rows 0..{self.num_rows - 1}"),
            (~(grades >= 0), "grades must be 0 or more, as rows without a judgement have grade 0"),
            (rows == self.own.cpu().numpy()[query], "a query cannot be judged for itself (own)"),
            (again, "it is judged twice"),
        ):
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                raise DataError(f"row {rows[place]} with grade {grades[place]:g} for query {query[place]}: {reason}")

    @cached_property
    def judgements(self) -> Tensor:
        """(Q + 1,) where the judgements of each query begin and end."""
        return torch.from_numpy(self._judgements).to(self.rows.device)

    @cached_property
    def pairs(self) -> np.ndarray:  # type: ignore[override]
        grades = self.grades.cpu().numpy()
        above = np.diff(np.concatenate(([0], np.cumsum(grades > 0)))[self._judgements])
        among = count_pairs(grades, self._judgements, self.num_grades)
        pairs: np.ndarray = among + above * (self.lengths - self.counts)
        return pairs

    def _labels(self, positions: Positions, place: Tensor, offsets: Tensor, index: Tensor) -> Tensor:
        judged, bounds = entries_of(self.judgements, place, int(self.counts[positions].sum()))
        lists, rows = list_ids(bounds, len(judged)), self.rows[judged]
        labels = self.grades.new_zeros(len(index))  # whatever the default dtype is (precision=64-true)
        labels[offsets[lists] + rows - (rows > self.own[place][lists]).long()] = self.grades[judged]
        return labels

    def take(self, positions: np.ndarray) -> Judged:
        place = torch.from_numpy(positions).to(self.own.device)
        judged, _ = entries_of(self.judgements, place, int(self.counts[positions].sum()))
        rows, grades, counts = self.rows[judged], self.grades[judged], self.counts[positions]
        return replace(self, rows=rows, grades=grades, counts=counts, own=self.own[place])._counted(self, positions)

    def to(self, device: torch.device | str) -> Judged:
        rows, grades, own = (part.to(device) for part in (self.rows, self.grades, self.own))
        return replace(self, rows=rows, grades=grades, own=own)._counted(self)

    def parts(self) -> list[Tensor | None]:
        return [self.own, self.judgements, self.rows, self.grades]

"""One batch type for every kind of ranking data: own rows, a shared corpus, query vectors, dense or sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.sparse import SparseRows
from torchrank.data.weights import at
from torchrank.errors import DataError
from torchrank.functional.lists import Lists, count_grades
from torchrank.functional.lists import count_pairs as count_pairs
from torchrank.functional.ragged import entries_of


class Batch(NamedTuple):
    """Some lists, laid end to end: the entries of list q are `offsets[q]:offsets[q + 1]`.

    `RankingSet` and `make_batch` make them. The three integers are counted on the host when a batch is made, so that
    nothing has to synchronise with the device later.

    Args:
        x: (n, D) features, one row per entry; or the rows of a corpus that the lists share.
        labels: (N,) relevance of each entry.
        offsets: (Q + 1,) where each list begins and ends.
        query: (Q,) the position of each list in the set that the batch comes from.
        index: (N,) the corpus row of each entry; None: entry i is row i.
        queries: (Q, D) query vectors, where the data has them.
        max_length: entries of the longest list.
        num_pairs: pairs within a list with labels[i] > labels[j], summed over the lists.
        num_grades: K where the labels are the integers 0..K-1; 0 where they are real-valued (functions then sort).
        weights: (N,) importance of each entry, where the data has it.
        positions: (N,) where each document was shown, from 0, where the data has it.
        ranked: whether entries are to be ranked among all rows of the corpus, not to be scored (`RankingSet.judged`).
        order: (n,) the rows of such a corpus in the order in which equal scores rank; None: as they are.

    Example:
        >>> batch = make_batch(torch.eye(3), torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]))
        >>> batch.num_lists, batch.max_length, batch.num_pairs, batch.num_grades
        (2, 2, 1, 3)
    """

    x: Tensor | SparseRows
    labels: Tensor
    offsets: Tensor
    query: Tensor
    index: Tensor | None  # type: ignore[assignment]
    queries: Tensor | None
    max_length: int
    num_pairs: int
    num_grades: int
    weights: Tensor | None = None
    positions: Tensor | None = None
    ranked: bool = False
    order: Tensor | None = None

    @property
    def num_lists(self) -> int:
        """The number of lists, Q."""
        return len(self.offsets) - 1

    @property
    def lists(self) -> Lists:
        """The lists and all that is known of them, so that no function has to wait for a device."""
        longest, grades = self.max_length, self.num_grades
        return Lists(self.offsets, len(self.labels), longest=longest, grades=grades, pairs=self.num_pairs)

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.labels.device

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self._moved(lambda part: part.to(device))

    def streamed_to(self, device: torch.device | str) -> Batch:
        """The same batch on another device; CUDA devices copy it from pinned memory, so that nobody waits."""
        if torch.device(device).type != "cuda" or self.offsets.device.type != "cpu":
            return self.to(device)
        return self._moved(lambda part: part.pin_memory().to(device, non_blocking=True))

    def _moved(self, move: Callable[[Any], Any]) -> Batch:
        parts: list[Any] = [move(part) if isinstance(part, Tensor | SparseRows) else part for part in self]
        return Batch(*parts)

    def take(self, lists: Tensor) -> tuple[Batch, Tensor]:
        """A batch of these lists alone, and the places of its entries in this batch. Reads the labels on the host."""
        entries, offsets = entries_of(self.offsets, lists)
        index = None if self.index is None else self.index[entries]
        part = make_batch(
            self.x[entries] if index is None else self.x,
            self.labels[entries],
            offsets,
            query=self.query[lists],
            index=index,
            queries=None if self.queries is None else self.queries[lists],
            num_grades=self.num_grades,
            weights=at(self.weights, entries),
            positions=at(self.positions, entries),
        )
        return part, entries

    def flat(self) -> Batch:
        """The same batch with a row for every entry (copies of the shared rows), so that `index` is None."""
        return self if self.index is None else self._replace(x=self.x[self.index], index=None)

    @property
    def dense(self) -> Tensor:
        """(N, D) the row of each entry; sparse rows are refused."""
        rows = self.flat().x
        if isinstance(rows, SparseRows):
            raise DataError("the rows are sparse: set data.sparse=false, or call dense() on them first")
        return rows

    def at_entries(self, values: Tensor) -> Tensor:
        """The values (N, ...) at the entries, given those of the rows (n, ...)."""
        return values if self.index is None else values[self.index]


def make_batch(
    x: Tensor | SparseRows,
    labels: Tensor,
    offsets: Tensor,
    *,
    query: Tensor | None = None,
    index: Tensor | None = None,
    queries: Tensor | None = None,
    num_grades: int | None = None,
    weights: Tensor | None = None,
    positions: Tensor | None = None,
) -> Batch:
    """Check that the parts of a batch fit together, and count its three integers. Reads the labels on the host.

    Args:
        x: (n, D) features, one row per entry; or the rows of a corpus that the lists share.
        labels: (N,) relevance of each entry.
        offsets: (Q + 1,) where each list begins and ends.
        query: (Q,) the position of each list in its set; by default 0..Q-1.
        index: (N,) the corpus row of each entry, where the lists share a corpus.
        queries: (Q, D) query vectors.
        num_grades: that of the whole set; by default the labels of this batch decide.
        weights: (N,) importance of each entry.
        positions: (N,) where each document was shown, from 0.

    Returns:
        The batch. Parts that do not fit together raise a `DataError`.

    Example:
        >>> make_batch(torch.eye(2), torch.tensor([0., 1.]), torch.tensor([0, 3]))
        Traceback (most recent call last):
        torchrank.errors.DataError: offsets end at 3 but there are 2 entries
    """
    check_lists(x, labels, offsets, index=index, queries=queries)
    if query is None:
        query = torch.arange(len(offsets) - 1, device=labels.device)
    if len(query) != len(offsets) - 1:
        raise DataError(f"query has {len(query)} positions for {len(offsets) - 1} lists")
    grades, bounds = labels.detach().cpu().numpy(), offsets.cpu().numpy()
    num_grades = grades_of(labels) if num_grades is None else num_grades
    pairs = int(count_pairs(grades, bounds, num_grades).sum())
    for what, values in (("weights", weights), ("positions", positions)):
        if values is not None and values.shape != labels.shape:
            raise DataError(f"{what} {tuple(values.shape)} for {len(labels)} entries: give one number for each (N,)")
    sizes = int(np.diff(bounds).max(initial=0)), pairs, num_grades
    return Batch(x, labels, offsets, query, index, queries, *sizes, weights, positions)


def unlabelled(
    x: Tensor | SparseRows,
    offsets: Tensor,
    *,
    index: Tensor | None = None,
    queries: Tensor | None = None,
    query: Tensor | None = None,
) -> Batch:
    """A batch of lists without known labels: all are 0. Rows of integers become float64."""
    x, offsets, index, query = as_floats(x), as_places(offsets), as_places(index), as_places(query)
    labels = torch.zeros(len(x) if index is None else len(index), device=offsets.device)
    check_lists(x, labels, offsets, index=index, queries=queries)
    lengths = offsets.diff()
    if query is None:
        query = torch.arange(len(lengths), device=offsets.device)
    if query.dtype != torch.int64 or query.shape != lengths.shape:
        found = f"{query.dtype} {tuple(query.shape)}"
        raise DataError(f"query must hold the integer position of each of {len(lengths)} lists, got {found}")
    queries = None if queries is None else queries.to(x.dtype)
    return Batch(x, labels, offsets, query, index, queries, int(lengths.max()) if len(lengths) else 0, 0, 1)


def as_floats(x: Any) -> Any:
    """Rows as floating-point numbers, dense or sparse; integers become float64, which holds large ones exactly."""
    return x if x.dtype.is_floating_point else x.to(dtype=torch.float64)


def as_places(numbers: Any) -> Any:
    """Integers of any width as int64; None and other types are returned as they are, for a later check to refuse."""
    wrong = numbers is None or numbers.dtype == torch.bool or numbers.dtype.is_floating_point
    return numbers if wrong else numbers.long()


def check_lists(
    x: Tensor | SparseRows, labels: Tensor, offsets: Tensor, *, index: Tensor | None, queries: Tensor | None
) -> None:
    """Raise a `DataError` with the numbers if the parts do not fit together."""
    if len(x.shape) != 2 or labels.dim() != 1 or offsets.dim() != 1 or offsets.dtype != torch.int64:
        shapes = f"x {tuple(x.shape)}, labels {tuple(labels.shape)}, offsets {tuple(offsets.shape)} {offsets.dtype}"
        raise DataError(f"expected x (n, D), labels (N,) and int64 offsets (Q + 1,), got {shapes}")
    if index is None and len(x) != len(labels):
        raise DataError(f"{len(x)} rows for {len(labels)} entries: pass index=(N,) if the lists share a corpus")
    if index is not None and (index.shape != labels.shape or index.dtype not in (torch.int64, torch.int32)):
        found = f"{index.dtype} {tuple(index.shape)}"
        raise DataError(f"index must hold the integer row of each of {len(labels)} entries (N,), got {found}")
    numbers = [offsets[:1], offsets[-1:], (offsets.diff() < 0).any()[None].long()]
    numbers += [torch.stack(index.aminmax())] if index is not None and len(index) else []
    first, last, falls, *rows = torch.cat(numbers).tolist() if len(offsets) else (-1, -1, 0)  # read once
    if first != 0 or falls:
        raise DataError("offsets must start at 0 and never decrease: [0] for no list, [0, 2, 5] for lists of 2 and 3")
    if last != len(labels):
        raise DataError(f"offsets end at {last} but there are {len(labels)} entries")
    if rows and (rows[0] < 0 or rows[1] >= len(x)):
        raise DataError(f"index runs over {rows[0]}..{rows[1]} but the corpus has {len(x)} rows")
    if queries is not None and queries.shape != (len(offsets) - 1, x.shape[1]):
        shape = (len(offsets) - 1, x.shape[1])
        raise DataError(f"query vectors {tuple(queries.shape)} for lists and features {shape}")


def grades_of(labels: Tensor) -> int:
    """K where the labels are integers of 0..K-1, otherwise 0. Labels that are not finite are refused.

    Example:
        >>> grades_of(torch.tensor([0.0, 4.0, 1.0])), grades_of(torch.tensor([0.5, 1.0]))
        (5, 0)
    """
    labels = labels.detach().cpu()
    labels = labels.long() if labels.dtype == torch.bool else labels
    if not labels.isfinite().all():
        entry = int((~labels.isfinite()).nonzero()[0])
        raise DataError(f"label {labels[entry].item()} of entry {entry}: labels must be finite numbers")
    return count_grades(labels)

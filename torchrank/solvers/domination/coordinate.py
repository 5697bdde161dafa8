"""Coordinate descent on the domination loss of linear scores (Stevens 2010): a step reads one column of the features.

A step reads a column, computes its gradient from the current scores, moves the weight, and updates the scores. The
lists come in two forms: `DenseLists` recomputes the slopes of all scores, `SparseLists` touches only the documents in
which the feature occurs and the dominating documents of their lists.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.domination import slopes_by_scores
from torchrank.functional.ragged import per_entry, segment_sum
from torchrank.solvers.domination.penalty import Penalty
from torchrank.solvers.domination.sparse_lists import Margins, SparseLists
from torchrank.solvers.linear.many import Reduce
from torchrank.solvers.linear.scores import entry_scores

COLUMNS = 8  # of dense rows are read together, which takes hardly longer than one: they share the lines of the cache


class Columns(Protocol):
    """Lists that keep their scores up to date while weights move, column by column: `DenseLists` or `SparseLists`."""

    def refresh(self, weight: Tensor) -> None:
        """Compute the scores for these weights (T, D), without the rounding errors of the steps that led to them."""

    def read(self, part: slice) -> Any:
        """The columns of the features `part`, for `gradient` and `move`."""

    def gradient(self, column: Any) -> Tensor:
        """Slopes (T, B) of the loss along the weights of these columns."""
        ...

    def move(self, column: Any, steps: Tensor) -> None:
        """Update the scores after the weights of these columns have moved by `steps` (T, B)."""


# ---- steps ------------------------------------------------------------------------------------------------------


def coordinate_sweep(
    lists: Columns,
    weight: Tensor,
    penalty: Penalty,
    steepness: Tensor,
    firsts: Iterable[int],
    *,
    block: int = 1,
    reduce: Reduce = torch.clone,
) -> Tensor:
    """Weights (T, D) after one step on each block of features first..first+block-1, in the order of `firsts`.

    `steepness (T, D)` bounds the curvature for features that move together (`add_curvature`), so that no step raises an
    objective; where it is 0, weights of 0 stay 0. `reduce` sums over processes.

    >>> from torchrank.data.batch import make_batch
    >>> batch = make_batch(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]), torch.tensor([0, 2]))
    >>> lists = DenseLists([batch], [None])
    >>> start, steepness = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 0.25, dtype=torch.float64)
    >>> coordinate_sweep(lists, start, Penalty(0.1, 0.0), steepness, [0])
    tensor([[1.6000]], dtype=torch.float64)
    """
    weight = weight.clone()
    lists.refresh(weight)
    for first in firsts:
        part = slice(first, min(first + block, weight.shape[1]))
        coordinate_step(lists, weight, part, penalty, steepness[:, part], reduce)
    return weight


def coordinate_step(
    lists: Columns, weight: Tensor, part: slice, penalty: Penalty, steepness: Tensor, reduce: Reduce = torch.clone
) -> None:
    """Move the weights of the features `part` to the minimiser of their quadratic bound, and the scores, in place."""
    column = lists.read(part)
    before = weight[:, part]
    gradient = torch.where(steepness > 0, reduce(lists.gradient(column)), 0.0)  # no slope: only rounding
    after = penalty.prox(before, gradient, steepness)
    steps = after - before
    if steps.any():
        lists.move(column, steps)
        weight[:, part] = after


def useful_blocks(weight: Tensor, steepness: Tensor, block: int = 1) -> list[int]:
    """First features of the blocks that can move: those with a slope or a non-zero weight.

    >>> useful_blocks(torch.zeros(1, 5), torch.tensor([[0.0, 0.0, 1.0, 0.0, 2.0]]), block=2)
    [2, 4]
    """
    moves = ((steepness > 0) | (weight != 0)).any(0)
    useful = pad(moves, (0, -len(moves) % block)).view(-1, block).any(1).nonzero().flatten()
    return (useful * block).tolist()


def coordinate_lists(batches: list[Batch], margins: Margins, topics: int | None = None) -> Columns:
    """The lists in the form that suits their rows, for one model or for one per topic. `margins` has those of
    `domination_loss` for each batch. Call `refresh` before the first step."""
    sparse = isinstance(batches[0].x, SparseRows)
    return SparseLists(batches, margins, topics) if sparse else DenseLists(batches, margins, topics)


# ---- dense rows -------------------------------------------------------------------------------------------------


class DenseLists:
    """Lists of dense rows: a step computes the slopes of all scores in O(N), but only if a score has changed."""

    def __init__(self, batches: list[Batch], margins: Margins, topics: int | None = None):
        self.batches = batches
        self.per_topic, self.num_models = topics is not None, topics or 1
        self._near, self._columns = slice(0, 0), list[Tensor]()
        self._slopes_of = [self._of(batch, margin) for batch, margin in zip(batches, margins, strict=True)]

    def refresh(self, weight: Tensor) -> None:
        self.scores = [entry_scores(batch, weight, self.per_topic) for batch in self.batches]
        self._slopes: list[Tensor] | None = None

    def read(self, part: slice) -> list[Tensor]:
        """Columns (N, B) of the entries of each batch."""
        if not self._near.start <= part.start < part.stop <= self._near.stop:
            self._near = slice(part.start, max(part.stop, part.start + COLUMNS))
            rows: list[Any] = [batch.x for batch in self.batches]
            self._columns = [x[:, self._near].contiguous() for x in rows]
        wanted = slice(part.start - self._near.start, part.stop - self._near.start)
        pairs = zip((columns[:, wanted].double() for columns in self._columns), self.batches, strict=True)
        return [batch.at_entries(column) for column, batch in pairs]

    def gradient(self, columns: list[Tensor]) -> Tensor:
        """Slopes (T, B) of the loss along the weights of these columns."""
        if self._slopes is None:
            self._slopes = [of(scores) for of, scores in zip(self._slopes_of, self.scores, strict=True)]
        total = columns[0].new_zeros(self.num_models, columns[0].shape[1])
        for batch, column, slopes in zip(self.batches, columns, self._slopes, strict=True):
            if self.per_topic:
                total[batch.query] += segment_sum(column * slopes[:, None], batch.offsets)
            else:
                total[0] += slopes @ column
        return total

    def _of(self, batch: Batch, margin: Tensor | None) -> Callable[[Tensor], Tensor]:
        sizes = {"max_length": batch.max_length, "num_grades": batch.num_grades}
        return slopes_by_scores(batch.labels, batch.offsets, margin=margin, **sizes)

    def move(self, columns: list[Tensor], steps: Tensor) -> None:
        """Update the scores after the weights of these columns have moved by `steps` (T, B)."""
        for batch, column, scores in zip(self.batches, columns, self.scores, strict=True):
            if self.per_topic:
                scores += (column * per_entry(steps[batch.query], batch.offsets, len(scores))).sum(1)
            else:
                scores += column @ steps[0]
        self._slopes = None

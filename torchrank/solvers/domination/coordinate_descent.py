"""Coordinate descent on the domination loss of linear scores (Stevens 2010): a step reads one column of the features.

A step reads a column, computes its gradient from the current scores, moves the weight, and updates the scores. The
lists come in two forms: `DenseLists` recomputes the slopes of all scores, `SparseLists` touches only the documents in
which the feature occurs and the dominating documents of their lists.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.arrays import to_offsets
from torchrank.functional.domination import slopes_by_scores
from torchrank.functional.ragged import dominating, list_ids, per_entry, segment_sum
from torchrank.functional.ranking import levels_of
from torchrank.solvers.domination.penalised import Penalty
from torchrank.solvers.linear.many_models import Reduce
from torchrank.solvers.linear.scores import entry_scores

Margins = list[Tensor | None]  # for each batch, the margin of `domination_loss`

LOST_DIGITS = 5.0  # how far the logarithm of a sum may fall before the sum is computed again
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


class Column(NamedTuple):
    """The entries of the lists in which one of the features that were read occurs."""

    entries: Tensor  # (m,)
    values: Tensor  # (m,) float64
    feature: Tensor  # (m,) which of the features it is
    width: int  # how many features were read


class SparseLists:
    """Lists of sparse rows. With S_k the sum of exp(a) over the scores a of grade k of a list, and Z_k the sum over the
    grades below k, an entry j of grade m has the slope

        exp(a_j) sum_{k > m} W_k / Z_k - sigmoid(log Z_k(j) - a_j),    W_k = sum of sigmoid(log Z_k - a_i) over grade k,

    so that a column's gradient needs nothing but log S, log Z and log sum W / Z of each list and grade. A step changes
    log S by the softmax shares of the documents that it moves (relative to S itself, so no shift is needed), sums a
    list again when digits were lost, and visits the dominating documents of the lists it touches to update W.
    """

    def __init__(self, batches: list[Batch], margins: Margins, topics: int | None = None):
        self.batch = batch = joined(batches)
        self.per_topic, self.num_models = topics is not None, topics or 1
        self.columns = batch.x.transposed()  # type: ignore[union-attr]
        self.column_bounds = self.columns.row_offsets.tolist()  # on the host: no synchronisation to read a column
        self.models = batch.query if self.per_topic else torch.zeros_like(batch.query)
        given = [margin for margin in margins if margin is not None]  # all or none
        self.matrix = given[0] if given and given[0].ndim == 2 else None
        self.margin = torch.cat(given) if given and self.matrix is None else None  # (N,), subtracted from the scores
        grades = batch.num_grades if self.matrix is None else len(self.matrix)
        levels, self.grades = levels_of(batch.labels, batch.offsets, max_length=batch.max_length, num_grades=grades)
        self.layers = torch.add(levels, list_ids(batch.offsets, len(levels)), alpha=self.grades)
        above = dominating(batch.labels, batch.offsets)
        self.above = above.nonzero().flatten()  # list by list
        self.above_bounds = to_offsets(segment_sum(above.long(), batch.offsets))
        self.place = torch.zeros_like(batch.query)  # position of a list among those that a step touches
        self.by_row = None if batch.index is None else batch.index.argsort(stable=True)  # entries of each corpus row
        if batch.index is not None:
            self.row_bounds = to_offsets(torch.bincount(batch.index, minlength=len(batch.x)))

    def refresh(self, weight: Tensor) -> None:
        """Compute scores and sums for these weights, without the rounding errors of the steps that led to them."""
        self.scores = entry_scores(self.batch, weight, self.per_topic)
        if self.margin is not None:
            self.scores = self.scores - self.margin
        shape = (len(self.models), self.grades)
        self.sums, self.highest, self.below, self.pull = (self.scores.new_zeros(shape) for _ in range(4))
        every = torch.arange(len(self.models), device=self.scores.device)
        self._sum(every)
        self._weigh(every)

    def read(self, part: slice) -> Column:
        first, last = self.column_bounds[part.start], self.column_bounds[part.stop]
        rows, values = self.columns.columns[first:last].long(), self.columns.values[first:last].double()
        counts = self.columns.row_offsets[part.start : part.stop + 1].diff()
        feature = torch.repeat_interleave(counts, output_size=last - first)
        width = part.stop - part.start
        if self.by_row is None:
            return Column(rows, values, feature, width)
        places, which = spans(self.row_bounds, rows)
        return Column(self.by_row[places], values[which], feature[which], width)

    def gradient(self, column: Column) -> Tensor:
        """Slopes (T, B) of the loss along the weights of these columns."""
        layers, scores = self.layers[column.entries], self.scores[column.entries]
        slopes = torch.exp(scores + self.pull.view(-1)[layers]) - torch.sigmoid(self.below.view(-1)[layers] - scores)
        places = self._models(layers) * column.width + column.feature
        total = slopes.new_zeros(self.num_models * column.width).index_add_(0, places, slopes * column.values)
        return total.view(self.num_models, column.width)

    def _models(self, layers: Tensor) -> Tensor:
        return self.models[layers // self.grades]

    def move(self, column: Column, steps: Tensor) -> None:
        """Update the scores after the weights of these columns have moved by `steps` (T, B)."""
        places = self._models(self.layers[column.entries]) * column.width + column.feature
        moves = steps.flatten()[places] * column.values
        moved = moves.nonzero().flatten()
        entries, moves = column.entries[moved], moves[moved]
        if column.width > 1:  # an entry may occur in several columns
            entries, which = entries.unique(return_inverse=True)
            moves = moves.new_zeros(len(entries)).index_add_(0, which, moves)
        if len(entries):
            self._move(entries, moves)

    def _move(self, entries: Tensor, moves: Tensor) -> None:
        layers, before = self.layers[entries], self.scores[entries]
        self.scores[entries] = before + moves
        touched, places = self._touched(layers)
        shares = torch.exp(before - self.sums.view(-1)[layers]) * torch.expm1(moves)
        change = shares.new_zeros(len(touched) * self.grades).index_add_(0, places, shares).view(-1, self.grades)
        sums = self.sums[touched] + torch.log1p(change)
        highest = torch.maximum(self.highest[touched], sums)
        exact = (change > -0.5) & (change < torch.inf) & ~(sums < highest - LOST_DIGITS)
        self.sums[touched], self.highest[touched] = sums, highest
        worn = touched[~exact.all(1)]
        if len(worn):
            self._sum(worn)
        self._weigh(touched)

    def _touched(self, layers: Tensor) -> tuple[Tensor, Tensor]:
        """The lists of these layers, each once, and the numbers of the layers among those lists."""
        lists = layers // self.grades
        found = torch.zeros_like(self.place, dtype=torch.bool)
        found[lists] = True
        touched = found.nonzero().flatten()
        self.place[touched] = torch.arange(len(touched), device=touched.device)
        return touched, (self.place[lists] - lists) * self.grades + layers

    def _sum(self, lists: Tensor) -> None:
        """Compute log S of these lists from all their scores."""
        entries, which = spans(self.batch.offsets, lists)
        places = self.layers[entries] + (which - lists[which]) * self.grades
        sums = log_sums(self.scores[entries], places, len(lists) * self.grades).view(-1, self.grades)
        self.sums[lists] = self.highest[lists] = sums

    def _weigh(self, lists: Tensor) -> None:
        """Compute log Z and log sum W / Z of these lists from log S and the scores of their dominating entries."""
        below = lower_sums(self.sums[lists], self.matrix)
        slots, which = spans(self.above_bounds, lists)
        entries = self.above[slots]
        places = self.layers[entries] + (which - lists[which]) * self.grades
        own = torch.sigmoid(below.view(-1)[places] - self.scores[entries])
        weights = own.new_zeros(below.numel()).index_add_(0, places, own).view_as(below)
        ratio = torch.where(weights > 0, weights.log() - below, -torch.inf)
        matrix = None if self.matrix is None else self.matrix.T.flip(0, 1)
        self.below[lists], self.pull[lists] = below, lower_sums(ratio.flip(1), matrix).flip(1)


def lower_sums(logs: Tensor, margin: Tensor | None) -> Tensor:
    """Logarithms (Q, K) of the sums of exp(logs) over the grades below each grade; `margin` (K, K) is added to them.

    >>> lower_sums(torch.tensor([[0.0, 0.0, 5.0]]), None)
    tensor([[  -inf, 0.0000, 0.6931]])
    """
    if margin is None:
        return pad(logs.logcumsumexp(1)[:, :-1], (1, 0), value=-torch.inf)
    lower = torch.ones_like(margin).tril(-1) > 0
    return (logs[:, None, :] + torch.where(lower, margin, -torch.inf)).logsumexp(2)


def log_sums(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Logarithms (size,) of the sums of exp(values) at each place; -inf at places without values.

    >>> log_sums(torch.tensor([1e4, 1e4, 3.0]), torch.tensor([2, 2, 0]), 3)
    tensor([3.0000e+00,       -inf, 1.0001e+04])
    """
    peak = values.new_full((size,), -torch.inf).scatter_reduce(0, places, values, "amax")
    mass = values.new_zeros(size).index_add_(0, places, torch.exp(values - peak[places]))
    return peak + mass.log()


def spans(bounds: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of the chosen lists, and for each entry which of the chosen lists it belongs to. Faster than
    `entries_of` for the few lists of a step.

    >>> spans(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0]))
    (tensor([2, 3, 4, 0, 1]), tensor([0, 0, 0, 1, 1]))
    """
    starts = bounds[chosen]
    counts = bounds[chosen + 1] - starts
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    which = torch.repeat_interleave(counts, output_size=total)
    return (starts - ends + counts)[which] + torch.arange(total, device=bounds.device), which


def joined(batches: list[Batch]) -> Batch:
    """Batches of sparse rows, which may share a corpus, as one batch."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    lengths = torch.cat([batch.offsets.diff() for batch in batches])
    return first._replace(
        x=first.x if first.index is not None else SparseRows.cat([batch.x for batch in batches]),  # type: ignore[misc]
        labels=torch.cat([batch.labels for batch in batches]),
        offsets=to_offsets(lengths),
        query=torch.cat([batch.query for batch in batches]),
        index=None if first.index is None else torch.cat([batch.index for batch in batches]),  # type: ignore[misc]
        max_length=max(batch.max_length for batch in batches),
        num_pairs=sum(batch.num_pairs for batch in batches),
    )

"""Coordinate descent on the domination loss of linear scores (Stevens 2010): a step reads one column of the features.

A step reads a column, computes its gradient from the current scores, moves the weight, and updates the scores. There
are two implementations of this: `DenseLists` recomputes the gradient in all scores, `SparseLists` touches only the
documents in which the feature occurs and the dominating documents of their lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.arrays import to_offsets
from torchrank.functional.losses.domination import DominationGradient
from torchrank.functional.ragged import (
    cell_logsumexp,
    dominating,
    entries_of,
    list_ids,
    lower_logsumexp,
    per_entry,
    segment_sum,
)
from torchrank.solvers.domination.penalised import Penalty
from torchrank.solvers.linear.many_models import Reduce
from torchrank.solvers.linear.scores import entry_scores

Margins = list[Tensor | None]  # for each batch, the margin of `domination_loss`

LOST_DIGITS = 5.0  # how far the logarithm of a sum may fall before the sum is computed again


# ---- steps ------------------------------------------------------------------------------------------------------


def coordinate_lists(batches: list[Batch], margins: Margins, topics: int | None = None) -> DenseLists | SparseLists:
    """The lists as their rows need them, for one model or for one per topic. `margins` has those of `domination_loss`
    for each batch. Call `refresh` before the first step."""
    lists: type[DenseLists | SparseLists] = SparseLists if isinstance(batches[0].x, SparseRows) else DenseLists
    return lists(batches, margins, topics)


def coordinate_sweep(
    lists: DenseLists | SparseLists,
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
        features = slice(first, min(first + block, weight.shape[1]))
        coordinate_step(lists, weight, features, penalty, steepness[:, features], reduce)
    return weight


def coordinate_step(
    lists: Any, weight: Tensor, features: slice, penalty: Penalty, steepness: Tensor, reduce: Reduce = torch.clone
) -> None:
    """Move the weights of the features to the minimiser of their quadratic bound, and the scores, in place."""
    column = lists.read(features)
    before = weight[:, features]
    gradient = torch.where(steepness > 0, reduce(lists.gradient(column)), 0.0)  # where it is 0 there is only rounding
    after = penalty.prox(before, gradient, steepness)
    steps = after - before
    if steps.any():
        lists.move(column, steps)
        weight[:, features] = after


def useful_blocks(weight: Tensor, steepness: Tensor, block: int = 1) -> list[int]:
    """First features of the blocks that can move: those with a gradient or a non-zero weight.

    >>> useful_blocks(torch.zeros(1, 5), torch.tensor([[0.0, 0.0, 1.0, 0.0, 2.0]]), block=2)
    [2, 4]
    """
    moves = ((steepness > 0) | (weight != 0)).any(0)
    useful = pad(moves, (0, -len(moves) % block)).view(-1, block).any(1).nonzero().flatten()
    return (useful * block).tolist()


# ---- dense rows -------------------------------------------------------------------------------------------------


class DenseLists:
    """Lists of dense rows: a step computes the gradient in all scores in O(N), but only if a score has changed."""

    def __init__(self, batches: list[Batch], margins: Margins, topics: int | None = None):
        self.batches, self.per_topic, self.num_models = batches, topics is not None, topics or 1
        self._gradient_by_scores = [
            DominationGradient(b.labels, b.lists, margin) for b, margin in zip(batches, margins, strict=True)
        ]

    def refresh(self, weight: Tensor) -> None:
        """Compute the scores for these weights (T, D), without the rounding errors of the steps that led to them."""
        self.scores = [entry_scores(batch, weight, self.per_topic) for batch in self.batches]
        self._score_gradients: list[Tensor] | None = None

    def read(self, features: slice) -> list[Tensor]:
        """Columns (N, B) of the entries of each batch, for `gradient` and `move`."""
        rows: list[Any] = [batch.x for batch in self.batches]
        return [b.at_entries(x[:, features].double()) for b, x in zip(self.batches, rows, strict=True)]

    def gradient(self, columns: list[Tensor]) -> Tensor:
        """Gradient (T, B) of the loss in the weights of these columns."""
        if self._score_gradients is None:
            both = zip(self._gradient_by_scores, self.scores, strict=True)
            self._score_gradients = [known.gradient(scores) for known, scores in both]
        total = columns[0].new_zeros(self.num_models, columns[0].shape[1])
        for batch, column, gradient in zip(self.batches, columns, self._score_gradients, strict=True):
            if self.per_topic:
                total[batch.query] += segment_sum(column * gradient[:, None], batch.offsets)
            else:
                total[0] += gradient @ column
        return total

    def move(self, columns: list[Tensor], steps: Tensor) -> None:
        """Update the scores after the weights of these columns have moved by `steps` (T, B)."""
        for batch, column, scores in zip(self.batches, columns, self.scores, strict=True):
            if self.per_topic:
                scores += (column * per_entry(steps[batch.query], batch.offsets, len(scores))).sum(1)
            else:
                scores += column @ steps[0]
        self._score_gradients = None


# ---- sparse rows ------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """The entries of the lists in which one of the features that were read occurs."""

    entries: Tensor  # (m,)
    values: Tensor  # (m,) float64
    feature: Tensor  # (m,) which of the features it is
    width: int  # how many features were read


class SparseLists:
    """Lists of sparse rows. With S_k the sum of exp(a) over the scores a of grade k of a list, and Z_k the sum over the
    grades below k, the gradient in the score of an entry j of grade m is

        exp(a_j) sum_{k > m} W_k / Z_k - sigmoid(log Z_k(j) - a_j),    W_k = sum of sigmoid(log Z_k - a_i) over grade k,

    so that a column's gradient needs nothing but log S, log Z and log sum W / Z of each list and grade (a layer). A
    step changes log S by the softmax shares of the documents that it moves (relative to S itself, so no shift is
    needed), sums a list again when digits were lost, and visits the dominating documents of the lists it touches to
    update W.
    """

    def __init__(self, batches: list[Batch], margins: Margins, topics: int | None = None):
        self.batch = batch = join_sparse(batches)
        self.per_topic, self.num_models = topics is not None, topics or 1
        self.columns = batch.x.transposed()  # type: ignore[union-attr]
        self.column_bounds = self.columns.row_offsets.tolist()  # on the host: no synchronisation to read a column
        self.models = batch.query if self.per_topic else torch.zeros_like(batch.query)
        given = [margin for margin in margins if margin is not None]  # all or none
        self.matrix = given[0] if given and given[0].ndim == 2 else None
        self.margin = torch.cat(given) if given and self.matrix is None else None  # (N,), subtracted from the scores
        grades = batch.num_grades if self.matrix is None else len(self.matrix)
        lists = batch.lists.regraded(grades)
        levels, self.grades = lists.levels(batch.labels)
        self.layers = torch.add(levels, lists.ids, alpha=self.grades)
        above = dominating(batch.labels, batch.offsets)
        self.above = above.nonzero().flatten()  # list by list
        self.above_bounds = to_offsets(segment_sum(above.long(), batch.offsets))
        self.by_row: Tensor | None = None  # entries of each corpus row
        if batch.index is not None:
            self.by_row = batch.index.argsort(stable=True)
            self.row_bounds = to_offsets(torch.bincount(batch.index, minlength=len(batch.x)))

    def refresh(self, weight: Tensor) -> None:
        """Compute scores and sums for these weights, without the rounding errors of the steps that led to them."""
        self.scores = entry_scores(self.batch, weight, self.per_topic)
        if self.margin is not None:
            self.scores = self.scores - self.margin
        shape = (len(self.models), self.grades)
        self.sums, self.highest, self.below, self.lost = (self.scores.new_zeros(shape) for _ in range(4))
        every = torch.arange(len(self.models), device=self.scores.device)
        self._sum(every)
        self._weigh(every)

    def read(self, features: slice) -> Column:
        """The columns of the features, for `gradient` and `move`."""
        first, last = self.column_bounds[features.start], self.column_bounds[features.stop]
        rows, values = self.columns.columns[first:last].long(), self.columns.values[first:last].double()
        feature = list_ids(self.columns.row_offsets[features.start : features.stop + 1], last - first)
        width = features.stop - features.start
        if self.by_row is None:
            return Column(rows, values, feature, width)
        places, which = _entries(self.row_bounds, rows)
        return Column(self.by_row[places], values[which], feature[which], width)

    def gradient(self, column: Column) -> Tensor:
        """Gradient (T, B) of the loss in the weights of these columns."""
        layers, scores = self.layers[column.entries], self.scores[column.entries]
        gradient = torch.exp(scores + self.lost.view(-1)[layers]) - torch.sigmoid(self.below.view(-1)[layers] - scores)
        total = gradient.new_zeros(self.num_models * column.width)
        return total.index_add_(0, self._weights(column), gradient * column.values).view(self.num_models, column.width)

    def _weights(self, column: Column) -> Tensor:
        """The place (m,) in (T, B) of the weight of each entry."""
        return self.models[self.layers[column.entries] // self.grades] * column.width + column.feature

    def move(self, column: Column, steps: Tensor) -> None:
        """Update the scores after the weights of these columns have moved by `steps` (T, B)."""
        moves = steps.flatten()[self._weights(column)] * column.values
        moved = moves.nonzero().flatten()
        entries, moves = column.entries[moved], moves[moved]
        if column.width > 1 or self.by_row is not None:  # an entry may occur in several columns, or out of order
            entries, which = entries.unique(return_inverse=True)
            moves = moves.new_zeros(len(entries)).index_add_(0, which, moves)
        if len(entries):
            self._move(entries, moves)

    def _move(self, entries: Tensor, moves: Tensor) -> None:
        layers, before = self.layers[entries], self.scores[entries]
        self.scores[entries] = before + moves
        touched, which = (layers // self.grades).unique_consecutive(return_inverse=True)
        places = which * self.grades + layers % self.grades
        shares = torch.exp(before - self.sums.view(-1)[layers]) * torch.expm1(moves)
        change = shares.new_zeros(len(touched) * self.grades).index_add_(0, places, shares).view(-1, self.grades)
        sums = self.sums[touched] + torch.log1p(change)
        highest = torch.maximum(self.highest[touched], sums)
        exact = (change > -0.5) & (change < torch.inf) & ~(sums < highest - LOST_DIGITS)
        self.sums[touched], self.highest[touched] = sums, highest
        inexact = touched[~exact.all(1)]
        if len(inexact):
            self._sum(inexact)
        self._weigh(touched)

    def _places(self, bounds: Tensor, lists: Tensor, entries: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The entries of these lists, and the numbers of their layers among those of these lists alone."""
        slots, which = _entries(bounds, lists)
        slots = slots if entries is None else entries[slots]
        return slots, which * self.grades + self.layers[slots] % self.grades

    def _sum(self, lists: Tensor) -> None:
        """Compute log S of these lists from all their scores."""
        entries, places = self._places(self.batch.offsets, lists)
        sums = cell_logsumexp(self.scores[entries], places, len(lists) * self.grades).view(-1, self.grades)
        self.sums[lists] = self.highest[lists] = sums

    def _weigh(self, lists: Tensor) -> None:
        """Compute log Z and log sum W / Z of these lists from log S and the scores of their dominating entries."""
        below = lower_logsumexp(self.sums[lists], self.matrix)
        entries, places = self._places(self.above_bounds, lists, self.above)
        shares = torch.sigmoid(below.view(-1)[places] - self.scores[entries])
        weights = shares.new_zeros(below.numel()).index_add_(0, places, shares).view_as(below)
        ratio = torch.where(weights > 0, weights.log() - below, -torch.inf)
        matrix = None if self.matrix is None else self.matrix.T.flip(0, 1)
        self.below[lists], self.lost[lists] = below, lower_logsumexp(ratio.flip(1), matrix).flip(1)


def _entries(bounds: Tensor, lists: Tensor) -> tuple[Tensor, Tensor]:
    """The entries of these lists, and for each entry which of these lists it belongs to."""
    entries, offsets = entries_of(bounds, lists)
    return entries, list_ids(offsets, len(entries))


def join_sparse(batches: list[Batch]) -> Batch:
    """Batches of sparse rows, which may share a corpus, as one batch."""
    first: Any = batches[0]
    if len(batches) == 1:
        return first  # type: ignore[no-any-return]
    columns: Any = Batch._make(zip(*batches, strict=True))
    return first._replace(  # type: ignore[no-any-return]
        x=first.x if first.index is not None else SparseRows.cat(columns.x),
        labels=torch.cat(columns.labels),
        offsets=to_offsets(torch.cat([offsets.diff() for offsets in columns.offsets])),
        query=torch.cat(columns.query),
        index=None if first.index is None else torch.cat(columns.index),
        max_length=max(columns.max_length),
        num_pairs=sum(columns.num_pairs),
    )

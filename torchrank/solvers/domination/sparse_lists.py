"""Sparse lists for coordinate descent on the domination loss: the sums that a step on one column needs, kept up to
date."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import dominating, list_ids, segment_sum
from torchrank.functional.ranking import levels_of
from torchrank.solvers.linear.scores import entry_scores

Margins = list[Tensor | None]  # for each batch, the margin of `domination_loss`

LOST_DIGITS = 5.0  # how far the logarithm of a sum may fall before the sum is computed again


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

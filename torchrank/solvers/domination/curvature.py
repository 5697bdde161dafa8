"""Bounds on the curvature of log-sum-exp losses along single features, or along features that move together."""

from typing import Any

import torch
from torch import Tensor

from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import list_ids
from torchrank.solvers.linear.scores import column_extremes


def add_curvature(x: Any, offsets: Tensor, into: Tensor, models: Tensor, counts: Tensor, *, block: int = 1) -> None:
    """Add counts[q] B_q to into[models[q]] for every list q of the rows x, where B_q (D,) bounds the variance of each
    feature under any distribution over the documents of the list: (max - min)^2 / 4 (Popoviciu). With the number of
    dominating documents as counts, the sum bounds the curvature of the domination loss.

    With `block` > 1 the diagonal B_q bounds the covariance of the features of a block (0..block-1, block..2 block-1,
    ...): for any centre c, by Cauchy-Schwarz, it is at most tau diag(max_j (x_jr - c_r)^2) with
    tau = max_j sum_r (x_jr - c_r)^2 / max_i (x_ir - c_r)^2. The centre is the middle of the range or 0, whichever has
    the smaller trace: 0 where most values are 0.
    """
    if isinstance(x, SparseRows):
        lists, columns, values = _sparse(x, offsets, block)
        into.view(-1).index_add_(0, models[lists] * into.shape[1] + columns, counts[lists] * values)
    elif len(x):
        ids, width = list_ids(offsets, len(x)), x.shape[1] if block == 1 else block
        for first in range(0, x.shape[1], width):
            part = slice(first, first + width)
            values = _dense(x[:, part], ids, len(offsets) - 1, together=block > 1)
            into[:, part].index_add_(0, models, counts[:, None] * values)


def corpus_curvature(x: Any, block: int = 1) -> Tensor:
    """The bound (1, D) over all rows of a corpus, which is at least that of any list of some of its rows."""
    if block == 1 and len(x):
        down, up = column_extremes(x)
        return _squared(-down, up)[None]
    one = torch.tensor([0, len(x)], device=x.device)
    bounds = torch.zeros(1, x.shape[1], dtype=torch.float64, device=x.device)
    add_curvature(x, one, bounds, torch.zeros_like(one[:1]), bounds.new_ones(1), block=block)
    return bounds


def _squared(low: Tensor, high: Tensor) -> Tensor:
    """Bound on the variance of values between low and high."""
    return (high - low).square() / 4


def _centres(low: Tensor, high: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Two centres to try, and the largest squared distance from each, which is 0 where a feature does not vary."""
    squares = torch.where(high > low, torch.maximum(low.square(), high.square()), 0.0)
    return [((low + high) / 2, _squared(low, high)), (torch.zeros_like(low), squares)]


def _dense(x: Tensor, ids: Tensor, num_lists: int, together: bool) -> Tensor:
    """Bounds (Q, B) of the features (n, B), one by one or together."""
    places, empty = ids[:, None].expand_as(x), x.new_zeros(num_lists, x.shape[1])
    low, high = (empty.scatter_reduce(0, places, x, how, include_self=False).double() for how in ("amin", "amax"))
    if not together:
        return _squared(low, high)
    bounds = []
    for centre, widest in _centres(low, high):
        shares = _ratio((x.double() - centre[ids]).square(), widest[ids]).sum(1)
        tau = shares.new_ones(num_lists).scatter_reduce(0, ids, shares, "amax")
        bounds.append(tau[:, None] * widest)
    middle, zero = bounds
    return torch.where((middle.sum(1) <= zero.sum(1))[:, None], middle, zero)


def _cells(x: SparseRows, offsets: Tensor) -> tuple[Tensor, ...]:
    """List, column, smallest and largest value of every column that occurs in a list (a cell), where absent values
    count as 0; and for every stored value, column by column, its row, the value itself and its cell."""
    by_column, num_lists = x.transposed(), len(offsets) - 1
    rows, values = by_column.columns.long(), by_column.values.double()
    keys = by_column.row_ids() * num_lists + list_ids(offsets, len(x))[rows]  # ascending, as rows are in a column
    keys, cell, stored = keys.unique_consecutive(return_inverse=True, return_counts=True)
    columns, lists = keys // max(num_lists, 1), keys % max(num_lists, 1)
    empty = values.new_zeros(len(keys))
    low, high = (empty.scatter_reduce(0, cell, values, how, include_self=False) for how in ("amin", "amax"))
    full = stored == offsets.diff()[lists]
    low, high = torch.where(full, low, low.clamp(max=0)), torch.where(full, high, high.clamp(min=0))
    return lists, columns, low, high, rows, values, cell


def _sparse(x: SparseRows, offsets: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """List, column and bound of every column that occurs in a list."""
    lists, columns, low, high, rows, values, cell = _cells(x, offsets)
    if block == 1:
        return lists, columns, _squared(low, high)
    num_lists = max(len(offsets) - 1, 1)
    groups, group = ((columns // block) * num_lists + lists).unique(return_inverse=True)  # pairs of a list and a block
    pairs, pair = (group[cell] * len(x) + rows).unique(return_inverse=True)  # pairs of a row and a block
    of_pair, bounds = pairs // max(len(x), 1), []
    absent = torch.bincount(of_pair, minlength=len(groups)) < offsets.diff()[groups % num_lists]  # some rows are 0
    for centre, widest in _centres(low, high):
        base = values.new_zeros(len(groups)).index_add_(0, group, _ratio(centre.square(), widest))
        excess = _ratio((values - centre[cell]).square() - centre[cell].square(), widest[cell])
        shares = base[of_pair].index_add_(0, pair, excess)
        tau = torch.where(absent, base, 1.0).clamp(min=1).scatter_reduce(0, of_pair, shares, "amax")
        bounds.append(tau[group] * widest)
    middle, zero = (bound.new_zeros(len(groups)).index_add_(0, group, bound) for bound in bounds)
    return lists, columns, torch.where((middle <= zero)[group], bounds[0], bounds[1])


def _ratio(squares: Tensor, widest: Tensor) -> Tensor:
    return torch.where(widest > 0, squares / torch.where(widest > 0, widest, 1.0), 0.0)

"""Bounds of the curvature of log-sum-exp losses along single features, or along features that move together."""

from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import list_ids
from torchrank.solvers.linear.scores import column_extremes


def add_curvature(
    batch: Batch,
    into: Tensor,
    models: Tensor,
    counts: Tensor,
    bound: str,
    *,
    block: int = 1,
    known: dict[int, Tensor] | None = None,
) -> None:
    """into[models[q]] += counts[q] B_q for every list q, where B_q (D,) bounds the variance of each feature under any
    distribution over the documents of the list: with `range` (max - min)^2 / 4 (Popoviciu), with `square` max x^2
    (Stevens 2010). Summed with the number of dominating documents they bound the curvature of the domination loss.

    With `block` > 1 the diagonal B_q bounds the covariance of the features of a block (0..block-1, block..2 block-1,
    ...): for any centre c, by Cauchy-Schwarz, it is at most tau diag(max_j (x_jr - c_r)^2) with
    tau = max_j sum_r (x_jr - c_r)^2 / max_i (x_ir - c_r)^2. `square` takes the centre 0, `range` the middle of the
    range or 0, whichever has the smaller trace: 0 where most values are.

    For a shared corpus the bound is that of all its rows, which is no smaller; `known` keeps it for other batches.
    """
    if batch.index is None:
        _add(batch.x, batch.offsets, into, models, counts, bound, block)
        return
    known = {} if known is None else known
    if id(batch.x) not in known:
        known[id(batch.x)] = _of_corpus(batch.x, into.shape[1], bound, block)
    into.index_add_(0, models, counts[:, None] * known[id(batch.x)])


def _of_corpus(x: Any, width: int, bound: str, block: int) -> Tensor:
    """Bounds (1, D) over all rows."""
    if block == 1 and len(x):
        down, up = column_extremes(x)
        return _squared(-down, up, bound)[None]
    one = torch.tensor([0, len(x)], device=x.device)
    bounds = torch.zeros(1, width, dtype=torch.float64, device=x.device)
    _add(x, one, bounds, torch.zeros_like(one[:1]), bounds.new_ones(1), bound, block)
    return bounds


def _add(x: Any, offsets: Tensor, into: Tensor, models: Tensor, counts: Tensor, bound: str, block: int) -> None:
    if isinstance(x, SparseRows):
        lists, columns, values = _sparse(x, offsets, bound, block)
        into.view(-1).index_add_(0, models[lists] * into.shape[1] + columns, counts[lists] * values)
    elif len(x):
        ids, width = list_ids(offsets, len(x)), x.shape[1] if block == 1 else block
        for first in range(0, x.shape[1], width):
            part = slice(first, first + width)
            values = _dense(x[:, part], ids, len(offsets) - 1, bound, together=block > 1)
            into[:, part].index_add_(0, models, counts[:, None] * values)


def _squared(low: Tensor, high: Tensor, bound: str) -> Tensor:
    """Bound of the variance of values from low to high."""
    return (high - low).square() / 4 if bound == "range" else torch.maximum(low.square(), high.square())


def _centres(low: Tensor, high: Tensor, bound: str) -> list[tuple[Tensor, Tensor]]:
    """Centres to try, and the largest squared distance from each; 0 for `range` where a feature does not vary."""
    zero, squares = torch.zeros_like(low), _squared(low, high, "square")
    if bound == "square":
        return [(zero, squares)]
    return [((low + high) / 2, _squared(low, high, "range")), (zero, torch.where(high > low, squares, 0.0))]


def _dense(x: Tensor, ids: Tensor, num_lists: int, bound: str, together: bool) -> Tensor:
    """Bounds (Q, B) of features (n, B), one by one or together."""
    places, empty = ids[:, None].expand_as(x), x.new_zeros(num_lists, x.shape[1])
    low, high = (empty.scatter_reduce(0, places, x, how, include_self=False).double() for how in ("amin", "amax"))
    if not together:
        return _squared(low, high, bound)
    found = []
    for centre, widest in _centres(low, high, bound):
        shares = _ratio((x.double() - centre[ids]).square(), widest[ids]).sum(1)
        tau = shares.new_ones(num_lists).scatter_reduce(0, ids, shares, "amax")
        found.append(tau[:, None] * widest)
    return torch.where((found[0].sum(1) <= found[-1].sum(1))[:, None], found[0], found[-1])


def _cells(x: SparseRows, offsets: Tensor) -> tuple[Tensor, ...]:
    """List, column, smallest and largest value of every column that occurs in a list, where absent values count as 0;
    and of every entry, column by column, its row, its value and which of these it belongs to."""
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


def _sparse(x: SparseRows, offsets: Tensor, bound: str, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """List, column and bound of every column that occurs in a list."""
    lists, columns, low, high, rows, values, cell = _cells(x, offsets)
    if block == 1:
        return lists, columns, _squared(low, high, bound)
    num_lists = max(len(offsets) - 1, 1)
    groups, group = ((columns // block) * num_lists + lists).unique(return_inverse=True)  # a list and a block
    pairs, pair = (group[cell] * len(x) + rows).unique(return_inverse=True)  # a row and a block
    of_pair, found = pairs // max(len(x), 1), []
    absent = torch.bincount(of_pair, minlength=len(groups)) < offsets.diff()[groups % num_lists]  # rows of zeros there
    for centre, widest in _centres(low, high, bound):
        base = values.new_zeros(len(groups)).index_add_(0, group, _ratio(centre.square(), widest))
        excess = _ratio((values - centre[cell]).square() - centre[cell].square(), widest[cell])
        shares = base[of_pair].index_add_(0, pair, excess)
        tau = torch.where(absent, base, 1.0).clamp(min=1).scatter_reduce(0, of_pair, shares, "amax")
        found.append(tau[group] * widest)
    return lists, columns, _smaller(found, group, len(groups))


def _smaller(found: list[Tensor], group: Tensor, num_groups: int) -> Tensor:
    """Of one or two bounds the one with the smaller sum over its group."""
    sums = [bounds.new_zeros(num_groups).index_add_(0, group, bounds) for bounds in found]
    return torch.where((sums[0] <= sums[-1])[group], found[0], found[-1])


def _ratio(squares: Tensor, widest: Tensor) -> Tensor:
    return torch.where(widest > 0, squares / torch.where(widest > 0, widest, 1.0), 0.0)

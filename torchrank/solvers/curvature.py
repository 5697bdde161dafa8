"""Bounds of the curvature of log-sum-exp losses along single features."""

from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import list_ids


def add_curvature(batch: Batch, into: Tensor, models: Tensor, counts: Tensor, bound: str) -> None:
    """into[models[q]] += counts[q] B_q for every list q, where B_q (D,) bounds the variance of each feature under any
    distribution over the documents of the list: with `range` (max - min)^2 / 4 (Popoviciu), with `square` max x^2
    (Stevens 2010). Summed with the number of dominating documents they bound the curvature of the domination loss.

    For a shared corpus the bound is that of all its rows, which is no smaller.
    """
    if batch.index is not None:
        one = torch.tensor([0, len(batch.x)], device=batch.device)
        bounds = torch.zeros(1, into.shape[1], dtype=into.dtype, device=batch.device)
        _add(batch.x, one, bounds, torch.zeros(1, dtype=torch.int64, device=batch.device), bounds.new_ones(1), bound)
        into.index_add_(0, models, counts[:, None] * bounds)
    else:
        _add(batch.x, batch.offsets, into, models, counts, bound)


def _add(x: Any, offsets: Tensor, into: Tensor, models: Tensor, counts: Tensor, bound: str) -> None:
    if isinstance(x, SparseRows):
        lists, columns, low, high = _sparse_ranges(x, offsets)
        values = counts[lists] * _squared(low, high, bound)
        into.view(-1).index_add_(0, models[lists] * into.shape[1] + columns, values)
    elif len(x):
        ids = list_ids(offsets, len(x))[:, None].expand_as(x)
        empty = x.new_zeros(len(offsets) - 1, x.shape[1])
        low, high = (empty.scatter_reduce(0, ids, x, how, include_self=False).double() for how in ("amin", "amax"))
        into.index_add_(0, models, counts[:, None] * _squared(low, high, bound))


def _squared(low: Tensor, high: Tensor, bound: str) -> Tensor:
    return (high - low).square() / 4 if bound == "range" else torch.maximum(low.square(), high.square())


def _sparse_ranges(x: SparseRows, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """List, column, smallest and largest value of every column that occurs in a list; absent values count as 0."""
    ids = list_ids(offsets, len(x))[x.row_ids()]
    keys, place, stored = (ids * x.num_features + x.columns).unique(return_inverse=True, return_counts=True)
    lists, columns = keys // x.num_features, keys % x.num_features
    values = x.values.double()
    empty = values.new_zeros(len(keys))
    low, high = (empty.scatter_reduce(0, place, values, how, include_self=False) for how in ("amin", "amax"))
    full = stored == offsets.diff()[lists]
    return lists, columns, torch.where(full, low, low.clamp(max=0)), torch.where(full, high, high.clamp(min=0))

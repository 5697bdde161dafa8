"""Scores and gradients of linear models on dense or sparse rows: one model for all lists, or one per list (a topic)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.rows import converts_at_once, wide_blocks
from torchrank.data.sparse import SparseRows
from torchrank.data.training import TrainingLists
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import list_ids


def row_products(x: Tensor | SparseRows, weight: Tensor) -> Tensor:
    """x @ weight in the dtype of the weight, (D,) or (D, A): equal to the bit to the product with converted rows.

    >>> row_products(torch.ones(2, 3), torch.ones(3, dtype=torch.float64))
    tensor([3., 3.], dtype=torch.float64)
    """
    if isinstance(x, SparseRows):
        return x @ weight
    if converts_at_once(x, weight.dtype) or (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)):
        return x.to(weight.dtype) @ weight
    return torch.cat([rows @ weight for _, rows in wide_blocks(x, weight.dtype)])


def column_sums(x: Tensor | SparseRows, slopes: Tensor) -> Tensor:
    """x' @ slopes in the dtype of the slopes, (N,) or (N, A).

    >>> column_sums(torch.ones(2, 3), torch.ones(2, dtype=torch.float64))
    tensor([2., 2., 2.], dtype=torch.float64)
    """
    if isinstance(x, SparseRows):
        return x.T @ slopes
    if converts_at_once(x, slopes.dtype):
        return x.to(slopes.dtype).T @ slopes
    total, add = slopes.new_zeros(x.shape[1], *slopes.shape[1:]), torch.addmv if slopes.ndim == 1 else torch.addmm
    for place, rows in wide_blocks(x, slopes.dtype):
        add(total, rows.T, slopes[place], out=total)
    return total


def entry_scores(batch: Batch, weight: Tensor, per_topic: bool) -> Tensor:
    """Scores (N,) of the entries under weights (T, D): row 0, or with `per_topic` the row of the list's topic."""
    if not per_topic:
        return batch.at_entries(row_products(batch.x, weight[0]))
    lists = list_ids(batch.offsets, len(batch.labels))
    if batch.index is not None:
        return row_products(batch.x, weight[batch.query].T)[batch.index, lists]  # from (n, Q)
    if isinstance(batch.x, SparseRows):
        rows = batch.x.row_ids()
        products = batch.x.values.to(weight.dtype) * weight[batch.query[lists[rows]], batch.x.columns]
        return products.new_zeros(len(lists)).index_add(0, rows, products)
    topics = batch.query[lists]
    return torch.cat([(rows * weight[topics[place]]).sum(1) for place, rows in wide_blocks(batch.x, weight.dtype)])


def add_gradient(batch: Batch, slopes: Tensor, into: Tensor, per_topic: bool) -> None:
    """Add to `into` (T, D) the gradient in the weights of a function with these slopes (N,) in the entry scores."""
    x = batch.x
    if not per_topic:
        if batch.index is not None:
            slopes = slopes.new_zeros(len(x)).index_add_(0, batch.index, slopes)
        into[0] += column_sums(x, slopes)
        return
    lists = list_ids(batch.offsets, len(slopes))
    if batch.index is not None:
        spread = slopes.new_zeros(len(x), batch.num_lists)
        spread.index_put_((batch.index, lists), slopes, accumulate=True)  # a document may occur twice in a list
        into[batch.query] += column_sums(x, spread).T
    elif isinstance(x, SparseRows):
        rows = x.row_ids()
        into.index_put_((batch.query[lists[rows]], x.columns), x.values.to(into.dtype) * slopes[rows], accumulate=True)
    else:
        topics = batch.query[lists]
        for place, block in wide_blocks(x, into.dtype):
            into.index_add_(0, topics[place], block * slopes[place, None])


def take_features(lists: TrainingLists, features: Tensor) -> TrainingLists:
    """The lists with only these features; a shared corpus stays shared."""
    if lists.corpus is None:
        return lists.changed(lambda batch: batch._replace(x=take_columns(batch.x, features)))
    corpus = take_columns(lists.corpus, features)
    return lists.changed(lambda batch: batch._replace(x=corpus))


def take_columns(x: Tensor | SparseRows, features: Tensor) -> Any:
    """The rows with only these features."""
    if not isinstance(x, SparseRows):
        return x[:, features]
    place = torch.full((x.num_features,), -1, device=x.device, dtype=x.columns.dtype)
    place[features] = torch.arange(len(features), device=x.device, dtype=x.columns.dtype)
    values, columns, lengths = [x.values[:0]], [x.columns[:0]], [x.row_offsets[:0]]
    for _, block in x.blocks():  # little memory beside what is kept
        found = place[block.columns]
        inside = found >= 0
        values.append(block.values[inside])
        columns.append(found[inside])
        lengths.append(pad(inside.cumsum(0), (1, 0))[block.row_offsets].diff())
    return SparseRows(torch.cat(values), torch.cat(columns), to_offsets(torch.cat(lengths)), len(features))


def column_extremes(x: Tensor | SparseRows) -> Tensor:
    """-min and max of each column (2, D), in float64.

    >>> column_extremes(SparseRows.from_dense(torch.tensor([[1.0, 0.0], [2.0, 3.0]])))
    tensor([[-1.,  0.],
            [ 2.,  3.]], dtype=torch.float64)
    """
    if not isinstance(x, SparseRows):
        return torch.stack((-x.amin(0), x.amax(0))).double()
    found = torch.full((2, x.num_features), -torch.inf, dtype=torch.float64, device=x.device)
    counts = torch.zeros(x.num_features, dtype=torch.int64, device=x.device)
    for _, block in x.blocks():
        columns = block.transposed()  # adds up repeated columns of a row
        counts += columns.row_offsets.diff()
        ends = torch.stack((-columns.values, columns.values)).double()
        found.scatter_reduce_(1, columns.row_ids().expand(2, -1), ends, "amax")
    return torch.where(counts == len(x), found, found.clamp(min=0))  # absent values are 0

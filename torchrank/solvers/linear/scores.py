"""Scores and gradients of linear models on dense or sparse rows: one model for all lists, or one per list (a topic).

Where lists have models of their own, a list without one takes that of the nearest query: queries are vectors, each the
mean of its documents (Geng et al. 2008).
"""

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.rows import converts_at_once, wide_blocks
from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import list_ids, per_entry, ranks, segment_sum, wide

DISTANCES = 2**22  # distances of queries computed at once: 32 MB in float64


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


def column_sums(x: Tensor | SparseRows, values: Tensor) -> Tensor:
    """x' @ values in the dtype of the values, (N,) or (N, A).

    >>> column_sums(torch.ones(2, 3), torch.ones(2, dtype=torch.float64))
    tensor([2., 2., 2.], dtype=torch.float64)
    """
    if isinstance(x, SparseRows):
        return x.T @ values
    if converts_at_once(x, values.dtype):
        return x.to(values.dtype).T @ values
    total, add = values.new_zeros(x.shape[1], *values.shape[1:]), torch.addmv if values.ndim == 1 else torch.addmm
    for place, rows in wide_blocks(x, values.dtype):
        add(total, rows.T, values[place], out=total)
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


def add_gradient(batch: Batch, gradient: Tensor, into: Tensor, per_topic: bool) -> None:
    """Add to `into` (T, D) the gradient in the weights of a function with this `gradient` (N,) in the entry scores."""
    x = batch.x
    if not per_topic:
        if batch.index is not None:
            gradient = gradient.new_zeros(len(x)).index_add_(0, batch.index, gradient)
        into[0] += column_sums(x, gradient)
        return
    lists = list_ids(batch.offsets, len(gradient))
    if batch.index is not None:
        spread = gradient.new_zeros(len(x), batch.num_lists)
        spread.index_put_((batch.index, lists), gradient, accumulate=True)  # a document may occur twice in a list
        into[batch.query] += column_sums(x, spread).T
    elif isinstance(x, SparseRows):
        rows = x.row_ids()
        into.index_put_(
            (batch.query[lists[rows]], x.columns), x.values.to(into.dtype) * gradient[rows], accumulate=True
        )
    else:
        topics = batch.query[lists]
        for place, block in wide_blocks(x, into.dtype):
            into.index_add_(0, topics[place], block * gradient[place, None])


def column_extremes(x: Tensor | SparseRows) -> Tensor:
    """-min and max of each column (2, D), in float64.

    >>> column_extremes(SparseRows.from_dense(torch.tensor([[1.0, 0.0], [2.0, 3.0]])))
    tensor([[-1.,  0.],
            [ 2.,  3.]], dtype=torch.float64)
    """
    if not isinstance(x, SparseRows):
        return torch.stack((-x.amin(0), x.amax(0))).double()
    extremes = torch.full((2, x.num_features), -torch.inf, dtype=torch.float64, device=x.device)
    counts = torch.zeros(x.num_features, dtype=torch.int64, device=x.device)
    for _, block in x.blocks():
        columns = block.transposed()  # adds up repeated columns of a row
        counts += columns.row_offsets.diff()
        ends = torch.stack((-columns.values, columns.values)).double()
        extremes.scatter_reduce_(1, columns.row_ids().expand(2, -1), ends, "amax")
    return torch.where(counts == len(x), extremes, extremes.clamp(min=0))  # absent values are 0


# ---- a model for each query --------------------------------------------------------------------------------------


def query_vectors(x: Tensor, offsets: Tensor, *, top: int | None = None, reference: int | None = None) -> Tensor:
    """Means `(Q, D)`, in float64, of the rows `x (N, D)` of each list: of all rows, or of the `top` rows with the
    largest values of the feature `reference`; among equal values, the first. A list without rows gives zeros.

    >>> x = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 2.0]])
    >>> query_vectors(x, torch.tensor([0, 3]), top=2, reference=0)
    tensor([[2.5000, 3.0000]], dtype=torch.float64)
    """
    rows, counts = wide(x), offsets.diff()
    if top is not None:
        rows = rows * (ranks(x[:, reference], offsets) <= top)[:, None]
        counts = counts.clamp(max=top)
    return segment_sum(rows, offsets) / counts.clamp(min=1)[:, None]


def nearest_queries(vectors: Tensor, others: Tensor, k: int, *, first: int | None = None) -> Tensor:
    """Positions `(Q, k)` in `others (Q', F)` of the k nearest to each of `vectors (Q, F)`: nearest first, and equal
    distances in their order. With `first`, vector i is `others[first + i]` and comes before all copies of itself.

    >>> nearest_queries(torch.tensor([[0.0], [3.0]]), torch.tensor([[4.0], [1.0], [2.0]]), 2)
    tensor([[1, 2],
            [0, 2]])
    """
    positions = [torch.zeros(0, k, dtype=torch.int64, device=vectors.device)]
    step = max(1, DISTANCES // max(1, len(others)))
    for begin in range(0, len(vectors), step):
        block = vectors[begin : begin + step]
        distance = torch.cdist(block, others, compute_mode="donot_use_mm_for_euclid_dist")  # exact for equal vectors
        if first is not None:
            rows = torch.arange(len(block), device=block.device)
            distance[rows, first + begin + rows] = -1.0
        nearest = distance.argmin(1, keepdim=True) if k == 1 else distance.sort(dim=1, stable=True).indices[:, :k]
        positions.append(nearest)
    return torch.cat(positions)


def scores_by_list(x: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Scores (N,) of rows (N, D) under the weights (Q, D) of their lists, in the dtype of the rows.

    >>> scores_by_list(torch.eye(2), torch.tensor([0, 1, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1., 4.])
    """
    return (x.to(weight.dtype) * per_entry(weight, offsets, len(x))).sum(1).to(x.dtype)

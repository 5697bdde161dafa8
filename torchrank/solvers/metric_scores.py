"""Scores of models that compare entries with their query: under a metric, under its components, or by |q - x|.

A metric W scores an entry x of the list of query q by s = -(q - x)' W (q - x), a linear model by s = w . x, or by
w . |q - x| where there are query vectors. Distances are computed around the mean of the rows: they do not change, and
points far from 0 keep their digits.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.errors import DataError
from torchrank.functional.ragged import list_ids, per_entry, segment_sum
from torchrank.solvers.linear.scores import add_gradient, entry_scores

CHUNK_NUMBERS = 2**22  # of the differences |q - x|, held at once


def metric_scores(batch: Batch, metric: Tensor) -> Tensor:
    """Scores (N,) = -(q - x)' W (q - x) in float64, for W (D, D), or (D,) on its diagonal.

    >>> from torchrank.data.batch import make_batch
    >>> one, two = torch.zeros(1, 2), torch.tensor([[3.0, 1.0]])
    >>> batch = make_batch(two, torch.ones(1), torch.tensor([0, 1]), queries=one)
    >>> metric_scores(batch, torch.eye(2).double()), metric_scores(batch, torch.tensor([1.0, 0.0]).double())
    (tensor([-10.], dtype=torch.float64), tensor([-9.], dtype=torch.float64))
    """
    x, queries = centred_rows(batch)
    if batch.index is None:
        gaps = x - per_entry(queries, batch.offsets, len(x))
        return -(_times(gaps, metric) * gaps).sum(1)
    weighted = _times(queries, metric)
    of_query, of_row = (weighted * queries).sum(1), (_times(x, metric) * x).sum(1)
    return _minus_squares(batch, of_query, of_row, weighted, x)


def component_scores(batch: Batch, components: Tensor) -> Tensor:
    """Scores (N,) = -|L (q - x)|^2 in the type of the rows, for L (r, D). Differentiable.

    They are computed in the wider type of the two and rounded at the end. With L in float64, nearly equal rows are told
    apart, a row equal to the query scores 0, and equal rows tie whatever else is in the batch. The exceptions are some
    rows of a shared corpus whose distance from the query is at most 1e-4 of their length.
    """
    dtype = torch.promote_types(batch.x.dtype, components.dtype)
    projection = components.to(dtype).T
    if batch.index is None:
        gaps = _rows(batch, dtype) - per_entry(_given(batch).to(dtype), batch.offsets, len(batch.x))
        return -(gaps @ projection).square().sum(1).to(batch.x.dtype)
    right, left = (rows @ projection for rows in centred_rows(batch, dtype))
    of_query, of_row = left.square().sum(1), right.square().sum(1)
    sizes = per_entry(of_query, batch.offsets, len(batch.index)) + of_row.index_select(0, batch.index)
    unsure = 8 * torch.finfo(dtype).eps * sizes  # what the difference of squares loses
    scores = _minus_squares(batch, of_query, of_row, left, right)
    return torch.where(scores.abs() <= unsure, 0, scores).to(batch.x.dtype)


def linear_scores(batch: Batch, weight: Tensor) -> Tensor:
    """Scores (N,) = w . x, or w . |q - x| where the batch has query vectors, in the type of the weight (D,)."""
    if batch.queries is None:
        return entry_scores(batch, weight[None], per_topic=False)
    return torch.cat([weight.new_zeros(0), *(gaps @ weight for _, gaps in gap_blocks(batch, weight.dtype))])


def _minus_squares(batch: Batch, of_query: Tensor, of_row: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """2 l.r - |q|^2 - |x|^2 of the entries of a shared corpus, given |q|^2 (Q,), |x|^2 (n,), l (Q, r) and r (n, r)."""
    index: Any = batch.index
    if fills_table(batch):
        table = torch.addmm(-of_query[:, None] - of_row, left, right.T, alpha=2.0)
        return table.flatten().index_select(0, table_places(batch))
    products = per_entry(left, batch.offsets, len(index)) * right.index_select(0, index)
    return 2 * products.sum(1) - per_entry(of_query, batch.offsets, len(index)) - of_row.index_select(0, index)


def fills_table(batch: Batch, most: int = 4) -> bool:
    """Whether the lists hold so much of their corpus that a table (Q, n) is cheaper than gathered rows: at most `most`
    numbers of the table for each entry."""
    return batch.index is not None and most * len(batch.index) >= batch.num_lists * len(batch.x)


def table_places(batch: Batch) -> Tensor:
    """Places (N,) of the entries in a table (Q, n)."""
    index: Any = batch.index
    return list_ids(batch.offsets, len(index)).mul_(len(batch.x)).add_(index)


def gap_blocks(batch: Batch, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """Ranges of entries with their |q - x|, a chunk at a time."""
    lists, rows, queries = list_ids(batch.offsets, len(batch.labels)), _rows(batch, dtype), _given(batch).to(dtype)
    step = max(1, CHUNK_NUMBERS // max(rows.shape[1], 1))
    for start in range(0, len(lists), step):
        entries = slice(start, start + step)
        documents = rows[entries] if batch.index is None else rows[batch.index[entries]]
        yield entries, (queries[lists[entries]] - documents).abs()


def _times(rows: Tensor, metric: Tensor) -> Tensor:
    return rows @ metric if metric.dim() == 2 else rows * metric


def _rows(batch: Batch, dtype: torch.dtype = torch.float64) -> Tensor:
    x: Any = batch.x
    rows: Tensor = x.to(dtype)
    return rows


def centred_rows(batch: Batch, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Rows (n, D) and query vectors (Q, D) minus the mean of the rows."""
    rows, queries = _rows(batch, dtype), _given(batch).to(dtype)
    mean = rows.mean(0) if len(rows) else 0
    return rows - mean, queries - mean


def _given(batch: Batch) -> Tensor:
    if batch.queries is None:
        raise DataError("distances need query vectors, but these lists have none")
    return batch.queries


def add_metric_psi(batch: Batch, coefficients: Tensor, into: Tensor) -> None:
    """into (D, D) += the sum over the lists of delta psi."""
    sums, rows, weights, queries = _weighed_rows(batch, coefficients)
    cross = queries.T @ sums
    into += cross + cross.T - rows.T @ (weights[:, None] * rows)


def add_diagonal_psi(batch: Batch, coefficients: Tensor, into: Tensor) -> None:
    """into (D,) += the diagonal of the sum over the lists of delta psi."""
    sums, rows, weights, queries = _weighed_rows(batch, coefficients)
    into += 2 * (queries * sums).sum(0) - weights @ rows.square()


def add_linear_psi(batch: Batch, coefficients: Tensor, into: Tensor) -> None:
    """into (D,) += sum of c x over all entries, or of c |q - x| where the batch has query vectors."""
    if batch.queries is None:
        return add_gradient(batch, coefficients, into[None], per_topic=False)
    for entries, gaps in gap_blocks(batch, into.dtype):
        into += coefficients[entries] @ gaps


def _weighed_rows(batch: Batch, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """C X (Q, D), the rows (n, D), the sum of the coefficients of each row (n,), and the query vectors (Q, D)."""
    if not fills_table(batch):
        rows, queries = centred_rows(batch.flat())
        return segment_sum(coefficients[:, None] * rows, batch.offsets), rows, coefficients, queries
    rows, queries = centred_rows(batch)
    spread = coefficients.new_zeros(batch.num_lists * len(rows))
    spread = spread.index_add_(0, table_places(batch), coefficients).view(batch.num_lists, len(rows))
    return spread @ rows, rows, spread.sum(0), queries

"""Linear models of ranked documents, dense or sparse: one for all lists, or one for each list (a topic)."""

from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import list_ids


def entry_scores(batch: Batch, weight: Tensor, per_topic: bool) -> Tensor:
    """Scores (N,) of the entries under weights (T, D): row 0, or with `per_topic` the row at the list's position."""
    if not per_topic:
        scores = wide_rows(batch.x, weight.dtype) @ weight[0]
        return scores if batch.index is None else scores[batch.index]
    scores = wide_rows(batch.x, weight.dtype) @ weight[batch.query].T  # (n, Q)
    return scores[_rows(batch), list_ids(batch.offsets, len(batch.labels))]


def add_gradient(batch: Batch, slopes: Tensor, into: Tensor, per_topic: bool) -> None:
    """into (T, D) += the gradient in the weights of a function with these slopes (N,) at the entry scores."""
    x = wide_rows(batch.x, into.dtype)
    if not per_topic:
        if batch.index is not None:
            slopes = slopes.new_zeros(len(x)).index_add_(0, batch.index, slopes)
        into[0] += x.T @ slopes
        return
    spread = slopes.new_zeros(len(x), batch.num_lists)
    places = (_rows(batch), list_ids(batch.offsets, len(slopes)))
    spread.index_put_(places, slopes, accumulate=True)  # a document may stand in a list twice
    into[batch.query] += (x.T @ spread).T


def _rows(batch: Batch) -> Tensor:
    return torch.arange(len(batch.labels), device=batch.device) if batch.index is None else batch.index


def restrict(batches: list[Batch], features: Tensor) -> list[Batch]:
    """The batches with these features only; a corpus that they share stays shared."""
    made: dict[int, Any] = {}
    for batch in batches:
        if id(batch.x) not in made:
            made[id(batch.x)] = take_columns(batch.x, features)
    return [batch._replace(x=made[id(batch.x)]) for batch in batches]


def take_columns(x: Tensor | SparseRows, features: Tensor) -> Any:
    if not isinstance(x, SparseRows):
        return x[:, features]
    place = torch.full((x.num_features,), -1, device=x.device, dtype=x.columns.dtype)
    place[features] = torch.arange(len(features), device=x.device, dtype=x.columns.dtype)
    columns = place[x.columns]
    kept = torch.nn.functional.pad((columns >= 0).cumsum(0), (1, 0))
    inside = columns >= 0
    return SparseRows(x.values[inside], columns[inside], kept[x.row_offsets], len(features))


def column_extremes(x: Tensor | SparseRows) -> Tensor:
    """-min and max of each column (2, D), in float64.

    >>> column_extremes(SparseRows.from_dense(torch.tensor([[1.0, 0.0], [2.0, 3.0]])))
    tensor([[-1.,  0.],
            [ 2.,  3.]], dtype=torch.float64)
    """
    if not isinstance(x, SparseRows):
        return torch.stack((-x.amin(0), x.amax(0))).double()
    columns = x.by_column().transposed
    counts, values = columns.row_offsets.diff(), columns.values.double()
    found = torch.zeros(2, x.num_features, dtype=torch.float64, device=x.device)
    ends = torch.stack((-values, values))
    found.scatter_reduce_(1, columns.row_ids().expand(2, -1), ends, "amax", include_self=False)
    return torch.where(counts == len(x), found, found.clamp(min=0))  # where values are absent they are 0


def wide_rows(x: Tensor | SparseRows, dtype: torch.dtype) -> Any:
    """Dense rows in this dtype; sparse ones take that of what they are multiplied by."""
    return x if isinstance(x, SparseRows) else x.to(dtype)

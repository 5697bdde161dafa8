"""Queries as vectors, each the mean of its documents, and their nearest queries (Geng et al. 2008)."""

import torch
from torch import Tensor

from torchrank.functional.ragged import per_entry, ranks, segment_sum, wide

BLOCK = 2**22  # distances computed at once: 32 MB in float64


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
    found = []
    step = max(1, BLOCK // max(1, len(others)))
    for begin in range(0, len(vectors), step):
        block = vectors[begin : begin + step]
        distance = torch.cdist(block, others, compute_mode="donot_use_mm_for_euclid_dist")  # exact for equal vectors
        if first is not None:
            rows = torch.arange(len(block), device=block.device)
            distance[rows, first + begin + rows] = -1.0
        found.append(distance.sort(dim=1, stable=True).indices[:, :k] if k > 1 else distance.argmin(1, keepdim=True))
    return torch.cat(found) if found else torch.zeros(0, k, dtype=torch.int64, device=vectors.device)


def own_scores(x: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Scores (N,) of rows (N, D) under the weights (Q, D) of their lists, in the dtype of the rows.

    >>> own_scores(torch.eye(2), torch.tensor([0, 1, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1., 4.])
    """
    return (x.to(weight.dtype) * per_entry(weight, offsets, len(x))).sum(1).to(x.dtype)

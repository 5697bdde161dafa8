"""Linear maps that start as the identity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROWS = 2**14  # mapped at a time


class LinearMap(nn.Module):
    """v + v S, with a square matrix S or, of low rank, S = A B. It starts as the identity, to the bit.

    >>> map = LinearMap(3, rank=1)
    >>> map(torch.ones(1, 3))
    tensor([[1., 1., 1.]], grad_fn=<AddBackward0>)
    """

    def __init__(self, width: int, rank: int | None = None):
        super().__init__()
        if rank is None:
            self.shift = nn.Parameter(torch.zeros(width, width, dtype=torch.float64))
        else:
            self.down = nn.Parameter(torch.randn(width, rank, dtype=torch.float64) / width**0.5)
            self.up = nn.Parameter(torch.zeros(rank, width, dtype=torch.float64))

    def forward(self, vectors: Tensor) -> Tensor:
        if hasattr(self, "shift"):
            return vectors + vectors @ self.shift.to(vectors.dtype)
        return vectors + (vectors @ self.down.to(vectors.dtype)) @ self.up.to(vectors.dtype)

    def change(self) -> Tensor:
        """S (D, D)."""
        return self.shift if hasattr(self, "shift") else self.down @ self.up

    def matrix(self) -> Tensor:
        """I + S (D, D), by which vectors are multiplied."""
        change = self.change().detach()
        return torch.eye(len(change), dtype=change.dtype, device=change.device) + change


def map_rows(map: nn.Module, vectors: Tensor) -> Tensor:
    """The images of many vectors (n, D), made block by block: the memory beside them is small.

    >>> map_rows(LinearMap(2), torch.ones(3, 2, dtype=torch.float16)).dtype
    torch.float32
    """
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    images = torch.empty(vectors.shape, dtype=dtype, device=vectors.device)
    with torch.no_grad():
        for image, part in zip(images.split(ROWS), vectors.split(ROWS), strict=True):
            image.copy_(map(part.to(dtype)))
    return images


def root_change(metric: Tensor) -> Tensor:
    """S (D, D) with (I + S)^2 = W, for a metric W (D, D); 0 to the bit where W is the identity.

    >>> root_change(torch.tensor([[4.0, 0.0], [0.0, 1.0]]).double())
    tensor([[1., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    eye = torch.eye(len(metric), dtype=metric.dtype, device=metric.device)
    if torch.equal(metric, eye):
        return torch.zeros_like(metric)
    values, vectors = torch.linalg.eigh(metric)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root - eye

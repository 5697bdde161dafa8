"""Distances from anchors under metrics that are being trained: half of the products, and nothing large is kept.

Let z = (x, 1), G = (F, -b) and c the slope of the loss by a distance, divided by the distance. The distance is
||G' z|| = ||R z||, where R is the staircase of G' (see compiled.py): a product with it skips what is 0. The gradient by
G is (sum of c z z') G. This sum is symmetric, so again half of it is computed, and it needs no images of the rows: all
that is kept is one number per row and metric. The parameters remain the factors themselves, so that an optimizer takes
the same steps as with the plain form.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.sparse import SparseRows
from torchrank.functional.arrays import host

WIDTH, DIRECTIONS = 256, 32  # up to 32 directions of all metrics share a product, which has at most 256 rows
NUMBERS = 2**17  # in an intermediate result, for each thread: 0.5 MB stay in its cache
ROWS = 4  # per feature: with fewer, the decomposition costs more than half of the products


def anchor_distances(x: Tensor | SparseRows, factors: Tensor, shifts: Tensor) -> Tensor:
    """Distances (n, M) = ||F_r' x - b_r|| of rows (n, D), for `factors` (M, D, k) and `shifts` (M, k) in their dtype.

    The gradient at an anchor is 0, not nan.

    Example:
        >>> anchor_distances(torch.tensor([[3.0, 4.0]]), torch.eye(2)[None], torch.zeros(1, 2))
        tensor([[5.]])
    """
    if isinstance(x, Tensor) and _pays(x, factors):
        return staircase_distances(x, torch.cat([factors, -shifts[:, None]], 1)).T
    images: Tensor = (x @ factors.permute(1, 0, 2).flatten(1)).unflatten(1, shifts.shape) - shifts
    distances: Tensor = torch.linalg.vector_norm(images, dim=2)
    return distances


def _pays(x: Tensor, factors: Tensor) -> bool:
    """Whether the rows are constants, and so many, with so many directions, that half of the products is less."""
    count, width, rank = factors.shape
    if host(x) is None or x.dtype not in (torch.float32, torch.float64):
        return False
    return not x.requires_grad and count > 0 and len(x) >= ROWS * width and 2 * rank > width


class _StaircaseDistances(torch.autograd.Function):
    """Distances (M, n) of rows (n, D) under (M, D+1, k) factors with their shifts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor) -> Tensor:
        rows, z = torch.linalg.qr(factors.mT.double(), mode="r").R.to(x.dtype), pad(x, (0, 1), value=1.0)
        count, step = len(rows), _directions(factors)
        blocks = [rows[:, first : first + step, first:] for first in range(0, rows.shape[1], step)]
        stairs = [block.transpose(0, 1).flatten(0, 1) for block in blocks]  # (directions M, D+1-first)
        squares = x.new_zeros(count, len(x))
        for chunk in _chunks(len(x), count * step):
            for number, stair in enumerate(stairs):
                images = stair @ z[chunk, number * step :].T
                squares[:, chunk] += images.square_().unflatten(0, (-1, count)).sum(0)
        distances = squares.sqrt_()
        ctx.save_for_backward(z, factors, distances)
        return distances

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        z, factors, distances = ctx.saved_tensors
        slopes = torch.where(distances == 0, 0, grads[0] / distances)
        return None, _weighted_moments(z, slopes, _directions(factors)) @ factors


# `Function.apply` has no types
staircase_distances: Callable[[Tensor, Tensor], Tensor] = _StaircaseDistances.apply


def _weighted_moments(z: Tensor, slopes: Tensor, step: int) -> Tensor:
    """The sums (M, D, D) of c z z' over the rows z (n, D), c (M, n): `step` lines of all at a time, from the diagonal
    on; the others are their mirror image."""
    count, width = len(slopes), z.shape[1]
    starts = range(0, width, step)
    sums = [z.new_zeros(count * len(range(first, width)[:step]), width - first) for first in starts]
    for chunk in _chunks(len(z), count * step):
        rows, columns, own = z[chunk], z[chunk].T.contiguous(), slopes[:, None, chunk]
        for first, total in zip(starts, sums, strict=True):
            total.addmm_((columns[first : first + step] * own).flatten(0, 1), rows[:, first:])
    moments = z.new_empty(count, width, width)
    for first, total in zip(starts, sums, strict=True):
        lines = total.view(count, -1, width - first)
        moments[:, first : first + step, first:] = lines
        moments[:, first:, first : first + step] = lines.mT
    return moments


def _directions(factors: Tensor) -> int:
    return max(1, min(WIDTH // len(factors), DIRECTIONS))


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Ranges of rows with at most NUMBERS entries in `columns` columns."""
    step = max(1, NUMBERS * torch.get_num_threads() // columns)
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))

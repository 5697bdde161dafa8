"""The centred rows of clouds as batched matrices with exact padding: a loop over chunks of lists, none over lists."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from torchrank.functional.chunks import Chunk, length_chunks, side_by_side
from torchrank.functional.ragged import wide

CHUNK_NUMBERS = 2**18  # numbers of a chunk on the CPU: 2 MB in float64 stay in the cache
DEVICE_NUMBERS = 2**25  # the same on other devices: 256 MB


class Cloud(NamedTuple):
    """The centred rows of the lists of a chunk."""

    x: Tensor  # (B, L, D) float64, rows of zeros after the end of each list, which add nothing to any sum
    mean: Tensor  # (B, D)
    length: Tensor  # (B,) number of documents, float64
    size: Tensor  # (B,) largest |x| before centring


def for_clouds(
    function: Callable[[Cloud], Sequence[Tensor]],
    x: Tensor,
    offsets: Tensor,
    results: Sequence[Tensor],
    *,
    shortest: int,
) -> None:
    """Write what `function` returns for the clouds of each chunk to the rows of `results`, `(Q, ...)` each.

    The rows of lists with fewer than `shortest` documents are left as they are.
    """

    def solve(chunk: Chunk) -> None:
        for result, part in zip(results, function(centred(x, offsets, chunk)), strict=True):
            result[chunk.lists, ...] = part.to(result.dtype)

    most = (CHUNK_NUMBERS if x.device.type == "cpu" else DEVICE_NUMBERS) // max(x.shape[1], 1)
    side_by_side(solve, length_chunks(offsets, len(x), most, shortest=shortest), x.device)


def centred(x: Tensor, offsets: Tensor, chunk: Chunk) -> Cloud:
    """The rows of the lists of a chunk minus their mean.

    Padding repeats the last row and is 0 after centring. The first row is subtracted before the mean is taken, so that
    equal rows give exact zeros and a cloud far from the origin keeps its digits.
    """
    start = offsets[chunk.lists]
    count, place = offsets[chunk.lists + 1] - start, torch.arange(chunk.longest, device=x.device)
    rows = start[:, None] + torch.minimum(place, count[:, None] - 1)
    values = wide(x.index_select(0, rows.flatten())).view(*rows.shape, x.shape[1])
    size, pivot = vector_norm(values, torch.inf, dim=(1, 2)), values[:, :1].clone()
    inside, length = wide(place < count[:, None]), wide(count)
    mean = torch.bmm((inside / length[:, None]).unsqueeze(1), values.sub_(pivot))
    values.sub_(mean)[:, chunk.shortest :].mul_(inside[:, chunk.shortest :, None])
    return Cloud(values, (pivot + mean).squeeze(1), length, size)


def width_of(x: Tensor) -> int:
    """The number of features of the rows `x (N, D)`."""
    if x.ndim != 2:
        raise ValueError(f"x must have the shape (N, D), one row per document, got {tuple(x.shape)}")
    return x.shape[1]

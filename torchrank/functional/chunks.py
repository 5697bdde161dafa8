"""Chunks of lists of similar length, solved together as batched matrices, and threads for work on the CPU."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from torchrank.functional.ragged import read, wide

SIMILAR = 0.8  # length of the shortest list of a chunk as a share of the longest: at most 1.25 times the rows
MANY_COLUMNS = 32  # columns above which CUDA solves one eigenproblem after the other

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Lists of similar length that are solved together."""

    lists: Tensor  # (B,) numbers of its lists
    shortest: int  # length of the shortest one
    longest: int  # length of the longest one


def length_chunks(
    offsets: Tensor, num_rows: int, most: int, *, shortest: int = 1, similar: float = SIMILAR
) -> list[Chunk]:
    """Chunks of all lists with at least `shortest` rows, long lists first.

    A chunk has at most `most` rows, padding included, or one list. The lengths are read once; on the meta device, where
    they cannot be read, there is one chunk.

    >>> [chunk.lists.tolist() for chunk in length_chunks(torch.tensor([0, 1, 6, 11, 15]), 15, 10)]
    [[1, 2], [3], [0]]
    """
    sorted_lengths, order = offsets.diff().sort(stable=True)
    if order.is_meta:
        return [Chunk(order, 0, num_rows)] if len(order) else []
    lengths = read(sorted_lengths)
    if sum(lengths) != num_rows:
        raise ValueError(f"offsets must end at the number of rows of x, {num_rows}, got {sum(lengths)}")
    begin, end, chunks = bisect_left(lengths, shortest), len(lengths), []
    while end > begin:
        longest = lengths[end - 1]
        first = max(begin, end - max(1, most // longest), bisect_left(lengths, similar * longest))
        chunks.append(Chunk(order[first:end], lengths[first], longest))
        end = first
    return chunks


def side_by_side(function: Callable[[Piece], Result], pieces: list[Piece], device: torch.device) -> list[Result]:
    """`function` of each piece; on the CPU as many pieces run at a time as torch has threads, each on one thread.

    LAPACK works on one small matrix after another and gains almost nothing from several threads per matrix.
    """
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if device.type != "cpu" or min(threads, len(pieces)) < 2:
        return [function(piece) for piece in pieces]

    def on_one_thread(piece: Piece) -> Result:
        torch.set_num_threads(1)  # this setting and the two modes are per thread
        with torch.inference_mode(inference), torch.no_grad():
            return function(piece)

    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(on_one_thread, pieces))
    finally:
        torch.set_num_threads(threads)  # threads started later inherit the number that was set last


def many_eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.linalg.eigh` of symmetric matrices (B, D, D). On CUDA torch solves those of more than 32 columns one after
    the other, slower than one core: they are solved on the host, side by side.

    >>> many_eigh(torch.eye(2).expand(3, 2, 2))[0].shape
    torch.Size([3, 2])
    """
    if matrices.device.type in ("cpu", "meta") or len(matrices) < 2 or matrices.shape[-1] <= MANY_COLUMNS:
        values, vectors = torch.linalg.eigh(matrices)
        return values, vectors
    parts = list(matrices.cpu().chunk(torch.get_num_threads()))
    solved = side_by_side(torch.linalg.eigh, parts, torch.device("cpu"))
    values, vectors = (torch.cat(part).to(matrices.device) for part in zip(*solved, strict=True))
    return values, vectors


# ---------------------------------------------------------------------------------------------- centred rows of clouds

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

"""Chunks of lists of nearly one length: how ragged clouds of rows become batched matrices, with exact padding.

There is a loop over chunks and none over lists. On the host the chunks run side by side, one thread each.
"""

from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from torchrank.functional.ragged import read, wide

CHUNK_NUMBERS = 2**18  # numbers of a chunk on the host: 2 MB in float64 stay in the cache
DEVICE_NUMBERS = 2**25  # and elsewhere: 256 MB
FILLED = 0.8  # shortest list of a chunk as a share of the longest: at most 1.25 times the rows

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Chunk(NamedTuple):
    lists: Tensor  # (B,) numbers of its lists
    shortest: int
    longest: int


class Cloud(NamedTuple):
    """A chunk of clouds of nearly one length, centred."""

    x: Tensor  # (B, L, D) float64, rows of zeros behind the end of each list: they add nothing to any sum
    mean: Tensor  # (B, D)
    length: Tensor  # (B,) documents, float64
    size: Tensor  # (B,) largest |x| before centring


def cloud_chunks(x: Tensor, offsets: Tensor, *, shortest: int, max_length: int | None = None) -> list[Chunk]:
    """All lists with `shortest` rows or more, the long ones first. One look at the lengths; on the meta device, where
    there is none, one chunk."""
    lengths, order = offsets.diff().sort()
    if lengths.is_meta:
        return [Chunk(order, 0, len(x) if max_length is None else max_length)] if len(order) else []
    known = read(lengths)
    if sum(known) != len(x):
        raise ValueError(f"the lists of offsets have {sum(known)} entries, but x has {len(x)} rows")
    if max_length is not None and known and known[-1] > max_length:
        raise ValueError(f"max_length is {max_length}, but the longest list has {known[-1]} entries")
    room = (CHUNK_NUMBERS if x.device.type == "cpu" else DEVICE_NUMBERS) // max(x.shape[1], 1)
    begin, end, chunks = bisect_left(known, shortest), len(known), []
    while end > begin:
        longest = known[end - 1]
        first = max(begin, end - max(1, room // longest), bisect_left(known, FILLED * longest))
        chunks.append(Chunk(order[first:end], known[first], longest))
        end = first
    return chunks


def centred(x: Tensor, offsets: Tensor, chunk: Chunk) -> Cloud:
    """The rows of the lists of a chunk around their mean. Padding repeats the last row and is 0 after centring; the
    first row is taken off before the mean, so that equal rows give zeros and a far cloud keeps its digits."""
    start = offsets[chunk.lists]
    count, place = offsets[chunk.lists + 1] - start, torch.arange(chunk.longest, device=x.device)
    rows = start[:, None] + torch.minimum(place, count[:, None] - 1)
    values = wide(x.index_select(0, rows.flatten())).view(*rows.shape, x.shape[1])
    size, pivot = vector_norm(values, torch.inf, dim=(1, 2)), values[:, :1].clone()
    inside, weight = wide(place < count[:, None]), wide(count)
    mean = torch.bmm((inside / weight[:, None]).unsqueeze(1), values.sub_(pivot))
    values.sub_(mean)[:, chunk.shortest :].mul_(inside[:, chunk.shortest :, None])
    return Cloud(values, (pivot + mean).squeeze(1), weight, size)


@cache
def keep_freed_memory() -> None:
    """Once, before work on the host that frees many blocks: the block freed here, never touched, teaches glibc to take
    blocks of up to 31 MB from its heap, and to return the end of the heap to the system from 62 MB on. Without it an
    oracle may spend half of its time on getting the same pages back. It holds for all that the process allocates."""
    torch.empty(31 * 2**20, dtype=torch.uint8, device="cpu")


def side_by_side(function: Callable[[Piece], Result], pieces: list[Piece], device: torch.device) -> list[Result]:
    """`function` of each piece, on the host as many at a time as torch has threads, each on one: LAPACK works on one
    small matrix after the other, and gains next to nothing from threads within one."""
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if device.type != "cpu" or min(threads, len(pieces)) < 2:
        return [function(piece) for piece in pieces]

    def alone(piece: Piece) -> Result:
        torch.set_num_threads(1)  # of this thread, like the two modes
        with torch.inference_mode(inference), torch.no_grad():
            return function(piece)

    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(alone, pieces))
    finally:
        torch.set_num_threads(threads)  # threads that come later start with the number that was set last


def check_rows(x: Tensor) -> None:
    if x.ndim != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}, a cloud is made of rows: (N, D)")

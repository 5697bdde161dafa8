"""Chunks of lists of similar length: how ragged clouds of rows become batched matrices, with exact padding.

There is a loop over chunks but none over lists.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from torchrank.functional.ragged import read, wide

CHUNK_NUMBERS = 2**18  # numbers of a chunk on the CPU: 2 MB in float64 stay in the cache
DEVICE_NUMBERS = 2**25  # the same on other devices: 256 MB
FILLED = 0.8  # shortest list of a chunk as a share of the longest: at most 1.25 times the rows


class Chunk(NamedTuple):
    """Lists of similar length that are solved together."""

    lists: Tensor  # (B,) numbers of its lists
    shortest: int  # length of the shortest one
    longest: int  # length of the longest one


class Cloud(NamedTuple):
    """The centred rows of the lists of a chunk."""

    x: Tensor  # (B, L, D) float64, rows of zeros after the end of each list, which add nothing to any sum
    mean: Tensor  # (B, D)
    length: Tensor  # (B,) number of documents, float64
    size: Tensor  # (B,) largest |x| before centring


def cloud_chunks(x: Tensor, offsets: Tensor, *, shortest: int, max_length: int | None = None) -> list[Chunk]:
    """Chunks of all lists with at least `shortest` rows, long lists first.

    The lengths are read once; on the meta device, where they cannot be read, there is one chunk.
    """
    lengths, order = offsets.diff().sort()
    if lengths.is_meta:
        return [Chunk(order, 0, len(x) if max_length is None else max_length)] if len(order) else []
    known = read(lengths)
    if sum(known) != len(x):
        raise ValueError(f"offsets must end at the number of rows of x, {len(x)}, got {sum(known)}")
    if max_length is not None and known and known[-1] > max_length:
        raise ValueError(f"max_length must be at least {known[-1]}, the length of the longest list, got {max_length}")
    room = (CHUNK_NUMBERS if x.device.type == "cpu" else DEVICE_NUMBERS) // max(x.shape[1], 1)
    begin, end, chunks = bisect_left(known, shortest), len(known), []
    while end > begin:
        longest = known[end - 1]
        first = max(begin, end - max(1, room // longest), bisect_left(known, FILLED * longest))
        chunks.append(Chunk(order[first:end], known[first], longest))
        end = first
    return chunks


def pair_blocks(offsets: Tensor, most: int, *, few: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of lists of similar length on the CPU, the longest first, for work on all pairs of their entries.

    Yields the lists `(B,)`, their entries `(B, longest)` and which of these are inside the list; the places after the
    end of a list hold its last entry. A block has at most `most` pairs, or one list; up to `few` pairs it may hold
    lists of any length. Lists without entries are in no block.

    >>> [entries.tolist() for _, entries, _ in pair_blocks(torch.tensor([0, 1, 1, 3]), 9, few=9)]
    [[[1, 2], [0, 0]]]
    """
    lengths, order = offsets.diff().sort(descending=True)
    falling, begin = (-lengths).numpy(), 0
    filled = int(falling.searchsorted(0))
    while begin < filled:
        longest = -int(falling[begin])
        alike = int(falling.searchsorted(-FILLED * longest, side="right")) - begin
        end = min(filled, begin + max(1, few // longest**2, min(alike, most // longest**2)))
        lists, place, last = order[begin:end], torch.arange(longest), lengths[begin:end, None] - 1
        yield lists, offsets[lists][:, None] + torch.minimum(place, last), place <= last
        begin = end


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
    inside, weight = wide(place < count[:, None]), wide(count)
    mean = torch.bmm((inside / weight[:, None]).unsqueeze(1), values.sub_(pivot))
    values.sub_(mean)[:, chunk.shortest :].mul_(inside[:, chunk.shortest :, None])
    return Cloud(values, (pivot + mean).squeeze(1), weight, size)


def check_rows(x: Tensor) -> None:
    if x.ndim != 2:
        raise ValueError(f"x must have the shape (N, D), one row per document, got {tuple(x.shape)}")

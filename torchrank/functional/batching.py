"""Blocks of lists of similar length, for work on all pairs of their entries."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torchrank.functional.chunks import SIMILAR


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
        alike = int(falling.searchsorted(-SIMILAR * longest, side="right")) - begin
        end = min(filled, begin + max(1, few // longest**2, min(alike, most // longest**2)))
        lists, place, last = order[begin:end], torch.arange(longest), lengths[begin:end, None] - 1
        yield lists, offsets[lists][:, None] + torch.minimum(place, last), place <= last
        begin = end

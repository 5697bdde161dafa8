"""Self-attention over the documents of a list (Pang et al. 2020, SetRank; Pobrotyn et al. 2020, allRank)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from torchrank.data.sparse import SparseRows
from torchrank.functional.arrays import host, to_offsets
from torchrank.functional.ragged import per_entry, positions_within, segment_sum
from torchrank.rankers.neural.mlp import last_scores, project

EXACT = 16  # lists of up to so many documents are laid beside lists of their own length alone


class AttentionScorer(nn.Module):
    """A transformer without positions: every document looks at all documents of its list, whatever their order.

    Blocks x + attention(norm(x)) and x + W2 relu(W1 norm(x)), each with dropout; then norm and a linear score. Lists of
    like length are laid side by side, so that memory grows with the documents of a batch, not with its longest list.

    Args:
        num_inputs: columns of the rows.
        width: of the values of a document; a multiple of `heads`.
        blocks: how many.
        heads: of the attention.
        hidden: width inside the second half of a block.
        dropout: share of what blocks add, and of their hidden values, that is dropped while training.
        outputs: scores for each row.
        bias: whether the last layer has one, for losses that look at a score by itself.
    """

    def __init__(
        self,
        num_inputs: int,
        width: int = 64,
        blocks: int = 2,
        heads: int = 4,
        hidden: int = 256,
        dropout: float = 0.1,
        outputs: int = 1,
        bias: bool = False,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got width={width} and heads={heads}")
        self.first = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, bias=bias)  # without: a constant, as that of the last layer
        self.last = nn.Linear(width, outputs, bias=bias)

    def forward(self, x: Tensor | SparseRows, offsets: Tensor | None = None, max_length: int | None = None) -> Tensor:
        """Scores of the documents of whole lists; without offsets, of one list."""
        values = project(x, self.first)
        layout = None if offsets is None else lay_out(offsets, len(values), max_length)
        for block in self.blocks:
            values = block(values, layout)
        scores: Tensor = self.last(self.norm(values))
        return last_scores(scores).to(x.dtype)


class Block(nn.Module):
    """Attention, and a network of each document by itself; both add to what comes in."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.views = nn.Linear(width, 3 * width, bias=False)  # a bias of the keys would change nothing
        self.mix = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, layout: Layout | None) -> Tensor:
        views = self.views(self.norms[0](x)).unflatten(1, (3, self.heads, -1))
        seen = attend(views[None])[0] if layout is None else attend_within(views, layout)
        x = x + self.dropout(self.mix(seen.flatten(1)))
        inside = self.dropout(torch.relu(self.first(self.norms[1](x))))
        added: Tensor = self.dropout(self.second(inside))
        return x + added


def attend(views: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention (B, L, heads, width) within B lists of L documents, whose queries, keys and values are `views
    (B, L, 3, heads, width)`; `mask (B, L)` says which of them are documents."""
    queries, keys, values = views.permute(2, 0, 3, 1, 4)
    seen = None if mask is None else mask[:, None, None, :]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=seen).transpose(1, 2)


class Layout(NamedTuple):
    """Where the entries of flat lists lie in blocks of lists of like length.

    Args:
        source: (P,) the entry at each place of the blocks; any other one where a list has ended.
        inside: (P,) whether there is an entry.
        target: (N,) the place of each entry.
        blocks: lists of each block, their common length, and whether all of them are as long as that.
    """

    source: Tensor
    inside: Tensor
    target: Tensor
    blocks: list[tuple[int, int, bool]]


def attend_within(views: Tensor, layout: Layout) -> Tensor:
    """Attention (N, heads, width) within flat lists, with queries, keys and values `views (N, 3, heads, width)`."""
    if not len(layout.source):
        return views[:, 0]
    sizes = [count * length for count, length, _ in layout.blocks]
    rows, masks = views.index_select(0, layout.source).split(sizes), layout.inside.split(sizes)
    found = [
        attend(part.unflatten(0, (count, length)), None if full else mask.view(count, length)).flatten(0, 1)
        for part, mask, (count, length, full) in zip(rows, masks, layout.blocks, strict=True)
    ]
    return torch.cat(found).index_select(0, layout.target)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def lay_out(offsets: Tensor, num_entries: int, max_length: int | None) -> Layout:
    """Blocks of lists of like length, at most 1/8 of whose places are empty where lengths can be read without waiting.

    The length of its block depends on a list alone, and so do its scores. On a device the j-th longest of lists with N
    entries has at most N / j of them, which bounds the places by N log2 Q without a wait.
    """
    lengths = offsets.diff()
    if host(offsets) is not None:
        padded = padded_lengths(lengths)
        order = padded.argsort(stable=True)
        padded = padded[order]
        common, counts = padded.unique_consecutive(return_counts=True)
        filled = segment_sum(lengths[order], to_offsets(counts))
        sizes = zip(counts.tolist(), common.tolist(), filled.tolist(), strict=True)
        blocks = [(count, length, count * length == own) for count, length, own in sizes if length]
    else:
        order = lengths.argsort(descending=True, stable=True)
        blocks = [(count, length, False) for count, length in bounded(len(lengths), num_entries, max_length)]
        padded = torch.cat([lengths.new_full((count,), length) for count, length, _ in blocks] or [lengths])
    return _places(offsets, order, padded, blocks, num_entries)


def padded_lengths(lengths: Tensor) -> Tensor:
    """Lengths (Q,) rounded up to one of eight between a power of two and the next; short ones as they are.

    >>> padded_lengths(torch.tensor([0, 5, 16, 17, 33, 1251])).tolist()
    [0, 5, 16, 18, 36, 1280]
    """
    powers = 2 ** torch.log2(lengths.clamp(min=EXACT).double()).floor().long()
    steps = powers // 8
    return torch.where(lengths <= EXACT, lengths, (lengths + steps - 1) // steps * steps)


def bounded(num_lists: int, num_entries: int, max_length: int | None) -> list[tuple[int, int]]:
    """Numbers of lists from the longest on, and a length that none of them exceeds.

    >>> bounded(6, 100, 60)
    [(1, 60), (2, 50), (3, 25)]
    """
    found, first = [], 0
    while first < num_lists and num_entries:
        count = min(first + 1, num_lists - first)
        longest = num_entries // (first + 1)
        found.append((count, longest if max_length is None else min(max_length, longest)))
        first += count
    return found


def _places(offsets: Tensor, order: Tensor, padded: Tensor, blocks: list[tuple[int, int, bool]], num: int) -> Layout:
    lengths, total = offsets.diff(), sum(count * length for count, length, _ in blocks)
    bounds = to_offsets(padded)
    position = positions_within(bounds, total)
    source = per_entry(offsets[:-1][order], bounds, total) + position
    own = per_entry(lengths[order], bounds, total)
    inside = (position < own) | (own == 0)  # a list without documents must not attend to nothing
    first = torch.empty_like(bounds[:-1]).scatter(0, order, bounds[:-1])
    target = per_entry(first, offsets, num) + positions_within(offsets, num)
    return Layout(source.clamp(max=max(num - 1, 0)), inside, target, blocks)

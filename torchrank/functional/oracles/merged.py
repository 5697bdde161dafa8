"""Lists of relevant and irrelevant entries in rank order, both classes together: what the oracles are read off.

Row q of every `(Q, L)` tensor holds list q, best first. A ranking that keeps each class in the order of its scores is
written by how many entries of the other class stand before each entry: b_i at the i-th best relevant one, a_j at the
j-th best irrelevant one. In the sorted ranking these are m_i = `below` and t(j) = `above` at their places.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.ragged import list_ids, longest_list, positions_within, read, wide
from torchrank.functional.sorting import sort_marked


@dataclass(eq=False, frozen=True)
class Merged:
    """Behind the end of a list nothing is relevant and the counts stay as they are."""

    unordered: Tensor  # (N,) scores in float64
    order: Tensor  # (Q, L) which entry of its list stands at each place
    ones: Tensor  # (Q, L) 1 at relevant entries, 0 at others
    place: Tensor | None  # (N,) where each entry is in unordered rows; None: the rows have no end to fill
    lengths: Tensor  # (Q, 1)

    @cached_property
    def relevant(self) -> Tensor:  # (Q, L)
        return self.ones.bool()

    @cached_property
    def irrelevant(self) -> Tensor:  # (Q, L)
        return ~self.relevant if self.place is None else self.inside & ~self.relevant

    @cached_property
    def inside(self) -> Tensor:  # (Q, L)
        return torch.arange(self.order.shape[1], device=self.lengths.device) < self.lengths

    @cached_property
    def above(self) -> Tensor:
        """Relevant entries up to here, `(Q, L)`: i of the i-th relevant one, t(j) of the j-th irrelevant one."""
        return self.ones.cumsum(1)

    @cached_property
    def below(self) -> Tensor:
        """Irrelevant entries up to here, `(Q, L)`: m_i, and j."""
        ranks = torch.arange(1, self.order.shape[1] + 1, device=self.lengths.device)
        return (ranks if self.place is None else torch.minimum(ranks, self.lengths)) - self.above

    @property
    def counts(self) -> tuple[Tensor, Tensor]:
        """P and N, `(Q, 1)` each."""
        relevant = self.above[:, -1:]
        return relevant, self.lengths - relevant

    @cached_property
    def scale(self) -> Tensor:
        """2 / (P N), `(Q, 1)`; 0 for a list with one class."""
        relevant, irrelevant = self.counts
        pairs = wide(relevant * irrelevant)
        return torch.where(pairs > 0, 2 / pairs, 0)

    def scores(self, width: int | None = None) -> Tensor:
        """`(Q, L)`, or the first `width` columns, less the best one of the list, so that sums lose no digits to a shift
        or to scores that are far below; 0 behind the end."""
        rows = fill_rows(self.unordered, self.place, self.order.shape, 0)
        scores = rows.gather(1, self.order[:, :width]).sub_(rows.gather(1, self.order[:, :1]))
        return scores if self.place is None else torch.where(self.inside[:, :width], scores, 0)

    def inversions(self, before_relevant: Tensor, before_irrelevant: Tensor) -> Tensor:
        """`(Q, L)`: pairs in the wrong order, b_i at relevant entries and a_j - P at irrelevant ones."""
        after = before_irrelevant - self.above[:, -1:]
        return torch.where(self.relevant, before_relevant, after, out=after)

    def write_coefficients(self, inversions: Tensor, out: Tensor) -> None:
        """Those of psi(y*) - psi(y) for inversions `(Q, L)`, to `out (N,)` in the order of the entries."""
        values = inversions * self.scale
        if self.place is None:
            out.view(values.shape).scatter_(1, self.order, values)
        else:
            rows = torch.empty_like(values).scatter_(1, self.order, values)
            torch.index_select(rows.flatten(), 0, self.place, out=out)

    def nth(self, counts: Tensor, numbers: int) -> Tensor:
        """Place of the n-th entry that is counted, n = 0..numbers, `(Q, numbers + 1)`; any place if there is none."""
        n = torch.arange(numbers + 1, device=counts.device).expand(len(counts), -1).contiguous()
        return torch.searchsorted(counts, n).clamp(max=counts.shape[1] - 1)


def merge(
    scores: Tensor, relevant: Tensor, offsets: Tensor, *, max_length: int | None = None, lower: float = 0.0
) -> Merged:
    """Sorts once; relevant entries stand where they would with `lower` less.

    >>> merged = merge(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False]), torch.tensor([0, 3]))
    >>> merged.relevant.tolist(), merged.below.tolist()
    ([[False, True, False]], [[1, 1, 2]])
    """
    size, num_lists, lengths = len(scores), len(offsets) - 1, offsets.diff()[:, None]
    if max_length is None and num_lists > 0:  # elsewhere than on the host this waits for the device
        max_length = read(lengths.max())
    longest = longest_list(offsets, size, max_length)
    place, shape = None, (num_lists, longest)
    if num_lists * longest > size:  # else every list is as long as the longest
        place = list_ids(offsets, size) * longest + positions_within(offsets, size)
    scores = wide(scores)
    lowered = scores.sub(relevant.view(torch.uint8), alpha=lower) if lower else scores
    rows, marks = fill_rows(lowered, place, shape, -torch.inf), fill_rows(relevant, place, shape, False)
    order, ones = sort_marked(rows, marks)
    return Merged(scores, order, ones, place, lengths)


def fill_rows(values: Tensor, place: Tensor | None, shape: tuple[int, ...], end: float) -> Tensor:
    """`(N,)` to `(Q, L)` in the order of the entries, `end` behind the end."""
    if place is None:
        return values.view(shape)
    return values.new_full((math.prod(shape),), end).index_copy_(0, place, values).view(shape)


class Sums(NamedTuple):
    """Running sums along the rows. In the sorted ranking psi is largest; with b_i it is less by 2/(P N) cost_i(b_i),

    cost_i(b) = C(m_i) - m_i s_i - C(b) + b s_i >= 0,    C(b) the sum of the b best irrelevant scores.
    """

    irrelevant: Tensor  # (Q, L) scores of the irrelevant entries up to here: C
    relevant: Tensor  # (Q, L) scores of the relevant entries up to here
    costs: Tensor  # (Q, L) C(m_i) - m_i s_i of the relevant entries up to here


def running_sums(merged: Merged, scores: Tensor) -> Sums:
    """As many columns as `scores` has."""
    is_relevant, below = merged.relevant[:, : scores.shape[1]], merged.below[:, : scores.shape[1]]
    relevant = torch.where(is_relevant, scores, 0)
    irrelevant = (scores - relevant).cumsum_(1)
    costs = torch.where(is_relevant, irrelevant - below * scores, 0).cumsum_(1)
    return Sums(irrelevant, relevant.cumsum_(1), costs)

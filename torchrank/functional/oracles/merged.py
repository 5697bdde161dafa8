"""Lists of relevant and irrelevant entries in rank order, both classes together: the input of the oracles.

Row q of every `(Q, L)` tensor holds list q, best first. A ranking that keeps each class in the order of its scores is
described by the number of entries of the other class before each entry: b_i for the i-th best relevant one, a_j for the
j-th best irrelevant one. In the sorted ranking these are m_i = `below` and t(j) = `above` at their places.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.arrays import wide
from torchrank.functional.lists import Lists
from torchrank.functional.sorting import sort_marked


@dataclass(eq=False, frozen=True)
class Merged:
    """The sorted lists. After the end of a list nothing is relevant and the counts do not change."""

    scores_of_entries: Tensor  # (N,) scores in float64, in the given order
    order: Tensor  # (Q, L) which entry of the list is at each place
    ones: Tensor  # (Q, L) 1 at relevant entries, 0 at others
    slots: Tensor | None  # (N,) where each entry is in rows in the given order; None: the rows have no padding
    lengths: Tensor  # (Q, 1)

    @cached_property
    def relevant(self) -> Tensor:  # (Q, L)
        return self.ones.bool()

    @cached_property
    def irrelevant(self) -> Tensor:  # (Q, L)
        return ~self.relevant if self.slots is None else self.inside & ~self.relevant

    @cached_property
    def inside(self) -> Tensor:  # (Q, L)
        return torch.arange(self.order.shape[1], device=self.lengths.device) < self.lengths

    @cached_property
    def above(self) -> Tensor:
        """The number of relevant entries up to here, `(Q, L)`: i at relevant entries, t(j) at irrelevant ones."""
        return self.ones.cumsum(1)

    @cached_property
    def below(self) -> Tensor:
        """The number of irrelevant entries up to here, `(Q, L)`: m_i at relevant entries, j at irrelevant ones."""
        ranks = torch.arange(1, self.order.shape[1] + 1, device=self.lengths.device)
        return (ranks if self.slots is None else torch.minimum(ranks, self.lengths)) - self.above

    @property
    def counts(self) -> tuple[Tensor, Tensor]:
        """The numbers P of relevant and N of irrelevant entries, `(Q, 1)` each."""
        relevant = self.above[:, -1:]
        return relevant, self.lengths - relevant

    @cached_property
    def scale(self) -> Tensor:
        """2 / (P N), `(Q, 1)`; 0 for a list with one class."""
        relevant, irrelevant = self.counts
        pairs = wide(relevant * irrelevant)
        return torch.where(pairs > 0, 2 / pairs, 0)

    @cached_property
    def scores(self) -> Tensor:
        """Scores in rank order `(Q, L)`, minus the best one of the list, so that sums lose no digits to a shift or to
        scores that are far below; 0 after the end."""
        rows = fill_rows(self.scores_of_entries, self.slots, self.order.shape, 0).gather(1, self.order)
        scores = rows - rows[:, :1]
        return scores if self.slots is None else torch.where(self.inside, scores, 0)

    def inversions(self, before_relevant: Tensor, before_irrelevant: Tensor) -> Tensor:
        """The number of pairs in the wrong order, `(Q, L)`: b_i at relevant entries, minus it, a_j - P, at others."""
        after = before_irrelevant - self.above[:, -1:]
        return torch.where(self.relevant, before_relevant, after, out=after)

    def coefficients(self, inversions: Tensor) -> Tensor:
        """The coefficients of psi(y*) - psi(y) for inversions `(Q, L)`, `(N,)` in the given order."""
        values = inversions * self.scale
        values = torch.empty_like(values).scatter_(1, self.order, values).flatten()
        return values if self.slots is None else values.index_select(0, self.slots)

    def nth(self, counts: Tensor, numbers: int) -> Tensor:
        """The place of the n-th counted entry for n = 0..numbers, `(Q, numbers + 1)`; any place if there is none."""
        n = torch.arange(numbers + 1, device=counts.device).expand(len(counts), -1).contiguous()
        return torch.searchsorted(counts, n).clamp(max=counts.shape[1] - 1)


def merge(scores: Tensor, relevant: Tensor, lists: Lists, *, lower: float = 0.0) -> Merged:
    """Sorts the lists, relevant entries as if they scored `lower` less.

    >>> merged = merge(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False]), Lists.of([0, 3]))
    >>> merged.relevant.tolist(), merged.below.tolist()
    ([[False, True, False]], [[1, 1, 2]])
    """
    slots, shape = None, (len(lists), lists.longest)
    if math.prod(shape) > lists.num_entries:  # otherwise all lists have the same length
        slots = lists.ids * lists.longest + lists.positions
    scores = wide(scores)
    lowered = scores.sub(relevant.view(torch.uint8), alpha=lower) if lower else scores
    rows, marks = fill_rows(lowered, slots, shape, -torch.inf), fill_rows(relevant, slots, shape, False)
    order, ones = sort_marked(rows, marks)
    return Merged(scores, order, ones, slots, lists.offsets.diff()[:, None])


def fill_rows(values: Tensor, slots: Tensor | None, shape: tuple[int, ...], end: float) -> Tensor:
    """The values `(N,)` as rows `(Q, L)` in the order of the entries, `end` after the end of a list."""
    if slots is None:
        return values.view(shape)
    return values.new_full((math.prod(shape),), end).index_copy_(0, slots, values).view(shape)


class Sums(NamedTuple):
    """Running sums along the rows. psi is largest in the sorted ranking; b_i makes it smaller by 2/(P N) cost_i(b_i),

    cost_i(b) = C(m_i) - m_i s_i - C(b) + b s_i >= 0,    C(b) the sum of the b best irrelevant scores.
    """

    irrelevant: Tensor  # (Q, L) scores of the irrelevant entries up to here: C
    relevant: Tensor  # (Q, L) scores of the relevant entries up to here
    costs: Tensor  # (Q, L) C(m_i) - m_i s_i of the relevant entries up to here


def running_sums(merged: Merged) -> Sums:
    relevant = torch.where(merged.relevant, merged.scores, 0)
    irrelevant = (merged.scores - relevant).cumsum_(1)
    costs = torch.where(merged.relevant, irrelevant - merged.below * merged.scores, 0).cumsum_(1)
    return Sums(irrelevant, relevant.cumsum_(1), costs)

"""`Lists`, a description of which rows make up a list, and the decorators of all functions on lists.

Lists are flat: the entries of list q are `offsets[q]:offsets[q + 1]` of every `(N, ...)` tensor. The decorators
convert arrays to tensors, and offsets, group sizes, query ids or a mask to a `Lists`. They check shapes, labels and
weights, so that the functions behind them need not.
"""

import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypedDict, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torchrank.errors import DataError
from torchrank.functional.arrays import (
    USUAL,
    Array,
    as_argument,
    host,
    offsets_of,
    result_dtype,
    to_integers,
    to_offsets,
    wide,
)
from torchrank.functional.sorting import order_within

P = ParamSpec("P")
R = TypeVar("R")

MAX_GRADES = 64  # with larger integers labels count as real values: a table of (lists, grades) would be large
ALIKE = 0.8  # shortest list of a block as a share of the longest: at most 1.25 times the entries
ROWS = 16  # of a block that are compared with the other entries of their lists at once
FEW = 2**15  # pairs of places that take less time than a sort or the preparation of another block
STEP = 32  # entries that a running sum adds up at once


class Block(NamedTuple):
    """Lists of similar length in rows of equal length."""

    lists: Tensor  # (B,) their numbers
    entries: Tensor  # (B, L) their entries; the places after the end of a list repeat its last entry
    inside: Tensor | None  # (B, L) which places are entries; None: all places, and the block holds all lists

    def fill(self, values: Tensor, value: float) -> Tensor:
        """The values `(N,)` laid out as this block, `(B, L)`, with `value` at the places that hold no entry."""
        if self.inside is None:
            return values.view(self.entries.shape)
        rows = values.index_select(0, self.entries.flatten()).view(self.entries.shape)
        return torch.where(self.inside, rows, value)

    def add(self, total: Tensor, rows: Tensor) -> None:
        """Adds the values `(B, L)` of the block to `total (N,)` at their entries."""
        if self.inside is None:
            total += rows.flatten()
        else:
            total.index_add_(0, self.entries.flatten(), torch.where(self.inside, rows, 0).to(total.dtype).flatten())


class Lists:
    """A description of which rows make up a list: checked once, and passed to any function in place of offsets.

    Lists that are made with labels know their grades on every device, so that no function has to wait for a device: see
    `to`. Otherwise functions read the labels of each call if reading them is free, as on the CPU.

    Args:
        offsets: where the lists begin and end, `(Q + 1,)`.
        num_entries: the number of entries, N.
        longest: the length of the longest list, or an upper bound; None: read when it is needed.
        grades: K where the labels are the integers 0..K-1, 0 where they are real-valued; None: not known yet.
        pairs: the number of pairs of entries of one list with different labels.

    Example:
        >>> from torchrank.functional import ndcg
        >>> lists = Lists.of(group=[2, 1], labels=[0, 1, 0])
        >>> lists, ndcg(torch.tensor([2.0, 1.0, 0.5]), torch.tensor([0, 1, 0]), lists)
        (Lists(2 lists, 3 entries, longest 2, grades 2), tensor([0.6309,    nan]))
    """

    def __init__(
        self,
        offsets: Tensor,
        num_entries: int,
        *,
        longest: int | None = None,
        grades: int | None = None,
        pairs: int | None = None,
    ):
        self.offsets, self.num_entries = offsets, num_entries
        self._longest, self._grades, self._pairs = longest, grades, pairs
        self._lengths: np.ndarray | None = None  # on the host
        self._ids: Tensor | None = None
        self._positions: Tensor | None = None
        self._labels: Tensor | None = None  # which `grades` and `pairs` count
        self._blocks: dict[tuple[int, int], list[Block]] = {}
        self._small: list[Block] | None = None
        self.places: Tensor | None = None  # (N,) of the entries in padded tensors
        self.padded: tuple[int, ...] = ()  # (B, L) of these tensors

    @classmethod
    def of(
        cls, offsets: Array = None, *, group: Array = None, qid: Array = None, mask: Array = None, labels: Array = None
    ) -> "Lists":
        """Make lists from one of four descriptions. If it lies on another device than the CPU, this waits for it once.

        Args:
            offsets: where the lists begin and end, `(Q + 1,)`.
            group: number of entries of each list, `(Q,)`.
            qid: query id of each entry, `(N,)`, with the rows of a query together.
            mask: which places of padded `(B, L)` tensors are entries. Functions then take such tensors.
            labels: the labels of the entries: their grades and pairs are counted.

        Returns:
            The lists. Descriptions that do not fit together raise a `DataError`.

        Example:
            >>> Lists.of([0, 2, 3]).longest, Lists.of(qid=["a", "a", "b"]).offsets.tolist()
            (2, [0, 2, 3])
        """
        if mask is not None and offsets is group is qid is None:
            lists = _masked(mask, None)
        else:
            bounds = offsets_of(None, offsets, group, qid, mask, what="labels")
            if bounds.is_meta:
                raise DataError("the meta device holds no numbers: make the lists on the CPU and call .to('meta')")
            known = bounds.cpu().numpy()
            lists = cls(bounds, int(known[-1]) if len(known) else 0)
            lists._check(known)
        lists._ids, lists._longest = lists.ids, lists.longest
        if labels is not None:
            flat = lists.flat(as_argument("labels", labels, lists.offsets.device, padded=True))
            if flat.shape != (lists.num_entries,):
                raise DataError(f"there are {lists.num_entries} entries in the lists, but labels {tuple(flat.shape)}")
            lists._labels = flat.cpu()
            check_labels(lists._labels)
            lists._grades = count_grades(lists._labels)
        return lists

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    def __repr__(self) -> str:
        known = f", grades {self._grades}" if self._grades else ""
        return f"Lists({len(self)} lists, {self.num_entries} entries, longest {self.bound}{known})"

    def to(self, device: torch.device | str) -> "Lists":
        """The same lists on another device, with all that is known of them.

        Args:
            device: the device of the tensors of later calls.

        Returns:
            Lists for tensors of this device.

        Example:
            >>> Lists.of([0, 2, 3], labels=[0, 1, 4]).to("meta").grades
            5
        """
        copy = self._copy()
        copy._blocks, copy._small = {}, None
        copy.offsets = self.offsets.to(device)
        copy._ids = None if self._ids is None else self._ids.to(device)
        copy._positions = None
        copy.places = None if self.places is None else self.places.to(device)
        return copy

    def by(self, offsets: Tensor) -> "Lists":
        """The same lists with another tensor of equal offsets, such as one that torch.func has unwrapped."""
        return Lists(offsets, self.num_entries, longest=self._longest, grades=self._grades)

    def _copy(self) -> "Lists":
        copy = object.__new__(Lists)
        copy.__dict__.update(self.__dict__)
        return copy

    # ------------------------------------------------------------------------------------------- what is known

    @property
    def lengths(self) -> np.ndarray | None:
        """The length of each list on the host; None where the offsets cannot be read without waiting."""
        if self._lengths is None and (known := host(self.offsets)) is not None:
            self._lengths = known[1:] - known[:-1]
        return self._lengths

    @property
    def bound(self) -> int:
        """An upper bound of the length of the lists, known without waiting."""
        if self._longest is None:
            if (lengths := self.lengths) is None:
                return self.num_entries
            self._longest = int(lengths.max()) if len(lengths) else 0
        return self._longest

    @property
    def longest(self) -> int:
        """The length of the longest list. If it is unknown, this waits for the device, except in a compiled graph."""
        unknown = self._longest is None and self.lengths is None and len(self) > 0
        if unknown and not self.offsets.is_meta and not torch.compiler.is_compiling():
            self._longest = int(self.offsets.diff().max())
        return self.bound

    @property
    def grades(self) -> int:
        """K where the labels are known to be the integers 0..K-1; 0 where they are real-valued or not known."""
        if self._grades is None:
            self._grades = 0 if self._labels is None else count_grades(self._labels)
        return self._grades

    @property
    def pairs(self) -> int | None:
        """The number of pairs of entries of one list with different labels; None without labels."""
        if self._pairs is None and self._labels is not None and (labels := host(self._labels)) is not None:
            bounds = np.append(0, cast(np.ndarray, self.lengths).cumsum())
            self._pairs = int(count_pairs(labels, bounds, self.grades).sum())
        return self._pairs

    @property
    def ids(self) -> Tensor:
        """The list of every entry, `(N,)`."""
        if self._ids is None:
            self._ids = torch.repeat_interleave(self.offsets.diff(), output_size=self.num_entries)
        return self._ids

    def about(self, labels: Tensor) -> "Lists":
        """These lists with what is known of some labels, which must be those that they were made with if they know
        grades.

        >>> Lists.of([0, 2]).about(torch.tensor([0, 2])).grades
        3
        """
        if self._labels is labels:
            return self
        if self._grades is not None:
            readable = self._grades and len(labels) and host(labels) is not None
            if readable and not 0 < count_grades(labels) <= self._grades:
                low, high = bounds_of(labels)
                raise ValueError(
                    f"these lists were made for labels 0..{self._grades - 1}, but there are other labels from {low:g} "
                    f"to {high:g}: make Lists.of(..., labels=labels) of these labels"
                )
            return self
        copy = self._copy()
        copy._labels = labels
        return copy

    def regraded(self, grades: int) -> "Lists":
        """The same lists for other labels, which are known to be the integers 0..grades-1, or real-valued if 0."""
        copy = self._copy()
        copy._labels, copy._grades, copy._pairs = None, grades, None
        return copy

    # --------------------------------------------------------------------------------------- sums over the lists

    def each(self, values: Tensor) -> Tensor:
        """For every entry the value of its list, `(N, ...)`. Differentiable.

        >>> Lists.of([0, 2, 2, 3]).each(torch.tensor([1.5, 2.5, 3.5]))
        tensor([1.5000, 1.5000, 3.5000])
        """
        return values.index_select(0, self.ids if self._ids is None else self._ids)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of each list, `(Q, ...)`; 0 for a list without entries. Differentiable.

        Each list is summed by itself, not as a difference of a running total, so that lists of small numbers keep their
        digits beside lists of large ones. Without a graph a faster operation on the CPU is used, without derivatives.

        >>> Lists.of([0, 2, 2, 3]).sum(torch.tensor([1.0, 2.0, 5.0]))
        tensor([3., 0., 5.])
        """
        if values.ndim == 1 and _is_plain(values):
            return torch.segment_reduce(values, "sum", offsets=self.offsets, unsafe=True, initial=0)
        return values.new_zeros(len(self), *values.shape[1:]).index_add(0, self.ids, values)

    def max(self, values: Tensor) -> Tensor:
        """The largest value of each list, `(Q,)`; -inf (of integers the smallest one) for a list without entries.

        >>> Lists.of([0, 2, 3]).max(torch.tensor([1.0, 2.0, 5.0]))
        tensor([2., 5.])
        """
        lowest = -torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
        return self._extreme(values, "max", lowest)

    def min(self, values: Tensor) -> Tensor:
        """The smallest value of each list, `(Q,)`; inf (of integers the largest one) for a list without entries.

        >>> Lists.of([0, 2, 3]).min(torch.tensor([1.0, 2.0, 5.0]))
        tensor([1., 5.])
        """
        highest = torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).max
        return self._extreme(values, "min", highest)

    def _extreme(self, values: Tensor, which: str, start: float) -> Tensor:
        if _is_plain(values):
            return torch.segment_reduce(values, which, offsets=self.offsets, unsafe=True, initial=start)
        return values.new_full((len(self),), start).scatter_reduce(0, self.ids, values, f"a{which}")

    def log_softmax(self, values: Tensor) -> Tensor:
        """The logarithm of the softmax over each list, `(N,)`. Differentiable.

        >>> Lists.of([0, 2]).log_softmax(torch.zeros(2))
        tensor([-0.6931, -0.6931])
        """
        low = values - self.each(self.max(values.detach()))
        return low - self.each(self.sum(low.exp()).clamp(min=0.5).log())  # at least 1, or there are no entries

    def cumsum(self, values: Tensor) -> Tensor:
        """The running sum inside each list, `(N,)`. Differentiable.

        Integers are differences of one running total, which is exact. Real numbers are added within each list, so that
        every list keeps its digits, and an inf in one list does not affect the others.

        >>> Lists.of([0, 2, 3]).cumsum(torch.tensor([1.0, 2.0, 5.0]))
        tensor([1., 3., 5.])
        """
        if not values.is_floating_point():
            total = torch.nn.functional.pad(values.cumsum(0), (1, 0))
            return total[1:] - self.each(total[self.offsets[:-1]])
        known, padded = self.lengths is not None, len(self) * self.bound
        if known and padded == self.num_entries > 0:
            return values.view(len(self), self.bound).cumsum(1).flatten()
        if known and padded <= 2 * self.num_entries:
            first = torch.arange(len(self), device=values.device) * self.bound
            rows, places = self._rows(values, first, len(self), self.bound)
            return rows.flatten().index_select(0, places)
        if known and self.bound > STEP:
            return self._cumsum_by_steps(values)
        index, position = torch.arange(self.num_entries, device=values.device), self.positions
        for bit in range(doublings(self.bound)):
            earlier = values.index_select(0, (index - 2**bit).clamp_(min=0))
            values = values + torch.where(position >= 2**bit, earlier, 0)
        return values

    def _cumsum_by_steps(self, values: Tensor) -> Tensor:
        """`cumsum` of lists of very different lengths: rows of `STEP` entries, whose sums are added up in turn."""
        steps = Lists.of(group=torch.from_numpy(-(-cast(np.ndarray, self.lengths) // STEP))).to(values.device)
        rows, places = self._rows(values, steps.offsets[:-1] * STEP, steps.num_entries, STEP)
        before = torch.nn.functional.pad(steps.cumsum(rows[:, -1]), (1, 0))
        before = before.index_fill(0, steps.offsets, 0)[:-1]  # a difference of sums would be nan after an inf
        return (rows + before[:, None]).flatten().index_select(0, places)

    def _rows(self, values: Tensor, first: Tensor, count: int, width: int) -> tuple[Tensor, Tensor]:
        """Running sums of rows `(count, width)` in which list q begins at the place first[q], and all places."""
        places = self.each(first) + self.positions
        return values.new_zeros(count * width).index_copy(0, places, values).view(count, width).cumsum(1), places

    def remaining(self, values: Tensor) -> Tensor:
        """For each entry the sum of the values from it to the end of its list, `(N,)`. Differentiable.

        >>> Lists.of([0, 2, 3]).remaining(torch.tensor([1.0, 2.0, 5.0]))
        tensor([3., 2., 5.])
        """
        return self.backwards.cumsum(values.flip(0)).flip(0)

    @property
    def backwards(self) -> "Lists":
        """The lists of the entries from the last one to the first."""
        return Lists(self.num_entries - self.offsets.flip(0), self.num_entries, longest=self._longest)

    @property
    def positions(self) -> Tensor:
        """The position of each entry in its list, from 0, `(N,)`."""
        if self._positions is None:
            index = torch.arange(self.num_entries, device=self.offsets.device)
            self._positions = index - self.each(self.offsets[:-1])  # not in place: vmap may be over offsets
        return self._positions

    def order(self, values: Tensor, *, descending: bool = True, grades: int = 0) -> Tensor:
        """The stable order of the entries inside each list, `(N,)`; integers 0..grades-1 are sorted faster.

        >>> Lists.of([0, 2, 4]).order(torch.tensor([1.0, 3.0, 2.0, 2.0]))
        tensor([1, 0, 2, 3])
        """
        return order_within(values, self.ids, self.offsets.shape[0] - 1, descending=descending, grades=grades)

    def ranks(self, scores: Tensor, *, descending: bool = True) -> Tensor:
        """The rank of each entry in its list, from 1, `(N,)`; equal scores keep the order of the entries.

        >>> Lists.of([0, 2, 4]).ranks(torch.tensor([1.0, 3.0, 2.0, 2.0]))
        tensor([2, 1, 1, 2])
        """
        order = self.order(scores, descending=descending)
        return torch.empty_like(order).scatter(0, order, self.positions + 1)

    def levels(self, labels: Tensor) -> tuple[Tensor, int]:
        """The labels as integers from 0 that keep their order in each list, `(N,)`, and a bound of their number.

        >>> Lists.of([0, 3]).levels(torch.tensor([0.5, 7.0, 0.5]))
        (tensor([0, 1, 0]), 3)
        """
        if self.grades:
            return labels.long(), self.grades
        order = self.order(labels, descending=False)
        ordered = labels.index_select(0, order)
        new = torch.nn.functional.pad(ordered[1:] != ordered[:-1], (1, 0))[: len(ordered)] & (self.positions > 0)
        return torch.empty_like(order).scatter(0, order, self.cumsum(new.long())), max(self.bound, 1)

    def several(self, labels: Tensor) -> Tensor:
        """Whether a list has entries with different labels, `(Q,)`: the others say nothing about the order.

        >>> Lists.of([0, 2, 4]).several(torch.tensor([1, 0, 2, 2]))
        tensor([ True, False])
        """
        values = wide(labels.detach())
        return self.max(values) > self.min(values)

    # ------------------------------------------------------------------------------------------ padded tensors

    def flat(self, values: Tensor) -> Tensor:
        """The entries `(N, ...)` of padded values `(B, L, ...)` where the lists were made of a mask. Differentiable."""
        if self.places is None or values.shape[:2] != self.padded:
            return values
        return values.flatten(0, 1).index_select(0, self.places)

    def unflat(self, values: Tensor) -> Tensor:
        """The opposite of `flat`: values `(N, ...)` in padded form, 0 where there is no entry."""
        if self.places is None:
            return values
        shape = values.shape[1:]
        padded = values.new_zeros(math.prod(self.padded), *shape).index_copy(0, self.places, values)
        return padded.view(*self.padded, *shape)

    def blocks(self, most: int, *, few: int = 0, rows: int = ROWS) -> list[Block]:
        """The lists in blocks of similar length, the longest first, for work on all pairs of their entries.

        Args:
            most: the largest number of places of a block times `rows`; only a block of one list may exceed it.
            few: lists with at most this many pairs of places together form one block, even if their lengths differ.
            rows: how many entries of each list are compared with all its entries at a time.

        Returns:
            The blocks. A list without entries is in none of them. If lengths are unknown, each block is as long as its
            lists can be at most, which at most doubles the number of pairs of N entries in lists of the longest length.

        Example:
            >>> [block.entries.tolist() for block in Lists.of([0, 1, 1, 3]).blocks(9, few=9)]
            [[[1, 2], [0, 0]]]
        """
        if (most, rows) not in self._blocks:
            self._blocks[most, rows] = self._cut(most, few, rows)
        return self._blocks[most, rows]

    @property
    def small(self) -> Block | None:
        """All lists in one block, if they are so few and short that comparing all entries with all others takes less
        time than sorting them; otherwise None."""
        if self._small is None:
            longest = self.bound if self.lengths is not None else FEW
            self._small = self._cut(FEW, FEW, longest)[:1] if 0 < longest**2 * len(self) <= FEW else []
        return self._small[0] if self._small else None

    def _cut(self, most: int, few: int, rows: int) -> list[Block]:
        count, longest = len(self), self.longest
        if count * longest == self.num_entries > 0 and count * longest * min(longest, rows) <= most:
            entries = torch.arange(self.num_entries, device=self.offsets.device).view(count, longest)
            return [Block(torch.arange(count, device=self.offsets.device), entries, None)]
        lengths = self.lengths
        if lengths is not None and self.offsets.is_cpu:
            places = (-lengths).argsort(kind="stable")
            order, sizes = torch.from_numpy(places), lengths[places]
        else:  # a copy of the places to a device would wait for it
            order = self.offsets.diff().argsort(descending=True, stable=True)
            sizes = _largest(count, self.num_entries, longest) if lengths is None else -np.sort(-lengths)
        falling, begin, blocks = -sizes, 0, []
        filled = int(falling.searchsorted(0))
        while begin < filled:
            longest = int(sizes[begin])
            alike = int(falling.searchsorted(-ALIKE * longest, side="right")) - begin
            end = min(filled, begin + max(1, few // longest**2, min(alike, most // (longest * min(longest, rows)))))
            blocks.append(self._block(order[begin:end], longest))
            begin = end
        return blocks

    def _block(self, lists: Tensor, longest: int) -> Block:
        start = self.offsets[lists][:, None]
        place, last = torch.arange(longest, device=lists.device), self.offsets[lists + 1][:, None] - start - 1
        entries = (start + torch.minimum(place, last)).clamp_(0, max(self.num_entries - 1, 0))
        return Block(lists, entries, place <= last)

    def _check(self, known: np.ndarray) -> None:
        if known.ndim != 1 or len(known) == 0:
            raise ValueError(f"offsets must be (Q + 1,), where the lists begin and end, got {known.shape}")
        lengths = known[1:] - known[:-1]
        if known[0] != 0 or known[-1] != self.num_entries or (len(lengths) and lengths.min() < 0):
            raise ValueError(f"offsets must rise from 0 to N = {self.num_entries}, got {known[0]} to {known[-1]}")
        self._lengths = lengths


def _is_plain(values: Tensor) -> bool:
    """Whether they are real numbers on the host of which nobody asks for a derivative, in whatever mode."""
    if not values.is_floating_point() or values.requires_grad or unpack_dual(values).tangent is not None:
        return False
    return host(values) is not None


def _largest(count: int, num_entries: int, longest: int) -> np.ndarray:
    """Upper bounds of the lengths of `count` lists, falling: the i-th longest has at most N / i entries."""
    return np.minimum(longest, num_entries // np.arange(1, count + 1))


def doublings(longest: int) -> int:
    """How many doubling steps reach from one end of a list to the other. In a compiled graph it is rounded up to a
    multiple of 6, so that a new graph is made only for lists that are much longer."""
    if torch.compiler.is_compiling():
        return next(bits for bits in range(6, 66, 6) if longest <= 2**bits)
    return max(longest - 1, 0).bit_length()


def count_pairs(labels: np.ndarray, offsets: np.ndarray, num_grades: int) -> np.ndarray:
    """Pairs with labels[i] > labels[j] in each list (Q,): half of (length^2 - sum of squared label counts).

    Example:
        >>> count_pairs(np.array([0., 2., 1., 1., 1.]), np.array([0, 3, 5]), 3)
        array([3, 0])
    """
    lengths = np.diff(offsets)
    num_lists = len(lengths)
    lists = np.repeat(np.arange(num_lists), lengths)
    if num_grades:
        counts = np.bincount(lists * num_grades + labels.astype(np.int64), minlength=num_lists * num_grades)
        same = (counts.reshape(num_lists, num_grades) ** 2).sum(1)
    else:
        order = np.lexsort((labels, lists))
        new = np.diff(labels[order], prepend=np.nan) != 0
        new[offsets[:-1][lengths > 0]] = True
        runs = np.flatnonzero(new)
        counts = np.diff(runs, append=len(labels))
        same = np.bincount(lists[runs], weights=counts.astype(np.float64) ** 2, minlength=num_lists).astype(np.int64)
    pairs: np.ndarray = (lengths.astype(np.int64) ** 2 - same) // 2
    return pairs


# --------------------------------------------------------------------------------------------------- the checks


def bounds_of(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value; NaN if there is a NaN, 0 and 0 where nothing can be read.

    >>> bounds_of(torch.tensor([3, 1])), bounds_of(torch.tensor([0.5, torch.nan]))
    ((1, 3), (nan, nan))
    """
    known = host(values)
    if known is None or len(known) == 0:
        return 0, 0
    return known.min().item(), known.max().item()


def count_grades(labels: Tensor) -> int:
    """K if the labels are the integers 0..K-1 with K up to 64; 0 if they are real-valued, or cannot be read.

    >>> count_grades(torch.tensor([0.0, 2.0])), count_grades(torch.tensor([0.5]))
    (3, 0)
    """
    known = host(labels)
    if known is None or len(known) == 0:
        return 0
    lowest, highest = known.min(), known.max()
    whole = known.dtype.kind != "f" or bool((known == np.floor(known)).all())
    return int(highest) + 1 if whole and 0 <= lowest <= highest < MAX_GRADES else 0


def check_labels(labels: Tensor) -> None:
    """Refuses labels that are NaN, infinite or negative, such as those of padding or of documents without a judgement.

    >>> check_labels(torch.tensor([0.0, torch.inf]))
    Traceback (most recent call last):
    ValueError: label inf of entry 1: labels must be finite numbers
    """
    lowest, highest = bounds_of(labels)
    if lowest >= 0 and highest < math.inf:
        return
    if math.isnan(lowest):
        count = int(labels.isnan().sum())
        raise ValueError(f"{count} of {len(labels)} labels are NaN: remove entries without a label from the lists")
    wrong = int(((labels < 0) | labels.isinf()).nonzero()[0, 0])
    where = f"label {labels[wrong].item()} of entry {wrong}"
    if labels[wrong] == math.inf:
        raise ValueError(f"{where}: labels must be finite numbers")
    raise ValueError(
        f"{where}: labels must be 0 or more. Leave out padding with mask=, and give unjudged documents label 0 with "
        "labels.clamp(min=0)"
    )


def check_weights(name: str, weights: Tensor, count: int, what: str) -> None:
    """Refuses weights that are not one number for each of `count` entries or lists, negative, NaN or infinite.

    >>> check_weights("weights", torch.tensor([1.0, -1.0]), 2, "entry")
    Traceback (most recent call last):
    ValueError: weights[1] is -1.0: weights must be finite and 0 or more
    """
    if weights.shape != (count,):
        raise ValueError(f"{name} must be ({count},), one per {what}, got {tuple(weights.shape)}")
    lowest, highest = bounds_of(weights)
    if not (lowest >= 0 and highest < math.inf):
        wrong = int((~((weights >= 0) & (weights < math.inf))).nonzero()[0, 0])
        raise ValueError(f"{name}[{wrong}] is {weights[wrong].item()}: {name} must be finite and 0 or more")


# ----------------------------------------------------------------------------------------------------- decorators

REMOVED = ("max_length", "num_grades", "num_pairs")  # options of earlier versions, which are ignored
COLUMNS = ("x", "values", "rows")  # first arguments with a row of numbers for each entry
ENTRIES = frozenset(("scores", "labels", "weights", "tiebreak", "classes", "ranks", "other", *COLUMNS))
EXPLAINED = (  # what the docstring of every function on lists says about the other ways to give lists
    "    group: number of entries of each list, `(Q,)`; in place of offsets.",
    "    qid: query id of each entry, `(N,)`, with the rows of a query together; in place of offsets.",
    "    mask: which places of padded `(B, L)` arguments are entries, `(B, L)`; in place of offsets.",
)


class Given(TypedDict, total=False):
    """Other descriptions of which rows make up a list: keywords of all functions on lists."""

    group: Array
    qid: Array
    mask: Array


class Weighted(Given, total=False):
    """The keywords of functions that give one value per list."""

    list_weights: Array


def takes_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of tensors: it takes arrays of any kind and, if it has `offsets`, lists in any form.

    The function itself gets a `Lists` as `offsets`, flat tensors, and labels and weights that have been checked.

    >>> from typing import Unpack
    >>> @takes_arrays
    ... def last(values: Array, offsets: Array = None, **given: Unpack[Given]) -> Tensor:
    ...     return values[offsets.offsets[1:] - 1]
    >>> last([5, 6, 7], group=[2, 1]), inspect.signature(last).parameters.keys()
    (tensor([6, 7]), odict_keys(['values', 'offsets', 'group', 'qid', 'mask']))
    """
    return _wrap(function)


def loss(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorates a loss: one value per list, times `list_weights`, in the dtype of results. Scores may be NaN."""
    return _wrap(function, "lists")


def loss_of_columns(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorates a loss that takes several scores of each entry, `(N, ...)`."""
    return _wrap(function, "lists", columns=True)


def measure(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorates a measure: as `loss`, but NaN scores are refused; if they cannot be read, all values become NaN."""
    return _wrap(function, "lists", ranks=True)


def per_entry(function: Callable[P, Tensor], *, columns: bool = False) -> Callable[P, Tensor]:
    """Decorates a function with one value per entry, in the shape of the scores, or one for each column of them."""
    return _wrap(function, "entries", columns=columns)


def _wrap(function: Callable[P, R], gives: str = "", *, ranks: bool = False, columns: bool = False) -> Callable[P, R]:
    signature = inspect.signature(function)
    plain = {name: each for name, each in signature.parameters.items() if each.kind != each.VAR_KEYWORD}
    names, on_lists = tuple(plain), "offsets" in plain
    arrays = frozenset(name for name, each in plain.items() if each.annotation == Array) - {"offsets"}
    required = frozenset(name for name in arrays if plain[name].default is inspect.Parameter.empty)
    positional = sum(each.kind != each.KEYWORD_ONLY for each in plain.values())
    extra = [get_args(each.annotation) for each in signature.parameters.values() if each.kind == each.VAR_KEYWORD]
    keywords = tuple(name for each in extra if each for name in each[0].__annotations__)
    known, first = frozenset((*names, *keywords, *REMOVED)), names[0]
    takes_any, columns = any(not each for each in extra), columns or first in COLUMNS

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        count = len(arguments)
        if count > positional or not frozenset(names[:count]).isdisjoint(options):
            return function(*arguments, **options)  # Python says what is wrong
        if on_lists and not takes_any and not known.issuperset(options):
            raise TypeError(f"{function.__name__}() has no option {', '.join(options.keys() - known)}")
        named = dict(zip(names, arguments), **options)  # noqa: B905
        device = None
        for value in named.values():
            if isinstance(value, Tensor):
                device = value.device
                break
        padded = named.get("mask") is not None or isinstance(named.get("offsets"), Lists)
        for name in arrays & named.keys():
            value = named[name]
            if not (isinstance(value, Tensor) and value.dtype in USUAL) and (value is not None or name in required):
                named[name] = as_argument(name, value, device, padded=padded)
        if not on_lists or first not in named:
            return function(**named)  # type: ignore[call-arg]
        list_weights = named.pop("list_weights") if "list_weights" in named and "list_weights" not in plain else None
        scores = named[first]
        lists = named["offsets"] = _lists_of(named, first, columns)
        scores = named[first]
        if ranks and scores.is_floating_point():
            check_scores(scores)
        result = function(**named)  # type: ignore[call-arg]
        if not gives:
            return result
        values = cast(Tensor, result)
        if list_weights is not None:
            factor = as_argument("list_weights", list_weights, scores.device)
            check_weights("list_weights", factor, len(lists), "list")
            factor = wide(factor) if gives == "lists" else lists.each(wide(factor))
            values = values * factor.view(-1, *[1] * (values.ndim - 1))
        if ranks and scores.is_floating_point() and host(scores) is None:
            values = torch.where(torch.isnan(scores).any(), math.nan, values)
        values = values.to(result_dtype(scores))
        return lists.unflat(values) if gives == "entries" else values

    if on_lists:
        shown = {**plain, "offsets": plain["offsets"].replace(annotation=Array)}
        for name in keywords:
            shown[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Array)
        call.__signature__ = signature.replace(parameters=list(shown.values()))  # type: ignore[attr-defined]
        call.__doc__ = explain_lists(function.__doc__ or "")
    return cast(Callable[P, R], call)


def explain_lists(text: str) -> str:
    """The docstring with group, qid and mask after the line that explains offsets."""
    lines = inspect.cleandoc(text).split("\n")
    place = next((number for number, line in enumerate(lines, 1) if line.startswith("    offsets:")), None)
    return text if place is None else "\n".join([*lines[:place], *EXPLAINED, *lines[place:]])


def _lists_of(named: dict[str, Any], first: str, columns: bool) -> Lists:
    """The lists of a call. The arguments that describe them are removed from `named`, padded ones become flat, and
    labels and weights are checked."""
    for name in REMOVED:
        named.pop(name, None)
    offsets, group = named.pop("offsets", None), named.pop("group", None)
    qid, mask = named.pop("qid", None), named.pop("mask", None)
    entries = named[first]
    if isinstance(offsets, Lists) and group is qid is mask is None:
        lists = offsets
    elif mask is not None and offsets is group is qid is None:
        lists = _masked(mask, entries.device)
    else:
        lists = _flat_lists(entries, offsets, group, qid, mask, first)
    if lists.places is not None:
        for name in ENTRIES & named.keys():
            if isinstance(named[name], Tensor):
                named[name] = lists.flat(named[name])
        entries = named[first]
    if lists.offsets.device != entries.device:
        raise ValueError(
            f"the lists are on {lists.offsets.device}, but {first} on {entries.device}: call lists.to({first}.device)"
        )
    labels = named.get("labels")
    _check_shapes(first, entries, named.get("other", labels), lists, columns)
    if labels is not None and lists._labels is not labels:
        check_labels(labels)
        lists = lists.about(labels)
    if named.get("weights") is not None:
        check_weights("weights", named["weights"], lists.num_entries, "entry")
    return lists


def _flat_lists(entries: Tensor, offsets: Array, group: Array, qid: Array, mask: Array, first: str) -> Lists:
    """Lists of flat entries; offsets that can be read are checked."""
    rows = entries.shape[0] if entries.ndim else 1
    if isinstance(offsets, Tensor) and group is qid is mask is None:
        bounds = offsets if offsets.dtype in (torch.int32, torch.int64) else to_integers(offsets, "offsets")
    elif entries.ndim == 2 and offsets is group is qid is None and first != "x":
        raise DataError(f"{first} is {tuple(entries.shape)}: give mask= to say which of these places are entries")
    else:
        bounds = offsets_of(rows, offsets, group, qid, mask, what=first)
    lists = Lists(bounds, rows)
    if (known := host(bounds)) is not None:
        lists._check(known)
    return lists if bounds.device == entries.device else lists.to(entries.device)


def _masked(mask: Array, device: torch.device | None) -> Lists:
    """Lists whose entries are the places of padded tensors where a mask `(B, L)` is True; waits once for a device."""
    inside = as_argument("mask", mask, device, padded=True).bool()
    if inside.ndim != 2:
        raise DataError(f"mask must be (B, L), one row per list, got {tuple(inside.shape)}")
    places = inside.flatten().nonzero()[:, 0]
    lists = Lists(to_offsets(inside.sum(1)), len(places))
    lists.places, lists.padded = places, tuple(inside.shape)
    return lists


def _check_shapes(first: str, entries: Tensor, labels: Tensor | None, lists: Lists, columns: bool) -> None:
    size = (lists.num_entries,)
    if entries.shape[:1] == size and (entries.ndim == 1 or columns) and (labels is None or labels.shape == size):
        return
    column = entries.ndim == 2 and entries.shape[1] == 1
    hint = f"Use {first}[:, 0] of a column" if column else "For padded (B, L) tensors give mask="
    raise ValueError(
        f"expected {first} (N,), labels (N,), offsets (Q+1,), got {tuple(entries.shape)}, "
        f"{'none' if labels is None else tuple(labels.shape)}, {tuple(lists.offsets.shape)}. {hint}."
    )


def check_scores(scores: Tensor) -> None:
    """Refuses scores that are NaN, if they can be read."""
    known = host(scores)
    if known is not None and len(known) and math.isnan(known.min()):
        count = int(np.isnan(known).sum())
        raise ValueError(f"{count} of {len(scores)} scores are NaN and cannot be ranked. Did training diverge?")

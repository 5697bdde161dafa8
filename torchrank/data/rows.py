"""All rows of a set, a bounded number at a time and in float64, for sums over millions of memory-mapped rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.sampler import ranges
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError, NumericalWarning
from torchrank.functional.ragged import subsample
from torchrank.progress import bar

SENTINEL = 3e38  # from this magnitude on a value counts as a clipped sentinel; float32 ends at 3.4e38
ELEMENTS = 2**18  # numbers held in float64 at a time: 2 MB, which allocators reuse and caches hold
CACHED = 2**18  # numbers that a thread converts at a time, for the same reason
ON_DEVICE = 2**26  # the same on a device, where a block must keep all cores busy: 512 MB
PARTS = 24  # of all chunks, to be divided among processes: sums are added part by part on any number of processes
GRAIN = 64  # rows: products add up in the same order if blocks begin at its multiples

Rows = Tensor | SparseRows
Step = Callable[[Rows, Tensor], Rows]
Join = Callable[[Tensor, Tensor], Tensor]


class Share(NamedTuple):
    """Which process this is, of how many, and the sum of a tensor over all of them."""

    rank: int = 0
    world: int = 1
    reduce: Callable[[Tensor], Tensor] = torch.clone


ALONE = Share()


@contextmanager
def all_or_none(share: Share) -> Iterator[None]:
    """What every process does for its share of the data: it is done in all of them afterwards, or all raise an error.

    >>> with all_or_none(ALONE):
    ...     pass
    """
    error = None
    try:
        yield
    except DataError as found:
        error = found
    failed = share.reduce(torch.tensor([error is not None]).long())
    if error is not None or failed.any():
        raise error or DataError("another process found an error in its share of the data")


class Chunks:
    """Iterates over (rows, offsets) of whole lists; NaN and infinite features are refused with their place.

    Args:
        x: (n, D) rows.
        offsets: (Q + 1,) where each list begins and ends; None: every row stands alone (a shared corpus).
        device: where the chunks are.
        width: numbers per row that are held at a time.
        steps: functions of (rows, offsets) that each chunk goes through.
        share: of this process in `total` and `sample`; all processes have all rows.

    Example:
        >>> chunks = Chunks(torch.ones(4, 2), torch.tensor([0, 3, 4]), "cpu", width=2)
        >>> [(rows.shape, rows.dtype, offsets) for rows, offsets in chunks]
        [(torch.Size([4, 2]), torch.float64, tensor([0, 3, 4]))]
    """

    def __init__(
        self,
        x: Rows,
        offsets: Tensor | None,
        device: torch.device | str,
        width: int,
        steps: tuple[Step, ...] = (),
        share: Share = ALONE,
    ):
        self.x, self.offsets, self.device, self.width, self.steps, self.share = x, offsets, device, width, steps, share
        self.num_rows = len(x)
        self.bounds = np.arange(len(x) + 1) if offsets is None else offsets.cpu().numpy()
        if self.bounds[-1] != len(x):
            found = f"offsets end at {self.bounds[-1]} but there are {len(x)} rows"
            raise DataError(f"{found}: give offsets=None for a shared corpus")

    def through(self, step: Step, num_outputs: int) -> Chunks:
        """The same rows after one more step."""
        width, steps = max(self.width, num_outputs), (*self.steps, step)
        return Chunks(self.x, self.offsets, self.device, width, steps, self.share)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:  # rows are dense or sparse, as they are given
        for first, last in bar(self._ranges(), desc="rows in chunks"):
            yield self._chunk(first, last)

    def _ranges(self) -> list[tuple[int, int]]:
        """First and last list of every chunk; no chunk is without rows."""
        width = max(1, len(self.x.values) // max(1, len(self.x))) if isinstance(self.x, SparseRows) else self.width
        most = ELEMENTS if torch.device(self.device).type == "cpu" else ON_DEVICE // 8  # a chunk has many copies
        parts = ranges(np.diff(self.bounds), max(1, most // width), 0, len(self.bounds) - 1)
        return [(first, last) for first, last in parts if self.bounds[first] < self.bounds[last]]

    @torch.no_grad()
    def _chunk(self, first: int, last: int, memory: Tensor | None = None) -> tuple[Any, Tensor]:
        """The rows of these lists after all steps; before them they lie in `memory`, if there is any."""
        start, stop = int(self.bounds[first]), int(self.bounds[last])
        given: Any = self.x[start:stop]
        if memory is None:
            rows = given.to(device=self.device, dtype=torch.float64)
        else:
            rows = memory[: given.numel()].view(given.shape).copy_(given)
        check_finite(rows, start)
        offsets = torch.from_numpy(self.bounds[first : last + 1] - start).to(self.device)
        for step in self.steps:
            rows = step(rows, offsets)
        return rows, offsets

    @torch.no_grad()
    def total(self, of_rows: Callable[[Any], Tensor], join: Join = torch.add) -> Tensor:
        """The sum of a function over all chunks, or what else `join` makes of two results: equal to the bit on any
        number of processes. If one of them finds an error in its share, all raise it."""
        every = self._ranges()
        cuts = [len(every) * part // PARTS for part in range(PARTS + 1)]
        parts = [every[a:b] for a, b in pairwise(cuts) if a < b]
        if self.share.world == 1:
            return reduce(join, (self._sum(part, of_rows, join) for part in bar(parts, desc="rows in chunks")))
        like, failed = self._sum(every[:1], of_rows, join), torch.zeros(1, dtype=torch.float64, device=self.device)
        table = like.new_zeros(len(parts), *like.shape)
        for number in range(self.share.rank, len(parts), self.share.world):
            try:
                table[number] = self._sum(parts[number], of_rows, join)
            except DataError:
                failed += 1
        if self.share.reduce(failed).any():
            return self._alone().total(of_rows, join)  # raises the first error
        return reduce(join, self.share.reduce(table).unbind())

    def write(self, rows: Tensor, share: Share = ALONE) -> None:
        """Write a share of the chunks to their places in `rows (n, num_outputs)`."""
        every = self._ranges()
        mine = slice(len(every) * share.rank // share.world, len(every) * (share.rank + 1) // share.world)
        for first, last in bar(every[mine], desc="rows in chunks"):
            rows[int(self.bounds[first]) : int(self.bounds[last])] = self._chunk(first, last)[0]

    def _sum(self, part: list[tuple[int, int]], of_rows: Callable[[Any], Tensor], join: Join) -> Tensor:
        """Of one chunk after the other, all in the same memory: fresh memory takes longer to get than to fill."""
        memory = None
        if isinstance(self.x, Tensor):
            most = max(int(self.bounds[last] - self.bounds[first]) for first, last in part) * self.x.shape[1]
            memory = torch.empty(most, dtype=torch.float64, device=self.device)
        return reduce(join, (of_rows(self._chunk(first, last, memory)[0]) for first, last in part))

    def _alone(self) -> Chunks:
        return Chunks(self.x, self.offsets, self.device, self.width, self.steps)

    def check(self) -> None:
        """Read all rows once, because chunks refuse NaN."""
        self.total(lambda rows: torch.zeros(1, dtype=torch.float64, device=self.device))

    def moments(self, power: int = 1) -> tuple[Tensor, Tensor]:
        """Mean of each column (D,) and the sum of squares around it: (D,), or with power=2 the products (D, D).

        Every chunk is summed around its own mean, and the sums are merged (Chan, Golub & LeVeque 1983), all relative to
        the first row, so that one pass loses no digits. A column of equal values has its value as mean and exactly 0 as
        sum. Sentinels are refused.
        """
        origin = self._chunk(*self._ranges()[0])[0][0]

        def of_rows(rows: Tensor) -> Tensor:
            refuse_sentinels(rows)
            total, gaps = rows.sum(0), rows - origin
            centre = gaps.sum(0) / len(rows)
            gaps -= centre
            sums = gaps.square_().sum(0)[None] if power == 1 else gaps.T @ gaps
            return torch.cat((torch.stack((torch.full_like(total, len(rows)), total, centre)), sums))

        count, total, _, *sums = self.total(of_rows, merged)
        squares = sums[0] if power == 1 else torch.stack(sums)
        spread = squares if power == 1 else squares.diagonal()
        return torch.where(spread > 0, total / count, origin), squares

    def sample(self, count: int, seed: int) -> Tensor:
        """At most `count` rows, drawn by a seed from all rows; they do not depend on the chunks."""
        chosen, start, parts = subsample(self.num_rows, count, seed), 0, []
        if isinstance(self.x, Tensor) and not self.steps:
            self.check()
            return self.x[chosen.to(self.x.device)].to(device=self.device, dtype=torch.float64)
        for rows, _ in self:
            here = chosen[(chosen >= start) & (chosen < start + len(rows))] - start
            parts.append(rows[here.to(rows.device)])
            start += len(rows)
        return torch.cat(parts)


def merged(one: Tensor, other: Tensor) -> Tensor:
    """Of two sets of rows together: count, sum, mean, and squares or products around the mean, (3 + 1 or 3 + D, D)."""
    count, gap = one[0] + other[0], other[2] - one[2]
    share = other[0] / count.clamp(min=1)
    spread = (gap * gap)[None] if len(one) == 4 else torch.outer(gap, gap)
    mean = one[2] + gap * share
    sums = one[3:] + other[3:] + spread * (one[0] * share)
    return torch.cat((torch.stack((count, one[1] + other[1], mean)), sums))


def parts_of(rows: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """(number of the first row, consecutive rows), views of about `ELEMENTS` numbers; nothing for None."""
    if rows is not None and rows.numel():
        step = max(1, ELEMENTS * len(rows) // rows.numel())
        for start in range(0, len(rows), step):
            yield start, rows[start : start + step]


def converts_at_once(rows: Tensor, dtype: torch.dtype) -> bool:
    """Whether there is nothing to gain from converting the rows to this dtype in blocks."""
    return rows.dtype == dtype or rows.numel() <= 4 * _converted(rows)


def _converted(rows: Tensor) -> int:
    return CACHED * torch.get_num_threads() if rows.device.type == "cpu" else ON_DEVICE


def wide_blocks(rows: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """(place, consecutive rows in this dtype): a few rows at a time, converted in one buffer that is used again.

    A copy of all rows would go through memory twice more. Rows that have this dtype, and few rows, come in one piece.
    No block has a single row unless that is all: its product with a single column would be a dot product, which adds up
    in another order.

    >>> [(place, block.dtype) for place, block in wide_blocks(torch.ones(3, 2), torch.float64)]
    [(slice(0, 3, None), torch.float64)]
    """
    count, width = rows.shape
    if converts_at_once(rows, dtype):
        yield slice(0, count), rows.to(dtype)
        return
    step = max(GRAIN, _converted(rows) // width // GRAIN * GRAIN)
    buffer = torch.empty(min(step + 1, count), width, dtype=dtype, device=rows.device)
    for start, stop in pairwise([*range(0, max(count - 1, 1), step), count]):
        yield slice(start, stop), buffer[: stop - start].copy_(rows[start:stop])


def check_finite(rows: Rows, start: int, what: str = "row", owner: Callable[[int], str] | None = None) -> None:
    """Raise a `DataError` with the place of the first NaN or infinite feature; `start` numbers the first row.

    `owner(row)` says where that row belongs. The second pass is needed only if the sum is not finite: it may overflow.
    """
    values = rows.values if isinstance(rows, SparseRows) else rows
    if values.sum().isfinite() or values.isfinite().all():
        return
    place = (~values.isfinite()).nonzero()[0]
    if isinstance(rows, SparseRows):
        place = torch.stack((rows.row_ids()[place[0]], rows.columns[place[0]].long()))
    row, feature = place.tolist()
    value = (rows.dense() if isinstance(rows, SparseRows) else rows)[row, feature]
    where = f"feature {feature} (counted from 0) of {what} {start + row}"
    there = "" if owner is None else owner(start + row)
    raise DataError(
        f"{where} is {value.item()}{there}: clean the data first, or read it with data.missing=0 (missing values) and "
        "data.sentinel=0 (infinite ones)"
    )


def refuse_sentinels(rows: Rows) -> None:
    """Refuse |x| >= 3e38: one such value alone would decide the mean, deviation and norm of its column."""
    values = rows.values if isinstance(rows, SparseRows) else rows
    if values.numel() == 0 or torch.stack(values.aminmax()).abs().max() < SENTINEL:
        return
    place = (values.abs() >= SENTINEL).nonzero()[0].tolist()
    feature = int(rows.columns[place[0]]) if isinstance(rows, SparseRows) else place[1]
    raise DataError(
        f"feature {feature} (counted from 0) holds {values[tuple(place)].item():.4g}, a sentinel that would hide all "
        "other values of this feature: read the data with data.sentinel=0, or set transform=quantile or log1p"
    )


def warn_of_lost_digits(rows: Rows) -> None:
    """Warn if float32, in which rows are kept, is too coarse for a float64 column far from 0."""
    if isinstance(rows, SparseRows) or rows.dtype != torch.float64 or rows.numel() == 0:
        return
    low, high = rows.aminmax(dim=0)
    step = torch.maximum(low.abs(), high.abs()) * torch.finfo(torch.float32).eps
    if (lost := (high > low) & (step > 1e-3 * (high - low))).any():
        feature = int(lost.nonzero()[0])
        warnings.warn(
            f"Rows are kept in float32, but feature {feature} (counted from 0) ranges from {float(low[feature])} to "
            f"{float(high[feature])}, in steps of {float(step[feature]):.2g} there: set transform=standard.",
            NumericalWarning,
            stacklevel=2,
        )


def in_float32(rows: Rows, where: str = "rows are kept") -> Rows:
    """Rows of finite numbers in float32; those that it cannot hold are refused."""
    values = rows.values if isinstance(rows, SparseRows) else rows
    found = rows.to(dtype=torch.float32)
    if values.dtype != torch.float64 or values.numel() == 0:
        return found
    low, high = values.aminmax()
    if max(-float(low), float(high)) > torch.finfo(torch.float32).max:
        place = (values.abs() > torch.finfo(torch.float32).max).nonzero()[0]
        if isinstance(rows, SparseRows):
            place = torch.stack((rows.row_ids()[place[0]], rows.columns[place[0]].long()))
        row, feature = place.tolist()
        raise DataError(
            f"feature {feature} (counted from 0) of row {row} is beyond float32, in which {where}: make it smaller, or "
            "read the data with data.sentinel=0"
        )
    return found


def column_squares(rows: Rows) -> Tensor:
    """Sum of squares of each column (D,); sentinels are refused."""
    refuse_sentinels(rows)
    if isinstance(rows, SparseRows):
        return rows.with_values(rows.values**2).T @ rows.values.new_ones(len(rows))
    return (rows**2).sum(0)


def present(rows: Rows) -> Rows:
    """1 where a number is above 0, otherwise 0, in float64."""
    if isinstance(rows, SparseRows):
        return rows.with_values((rows.values > 0).double())
    return (rows > 0).double()


def word_counts(rows: Rows) -> Tensor:
    """How often each word occurs, and in how many rows (2, D); numbers that cannot be counts are refused."""
    values = rows.values if isinstance(rows, SparseRows) else rows
    wrong = (values < 0) | ((values > 0) & (values < 1))
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        feature = int(rows.columns[place[0]]) if isinstance(rows, SparseRows) else place[1]
        raise DataError(
            f"feature {feature} (counted from 0) holds {values[tuple(place)].item():.4g}, but singhal takes counts of "
            "words: set transform=none for rows that are weighted already"
        )
    ones = values.new_ones(len(rows))
    return torch.stack((rows.T @ ones, present(rows).T @ ones))

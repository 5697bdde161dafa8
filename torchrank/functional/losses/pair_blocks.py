"""Sums over pairs of entries of a list, and their gradients: the kernel of pairwise losses and soft ranks.

Lists of similar length are the rows of a block `(B, L)`; a few entries of each at a time are compared with all entries
that can be their partners, `(B, rows, columns)`, and nothing of a pair is kept. So memory is bounded, however long a
list is. Pairs of float32 scores (and of half precision) are computed in float32, all others in float64; sums are in
float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.errors import check_number
from torchrank.functional.arrays import host, narrow, wide
from torchrank.functional.lists import FEW, ROWS, Block, Lists

PLACES = 2**17  # pairs that are worked on at once on the CPU: temporary tensors stay in the cache
DEVICE = 64  # times as many on other devices

Function = Callable[[Tensor, int], list[Tensor]]


def check_positive(**options: float) -> None:
    """Refuses numbers that are not positive, except in a compiled graph, where they may have no value yet.

    >>> check_positive(temperature=0.0)
    Traceback (most recent call last):
    ValueError: temperature must be > 0, got 0.0
    """
    if not torch.compiler.is_compiling():
        check_number("> 0", **options)


def logistic(rises: Tensor, order: int) -> list[Tensor]:
    """log(1 + exp(r)) and its derivatives up to an order. It may overwrite the rises. At -inf the value is 0, as
    for all functions of a pair."""
    values = [torch.nn.functional.softplus(rises, threshold=40)]
    if order > 0:
        values.append(rises.sigmoid_())
    return values if order < 2 else [*values, values[1] * (1 - values[1])]


def hinge(rises: Tensor, order: int) -> list[Tensor]:
    """max(0, 1 + r) and its derivatives."""
    values = rises.add_(1).relu_()
    if order == 0:
        return [values]
    return [values, (values * 1e30).clamp_(max=1), torch.zeros_like(values)][: order + 1]  # NaN stays NaN


def soft_zero_one(rises: Tensor, order: int) -> list[Tensor]:
    """sigmoid(r) and its derivatives."""
    values = [rises.sigmoid_()]
    if order > 0:
        values.append(values[0] * (1 - values[0]))
    return values if order < 2 else [*values, values[1] * (1 - 2 * values[0])]


PAIRS: dict[str, Function] = {"logistic": logistic, "hinge": hinge, "soft_zero_one": soft_zero_one}


class Swap(NamedTuple):
    """The weight of a pair: |gain_i - gain_j| (|discount_i - discount_j| + near(|rank_i - rank_j|)), where parts
    that are None are left out."""

    gains: Tensor  # (N,)
    discounts: Tensor | None = None  # (N,)
    ranks: Tensor | None = None  # (N,)
    near: Tensor | None = None  # (longest list + 1,) values of a function of 0, 1, 2, ...


def pair_blocks(lists: Lists) -> list[Block]:
    """The lists in blocks for work on pairs, which a `Lists` keeps."""
    small = lists.small
    if small is not None:
        return [small]
    times = 1 if lists.offsets.device.type == "cpu" else DEVICE
    return lists.blocks(times * PLACES, few=times * FEW)


def strips(block: Block, rows: int, columns: int, *, triangle: bool) -> list[tuple[slice, slice]]:
    """The first `rows` places of the lists of a block, a few at a time, with the columns of their partners: all up to
    `columns`, or of a triangle those from the first row on.

    >>> block = Lists.of([0, 4]).blocks(64)[0]
    >>> strips(block, 2, 4, triangle=True)
    [(slice(0, 2, None), slice(0, 4, None))]
    """
    lists, longest = block.entries.shape
    places = PLACES if block.entries.device.type == "cpu" else PLACES * DEVICE
    step = max(1, places // max(lists * longest, 1))
    if triangle and lists * longest * longest > FEW:
        step = min(step, ROWS)
    parts = []
    for begin in range(0, rows, step):
        parts.append((slice(begin, min(begin + step, rows)), slice(begin if triangle else 0, columns)))
    return parts


def most(inside: Tensor) -> int:
    """The most places that are True in a row of `(B, L)`; L where they cannot be read."""
    known = host(inside)
    return inside.shape[1] if known is None else int(known.sum(1).max(initial=0))


ABOVE = 2**31 - 1  # a label above all others


class PairSums:
    """Sums of a function of pairs over all blocks, for entries sorted within each list.

    Args:
        scores: `(N,)`.
        lists: their lists.
        places: the order of the entries; None: the order of `scores`.
        function: the cost of a pair (i, j) as a function of the rise s_j - s_i.
        order: how many derivatives are computed.
        weights: importance of the entries i, `(N,)`.
        partners: importance of the entries j, `(N,)`.
        swap: importance of pairs.
        by_row: whether the loss is one value for each entry i, `(N,)`, not for each list.
    """

    def __init__(
        self,
        scores: Tensor,
        lists: Lists,
        places: Tensor | None,
        function: Function,
        order: int,
        *,
        weights: Tensor | None = None,
        partners: Tensor | None = None,
        swap: Swap | None = None,
        by_row: bool = False,
    ):
        self.function, self.order, self.places, self.by_row = function, order, places, by_row
        own = narrow(scores)
        self.near = None if swap is None or swap.near is None else swap.near.to(own.dtype)
        gains, discounts, ranks, _ = (None,) * 4 if swap is None else swap
        self.parts: list[Tensor | None] = [own, weights, partners, gains, discounts, ranks]
        for n, part in enumerate(self.parts):
            if part is not None:
                part = part.to(own.dtype)
                self.parts[n] = part if places is None else part.index_select(0, places)
        self.loss = wide(own).new_zeros(len(scores) if by_row else lists.offsets.shape[0] - 1)
        self.totals = self.loss.new_zeros(order, len(scores))

    def open(self, block: Block) -> None:
        self.block, self.rows = block, list(self.parts)
        for n, part in enumerate(self.parts):
            if part is not None:
                self.rows[n] = block.fill(part, 0.0)
        self.added = self.loss.new_zeros(self.order + self.by_row, *block.entries.shape)

    def add(self, rows: slice, columns: slice, hidden: Tensor | None, signs: Tensor | None = None) -> None:
        """Add the pairs of some rows and columns that are not hidden, `(B, rows, columns)`; where the sign is negative,
        the column is i and the row j. Without `hidden` it is the pairs of an entry with itself that are left out."""
        scores: Any = self.rows[0]
        rises = scores[:, None, columns] - scores[:, rows, None]
        if signs is not None:
            rises.mul_(signs)
        if hidden is None:
            rises.diagonal(rows.start, 1, 2).fill_(-torch.inf)
        else:
            rises.masked_fill_(hidden, -torch.inf)
        values = self.function(rises, self.order)
        for factor in self._factors(rows, columns):
            for part in values:
                part.mul_(factor)
        if self.by_row:
            self.added[-1][:, rows] += values[0].sum(2, dtype=self.loss.dtype)
        else:
            self.loss.index_add_(0, self.block.lists, values[0].sum((1, 2), dtype=self.loss.dtype))
        for odd, part, total in zip((True, False), values[1:], self.added, strict=False):
            part = part.mul_(signs) if odd and signs is not None else part
            total[:, columns] += part.sum(1, dtype=total.dtype)
            total[:, rows].add_(part.sum(2, dtype=total.dtype), alpha=-1 if odd else 1)

    def _factors(self, rows: slice, columns: slice) -> list[Tensor]:
        _, weights, partners, gains, discounts, ranks = self.rows
        factors = [] if weights is None else [weights[:, rows, None]]
        if partners is not None:
            factors.append(partners[:, None, columns])
        if gains is not None:
            factors.append((gains[:, rows, None] - gains[:, None, columns]).abs_())
        if discounts is not None:
            factors.append((discounts[:, rows, None] - discounts[:, None, columns]).abs_())
        if ranks is not None and self.near is not None:
            near = self.near[(ranks[:, rows, None] - ranks[:, None, columns]).abs_().int()]
            factors.append(near if discounts is None else factors.pop().add_(near))
        return factors

    def close(self) -> None:
        for n, added in enumerate(self.added):
            self.block.add(self.loss if n == self.order else self.totals[n], added)

    def result(self) -> tuple[Tensor, ...]:
        """The loss, and the derivatives in the order of the entries of `scores`."""
        loss, totals = self.loss, self.totals
        if self.places is not None:
            totals = torch.empty_like(totals).index_copy(1, self.places, totals)
            loss = torch.empty_like(loss).index_copy(0, self.places, loss) if self.by_row else loss
        return loss, *totals


def pair_sums(
    scores: Tensor,
    labels: Tensor,
    lists: Lists,
    weights: Tensor | None = None,
    order: int = 1,
    *,
    pair: str = "logistic",
    swap: Swap | None = None,
    counted: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The sum of w_i f(s_j - s_i) over the pairs with y_i > y_j of each list, `(Q,)`; for order 1 also its gradient
    `(N,)`; for order 2 the diagonal of the second derivative as well.

    `pair` names f, `weights (N,)` belong to the more relevant entry, `swap` weighs the pairs in addition, and of
    entries that are not `counted (N,)` there are no pairs. Sorted by label, the partners of an entry come after it:
    only entries with partners are rows, and few other columns are visited.

    >>> pair_sums(torch.tensor([1.0, 1.0]), torch.tensor([0, 1]), Lists.of([0, 2]))
    (tensor([0.6931], dtype=torch.float64), tensor([ 0.5000, -0.5000], dtype=torch.float64))
    """
    levels, blocks = _levels(labels, lists, counted), pair_blocks(lists)
    small = lists.small is not None
    places = None if small else lists.order(levels, grades=0 if counted is not None else lists.grades)
    sums = PairSums(scores, lists, places, PAIRS[pair], order, weights=weights, swap=swap)
    levels = levels if places is None else levels.index_select(0, places)
    for block in blocks:
        upper, rows = block.fill(levels, -1), block.entries.shape[1]
        lower = upper if block.inside is None and counted is None else torch.where(upper < 0, ABOVE, upper)
        columns = rows if small else most(upper >= 0)
        rows = rows if small else most(upper > lower.amin(1, keepdim=True))
        sums.open(block)
        for some, others in strips(block, rows, columns, triangle=not small):
            sums.add(some, others, lower[:, None, others] >= upper[:, some, None])
        sums.close()
    return sums.result()


def top_pair_sums(
    scores: Tensor, labels: Tensor, lists: Lists, k: int, order: int, *, pair: str, swap: Swap
) -> tuple[Tensor, ...]:
    """`pair_sums` of those pairs alone of which at least one entry is among the first k by score.

    >>> swap = Swap(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    >>> top_pair_sums(torch.zeros(2), torch.tensor([0, 1]), Lists.of([0, 2]), 1, 0, pair="logistic", swap=swap)
    (tensor([0.6931], dtype=torch.float64),)
    """
    places, levels = lists.order(scores), _levels(labels, lists, None)
    sums, levels = PairSums(scores, lists, places, PAIRS[pair], order, swap=swap), levels[places]
    for block in pair_blocks(lists):
        y, longest = block.fill(levels, -1), block.entries.shape[1]
        sums.open(block)
        for rows, columns in strips(block, min(k, longest), longest, triangle=True):
            signs = (y[:, rows, None] - y[:, None, columns]).sign_().to(narrow(scores).dtype)
            height = rows.stop - rows.start
            signs[:, :, :height] *= torch.ones_like(signs[0, :, :height]).triu(1)  # each pair once
            sums.add(rows, columns, (signs == 0) | (y[:, None, columns] < 0), signs)
        sums.close()
    return sums.result()


def all_pair_sums(
    scores: Tensor,
    rows: Tensor,
    lists: Lists,
    weights: Tensor | None,
    order: int,
    *,
    pair: str,
    partners: Tensor | None = None,
    counted: Tensor | None = None,
    by_row: bool = False,
) -> tuple[Tensor, ...]:
    """The sum of w_i v_j f(s_j - s_i) over the entries i of `rows (N,)` and all other entries j of the list, in which
    entries that are not `counted` do not take part; `by_row` gives the sum over j for each i, `(N,)`.

    >>> all_pair_sums(torch.zeros(3), torch.tensor([True, False, False]), Lists.of([0, 3]), None, 0, pair="hinge")
    (tensor([2.], dtype=torch.float64),)
    """
    blocks = pair_blocks(lists)
    levels, places = rows, None
    if lists.small is None or counted is not None:  # rows first, then the others, then those that are not counted
        levels = rows.to(torch.int32) + 1 if counted is None else torch.where(counted, rows.to(torch.int32) + 1, 0)
        places = lists.order(levels, grades=3)
        levels = levels[places]
    if not by_row:
        weights = wide(rows) if weights is None else torch.where(rows, weights, 0)
    sums = PairSums(scores, lists, places, PAIRS[pair], order, weights=weights, partners=partners, by_row=by_row)
    for block in blocks:
        sums.open(block)
        height = width = block.entries.shape[1]
        hidden = None if block.inside is None else ~block.inside[:, None]
        if places is not None:
            y = block.fill(levels, 0)
            height, width = most(y > 1), most(y > 0)
            hidden = None if block.inside is None and counted is None else y[:, None] == 0
        for some, others in strips(block, height, width, triangle=False):
            if hidden is not None:
                apart = hidden[:, :, others].expand(-1, some.stop - some.start, -1).clone()
                apart.diagonal(some.start, 1, 2).fill_(True)
            sums.add(some, others, None if hidden is None else apart)
        sums.close()
    loss, *others_ = sums.result()
    return (torch.where(rows, loss, 0) if by_row else loss, *others_)


def _levels(labels: Tensor, lists: Lists, counted: Tensor | None) -> Tensor:
    levels = labels.to(torch.int32) if lists.grades else wide(labels)
    return levels if counted is None else torch.where(counted, levels, -1)

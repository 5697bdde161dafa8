"""Where the entries of lists lie while a loss is computed: end to end, or in rows of equal length.

Both lay-outs have the same few operations, so that a loss is written once. Rows are for lists of similar length on the
CPU, where reading lengths is free: sums over rows take a tenth of the time of sums over flat lists. Nothing here has
derivatives: losses know theirs.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchrank.functional.operations import readable
from torchrank.functional.ragged import longest_list, measure_sum, per_entry, read, segment_cumsum, segment_max, wide

MOST_PADDING = 1.5  # places of the rows for each entry
LOWEST = -1e30  # fills the ends of rows of scores: next to any larger score its share is 0


def narrow(values: Tensor) -> Tensor:
    """`values` in the dtype in which single entries are computed: float32 if they have no more digits, else float64.

    >>> narrow(torch.ones(1, dtype=torch.bfloat16)).dtype, narrow(torch.ones(1, dtype=torch.int64)).dtype
    (torch.float32, torch.float64)
    """
    return values.float() if values.dtype in (torch.float16, torch.bfloat16, torch.float32) else wide(values)


class Layout(ABC):
    """Values of entries `(N,)` laid out, and values of lists `(Q,)`."""

    offsets: Tensor  # (Q + 1,)

    @abstractmethod
    def enter(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """The values `(N,)` laid out, `fill` where there is no entry. They may be written to."""

    @abstractmethod
    def leave(self, laid: Tensor) -> Tensor:
        """The values of the entries, `(N,)`."""

    @abstractmethod
    def highest(self, laid: Tensor) -> Tensor:
        """The largest value of each list, `(Q,)`."""

    @abstractmethod
    def shares(self, laid: Tensor) -> tuple[Tensor, Tensor]:
        """The softmax of each list, laid out, and the log of the sum of exp, `(Q,)`, of values whose highest is 0."""

    @abstractmethod
    def sum(self, laid: Tensor) -> Tensor:
        """The sum of each list in float64, `(Q,)`."""

    @abstractmethod
    def each(self, values: Tensor) -> Tensor:
        """The value `(Q,)` of the list at each entry, as it is laid out or so that it broadcasts."""

    @abstractmethod
    def running(self, laid: Tensor) -> Tensor:
        """The sum of the entries up to each one, laid out."""

    @abstractmethod
    def remaining(self, laid: Tensor) -> Tensor:
        """The sum of the entries from each one on, laid out."""


class Flat(Layout):
    """Lists end to end: of any lengths, on any device, without waiting for it."""

    def __init__(self, offsets: Tensor, num_entries: int, max_length: int | None = None):
        self.offsets, self.num_entries, self.max_length = offsets, num_entries, max_length

    def enter(self, values: Tensor, fill: float = 0.0) -> Tensor:
        return values.clone()

    def leave(self, laid: Tensor) -> Tensor:
        return laid

    def highest(self, laid: Tensor) -> Tensor:
        if laid.device.type != "cpu":
            return segment_max(laid, self.offsets)
        return torch.segment_reduce(laid, "max", offsets=self.offsets, unsafe=True, initial=-torch.inf)

    def shares(self, laid: Tensor) -> tuple[Tensor, Tensor]:
        masses = laid.exp()
        total = self.sum(masses)
        return masses.mul_(self.each(total.reciprocal().to(laid.dtype))), total.log()

    def sum(self, laid: Tensor) -> Tensor:
        return measure_sum(wide(laid), self.offsets)

    def each(self, values: Tensor) -> Tensor:
        return per_entry(values, self.offsets, self.num_entries)

    def running(self, laid: Tensor) -> Tensor:
        return segment_cumsum(laid, self.offsets, max_length=self.max_length)

    def remaining(self, laid: Tensor) -> Tensor:
        backwards = self.num_entries - self.offsets.flip(0)
        return segment_cumsum(laid.flip(0), backwards, max_length=self.max_length).flip(0)


class Rows(Layout):
    """A row for each list, `(Q, longest)`."""

    def __init__(self, offsets: Tensor, num_entries: int, longest: int):
        self.offsets, self.shape = offsets, (len(offsets) - 1, longest)
        self.places = places(offsets, longest, num_entries)

    def enter(self, values: Tensor, fill: float = 0.0) -> Tensor:
        laid = values.new_full((self.shape[0] * self.shape[1],), fill)
        return laid.scatter_(0, self.places, values).view(self.shape)

    def leave(self, laid: Tensor) -> Tensor:
        return laid.flatten().index_select(0, self.places)

    def highest(self, laid: Tensor) -> Tensor:
        return laid.amax(1)

    def shares(self, laid: Tensor) -> tuple[Tensor, Tensor]:
        found = laid.softmax(1)
        return found, -wide(found.amax(1)).log()

    def sum(self, laid: Tensor) -> Tensor:
        return laid.sum(1, dtype=torch.float64)

    def each(self, values: Tensor) -> Tensor:
        return values[:, None]

    def running(self, laid: Tensor) -> Tensor:
        return laid.cumsum(1)

    def remaining(self, laid: Tensor) -> Tensor:
        return laid.flip(1).cumsum(1).flip(1)


def lay_out(scores: Tensor, offsets: Tensor, max_length: int | None = None) -> Layout:
    """Rows if the lists have similar lengths and the scores are finite, else flat lists.

    >>> type(lay_out(torch.ones(4), torch.tensor([0, 2, 4]))).__name__
    'Rows'
    """
    longest = row_length(scores, offsets)
    return Rows(offsets, len(scores), longest) if longest else Flat(offsets, len(scores), max_length)


def row_length(scores: Tensor, offsets: Tensor) -> int:
    """The length of rows for these lists, or 0 if the lists or their scores do not suit them."""
    if not readable(scores) or len(scores) == 0:
        return 0
    longest = longest_list(offsets, len(scores), None)
    if (len(offsets) - 1) * longest > MOST_PADDING * len(scores):
        return 0
    low, high = scores.detach().aminmax()
    return longest if read(low) > LOWEST and read(high) < -LOWEST else 0


def places(offsets: Tensor, longest: int, num_entries: int) -> Tensor:
    """The place of each entry, `(N,)`, among the `Q * longest` of rows. At the end of a list it leaps.

    >>> places(torch.tensor([0, 1, 1, 3]), 2, 3).tolist()
    [0, 4, 5]
    """
    steps = torch.ones(num_entries + 1, dtype=torch.int64)
    steps[0] = 0
    return steps.index_add_(0, offsets[1:].long(), longest - offsets.diff().long())[:-1].cumsum(0)

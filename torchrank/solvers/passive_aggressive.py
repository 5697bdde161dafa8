"""PAMIR's passive-aggressive steps (Grangier & Bengio 2008): draw triplets, take differences of rows, make steps."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.sparse import SparseRows
from torchrank.errors import check_choice
from torchrank.functional.ragged import partner_blocks, segment_sum

SAMPLINGS = ("positive", "query", "pair")
SMALLEST = 1e-4  # smallest multiplier of the weights: the sum of the iterates loses four digits with it


# ---- drawing ----------------------------------------------------------------------------------------------------


def list_counts(labels: Tensor, offsets: Tensor, sampling: str = "positive") -> Tensor:
    """The number of equally likely choices of `sampling` in each list (Q,): "positive" counts the entries that have a
    lower one, "query" is 1 if there are any, "pair" counts the pairs of an entry and a lower one.

    >>> [list_counts(torch.tensor([0, 2, 1, 1, 1]), torch.tensor([0, 3, 5]), s).tolist() for s in SAMPLINGS]
    [[2, 0], [1, 0], [3, 0]]
    """
    check_choice(SAMPLINGS, sampling=sampling)
    _, partners, _ = partner_blocks(labels, offsets)
    counts = _first_choices(partners, offsets, sampling)
    return counts.clamp(max=1) if sampling == "query" else counts


def _first_choices(partners: Tensor, offsets: Tensor, sampling: str) -> Tensor:
    """The number of equally likely choices of the higher entry in each list: its pairs, or its entries."""
    return segment_sum(partners if sampling == "pair" else (partners > 0).long(), offsets)


def draw_lists(counts: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """`number` lists drawn with replacement, with probabilities proportional to their counts.

    >>> draw_lists(torch.tensor([0, 5, 0]), 3, torch.Generator()).tolist()
    [1, 1, 1]
    """
    ends = counts.cumsum(0)
    choice = torch.randint(int(ends[-1]), (number,), generator=generator)
    return torch.searchsorted(ends, choice, right=True)


def draw_pairs(
    labels: Tensor, offsets: Tensor, lists: Tensor, uniform: Tensor, sampling: str = "positive"
) -> tuple[Tensor, Tensor]:
    """Two entries of each of `lists (S,)`, the first with the higher label, chosen by numbers `uniform (S, 2)` from
    [0, 1): the first uniformly among those that have a lower one, or for "pair" in proportion to how many they have;
    the second uniformly among the lower ones.

    >>> draw_pairs(torch.tensor([0, 2, 1]), torch.tensor([0, 3]), torch.tensor([0, 0]), torch.tensor([[0, 0.6]] * 2))
    (tensor([1, 1]), tensor([0, 0]))
    """
    order, partners, first = partner_blocks(labels, offsets)  # sorted: those with a lower one come first
    start, counts = offsets[lists], _first_choices(partners, offsets, sampling)
    choice = (uniform[:, 0] * counts[lists]).long()
    if sampling == "pair":
        ends = partners.cumsum(0)
        slot = torch.searchsorted(ends, ends[start] - partners[start] + choice, right=True)
    else:
        slot = start + choice
    return order[slot], order[first[slot] + (uniform[:, 1] * partners[slot]).long()]


def differences(x: Tensor | SparseRows, first: Tensor, second: Tensor) -> Any:
    """Rows x[first] - x[second] (S, D) in float64. Sparse rows are concatenated, so a column of both occurs twice.

    >>> differences(torch.eye(2), torch.tensor([0]), torch.tensor([1]))
    tensor([[ 1., -1.]], dtype=torch.float64)
    """
    if isinstance(x, Tensor):
        return x[first].double() - x[second].double()
    both = x[torch.stack([first, second], 1).flatten()]
    signs = 1.0 - 2.0 * (both.row_ids() % 2)
    return SparseRows(both.values.double() * signs, both.columns, both.row_offsets[::2], x.num_features)


def in_order(parts: list[Any], order: Tensor) -> Any:
    """The rows `order` of the concatenated parts, which are all dense or all sparse.

    >>> in_order([torch.eye(2)[:1], torch.eye(2)[1:]], torch.tensor([1, 0]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)[order]
    return SparseRows.cat(parts)[order]


# ---- steps ------------------------------------------------------------------------------------------------------


class Passed(NamedTuple):
    """The result of several steps."""

    weights: Tensor  # (D,) after the last step
    total: Tensor  # (D,) sum of the weights after each step
    loss: float  # sum of the hinges of the rows, each before its step


@torch.no_grad()
def passive_steps(rows: Tensor | SparseRows, weights: Tensor, *, C: float = 1.0, l2: float = 0.0) -> Passed:
    """Make one step for each row v = x_i - x_j (S, D) in turn, to the weights that minimise
    1/2 |w' - w|^2 + l2 |w'|^2 + C max(0, 1 - w'.v), which is PA-I for l2 = 0. Runs in float64 on the CPU, whatever the
    device.

    The weights are held as scale * u, and the sum of the iterates as total + passed * u - early, so that a step costs
    only the values of its row: with scales a_t and moves d_t, sum_t a_t u_t = sum_t d_t (a_t + a_(t+1) + ...). `passed`
    is the sum of the scales so far, `early` the sum of the moves times the scales before them. That difference loses
    digits as the scale falls, so it is reset at `SMALLEST`.

    >>> passive_steps(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.zeros(2), C=1.0).weights
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    u = weights.detach().cpu().double().numpy().copy()
    early, total, loss = np.zeros_like(u), np.zeros_like(u), 0.0
    scale, passed, shrink = 1.0, 0.0, 1.0 + 2.0 * l2
    differ = _Dense(rows) if isinstance(rows, Tensor) else _Sparse(rows)
    for columns, values in differ:
        margin = scale * float(u[columns].dot(values))
        loss += max(0.0, 1.0 - margin)
        if margin < shrink:
            change, norm = differ.change(columns, values)
            if norm > 0:
                move = min(C, (shrink - margin) / norm) / scale * change
                u[columns] += move
                early[columns] += passed * move
        scale /= shrink
        passed += scale
        if scale < SMALLEST:
            total += passed * u - early
            u *= scale
            early[:], passed, scale = 0.0, 0.0, 1.0
    total += passed * u - early
    found, added = (torch.from_numpy(array).to(weights.device) for array in (scale * u, total))
    return Passed(found, added, loss)


class _Dense:
    """Iterates over dense rows: the columns of a row, and its values."""

    def __init__(self, rows: Tensor):
        self.rows = rows.cpu().double().numpy()

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        return ((slice(None), row) for row in self.rows)

    def change(self, columns: Any, values: np.ndarray) -> tuple[np.ndarray, float]:
        """What to add to the weights at `columns`, and the squared norm of the row."""
        return values, float(values.dot(values))


class _Sparse:
    """The same for sparse rows. A column may occur twice: `change` has its sum at both places, so that
    u[columns] += change adds it once."""

    def __init__(self, rows: SparseRows):
        rows = rows.to("cpu", torch.float64)
        self.values, self.columns, self.ends = rows.values.numpy(), rows.columns.numpy(), rows.row_offsets.tolist()
        self.sums = np.zeros(rows.num_features)

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        return ((self.columns[a:b], self.values[a:b]) for a, b in pairwise(self.ends))

    def change(self, columns: Any, values: np.ndarray) -> tuple[np.ndarray, float]:
        np.add.at(self.sums, columns, values)
        change = self.sums[columns]
        self.sums[columns] = 0.0
        return change, float(change.dot(values))


@torch.no_grad()
def passive_minibatches(
    rows: Tensor | SparseRows,
    weights: Tensor,
    bounds: list[int],
    sizes: list[int],
    *,
    C: float = 1.0,
    l2: float = 0.0,
    reduce: Callable[[Tensor], Tensor] = lambda change: change,
) -> Passed:
    """Make steps on several rows at once: step s moves the weights to the mean of the points that `passive_steps` would
    reach with each row alone. Runs on any device; a step costs its rows and the weights.

    Step s uses `rows[bounds[s]:bounds[s + 1]]`. With several processes these are the rows of this one, `reduce` sums
    over all processes, and `sizes[s]` counts the rows of all.

    >>> passive_minibatches(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2), [0, 2], [2]).weights
    tensor([0.2500, 0.5000], dtype=torch.float64)
    """
    weights, rows = weights.detach().double(), rows.to(dtype=torch.float64)
    norms, total, shrink = squared_norms(rows), torch.zeros_like(weights), 1.0 + 2.0 * l2
    loss = weights.new_zeros(())
    for (start, end), size in zip(pairwise(bounds), sizes, strict=True):
        part, norm = rows[start:end], norms[start:end]
        margins = part @ weights
        lengths = torch.where(norm > 0, ((shrink - margins) / norm).clamp(0, C), 0)
        weights = (weights + reduce(part.T @ lengths) / size) / shrink
        total += weights
        loss += (1 - margins).clamp(min=0).sum()
    return Passed(weights, total, float(loss))


def squared_norms(rows: Tensor | SparseRows) -> Tensor:
    """|v|^2 of each row (S,); a column that occurs twice in a sparse row counts as its sum.

    >>> squared_norms(SparseRows(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([3, 3, 0]), torch.tensor([0, 2, 3]), 4))
    tensor([ 9., 25.])
    """
    if isinstance(rows, Tensor):
        return rows.square().sum(1)
    keys, order = torch.sort(rows.row_ids() * rows.num_features + rows.columns)
    values, new = rows.values[order], torch.ones_like(keys)
    new[1:] = keys[1:] != keys[:-1]
    sums = torch.zeros_like(values).index_add(0, new.cumsum(0) - 1, values)  # unused places at the end stay 0
    owner = torch.zeros_like(keys).index_copy(0, new.cumsum(0) - 1, keys // rows.num_features)
    return rows.values.new_zeros(len(rows)).index_add(0, owner, sums.square())

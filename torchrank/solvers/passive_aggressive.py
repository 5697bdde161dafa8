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
    """Rows x[first] - x[second] (S, D) in float64. In a sparse row no column occurs twice.

    >>> differences(torch.eye(2), torch.tensor([0]), torch.tensor([1]))
    tensor([[ 1., -1.]], dtype=torch.float64)
    """
    if isinstance(x, Tensor):
        return x[first].double() - x[second].double()
    both = x[torch.stack([first, second], 1).flatten()]
    signs = 1.0 - 2.0 * (both.row_ids() % 2)
    joined = SparseRows(both.values.double() * signs, both.columns, both.row_offsets[::2], x.num_features)
    return joined.transposed().transposed()  # which adds up what the two rows have of a column


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
    for columns, values in _values_by_row(rows.to("cpu", torch.float64)):
        margin = scale * float(u[columns].dot(values))
        loss += max(0.0, 1.0 - margin)
        norm = float(values.dot(values)) if margin < shrink else 0.0
        if norm > 0:
            move = min(C, (shrink - margin) / norm) / scale * values
            u[columns] += move
            early[columns] += passed * move
        scale /= shrink
        passed += scale
        if scale < SMALLEST:
            total += passed * u - early
            u *= scale
            early[:], passed, scale = 0.0, 0.0, 1.0
    total += passed * u - early
    last, summed = (torch.from_numpy(array).to(weights.device) for array in (scale * u, total))
    return Passed(last, summed, loss)


def _values_by_row(rows: Tensor | SparseRows) -> Iterator[tuple[Any, np.ndarray]]:
    """The columns of each row, in none of which one occurs twice, and its values."""
    if isinstance(rows, Tensor):
        return ((slice(None), row) for row in rows.numpy())
    values, columns, ends = rows.values.numpy(), rows.columns.numpy(), rows.row_offsets.tolist()
    return ((columns[a:b], values[a:b]) for a, b in pairwise(ends))


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
    norms = segment_sum(rows.values.square(), rows.row_offsets) if isinstance(rows, SparseRows) else (rows**2).sum(1)
    total, shrink, loss = torch.zeros_like(weights), 1.0 + 2.0 * l2, weights.new_zeros(())
    for (start, end), size in zip(pairwise(bounds), sizes, strict=True):
        part, norm = rows[start:end], norms[start:end]
        margins = part @ weights
        lengths = torch.where(norm > 0, ((shrink - margins) / norm).clamp(0, C), 0)
        weights = (weights + reduce(part.T @ lengths) / size) / shrink
        total += weights
        loss += (1 - margins).clamp(min=0).sum()
    return Passed(weights, total, float(loss))

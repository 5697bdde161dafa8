"""The most violated ranking of a measure that falls evenly: every irrelevant entry finds its place by itself.

Write a ranking by a_j, how many of the P relevant entries stand before the j-th best of the N irrelevant ones. For average
precision and for the whole NDCG the objective is a sum over j of

    f_j(a) = w (U(j + a) + (j - 1) V(j + a)) + 2/N (s^+_1 + .. + s^+_a - a s^-_j),        0 <= a <= P

(times 1/P, up to a constant), with

    average precision    w = 1,    U(r) = -(1 + 1/2 + .. + 1/r),    V(r) = -1/r          Yue et al., SIGIR 2007, section 4.2
    NDCG                 w = P/Z,  U = the discount D,              V = 0                Chakrabarti et al., KDD 2008

because the loss of the pairs (i, j) with i > a telescopes: for NDCG it is the sum of D(i+j-1) - D(i+j). No difference of
large numbers is left, unlike in a form with j times harmonic numbers. While the loss of a pair does not grow with j (D is
convex) the best a_j does not fall with j, so that the choices are one ranking, and the best places of all j are row maxima
of a monotone matrix: found by halving, the odd multiples of 2^l between their neighbours, O((P + N) log N) in all.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.ragged import read

DENSE_NUMBERS = 2**20  # entries of the matrices made at once: they stay in the cache


class Places(NamedTuple):
    """What the f_j of all lists are made of. L is the longest list; places behind the end of a class are never read."""

    relevant: Tensor  # (Q, L + 1) 2/N times the sum of the best a relevant scores, a = 0..P
    irrelevant: Tensor  # (Q, L + 1) 2/N times the score of the j-th best irrelevant entry, column j
    counts: tuple[Tensor, Tensor]  # (Q, 1) each: P and N
    weight: Tensor  # (Q, 1) w
    tables: tuple[Tensor, Tensor]  # (L + 1,) each: U and V at the ranks 0..L, of which 0 is never read
    num_entries: int  # of all lists


def halving(places: Places, least: int = 0) -> Tensor:
    """Best a_j >= `least` for every j, `(Q, L)`, the smallest one if there are several; behind the last j it is P.

    Column j of `best` is known when those of its neighbours j - step and j + step are, which bound it.
    """
    num_lists, longest = len(places.relevant), places.relevant.shape[1] - 1
    relevant, irrelevant = places.counts
    width = 1 << longest.bit_length()
    best = relevant.repeat(1, width + 1)
    best[:, :1] = relevant.clamp(max=least)
    step = width // 2
    while step and num_lists:
        columns = torch.arange(step, longest + 1, 2 * step, device=best.device)
        low, high = (best[:, first :: 2 * step][:, : len(columns)] for first in (0, 2 * step))
        found = _level(places, columns, low, high)
        best[:, columns] = torch.where(columns <= irrelevant, found, relevant)
        step //= 2
    return best[:, 1 : longest + 1]


def _level(places: Places, columns: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Best a_j in low..high, `(Q, J)` each, at the J columns: all lists in one flat buffer. It holds at most P + J
    numbers per list, so no more than there are entries, whatever the ranges are."""
    lengths = torch.where(columns <= places.counts[1], high - low + 1, 0).flatten()
    ends = lengths.cumsum(0)
    on_host = lengths.device.type == "cpu"
    size = (
        read(ends[-1]) if on_host else places.num_entries
    )  # elsewhere the rest of the buffer belongs to one more node
    lengths = torch.cat([lengths, size - ends[-1:]])
    node = torch.arange(len(lengths), device=low.device).repeat_interleave(lengths, output_size=size)
    a, values = _values(places, columns, node, low.flatten() - ends + lengths[:-1])
    peak = values.new_full((len(lengths),), -torch.inf).scatter_reduce(0, node, values, "amax")
    first = torch.where(values == peak[node], a, places.relevant.shape[1])
    return high.flatten().scatter_reduce(0, node.clamp(max=low.numel() - 1), first, "amin").view(low.shape)


def _values(places: Places, columns: Tensor, node: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Number a and value f_j(a) of every place of the buffer; `shift` is a minus the place, for every node."""
    num_columns, (even, slope) = len(columns), places.tables
    node = node.clamp(max=len(shift) - 1)
    a = shift[node] + torch.arange(len(node), device=node.device)
    a = a.clamp(max=places.relevant.shape[1] - 1)
    row = node // num_columns
    j = columns[node - row * num_columns]
    rank = (j + a).clamp(max=len(even) - 1)
    scores = places.irrelevant[:, columns].flatten()[node]
    loss = places.weight.flatten()[row] * (even[rank] + (j - 1) * slope[rank])
    return a, loss + places.relevant.flatten()[row * places.relevant.shape[1] + a] - a * scores


def dense(places: Places, least: int = 0) -> Tensor:
    """`halving` by looking at every a for every j: O(P N), faster for short lists."""
    relevant, irrelevant = places.counts
    num_lists, longest = len(places.relevant), places.relevant.shape[1] - 1
    most, last = longest, longest
    if relevant.device.type == "cpu" and num_lists:
        most, last = read(relevant.max()), read(irrelevant.max())
    j, a = torch.arange(1, last + 1, device=relevant.device)[:, None], torch.arange(most + 1, device=relevant.device)
    even, slope = (table[(j + a).clamp(max=longest)] for table in places.tables)
    best = relevant.repeat(1, longest)
    loss, sums = even + (j - 1) * slope, places.relevant[:, : most + 1]
    sums = torch.where((a <= relevant) & (a >= relevant.clamp(max=least)), sums, -torch.inf)
    step = max(1, DENSE_NUMBERS // max(1, last * (most + 1)))
    for some in range(0, num_lists, step):
        part = slice(some, some + step)
        values = loss * places.weight[part, :, None] + sums[part, None]
        values = values - a * places.irrelevant[part, 1 : last + 1, None]
        best[part, :last] = torch.where(j.T <= irrelevant[part], values.argmax(2), relevant[part])
    return best


def place_values(places: Places, best: Tensor) -> Tensor:
    """Sum of f_j(a_j) over the j of each list, `(Q, 1)`."""
    j = torch.arange(1, best.shape[1] + 1, device=best.device)
    rank = (j + best).clamp(max=best.shape[1])
    loss = places.weight * (places.tables[0][rank] + (j - 1) * places.tables[1][rank])
    values = loss + places.relevant.gather(1, best) - best * places.irrelevant[:, 1:]
    return torch.where(j <= places.counts[1], values, 0).sum(1, keepdim=True)

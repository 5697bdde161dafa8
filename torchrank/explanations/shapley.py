"""Shapley values by permutations, for rankers without parts and without gradients."""

from itertools import permutations
from math import factorial

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.rankers.core.ranker import Ranker

PERMUTATIONS = 128  # if there are fewer orders of the features, all of them are taken and the values are exact
NUMBERS = 2**22  # values of rows that are scored at once


@torch.no_grad()
def shapley_parts(ranker: Ranker, batch: Batch, pairs: Tensor, lists: Tensor) -> tuple[Tensor, str]:
    """Parts (P, D) of the differences of pairs of raw rows of these lists (P,), and how they were found.

    The two documents keep their values of the features of a coalition and exchange all others. So v(all) = s(a) - s(b)
    = -v(none), the Shapley values of v / 2 sum to the difference exactly, and every list that is scored has the same
    values in each column as the given one.
    """
    width = batch.x.shape[1]
    orders = _orders(width).to(batch.device)
    every = zip(pairs.tolist(), lists.tolist(), strict=True)
    found = [_of_one(ranker, batch, place, first, second, orders) for (first, second), place in every]
    exact = "exact" if len(orders) == factorial(min(width, 20)) else f"{len(orders)} permutations"
    none = torch.zeros(0, width, dtype=torch.float64)
    return torch.stack(found) if found else none, f"Shapley values, {exact}"


def _orders(width: int) -> Tensor:
    """Orders (R, D) of the features: all, or random ones, each with its reverse."""
    if factorial(min(width, 20)) <= PERMUTATIONS:
        return torch.tensor(list(permutations(range(width))))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([torch.randperm(width, generator=generator) for _ in range(PERMUTATIONS // 2)])
    return torch.cat((drawn, drawn.flip(1)))


def _of_one(ranker: Ranker, batch: Batch, place: int, first: int, second: int, orders: Tensor) -> Tensor:
    begin, end = batch.offsets[place : place + 2].tolist()
    rows, a, b = batch.dense[begin:end], first - begin, second - begin
    parts = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for order in orders.split(max(1, NUMBERS // max(1, rows.numel() * (rows.shape[1] + 1)))):
        turn = order.argsort(1)  # when a feature joins
        joined = torch.arange(rows.shape[1] + 1, device=rows.device)[:, None] > turn[:, None]  # (R, D + 1, D)
        values = _differences(ranker, batch, place, rows, a, b, joined.flatten(0, 1)).view(joined.shape[:2])
        parts += (values.diff(dim=1) / 2).gather(1, turn).sum(0)
    return parts / len(orders)


def _differences(ranker: Ranker, batch: Batch, place: int, rows: Tensor, a: int, b: int, own: Tensor) -> Tensor:
    """s(a) - s(b) of the list for each coalition (S, D)."""
    copies, length = len(own), len(rows)
    changed = rows.expand(copies, -1, -1).clone()
    changed[:, a], changed[:, b] = torch.where(own, rows[a], rows[b]), torch.where(own, rows[b], rows[a])
    offsets = torch.arange(copies + 1, device=rows.device) * length
    queries = None if batch.queries is None else batch.queries[place].expand(copies, -1)
    topic = None if ranker.num_topics is None else batch.query[place].expand(copies)
    scores: Tensor = ranker(changed.flatten(0, 1), offsets, queries=queries, query=topic).double().view(copies, length)
    return scores[:, a] - scores[:, b]

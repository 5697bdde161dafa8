"""Integrated gradients (Sundararajan, Taly & Yan 2017) of a difference of scores within a list."""

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.ragged import list_ids
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.neural.ranker import NeuralRanker

STEPS = (64, 256, 1024, 4096)  # of the integral: more, until what is left is below SMALL
SMALL, ALLOWED = 1e-5, 1e-2  # of the difference; where more than ALLOWED is left, there is no gradient to speak of
NUMBERS = 2**22  # values of rows that are scored at once


def integrated_parts(ranker: Ranker, batch: Batch, pairs: Tensor) -> tuple[Tensor, str] | None:
    """Parts (P, D) of the differences, and how many steps they took; None if the gradients do not add up to them.

    Two documents of a list move towards the point halfway between them, where their scores are equal. So the integral
    of the gradient of s(a) - s(b) along this way is the difference, also for a score that looks at the whole list.
    """
    found, most = [], 0
    for pair, place in zip(
        pairs.tolist(), list_ids(batch.offsets, len(batch.labels))[pairs[:, 0]].tolist(), strict=True
    ):
        parts, steps = _of_one(ranker, batch, place, *pair)
        if parts is None:
            return None
        found.append(parts)
        most = max(most, steps)
    if not found:
        return torch.zeros(0, batch.x.shape[1], dtype=torch.float64), "integrated gradients"
    return torch.stack(found), f"integrated gradients, {most} steps"


def _of_one(ranker: Ranker, batch: Batch, place: int, first: int, second: int) -> tuple[Tensor | None, int]:
    begin, end = batch.offsets[place : place + 2].tolist()
    rows, a, b = batch.dense[begin:end], first - begin, second - begin
    if isinstance(ranker, NeuralRanker) and not ranker.sees_lists and type(ranker).score is NeuralRanker.score:
        rows, a, b = rows[[a, b]], 0, 1  # the others do not matter
    one = batch._replace(query=batch.query[place : place + 1])
    one = one._replace(queries=None if batch.queries is None else batch.queries[place : place + 1])
    with torch.no_grad():
        scores = ranker.score(_lists(one, rows[None]))
    difference = float(scores[a] - scores[b])
    parts, left = torch.zeros_like(rows[0]), abs(difference)
    for steps in STEPS:
        parts = _integral(ranker, one, rows, a, b, steps)
        left = abs(difference - float(parts.sum()))
        if left <= SMALL * abs(difference) or a == b:
            break
    has_slope = isinstance(ranker, NeuralRanker) or left <= max(ALLOWED * abs(difference), 1e-9)
    return parts if has_slope else None, steps


@torch.enable_grad()
def _integral(ranker: Ranker, one: Batch, rows: Tensor, a: int, b: int, steps: int) -> Tensor:
    """The sum over the middles of the steps of the gradient times the way."""
    middle, way = (rows[a] + rows[b]) / 2, (rows[a] - rows[b]) / 2
    times = (torch.arange(steps, dtype=rows.dtype, device=rows.device) + 0.5) / steps
    total = torch.zeros_like(way)
    for some in times.split(max(1, NUMBERS // max(1, rows.numel()))):
        moved = rows.expand(len(some), -1, -1).clone()
        moved[:, a], moved[:, b] = middle + some[:, None] * way, middle - some[:, None] * way
        moved.requires_grad_()
        scores = ranker.score(_lists(one, moved)).view(len(some), -1)
        if scores.requires_grad:
            (slope,) = torch.autograd.grad((scores[:, a] - scores[:, b]).sum(), moved, allow_unused=True)
            total = total if slope is None else total + ((slope[:, a] - slope[:, b]) * way).sum(0)
    return (total / steps).detach()


def _lists(one: Batch, rows: Tensor) -> Batch:
    """As many copies of a list as there are rows (S, n, D) for it."""
    copies, length = rows.shape[:2]
    offsets = torch.arange(copies + 1, device=rows.device) * length
    queries = None if one.queries is None else one.queries.expand(copies, -1)
    labels = torch.zeros(copies * length, device=rows.device)
    return Batch(rows.flatten(0, 1), labels, offsets, one.query.expand(copies), None, queries, length, 0, 1)

"""Sampled WARP: one list, one positive and one violator at a time (Su, King & Lyu 2017, algorithm 2)."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.losses import rank_weights, warp_labels
from torchrank.functional.ragged import longest_list, partner_blocks, positions_within, segment_sum


@torch.no_grad()
def sampled_warp(
    features: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor,
    steps: Tensor,
    *,
    lr: Tensor,
    generator: torch.Generator,
    margin: float = 0.1,
    negatives: str = "lower",
    nonneg: bool = True,
) -> Tensor:
    """Weights after a step of size `lr (S,)` on each list of `steps (S,)` in turn; the scores are features @ weights.

    `weights` are `(M,)`, shared by all lists, or `(Q, M)`, a row for each list. A step draws a positive p and then
    negatives until one of them, n, violates the margin. The number of draws estimates the rank k that p pays for, and
    the weights move by -lr L(k) (features of n - features of p); with `nonneg`, negative weights are then set to 0. If
    no violator is found in as many draws as there are negatives, nothing moves. If k were the number of violators, and
    without that cap, the expected move would be -lr times the gradient of `warp_loss`; the estimate and the cap make it
    1.2 to 1.8 times as long. The steps are tiny and run on the host: a device would be slower than one core.

    >>> features, labels, offsets = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), torch.tensor([0, 2])
    >>> generator = torch.Generator().manual_seed(0)
    >>> sampled_warp(features, labels, offsets, torch.ones(2), torch.tensor([0]), lr=torch.tensor([0.5]),
    ...              generator=generator)
    tensor([0.5000, 1.5000])
    """
    if weights.shape not in (features.shape[1:], (len(offsets) - 1, features.shape[1])) or steps.shape != lr.shape:
        raise ValueError(
            f"expected weights (M,) or (Q, M), M = {features.shape[1]}, Q = {len(offsets) - 1}, and a step size for "
            f"each step; got weights {tuple(weights.shape)}, steps {tuple(steps.shape)}, step sizes {tuple(lr.shape)}"
        )
    if features.device.type != "cpu":
        here = (each.cpu() for each in (features, labels, offsets, weights, steps))
        options = {"lr": lr.cpu(), "margin": margin, "negatives": negatives, "nonneg": nonneg}
        return sampled_warp(*here, generator=generator, **options).to(features.device)  # type: ignore[arg-type]
    weights = weights.clone()
    places, plan = _plan(warp_labels(labels, negatives), offsets, steps, lr, generator)
    pay = rank_weights(longest_list(offsets, len(labels), None)).tolist()
    for step in plan:
        own = weights if weights.ndim == 1 else weights[step.list]
        rows, others = features[step.start : step.end], places[step.first : step.last]
        scores = rows @ own.to(rows.dtype)
        violators = others[margin + scores[others] > scores[step.positive]]
        if rank := _paid_rank(len(violators), step):
            negative = violators[int(step.choice * len(violators))]
            own.sub_(rows[negative] - rows[step.positive], alpha=step.lr * pay[rank])
            if nonneg:
                own.clamp_(min=0)
    return weights


class _Step(NamedTuple):
    list: int
    start: int  # the entries of the list are start..end-1
    end: int
    positive: int  # its place in the list
    first: int  # places[first:last] are those of its negatives
    last: int
    lr: float
    patience: float  # uniform in [0, 1): decides after how many draws a violator is found
    choice: float  # uniform in [0, 1): decides which violator it is


def _plan(
    labels: Tensor, offsets: Tensor, steps: Tensor, lr: Tensor, generator: torch.Generator
) -> tuple[Tensor, Iterator[_Step]]:
    """The places of the entries in their lists, sorted by descending label in each list, and all that is known about
    the steps before they are made. Steps on lists in which no entry has a negative are left out."""
    device = labels.device
    uniform = torch.rand(len(steps), 3, dtype=torch.float64, device=generator.device, generator=generator)
    order, partners, first = partner_blocks(labels, offsets)
    places = positions_within(offsets, len(labels))[order]
    positives = segment_sum((partners > 0).long(), offsets)  # in this order they come first in their list
    given = torch.cat((lr[:, None].to(uniform), uniform), 1).to(device)
    steps = steps.to(device)
    drawable = (positives[steps] > 0).nonzero().flatten()
    steps, lr, uniform = steps[drawable], given[drawable, 0], given[drawable, 1:]
    slot = offsets[steps] + (uniform[:, 0] * positives[steps]).long()
    columns = (steps, offsets[steps], offsets[steps + 1], places[slot], first[slot], first[slot] + partners[slot], lr)
    known = torch.stack([column.double() for column in (*columns, uniform[:, 1], uniform[:, 2])]).cpu()  # one copy
    rows = zip(*known[:6].long().tolist(), *known[6:].tolist(), strict=True)
    return places, map(_Step._make, rows)


def _paid_rank(found: int, step: _Step) -> int:
    """The rank to pay for when `found` of the negatives violate the margin; 0 if none of them is drawn.

    The number of draws with replacement until the first violator is geometric, and which violator that is does not
    depend on the number, so neither needs a loop.
    """
    total = step.last - step.first
    if found == 0:
        return 0
    draws = 1 if found == total else 1 + int(math.log1p(-step.patience) / math.log1p(-found / total))
    return 0 if draws > total else max(1, total // draws)

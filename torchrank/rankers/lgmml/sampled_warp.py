"""Sampled WARP: one list, one positive and one violator at a time (Su, King & Lyu 2017, algorithm 2)."""

import math

import torch
from torch import Tensor

from torchrank.functional.losses import rank_weights, warp_labels
from torchrank.functional.ragged import partner_blocks, positions_within, segment_sum


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
        on_host = (part.cpu() for part in (features, labels, offsets, weights, steps))
        options = {"lr": lr.cpu(), "margin": margin, "negatives": negatives, "nonneg": nonneg}
        return sampled_warp(*on_host, generator=generator, **options).to(features.device)  # type: ignore[arg-type]
    weights, labels = weights.clone(), warp_labels(labels, negatives)
    order, partners, first = partner_blocks(labels, offsets)  # in this order the positives of a list come first
    places, positives = positions_within(offsets, len(labels))[order], segment_sum((partners > 0).long(), offsets)
    pay = rank_weights(max(offsets.diff().tolist(), default=0)).tolist()
    uniform = torch.rand(len(steps), 3, dtype=torch.float64, device=generator.device, generator=generator).cpu()
    drawable = (positives[steps] > 0).nonzero().flatten()  # the other lists have no entry with a negative
    steps, lr, (which, patience, choice) = steps[drawable], lr[drawable].double(), uniform[drawable].unbind(1)
    slot = offsets[steps] + (which * positives[steps]).long()  # of the positive; those of its negatives are low..high-1
    low, high = first[slot], first[slot] + partners[slot]
    columns = (steps, offsets[steps], offsets[steps + 1], places[slot], low, high, lr, patience, choice)
    for query, start, end, positive, a, b, rate, *draws in zip(*(part.tolist() for part in columns), strict=True):
        row = weights if weights.ndim == 1 else weights[query]
        rows, others = features[start:end], places[a:b]
        scores = rows @ row.to(rows.dtype)
        violators = others[margin + scores[others] > scores[positive]]
        if rank := _paid_rank(len(violators), len(others), draws[0]):
            negative = violators[int(draws[1] * len(violators))]
            row.sub_(rows[negative] - rows[positive], alpha=rate * pay[rank])
            if nonneg:
                row.clamp_(min=0)
    return weights


def _paid_rank(num_violators: int, num_negatives: int, patience: float) -> int:
    """The rank to pay for when so many of the negatives violate the margin; 0 if none of them is drawn.

    The number of draws with replacement until the first violator is geometric, and which violator that is does not
    depend on the number, so neither needs a loop.
    """
    if num_violators == 0:
        return 0
    share = num_violators / num_negatives
    draws = 1 if share == 1 else 1 + int(math.log1p(-patience) / math.log1p(-share))
    return 0 if draws > num_negatives else max(1, num_negatives // draws)

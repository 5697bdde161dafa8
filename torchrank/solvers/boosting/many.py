"""RankBoost for many models at once: all learn from the same lists, each from its own projection of the features."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.columns import first_largest
from torchrank.functional.ragged import list_ids, subsample, wide
from torchrank.solvers.boosting.potentials import PairedLists, pair_masses, paired_lists
from torchrank.solvers.boosting.thresholds import binned_edges, encode

CHUNK = 2**23  # projected numbers held at once: 64 MB in float64
SAMPLE = 10_000  # rows from which thresholds are taken
CLIP, NOTHING = 1 - 1e-10, 1e-8  # largest |r|; smallest |r| of a useful rule


class Rules(NamedTuple):
    """Rules of M models: F_m(z) = sum over t of alpha[m, t] where z[feature[m, t]] > threshold[m, t]."""

    feature: Tensor  # (M, T)
    threshold: Tensor  # (M, T)
    alpha: Tensor  # (M, T), 0 where no rule was useful


def boost_many(
    x: Tensor, labels: Tensor, offsets: Tensor, basis: Tensor, *, rounds: int = 100, bins: int = 256, seed: int = 0
) -> Rules:
    """Rules on the features U_m x of each model, `basis (M, P, D)`; every list must have two different labels.

    Each model is the one that the ranker `RankBoost` finds in `rounds` rounds, with its default options, on lists with
    these features.

    >>> x, labels = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1, 2])
    >>> rules = boost_many(x, labels, torch.tensor([0, 3]), torch.eye(2)[None], rounds=1)
    >>> rules.feature, rules.threshold
    (tensor([[0]]), tensor([[1.]], dtype=torch.float64))
    """
    paired = paired_lists(labels, offsets)
    chosen = subsample(len(x), SAMPLE, seed)
    step = max(1, CHUNK // max(1, basis.shape[1] * len(x)))
    found = []
    for part in basis.split(step):
        columns = (wide(part).flatten(0, 1) @ wide(x).T).contiguous()  # (M P, N)
        edges = binned_edges(columns[:, chosen.to(x.device)].T, bins)
        found.append(_boost(encode(columns, edges).codes, edges, paired, len(part), rounds))
    return Rules(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def project(x: Tensor, offsets: Tensor, basis: Tensor) -> Tensor:
    """U_q x of every row `x (N, D)` with the basis of its list, `basis (Q, P, D)`: (N, P).

    >>> project(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1, 2]), torch.eye(2)[:, None])
    tensor([[1.],
            [4.]])
    """
    model = list_ids(offsets, len(x))
    return torch.stack([(x * part[model]).sum(1) for part in basis.unbind(1)], 1)


def rule_scores(z: Tensor, offsets: Tensor, rules: Rules) -> Tensor:
    """Scores (N,) of projected rows (N, P), each list by the rules of its own model.

    >>> one = torch.ones(1, 1)
    >>> rule_scores(torch.tensor([[2.0], [1.0]]), torch.tensor([0, 2]), Rules(torch.zeros(1, 1).long(), one, 3 * one))
    tensor([3., 0.])
    """
    model = list_ids(offsets, len(z))
    above = z.gather(1, rules.feature[model]) > rules.threshold[model]
    return (rules.alpha[model] * above).sum(1)


def _boost(codes: Tensor, edges: Tensor, paired: PairedLists, models: int, rounds: int) -> Rules:
    """`rounds` rules for each model of a chunk, from codes (M P, N) and edges (M P, W) as in `Thresholds`."""
    features, width = len(codes) // max(1, models), edges.shape[1]
    first_weight = -paired.pairs.sum().log().expand(len(paired.pairs), models)
    scores = first_weight.new_zeros(codes.shape[1], models)
    log_loss, rows = scores.new_zeros(models), torch.arange(models, device=codes.device)
    found = []
    for _ in range(rounds):
        won, lost = pair_masses(scores, first_weight - log_loss, paired)
        mass = won.sum(0)
        log_loss = log_loss + mass.log()
        sums = _sums(codes, won.sub_(lost).div_(mass).T.contiguous(), width).view(models, -1)  # r of every rule
        best = first_largest(sums.abs(), dim=1)
        r, feature, place = sums[rows, best], best // width, best % width
        alpha = torch.where(r.abs() < NOTHING, 0.0, torch.atanh(r.clamp(-CLIP, CLIP)))
        row = rows * features + feature
        scores += ((codes[row] <= place[:, None]) * alpha[:, None]).T
        found.append((feature, edges[row, place], alpha))
    return Rules(*(torch.stack(parts, 1) for parts in zip(*found, strict=True)))


def _sums(codes: Tensor, potentials: Tensor, width: int) -> Tensor:
    """Sum of the potentials (M, N) of each model over the documents above every threshold, (M P, W)."""
    models = potentials.repeat_interleave(len(codes) // len(potentials), 0)
    found = potentials.new_zeros(len(codes), width + 1)
    return found.scatter_add_(1, codes.long(), models)[:, :width].cumsum(1)

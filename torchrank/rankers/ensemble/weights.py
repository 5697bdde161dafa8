"""Weights of the members of an ensemble, chosen on validation lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.functional.losses import LOSSES
from torchrank.functional.measures.evaluation import evaluate
from torchrank.functional.ragged import by_column, first_largest

PENALTY = 1e-3  # l2 of fitted weights: without it those of members that err on no list would grow without end


class Candidate(NamedTuple):
    """A way to weight the members, and what it measured on the validation lists."""

    name: str
    weights: Tensor  # (M,), their sum is 1
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4f}"


class ValidationScores:
    """The standardised scores of all members for validation lists, of which every process holds its share.

    Args:
        lists: the validation lists.
        score: `score(batch)` are the scores (M, N) of the members.
        measure: what is maximised.
        max_label: the highest grade, for err.
    """

    def __init__(
        self, lists: TrainingLists, score: Callable[[Batch], Tensor], measure: str, max_label: float | None = None
    ):
        self.lists, self.measure, self.max_label = lists, measure, max_label
        self.batches = [(score(batch), batch._replace(x=batch.x[:0])) for batch in lists]

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self.batches[0][0])

    def means(self, columns: list[Tensor]) -> Tensor:
        """The mean (C,) of the measure under each of the columns of scores (C, N), a table for each batch."""
        sums = torch.zeros(2, columns[0].shape[0], dtype=torch.float64, device=self.lists.device)
        for scores, (_, batch) in zip(columns, self.batches, strict=True):
            values = by_column(self._values, scores.T, batch.labels, batch.offsets)
            sums += torch.stack([values.nansum(0), (~values.isnan()).double().sum(0)])
        sums = self.lists.reduce(sums)
        return sums[0] / sums[1]

    def _values(self, scores: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
        options: Any = {"measures": [self.measure], "max_label": self.max_label}
        (values,) = evaluate(scores, labels, offsets, **options).values()
        return values

    def candidates(self, **weights: Tensor) -> list[Candidate]:
        """Named weights (M,) with what they measure."""
        columns = [torch.stack([mixed(each, scores) for each in weights.values()]) for scores, _ in self.batches]
        values = self.means(columns).tolist()
        return [
            Candidate(name.replace("_", " "), each, value)
            for (name, each), value in zip(weights.items(), values, strict=True)
        ]


def mixed(weights: Tensor, scores: Tensor) -> Tensor:
    """The sum (N,) of scores (M, N), each with its weight. Equal columns have equal sums: no product of matrices."""
    return (weights[:, None] * scores).sum(0)


def chosen_weights(scores: ValidationScores, way: str, *, steps: int, loss: str) -> list[Candidate]:
    """The best member alone, equal weights, and the weights that are found by greedy selection or by a fit.

    Returns:
        The three candidates, the best one first; of equal ones the first in this order.
    """
    count, device = scores.members, scores.lists.device
    single = torch.eye(count, dtype=torch.float64, device=device)
    best = int(first_largest(scores.means([each for each, _ in scores.batches])))
    found = greedy(scores, steps) if way == "greedy" else fitted(scores, loss)
    tried = scores.candidates(
        **{f"member {best} alone": single[best], "equal weights": single.mean(0), f"{way} weights": found}
    )
    first = int(first_largest(torch.tensor([each.value for each in tried])))
    return [tried[first], *tried[:first], *tried[first + 1 :]]


def greedy(scores: ValidationScores, steps: int) -> Tensor:
    """Ensemble selection (Caruana et al., ICML 2004), with replacement: each step adds the member with which the mean
    of all that were added measures best; of equal ones the first. The best of all steps counts, the first of equal
    ones."""
    added, values = [], []
    sums = [torch.zeros_like(each[0]) for each, _ in scores.batches]
    for _ in range(steps):
        means = scores.means([total + each for total, (each, _) in zip(sums, scores.batches, strict=True)])
        member = int(first_largest(means))
        added.append(member)
        values.append(means[member])
        sums = [total + each[member] for total, (each, _) in zip(sums, scores.batches, strict=True)]
    last = int(first_largest(torch.stack(values)))
    counts = torch.bincount(torch.tensor(added[: last + 1]), minlength=scores.members)
    return (counts.double() / counts.sum()).to(scores.lists.device)


def fitted(scores: ValidationScores, loss: str) -> Tensor:
    """Weights >= 0 that minimise the mean loss of the lists, plus PENALTY / 2 |w|^2; then divided by their sum."""
    function, device, count = LOSSES[loss], scores.lists.device, len(scores.lists)

    def objective(values: object) -> tuple[float, object]:
        weights = torch.tensor(values, dtype=torch.float64, device=device, requires_grad=True)
        total = (PENALTY * count / 2 / max(scores.lists.world, 1)) * weights.square().sum()
        for each, batch in scores.batches:
            total = total + function(mixed(weights, each), batch.labels, batch.lists).sum()
        (slope,) = torch.autograd.grad(total, weights)
        found = scores.lists.reduce(torch.cat([total.detach()[None].double(), slope])) / count
        return float(found[0]), found[1:].cpu().numpy()

    with torch.enable_grad():
        start = torch.full((scores.members,), 1 / scores.members, dtype=torch.float64).numpy()
        solved = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * scores.members)
    weights = torch.tensor(solved.x, dtype=torch.float64, device=device).clamp(min=0)
    return weights / weights.sum() if weights.sum() > 0 else torch.full_like(weights, 1 / scores.members)

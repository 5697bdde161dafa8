"""All training documents of all processes as one list: the domination loss is then no sum over lists."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.domination import domination_slopes
from torchrank.functional.ragged import per_entry, positions_within
from torchrank.solvers.domination.margins import Feedback
from torchrank.solvers.linear.scores import add_gradient, column_extremes, entry_scores


class Pooled:
    """The domination loss of a linear ranker over one list of all its documents.

    Every process holds the scores (n,) of all of them: one sum gathers the scores, another one adds up the gradient.
    """

    def __init__(self, ranker: Any, feedback: Feedback):
        self.ranker, self.feedback = ranker, feedback
        self._labels: Tensor | None = None

    def values(self, weight: Tensor) -> Tensor:
        """Loss (1,) of weights (1, D)."""
        return self._at_places(weight)[0]

    def slopes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (1,) and gradient (1, D)."""
        loss, slopes = self._at_places(weight)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            add_gradient(batch, slopes[self._places(batch)], into[0], per_topic=False)

        return loss, self.ranker.total(add, into=(torch.zeros_like(weight),))[0]

    def curvature(self, bound: str) -> Tensor:
        """Bound (1, D) of the curvature: the range is that of all documents of all processes."""
        ranker, labels = self.ranker, self._all_labels()
        labels = self.feedback.grades(labels[labels.isfinite()])
        above = (labels > labels.min()).sum() if len(labels) else 0

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            here, seen = into[0][ranker.global_rank], into[1][ranker.global_rank]
            if len(batch.x):
                extremes = column_extremes(batch.x)
                here.copy_(torch.where(seen > 0, torch.maximum(here, extremes), extremes))
                seen += 1

        rows = ranker.weight.new_zeros(ranker.trainer.world_size, 2, ranker.weight.shape[1])
        extremes, seen = ranker.total(write, into=(rows, rows.new_zeros(len(rows))))
        if not seen.any():
            return torch.zeros_like(ranker.weight)
        down, up = extremes[seen > 0].amax(0)
        squares = (down + up).square() / 4 if bound == "range" else torch.maximum(down.square(), up.square())
        return above * squares[None]

    def _at_places(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (1,), and its slopes at the places of all training documents."""
        labels = self._all_labels()
        scores = self._gather(lambda batch: entry_scores(batch, weight, per_topic=False))
        there = labels.isfinite()
        labels = labels[there]
        one = torch.tensor([0, len(labels)], device=labels.device)
        margin = self.feedback.margin(labels)
        loss, slopes = domination_slopes(scores[there], self.feedback.grades(labels), one, margin=margin)
        return loss, torch.zeros_like(scores).masked_scatter(there, slopes)

    def _all_labels(self) -> Tensor:
        if self._labels is None:
            self._labels = self._gather(lambda batch: batch.labels.double())
        return self._labels

    def _gather(self, entries: Callable[[Batch], Tensor]) -> Tensor:
        """Values of the entries of all processes at their places; nan where a document is not learned from."""

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][self._places(batch)] = entries(batch)
            into[1][self._places(batch)] = 1

        size = int(self.ranker.data.sets["train"].lengths.sum())
        zeros = torch.zeros(size, dtype=torch.float64, device=self.ranker.device)
        values, written = self.ranker.total(write, into=(zeros, zeros.clone()))
        return torch.where(written > 0, values, torch.nan)

    def _places(self, batch: Batch) -> Tensor:
        """Places (N,) of the entries among all training documents."""
        starts = self.ranker.data.sets["train"].offsets.to(self.ranker.device)[batch.query]
        count = len(batch.labels)
        return per_entry(starts, batch.offsets, count) + positions_within(batch.offsets, count)

"""The domination loss of linear scores over the training lists: values, slopes and curvature, summed over processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.functional.lists import Lists
from torchrank.functional.losses.domination import DominationGradient
from torchrank.functional.ragged import dominating, per_entry, positions_within, segment_sum
from torchrank.rankers.domination.margins import Feedback
from torchrank.solvers.domination.coordinate_descent import DenseLists, SparseLists, coordinate_lists
from torchrank.solvers.domination.curvature import add_curvature, corpus_curvature
from torchrank.solvers.linear.scores import add_gradient, column_extremes, entry_scores


class Objective:
    """The loss summed over lists, for one model or for T topics. Weights are (T, D), D being the features of `lists`.

    Args:
        lists: the lists to learn from.
        feedback: which grades count as different, and by which margin.
        topics: number of models, one for each list; None: one model for all lists.
    """

    def __init__(self, lists: TrainingLists, feedback: Feedback, topics: int | None):
        self.lists, self.feedback, self.topics = lists, feedback, topics
        self._curvature: dict[int, Tensor] = {}

    def slopes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (T,) and gradient (T, D) at these weights."""

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            losses, slopes = self._list_slopes(batch, weight)
            into[0].index_add_(0, self._models(batch), losses)
            add_gradient(batch, slopes, into[1], self.topics is not None)

        loss, gradient = self.lists.total(add, into=(torch.zeros_like(weight[:, 0]), torch.zeros_like(weight)))
        return loss, gradient

    def values(self, weight: Tensor) -> Tensor:
        """Loss (T,) at these weights, without the gradient."""

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0].index_add_(0, self._models(batch), self._list_slopes(batch, weight)[0])

        loss: Tensor = self.lists.total(add, into=(torch.zeros_like(weight[:, 0]),))[0]
        return loss

    def curvature(self, width: int, block: int = 1) -> Tensor:
        """Bound (T, D) on the curvature along each of `width` weights, or along `block` weights that move together."""
        if block not in self._curvature:
            self._curvature[block] = self._bounds(width, block)
        return self._curvature[block]

    def _bounds(self, width: int, block: int) -> Tensor:
        corpus = None if self.lists.corpus is None else corpus_curvature(self.lists.corpus, block)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            above, models = dominating(self.feedback.grades(batch.labels), batch.offsets), self._models(batch)
            counts = segment_sum(above.double(), batch.offsets)
            if corpus is None:
                add_curvature(batch.x, batch.offsets, into[0], models, counts, block=block)
            else:
                into[0].index_add_(0, models, counts[:, None] * corpus)

        bounds: Tensor = self.lists.total(add, into=(self.lists.zeros(self.topics or 1, width),))[0]
        return bounds

    @cached_property
    def columns(self) -> DenseLists | SparseLists:
        """The lists of this process in the form that coordinate descent needs."""
        batches = list(self.lists)
        margins = [self.feedback.margin(batch.labels) for batch in batches]
        return coordinate_lists([self._graded(batch) for batch in batches], margins, self.topics)

    def _graded(self, batch: Batch) -> Batch:
        labels, num_grades = self.feedback.grades(batch.labels), self.feedback.num_grades(batch.num_grades)
        return batch._replace(labels=labels, num_grades=num_grades)

    def _list_slopes(self, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor]:
        graded = self._graded(batch)
        known = DominationGradient(graded.labels, graded.lists, self.feedback.margin(batch.labels))
        return known.loss_and_gradient(entry_scores(batch, weight, self.topics is not None))

    def _models(self, batch: Batch) -> Tensor:
        return torch.zeros_like(batch.query) if self.topics is None else batch.query


class PooledObjective(Objective):
    """The loss of all training documents of all processes as one list, which is not a sum over lists.

    Every process holds the scores (n,) of all documents: one sum gathers the scores, another adds up the gradient.
    """

    def slopes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        loss, slopes = self._at_places(weight)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            add_gradient(batch, slopes[self._places(batch)], into[0], per_topic=False)

        return loss, self.lists.total(add, into=(torch.zeros_like(weight),))[0]

    def values(self, weight: Tensor) -> Tensor:
        return self._at_places(weight)[0]

    def _bounds(self, width: int, block: int) -> Tensor:
        """As for one list: the range of a feature is taken over all documents of all processes."""
        lists, labels = self.lists, self._labels
        labels = self.feedback.grades(labels[labels.isfinite()])
        above = (labels > labels.min()).sum() if len(labels) else 0

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            here, seen = into[0][lists.rank], into[1][lists.rank]
            if len(batch.x):
                extremes = column_extremes(batch.x)
                here.copy_(torch.where(seen > 0, torch.maximum(here, extremes), extremes))
                seen += 1

        extremes, seen = lists.total(write, into=(lists.zeros(lists.world, 2, width), lists.zeros(lists.world)))
        if not seen.any():
            return lists.zeros(1, width)
        down, up = torch.amax(extremes[seen > 0], 0).unbind()
        return above * ((down + up).square() / 4)[None]

    def _at_places(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (1,) and its slopes (n,), one for each training document."""
        scores = self._gather(lambda batch: entry_scores(batch, weight, per_topic=False))
        there, grades, margin, one = self._known
        known = self.feedback.num_grades(self.lists.lists.num_grades)
        lists = Lists(one, len(grades), longest=len(grades), grades=known)
        loss, slopes = DominationGradient(grades, lists, margin).loss_and_gradient(scores[there])
        return loss, torch.zeros_like(scores).index_copy(0, there, slopes)

    @cached_property
    def _known(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Which training documents (m,) were drawn, their grades and margin, and the offsets of them all as one list:
        looked up once, since a device would be waited for."""
        there = self._labels.isfinite().nonzero().flatten()
        labels = self._labels[there]
        one = torch.tensor([0, len(labels)], device=labels.device)
        return there, self.feedback.grades(labels), self.feedback.margin(labels), one

    @cached_property
    def _labels(self) -> Tensor:
        """Labels (n,) of all training documents; nan where a document was not drawn."""
        return self._gather(lambda batch: batch.labels.double())

    def _gather(self, entries: Callable[[Batch], Tensor]) -> Tensor:
        """Values (n,) of all training documents of all processes; nan where a document was not drawn."""

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][self._places(batch)] = entries(batch)
            into[1][self._places(batch)] = 1

        size = self.lists.num_entries
        values, written = self.lists.total(write, into=(self.lists.zeros(size), self.lists.zeros(size)))
        return torch.where(written > 0, values, torch.nan)

    def _places(self, batch: Batch) -> Tensor:
        """Positions (N,) of the entries of a batch among all training documents."""
        starts, count = self.lists.lists.offsets.to(batch.device)[batch.query], len(batch.labels)
        return per_entry(starts, batch.offsets, count) + positions_within(batch.offsets, count)

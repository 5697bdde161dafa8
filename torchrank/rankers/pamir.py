"""PAMIR (Grangier & Bengio, PAMI 2008): passive-aggressive steps on sampled triplets; one model, or one per topic."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import check_choice, check_integer, check_number
from torchrank.rankers.core.linear import LinearRanker
from torchrank.rankers.core.rounds import Round
from torchrank.solvers.local_metrics.drawn_lists import found_in
from torchrank.solvers.passive_aggressive import (
    SAMPLINGS,
    Passed,
    differences,
    draw_lists,
    draw_pairs,
    list_counts,
    passive_minibatches,
    passive_steps,
)

NUMBERS = 2**24  # values of the differences held at once: 128 MB in float64


class PAMIR(LinearRanker):
    """Linear scores w.x. A step draws a document i and a document j of the same list with a lower label, v = x_i - x_j,
    and moves w to the minimiser of 1/2 |w' - w|^2 + l2 |w'|^2 + C max(0, 1 - w'.v), starting at w = 0.

    Args:
        num_features: number of columns of the rows.
        steps: steps of a round; None: enough to draw one triplet for each document that ranks above another.
        C: upper bound of the step length.
        l2: shrinks the weights at every step; useful values are about 1 / steps.
        sampling: what is drawn with equal probability: positive, each document i that ranks above another; query, each
            list with such a document; or pair, each pair (i, j).
        averaged: whether to score with the mean of the weights after each step of all rounds.
        minibatch: triplets of a step, which moves to the mean of the points that each would reach alone. With 1 the
            steps are sequential and run in one process.
        per_topic: whether list q of every set is topic q with weights of its own, moved by its own triplets. How many
            each topic gets follows `sampling`, averages count a topic's own steps, and processes divide the topics.
        rounds: maximum number of rounds.
        seed: seed of the drawn triplets.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> PAMIR(1, rounds=5).fit(lists).rank(x, offsets)
        tensor([1, 2, 0])
    """

    iterate: Tensor  # (T, D) weights after the last step, where `weight` is their mean
    made: Tensor  # (T,) number of steps so far

    def __init__(
        self,
        num_features: int,
        steps: int | None = None,
        C: float = 0.1,
        l2: float = 0.0,
        sampling: str = "positive",
        averaged: bool = True,
        minibatch: int = 1,
        per_topic: bool = False,
        rounds: int = 50,
        seed: int = 0,
        transform: str | dict[str, Any] | list[Any] | None = "auto",
    ):
        super().__init__(num_features, transform, rounds, per_topic)
        check_number("> 0", C=C)
        check_number(">= 0", l2=l2)
        check_integer(">= 1", minibatch=minibatch, steps=steps)
        check_choice(SAMPLINGS, sampling=sampling)
        self.steps, self.C, self.l2, self.sampling, self.averaged = steps, C, l2, sampling, averaged
        self.minibatch, self.seed = minibatch, seed
        self.register_buffer("iterate", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("made", torch.zeros(1, dtype=torch.int64))

    def start(self, lists: TrainingLists) -> None:
        zeros = lists.zeros(len(lists) if self.per_topic else 1, self.transform.num_outputs)
        store(self, weight=zeros, made=zeros[:, 0], **{"iterate": zeros} if self.averaged else {})

    def open(self, lists: TrainingLists) -> None:
        if lists.world > 1 and self.minibatch == 1 and not self.per_topic:
            raise ValueError(f"PAMIR with minibatch=1 runs in one process, got {lists.world}: set model.minibatch=64")

        def count(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][batch.query] = list_counts(batch.labels, batch.offsets, self.sampling).double()
            into[1].add_(list_counts(batch.labels, batch.offsets, "positive").sum())

        counts, positives = lists.total(count, into=(lists.zeros(len(lists)), lists.zeros()))
        self.kept.counts, self.kept.positives = counts.long().cpu(), int(positives)  # how likely each list is

    # ---- one round ----------------------------------------------------------------------------------------------

    def round(self, lists: TrainingLists, number: int) -> Round:
        counts: Tensor = self.kept.counts
        triplets, portion = self._sizes_of_a_round(lists)
        if triplets == 0:
            return Round(done=True)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
        models = self._current.detach().clone()
        totals, made, loss = torch.zeros_like(models), torch.zeros_like(self.made), 0.0
        for begin in range(0, triplets, portion):
            count = min(portion, triplets - begin)
            drawn = draw_lists(counts, count, generator)
            uniform = torch.rand(count, 2, dtype=torch.float64, generator=generator)
            ready = torch.cat((drawn[:, None].double(), uniform), 1).to(lists.device)  # one copy to the device
            for model, places, rows in self._by_model(lists, ready[:, 0].long(), ready[:, 1:]):
                passed = self._steps(lists, rows, models[model], places, count)
                models[model] = passed.weights
                totals[model] += passed.total
                made[model] += -(-(len(places) if self.per_topic else count) // self.minibatch)
                loss += passed.loss
        return self._written(lists, models, totals, made, loss / triplets)

    def _steps(
        self, lists: TrainingLists, rows: Tensor | SparseRows, weights: Tensor, places: Tensor, number: int
    ) -> Passed:
        """Make the steps of one model: `rows` are those of this process, at `places` among its `number` rows. All rows
        of a topic are on one process."""
        if self.minibatch == 1:
            return passive_steps(rows, weights, C=self.C, l2=self.l2)
        if self.per_topic:
            places, number = torch.arange(len(places), device=places.device), len(places)
        bounds = [*range(0, number, self.minibatch), len(places)]
        sizes = [min(self.minibatch, number - start) for start in bounds[:-1]]
        if len(places) < number:  # the others are on other processes
            starts = torch.arange(0, number, self.minibatch, device=places.device)
            bounds = [*torch.searchsorted(places, starts).tolist(), len(places)]
        summed: Any = {} if self.per_topic else {"reduce": lists.reduce}
        return passive_minibatches(rows, weights, bounds, sizes, C=self.C, l2=self.l2, **summed)

    def _by_model(self, lists: TrainingLists, drawn: Tensor, uniform: Tensor) -> Iterator[tuple[int, Tensor, Any]]:
        """For each model, the places of its triplets among the drawn ones, in order, and their rows x_i - x_j. Only
        triplets from the lists of this process are included."""
        found, parts, shared = [], [], lists.corpus is not None
        for batch in lists:
            here, places, _ = found_in(batch, drawn[:, None])
            entries = torch.stack(draw_pairs(batch.labels, batch.offsets, here, uniform[places], self.sampling))
            found.append(places)
            parts.append(batch.index[entries] if batch.index is not None else differences(batch.x, *entries))
        corpus = batch.x
        places, order = torch.sort(torch.cat(found))
        owners, grouped = torch.sort(drawn[places] * self.per_topic, stable=True)
        places, order = places[grouped], order[grouped]
        join: Any = SparseRows.cat if isinstance(corpus, SparseRows) else torch.cat
        rows = torch.cat(parts, 1)[:, order] if shared else join(parts)[order]
        names, ends = [0], [len(places)]
        if self.per_topic:
            models, counts = torch.unique_consecutive(owners, return_counts=True)
            names, ends = torch.stack((models, counts.cumsum(0))).tolist()
        for model, (a, b) in zip(names, pairwise([0, *ends]), strict=True):
            yield model, places[a:b], differences(corpus, *rows[:, a:b]) if shared else rows[a:b]

    def _written(self, lists: TrainingLists, models: Tensor, totals: Tensor, made: Tensor, loss: float) -> Round:
        """Write the weights after a round; each process contributes the topics that it has, and 0 for the others."""
        if lists.world > 1:
            loss = float(lists.reduce(torch.tensor(loss, dtype=torch.float64, device=lists.device)))
        if lists.world > 1 and self.per_topic:
            here = lists.zeros(len(models), 1)
            for batch in lists:
                here[batch.query] = 1
            models, totals, made = (lists.reduce(part) for part in (models * here, totals, made))
        if self.averaged:
            sums = self.weight * self.made[:, None] + totals
            self.weight.copy_(sums / (self.made + made).clamp(min=1)[:, None])
        self._current.copy_(models)
        self.made += made
        return Round(False, {"train/loss": loss})

    @property
    def _current(self) -> Tensor:
        return self.iterate if self.averaged else self.weight

    def _sizes_of_a_round(self, lists: TrainingLists) -> tuple[int, int]:
        """Triplets of a round, and how many of them are held at once; both are multiples of the minibatch."""
        steps = -(-self.kept.positives // self.minibatch) if self.steps is None else self.steps
        x = lists.lists.x
        width = 2 * len(x.values) // max(len(x), 1) if isinstance(x, SparseRows) else self.transform.num_outputs
        held = max(1, NUMBERS // max(width, 1) // self.minibatch)
        return (steps if self.kept.counts.any() else 0) * self.minibatch, held * self.minibatch

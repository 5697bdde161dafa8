"""PAMIR (Grangier & Bengio, PAMI 2008): passive-aggressive steps on sampled triplets, one model or one per topic."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.rankers.core.ranker import RoundRanker, density_of
from torchrank.rankers.core.topics import check_topics, topic_names
from torchrank.solvers.linear.scores import entry_scores
from torchrank.solvers.local_metrics.sources import found_in
from torchrank.solvers.pamir import (
    Passed,
    differences,
    draw_lists,
    draw_pairs,
    in_order,
    list_counts,
    passive_minibatches,
    passive_steps,
)

NUMBERS = 2**24  # numbers of the differences held at once: 128 MB in float64


class PAMIR(RoundRanker):
    """Linear scores w.x. A step draws a document i and one j of its list with a lower label, v = x_i - x_j, and moves w
    to the minimiser of 1/2 |w' - w|^2 + l2 |w'|^2 + C max(0, 1 - w'.v), starting at w = 0.

    `sampling`: "positive", each document that has a lower one as often as any other, "query", each list that has such
    as often, or "pair", each pair (i, j). `l2` shrinks the weights at every step: useful values are about 1 / steps.
    A round makes `steps` steps; None: as many as it takes to draw a triplet for each document that has a lower one.
    `averaged`: scores by the mean of the weights after each step of all rounds. With `minibatch` > 1 a step moves to
    the mean of the points to which that many triplets would go alone; the others are sequential and run in one process.

    `per_topic`: list q of every set is topic q and has weights of its own, which its own triplets move; their shares
    follow `sampling`, averages count own steps, and several processes share out the topics.
    """

    takes = frozenset({"sparse", "corpus"})
    weight: nn.Parameter  # (T, D): a row for each topic, or one
    iterate: Tensor  # (T, D) weights after the last step, where `weight` is their mean
    made: Tensor  # (T,) steps made so far

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
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(num_features, transform, rounds)
        if not (C > 0 and 0 <= l2 < math.inf and minibatch >= 1 and (steps is None or steps >= 1)):
            raise ValueError(
                f"C={C}, l2={l2}, minibatch={minibatch}, steps={steps}: C has to be above 0, l2 at least 0 and finite, "
                "minibatch and steps at least 1"
            )
        list_counts(torch.zeros(0), torch.zeros(1, dtype=torch.int64), sampling)  # refuses unknown samplings
        self.steps, self.C, self.l2, self.sampling, self.averaged = steps, C, l2, sampling, averaged
        self.minibatch, self.per_topic, self.seed = minibatch, per_topic, seed
        self.topics: list[str] | None = None
        self._counts: Tensor | None = None
        self.weight = nn.Parameter(torch.zeros(1, self.transform.num_outputs, dtype=torch.float64), requires_grad=False)
        self.register_buffer("iterate", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("made", torch.zeros(1, dtype=torch.int64))

    @property
    def num_topics(self) -> int | None:
        return len(self.weight) if self.per_topic else None

    def score(self, batch: Batch) -> Tensor:
        return entry_scores(batch, self.weight.to(batch.x.dtype), self.per_topic)

    # ---- learning -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._counts = None
        models = len(self.data.sets["train"]) if self.per_topic else 1
        self.resize("made", (models,))
        for name in ("weight", "iterate") if self.averaged else ("weight",):
            self.resize(name, (models, self.transform.num_outputs))

    def round(self) -> bool:
        if self.trainer.world_size > 1 and self.minibatch == 1 and not self.per_topic:
            raise ValueError("PAMIR makes one step after another, in one process: set model.minibatch=64 on several")
        counts = self._list_counts()
        triplets, portion = self._sizes_of_a_round(counts)
        if triplets == 0:
            return True
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.trainer.current_epoch)
        models = self._current.detach().clone()
        totals, made, loss = torch.zeros_like(models), torch.zeros_like(self.made), 0.0
        for begin in range(0, triplets, portion):
            number = min(portion, triplets - begin)
            lists = draw_lists(counts, number, generator)
            uniform = torch.rand(number, 2, dtype=torch.float64, generator=generator)
            for model, places, rows in self._by_model(lists.to(self.device), uniform.to(self.device)):
                passed = self._steps(rows, models[model], places, number)
                models[model] = passed.weights
                totals[model] += passed.total
                made[model] += -(-(len(places) if self.per_topic else number) // self.minibatch)
                loss += passed.loss
        self._write(models, totals, made, loss / triplets)
        return False

    def _steps(self, rows: Tensor | SparseRows, weights: Tensor, places: Tensor, number: int) -> Passed:
        """Steps of one model on the rows at `places` of its `number` rows; those of a topic are all here."""
        if self.minibatch == 1:
            return passive_steps(rows, weights, C=self.C, l2=self.l2)
        if self.per_topic:
            places, number = torch.arange(len(places), device=places.device), len(places)
        starts = torch.arange(0, number, self.minibatch, device=places.device)
        bounds = [*torch.searchsorted(places, starts).tolist(), len(places)]
        sizes = [min(self.minibatch, number - start) for start in starts.tolist()]
        summed: Any = {} if self.per_topic else {"reduce": self._reduce}
        return passive_minibatches(rows, weights, bounds, sizes, C=self.C, l2=self.l2, **summed)

    def _by_model(self, lists: Tensor, uniform: Tensor) -> Iterator[tuple[int, Tensor, Any]]:
        """For each model the places of its triplets among the drawn ones, in order, and their rows x_i - x_j, of the
        lists of this process."""
        found, parts, shared = [], [], self.data.sets["train"].is_shared
        for batch in self.batches():
            places, entries = self._entries(batch, lists, uniform)
            found.append(places)
            parts.append(batch.index[entries] if batch.index is not None else differences(batch.x, *entries))
        corpus = batch.x
        places, order = torch.sort(torch.cat(found))
        owners, grouped = torch.sort(lists[places] * self.per_topic, stable=True)
        places, order = places[grouped], order[grouped]
        rows = torch.cat(parts, 1)[:, order] if shared else in_order(parts, order)
        models, counts = torch.unique_consecutive(owners, return_counts=True)
        names, ends = (models.tolist(), counts.cumsum(0).tolist()) if self.per_topic else ([0], [len(places)])
        for model, (a, b) in zip(names, pairwise([0, *ends]), strict=True):
            yield model, places[a:b], differences(corpus, *rows[:, a:b]) if shared else rows[a:b]

    def _entries(self, batch: Batch, lists: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Of the drawn triplets those of the batch: their places (S,), and the entries (2, S) that they compare."""
        here, places, _ = found_in(batch, lists[:, None])
        return places, torch.stack(draw_pairs(batch.labels, batch.offsets, here, uniform[places], self.sampling))

    def _write(self, models: Tensor, totals: Tensor, made: Tensor, loss: float) -> None:
        """Weights after a round; of topics each process brings its own, and 0 for the others."""
        if self.trainer.world_size > 1:
            loss = float(self._reduce(torch.tensor(loss, dtype=torch.float64, device=self.device)))
        if self.trainer.world_size > 1 and self.per_topic:
            here = torch.zeros(len(models), 1, dtype=models.dtype, device=self.device)
            for batch in self.batches():
                here[batch.query] = 1
            models, totals, made = (self._reduce(part) for part in (models * here, totals, made))
        if self.averaged:
            sums = self.weight * self.made[:, None] + totals
            self.weight.copy_(sums / (self.made + made).clamp(min=1)[:, None])
        self._current.copy_(models)
        self.made += made
        self.log("train/loss", loss, prog_bar=True)

    @property
    def _current(self) -> Tensor:
        return self.iterate if self.averaged else self.weight

    def _list_counts(self) -> Tensor:
        """How likely each training list is to be drawn, on the host: the same in all processes."""
        if self._counts is None:

            def count(batch: Batch, into: tuple[Tensor, ...]) -> None:
                into[0][batch.query] = list_counts(batch.labels, batch.offsets, self.sampling).double()
                into[1].add_(list_counts(batch.labels, batch.offsets, "positive").sum())

            zeros = torch.zeros(len(self.data.sets["train"]) + 1, dtype=torch.float64, device=self.device)
            counts, positives = self.total(count, into=(zeros[1:], zeros[0]))
            self._counts, self._positives = counts.long().cpu(), int(positives)
        return self._counts

    def _sizes_of_a_round(self, counts: Tensor) -> tuple[int, int]:
        """Triplets of a round, and how many of them are held at once; both fill their minibatches."""
        steps = -(-self._positives // self.minibatch) if self.steps is None else self.steps
        x = self.data.sets["train"].x
        width = 2 * len(x.values) // max(len(x), 1) if isinstance(x, SparseRows) else self.transform.num_outputs
        held = max(1, NUMBERS // max(width, 1) // self.minibatch)
        return (steps if counts.any() else 0) * self.minibatch, held * self.minibatch

    def density(self) -> float:
        return density_of(self.weight)

    # ---- topics -------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.per_topic:
            if stage == "fit":
                self.topics = topic_names(self.data.sets["train"])
            count = len(self.data.sets["train"]) if stage == "fit" else len(self.weight)
            check_topics(self.data, count, self.topics)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["topics"] = self.topics

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self.topics, self._counts = checkpoint["topics"], None

"""Domination Rank: linear models with the log-sum-exp domination loss (Stevens, MIT 2010), solved to a certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.domination import dominating, domination_slopes
from torchrank.functional.ragged import list_ids, positions_within, segment_sum
from torchrank.rankers.base import RoundRanker
from torchrank.solvers.coordinate import coordinate_lists, coordinate_sweep, useful_blocks
from torchrank.solvers.curvature import add_curvature
from torchrank.solvers.induction import take_in
from torchrank.solvers.linear import add_gradient, column_extremes, entry_scores, restrict
from torchrank.solvers.margins import check_margin, margin_of
from torchrank.solvers.negatives import keep_negatives
from torchrank.solvers.penalty import Penalty
from torchrank.solvers.solving import Solving, fista_steps, lbfgs_steps

STEPS = 20  # steps of FISTA or L-BFGS in a round, sweeps of coordinate descent where a round is a whole fit
INDUCED_ROUNDS = 50  # times STEPS for the features taken in
PATH_ROUNDS = 200  # times STEPS for one fit of a path


class DominationRank(RoundRanker):
    """Linear scores f = Xw that minimise sum_i log(1 + sum_{j below i} exp(f_j - f_i)) + l1 |w|_1 + l2 |w|^2, where j
    runs over the documents of the same list with a smaller label. A sum over all lists: l1 and l2 grow with the data,
    unless `relative` makes l1 a share of the value from which all weights (of a topic) are 0.

    `grades="flat"` knows relevant and other documents only. `margin`: a number k demands k times the difference of the
    labels, `{"slope": a, "offset": b, "log": true}` the schedules s(y) = a y + b or a ln y + b (0 for y <= 0), a list
    one margin for each boundary between grades, a matrix one for each pair of grades. `group="pooled"` ranks all
    documents of all lists together. `negatives` is the share of the lowest documents of each list that is drawn.
    `per_topic` learns a model for every list: list q of each split is topic q.

    Solvers of the one convex problem: `lbfgs` (without l1), `fista`; `auto` takes the first that can. A round is
    20 of their steps. `cd` is the thesis' coordinate descent, `blocked` moves `block` features at once, by steps as
    much shorter as is safe: a round is a sweep over the features, in sequence or in a random `order`. Both never raise
    the objective, and are slow where dense features correlate.

    The fit ends when no coordinate is farther than `tolerance` from optimality (KKT). With `path=n` a round is one
    whole fit, from the l1 under which w = 0 down to `path_ratio` of it in n steps, each started from the one before;
    validation chooses among them.
    """

    takes = frozenset({"sparse", "corpus"})
    weight: nn.Parameter  # (T, D): a row for each topic, or one
    memory: Tensor  # (rows, T D) of the solver: where FISTA looks next, or moves and changes of L-BFGS
    pace: Tensor  # (2, T) momentum and curvature of FISTA
    chosen: Tensor  # (T, D) features taken in by induction
    first_gain: Tensor  # (T, 1) the largest gain of the first round

    def __init__(
        self,
        num_features: int,
        l1: float = 0.0,
        l2: float = 1.0,
        relative: bool = False,
        solver: str = "auto",
        order: str = "sequential",
        block: int = 8,
        bound: str = "range",
        grades: str = "layered",
        margin: float | list | dict | None = None,
        group: str = "query",
        negatives: float = 1.0,
        per_topic: bool = False,
        induction: int | None = None,
        gain_tolerance: float = 0.0,
        path: int | None = None,
        path_ratio: float = 1e-3,
        tolerance: float = 1e-3,
        rounds: int = 500,
        seed: int = 0,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(num_features, transform, rounds if path is None else path)
        self.l1, self.l2, self.relative = l1, l2, relative
        self.bound, self.grades, self.margin = bound, grades, margin
        self.solver = solver if solver != "auto" else "fista" if l1 > 0 or path else "lbfgs"
        self.order, self.block = order, block if solver == "blocked" else 1
        self.group, self.negatives, self.per_topic = group, negatives, per_topic
        self.induction, self.gain_tolerance = induction, gain_tolerance
        self.path, self.path_ratio, self.tolerance, self.seed = path, path_ratio, tolerance, seed
        self.certified = path is None
        self._check(solver)
        self.weight = nn.Parameter(torch.zeros(1, self.transform.num_outputs, dtype=torch.float64), requires_grad=False)
        for name in ("memory", "pace"):
            self.register_buffer(name, torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("chosen", torch.zeros(0, 0, dtype=torch.bool))
        self.register_buffer("first_gain", torch.zeros(1, 1, dtype=torch.float64))
        self._forget()

    def _check(self, solver: str) -> None:
        chosen = {
            "solver": (solver, ("auto", "lbfgs", "fista", "cd", "blocked")),
            "order": (self.order, ("sequential", "random")),
            "bound": (self.bound, ("range", "square")),
            "grades": (self.grades, ("layered", "flat")),
            "group": (self.group, ("query", "pooled")),
        }
        for name, (value, choices) in chosen.items():
            if value not in choices:
                raise ValueError(f"unknown {name}={value!r}: choose one of {', '.join(choices)}")
        if self.l1 < 0 or self.l2 < 0:
            raise ValueError(f"penalties must not be negative, got l1={self.l1}, l2={self.l2}")
        if not 0 < self.negatives <= 1:
            raise ValueError(f"negatives={self.negatives} is the kept share of low documents: above 0, at most 1")
        if self.solver == "lbfgs" and (self.l1 > 0 or self.path):
            raise ValueError("solver=lbfgs needs a smooth objective: use fista with l1 or a path")
        if self.induction is not None and self.path is not None:
            raise ValueError("induction takes features in for one l1, a path changes l1 every round: choose one")
        for name, count in (("induction", self.induction), ("path", self.path), ("block", self.block)):
            if count is not None and count < 1:
                raise ValueError(f"{name}={count} has to be 1 at least")
        if not 0 < self.path_ratio < 1:
            raise ValueError(f"path_ratio={self.path_ratio} is the last l1 as a share of the first: between 0 and 1")
        if self.group == "pooled" and self.solver in ("cd", "blocked"):
            raise ValueError(f"solver={self.solver} sums over lists, and group=pooled has one only: use fista or lbfgs")
        if self.group == "pooled" and self.per_topic:
            raise ValueError("group=pooled ranks all lists together, per_topic each by itself: choose one")

    # ---- scoring ------------------------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        return entry_scores(batch, self.weight.to(batch.x.dtype), self.per_topic)

    # ---- the objective ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._forget()
        if self.per_topic:
            self._check_topics()
        if isinstance(self.margin, list):
            check_margin(self.margin, 2 if self.grades == "flat" else self.data.sets["train"].num_grades)
        topics = len(self.data.sets["train"]) if self.per_topic else 1
        self.resize("weight", (topics, self.transform.num_outputs))
        for name in ("memory", "pace"):
            self.resize(name, (0, 0))
        self.resize("chosen", tuple(self.weight.shape) if self.induction else (0, 0))
        self.resize("first_gain", (topics, 1))

    def _check_topics(self) -> None:
        ids = {split: lists.query_ids for split, lists in self.data.sets.items()}
        for split, found in ids.items():
            if len(self.data.sets[split]) != len(self.data.sets["train"]) or (
                found is not None and ids["train"] is not None and list(found) != list(ids["train"])
            ):
                raise ValueError(f"per_topic needs the same topics in the same order in train and {split}")

    def _forget(self) -> None:
        self._prepared: list[Batch] | None = None
        self._restricted: list[Batch] | None = None  # to the features that were induced
        self._scales: dict[int, Tensor] = {}  # by the number of features that move together
        self._columns: Any = None  # the lists as coordinate descent holds them
        self._largest: Tensor | None = None  # (T, 1): from this l1 on all weights are 0
        self._labels: Tensor | None = None  # of all training documents, for group="pooled"

    def batches(self) -> Iterator[Batch]:
        """The training lists as they are learned from: flat, with drawn negatives; kept, where that changes them."""
        if self._restricted is not None:
            return iter(self._restricted)
        if self.negatives == 1 and self.grades == "layered":
            return super().batches()
        if self._prepared is None:
            self._prepared = [self._as_learned(batch) for batch in super().batches()]
        return iter(self._prepared)

    def _as_learned(self, batch: Batch) -> Batch:
        if self.grades == "flat":
            batch = batch._replace(labels=(batch.labels > 0).to(batch.labels.dtype), num_grades=2)
        if self.negatives == 1:
            return batch
        lowest = self._lowest_label() if self.group == "pooled" else None
        return keep_negatives(batch, self.negatives, self.seed, lowest)

    def _lowest_label(self) -> float:
        lowest = float(self.data.sets["train"].labels.min())
        return lowest if self.grades == "layered" else float(lowest > 0)

    def _slopes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (T,) and gradient (T, D), without the penalty, over all training lists."""
        if self.group == "pooled":
            return self._pooled_slopes(weight)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            losses, slopes = self._list_slopes(batch, weight)
            into[0].index_add_(0, self._models(batch), losses)
            add_gradient(batch, slopes, into[1], self.per_topic)

        loss, gradient = self.total(add, into=(torch.zeros_like(weight[:, 0]), torch.zeros_like(weight)))
        return loss, gradient

    def _values(self, weight: Tensor) -> Tensor:
        """Loss (T,) alone."""
        if self.group == "pooled":
            return self._pooled(weight)[0]

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0].index_add_(0, self._models(batch), self._list_slopes(batch, weight)[0])

        return self.total(add, into=(torch.zeros_like(weight[:, 0]),))[0]

    def _list_slopes(self, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor]:
        return domination_slopes(
            entry_scores(batch, weight, self.per_topic),
            batch.labels,
            batch.offsets,
            margin=margin_of(self.margin, batch.labels),
            max_length=batch.max_length,
            num_grades=batch.num_grades,
        )

    def _models(self, batch: Batch) -> Tensor:
        return batch.query if self.per_topic else torch.zeros_like(batch.query)

    # ---- all documents in one group ------------------------------------------------------------------------------

    def _pooled(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (1,) of all training documents as one list, and the slopes at their places (see `_places`)."""
        all_labels = self._pooled_labels()
        scores = self._gather(lambda batch: entry_scores(batch, weight, self.per_topic))
        there = all_labels.isfinite()
        labels = all_labels[there]
        one = torch.tensor([0, len(labels)], device=labels.device)
        loss, slopes = domination_slopes(scores[there], labels, one, margin=margin_of(self.margin, labels))
        return loss, torch.zeros_like(scores).masked_scatter(there, slopes)

    def _pooled_slopes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        loss, slopes = self._pooled(weight)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            add_gradient(batch, slopes[self._places(batch)], into[0], self.per_topic)

        return loss, self.total(add, into=(torch.zeros_like(weight),))[0]

    def _pooled_curvature(self) -> Tensor:
        """Bound (1, D) of the curvature: the range is that of all documents of all processes."""
        labels = self._pooled_labels()
        above = (labels > labels[labels.isfinite()].min()).sum() if labels.isfinite().any() else 0

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            here, seen = into[0][self.global_rank], into[1][self.global_rank]
            if len(batch.x):
                extremes = column_extremes(batch.x)
                here.copy_(torch.where(seen > 0, torch.maximum(here, extremes), extremes))
                seen += 1

        rows = self.weight.new_zeros(self.trainer.world_size, 2, self.weight.shape[1])
        extremes, seen = self.total(write, into=(rows, rows.new_zeros(len(rows))))
        if not seen.any():
            return torch.zeros_like(self.weight)
        down, up = extremes[seen > 0].amax(0)
        squares = (down + up).square() / 4 if self.bound == "range" else torch.maximum(down.square(), up.square())
        return above * squares[None]

    def _pooled_labels(self) -> Tensor:
        if self._labels is None:
            self._labels = self._gather(lambda batch: batch.labels.double())
        return self._labels

    def _gather(self, entries: Callable[[Batch], Tensor]) -> Tensor:
        """Values of the entries of all processes at their places; nan where a document is not learned from."""

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][self._places(batch)] = entries(batch)
            into[1][self._places(batch)] = 1

        size = int(self.data.sets["train"].lengths.sum())
        zeros = torch.zeros(size, dtype=torch.float64, device=self.device)
        values, written = self.total(write, into=(zeros, zeros.clone()))
        return torch.where(written > 0, values, torch.nan)

    def _places(self, batch: Batch) -> Tensor:
        """Places (N,) of the entries among all training documents."""
        starts = self.data.sets["train"].offsets.to(self.device)[batch.query]
        count = len(batch.labels)
        return starts[list_ids(batch.offsets, count)] + positions_within(batch.offsets, count)

    # ---- solving ------------------------------------------------------------------------------------------------

    def round(self) -> bool:
        self._generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.trainer.current_epoch)
        return self._solve() if self.induction is None else self._induce()

    def _solve(self) -> bool:
        penalty = self._penalty()
        state = Solving(self.weight.detach().clone(), self.memory, self.pace)
        if self.path is not None:
            state = state.anew()
        for _ in range(1 if self.path is None else PATH_ROUNDS):
            state = self._advance(state, penalty)
            loss, gradient = self._slopes(state.weight)
            violation = penalty.worst(state.weight, gradient)
            if violation <= self.tolerance:
                break
        self._report(float((loss + penalty(state.weight)).sum()), violation, state.weight)
        for name, value in zip(("weight", "memory", "pace"), state, strict=True):
            self.resize(name, tuple(value.shape)).data.copy_(value)
        last = self.path is None or self.trainer.current_epoch + 1 >= self.path
        return last and violation <= self.tolerance

    def _induce(self) -> bool:
        """Take in the features from which the objective is sure to fall most, and solve for all that were taken in."""
        penalty, weight = self._penalty(), self.weight.detach().clone()
        loss, gradient = self._slopes(weight)
        chosen, first = take_in(
            self.chosen, self.first_gain, gradient, self._curvature(), penalty, self.induction or 0, self.gain_tolerance
        )
        new = bool((chosen != self.chosen).any())
        before = penalty.worst(weight, gradient) if new else 0.0
        del gradient
        weight, left = self._solve_chosen(weight, chosen, penalty, before)
        loss, gradient = self._slopes(weight)
        violation = penalty.worst(weight, gradient)
        self._report(float((loss + penalty(weight)).sum()), violation, weight)
        self.weight.copy_(weight)
        self.resize("chosen", tuple(chosen.shape)).data.copy_(chosen)
        self.first_gain.copy_(first)
        return violation <= self.tolerance or (not new and left <= self.tolerance)

    def _solve_chosen(self, weight: Tensor, chosen: Tensor, penalty: Penalty, violation: float) -> tuple[Tensor, float]:
        """Better weights on the chosen features (T, D), to a tenth of the violation before or to `tolerance`, and the
        violation that is left on them."""
        used = chosen.any(0).nonzero().flatten()
        if not len(used):
            return torch.zeros_like(weight), 0.0
        state = Solving(weight[:, used], self.memory[:0], self.pace[:0])
        scale, free = self._curvature()[:, used], chosen[:, used]
        self._restricted = restrict(list(self.batches()), used)
        try:
            if self.block > 1:
                scale = self._bounds(len(used), self.block)
            for _ in range(INDUCED_ROUNDS):
                state = self._advance(state, penalty, scale * free)
                gradient = self._slopes(state.weight)[1]
                left = float(torch.where(free, penalty.violation(state.weight, gradient), 0.0).max())
                if left <= max(self.tolerance, violation / 10):
                    break
        finally:
            self._restricted = self._columns = None
        return torch.zeros_like(weight).index_copy(1, used, state.weight), left

    def _penalty(self) -> Penalty:
        """The penalty of this round: on a path l1 falls from the value at which all weights (of a topic) become 0."""
        if self.path is None and not self.relative:
            return Penalty(self.l1, self.l2)
        if self._largest is None:
            self._largest = self._slopes(torch.zeros_like(self.weight))[1].abs().amax(1, keepdim=True)
        gone = self.trainer.current_epoch / max((self.path or 2) - 1, 1)  # of the path
        share = self.l1 if self.path is None else self.path_ratio**gone
        return Penalty(share * self._largest, self.l2)

    def _advance(self, state: Solving, penalty: Penalty, scale: Tensor | None = None) -> Solving:
        """A number of steps of the solver; `scale` bounds the curvature and is 0 where weights of 0 must stay."""
        if self.solver == "lbfgs" and scale is None:
            return lbfgs_steps(state, STEPS, self._slopes, penalty, self.tolerance)
        if self.solver in ("lbfgs", "fista"):
            scale = self._curvature() if scale is None else scale
            return fista_steps(state, STEPS, self._values, self._slopes, penalty, scale)
        for _ in range(1 if self.path is None and self.induction is None else STEPS):
            state = self._sweep(state, penalty, self._curvature(self.block) if scale is None else scale)
        return state

    def _sweep(self, state: Solving, penalty: Penalty, scale: Tensor) -> Solving:
        if self._columns is None:
            margins, topics = partial(margin_of, self.margin), len(state.weight) if self.per_topic else None
            self._columns = coordinate_lists(list(self.batches()), margins, topics)
        firsts = useful_blocks(state.weight, scale, self.block, self._generator if self.order == "random" else None)
        step = partial(coordinate_sweep, self._columns, block=self.block, reduce=self._reduce)
        return state._replace(weight=step(state.weight, penalty, scale, firsts))

    def _curvature(self, block: int = 1) -> Tensor:
        """Bound (T, D) of the curvature of the loss along each weight, or along `block` weights that move together."""
        if block not in self._scales:
            pooled = self.group == "pooled"
            self._scales[block] = self._pooled_curvature() if pooled else self._bounds(self.weight.shape[1], block)
        return self._scales[block]

    def _bounds(self, width: int, block: int) -> Tensor:
        known: dict[int, Tensor] = {}

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            counts = segment_sum(dominating(batch.labels, batch.offsets).double(), batch.offsets)
            add_curvature(batch, into[0], self._models(batch), counts, self.bound, block=block, known=known)

        return self.total(add, into=(self.weight.new_zeros(len(self.weight), width),))[0]

    def _report(self, objective: float, violation: float, weight: Tensor) -> None:
        density = int(weight.count_nonzero()) / weight.numel()
        self.certificate = {"kkt": violation, "tolerance": self.tolerance, "density": density}
        self.log("train/objective", objective, prog_bar=True)
        self.log("train/kkt", violation, prog_bar=True)
        self.log("train/density", density)
        if self.path is not None and violation > self.tolerance:
            rank_zero_warn(f"this step of the path ends at a KKT violation of {violation:.1e}, above {self.tolerance}")

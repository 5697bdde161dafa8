"""Domination Rank: linear models with the log-sum-exp domination loss (Stevens, MIT 2010), solved to a certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.domination import domination_slopes
from torchrank.functional.ragged import dominating, segment_sum
from torchrank.rankers.core.ranker import RoundRanker, density_of
from torchrank.rankers.core.topics import check_topics, topic_names
from torchrank.rankers.domination.options import check_options
from torchrank.rankers.domination.pooled import Pooled
from torchrank.solvers.domination.coordinate import coordinate_lists, coordinate_sweep, useful_blocks
from torchrank.solvers.domination.curvature import add_curvature
from torchrank.solvers.domination.induction import take_in
from torchrank.solvers.domination.margins import Feedback, check_grades
from torchrank.solvers.domination.penalty import Penalty
from torchrank.solvers.domination.steps import Solving, fista_steps, lbfgs_steps
from torchrank.solvers.linear.scores import add_gradient, entry_scores, restrict
from torchrank.solvers.narrowing import keep_negatives

STEPS = 20  # steps of FISTA or L-BFGS in a round, sweeps of coordinate descent where a round is a whole fit
INDUCED_ROUNDS = 50  # times STEPS for the features taken in
PATH_ROUNDS = 200  # times STEPS for one fit of a path


class DominationRank(RoundRanker):
    """Linear scores f = Xw that minimise sum_i log(1 + sum_{j below i} exp(f_j - f_i)) + l1 |w|_1 + l2 |w|^2, where j
    runs over the documents of the same list with a smaller label. A sum over all lists: l1 and l2 grow with the data,
    unless `relative` makes l1 a share of the value from which all weights (of a topic) are 0.

    `grades="flat"` knows relevant and other documents only. `margin`: a number k demands k times the difference of the
    labels, `{"slope": a, "offset": b, "log": true}` the schedules s(y) = a y + b or a ln y + b (0 for y <= 0), both of
    the labels as they are, also of flat grades; a list one margin for each boundary between grades, a matrix one for
    each pair of grades. `group="pooled"` ranks all documents of all lists together. `negatives` is the share of the
    lowest documents of each list that is drawn. `per_topic` learns a model for every list: list q of each split is
    topic q.

    Solvers of the one convex problem: `lbfgs` (without l1), `fista`; `auto` takes the first that can. A round is
    20 of their steps. `cd` is the thesis' coordinate descent, `blocked` moves `block` features at once, by steps as
    much shorter as is safe: a round is a sweep over the features, in sequence or in a random `order`. Both never raise
    the objective, and are slow where dense features correlate.

    The fit ends when no coordinate is farther than `tolerance` from optimality (KKT). With `path=n` a round is one
    whole fit, from the l1 under which w = 0 down to `path_ratio` of it in n steps, each started from the one before;
    validation chooses among them. `induction=n` solves for few features, of which a round (of a path: each part of
    one, until no other is needed) takes in the n that are sure to lower the objective most.
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
        super().__init__(num_features, transform, path or rounds)
        self.l1, self.l2, self.relative = l1, l2, relative
        self.bound, self.grades, self.feedback = bound, grades, Feedback(grades == "flat", margin)
        self.solver = solver if solver != "auto" else "fista" if l1 > 0 or path else "lbfgs"
        self.order, self.block = order, block if solver == "blocked" else 1
        self.group, self.negatives, self.per_topic = group, negatives, per_topic
        self.induction, self.gain_tolerance = induction, gain_tolerance
        self.path, self.path_ratio, self.tolerance, self.seed = path, path_ratio, tolerance, seed
        self.is_path, self.certified = path is not None, path is None
        self.topics: list[str] | None = None
        check_options(self, solver)
        self.weight = nn.Parameter(torch.zeros(1, self.transform.num_outputs, dtype=torch.float64), requires_grad=False)
        for name in ("memory", "pace"):
            self.register_buffer(name, torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("chosen", torch.zeros(0, 0, dtype=torch.bool))
        self.register_buffer("first_gain", torch.zeros(1, 1, dtype=torch.float64))
        self._forget()

    # ---- scoring ------------------------------------------------------------------------------------------------

    @property
    def num_topics(self) -> int | None:
        return len(self.weight) if self.per_topic else None

    def score(self, batch: Batch) -> Tensor:
        return entry_scores(batch, self.weight.to(batch.x.dtype), self.per_topic)

    # ---- the objective ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._forget()
        if isinstance(self.feedback.option, list):
            check_grades(self.feedback.option, self.feedback.num_grades(self.data.sets["train"].num_grades))
        topics = len(self.data.sets["train"]) if self.per_topic else 1
        self.resize("weight", (topics, self.transform.num_outputs))
        for name in ("memory", "pace"):
            self.resize(name, (0, 0))
        self.resize("chosen", tuple(self.weight.shape) if self.induction else (0, 0))
        self.resize("first_gain", (topics, 1))

    def _forget(self) -> None:
        self._prepared: list[Batch] | None = None
        self._restricted: list[Batch] | None = None  # to the features that were induced
        self._scales: dict[int, Tensor] = {}  # by the number of features that move together
        self._columns: Any = None  # the lists as coordinate descent holds them
        self._largest: Tensor | None = None  # (T, 1): from this l1 on all weights are 0
        self._pooled = Pooled(self, self.feedback) if self.group == "pooled" else None

    def batches(self) -> Iterator[Batch]:
        """The training lists as they are learned from: with drawn negatives, or with the features taken in."""
        if self._restricted is not None:
            return iter(self._restricted)
        if self.negatives == 1:
            return super().batches()
        if self._prepared is None:
            self._prepared = [self._drawn(batch) for batch in super().batches()]
        return iter(self._prepared)

    def _drawn(self, batch: Batch) -> Batch:
        grades, lowest = self.feedback.grades, None
        if self.group == "pooled":
            lowest = float(grades(self.data.sets["train"].labels).min())
        return keep_negatives(batch, self.negatives, self.seed, lowest=lowest, grades=grades(batch.labels))

    def _graded(self, batch: Batch) -> Batch:
        labels, num_grades = self.feedback.grades(batch.labels), self.feedback.num_grades(batch.num_grades)
        return batch._replace(labels=labels, num_grades=num_grades)

    def _slopes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (T,) and gradient (T, D), without the penalty, over all training lists."""
        if self._pooled is not None:
            return self._pooled.slopes(weight)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            losses, slopes = self._list_slopes(batch, weight)
            into[0].index_add_(0, self._models(batch), losses)
            add_gradient(batch, slopes, into[1], self.per_topic)

        loss, gradient = self.total(add, into=(torch.zeros_like(weight[:, 0]), torch.zeros_like(weight)))
        return loss, gradient

    def _values(self, weight: Tensor) -> Tensor:
        """Loss (T,) alone."""
        if self._pooled is not None:
            return self._pooled.values(weight)

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0].index_add_(0, self._models(batch), self._list_slopes(batch, weight)[0])

        return self.total(add, into=(torch.zeros_like(weight[:, 0]),))[0]

    def _list_slopes(self, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor]:
        return domination_slopes(
            entry_scores(batch, weight, self.per_topic),
            self.feedback.grades(batch.labels),
            batch.offsets,
            margin=self.feedback.margin(batch.labels),
            max_length=batch.max_length,
            num_grades=self.feedback.num_grades(batch.num_grades),
        )

    def _models(self, batch: Batch) -> Tensor:
        return batch.query if self.per_topic else torch.zeros_like(batch.query)

    # ---- solving ------------------------------------------------------------------------------------------------

    def round(self) -> bool:
        self._generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.trainer.current_epoch)
        proved = self._solve() if self.induction is None else self._induce()
        if self.path is not None and not proved:
            found = self.certificate["kkt"]
            rank_zero_warn(f"this step of the path ends at a KKT violation of {found:.1e}, above {self.tolerance}")
        return proved and (self.path is None or self.trainer.current_epoch + 1 >= self.path)

    def _solve(self) -> bool:
        """A number of steps, or a whole fit; whether its end is proved to be the minimum."""
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
        self.store(dict(zip(("weight", "memory", "pace"), state, strict=True)))
        return violation <= self.tolerance

    def _induce(self) -> bool:
        """Take in the features from which the objective is sure to fall most, and solve for all that were taken in;
        on a path until there are no more. Whether the end is the minimum over all features that gain enough."""
        penalty, weight, chosen = self._penalty(), self.weight.detach().clone(), self.chosen
        first = self.first_gain if self.path is None else torch.zeros_like(self.first_gain)
        count, share, scale = self.induction or 0, self.gain_tolerance, self._curvature()
        loss, gradient = self._slopes(weight)
        for _ in range(1 if self.path is None else PATH_ROUNDS):
            known, violation = chosen, penalty.worst(weight, gradient)
            chosen, first = take_in(known, first, gradient, scale, penalty, count, share)
            new = bool((chosen != known).any())
            settled = not new and penalty.worst(weight, gradient, chosen) <= self.tolerance
            proved = settled or violation <= self.tolerance
            if not proved:
                del gradient
                weight = self._solve_chosen(weight, chosen, penalty, violation / 10 if new else 0.0)
                loss, gradient = self._slopes(weight)
                violation = penalty.worst(weight, gradient)
                proved = violation <= self.tolerance
            if proved:
                break
        self._report(float((loss + penalty(weight)).sum()), violation, weight)
        self.weight.copy_(weight)
        self.store({"chosen": chosen})
        self.first_gain.copy_(first)
        return proved

    def _solve_chosen(self, weight: Tensor, chosen: Tensor, penalty: Penalty, violation: float) -> Tensor:
        """Better weights on the chosen features (T, D), to this violation or to `tolerance`."""
        used = chosen.any(0).nonzero().flatten()
        state = Solving(weight[:, used], self.memory[:0], self.pace[:0])
        scale, free = self._curvature()[:, used], chosen[:, used]
        self._restricted = restrict(list(self.batches()), used)
        try:
            if self.block > 1:
                scale = self._bounds(len(used), self.block)
            for _ in range(INDUCED_ROUNDS):
                state = self._advance(state, penalty, scale * free)
                if penalty.worst(state.weight, self._slopes(state.weight)[1], free) <= max(self.tolerance, violation):
                    break
        finally:
            self._restricted = self._columns = None
        return torch.zeros_like(weight).index_copy(1, used, state.weight)

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
            batches, topics = list(self.batches()), len(state.weight) if self.per_topic else None
            margins = [self.feedback.margin(batch.labels) for batch in batches]
            self._columns = coordinate_lists([self._graded(batch) for batch in batches], margins, topics)
        firsts = useful_blocks(state.weight, scale, self.block, self._generator if self.order == "random" else None)
        step = partial(coordinate_sweep, self._columns, block=self.block, reduce=self._reduce)
        return state._replace(weight=step(state.weight, penalty, scale, firsts))

    def _curvature(self, block: int = 1) -> Tensor:
        """Bound (T, D) of the curvature of the loss along each weight, or along `block` weights that move together."""
        if block not in self._scales:
            pooled, width = self._pooled, self.weight.shape[1]
            self._scales[block] = self._bounds(width, block) if pooled is None else pooled.curvature(self.bound)
        return self._scales[block]

    def _bounds(self, width: int, block: int) -> Tensor:
        known: dict[int, Tensor] = {}

        def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
            above = dominating(self.feedback.grades(batch.labels), batch.offsets)
            counts = segment_sum(above.double(), batch.offsets)
            add_curvature(batch, into[0], self._models(batch), counts, self.bound, block=block, known=known)

        return self.total(add, into=(self.weight.new_zeros(len(self.weight), width),))[0]

    def _report(self, objective: float, violation: float, weight: Tensor) -> None:
        if not math.isfinite(objective + violation):
            raise ValueError(f"objective is {objective}, its violation {violation}: features or weights are too large")
        self.certificate = {"kkt": violation, "tolerance": self.tolerance}
        self.log("train/objective", objective, prog_bar=True)
        self.log("train/kkt", violation, prog_bar=True)
        self.log("train/density", density_of(weight))

    def density(self) -> float:
        return density_of(self.weight)

    # ---- topics -------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.per_topic:
            train = self.data.sets["train"] if stage == "fit" else None
            self.topics = self.topics if train is None else topic_names(train)
            check_topics(self.data, len(self.weight) if train is None else len(train), self.topics)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["topics"] = self.topics

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self.topics = checkpoint["topics"]

"""Domination Rank: linear models with the log-sum-exp domination loss (Stevens, MIT 2010), solved to a certificate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import ConvergenceWarning, check_choice, check_integer, check_number
from torchrank.rankers.core.linear import LinearRanker
from torchrank.rankers.core.ranker import TransformOption, warn
from torchrank.rankers.core.rounds import Certificate, Round
from torchrank.rankers.core.selection import keep_negatives, take_features
from torchrank.rankers.domination.margins import Feedback, Margin, check_grades, check_margin
from torchrank.rankers.domination.objective import Objective, PooledObjective
from torchrank.solvers.domination.coordinate_descent import coordinate_sweep, useful_blocks
from torchrank.solvers.domination.penalised import Penalty, Solving, fista_steps, lbfgs_steps, take_in

STEPS = 20  # steps of FISTA or L-BFGS in a round; sweeps of coordinate descent where a round is a whole fit
INDUCED_ROUNDS = 50  # at most so many times STEPS to solve for the features that were added
PATH_ROUNDS = 200  # at most so many times STEPS for one fit of a path


class DominationRank(LinearRanker):
    """Linear scores f = Xw that minimise sum_i log(1 + sum_{j below i} exp(f_j - f_i)) + l1 |w|_1 + l2 |w|^2, where j
    runs over the documents of the same list with a smaller label. The loss is a sum over all lists, so suitable values
    of l1 and l2 grow with the data.

    The fit ends when no coordinate is farther than `tolerance` from optimality (KKT). A round is 20 steps of lbfgs or
    fista, or one sweep of coordinate descent over the features; with `path` it is a whole fit.

    Args:
        num_features: number of columns of the rows.
        l1: weight of |w|_1.
        l2: weight of |w|^2.
        relative: whether l1 is a share of the smallest value at which all weights (of a topic) are 0.
        solver: lbfgs (only without l1), fista, or auto, the first of these that applies; cd, the coordinate descent of
            the thesis; or blocked, which moves `block` features at once, by steps that are shorter where safety demands
            it. The last two never raise the objective, but are slow where dense features correlate.
        block: number of features that solver="blocked" moves together.
        grades: layered, all grades count; or flat, documents are either relevant or not.
        margin: by how much better documents must win. A number k asks for k times the difference of the labels, a dict
            {"slope": a, "offset": b, "log": true} for the schedule s(y) = a y + b or a ln y + b (0 for y <= 0); both
            use the original labels, even with flat grades. A list gives one margin for each boundary between grades, a
            matrix one for each pair of grades.
        group: query, or pooled: all documents of all lists are ranked together.
        negatives: share of the lowest documents of each list that is drawn and learned from.
        per_topic: whether to learn a model for every list: list q of each split is topic q.
        induction: number of features to add in a round, those that are sure to lower the objective most; only features
            that were added are solved for. On a path, features are added at each l1 until no other is needed.
        path: number of fits, from the l1 at which w = 0 downwards, each started from the one before; validation
            chooses one of them.
        path_ratio: last l1 of a path, divided by the first.
        tolerance: largest KKT violation at which the certificate is reached.
        rounds: maximum number of rounds.
        seed: seed of the drawn negatives.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> ranker = DominationRank(1, l2=0.1).fit(lists)
        >>> ranker.certificate.proved, ranker.rank(x, offsets)
        (True, tensor([1, 2, 0]))
    """

    memory: Tensor  # (rows, T D) of the solver: where FISTA looks next, or moves and changes of L-BFGS
    pace: Tensor  # (2, T) momentum and curvature of FISTA
    chosen: Tensor  # (T, D) whether induction has added a feature

    def __init__(
        self,
        num_features: int,
        l1: float = 0.0,
        l2: float = 1.0,
        relative: bool = False,
        solver: str = "auto",
        block: int = 8,
        grades: str = "layered",
        margin: Margin = None,
        group: str = "query",
        negatives: float = 1.0,
        per_topic: bool = False,
        induction: int | None = None,
        path: int | None = None,
        path_ratio: float = 1e-3,
        tolerance: float = 1e-3,
        rounds: int = 500,
        seed: int = 0,
        transform: TransformOption = "auto",
    ):
        super().__init__(num_features, transform, path or rounds, per_topic)
        self.l1, self.l2, self.relative, self.grades = l1, l2, relative, grades
        self.feedback = Feedback(grades == "flat", margin)
        self.solver = solver if solver != "auto" else "fista" if l1 > 0 or path else "lbfgs"
        self.block = block if solver == "blocked" else 1
        self.group, self.negatives, self.induction = group, negatives, induction
        self.path, self.path_ratio, self.tolerance, self.seed = path, path_ratio, tolerance, seed
        self.is_path, self.certified = path is not None, path is None
        self._check(solver)
        for name in ("memory", "pace"):
            self.register_buffer(name, torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("chosen", torch.zeros(0, 0, dtype=torch.bool))

    def _check(self, solver: str) -> None:
        """Refuse unknown options and options that exclude each other; `solver` is the option as it was given."""
        check_choice(("auto", "lbfgs", "fista", "cd", "blocked"), solver=solver)
        check_choice(("layered", "flat"), grades=self.grades)
        check_choice(("query", "pooled"), group=self.group)
        check_number(">= 0", l1=self.l1, l2=self.l2)
        check_number("> 0 and <= 1", negatives=self.negatives)
        check_number("> 0 and < 1", path_ratio=self.path_ratio)
        check_number("> 0", tolerance=self.tolerance)
        check_integer(">= 1", induction=self.induction, path=self.path, block=self.block)
        check_margin(self.feedback.option)
        if self.solver == "lbfgs" and (self.l1 > 0 or self.path):
            raise ValueError("solver=lbfgs needs a smooth objective: use solver=fista with l1 or a path")
        if self.group == "pooled" and self.solver in ("cd", "blocked"):
            raise ValueError(
                f"solver={self.solver} sums over lists, but group=pooled is a single list: use fista or lbfgs"
            )
        if self.group == "pooled" and self.per_topic:
            raise ValueError("group=pooled ranks all lists together, per_topic=true each by itself: choose one")

    # ---- the lists that are learned from ------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        if isinstance(self.feedback.option, list):
            check_grades(self.feedback.option, self.feedback.num_grades(lists.lists.num_grades))
        weight = lists.zeros(len(lists) if self.per_topic else 1, self.transform.num_outputs)
        none = lists.zeros(0, 0)
        store(self, weight=weight, memory=none, pace=none, chosen=weight if self.induction else none)

    def open(self, lists: TrainingLists) -> None:
        # the lowest grade of all lists, where documents of different lists are compared
        lowest = float(self.feedback.grades(lists.lists.labels).min()) if self.group == "pooled" else None

        def drawn(batch: Batch) -> Batch:
            grades = self.feedback.grades(batch.labels)
            return keep_negatives(batch, self.negatives, self.seed, lowest=lowest, grades=grades)

        self.kept.objective = self._objective(lists.changed(drawn) if self.negatives < 1 else lists)

    def _objective(self, lists: TrainingLists) -> Objective:
        make = PooledObjective if self.group == "pooled" else Objective
        return make(lists, self.feedback, self.num_topics)

    # ---- one round ----------------------------------------------------------------------------------------------

    def round(self, lists: TrainingLists, number: int) -> Round:
        penalty = self._penalty(number)
        found = self._solve(penalty) if self.induction is None else self._induce(penalty)
        if self.path is not None and not found.done and found.certificate is not None:
            left = f"a KKT violation of {found.certificate.found:.1e}, above tolerance={self.tolerance}"
            warn(f"this step of the path ended at {left}", ConvergenceWarning)
        return found._replace(done=found.done and (self.path is None or number + 1 >= self.path))

    def _solve(self, penalty: Penalty) -> Round:
        """Make a number of steps, or a whole fit; done if the result is proved to be the minimum."""
        objective: Objective = self.kept.objective
        state = Solving(self.weight.detach().clone(), self.memory, self.pace)
        if self.path is not None:
            state = state.restarted()
        for _ in range(1 if self.path is None else PATH_ROUNDS):
            state = self._advance(objective, state, penalty)
            loss, gradient = objective.slopes(state.weight)
            found = self._report(loss, gradient, penalty, state.weight)
            if found.done:
                break
        store(self, **state._asdict())
        return found

    def _induce(self, penalty: Penalty) -> Round:
        """Add the features that are sure to lower the objective most, and solve for all that were added so far; on a
        path, until no other is needed. Done if the result is the minimum over all features."""
        objective: Objective = self.kept.objective
        weight, chosen, count = self.weight.detach().clone(), self.chosen, self.induction or 0
        scale = objective.curvature(weight.shape[1])
        loss, gradient = objective.slopes(weight)
        for _ in range(1 if self.path is None else PATH_ROUNDS):
            known, violation = chosen, float(penalty.worst(weight, gradient))
            chosen = take_in(known, gradient, scale, penalty, count)
            new = bool((chosen != known).any())
            settled = not new and float(penalty.worst(weight, gradient, chosen)) <= self.tolerance
            if not settled and violation > self.tolerance:
                del gradient
                weight = self._solve_chosen(weight, chosen, penalty, scale, violation / 10 if new else 0.0)
                loss, gradient = objective.slopes(weight)
                violation = float(penalty.worst(weight, gradient))
            if settled or violation <= self.tolerance:
                break
        found = self._report(loss, gradient, penalty, weight)
        store(self, weight=weight, chosen=chosen)
        return found._replace(done=found.done or settled)

    def _solve_chosen(
        self, weight: Tensor, chosen: Tensor, penalty: Penalty, scale: Tensor, violation: float
    ) -> Tensor:
        """Better weights for the chosen features (T, D), solved to this violation or to `tolerance`."""
        used = chosen.any(0).nonzero().flatten()
        few = self._objective(take_features(self.kept.objective.lists, used))
        state = Solving(weight[:, used], self.memory[:0], self.pace[:0])
        free = chosen[:, used]
        scale = few.curvature(len(used), self.block) if self.block > 1 else scale[:, used]
        for _ in range(INDUCED_ROUNDS):
            state = self._advance(few, state, penalty, scale * free)
            worst = float(penalty.worst(state.weight, few.slopes(state.weight)[1], free))
            if worst <= max(self.tolerance, violation):
                break
        return torch.zeros_like(weight).index_copy(1, used, state.weight)

    def _penalty(self, number: int) -> Penalty:
        """The penalty of this round; on a path l1 falls from the value at which all weights (of a topic) are 0."""
        if self.path is None and not self.relative:
            return Penalty(self.l1, self.l2)
        if not hasattr(self.kept, "largest"):  # (T, 1): at this l1 and above, all weights are 0
            slopes = self.kept.objective.slopes(torch.zeros_like(self.weight))[1]
            self.kept.largest = slopes.abs().amax(1, keepdim=True)
        gone = number / max((self.path or 2) - 1, 1)  # how much of the path
        share = self.l1 if self.path is None else self.path_ratio**gone
        return Penalty(share * self.kept.largest, self.l2)

    def _advance(self, objective: Objective, state: Solving, penalty: Penalty, scale: Tensor | None = None) -> Solving:
        """Make a number of steps of the solver; `scale` bounds the curvature, and weights of 0 stay where it is 0."""
        if self.solver == "lbfgs" and scale is None:
            return lbfgs_steps(state, STEPS, objective.slopes, penalty, self.tolerance)
        scale = objective.curvature(state.weight.shape[1], self.block) if scale is None else scale
        if self.solver in ("lbfgs", "fista"):
            return fista_steps(state, STEPS, objective.values, objective.slopes, penalty, scale)
        for _ in range(1 if self.path is None and self.induction is None else STEPS):
            firsts, reduce = useful_blocks(state.weight, scale, self.block), objective.lists.reduce
            weight = coordinate_sweep(
                objective.columns, state.weight, penalty, scale, firsts, block=self.block, reduce=reduce
            )
            state = state._replace(weight=weight)
        return state

    def _report(self, loss: Tensor, gradient: Tensor, penalty: Penalty, weight: Tensor) -> Round:
        """What there is to say about these weights, read from the device in one copy."""
        value, worst = (loss + penalty(weight)).sum(), penalty.worst(weight, gradient)
        objective, violation, used = torch.stack((value, worst, weight.count_nonzero().double())).tolist()
        if not math.isfinite(objective + violation):
            raise ValueError(
                f"the objective is {objective} and its violation {violation}: features or weights are too large, use "
                "transform=standard"
            )
        certificate = Certificate("kkt", violation, self.tolerance)
        log = {"train/objective": objective, "train/kkt": violation, "train/density": used / max(weight.numel(), 1)}
        return Round(certificate.proved, log, certificate)

"""Transductive PCA (Duh & Kirchhoff 2008, linear): a separate model for every list that is ranked."""

import logging
import time

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.sets import RankingSet
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, NotFittedError, NumericalWarning, check_choice, check_integer
from torchrank.functional.arrays import to_offsets
from torchrank.functional.clouds import choose_components, cloud_pca
from torchrank.functional.ragged import list_ids, per_entry, wide
from torchrank.rankers.core.ranker import Prepared, Ranker, TransformOption, warn
from torchrank.rankers.core.rounds import Certificate, Round
from torchrank.solvers.boosting import Rules, boost_many
from torchrank.solvers.linear.many_models import JoinedLists, ManyLinear, join_lists, solve_many_linear
from torchrank.solvers.linear.scores import scores_by_list

BASES = ("listnet", "ranksvm", "rankboost")
log = logging.getLogger(__name__)
MOST_COMPONENTS = 20  # that components="auto" chooses


class TransductivePCA(Ranker):
    """To rank a list, all training documents are projected onto the first principal directions of its documents; a
    `base` model is trained on these projections, and ranks the list.

    The fit only stores the training lists, and a model of all features for lists without a direction (one document, or
    several equal ones). The models are trained when lists are scored, all lists of a batch at once; the time for each
    list is linear in the number of training documents. Scores depend on all documents of a list: rank whole lists only.

    Args:
        num_features: number of columns of the rows.
        components: number of directions of a list; auto: as many as explain 80% of the variance of the training lists
            on average.
        base: listnet, ranksvm (squared hinge on pairs), or rankboost, the choice of the paper.
        l2: weight of the l2 penalty of listnet and ranksvm.
        augment: whether the original features are used beside the projected ones.
        tolerance: a linear model is solved when no entry of its gradient exceeds it.
        boosting_rounds: number of rules of rankboost.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0], [4.0], [3.0]]), torch.tensor([0, 3, 5])
        >>> ranker = TransductivePCA(1).fit(RankingSet(x, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]), offsets))
        >>> ranker.findings["components"], ranker.rank(x, offsets)
        (1, tensor([1, 2, 0, 3, 4]))
    """

    certified = True
    weight: nn.Parameter  # (1, D) float64, model of all features; linear bases only
    feature: Tensor  # (1, T) rules on all features; rankboost only
    threshold: Tensor  # (1, T)
    alpha: Tensor  # (1, T)
    rows: Tensor  # (N, D) of the training lists with two different labels, transformed
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    num_lists: Tensor  # () number of training lists, also of those with one label
    directions: Tensor  # () number of principal directions

    def __init__(
        self,
        num_features: int,
        components: int | str = 5,
        base: str = "listnet",
        l2: float = 1e-4,
        augment: bool = False,
        tolerance: float = 1e-6,
        boosting_rounds: int = 100,
        transform: TransformOption = "auto",
    ):
        super().__init__(num_features, transform, rounds=1)
        check_choice(BASES, base=base)
        if components != "auto" and not (isinstance(components, int) and components >= 1):
            raise ValueError(f"components must be an integer >= 1 or auto, got {components!r}")
        check_integer(">= 1", boosting_rounds=boosting_rounds)
        self.components, self.base, self.l2, self.augment = components, base, l2, augment
        self.tolerance, self.boosting_rounds = tolerance, boosting_rounds
        self.weight = nn.Parameter(torch.zeros(0, 0, dtype=torch.float64), requires_grad=False)
        for name in ("threshold", "alpha", "labels", "num_lists"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("feature", "offsets", "directions"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(0, 0))

    num_validation_lists = 0

    # ---- the fit ------------------------------------------------------------------------------------------------

    def settle(self, train: RankingSet, val: RankingSet | None, prepared: Prepared) -> None:
        self.num_validation_lists = 0 if val is None else len(val)

    def round(self, lists: TrainingLists, number: int) -> Round:
        batch = lists.gathered()
        joined = join_lists([batch._replace(labels=batch.labels.double())])
        directions = self._count(batch.dense, batch.offsets)
        whole = torch.eye(batch.x.shape[1], dtype=torch.float64, device=lists.device)[None]
        logged, certificate = {}, None
        if self.base == "rankboost":
            learned = self._boosted(joined, whole)._asdict()
        else:
            found = self._solved(joined, whole)
            certificate = Certificate("gradient", float(found.max_gradient), self.tolerance)
            learned, logged = {"weight": found.weight}, {"train/loss": found.value[0]}
        kept = {"rows": joined.x, "labels": joined.labels, "offsets": joined.offsets, "num_lists": joined.num_lists}
        store(self, directions=torch.tensor(directions), **learned, **kept)
        self._tell_the_time(batch)
        return Round(True, logged, certificate, {"components": directions})

    def _tell_the_time(self, batch: Batch) -> None:
        """Say how long a validation will take, by the time of one list: every list is a fit of its own."""
        if batch.device.type != "cpu":  # where to look at a clock is to wait
            return
        start = time.perf_counter()
        self.score(batch.take(torch.arange(1, device=batch.device))[0])
        seconds, count = time.perf_counter() - start, self.num_validation_lists
        told = f", so a validation of {count} lists takes up to {seconds * count:.2g} s" if count else ""
        log.info(f"To rank a list takes a model of its own, {seconds:.2g} s{told}.")

    def _count(self, x: Tensor, offsets: Tensor) -> int:
        if self.components != "auto":
            return min(int(self.components), x.shape[1])
        _, variances, total, rank = cloud_pca(x, offsets, min(MOST_COMPONENTS, x.shape[1]))
        return choose_components(variances, total, rank)

    # ---- a model for each list ----------------------------------------------------------------------------------

    def entry_bytes(self, width: int) -> int:
        return 0  # every list learns from all training lists

    def score(self, batch: Batch) -> Tensor:
        if not self.directions.numel():
            raise NotFittedError("this TransductivePCA is not fitted: call fit first")
        x, offsets = batch.dense, batch.offsets
        basis, shaped = self._basis(x, offsets)
        numbers = torch.arange(len(self.offsets) - 1, device=self.device)
        lists = JoinedLists(self.rows, self.labels, self.offsets, numbers, self.num_lists)
        if self.base == "rankboost":
            return self._boosted_scores(x, offsets, basis, shaped, lists)
        weight = self.weight.expand(len(shaped), -1).clone()
        weight[shaped] = self._solved(lists, basis[shaped]).weight
        return scores_by_list(x, offsets, weight)

    def _basis(self, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Basis (Q, P, D) onto which the documents of each list are projected, and whether it has a direction (Q,)."""
        directions, _, _, rank = cloud_pca(x, offsets, int(self.directions))
        basis = wide(directions)
        if self.augment:
            original = torch.eye(x.shape[1], dtype=basis.dtype, device=x.device)
            basis = torch.cat([basis, original.expand(len(basis), -1, -1)], 1)
        return basis, rank > 0

    def _solved(self, lists: JoinedLists, basis: Tensor) -> ManyLinear:
        found = solve_many_linear(lists, len(basis), loss=self.base, l2=self.l2, basis=basis, tolerance=self.tolerance)
        if (found.max_gradient > self.tolerance).any():
            left = f"a model still has a gradient of {float(found.max_gradient.max()):.1e}"
            warn(f"{left}: raise l2 or tolerance (now {self.tolerance:g})", NumericalWarning)
        return found

    def _boosted(self, lists: JoinedLists, basis: Tensor) -> Rules:
        if not len(lists.labels):
            raise DataError("no training list has two different labels: there is no pair to learn from")
        return boost_many(lists.x, lists.labels, lists.offsets, basis, rounds=self.boosting_rounds)

    def _boosted_scores(self, x: Tensor, offsets: Tensor, basis: Tensor, shaped: Tensor, lists: JoinedLists) -> Tensor:
        rows, inside = wide(x), per_entry(shaped, offsets, len(x))
        scores = rule_scores(rows, offsets.new_tensor([0, len(x)]), Rules(self.feature, self.threshold, self.alpha))
        if shaped.any():
            ends = to_offsets(offsets.diff()[shaped])
            projected = project(rows[inside], ends, basis[shaped])
            scores[inside] = rule_scores(projected, ends, self._boosted(lists, basis[shaped]))
        return scores.to(x.dtype)


def project(x: Tensor, offsets: Tensor, basis: Tensor) -> Tensor:
    """U_q x of every row `x (N, D)` with the basis of its list, `basis (Q, P, D)`: (N, P).

    >>> project(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1, 2]), torch.eye(2)[:, None])
    tensor([[1.],
            [4.]])
    """
    model = list_ids(offsets, len(x))
    return torch.stack([(x * directions[model]).sum(1) for directions in basis.unbind(1)], 1)


def rule_scores(z: Tensor, offsets: Tensor, rules: Rules) -> Tensor:
    """Scores (N,) of projected rows (N, P), each list by the rules of its own model.

    >>> one = torch.ones(1, 1)
    >>> rule_scores(torch.tensor([[2.0], [1.0]]), torch.tensor([0, 2]), Rules(torch.zeros(1, 1).long(), one, 3 * one))
    tensor([3., 0.])
    """
    model = list_ids(offsets, len(z))
    above = z.gather(1, rules.feature[model]) > rules.threshold[model]
    return (rules.alpha[model] * above).sum(1)

"""Transductive PCA (Duh & Kirchhoff 2008, linear): a model of its own for every list that is to be ranked."""

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch, make_batch
from torchrank.functional.clouds import choose_components, cloud_pca
from torchrank.functional.ragged import per_entry, to_offsets, wide
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.singlefeature import dense
from torchrank.solvers.boosting.many import Rules, boost_many, project, rule_scores
from torchrank.solvers.linear.many import Lists, ManyLinear, join_lists, solve_many_linear
from torchrank.solvers.query_means import own_scores

BASES = ("listnet", "ranksvm", "rankboost")
MOST_COMPONENTS = 20  # of components="auto"


class TransductivePCA(RoundRanker):
    """To rank a list, all training documents are projected onto the first principal directions of its documents; the
    `base` is trained on what they look like from there, and ranks the list.

    So the fit only keeps the training lists, and a model of all features for lists without a direction (one document,
    or equal ones). The training happens when lists are scored, for all lists of a batch at once; for each list it costs
    time linear in the training documents. Scores depend on all documents of a list: rank whole lists only.

    `components`: directions, or "auto" for as many as explain 80% of the variance of the training lists on average.
    `augment` adds the original features to the projected ones. `base`: "listnet" or "ranksvm" (squared hinge), with
    `l2` and `tolerance`, or "rankboost", with `boosting_rounds`, which the original takes.
    """

    certified = True
    weight: nn.Parameter  # (1, D) float64, on all features; of a linear base
    feature: Tensor  # (1, T) rules on all features; of rankboost
    threshold: Tensor  # (1, T)
    alpha: Tensor  # (1, T)
    rows: Tensor  # (N, D) of the training lists with two different labels, transformed
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    num_lists: Tensor  # () with one label or several
    directions: Tensor  # () how many

    def __init__(
        self,
        num_features: int,
        components: int | str = 5,
        base: str = "listnet",
        l2: float = 1e-4,
        augment: bool = False,
        tolerance: float = 1e-6,
        boosting_rounds: int = 100,
        transform: str | dict | list | None = "standard",
    ):
        super().__init__(num_features, transform, rounds=1)
        if base not in BASES:
            raise ValueError(f"unknown base={base!r}: choose one of {', '.join(BASES)}")
        if components != "auto" and (not isinstance(components, int) or components < 1):
            raise ValueError(f"components={components!r} has to be an integer, 1 or more, or auto")
        if boosting_rounds < 1:
            raise ValueError(f"boosting_rounds={boosting_rounds} has to be 1 or more")
        self.components, self.base, self.l2, self.augment = components, base, l2, augment
        self.tolerance, self.boosting_rounds = tolerance, boosting_rounds
        self.weight = nn.Parameter(torch.zeros(0, 0, dtype=torch.float64), requires_grad=False)
        for name in ("threshold", "alpha", "labels", "num_lists"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("feature", "offsets", "directions"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros(0, 0))

    # ---- the fit ------------------------------------------------------------------------------------------------

    def round(self) -> bool:
        x, labels, offsets = self._gathered()
        lists = join_lists([make_batch(x, labels, offsets)])
        directions = offsets.new_tensor(self._count(x, offsets))
        whole = torch.eye(x.shape[1], dtype=torch.float64, device=x.device)[None]
        if self.base == "rankboost":
            learned = self._boosted(lists, whole)._asdict()
        else:
            found = self._solved(lists, whole)
            self.certificate = {"gradient": float(found.slope), "tolerance": self.tolerance}
            self.log("train/loss", found.value[0], prog_bar=True)
            learned = {"weight": found.weight}
        kept = {"rows": lists.x, "labels": lists.labels, "offsets": lists.offsets, "num_lists": lists.num_lists}
        self.store(learned | kept | {"directions": directions})
        self.findings = {"components": int(directions)}
        return True

    def _gathered(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, labels and offsets of the training lists of all processes, on every one of them."""
        offsets = self.data.sets["train"].offsets.to(self.device)

        def gather(batch: Batch, into: tuple[Tensor, ...]) -> None:
            start = int(offsets[batch.query[0]]) if batch.num_lists else 0
            for whole, part in zip(into, (dense(batch), batch.labels), strict=True):
                whole[start : start + len(part)] = part

        rows = self.rows.new_zeros(int(offsets[-1]), self.transform.num_outputs)
        x, labels = self.total(gather, into=(rows, self.labels.new_zeros(len(rows))))
        return x, labels, offsets

    def _count(self, x: Tensor, offsets: Tensor) -> int:
        if self.components != "auto":
            return min(int(self.components), x.shape[1])
        _, variances, total, rank = cloud_pca(x, offsets, min(MOST_COMPONENTS, x.shape[1]))
        return choose_components(variances, total, rank)

    # ---- a model for each list ----------------------------------------------------------------------------------

    def score(self, batch: Batch) -> Tensor:
        if not self.directions.numel():
            if self._trainer is not None and self._trainer.sanity_checking:
                return torch.zeros_like(batch.labels)  # Lightning looks at validation lists before the round
            raise ValueError("this TransductivePCA is not fitted: it keeps no training lists before its round")
        x, offsets = dense(batch), batch.offsets
        basis, shaped = self._basis(x, offsets)
        numbers = torch.arange(len(self.offsets) - 1, device=self.device)
        lists = Lists(self.rows, self.labels, self.offsets, numbers, self.num_lists)
        if self.base == "rankboost":
            return self._boosted_scores(x, offsets, basis, shaped, lists)
        weight = self.weight.expand(len(shaped), -1).clone()
        weight[shaped] = self._solved(lists, basis[shaped]).weight
        return own_scores(x, offsets, weight)

    def _basis(self, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """What the documents of each list are projected onto (Q, P, D), and whether it has a direction (Q,)."""
        directions, _, _, rank = cloud_pca(x, offsets, int(self.directions))
        basis = wide(directions)
        if self.augment:
            original = torch.eye(x.shape[1], dtype=basis.dtype, device=x.device)
            basis = torch.cat([basis, original.expand(len(basis), -1, -1)], 1)
        return basis, rank > 0

    def _solved(self, lists: Lists, basis: Tensor) -> ManyLinear:
        found = solve_many_linear(
            lists, len(basis), loss=self.base, l2=self.l2, basis=basis, tolerance=self.tolerance
        )  # fmt: skip
        if (found.slope > self.tolerance).any():
            rank_zero_warn(f"a model was left at a gradient of {float(found.slope.max()):.1e}: raise l2 or tolerance")
        return found

    def _boosted(self, lists: Lists, basis: Tensor) -> Rules:
        if not len(lists.labels):
            raise ValueError("no training list has two different labels: there is no pair to learn from.")
        return boost_many(lists.x, lists.labels, lists.offsets, basis, rounds=self.boosting_rounds)

    def _boosted_scores(self, x: Tensor, offsets: Tensor, basis: Tensor, shaped: Tensor, lists: Lists) -> Tensor:
        rows, inside = wide(x), per_entry(shaped, offsets, len(x))
        scores = rule_scores(rows, offsets.new_tensor([0, len(x)]), Rules(self.feature, self.threshold, self.alpha))
        if shaped.any():
            ends = to_offsets(offsets.diff()[shaped])
            projected = project(rows[inside], ends, basis[shaped])
            scores[inside] = rule_scores(projected, ends, self._boosted(lists, basis[shaped]))
        return scores.to(x.dtype)

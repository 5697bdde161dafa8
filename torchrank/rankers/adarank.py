"""AdaRank (Xu & Li 2007): single features boosted on the measure itself, with weights on queries."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, check_choice, check_integer
from torchrank.functional import average_precision, ndcg
from torchrank.functional.arrays import to_offsets
from torchrank.functional.conventions import parse_measure
from torchrank.functional.ragged import SAME, Measure, by_column, first_largest, per_entry, sort_within
from torchrank.rankers.core.kept import KEPT_BYTES, BatchMemory, grown_scores
from torchrank.rankers.core.ranker import Ranker, TransformOption
from torchrank.rankers.core.rounds import Round
from torchrank.solvers.linear.scores import entry_scores


class Boosting(NamedTuple):
    """What a process holds of the training lists that have a relevant document, between rounds."""

    x: Tensor  # (N, D)
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    single: Tensor  # (Q, C) measure of each list ranked by each feature, then by each negated one
    scores: Tensor  # (N,) F
    value: Tensor  # (Q,) measure of each list ranked by F; 0 before the first round


class AdaRank(Ranker):
    """F(x) = sum_t alpha_t x_f, one feature per round: the one with the best mean measure under weights of the lists.

    A list weighs exp(-E), E its `measure` when ranked by the F so far; alpha is 1/2 ln((1 + e) / (1 - e)), e the
    weighted mean of the chosen feature. Features add up, so they have to be comparable: the default transform scales
    each to 0..1 inside every list. Validation chooses among the rounds.

    The published algorithm gets stuck once a feature changes no E: the same feature would be chosen for ever. With
    `exclude_repeat` such a feature is excluded until another one has changed something, and the fit ends when all are
    excluded.

    Args:
        num_features: number of columns of the rows.
        measure: map or ndcg, with or without a cut-off ("ndcg@10").
        both_directions: whether every negated feature is tried too.
        ties: stable: documents with equal values keep their order, so a nearly constant feature looks good on a file
            that is sorted by label; average: the mean over all orders of equal values.
        exclude_repeat: False: the published algorithm, which ends when neither the order of any document nor the weight
            of any list changes.
        tolerance: the fit ends when the mean training E has grown by less than this in `patience` rounds.
        patience: number of those rounds.
        rounds: maximum number of rounds.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0, 5.0], [2.0, 3.0], [1.0, 9.0]]), torch.tensor([0, 3])
        >>> ranker = AdaRank(2, rounds=1).fit(RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets))
        >>> ranker.feature.tolist(), ranker.rank(x, offsets)
        ([0], tensor([1, 2, 0]))
    """

    feature: nn.Parameter  # (T,) one entry per round
    alpha: nn.Parameter  # (T,) negative where the feature is negated
    train_measure: Tensor  # (T,) mean E on the training lists after each round
    moved: Tensor  # (T,) whether the round changed E of any list

    def __init__(
        self,
        num_features: int,
        measure: str = "map",
        both_directions: bool = False,
        ties: str = "stable",
        exclude_repeat: bool = True,
        tolerance: float = 1e-5,
        patience: int = 10,
        rounds: int = 500,
        transform: TransformOption = "query_minmax",
    ):
        super().__init__(num_features, transform, rounds)
        check_choice(("stable", "average"), ties=ties)
        check_integer(">= 1", patience=patience)
        self.family, self.k, _ = parse_measure(measure)
        if self.family not in ("map", "ndcg"):
            raise ValueError(f"measure must be map or ndcg, with or without a cut-off (ndcg@10), got {measure!r}")
        self.both_directions, self.ties, self.exclude_repeat = both_directions, ties, exclude_repeat
        self.tolerance, self.patience = tolerance, patience
        self.feature = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
        self.alpha = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)
        self.register_buffer("train_measure", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("moved", torch.zeros(0, dtype=torch.bool))

    @property
    def weight(self) -> Tensor:
        """Weights (D,) of the linear model: the sum over the rounds."""
        return self.alpha.new_zeros(self.transform.num_outputs).index_add(0, self.feature, self.alpha)

    def score(self, batch: Batch) -> Tensor:
        return self._sum_from(0, batch).to(batch.x.dtype)

    def _sum_from(self, first: int, batch: Batch) -> Tensor:
        """Scores (N,) by the features of the rounds from `first` on."""
        if first == 0:
            return entry_scores(batch, self.weight[None], False)
        return batch.dense[:, self.feature[first:]].to(self.alpha.dtype) @ self.alpha[first:]

    def validation_scores(self, batch: Batch) -> Tensor:
        """Scores (N,); during a fit those of the last validation are kept, and only the new features are added."""
        rules, memory = torch.stack((self.feature.double(), self.alpha.double())), getattr(self.kept, "memory", None)
        return grown_scores(memory, batch, rules, partial(self._sum_from, batch=batch)).to(batch.x.dtype)

    # ---- one round ----------------------------------------------------------------------------------------------

    def entry_bytes(self, width: int) -> int:
        return super().entry_bytes(6 * width)  # every feature is sorted and measured

    def round(self, lists: TrainingLists, number: int) -> Round:
        held: Boosting = self.kept.boosting
        weight = torch.exp(-held.value)
        sums = lists.reduce(torch.cat([weight @ held.single, weight.sum()[None]]))
        quality = sums[:-1] / sums[-1]  # (C,) weighted mean measure of the lists under every column
        excluded = self._excluded()
        column = first_largest(quality.masked_fill(excluded, -torch.inf))
        feature, negated = column % self.transform.num_outputs, column >= self.transform.num_outputs
        best = quality.take(column)
        alpha = 0.5 * torch.log((1 + best) / (1 - best).clamp(min=1e-12)) * torch.where(negated, -1.0, 1.0)
        scores = held.scores + alpha * held.x.index_select(1, feature.view(1))[:, 0].double()
        value = self._measure_of(scores, held.labels, held.offsets)
        mean, moved, turned = self._changes(lists, held, scores, value)
        ends = self._no_progress(mean) if self.exclude_repeat else ~(moved | turned)
        none_left, done = torch.stack((excluded.all(), ends)).tolist()  # one copy from the device
        if none_left:
            return Round(done=True)
        new = {"feature": feature, "alpha": alpha, "train_measure": mean, "moved": moved}
        store(self, **{name: torch.cat([getattr(self, name), added[None]]) for name, added in new.items()})
        self.kept.boosting = held._replace(scores=scores, value=value)
        return Round(done, {f"train/{self.family}": mean})

    def _changes(
        self, lists: TrainingLists, held: Boosting, scores: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean measure of all lists, whether it changed for any list, and whether any documents changed their order."""
        moved = (value - held.value).abs().gt(SAME).sum()
        turned = moved.new_zeros(())
        if not self.exclude_repeat:
            turned = (sort_within(scores, held.offsets) != sort_within(held.scores, held.offsets)).sum()
        counts = (value.sum(), moved, turned, moved.new_full((), len(value)))
        total, moved, turned, count = lists.reduce(torch.stack([count.double() for count in counts]))
        return total / count, (moved > 0) | (len(self.feature) == 0), turned > 0

    def _excluded(self) -> Tensor:
        """Which columns (C,) are excluded: those that were chosen since a round last changed a measure."""
        width = self.transform.num_outputs
        out = torch.zeros(2 * width if self.both_directions else width, dtype=torch.bool, device=self.device)
        if self.exclude_repeat:
            since = torch.flip(torch.flip(self.moved, (0,)).long().cumsum(0), (0,)) == 0
            chosen = self.feature + width * (self.alpha < 0)
            out = out.long().index_add(0, chosen, since.long()) > 0
        return out

    def _no_progress(self, mean: Tensor) -> Tensor:
        """Whether () the last rounds, this one with this mean included, were hardly better than those before."""
        measured = torch.cat([self.train_measure, mean[None].to(self.train_measure.dtype)])
        before, recent = measured[: -self.patience], measured[-self.patience :]
        return recent.max() < before.max() + self.tolerance if len(before) else recent.new_zeros((), dtype=torch.bool)

    # ---- what is held between rounds ----------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        none = lists.zeros(0)
        store(self, feature=none, alpha=none, train_measure=none, moved=none)

    def open(self, lists: TrainingLists) -> None:
        """Keep the lists with a relevant document; after a resume with the scores of the rounds so far."""
        parts = [self._measured(batch) for batch in lists]
        x, labels, lengths, single = (torch.cat(part) for part in zip(*parts, strict=True))
        if lists.reduce(torch.tensor(float(len(lengths)), device=lists.device)) == 0:
            raise DataError(f"no training list has a relevant document: AdaRank cannot improve {self.family}")
        offsets, scores = to_offsets(lengths), lists.zeros(len(labels))
        for feature, alpha in zip(self.feature, self.alpha, strict=True):
            scores = scores + alpha * x[:, feature].double()
        value = self._measure_of(scores, labels, offsets) if len(self.feature) else torch.zeros_like(single[:, 0])
        self.kept.boosting = Boosting(x, labels, offsets, single, scores, value)
        self.kept.memory = BatchMemory(KEPT_BYTES)

    def _measured(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows, labels, lengths, and measures under every column, of the lists that have a relevant document."""
        x = batch.dense
        columns = [x.double(), -x.double()] if self.both_directions else [x.double()]
        single = torch.cat([by_column(self._measure_of, each, batch.labels, batch.offsets) for each in columns], 1)
        kept = ~single[:, 0].isnan()
        inside = per_entry(kept, batch.offsets, len(x))
        return x[inside], batch.labels[inside], batch.offsets.diff()[kept], single[kept]

    def _measure_of(self, scores: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
        """E (Q,) of each list; nan without a relevant document."""
        measure: Measure = average_precision if self.family == "map" else ndcg
        return measure(scores, labels, offsets, k=self.k, ties=self.ties)

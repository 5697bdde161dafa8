"""AdaRank (Xu & Li 2007): single features boosted on the measure itself, with weights on queries."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.conventions import parse_measure
from torchrank.functional.measures import average_precision, ndcg
from torchrank.functional.ragged import per_entry, sort_within, to_offsets
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.singlefeature import dense
from torchrank.solvers.boosting.thresholds import first_largest
from torchrank.solvers.linear.scores import entry_scores

BLOCK = 2**22  # values ranked at once when all features are measured
SAME = 1e-12  # a change of a measure below this is none


class Boosting(NamedTuple):
    """What a process holds of the training lists that have a relevant document."""

    x: Tensor  # (N, D)
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    single: Tensor  # (Q, C) measure of each list ranked by each feature, then by each negated one
    scores: Tensor  # (N,) F
    value: Tensor  # (Q,) measure of each list ranked by F; 0 before the first round


class AdaRank(RoundRanker):
    """F(x) = sum_t alpha_t x_f, one feature per round: the one with the best mean measure under weights of the lists.

    A list weighs exp(-E), E its `measure` ("map", "ndcg@10") when ranked by the F so far; alpha is
    1/2 ln((1 + e) / (1 - e)), e the weighted mean of the chosen feature. Features add up, so they have to be
    comparable: the default transform scales each to 0..1 inside every list. `both_directions` also tries every negated
    feature. `ties="average"` takes the mean over the orders of equal values. "stable" keeps the order of the documents:
    then a nearly constant feature profits from a file in the order of its labels.

    The published algorithm stands still once a feature changes no E: the same feature would be chosen for ever. So with
    `exclude_repeat` such a feature is left out until another one has changed something, and the fit ends when all are
    left out, or when the mean training E has not grown by `tolerance` in `patience` rounds. `exclude_repeat=False` is
    the published algorithm, ended where the order of all documents and the weights repeat. Validation chooses among
    the rounds.
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
        transform: str | dict | list | None = "query_minmax",
    ):
        super().__init__(num_features, transform, rounds)
        if ties not in ("stable", "average"):
            raise ValueError(f"unknown ties={ties!r}: choose one of stable, average")
        if patience < 1:
            raise ValueError(f"patience={patience} has to be 1 at least")
        self.family, self.k, _ = parse_measure(measure)
        if self.family not in ("map", "ndcg"):
            raise ValueError(f"AdaRank boosts map or ndcg, with or without a cut-off (ndcg@10), not {measure!r}")
        self.both_directions, self.ties, self.exclude_repeat = both_directions, ties, exclude_repeat
        self.tolerance, self.patience = tolerance, patience
        self.feature = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
        self.alpha = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)
        self.register_buffer("train_measure", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("moved", torch.zeros(0, dtype=torch.bool))
        self._boosting: Boosting | None = None

    def prepare(self) -> None:
        self._boosting = None
        for name in ("feature", "alpha", "train_measure", "moved"):
            self.resize(name, (0,))

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self._boosting = None

    @property
    def weight(self) -> Tensor:
        """The linear model (D,) that the rounds add up to."""
        return self.alpha.new_zeros(self.transform.num_outputs).index_add(0, self.feature, self.alpha)

    def score(self, batch: Batch) -> Tensor:
        return entry_scores(batch, self.weight[None], False).to(dense(batch).dtype)

    # ---- one round ----------------------------------------------------------------------------------------------

    def round(self) -> bool:
        held = self._boosting or self._start()
        quality = self._quality_of_columns(held)
        left_out = self._left_out()
        if left_out.all():
            return True
        column = first_largest(quality.masked_fill(left_out, -torch.inf))
        feature, negated = column % self.transform.num_outputs, column >= self.transform.num_outputs
        alpha = self._weight(quality[column]) * torch.where(negated, -1.0, 1.0)
        scores = held.scores + alpha * held.x[:, feature].double()
        value = self._measure_of(scores, held.labels, held.offsets)
        mean, moved, turned = self._changes(held, scores, value)
        self.log(f"train/{self.family}", mean, prog_bar=True)
        new = {"feature": feature, "alpha": alpha, "train_measure": mean, "moved": moved}
        self.store({name: torch.cat([getattr(self, name), added[None]]) for name, added in new.items()})
        self._boosting = held._replace(scores=scores, value=value)
        return self._stands_still() if self.exclude_repeat else not (moved or turned)

    def _quality_of_columns(self, held: Boosting) -> Tensor:
        """Mean measure (C,) of every feature under the weights of the lists."""
        weight = torch.exp(-held.value)
        sums = self._reduce(torch.cat([weight @ held.single, weight.sum()[None]]))
        return sums[:-1] / sums[-1]

    def _weight(self, quality: Tensor) -> Tensor:
        return 0.5 * torch.log((1 + quality) / (1 - quality).clamp(min=1e-12))

    def _changes(self, held: Boosting, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean measure of all lists, whether that of any list changed, and whether any two documents changed order."""
        moved = (value - held.value).abs().gt(SAME).sum()
        turned = moved.new_zeros(())
        if not self.exclude_repeat:
            turned = (sort_within(scores, held.offsets) != sort_within(held.scores, held.offsets)).sum()
        counts = (value.sum(), moved, turned, moved.new_tensor(len(value)))
        total, moved, turned, lists = self._reduce(torch.stack([count.double() for count in counts]))
        return total / lists, (moved > 0) | (len(self.feature) == 0), turned > 0

    def _left_out(self) -> Tensor:
        """Columns (C,) that are not tried: chosen since a round last changed a measure."""
        width = self.transform.num_outputs
        out = torch.zeros(2 * width if self.both_directions else width, dtype=torch.bool, device=self.device)
        if self.exclude_repeat:
            since = torch.flip(torch.flip(self.moved, (0,)).long().cumsum(0), (0,)) == 0
            out[(self.feature + width * (self.alpha < 0))[since]] = True
        return out

    def _stands_still(self) -> bool:
        before, lately = self.train_measure[: -self.patience], self.train_measure[-self.patience :]
        return len(before) > 0 and bool(lately.max() < before.max() + self.tolerance)

    # ---- what is held between rounds ----------------------------------------------------------------------------

    def _start(self) -> Boosting:
        """The lists with a relevant document; after a resume with the scores of the rounds so far."""
        parts = [self._measured(batch) for batch in self.batches()]
        x, labels, lengths, single = (torch.cat(part) for part in zip(*parts, strict=True))
        if self._reduce(torch.tensor(float(len(lengths)), device=self.device)) == 0:
            raise ValueError(f"no training list has a relevant document: {self.family} cannot be boosted.")
        offsets = to_offsets(lengths)
        scores = torch.zeros(len(labels), dtype=torch.float64, device=self.device)
        for feature, alpha in zip(self.feature, self.alpha, strict=True):
            scores = scores + alpha * x[:, feature].double()
        value = self._measure_of(scores, labels, offsets) if len(self.feature) else torch.zeros_like(single[:, 0])
        return Boosting(x, labels, offsets, single, scores, value)

    def _measured(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows, labels, lengths and measures by every column of the lists that have a relevant document."""
        x = dense(batch)
        found = [self._by_column(some, batch) for some in x.split(max(1, BLOCK // max(1, len(x))), 1)]
        if self.both_directions:
            found += [self._by_column(-some, batch) for some in x.split(max(1, BLOCK // max(1, len(x))), 1)]
        single = torch.cat(found, 1)
        kept = ~single[:, 0].isnan()
        inside = per_entry(kept, batch.offsets, len(x))
        return x[inside], batch.labels[inside], batch.offsets.diff()[kept], single[kept]

    def _by_column(self, x: Tensor, batch: Batch) -> Tensor:
        """Measure (Q, columns) of the lists ranked by each column of x (N, columns)."""
        num_entries, num_columns = x.shape
        starts = torch.arange(num_columns, device=x.device) * num_entries  # column j is a run of lists of its own
        offsets = torch.cat([(batch.offsets[:-1] + starts[:, None]).flatten(), starts[-1:] + num_entries])
        values = self._measure_of(x.T.double().flatten(), batch.labels.repeat(num_columns), offsets)
        return values.view(num_columns, batch.num_lists).T

    def _measure_of(self, scores: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
        """E of each list; nan without a relevant document."""
        if self.family == "map":
            return average_precision(scores, labels, offsets, k=self.k, ties=self.ties)
        return ndcg(scores, labels, offsets, k=self.k, ties=self.ties)

"""RankBoost (Freund, Iyer, Schapire & Singer 2003): threshold rules boosted on pairs, without a list of pairs."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, check_choice
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import first_largest, has_pairs, per_entry
from torchrank.rankers.core.kept import KEPT_BYTES, BatchMemory, grown_scores
from torchrank.rankers.core.ranker import Ranker, TransformOption
from torchrank.rankers.core.rounds import Round
from torchrank.solvers.boosting import (
    LARGEST_R,
    SAMPLE,
    SMALLEST_R,
    PairedLists,
    Thresholds,
    binned_edges,
    crossing_masses,
    encode_rows,
    exact_edges,
    pair_masses,
    paired_lists,
)


class Boosting(NamedTuple):
    """What a process holds of the training documents between rounds."""

    thresholds: Thresholds
    paired: PairedLists
    log_weight: Tensor  # (Q,) log of D_1 of one pair of each list
    num_pairs: float  # pairs of all processes
    scores: Tensor  # (N,) F
    potentials: Tensor  # (N,) mass of the pairs won minus mass of the pairs lost, under D_t
    log_loss: Tensor  # () log of the exponential loss over all processes


class RankBoost(Ranker):
    """F(x) = sum_t alpha_t [x_f > theta], one rule per round: the one that the weighted pairs agree with most.

    D_t(x0, x1) ~ exp(F(x0) - F(x1)) over the pairs of a list with different labels (any labels, also real ones). The
    rule has the largest |r|, r = sum of D_t (h(x1) - h(x0)), of equal ones (1e-12) the smallest feature, then the
    largest threshold. A rule looks at one feature's order only, so monotone transforms change nothing. Validation
    chooses the number of rounds; the fit ends early where no rule has |r| >= 1e-8.

    Args:
        num_features: number of columns of the rows.
        bins: at most bins - 1 thresholds for each feature, from a sample of 10,000 rows of all processes; None: every
            value of a feature, in one process only.
        pair_weight: uniform: D_1 gives every pair the same mass; query: it gives every list the same mass.
        allow_negative: whether rules may have a negative weight; False: the rule with the largest r is taken.
        alpha: weight of a rule: approximate, 1/2 ln((1 + r) / (1 - r)); or exact, 1/2 ln(W+ / W-), from the masses of
            the pairs that it orders right and wrong, smoothed by 1 / (2 pairs).
        rounds: maximum number of rules.
        seed: seed of the sample.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0, 5.0], [2.0, 3.0], [1.0, 9.0]]), torch.tensor([0, 3])
        >>> ranker = RankBoost(2, rounds=2).fit(RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets))
        >>> ranker.feature.tolist(), ranker.threshold.tolist(), ranker.rank(x, offsets)
        ([0, 0], [1.0, 0.0], tensor([1, 2, 0]))
    """

    feature: nn.Parameter  # (T,) one entry per round
    threshold: nn.Parameter
    alpha: nn.Parameter
    log_loss: Tensor  # (T,) log of the exponential loss on the training pairs after each round: sum of log Z_t

    def __init__(
        self,
        num_features: int,
        bins: int | None = 256,
        pair_weight: str = "uniform",
        allow_negative: bool = True,
        alpha: str = "approximate",
        rounds: int = 300,
        seed: int = 0,
        transform: TransformOption = None,
    ):
        super().__init__(num_features, transform, rounds)
        check_choice(("uniform", "query"), pair_weight=pair_weight)
        check_choice(("approximate", "exact"), alpha=alpha)
        if bins is not None and not 2 <= bins <= 256:
            raise ValueError(f"bins must be from 2 to 256, or null for exact thresholds, got {bins}")
        self.bins, self.pair_weight, self.allow_negative = bins, pair_weight, allow_negative
        self.exact_alpha, self.seed = alpha == "exact", seed
        self.feature = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
        self.threshold = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)
        self.alpha = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)
        self.register_buffer("log_loss", torch.zeros(0, dtype=torch.float64))

    def score(self, batch: Batch) -> Tensor:
        return self._sum_from(0, batch).to(batch.x.dtype)

    def _sum_from(self, first: int, batch: Batch) -> Tensor:
        """Sum (N,) of the rules from `first` on."""
        return stump_scores(batch.dense, self.feature[first:], self.threshold[first:], self.alpha[first:])

    def validation_scores(self, batch: Batch) -> Tensor:
        """Scores (N,); during a fit those of the last validation are kept, and only the new rules are added."""
        rules = torch.stack((self.feature.double(), self.threshold.double(), self.alpha.double()))
        memory = getattr(self.kept, "memory", None)
        return grown_scores(memory, batch, rules, partial(self._sum_from, batch=batch)).to(batch.x.dtype)

    # ---- one round ----------------------------------------------------------------------------------------------

    def round(self, lists: TrainingLists, number: int) -> Round:
        held: Boosting = self.kept.boosting
        sums = lists.reduce(held.thresholds.sums(held.potentials))  # r of every rule, (D, M)
        best = first_largest(sums.abs() if self.allow_negative else sums)
        feature, place = best // sums.shape[1], best % sums.shape[1]
        r = sums.take(best)
        if abs(r) < SMALLEST_R:
            return Round(done=True)
        above = held.thresholds.above(feature, place)
        alpha = self._weight(lists, r, above, held)
        held = self._weighed(lists, held._replace(scores=held.scores + alpha * above), held.log_loss)
        threshold = held.thresholds.edges.take(best)
        new = {"feature": feature, "threshold": threshold, "alpha": alpha, "log_loss": held.log_loss}
        store(self, **{name: torch.cat([getattr(self, name), value[None]]) for name, value in new.items()})
        self.kept.boosting = held
        return Round(False, {"train/loss": held.log_loss.exp(), "train/r": abs(r)})

    def _weight(self, lists: TrainingLists, r: Tensor, above: Tensor, held: Boosting) -> Tensor:
        if not self.exact_alpha:
            return torch.atanh(r.clamp(-LARGEST_R, LARGEST_R))
        log_weight = held.log_weight - held.log_loss
        right, wrong = lists.reduce(crossing_masses(held.scores, above, log_weight, held.paired))
        smooth = 1 / (2 * held.num_pairs)
        return 0.5 * torch.log((right + smooth) / (wrong + smooth))

    def _weighed(self, lists: TrainingLists, held: Boosting, before: Tensor) -> Boosting:
        """The potentials and the loss of `held.scores`; `before`, the log of an earlier loss, keeps numbers small."""
        won, lost = pair_masses(held.scores, held.log_weight - before, held.paired)
        mass = lists.reduce(won.sum())
        return held._replace(potentials=(won - lost) / mass, log_loss=before + mass.log())

    # ---- what is held between rounds ----------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        none = lists.zeros(0)
        store(self, feature=none, threshold=none, alpha=none, log_loss=none)

    def open(self, lists: TrainingLists) -> None:
        """Prepare the training documents for the rounds; after a resume with the scores of the rules found so far."""
        if self.bins is None and lists.world > 1:
            raise ValueError(
                f"exact thresholds (bins=null) need all training documents in one process, but there are {lists.world} "
                "processes: use model.bins=256 or trainer=cpu"
            )
        labels, offsets = self._labels_with_pairs(lists)
        if self.bins is None:
            edges = exact_edges(_columns(lists))
        else:
            edges = binned_edges(lists.sample_rows(SAMPLE, self.seed), self.bins).to(lists.lists[:0].x.dtype)
        thresholds = encode_rows(_rows(lists), len(labels), edges)
        paired = paired_lists(labels, offsets, lists.lists.num_grades)
        log_weight, num_pairs = self._first_weights(lists, paired)
        zeros = lists.zeros(len(labels))
        held = Boosting(thresholds, paired, log_weight, num_pairs, zeros, zeros, zeros.new_zeros(()))
        self.kept.boosting = self._replayed(lists, held)
        self.kept.memory = BatchMemory(KEPT_BYTES)

    def _labels_with_pairs(self, lists: TrainingLists) -> tuple[Tensor, Tensor]:
        """Labels and offsets of the lists of this process with two different labels."""
        parts = [(batch.labels[_inside(batch)], batch.offsets.diff()[has_pairs(batch.labels, batch.offsets)])
                 for batch in lists]  # fmt: skip
        labels, lengths = (torch.cat(part) for part in zip(*parts, strict=True))
        return labels, to_offsets(lengths)

    def _first_weights(self, lists: TrainingLists, paired: PairedLists) -> tuple[Tensor, float]:
        """Log of the mass of one pair under D_1, (Q,), and the number of pairs of all processes."""
        counts = torch.stack([paired.pairs.sum(), paired.pairs.new_tensor(len(paired.pairs))])
        num_pairs, num_lists = lists.reduce(counts).tolist()
        if num_pairs == 0:
            raise DataError("no training list has two different labels: there is no pair to learn from")
        mass = paired.pairs * num_lists if self.pair_weight == "query" else torch.full_like(paired.pairs, num_pairs)
        return -mass.log(), num_pairs

    def _replayed(self, lists: TrainingLists, held: Boosting) -> Boosting:
        """The state with the scores F of the rules found so far, summed in the order in which they were found."""
        places = held.thresholds.places(self.feature, self.threshold)
        scores = held.scores
        for feature, place, alpha in zip(self.feature, places, self.alpha, strict=True):
            scores = scores + alpha * held.thresholds.above(feature, place)
        before = self.log_loss[-2] if len(self.log_loss) > 1 else held.log_loss
        weighed = self._weighed(lists, held._replace(scores=scores), before)
        return weighed if len(self.log_loss) else weighed._replace(log_loss=held.log_loss)  # 0, not its rounding


def stump_scores(x: Tensor, feature: Tensor, threshold: Tensor, alpha: Tensor) -> Tensor:
    """Scores (N,) of rows (N, D): sum over t of alpha[t] where x[:, feature[t]] > threshold[t].

    The rules of one feature add up to a step function, so one search in its sorted thresholds replaces all its rules.

    >>> stump_scores(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), torch.tensor([2.0, 0.5]).double(),
    ...              torch.tensor([1.0, 0.25]).double())
    tensor([0.2500, 1.2500], dtype=torch.float64)
    """
    if not len(feature):
        return alpha.new_zeros(len(x))
    if len(feature) == 1:  # what a validation adds after a round, without reading anything from the device
        return torch.where(x[:, feature].to(threshold.dtype) <= threshold, 0.0, alpha)[:, 0]
    order = torch.argsort(threshold)
    order = order[torch.argsort(feature[order], stable=True)]
    used, counts = torch.unique_consecutive(feature[order], return_counts=True)
    sizes: list[int] = counts.tolist()
    steps = pad_sequence(threshold[order].split(sizes), batch_first=True, padding_value=torch.inf)
    heights = pad(pad_sequence(alpha[order].split(sizes), batch_first=True).cumsum(1), (1, 0))
    passed = torch.searchsorted(steps, x[:, used].T.to(steps.dtype).contiguous())
    return heights.gather(1, passed).sum(0)


def _inside(batch: Batch) -> Tensor:
    """Which entries (N,) are in lists with two different labels."""
    return per_entry(has_pairs(batch.labels, batch.offsets), batch.offsets, len(batch.labels))


def _rows(lists: TrainingLists) -> Iterator[Tensor]:
    """The rows of those entries, batch by batch."""
    return (batch.dense[_inside(batch)] for batch in lists)


def _columns(lists: TrainingLists) -> Iterator[Tensor]:
    """The columns (N,) of those entries, feature by feature."""
    inside = [_inside(batch) for batch in lists]
    for feature in range(lists.lists[:0].x.shape[1]):
        yield torch.cat([batch.dense[:, feature][here] for batch, here in zip(lists, inside, strict=True)])

"""RankBoost (Freund, Iyer, Schapire & Singer 2003): threshold rules boosted on pairs, without a list of pairs."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.singlefeature import dense
from torchrank.solvers.boosting.potentials import PairedLists, crossing_masses, pair_masses, paired_lists
from torchrank.solvers.boosting.thresholds import (
    Thresholds,
    binned_edges,
    encode,
    exact_edges,
    first_largest,
    stump_scores,
)
from torchrank.solvers.linear.many import join_lists

SAMPLE = 10_000  # rows from which bins are made
CLIP = 1 - 1e-10  # largest |r|: one rule that orders every pair gets a finite weight


class Boosting(NamedTuple):
    """What a process holds of the training documents between rounds."""

    thresholds: Thresholds
    paired: PairedLists
    log_weight: Tensor  # (Q,) log of D_1 of one pair of each list
    num_pairs: float  # of all processes
    scores: Tensor  # (N,) F
    potentials: Tensor  # (N,) mass of the pairs won minus mass of the pairs lost, under D_t
    log_loss: Tensor  # () of all processes


class RankBoost(RoundRanker):
    """F(x) = sum_t alpha_t [x_f > theta], one rule per round: the one that the weighted pairs agree with most.

    D_t(x0, x1) ~ exp(F(x0) - F(x1)) over the pairs of a list with different labels (any labels, also real ones). The
    rule has the largest |r|, r = sum of D_t (h(x1) - h(x0)), of equal ones (1e-12) the smallest feature, then the
    largest threshold; `allow_negative=False` takes the largest r. Its weight is 1/2 ln((1 + r) / (1 - r)), or with
    `alpha="exact"` 1/2 ln(W+ / W-), the masses of the pairs that it orders right and wrong, smoothed by 1 / (2 pairs).
    `pair_weight="query"`: D_1 gives every list the same mass.

    `bins=None` tries every value of a feature, in one process; with `bins` the thresholds are agreed on from a sample
    of 10,000 rows of all processes. A rule looks at one feature's order only, so monotone transforms change nothing.
    Validation chooses the number of rounds; the fit ends early where no rule has |r| >= 1e-8.
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
        transform: str | dict | list | None = None,
    ):
        super().__init__(num_features, transform, rounds)
        if pair_weight not in ("uniform", "query"):
            raise ValueError(f"unknown pair_weight={pair_weight!r}: choose one of uniform, query")
        if alpha not in ("approximate", "exact"):
            raise ValueError(f"unknown alpha={alpha!r}: choose one of approximate, exact")
        if bins is not None and not 2 <= bins <= 256:
            raise ValueError(f"bins={bins} has to be 2 to 256, or null for exact thresholds")
        self.bins, self.pair_weight, self.allow_negative = bins, pair_weight, allow_negative
        self.exact_alpha, self.seed = alpha == "exact", seed
        self.feature = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
        self.threshold = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)
        self.alpha = nn.Parameter(torch.zeros(0, dtype=torch.float64), requires_grad=False)
        self.register_buffer("log_loss", torch.zeros(0, dtype=torch.float64))
        self._boosting: Boosting | None = None

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.bins is None and self.trainer.world_size > 1:
            raise ValueError(
                f"exact thresholds sort all training documents in one process, here are {self.trainer.world_size}: "
                "use model.bins=256 or trainer=cpu."
            )
        super().setup(stage)

    def prepare(self) -> None:
        self._boosting = None
        for name in ("feature", "threshold", "alpha", "log_loss"):
            self.resize(name, (0,))

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self._boosting = None

    def score(self, batch: Batch) -> Tensor:
        x = dense(batch)
        return stump_scores(x, self.feature, self.threshold, self.alpha).to(x.dtype)

    # ---- one round ----------------------------------------------------------------------------------------------

    def round(self) -> bool:
        held = self._boosting or self._start()
        sums = self._reduce(held.thresholds.sums(held.potentials))  # r of every rule, (D, M)
        best = first_largest(sums.abs() if self.allow_negative else sums)
        feature, place = best // sums.shape[1], best % sums.shape[1]
        r = sums[feature, place]
        if abs(r) < 1e-8:
            return True
        above = held.thresholds.above(feature, place)
        alpha = self._weight(r, above, held)
        held = self._weighed(held._replace(scores=held.scores + alpha * above), held.log_loss)
        self.log("train/loss", held.log_loss.exp(), prog_bar=True)
        self.log("train/r", abs(r))
        threshold = held.thresholds.edges[feature, place]
        new = {"feature": feature, "threshold": threshold, "alpha": alpha, "log_loss": held.log_loss}
        self.store({name: torch.cat([getattr(self, name), value[None]]) for name, value in new.items()})
        self._boosting = held
        return False

    def _weight(self, r: Tensor, above: Tensor, held: Boosting) -> Tensor:
        if not self.exact_alpha:
            return torch.atanh(r.clamp(-CLIP, CLIP))
        log_weight = held.log_weight - held.log_loss
        right, wrong = self._reduce(crossing_masses(held.scores, above, log_weight, held.paired))
        smooth = 1 / (2 * held.num_pairs)
        return 0.5 * torch.log((right + smooth) / (wrong + smooth))

    def _weighed(self, held: Boosting, before: Tensor) -> Boosting:
        """The potentials and the loss of `held.scores`; `before`, the log of an earlier loss, keeps numbers small."""
        won, lost = pair_masses(held.scores, held.log_weight - before, held.paired)
        mass = self._reduce(won.sum())
        return held._replace(potentials=(won - lost) / mass, log_loss=before + mass.log())

    # ---- what is held between rounds ----------------------------------------------------------------------------

    def _start(self) -> Boosting:
        """The training documents as they are boosted on; after a resume with the scores of the rules so far."""
        x, labels, offsets, *_ = join_lists(self.batches())
        columns = x.T.contiguous()
        if self.bins is None:
            edges = exact_edges(columns)
        else:
            edges = binned_edges(self.sample_rows(SAMPLE, self.seed), self.bins).to(x.dtype)
        paired = paired_lists(labels, offsets, self.data.sets["train"].num_grades)
        log_weight, num_pairs = self._first_weights(paired)
        zeros = torch.zeros(len(labels), dtype=torch.float64, device=self.device)
        held = Boosting(encode(columns, edges), paired, log_weight, num_pairs, zeros, zeros, zeros.new_zeros(()))
        return self._replayed(held)

    def _first_weights(self, paired: PairedLists) -> tuple[Tensor, float]:
        """Log of the mass of one pair under D_1, (Q,), and the pairs of all processes."""
        counts = torch.stack([paired.pairs.sum(), paired.pairs.new_tensor(len(paired.pairs))])
        num_pairs, num_lists = self._reduce(counts).tolist()
        if num_pairs == 0:
            raise ValueError("no training list has two different labels: there is no pair to learn from.")
        mass = paired.pairs * num_lists if self.pair_weight == "query" else torch.full_like(paired.pairs, num_pairs)
        return -mass.log(), num_pairs

    def _replayed(self, held: Boosting) -> Boosting:
        """F of the rules so far, added up in the same order as when they were found."""
        places = held.thresholds.places(self.feature, self.threshold)
        scores = held.scores
        for feature, place, alpha in zip(self.feature, places, self.alpha, strict=True):
            scores = scores + alpha * held.thresholds.above(feature, place)
        before = self.log_loss[-2] if len(self.log_loss) > 1 else held.log_loss
        weighed = self._weighed(held._replace(scores=scores), before)
        return weighed if len(self.log_loss) else weighed._replace(log_loss=held.log_loss)  # 0, not its rounding

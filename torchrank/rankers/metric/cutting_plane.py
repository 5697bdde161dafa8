"""Cutting planes in rounds: what MLR and SVM-map share (McFee & Lanckriet 2010; Yue et al. 2007)."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.oracles import most_violated
from torchrank.functional.ragged import per_entry, segment_max, segment_min
from torchrank.functional.ranking import check_cutoff
from torchrank.solvers.cutting_plane.plane import Plane, add_cut, gap, restart, start

MEASURES = ("auc", "map", "mrr", "precision", "ndcg")
CUT_OFF = 3  # k of precision and ndcg where none is given


class Oracle(NamedTuple):
    """The most violated rankings of the lists of a batch under one measure."""

    measure: str
    k: int | None
    threshold: float | str
    discount: str

    @classmethod
    def make(cls, measure: str, k: int | None, threshold: float | str, discount: str) -> "Oracle":
        """Checked; `precision` and `ndcg` look at the first 3 where no k is given."""
        if measure not in MEASURES:
            raise ValueError(f"unknown measure={measure!r}: choose one of {', '.join(MEASURES)}")
        if discount not in ("letor", "log2p1"):
            raise ValueError(f"unknown discount={discount!r}: choose letor or log2p1")
        if not isinstance(threshold, int | float) and threshold != "sweep":
            raise ValueError(f"threshold={threshold!r} is the lowest grade of a relevant document, or sweep")
        if threshold != threshold:
            raise ValueError(f"threshold={threshold}: no grade is that high, and none is lower")
        check_cutoff(k)
        cuts_off = measure in ("precision", "ndcg")
        return cls(measure, CUT_OFF if cuts_off and k is None else k, threshold, discount)

    def __call__(self, scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Coefficients (N,) and loss (Q,); with a sweep the means over the thresholds that part a list."""
        if self.threshold != "sweep":
            return self._at(scores, batch, float(self.threshold))
        coefficients, loss = torch.zeros_like(scores), scores.new_zeros(batch.num_lists)
        for threshold in self._thresholds(batch):
            some, more = self._at(scores, batch, threshold)
            coefficients, loss = coefficients + some, loss + more
        share = 1 / self._parted(batch).sum(0).clamp(min=1).to(loss.dtype)
        return coefficients * per_entry(share, batch.offsets, len(scores)), loss * share

    def usable(self, batch: Batch) -> Tensor:
        """Whether a list has relevant and other documents (Q,)."""
        return self._parted(batch).any(0)

    def _at(self, scores: Tensor, batch: Batch, threshold: float) -> tuple[Tensor, Tensor]:
        return most_violated(
            scores,
            batch.labels,
            batch.offsets,
            measure=self.measure,
            k=self.k,
            threshold=threshold,
            discount=self.discount,
            max_length=batch.max_length,
        )

    def _thresholds(self, batch: Batch) -> list[float]:
        if not isinstance(self.threshold, str):
            return [self.threshold]
        if batch.num_grades == 0:
            raise ValueError("threshold=sweep goes over grades 1, 2, ..., and these labels are real numbers: give one")
        return [float(grade) for grade in range(1, batch.num_grades)]

    def _parted(self, batch: Batch) -> Tensor:
        """Which thresholds part which lists (T, Q)."""
        high, low = segment_max(batch.labels, batch.offsets), segment_min(batch.labels, batch.offsets)
        # in the type of the labels, as `labels >= threshold` compares
        dtype = high.dtype if high.is_floating_point() else torch.float64
        thresholds = torch.tensor(self._thresholds(batch), dtype=dtype, device=batch.device)[:, None]
        return (high >= thresholds) & (low < thresholds)


def is_positive(value: Any) -> bool:
    """Whether it is a positive, finite number; nan is not."""
    return isinstance(value, int | float) and 0 < value < math.inf


class CutRounds(nn.Module):
    """min Omega(W) + C mean over lists of max_y [1 - measure(y) - <W, psi(y*) - psi(y)>] by stabilised cutting planes.

    A round asks the oracle about all lists at the `probe`, adds the mean of what it says as a cut, and solves for the
    cuts so far. The state is that of `Plane` (solvers/cutting_plane), in buffers and so in checkpoints. Where C
    is a list a round is a whole fit, with the cuts of those before it: a cut does not depend on C.
    """

    lists: Tensor  # () number of lists that have both classes

    def __init__(
        self,
        shape: tuple[int, ...],
        oracle: Oracle,
        *,
        regulariser: str,
        C: float | list[float],
        eps: float,
        stabilise: float,
        cuts: int,
        lam: float = 0.0,
    ):
        super().__init__()
        self.oracle, self.limit = oracle, cuts
        self.C: list[float] = C if isinstance(C, list) else [C]
        self.options: dict[str, Any] = {"regulariser": regulariser, "lam": lam, "eps": eps, "stabilise": stabilise}
        if not self.C or not all(map(is_positive, self.C)):
            raise ValueError(f"C={C!r} has to be a positive number, or a list of them")
        if not is_positive(eps):
            raise ValueError(f"eps={eps!r} has to be a positive number")
        if not is_positive(stabilise) or stabilise > 1:
            raise ValueError(f"stabilise={stabilise!r} has to be a number above 0, at most 1")
        if not isinstance(cuts, int) or cuts < 1:
            raise ValueError(f"rounds={cuts!r} has to be an integer, 1 at least")
        for name, value in start(shape)._asdict().items():
            self.register_buffer(name, value.clone())
        self.register_buffer("lists", torch.zeros((), dtype=torch.float64))
        self.forget()

    @property
    def plane(self) -> Plane:
        """The state; not the buffers themselves, which `write` empties before it fills them."""
        buffers = dict(self.named_buffers())
        return Plane(*(buffers[name].detach() for name in Plane._fields))

    def prepare(self, ranker: Any, shape: tuple[int, ...]) -> None:
        """Forget all cuts, and count the lists that can teach something."""
        self.forget()
        self.write(ranker, start(shape, ranker.device))
        self.lists.copy_(ranker.total(lambda batch: self.oracle.usable(batch).double().sum()))

    def forget(self) -> None:
        self._kept: list[Batch] | None = None

    def batches(self, made: Iterator[Batch], keep: bool) -> Iterator[Batch]:
        """The training lists as `made`, or as they are kept from the first round on."""
        if not keep:
            return made
        if self._kept is None:
            self._kept = list(made)
        return iter(self._kept)

    def advance(self, ranker: Any, scores: Callable, add: Callable, anchor: Tensor | None = None) -> tuple[Plane, bool]:
        """The state after one more round, and whether the fit is over. Nothing is written.

        `scores(batch, W)` are those of the entries, `add(batch, coefficients, into)` sums delta psi.
        """
        options = self.options | {"anchor": anchor}
        if not ranker.is_path:
            plane = self._cut(ranker, self.plane, scores, add, options | {"C": self.C[0]})
            return plane, self._report(ranker, plane, self.C[0])
        step = ranker.trainer.current_epoch
        options["C"] = self.C[step]
        plane = restart(self.plane, **options)
        for _ in range(self.limit):
            plane = self._cut(ranker, plane, scores, add, options)
            if gap(plane) <= options["C"] * options["eps"]:
                break
        done = self._report(ranker, plane, options["C"])
        if not done:
            found = f"ends at a gap of {float(gap(plane)):.1e} after {self.limit} cuts"
            rank_zero_warn(f"the fit for C={options['C']:g} {found}: raise rounds")
        return plane, done and step + 1 == len(self.C)

    def write(self, ranker: Any, plane: Plane) -> None:
        """Make this the state: the last act of a round."""
        ranker.store({f"cuts.{name}": value for name, value in plane._asdict().items()})

    def _cut(self, ranker: Any, plane: Plane, scores: Callable, add: Callable, options: dict[str, Any]) -> Plane:
        def violate(batch: Batch, into: tuple[Tensor, ...]) -> None:
            coefficients, loss = self.oracle(scores(batch, plane.probe), batch)
            add(batch, coefficients, into[0])
            into[1].add_(loss.sum())

        psi, loss = ranker.total(violate, into=(torch.zeros_like(plane.probe), torch.zeros_like(self.lists)))
        count = self.lists.clamp(min=1)
        return add_cut(plane, psi / count, loss / count, **options)

    def _report(self, ranker: Any, plane: Plane, C: float) -> bool:
        """Log the bounds; whether they prove the fit."""
        upper, lower, left = (float(value) for value in (plane.upper, plane.lower, gap(plane)))
        ranker.certificate = {"gap": left, "eps*C": self.options["eps"] * C, "upper": upper, "lower": lower}
        ranker.findings = {"C": C} if ranker.is_path else {}
        if left < -self.options["eps"] * C:
            raise ValueError(
                f"the lower bound {lower:.4g} is above the objective {upper:.4g} of the best point: the features are "
                "too far from 0, or from each other, for their digits. Use transform=standard."
            )
        ranker.log_dict({"train/upper": upper, "train/lower": lower, "train/cuts": float(len(plane.loss))})
        ranker.log("train/gap", left, prog_bar=True)
        return left <= self.options["eps"] * C

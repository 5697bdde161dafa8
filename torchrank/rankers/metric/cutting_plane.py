"""Cutting planes by rounds: the part that MLR and SVM-map share (McFee & Lanckriet 2010; Yue et al. 2007)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import ConvergenceWarning, DataError, check_choice, check_integer, check_number
from torchrank.functional.oracles import most_violated
from torchrank.functional.ragged import per_entry, segment_max, segment_min
from torchrank.functional.ranking import check_cutoff
from torchrank.rankers.core.ranker import warn
from torchrank.rankers.core.rounds import Certificate, Round
from torchrank.solvers.cutting_plane.plane import Plane, add_cut, gap, rest, restart, start

MEASURES = ("auc", "map", "mrr", "precision", "ndcg")
Scores = Callable[[Batch, Tensor], Tensor]  # (batch, W) -> scores of the entries
Adds = Callable[[Batch, Tensor, Tensor], None]  # (batch, coefficients, into) adds up delta psi
CUT_OFF = 3  # k of precision and ndcg where none is given


class Oracle(NamedTuple):
    """Finds the most violated ranking of each list of a batch under one measure."""

    measure: str
    k: int | None
    threshold: float | str

    @classmethod
    def make(cls, measure: str, k: int | None, threshold: float | str) -> "Oracle":
        """An oracle with checked options; `precision` and `ndcg` look at the first 3 entries where no k is given."""
        check_choice(MEASURES, measure=measure)
        if not isinstance(threshold, int | float) and threshold != "sweep":
            raise ValueError(f"threshold must be a number (the lowest relevant grade) or sweep, got {threshold!r}")
        if threshold != threshold:
            raise ValueError(f"threshold must be a number, got {threshold}")
        check_cutoff(k)
        cuts_off = measure in ("precision", "ndcg")
        return cls(measure, CUT_OFF if cuts_off and k is None else k, threshold)

    def __call__(self, scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Coefficients (N,) and loss (Q,); with a sweep, their means over the thresholds that split a list."""
        if self.threshold != "sweep":
            return self._at(scores, batch, float(self.threshold))
        coefficients, loss = torch.zeros_like(scores), scores.new_zeros(batch.num_lists)
        for threshold in self._thresholds(batch):
            some, more = self._at(scores, batch, threshold)
            coefficients, loss = coefficients + some, loss + more
        share = 1 / self._split(batch).sum(0).clamp(min=1).to(loss.dtype)
        return coefficients * per_entry(share, batch.offsets, len(scores)), loss * share

    def usable(self, batch: Batch) -> Tensor:
        """Which lists have both relevant and other documents (Q,)."""
        return self._split(batch).any(0)

    def _at(self, scores: Tensor, batch: Batch, threshold: float) -> tuple[Tensor, Tensor]:
        return most_violated(
            scores,
            batch.labels,
            batch.lists,
            measure=self.measure,
            k=self.k,
            threshold=threshold,
        )

    def _thresholds(self, batch: Batch) -> list[float]:
        if not isinstance(self.threshold, str):
            return [self.threshold]
        if batch.num_grades == 0:
            raise DataError("threshold=sweep needs integer grades, but the labels are real-valued: set a number.")
        return [float(grade) for grade in range(1, batch.num_grades)]

    def _split(self, batch: Batch) -> Tensor:
        """Whether each threshold splits each list (T, Q)."""
        high, low = segment_max(batch.labels, batch.offsets), segment_min(batch.labels, batch.offsets)
        # in the type of the labels, as `labels >= threshold` compares
        dtype = high.dtype if high.is_floating_point() else torch.float64
        thresholds = torch.tensor(self._thresholds(batch), dtype=dtype, device=batch.device)[:, None]
        return (high >= thresholds) & (low < thresholds)


def is_positive(value: Any, or_zero: bool = False) -> bool:
    """Whether a value is a positive, finite number, or 0 where that is allowed; nan is not."""
    return isinstance(value, int | float) and (0 < value < math.inf or (or_zero and value == 0))


class CutRounds(nn.Module):
    """min Omega(W) + C mean over lists of max_y [1 - measure(y) - <W, psi(y*) - psi(y)>] by stabilised cutting planes.

    A round asks the oracle about all lists at the `probe`, adds the mean of its answers as a cut, and solves the
    reduced problem. The state is a `Plane` (solvers/cutting_plane), kept in buffers and so in checkpoints. Where C is a
    list, a round is a whole fit, which starts with the cuts of the fits before it: a cut does not depend on C.
    `options` are those of `add_cut`: regulariser, lam, eps and stabilise. Where Omega is `anchored`, C may be 0: W is
    the anchor then, without a cut.
    """

    lists: Tensor  # () number of lists with both classes

    def __init__(
        self,
        shape: tuple[int, ...],
        oracle: Oracle,
        C: float | list[float],
        cuts: int,
        options: dict[str, Any],
        anchored: bool = False,
    ):
        super().__init__()
        self.oracle, self.limit, self.options = oracle, cuts, options
        self.is_path, self.C = isinstance(C, list), C if isinstance(C, list) else [C]
        if not self.C or not all(is_positive(each, anchored) for each in self.C):
            raise ValueError(f"C must be a number {'>= 0' if anchored else '> 0'}, or a list of them, got {C!r}")
        check_number("> 0", eps=options["eps"])
        check_number("> 0 and <= 1", stabilise=options["stabilise"])
        check_integer(">= 1", rounds=cuts)
        for name, value in start(shape)._asdict().items():
            self.register_buffer(name, value.clone())
        self.register_buffer("lists", torch.zeros((), dtype=torch.float64))

    @property
    def plane(self) -> Plane:
        """The state. It shares the memory of the buffers, which `write` replaces and does not overwrite."""
        buffers = dict(self.named_buffers())
        return Plane(*(buffers[name].detach() for name in Plane._fields))

    def start(self, lists: TrainingLists, shape: tuple[int, ...], anchor: Tensor | None = None) -> None:
        """Forget all cuts, and count the lists to learn from."""
        self.write(start(shape, lists.device, anchor))
        self.lists.copy_(lists.total(lambda batch: self.oracle.usable(batch).double().sum()))

    def advance(
        self, lists: TrainingLists, number: int, scores: Scores, add: Adds, anchor: Tensor | None = None
    ) -> tuple[Plane, Round]:
        """The state after one more round, and what the round found. Nothing is written.

        `scores(batch, W)` returns the scores of the entries; `add(batch, coefficients, into)` adds up delta psi.
        """
        C = self.C[number if self.is_path else 0]
        options = self.options | {"anchor": anchor, "C": C}
        if C == 0 and anchor is not None:
            plane = rest(self.plane, anchor)
        elif self.is_path:
            plane = self._whole(lists, scores, add, options)
        else:
            plane = self._cut(lists, self.plane, scores, add, options)
        found = self._found(plane, C)
        if not self.is_path:
            return plane, found
        if not found.done:
            left = f"stopped at a gap of {float(gap(plane)):.1e} after {self.limit} cuts"
            warn(f"the fit for C={C:g} {left}: raise rounds", ConvergenceWarning)
        return plane, found._replace(done=found.done and number + 1 == len(self.C), findings={"C": C})

    def write(self, plane: Plane) -> None:
        """Store a new state, as the last act of a round."""
        store(self, **plane._asdict())

    def _whole(self, lists: TrainingLists, scores: Scores, add: Adds, options: dict[str, Any]) -> Plane:
        """The state after a fit on a path."""
        plane = restart(self.plane, **options)
        for _ in range(self.limit):
            plane = self._cut(lists, plane, scores, add, options)
            if gap(plane) <= options["C"] * options["eps"]:
                break
        return plane

    def _cut(self, lists: TrainingLists, plane: Plane, scores: Scores, add: Adds, options: dict[str, Any]) -> Plane:
        def violate(batch: Batch, into: tuple[Tensor, ...]) -> None:
            coefficients, loss = self.oracle(scores(batch, plane.probe), batch)
            add(batch, coefficients, into[0])
            into[1].add_(loss.sum())

        psi, loss = lists.total(violate, into=(torch.zeros_like(plane.probe), torch.zeros_like(self.lists)))
        count = self.lists.clamp(min=1)
        return add_cut(plane, psi / count, loss / count, **options)

    def _found(self, plane: Plane, C: float) -> Round:
        """The round that ends in this state; it is done when its bounds prove the fit."""
        upper, lower, left = torch.stack((plane.upper, plane.lower, gap(plane))).tolist()
        certificate = Certificate("gap", left, self.options["eps"] * C, {"upper": upper, "lower": lower})
        if left < -certificate.limit:
            raise DataError(
                f"the lower bound {lower:.4g} is above the objective {upper:.4g} of the best point: the features are "
                "too far from 0, or from each other, for double precision. Use transform=standard."
            )
        log = {"train/upper": upper, "train/lower": lower, "train/cuts": float(len(plane.loss)), "train/gap": left}
        return Round(certificate.proved, log, certificate)

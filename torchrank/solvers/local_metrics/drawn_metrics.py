"""Local metrics in closed form: which lists are drawn, their geometric means, their anchors.

Su, King & Lyu, "Learning to rank using localized geometric mean metrics", SIGIR 2017, Algorithm 2, first half. All sums
run over all processes, so every process draws, solves and chooses the same.
"""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, NotPositiveDefinite, NumericalWarning, check_choice, check_integer, check_number
from torchrank.functional import ndcg
from torchrank.functional.ragged import by_column, first_largest, per_entry, segment_max, segment_sum
from torchrank.functional.spd import gmml_factor
from torchrank.solvers.local_metrics.drawn_lists import (
    ListTable,
    draw_candidates,
    draw_sources,
    found_in,
    own_rows,
    take_lists,
)
from torchrank.solvers.local_metrics.scatter import PairSums, high_and_low, pair_sums

KAPPAS = (1.0, 3.0, 10.0, 30.0)  # of the virtual anchors among the candidates of anchor="search"
CUTOFF = 10  # anchors are chosen by NDCG@10
NUMBERS_AT_ONCE = 2**24  # numbers of a stack of matrices that is solved at once: 128 MB in float64
RETRIES = 8  # a ridge that is too small is raised tenfold at most this many times


@dataclass(frozen=True)
class MetricOptions:
    """How metrics and anchors are made. The docstring of `LGMML` explains the options."""

    metrics: int = 32
    queries_per_metric: int | None = 40
    high: str = "half"
    t: float = 0.5
    ridge: float = 0.1
    ridge_mode: str = "relative"
    scatter: str = "mean"
    anchor: str = "virtual"
    kappa: float = 10.0
    anchor_candidates: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(("half", "max", "positive"), high=self.high)
        check_choice(("relative", "absolute"), ridge_mode=self.ridge_mode)
        check_choice(("mean", "sum"), scatter=self.scatter)
        check_choice(("virtual", "best", "search"), anchor=self.anchor)
        check_number(">= 0 and <= 1", t=self.t)
        check_number(">= 0", ridge=self.ridge)
        check_integer(">= 1", metrics=self.metrics, queries_per_metric=self.queries_per_metric)
        check_integer(">= 1", anchor_candidates=self.anchor_candidates)


class LocalMetrics(NamedTuple):
    """M metrics M_r = F_r F_r', the anchor of each, and the training lists that each was learned from."""

    factors: Tensor  # (M, D, k) float64
    anchors: Tensor  # (M, D)
    sources: Tensor  # (M, lists)


def local_metrics(lists: TrainingLists, options: MetricOptions, reference: Tensor) -> LocalMetrics:
    """All metrics and anchors in two passes over the training lists, or four where anchors are chosen among documents.

    `reference (D,)` is any training row: a feature that equals it everywhere never varies.
    """

    def describe(batch: Batch, into: tuple[Tensor, ...]) -> None:
        add_table(batch, into[0], options.high)
        if batch.index is None or (batch.query == 0).any():  # a shared corpus counts once
            into[1].add_(torch.ne(batch.x, reference).sum(0))  # type: ignore[arg-type]

    table, varies = lists.total(describe, into=(lists.zeros(len(lists), 3), lists.zeros(len(reference))))
    known, generator = ListTable(*table.cpu().unbind(1)), torch.Generator().manual_seed(options.seed)
    sources = draw_sources(known.highs, options.metrics, options.queries_per_metric, generator, lists.lists.classes)
    drawn, sources = sources, sources.to(lists.device)
    shares = lists.zeros(len(sources), len(lists)).scatter_add_(1, sources, torch.ones_like(sources).double())
    sums = pair_sums(lists, [shares], options.high)[0]
    factors = solve_metrics(sums, varies, options)
    if options.anchor == "virtual":
        return LocalMetrics(factors, virtual_anchors(sums, options.kappa), sources)
    places, numbers = draw_candidates(known, drawn, options.anchor_candidates, generator)
    candidates, there = _candidates(lists, places.to(lists.device), numbers.to(lists.device))
    if options.anchor == "search":
        virtual = torch.stack([virtual_anchors(sums, kappa) for kappa in KAPPAS], 1)
        candidates, there = torch.cat((candidates, virtual), 1), pad(there, (0, len(KAPPAS)), value=True)
    return LocalMetrics(factors, _best_anchors(lists, factors, sources, candidates, there), sources)


# ---- what the draws need ---------------------------------------------------------------------------------------------


def add_table(batch: Batch, table: Tensor, high: str) -> None:
    """Write the rows (highs, top, tops) of the lists of a batch into `table (Q, 3)`."""
    if len(batch.labels):
        highs, tops = (
            segment_sum(mask.double(), batch.offsets)
            for mask in (high_and_low(batch.labels, batch.offsets, high)[0], _at_top(batch.labels, batch.offsets))
        )
        top = torch.where(tops > 0, segment_max(batch.labels, batch.offsets), 0)
        table[batch.query] = torch.stack((highs, top.double(), tops), 1)


def _at_top(labels: Tensor, offsets: Tensor) -> Tensor:
    """Which entries (N,) have the largest label of their list."""
    return labels == per_entry(segment_max(labels, offsets), offsets, len(labels))


# ---- metrics ---------------------------------------------------------------------------------------------------------


def solve_metrics(sums: PairSums, varies: Tensor, options: MetricOptions, at_once: int = NUMBERS_AT_ONCE) -> Tensor:
    """Factors (M, D, k) of all metrics, k the number of features with `varies (D,)` above 0; features that never vary
    have zero rows."""
    live = varies.nonzero().flatten()
    if len(live) == 0:
        raise DataError("no feature varies over the training documents, so no metric can be learned: check the rows")
    pairs = torch.ones_like(sums.pairs) if options.scatter == "sum" else sums.pairs.clamp(min=1)
    factors = sums.similar.new_zeros(len(pairs), len(varies), len(live))
    for some in torch.arange(len(pairs), device=live.device).split(max(1, at_once // len(live) ** 2 // 6)):
        similar, dissimilar = (
            scatter[some][:, live][:, :, live] / number[some, None, None]
            for scatter, number in zip(sums[:2], pairs.unbind(1), strict=True)
        )
        similar, dissimilar = ridged(similar, dissimilar, options, int(some[0]), sums.pairs[some])
        factors[some[:, None], live] = gmml_factor(similar, dissimilar, options.t)
    return factors


def ridged(
    similar: Tensor, dissimilar: Tensor, options: MetricOptions, first: int, pairs: Tensor
) -> tuple[Tensor, Tensor]:
    """Both scatters (B, D, D) plus a ridge on the diagonal. Where one is still not positive definite, both ridges are
    raised tenfold until it is, and a warning says so. For messages, `first` is the number of the first metric and
    `pairs (B, 2)` are the numbers of pairs."""
    scatters, width = torch.stack((similar, dissimilar)), similar.shape[-1]
    ridges = torch.full(scatters.shape[:2], float(options.ridge), dtype=torch.float64, device=similar.device)
    if options.ridge_mode == "relative" and options.ridge > 0:
        traces = scatters.diagonal(dim1=-2, dim2=-1).sum(-1) / width
        ridges = torch.maximum(ridges * traces, 1e-12 * traces.amax(0)).clamp(min=torch.finfo(torch.float64).tiny)
    eye, asked = torch.eye(width, dtype=torch.float64, device=similar.device), ridges
    for _ in range(RETRIES + 1):
        regular = scatters + ridges[:, :, None, None] * eye
        failed = torch.linalg.cholesky_ex(regular).info != 0  # (2, B)
        if not failed.any():
            _warn_of_raised(asked, ridges, first, options.ridge)
            return regular[0], regular[1]
        if options.ridge == 0:
            break
        ridges = torch.where(failed.any(0), ridges * 10, ridges)
    bad = int(failed.any(0).nonzero()[0])
    which = int(failed[:, bad].nonzero()[0])
    rank, number = int(torch.linalg.matrix_rank(regular[which, bad])), int(pairs[bad, which])
    raise NotPositiveDefinite(
        f"{('similar', 'dissimilar')[which]}-pair scatter of metric {first + bad} is singular: rank {rank} of {width} "
        f"from {number} pairs. {_advice(options.ridge)}"
    )


def _advice(ridge: float) -> str:
    return f"Raise ridge (now {ridge}) or draw more documents per metric (queries_per_metric)."


def _warn_of_raised(asked: Tensor, used: Tensor, first: int, ridge: float) -> None:
    """One warning for all metrics whose ridges (2, B) had to be raised."""
    raised = (used > asked).any(0).nonzero().flatten()
    if len(raised):
        bad = int(raised[0])
        (similar, now_similar), (dissimilar, now_dissimilar) = torch.stack((asked, used), 1)[:, :, bad].tolist()
        which = f"metric {first + bad}" if len(raised) == 1 else f"{len(raised)} metrics (first: {first + bad})"
        warnings.warn(
            f"A scatter of {which} is singular: the ridge was raised from {similar:.1e} to {now_similar:.1e} for "
            f"similar pairs and from {dissimilar:.1e} to {now_dissimilar:.1e} for dissimilar pairs. {_advice(ridge)}",
            NumericalWarning,
            stacklevel=2,
        )


# ---- anchors ---------------------------------------------------------------------------------------------------------


def virtual_anchors(sums: PairSums, kappa: float) -> Tensor:
    """mu+ + kappa (mu+ - mu-), (M, D): an ideal document, beyond the mean relevant one and away from the others."""
    high, low = (sums.means / sums.lists[:, None, None]).unbind(1)
    return high + kappa * (high - low)


def _candidates(lists: TrainingLists, places: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The documents (M, C, D) that `draw_candidates` has drawn, and which of them there are (M, C)."""

    def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
        chosen, metrics, columns = found_in(batch, places)
        if len(chosen):
            at_top = _at_top(batch.labels, batch.offsets)
            counts = segment_sum(at_top.long(), batch.offsets)
            first = (counts.cumsum(0) - counts)[chosen]
            entries = at_top.nonzero().flatten()[first + numbers[metrics, columns]]
            into[0][metrics, columns] = own_rows(batch, entries)

    (rows,) = lists.total(write, into=(lists.zeros(*places.shape, lists.lists[:0].x.shape[1]),))
    return rows, places >= 0


def _best_anchors(lists: TrainingLists, factors: Tensor, sources: Tensor, candidates: Tensor, there: Tensor) -> Tensor:
    """The candidate whose distances rank the lists of its metric best, by mean NDCG@10; the first one of equals."""

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        chosen, metrics, _ = found_in(batch, sources)
        for metric in metrics.unique().tolist():
            rows, labels, offsets = take_lists(batch, chosen[metrics == metric])
            images = candidates[metric] @ factors[metric]
            distances = torch.cdist(images, rows @ factors[metric], compute_mode="donot_use_mm_for_euclid_dist")
            into[0][metric] += by_column(ndcg, -distances.T, labels, offsets, k=CUTOFF, empty=0.0).sum(0)

    (quality,) = lists.total(add, into=(lists.zeros(*candidates.shape[:2]),))
    best = first_largest(torch.where(there, quality, -1.0), dim=1)
    return candidates[torch.arange(len(best), device=best.device), best]

"""Local metrics in closed form: scatter of the drawn lists, geometric means, anchors.

Su, King & Lyu, "Learning to rank using localized geometric mean metrics", SIGIR 2017, Algorithm 2, first half. All sums
run over all processes, so every process draws, solves and chooses the same.
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, NotPositiveDefinite, NumericalWarning, check_choice, check_integer, check_number
from torchrank.functional.arrays import to_offsets
from torchrank.functional.columns import by_column, first_largest
from torchrank.functional.measures.graded import ndcg
from torchrank.functional.ragged import per_entry, segment_gram, segment_max, segment_sum
from torchrank.functional.spd import gmml_factor
from torchrank.solvers.local_metrics.scatter import add_scatter, corpus_sums, holds_corpus, moments
from torchrank.solvers.local_metrics.sources import (
    ListTable,
    add_table,
    draw_candidates,
    draw_sources,
    found_in,
    own_rows,
    take_lists,
)

KAPPAS = (1.0, 3.0, 10.0, 30.0)  # of the virtual anchors among the candidates of anchor="search"
CUTOFF = 10  # anchors are chosen by NDCG@10
AT_ONCE = 2**24  # numbers of a stack of matrices that is worked on at once: 128 MB in float64
RETRIES = 8  # a ridge that is too small is raised tenfold at most this many times
OFTEN = 2  # lists that are in more metrics than this, on average, have sums of their own, which are added up
KINDS = ("similar", "dissimilar")  # the two scatters of a metric


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


class Scatter(NamedTuple):
    """Sums over the source lists of each metric."""

    similar: Tensor  # (M, D, D) over pairs of high documents
    dissimilar: Tensor  # (M, D, D) over pairs of a high and a low document
    pairs: Tensor  # (M, 2) number of pairs of either kind
    means: Tensor  # (M, 2, D) mean of the high and mean of the low documents of each list, summed over the lists
    candidates: Tensor  # (M, C, D) documents that may become the anchor; not a sum
    varies: Tensor  # (D,) number of rows that differ from the reference row


def local_metrics(lists: TrainingLists, options: MetricOptions, reference: Tensor) -> LocalMetrics:
    """All metrics and anchors in two passes over the training lists, or three where anchors are chosen among documents.

    `reference (D,)` is any training row: a feature that equals it everywhere never varies.
    """
    width, generator = len(reference), torch.Generator().manual_seed(options.seed)
    (table,) = lists.total(
        lambda batch, into: add_table(batch, into[0], options.high), into=(lists.zeros(len(lists), 3),)
    )
    known = ListTable(*table.cpu().unbind(1))
    sources = draw_sources(known.highs, options.metrics, options.queries_per_metric, generator, lists.lists.classes)
    places, numbers = draw_candidates(
        known, sources, 0 if options.anchor == "virtual" else options.anchor_candidates, generator
    )
    sources, places, numbers = (part.to(lists.device) for part in (sources, places, numbers))
    count, whole = len(sources), holds_corpus(lists)
    shapes = ((count, width, width), (count, width, width), (count, 2), (count, 2, width))
    into = tuple(lists.zeros(*shape) for shape in (*shapes, (*places.shape, width), (width,)))

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        scatter = Scatter(*into)
        scatter.varies.add_(_variation(batch, reference))
        if not whole:
            _add_scatter(batch, scatter, sources, options.high)
        _add_candidates(batch, scatter.candidates, places, numbers)

    scatter = Scatter(*lists.total(add, into))
    if whole:
        shares = lists.zeros(count, len(lists)).scatter_add_(1, sources, torch.ones_like(sources).double())
        similar, dissimilar, pairs, means, _ = corpus_sums(lists, [shares], options.high)[0]
        scatter = scatter._replace(similar=similar, dissimilar=dissimilar, pairs=pairs, means=means)
    factors = solve_metrics(scatter, options)
    if options.anchor == "virtual":
        return LocalMetrics(factors, virtual_anchors(scatter, sources, options.kappa), sources)
    return LocalMetrics(factors, _best_anchors(lists, scatter, factors, sources, places, options), sources)


# ---- sums over the lists ---------------------------------------------------------------------------------------------


def _variation(batch: Batch, reference: Tensor) -> Tensor:
    """Number of rows (D,) that differ from the reference in each feature."""
    rows: Any = batch.x
    if batch.index is not None and not (batch.query == 0).any():
        rows = rows[:0]  # a shared corpus counts once
    return torch.ne(rows, reference).sum(0).double()


def _add_scatter(batch: Batch, scatter: Scatter, sources: Tensor, high: str) -> None:
    lists, metrics, _ = found_in(batch, sources)
    used, place = lists.unique(return_inverse=True)
    if len(lists) <= OFTEN * len(used):
        return _add_by_metric(batch, scatter, lists, metrics, high)
    step = max(1, AT_ONCE // batch.x.shape[1] ** 2)
    for begin in range(0, len(used), step):
        here = (place >= begin) & (place < begin + step)
        sums = _list_sums(*take_lists(batch, used[begin : begin + step]), high)
        for total, values in zip(scatter[:4], sums, strict=True):
            for some in here.nonzero().flatten().split(step):
                total.index_add_(0, metrics[some], values[place[some] - begin])
    return None


def _add_by_metric(batch: Batch, scatter: Scatter, lists: Tensor, metrics: Tensor, high: str) -> None:
    """All lists of a metric in one product, which costs least where no list is in many metrics."""
    for metric in metrics.unique().tolist():
        found = moments(*take_lists(batch, lists[metrics == metric]), high)
        add_scatter(found.rows, found.weights, scatter.similar[metric], scatter.dissimilar[metric])
        scatter.pairs[metric] += found.pairs.sum(0)
        scatter.means[metric] += found.means.sum(0)


def _list_sums(rows: Tensor, labels: Tensor, offsets: Tensor, high: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scatter of similar and of dissimilar pairs, their numbers, and the two means of each list."""
    found, count = moments(rows, labels, offsets, high), len(offsets) - 1
    sums = []
    for weights in found.weights.unbind(1):
        here = weights.nonzero().flatten()
        bounds = to_offsets(found.lists[here].bincount(minlength=count))
        sums.append(segment_gram(found.rows[here] * weights[here, None].sqrt(), bounds))
    return sums[0], sums[1], found.pairs, found.means


def _add_candidates(batch: Batch, rows: Tensor, places: Tensor, numbers: Tensor) -> None:
    lists, metrics, columns = found_in(batch, places)
    if len(lists):
        entries = _top_entries(batch.labels, batch.offsets, lists, numbers[metrics, columns])
        rows[metrics, columns] = own_rows(batch, entries)


def _top_entries(labels: Tensor, offsets: Tensor, lists: Tensor, numbers: Tensor) -> Tensor:
    """The entries with these numbers, counted from 0, among those of their list that have its largest label."""
    at_top = labels == per_entry(segment_max(labels, offsets), offsets, len(labels))
    counts = segment_sum(at_top.long(), offsets)
    return at_top.nonzero().flatten()[(counts.cumsum(0) - counts)[lists] + numbers]


# ---- metrics ---------------------------------------------------------------------------------------------------------


def solve_metrics(scatter: Scatter, options: MetricOptions) -> Tensor:
    """Factors (M, D, k) of all metrics, k the number of live features; features that never vary have zero rows."""
    live = scatter.varies.nonzero().flatten()
    if len(live) == 0:
        raise DataError("no feature varies over the training documents, so no metric can be learned: check the rows")
    pairs = torch.ones_like(scatter.pairs) if options.scatter == "sum" else scatter.pairs.clamp(min=1)
    count, width = len(pairs), len(scatter.varies)
    factors = scatter.similar.new_zeros(count, width, len(live))
    for some in torch.arange(count, device=live.device).split(max(1, AT_ONCE // len(live) ** 2 // 6)):
        similar, dissimilar = (
            sums[some][:, live][:, :, live] / number[some, None, None]
            for sums, number in zip(scatter[:2], pairs.unbind(1), strict=True)
        )
        similar, dissimilar = ridged(similar, dissimilar, options, int(some[0]), scatter.pairs[some])
        factors[some[:, None], live] = gmml_factor(similar, dissimilar, options.t)
    return factors


def ridged(
    similar: Tensor, dissimilar: Tensor, options: MetricOptions, first: int, pairs: Tensor
) -> tuple[Tensor, Tensor]:
    """Both scatters (B, D, D) plus a ridge on the diagonal. Where one is still not positive definite, both ridges are
    raised tenfold until it is, and a warning says so. For messages, `first` is the number of the first metric and
    `pairs (B, 2)` are the numbers of pairs."""
    width = similar.shape[-1]
    amounts = torch.full((2, len(similar)), float(options.ridge), dtype=torch.float64, device=similar.device)
    if options.ridge_mode == "relative" and options.ridge > 0:
        traces = torch.stack([sums.diagonal(dim1=-2, dim2=-1).sum(-1) for sums in (similar, dissimilar)]) / width
        amounts = torch.maximum(amounts * traces, 1e-12 * traces.amax(0)).clamp(min=torch.finfo(torch.float64).tiny)
    eye, asked = torch.eye(width, dtype=torch.float64, device=similar.device), amounts
    for _ in range(RETRIES + 1):
        found = torch.stack((similar, dissimilar)) + amounts[:, :, None, None] * eye
        failed = torch.linalg.cholesky_ex(found).info != 0  # (2, B)
        if not failed.any():
            _warn_of_raised(asked, amounts, first, options.ridge)
            return found[0], found[1]
        if options.ridge == 0:
            break
        amounts = torch.where(failed.any(0), amounts * 10, amounts)
    bad = int(failed.any(0).nonzero()[0])
    which = int(failed[:, bad].nonzero()[0])
    rank, number = int(torch.linalg.matrix_rank(found[which, bad])), int(pairs[bad, which])
    raise NotPositiveDefinite(
        f"{KINDS[which]}-pair scatter of metric {first + bad} is singular: rank {rank} of {width} from {number} pairs. "
        f"Raise ridge (now {options.ridge}) or draw more documents per metric (queries_per_metric)."
    )


def _warn_of_raised(asked: Tensor, used: Tensor, first: int, ridge: float) -> None:
    """One warning for all metrics whose ridges (2, B) had to be raised."""
    raised = (used > asked).any(0).nonzero().flatten()
    if len(raised) == 0:
        return
    bad = int(raised[0])
    amounts = zip(KINDS, asked[:, bad].tolist(), used[:, bad].tolist(), strict=True)
    changes = " and ".join(f"from {before:.1e} to {after:.1e} for {kind} pairs" for kind, before, after in amounts)
    where = f"metric {first + bad}" if len(raised) == 1 else f"{len(raised)} metrics (first: {first + bad})"
    warnings.warn(
        f"A scatter of {where} is singular: the ridge was raised {changes}. Raise ridge (now {ridge}) or draw more "
        "documents per metric (queries_per_metric).",
        NumericalWarning,
        stacklevel=2,
    )


# ---- anchors ---------------------------------------------------------------------------------------------------------


def virtual_anchors(scatter: Scatter, sources: Tensor, kappa: float) -> Tensor:
    """mu+ + kappa (mu+ - mu-), (M, D): an ideal document, beyond the mean relevant one and away from the others."""
    high, low = (scatter.means / sources.shape[1]).unbind(1)
    return high + kappa * (high - low)


def _best_anchors(
    lists: TrainingLists,
    scatter: Scatter,
    factors: Tensor,
    sources: Tensor,
    places: Tensor,
    options: MetricOptions,
) -> Tensor:
    """The candidate whose distances rank the lists of its metric best, by mean NDCG@10; the first one of equals."""
    candidates = scatter.candidates
    if options.anchor == "search":
        virtual = [virtual_anchors(scatter, sources, kappa) for kappa in KAPPAS]
        candidates = torch.cat((candidates, torch.stack(virtual, 1)), 1)
    there = pad(places >= 0, (0, candidates.shape[1] - places.shape[1]), value=True)

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        used, metrics, _ = found_in(batch, sources)
        for metric in metrics.unique().tolist():
            rows, labels, offsets = take_lists(batch, used[metrics == metric])
            here = candidates[metric] @ factors[metric]
            into[0][metric] += _anchor_quality(rows @ factors[metric], labels, offsets, here)

    (quality,) = lists.total(add, into=(lists.zeros(*candidates.shape[:2]),))
    quality = torch.where(there, quality, -1.0)
    best = first_largest(quality, dim=1)
    return candidates[torch.arange(len(best), device=best.device), best]


def _anchor_quality(rows: Tensor, labels: Tensor, offsets: Tensor, candidates: Tensor) -> Tensor:
    """NDCG@10 of the lists when they are ranked by the distance from each candidate, summed over the lists (C,)."""
    scores = -torch.cdist(candidates, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return by_column(ndcg, scores.T, labels, offsets, k=CUTOFF, empty=0.0).sum(0)

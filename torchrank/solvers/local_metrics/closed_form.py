"""Local metrics in closed form: scatter of the drawn lists, geometric means, anchors.

Su, King & Lyu, "Learning to rank using localized geometric mean metrics", SIGIR 2017, Algorithm 2, first half. Sums go
through `total(fn, into)`, which calls `fn(batch, into)` for the training lists of all processes and adds up, so every
process draws, solves and chooses the same.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.functional.measures import ndcg
from torchrank.functional.ragged import list_ids, per_entry, segment_gram, segment_max, segment_sum, to_offsets
from torchrank.functional.spd import gmml_factor
from torchrank.solvers.local_metrics.sources import (
    ListTable,
    add_table,
    draw_candidates,
    draw_sources,
    found_in,
    high_and_low,
    own_rows,
    take_lists,
)

KAPPAS = (1.0, 3.0, 10.0, 30.0)  # of the virtual anchors among the candidates of anchor="search"
CUTOFF = 10  # anchors are chosen by NDCG@10
AT_ONCE = 2**24  # entries of matrices worked on at once: 128 MB in float64
RETRIES = 8

Total = Callable[..., Any]


@dataclass(frozen=True)
class MetricOptions:
    """How metrics and anchors are made. `LGMML` says what the options mean."""

    metrics: int = 32
    queries_per_metric: int | None = 40
    high: str = "half"
    t: float = 0.5
    ridge: float = 0.1
    ridge_mode: str = "relative"
    scatter: str = "mean"
    solver: str = "auto"
    anchor: str = "virtual"
    kappa: float = 10.0
    anchor_candidates: int = 30
    exclude_self: bool = False
    distance: str = "mahalanobis"
    drop_query_constant: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {
            "high": ("half", "max", "positive"),
            "ridge_mode": ("relative", "absolute"),
            "scatter": ("mean", "sum"),
            "anchor": ("virtual", "best", "search"),
            "distance": ("mahalanobis", "eq12"),
        }
        for name, allowed in choices.items():
            if vars(self)[name] not in allowed:
                raise ValueError(f"unknown {name}={vars(self)[name]!r}: choose one of {', '.join(allowed)}")
        if not 0 <= self.t <= 1:
            raise ValueError(f"t={self.t} is not between 0 (inverse of the similar scatter) and 1 (dissimilar scatter)")
        for name in ("metrics", "queries_per_metric", "anchor_candidates"):
            if vars(self)[name] is not None and vars(self)[name] < 1:
                raise ValueError(f"{name}={vars(self)[name]} must be at least 1")
        if self.ridge < 0:
            raise ValueError(f"ridge={self.ridge} must not be negative")


class LocalMetrics(NamedTuple):
    """M metrics M_r = F_r F_r', the anchor of each, and the training lists each was learned from."""

    factors: Tensor  # (M, D, k) float64
    anchors: Tensor  # (M, D)
    sources: Tensor  # (M, lists)


class Scatter(NamedTuple):
    """Sums over the source lists of each metric."""

    similar: Tensor  # (M, D, D) over pairs of high documents
    dissimilar: Tensor  # (M, D, D) over pairs of a high and a low document
    pairs: Tensor  # (M, 2) number of either
    means: Tensor  # (M, 2, D) mean of the high and of the low documents of each list
    candidates: Tensor  # (M, C, D) documents that may become the anchor
    varies: Tensor  # (2, D) rows unlike the reference row, and entries unlike the first one of their list


def local_metrics(
    options: MetricOptions, total: Total, num_lists: int, reference: Tensor, classes: Tensor | None = None
) -> LocalMetrics:
    """All metrics and anchors in two passes over the training lists, three where anchors are chosen.

    `reference (D,)` is any training row, by which features are found that never vary. `classes (num_lists,)`, of the
    queries, if they have any.
    """
    width, device = len(reference), reference.device
    generator = torch.Generator().manual_seed(options.seed)
    (table,) = total(lambda batch, into: add_table(batch, into[0], options.high), _zeros(device, (num_lists, 3)))
    lists = ListTable(*table.cpu().unbind(1))
    sources = draw_sources(lists.highs, options.metrics, options.queries_per_metric, generator, classes)
    places, numbers = draw_candidates(
        lists, sources, 0 if options.anchor == "virtual" else options.anchor_candidates, generator
    )
    sources, places, numbers = (part.to(device) for part in (sources, places, numbers))
    count = len(sources)
    shapes = ((count, width, width), (count, width, width), (count, 2), (count, 2, width))
    into = _zeros(device, *shapes, (*places.shape, width), (2, width))

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        scatter = Scatter(*into)
        scatter.varies.add_(_variation(batch, reference, options.drop_query_constant))
        _add_scatter(batch, scatter, sources, options.high)
        _add_candidates(batch, scatter.candidates, places, numbers)

    scatter = Scatter(*total(add, into))
    factors = solve_metrics(scatter, options)
    if options.anchor == "virtual":
        return LocalMetrics(factors, virtual_anchors(scatter, sources, options.kappa), sources)
    return LocalMetrics(factors, _best_anchors(scatter, factors, sources, places, numbers, options, total), sources)


def _zeros(device: torch.device, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes)


# ---- sums over the lists ---------------------------------------------------------------------------------------------


def _variation(batch: Batch, reference: Tensor, within_lists: bool) -> Tensor:
    """Number of rows (2, D) unlike the reference, and of entries unlike the first one of their list if this is asked
    for, since the entries of a shared corpus are far more than its rows."""
    rows: Any = batch.x
    if batch.index is not None and not (batch.query == 0).any():
        rows = rows[:0]  # a shared corpus is looked at once
    unlike = (rows != reference).sum(0).double()
    if not within_lists or len(batch.labels) == 0:
        return unlike.expand(2, -1)
    rows = batch.flat().x
    first = rows[batch.offsets[:-1].clamp(max=len(rows) - 1)]
    within = (rows != per_entry(first, batch.offsets, len(batch.labels))).sum(0).double()
    return torch.stack((unlike, within))


def _add_scatter(batch: Batch, scatter: Scatter, sources: Tensor, high: str) -> None:
    lists, metrics, _ = found_in(batch, sources)
    used, place = lists.unique(return_inverse=True)
    step = max(1, AT_ONCE // batch.x.shape[1] ** 2)
    for begin in range(0, len(used), step):
        here = (place >= begin) & (place < begin + step)
        sums = _list_sums(*take_lists(batch, used[begin : begin + step]), high)
        for total, values in zip(scatter[:4], sums, strict=True):
            for some in here.nonzero().flatten().split(step):
                total.index_add_(0, metrics[some], values[place[some] - begin])


def _list_sums(rows: Tensor, labels: Tensor, offsets: Tensor, high: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scatter of similar and of dissimilar pairs, their numbers and the two means of each list, no pair formed: with A
    and B the high and the low rows minus the mean of the high ones S = n+ A'A, D = n- A'A + n+ B'B, for A sums to 0."""
    ids = list_ids(offsets, len(rows))
    (high_rows, high_ids, highs, high_bounds), (low_rows, low_ids, lows, low_bounds) = (
        (rows[mask], ids[mask], counts, to_offsets(counts))
        for mask in high_and_low(labels, offsets, high)
        for counts in (segment_sum(mask.long(), offsets),)
    )
    high_mean = segment_sum(high_rows, high_bounds) / highs[:, None].clamp(min=1)
    low_mean = segment_sum(low_rows, low_bounds) / lows[:, None].clamp(min=1)
    inner = segment_gram(high_rows - high_mean[high_ids], high_bounds)
    outer = segment_gram(low_rows - high_mean[low_ids], low_bounds)
    similar, dissimilar = highs[:, None, None] * inner, lows[:, None, None] * inner + highs[:, None, None] * outer
    pairs = torch.stack((highs * (highs - 1) // 2, highs * lows), 1).double()
    return similar, dissimilar, pairs, torch.stack((high_mean, low_mean), 1)


def _add_candidates(batch: Batch, rows: Tensor, places: Tensor, numbers: Tensor) -> None:
    lists, metrics, columns = found_in(batch, places)
    if len(lists):
        entries = _top_entries(batch.labels, batch.offsets, lists, numbers[metrics, columns])
        rows[metrics, columns] = own_rows(batch, entries)


def _top_entries(labels: Tensor, offsets: Tensor, lists: Tensor, numbers: Tensor) -> Tensor:
    """The entries with these numbers, from 0, among those of their list that have its largest label."""
    at_top = labels == per_entry(segment_max(labels, offsets), offsets, len(labels))
    counts = segment_sum(at_top.long(), offsets)
    return at_top.nonzero().flatten()[(counts.cumsum(0) - counts)[lists] + numbers]


# ---- metrics ---------------------------------------------------------------------------------------------------------


def solve_metrics(scatter: Scatter, options: MetricOptions) -> Tensor:
    """Factors (M, D, k) of all metrics, k the number of live features; features that never vary have zero rows."""
    never, never_within = scatter.varies == 0
    live = (~(never | never_within if options.drop_query_constant else never)).nonzero().flatten()
    if len(live) == 0:
        raise ValueError("no feature varies over the training documents: there is nothing to learn a metric from")
    pairs = torch.ones_like(scatter.pairs) if options.scatter == "sum" else scatter.pairs.clamp(min=1)
    count, width = len(pairs), len(never)
    factors = scatter.similar.new_zeros(count, width, len(live))
    for some in torch.arange(count, device=live.device).split(max(1, AT_ONCE // len(live) ** 2 // 6)):
        similar, dissimilar = (
            sums[some][:, live][:, :, live] / number[some, None, None]
            for sums, number in zip(scatter[:2], pairs.unbind(1), strict=True)
        )
        similar, dissimilar = ridged(similar, dissimilar, options, int(some[0]), scatter.pairs[some])
        factors[some[:, None], live] = gmml_factor(similar, dissimilar, options.t, method=options.solver)
    return factors if options.distance == "mahalanobis" else factors @ factors.mT


def ridged(
    similar: Tensor, dissimilar: Tensor, options: MetricOptions, first: int, pairs: Tensor
) -> tuple[Tensor, Tensor]:
    """Both scatters (B, D, D) with ridge I on the diagonal; where that is not positive definite, with 10 times more and
    a warning. `first` is the number of the first metric, `pairs (B, 2)` its pairs: for messages."""
    width = similar.shape[-1]
    amounts = torch.full((2, len(similar)), float(options.ridge), dtype=torch.float64, device=similar.device)
    if options.ridge_mode == "relative" and options.ridge > 0:
        traces = torch.stack([sums.diagonal(dim1=-2, dim2=-1).sum(-1) for sums in (similar, dissimilar)]) / width
        amounts = torch.maximum(amounts * traces, 1e-12 * traces.amax(0)).clamp(min=torch.finfo(torch.float64).tiny)
    eye = torch.eye(width, dtype=torch.float64, device=similar.device)
    for _ in range(RETRIES + 1):
        found = torch.stack((similar, dissimilar)) + amounts[:, :, None, None] * eye
        failed = (torch.linalg.cholesky_ex(found).info != 0).any(0)
        if not failed.any():
            return found[0], found[1]
        bad = int(failed.nonzero()[0])
        if options.ridge == 0:
            break
        warnings.warn(f"scatter of metric {first + bad} is singular: its ridge is raised 10 times", stacklevel=2)
        amounts = torch.where(failed, amounts * 10, amounts)
    which = int(torch.linalg.cholesky_ex(found[0, bad]).info == 0)
    rank, number = int(torch.linalg.matrix_rank(found[which, bad])), int(pairs[bad, which])
    raise ValueError(
        f"{('similar', 'dissimilar')[which]}-pair scatter of metric {first + bad} is singular: rank {rank} of {width} "
        f"from {number} pairs. Raise "
        f"ridge (now {options.ridge}) or draw more documents per metric (queries_per_metric)."
    )


# ---- anchors ---------------------------------------------------------------------------------------------------------


def virtual_anchors(scatter: Scatter, sources: Tensor, kappa: float) -> Tensor:
    """mu+ + kappa (mu+ - mu-), (M, D): the ideal document lies beyond the mean relevant one, away from the others."""
    high, low = (scatter.means / sources.shape[1]).unbind(1)
    return high + kappa * (high - low)


def _best_anchors(
    scatter: Scatter,
    factors: Tensor,
    sources: Tensor,
    places: Tensor,
    numbers: Tensor,
    options: MetricOptions,
    total: Total,
) -> Tensor:
    """The candidate from which the lists of its metric are ranked best, by the mean NDCG@10; of equals the first."""
    candidates = scatter.candidates
    if options.anchor == "search":
        virtual = [virtual_anchors(scatter, sources, kappa) for kappa in KAPPAS]
        candidates = torch.cat((candidates, torch.stack(virtual, 1)), 1)
    there = pad(places >= 0, (0, candidates.shape[1] - places.shape[1]), value=True)

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        lists, metrics, _ = found_in(batch, sources)
        for metric in metrics.unique().tolist():
            used = lists[metrics == metric]
            rows, labels, offsets = take_lists(batch, used)
            here = candidates[metric] @ factors[metric]
            own = _own_entries(labels, offsets, batch.query[used], places[metric], numbers[metric])
            own = pad(own & options.exclude_self, (0, 0, 0, len(here) - len(own)))
            into[0][metric] += _anchor_quality(rows @ factors[metric], labels, offsets, here, own)

    (quality,) = total(add, _zeros(candidates.device, tuple(candidates.shape[:2])))
    quality = torch.where(there, quality, -1.0)
    best = (quality >= quality.amax(1, keepdim=True) - 1e-12).int().argmax(1)
    return candidates[torch.arange(len(best), device=best.device), best]


def _own_entries(labels: Tensor, offsets: Tensor, queries: Tensor, places: Tensor, numbers: Tensor) -> Tensor:
    """(C, N), True where the entry is the candidate itself."""
    match = places[:, None] == queries
    here = match.any(1)
    entries = _top_entries(labels, offsets, match.int().argmax(1), torch.where(here, numbers, 0))
    return here[:, None] & (entries[:, None] == torch.arange(len(labels), device=labels.device))


def _anchor_quality(rows: Tensor, labels: Tensor, offsets: Tensor, candidates: Tensor, left_out: Tensor) -> Tensor:
    """Sum over the lists of NDCG@10 when they are ranked by the distance from each candidate, (C,).

    Entries that are `left_out (C, N)` get grade 0 and the last rank, which is the same as not being there."""
    scores = -torch.cdist(candidates, rows, compute_mode="donot_use_mm_for_euclid_dist")
    scores = torch.where(left_out, scores.amin() - 1, scores)
    grades = torch.where(left_out, 0, labels)
    starts = torch.arange(len(scores), device=rows.device)[:, None] * len(rows) + offsets[:-1]
    bounds = pad(starts.flatten(), (0, 1), value=scores.numel())
    return ndcg(scores.flatten(), grades.flatten(), bounds, k=CUTOFF, empty=0.0).view(len(scores), -1).sum(1)

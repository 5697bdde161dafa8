"""One fit chooses its settings by itself: transform, number of groups, shrinkage, t, ridge, gate and kappa.

Every setting is measured by the NDCG@10 of each training list, under metrics that are learned without the fold of that
list, and of each validation list, under metrics of all training lists. Sums without a fold are the sums of all lists
minus those of the fold. The rule: take the best setting with the fewest groups; leave it only for a setting whose mean
gain over it, list by list, exceeds one standard error of that gain; then take the largest gain. More groups are tried
with the transform and the ridge of the best setting, and all of that in the linear limit; the soft gate and finite
kappas are tried for the chosen setting only. So there are at most 100 settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sets import RankingSet
from torchrank.data.training import TrainingLists
from torchrank.data.transforms import Auto, OneOf, Transform
from torchrank.errors import DataError, check_choice, check_integer, check_number
from torchrank.functional import ndcg
from torchrank.functional.ragged import SAME, by_column, list_ids, per_entry
from torchrank.rankers.lgmml.far_anchors import deviations_of, far_scores
from torchrank.solvers.local_metrics.drawn_metrics import CUTOFF, MetricOptions
from torchrank.solvers.local_metrics.groups import (
    Averages,
    averages,
    canonical_order,
    find_centres,
    nearest_centre,
    points_of,
    query_points,
    shares_of,
    shrink,
    solve_factors,
    solve_spectra,
    sum_groups,
    within,
)
from torchrank.solvers.local_metrics.scatter import PairSums

FOLDS = 5
DOCUMENTS = 200_000  # the choice is made on a sample of lists with about so many documents
FORMS = 2**32  # with query vectors: documents of the sample times the square of the number of features
LISTS_PER_GROUP = 20  # on average, at least
CANCELLED = 1e-4  # share of the sizes below which a squared distance is not a difference of them
NUMBERS = 2**26  # in the sums of all groups and folds: 512 MB

Score = Callable[[Any, Batch, Tensor], Tensor]  # (model, batch, groups of its lists) -> scores (N, settings)


@dataclass(frozen=True)
class Setting:
    """What a fit chooses: a transform by its name, and the options of the metrics."""

    transform: str
    groups: int
    alpha: float
    t: float
    ridge: float
    gate: str = "hard"
    kappa: float = torch.inf


class Grid(NamedTuple):
    """The values to choose from; where the user has given an option, it is the only value."""

    groups: Sequence[int] = (1, 2, 3, 4, 6, 8, 12)
    alpha: Sequence[float] = (10.0, 50.0, 200.0)
    t: Sequence[float] = (0.0, 0.25, 0.5)
    ridge: Sequence[float] = (0.001, 0.01, 0.1, 1.0)
    gate: Sequence[str] = ("hard", "soft")
    kappa: Sequence[float] = (torch.inf, 3.0, 10.0, 30.0, 100.0)


def check_given(given: Mapping[str, Any]) -> None:
    """Refuse options, by the names of `Grid`, that are neither None nor possible."""
    check_integer(">= 1", num_groups=given["groups"])
    check_choice((None, "hard", "soft"), gate=given["gate"])
    check_number(">= 0 and <= 1", t=given["t"])
    check_number(">= 0", ridge=given["ridge"])
    for name in ("alpha", "kappa"):
        check_number(">= 0", **{name: None if given[name] == torch.inf else given[name]})


class Choice(NamedTuple):
    """The chosen setting, and what to tell about the choice."""

    setting: Setting
    findings: dict[str, Any]


def draw_sample(points: Tensor, lengths: Tensor, seed: int, most: int) -> tuple[Tensor, Tensor]:
    """A sample of lists with at most so many documents (and one list more).

    Returns:
        Positions (Q',) of the lists, ascending, and the fold (Q',) of each. Which lists these are does not depend on
        the order in which their points (Q, D) are given.

    >>> points, lengths = torch.tensor([[3.0], [1.0], [2.0]]), torch.tensor([5, 5, 5])
    >>> draw_sample(points, lengths, seed=0, most=100)[0]
    tensor([0, 1, 2])
    """
    order = canonical_order(points)[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))]
    taken = int((lengths[order].cumsum(0) < most).sum()) + 1
    chosen, places = order[:taken].sort()
    return chosen, places % FOLDS


# ---- the lists through one transform ---------------------------------------------------------------------------------


class Division(NamedTuple):
    """Training and validation lists divided into groups, with the sums over each group and fold."""

    centres: Tensor  # (C, D)
    own: list[Tensor]  # group of each training list, and of each validation list
    sums: PairSums  # (C * FOLDS), one group after the other
    width: Tensor  # variance of the points of a group

    def learned_without(self, fold: int) -> PairSums:
        """The sums over each group without a fold; over all lists for fold = FOLDS."""
        parts = [part.unflatten(0, (-1, FOLDS)) for part in self.sums]
        whole = PairSums(*(part.sum(1) for part in parts))
        return whole if fold == FOLDS else whole.without(PairSums(*(part[:, fold] for part in parts)))


class Trial:
    """The lists of a choice through one transform, on which settings are measured."""

    def __init__(
        self, transform: str, train: TrainingLists, val: TrainingLists | None, folds: Tensor, options: MetricOptions
    ):
        self.transform, self.options = transform, options
        self.lists, self.folds = [train], [folds.to(train.device)]
        if val is not None:
            self.lists.append(val)
            self.folds.append(torch.full((len(val),), FOLDS, device=train.device))
        self.points = [points_of(lists) for lists in self.lists]
        self.by_query = train.lists.has_queries  # documents are scored by distances from query vectors

    def divide(self, numbers: Sequence[int]) -> dict[int, Division]:
        """The lists in so many groups, for each of the numbers, with all sums in one pass."""
        centres = [find_centres(self.points[0], number, self.options.seed) for number in numbers]
        own = [[nearest_centre(points, each) for points in self.points] for each in centres]
        cells = [groups[0] * FOLDS + self.folds[0] for groups in own]
        sums = sum_groups(self.lists[0], cells, [len(each) * FOLDS for each in centres], self.options.high)
        widths = [within(self.points[0], each) for each in centres]
        return {len(parts[0]): Division(*parts) for parts in zip(centres, own, sums, widths, strict=True)}

    def averages(self, division: Division, alpha: float) -> list[Averages]:
        """The averages of the groups that are learned without each fold, and from all lists if there is validation."""
        sums = [division.learned_without(fold) for fold in range(FOLDS + len(self.lists) - 1)]
        return [shrink(each, averages(each.added()), alpha) for each in sums]

    def measure(self, division: Division, models: Sequence[Any], score: Score) -> Tensor:
        """NDCG@10 (Q, settings) of all lists, each scored by the model of its fold."""
        return torch.cat([self._measure(place, division.own[place], models, score) for place in range(len(self.lists))])

    def _measure(self, place: int, own: Tensor, models: Sequence[Any], score: Score) -> Tensor:
        lists, folds = self.lists[place], self.folds[place]
        columns = score(models[0], lists.lists[:0], own[:0]).shape[1]

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            here = folds[batch.query]
            scores = torch.zeros(len(batch.labels), columns, dtype=torch.float64, device=batch.device)
            for fold in torch.unique(here).tolist():
                some, entries = batch.take((here == fold).nonzero().flatten())
                scores[entries] = score(models[fold], some, own[some.query])
            into[0][batch.query] = by_column(ndcg, scores, batch.labels, batch.offsets, k=CUTOFF)

        values: Tensor = lists.total(write, into=(lists.zeros(len(lists), columns),))[0]
        return values

    def try_all(
        self, division: Division, alphas: Sequence[float], ts: Sequence[float], ridges: Sequence[float]
    ) -> dict[Setting, Tensor]:
        """NDCG@10 (Q,) by the settings with these alpha, ridge and t, in the linear limit, with the hard gate."""
        averages = (self.averages(division, alpha) for alpha in alphas)
        tried = ([self._metrics(each, ts, ridge) for each in found] for found in averages for ridge in ridges)
        if self.by_query:
            values = torch.cat([self.measure(division, models, distance_scores) for models in tried], 1)
        else:  # the rows are read once for all slopes
            values = self.measure(division, [torch.cat(each, 1) for each in zip(*tried, strict=True)], linear_scores)
        settings = [
            Setting(self.transform, len(division.centres), alpha, t, ridge)
            for alpha in alphas
            for ridge in ridges
            for t in ts
        ]
        return dict(zip(settings, values.unbind(1), strict=True))

    def _metrics(self, found: Averages, ts: Sequence[float], ridge: float) -> Any:
        """Slopes (C, T, D) of linear scores; or for distances from query vectors what all t share, and the powers
        (C, k, T) of its values."""
        spectra = solve_spectra(found, replace(self.options, ridge=ridge))
        if not self.by_query:
            return spectra.directions(found.delta, ts)
        return spectra.basis, torch.stack([spectra.values**t for t in ts], 2)

    def try_soft(self, division: Division, setting: Setting) -> Tensor:
        """NDCG@10 (Q,) with the soft gate: the scores by all groups, each of deviation 1, mixed by the shares."""
        averages = self.averages(division, setting.alpha)
        metrics = [self._metrics(found, [setting.t], setting.ridge) for found in averages]

        def parts(metrics: Sequence[Any], batch: Batch) -> tuple[Tensor, Tensor]:
            """Scores (N, models * C) by each group of each model, and the shares of the lists in the groups."""
            found = self._by_each(metrics, batch, len(division.centres))
            shares = shares_of(query_points(batch), division.centres, division.width)
            return found, per_entry(shares, batch.offsets, len(found)).repeat(1, len(metrics))

        deviations = deviations_of(self.lists[0], partial(parts, metrics)).chunk(len(metrics))

        def score(model: tuple[Any, Tensor], batch: Batch, own: Tensor) -> Tensor:
            found, shares = parts(model[:1], batch)
            return (shares * found / model[1]).sum(1, keepdim=True)

        return self.measure(division, list(zip(metrics, deviations, strict=True)), score)[:, 0]

    def _by_each(self, models: Sequence[Any], batch: Batch, groups: int) -> Tensor:
        """Scores (N, models * C) of all entries by each group of each model."""
        if not self.by_query:
            return batch.dense.double() @ torch.cat(list(models))[:, 0].T
        lists = torch.zeros_like(batch.query)
        return torch.cat([distance_scores(each, batch, lists + group) for each in models for group in range(groups)], 1)

    def try_finite(self, division: Division, setting: Setting, kappas: Sequence[float]) -> dict[Setting, Tensor]:
        """NDCG@10 (Q,) of the setting with anchors at finite distances."""
        options = replace(self.options, ridge=setting.ridge, t=setting.t)
        found = self.averages(division, setting.alpha)
        models = [(each, solve_factors(each, options)) for each in found]
        reach = torch.tensor(list(kappas), dtype=torch.float64, device=self.points[0].device)

        def near(model: tuple[Averages, Tensor], group: int, rows: Tensor) -> Tensor:
            each, factors = model
            images, delta = (rows - each.high[group]) @ factors[group], each.delta[group] @ factors[group]
            size = torch.linalg.vector_norm(delta)
            along = images @ delta / torch.where(size > 0, size, 1.0)
            return far_scores(along[:, None], images.square().sum(1, keepdim=True), reach * size)

        def score(model: tuple[Averages, Tensor], batch: Batch, own: Tensor) -> Tensor:
            return by_group(lambda group, rows: near(model, group, rows), batch.dense, batch, own, len(kappas))

        values = self.measure(division, models, score)
        settings = [replace(setting, kappa=kappa) for kappa in kappas]
        return dict(zip(settings, values.unbind(1), strict=True))


def by_group(score: Callable[[int, Tensor], Tensor], rows: Tensor, batch: Batch, own: Tensor, columns: int) -> Tensor:
    """Scores (N, columns) of the rows (N, D) of a batch, by the groups `own (Q,)` of its lists."""
    scores = rows.new_zeros(len(rows), columns, dtype=torch.float64)
    groups = per_entry(own, batch.offsets, len(rows))
    for group in torch.unique(own).tolist():
        here = (groups == group).nonzero().flatten()
        scores[here] = score(group, rows.index_select(0, here).double())
    return scores


def linear_scores(slopes: Tensor, batch: Batch, own: Tensor) -> Tensor:
    """Scores (N, T) by the slopes (C, T, D) of the groups `own (Q,)`."""
    return by_group(lambda group, rows: rows @ slopes[group].T, batch.dense, batch, own, slopes.shape[1])


def distance_scores(metrics: tuple[Tensor, Tensor], batch: Batch, own: Tensor) -> Tensor:
    """Minus the distances (N, T) from the query vectors, by the metrics B diag(powers_t) B' of the groups `own (Q,)`.

    `metrics` are B (C, D, k) and the powers (C, k, T).
    """
    basis, powers = metrics
    scores = powers.new_zeros(len(batch.labels), powers.shape[2])
    for group in torch.unique(own).tolist():
        some, entries = batch.take((own == group).nonzero().flatten())
        squares = _shared_squares if shares_rows(some) else _own_squares
        scores[entries] = -squares(some, basis[group], powers[group]).sqrt()
    return scores


def shares_rows(batch: Batch) -> bool:
    """Whether the lists hold a large part of the rows of a dense corpus each, so that all rows are used many times."""
    return (
        isinstance(batch.x, Tensor)
        and batch.index is not None
        and len(batch.x) * len(batch.query) <= 4 * len(batch.index)
    )


def _own_squares(batch: Batch, basis: Tensor, powers: Tensor) -> Tensor:
    """Squared distances (N, T) from the query vectors."""
    images, targets = batch.dense.double() @ basis, query_points(batch) @ basis
    return (images - per_entry(targets, batch.offsets, len(images))).square_() @ powers


def _shared_squares(batch: Batch, basis: Tensor, powers: Tensor) -> Tensor:
    """The same as |a|^2 + |b|^2 - 2 ab, with the image of each row of a corpus once."""
    images, targets = batch.x.double() @ basis, query_points(batch) @ basis  # type: ignore[union-attr]
    lists, rows = list_ids(batch.offsets, len(batch.labels)), batch.index
    products = images @ (targets[:, :, None] * powers).transpose(0, 1).flatten(1)  # (n, Q T)
    sizes = (images.square() @ powers)[rows] + (targets.square() @ powers)[lists]
    squares = sizes - 2 * products.view(len(images), len(targets), -1)[rows, lists]
    lost = (squares < CANCELLED * sizes).any(1).nonzero().flatten()  # too near for a difference of large numbers
    squares[lost] = (images[rows[lost]] - targets[lists[lost]]).square() @ powers  # type: ignore[index]
    return squares


# ---- the choice ------------------------------------------------------------------------------------------------------


def chosen_by_fit(transform: Transform) -> Transform:
    """The transform, where it is "auto" with the choice left to `settle`."""
    return OneOf(transform.num_features, ("standard", "quantile")) if isinstance(transform, Auto) else transform


def settle(
    transform: Transform,
    given: Mapping[str, Any],
    options: MetricOptions,
    train: RankingSet,
    val: RankingSet | None,
    prepared: Callable[[RankingSet, Transform], TrainingLists],
) -> Choice:
    """The setting of a fit: what is `given`, by the names of `Grid` and not None, and a choice of everything else. If
    the transform is `OneOf` several, its `chosen` is set.

    `prepared(lists, transform)` are lists through a fitted transform, divided among the processes.
    """
    auto = transform if isinstance(transform, OneOf) else None
    grid = _grid(given, train.has_queries)
    if auto is None and all(len(values) == 1 for values in grid):
        return Choice(Setting("given", **{name: values[0] for name, values in grid._asdict().items()}), {})
    most = min(DOCUMENTS, FORMS // train.num_features**2) if train.has_queries else DOCUMENTS
    sample, folds = _sampled(train, options.seed, most)
    other = None if val is None else _sampled(val, options.seed, most)[0]
    trials = [
        Trial(name, prepared(sample, each), None if other is None else prepared(other, each), folds, options)
        for name, each in ({"given": transform} if auto is None else dict(auto.options)).items()
    ]
    choice = choose_setting(trials, grid)
    if auto is not None:
        auto.chosen = choice.setting.transform
    return choice


def _grid(given: Mapping[str, Any], has_queries: bool) -> Grid:
    """What is not given, or does not matter."""
    fixed: dict[str, Any] = {name: (value,) for name, value in given.items() if value is not None}
    if fixed.get("groups") == (1,):
        fixed |= {"alpha": (torch.inf,), "gate": ("hard",)}
    if has_queries:
        fixed["kappa"] = (torch.inf,)
    return Grid(**fixed)


def _sampled(lists: RankingSet, seed: int, most: int) -> tuple[RankingSet, Tensor]:
    """A sample of the lists with at most so many documents, and the fold of each of them."""
    positions, folds = draw_sample(points_of(TrainingLists(lists)), torch.from_numpy(lists.lengths), seed, most)
    return lists if len(positions) == len(lists) else lists.subset(positions), folds


def choose_setting(trials: Sequence[Trial], grid: Grid) -> Choice:
    """The setting by the rule above, and what to tell about it."""
    fewest, *more = grid.groups
    first = {trial.transform: trial.divide([fewest]).popitem()[1] for trial in trials}
    alphas = grid.alpha if fewest > 1 else (torch.inf,)
    values = {
        setting: found
        for trial in trials
        for setting, found in trial.try_all(first[trial.transform], alphas, grid.t, grid.ridge).items()
    }
    base = _best(values)
    trial = next(each for each in trials if each.transform == base.transform)
    allowed = _allowed(more, trial)
    divisions = trial.divide(allowed) if allowed else {}
    for division in divisions.values():
        values |= trial.try_all(division, grid.alpha, grid.t, [base.ridge])
    divisions[base.groups] = first[base.transform]
    hard = chosen = _better(base, values)
    division, tried = divisions[hard.groups], dict(values)
    if hard.groups > 1 and "soft" in grid.gate:
        soft = replace(hard, gate="soft")
        tried[soft] = trial.try_soft(division, hard)
        chosen = _better(hard, {each: tried[each] for each in (hard, soft)}) if "hard" in grid.gate else soft
    if torch.inf not in grid.kappa and chosen.gate == "soft":
        chosen = replace(chosen, kappa=grid.kappa[0])  # as it was given
    elif finite := [kappa for kappa in grid.kappa if kappa != torch.inf and chosen.gate == "hard"]:
        found = trial.try_finite(division, chosen, finite)
        tried |= found
        chosen = _better(chosen, {chosen: tried[chosen], **found}) if torch.inf in grid.kappa else _best(found)
    told = _told(trial, chosen, len(tried))
    if more:
        gain, error = _gain(values[hard], values[base])
        told["locality"] = (
            f"{hard.groups} groups gain {gain:+.4f} ±{error:.4f} over the best setting with {fewest}"
            if hard.groups > fewest
            else f"no number of groups gains more than one standard error over {fewest}"
        )
    return Choice(chosen, told)


def _allowed(groups: Sequence[int], trial: Trial) -> list[int]:
    """The numbers of groups for which there are enough lists, and memory for the sums."""
    lists, width = trial.points[0].shape
    small = [number for number in groups if number * LISTS_PER_GROUP <= lists]
    while small and 2 * FOLDS * sum(small) * width**2 > NUMBERS:
        small.pop()
    return small


def _best(values: dict[Setting, Tensor]) -> Setting:
    """The setting with the largest mean; the first of equals."""
    table = torch.stack(list(values.values()))
    table = table[:, ~table.isnan().any(0)]
    if table.shape[1] == 0:
        raise DataError("no list has a relevant document, so no setting can be chosen: check the labels")
    means = table.mean(1)
    return list(values)[int((means >= means.max() - SAME).to(torch.int8).argmax())]


def _gain(values: Tensor, base: Tensor) -> tuple[float, float]:
    """The mean gain over the base, list by list, and its standard error."""
    gains = values - base
    gains = gains[~gains.isnan()]
    return float(gains.mean()), float(gains.std() / len(gains) ** 0.5) if len(gains) > 1 else torch.inf


def _better(base: Setting, values: dict[Setting, Tensor]) -> Setting:
    """The setting with the largest gain over the base among those that gain more than one standard error, or it."""
    gains = {setting: _gain(each, values[base]) for setting, each in values.items() if setting != base}
    sure = {setting: gain for setting, (gain, error) in gains.items() if gain > error}
    return max(sure, key=sure.__getitem__) if sure else base


def _told(trial: Trial, chosen: Setting, tried: int) -> dict[str, Any]:
    train, *val = trial.lists
    by = f"{len(train)} training lists out of fold" + (f" and {len(val[0])} validation lists" if val else "")
    known = {name: "inf" if value == torch.inf else value for name, value in asdict(chosen).items()}  # as JSON has it
    told: dict[str, Any] = {"chosen": known, "chosen by": f"NDCG@{CUTOFF} of {by}, best of {tried} settings"}
    if val:
        told["validation"] = "optimistic: the settings were chosen by these lists too"
    return told

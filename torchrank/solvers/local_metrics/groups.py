"""Metrics of groups of similar queries: k-means, sums over each group, and averages shrunk towards those of all lists.

Su, King & Lyu (SIGIR 2017) learn a metric "from a part of examples space". Here a part is a group of queries whose
documents lie in similar places. Nothing of it looks at a label except the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError
from torchrank.functional.spd import FORMED, gmml_factor
from torchrank.solvers.linear.scores import query_vectors
from torchrank.solvers.local_metrics.drawn_metrics import MetricOptions, ridged
from torchrank.solvers.local_metrics.scatter import Moments, add_scatter, corpus_sums, holds_corpus, moments

RESTARTS = 5  # of k-means, from different first centres
STEPS = 100  # of k-means, at most


def query_points(batch: Batch) -> Tensor:
    """A point (Q, D) for each list, in float64: its query vector, or else the mean of its documents."""
    return query_vectors(batch.dense, batch.offsets) if batch.queries is None else batch.queries.double()


def points_of(lists: TrainingLists) -> Tensor:
    """The points (Q, D) of the lists of all processes."""

    def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
        into[0][batch.query] = query_points(batch)

    points: Tensor = lists.total(write, into=(lists.zeros(len(lists), lists.lists[:0].x.shape[1]),))[0]
    return points


def canonical_order(points: Tensor) -> Tensor:
    """The positions (Q,) of the points in lexicographic order, whatever order they are given in."""
    return torch.from_numpy(np.lexsort(points.cpu().numpy().T[::-1]).copy())


# ---- groups ----------------------------------------------------------------------------------------------------------


def find_centres(points: Tensor, count: int, seed: int = 0) -> Tensor:
    """Centres (C, D) of k-means, the best of several starts by k-means++; fewer than `count` if there are fewer
    different points. They do not depend on the order of the points.

    >>> find_centres(torch.tensor([[0.0], [9.0], [1.0]]), 2)
    tensor([[0.5000],
            [9.0000]], dtype=torch.float64)
    """
    ordered = points.double()[canonical_order(points).to(points.device)]
    middle = ordered.mean(0)
    ordered, generator = ordered - middle, torch.Generator().manual_seed(seed)
    found = [_lloyd(ordered, _first_centres(ordered, count, generator)) for _ in range(RESTARTS if count > 1 else 1)]
    spread = torch.stack([within(ordered, centres) for centres in found])
    centres = found[int((spread <= spread.min() * (1 + 1e-9)).to(torch.int8).argmax())]
    return centres[canonical_order(centres).to(centres.device)] + middle


def _first_centres(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """k-means++: each centre is drawn from the points in proportion to the squared distance from those before it."""
    centres = points[torch.randint(len(points), (1,), generator=generator).to(points.device)]
    while len(centres) < count:
        far = _squares(points, centres).amin(1).clamp(min=0).cpu()
        if far.max() <= 1e-12 * points.square().sum(1).max().cpu():  # no other point is left
            break
        share = far.cumsum(0)
        drawn = torch.searchsorted(share, torch.rand(1, generator=generator, dtype=torch.float64) * share[-1])
        centres = torch.cat((centres, points[drawn.clamp(max=len(points) - 1).to(points.device)]))
    return centres


def _lloyd(points: Tensor, centres: Tensor) -> Tensor:
    for _ in range(STEPS):
        own = nearest_centre(points, centres)
        counts = own.bincount(minlength=len(centres))[:, None]
        new = torch.zeros_like(centres).index_add(0, own, points) / counts.clamp(min=1)
        new = torch.where(counts > 0, new, centres)
        if torch.equal(new, centres):
            break
        centres = new
    return centres


def _squares(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (Q, C)."""
    return points.square().sum(1, keepdim=True) - 2 * points @ centres.T + centres.square().sum(1)


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """The group (Q,) of each point: that of the nearest centre; of equals, the first.

    >>> nearest_centre(torch.tensor([[0.0], [8.0]]), torch.tensor([[9.0], [1.0]]))
    tensor([1, 0])
    """
    return _closeness(points, centres).argmax(1)


def _closeness(points: Tensor, centres: Tensor) -> Tensor:
    """Half the squared distances (Q, C) with the opposite sign, up to a constant of each point."""
    middle = centres.mean(0)  # far from the origin digits would be lost
    points, centres = points.to(centres.dtype) - middle, centres - middle
    return points @ centres.T - centres.square().sum(1) / 2


def within(points: Tensor, centres: Tensor) -> Tensor:
    """The mean squared distance of the points from the nearest centre, divided by the number of features."""
    return (points - centres[nearest_centre(points, centres)]).square().mean()


def shares_of(points: Tensor, centres: Tensor, width: Tensor) -> Tensor:
    """The share (Q, C) of each group in each point: all of the nearest group if `width` is 0, otherwise that of a
    mixture of Gaussians with this variance in every direction.

    >>> shares_of(torch.tensor([[1.0]]), torch.tensor([[0.0], [2.5]]), torch.tensor(0.0))
    tensor([[1., 0.]])
    """
    close = _closeness(points, centres)
    hard = one_hot(close.argmax(1), len(centres)).to(centres.dtype)
    return torch.where(width > 0, (close / torch.where(width > 0, width, 1.0)).softmax(1), hard)


# ---- sums and averages -----------------------------------------------------------------------------------------------


class GroupSums(NamedTuple):
    """Sums over the lists of each of G groups. Only lists with a high and a low document count."""

    similar: Tensor  # (G, D, D) over pairs of high documents
    dissimilar: Tensor  # (G, D, D) over pairs of a high and a low document
    pairs: Tensor  # (G, 2) numbers of pairs of either kind
    means: Tensor  # (G, 2, D) mean of the high and mean of the low documents of each list
    lists: Tensor  # (G,)

    def added(self) -> GroupSums:
        """The sums over all groups, as one group."""
        return GroupSums(*(part.sum(0, keepdim=True) for part in self))

    def without(self, others: GroupSums) -> GroupSums:
        """The sums without some of their lists."""
        return GroupSums(*(ours - theirs for ours, theirs in zip(self, others, strict=True)))


class Averages(NamedTuple):
    """Averages over pairs and over lists, for each of G groups."""

    similar: Tensor  # (G, D, D)
    dissimilar: Tensor  # (G, D, D)
    high: Tensor  # (G, D)
    delta: Tensor  # (G, D) high mean minus low mean


def sum_groups(lists: TrainingLists, cells: Sequence[Tensor], counts: Sequence[int], high: str) -> list[GroupSums]:
    """The sums over groups for several divisions of the lists, in one pass: division r puts list q into group
    `cells[r][q]` of `counts[r]`. No matrix of a list is kept."""
    width = lists.lists[:0].x.shape[1]
    shapes = [((n, width, width), (n, width, width), (n, 2), (n, 2, width), (n,)) for n in counts]
    into = tuple(lists.zeros(*shape) for row in shapes for shape in row)

    def add(batch: Batch, into: tuple[Tensor, ...]) -> None:
        found = moments(batch.dense.double(), batch.labels, batch.offsets, high)
        for row, cell in enumerate(cells):
            _add_cells(found, cell[batch.query], GroupSums(*into[5 * row : 5 * row + 5]))

    if holds_corpus(lists):
        shares = [one_hot(cell, n).T.double() for cell, n in zip(cells, counts, strict=True)]
        found = [part for sums in corpus_sums(lists, shares, high) for part in sums]
    else:
        found = lists.total(add, into)
    if not found[4].any():
        raise DataError(
            f"none of the {len(lists)} training lists has a high document and a lower one, so no metric can be learned:"
            " check the labels, or try high=positive"
        )
    return [GroupSums(*found[5 * row : 5 * row + 5]) for row in range(len(counts))]


def _add_cells(found: Moments, cell: Tensor, sums: GroupSums) -> None:
    """Add the lists of a batch, list q to group `cell[q]`: one product of matrices per scatter and group."""
    sums.pairs.index_add_(0, cell, found.pairs)
    sums.means.index_add_(0, cell, found.means)
    sums.lists.index_add_(0, cell, found.both)
    groups = cell[found.lists]
    for group in torch.unique(groups).tolist():
        here = (groups == group).nonzero().flatten()
        add_scatter(found.rows[here], found.weights[here], sums.similar[group], sums.dissimilar[group])


def averages(sums: GroupSums) -> Averages:
    """Divided by the numbers of pairs and lists; 0 where there are none."""
    similar, dissimilar = (
        part / number.clamp(min=1)[:, None, None] for part, number in zip(sums[:2], sums.pairs.unbind(1), strict=True)
    )
    high, low = (sums.means / sums.lists.clamp(min=1)[:, None, None]).unbind(1)
    return Averages(similar, dissimilar, high, high - low)


def shrink(sums: GroupSums, whole: Averages, alpha: float) -> Averages:
    """The averages of each group, shrunk towards those of all lists with weight n / (n + alpha), n the number of lists.
    A group without pairs of a kind takes the average of all lists."""
    share = torch.where(sums.lists > 0, sums.lists / (sums.lists + alpha), 0.0)
    kinds = (*(torch.where(number > 0, share, 0.0) for number in sums.pairs.unbind(1)), share, share)
    own = [
        weight.view(-1, *[1] * (ours.dim() - 1)) * ours + (1 - weight).view(-1, *[1] * (ours.dim() - 1)) * theirs
        for weight, ours, theirs in zip(kinds, averages(sums), whole, strict=True)
    ]
    return Averages(*own)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def solve_directions(found: Averages, options: MetricOptions, ts: Sequence[float]) -> Tensor:
    """M delta / ||delta||_M for the metrics M = S^-1 #_t D of all t (G, T, D): the gradient of the distance from an
    anchor that is infinitely far away in the direction of delta. One decomposition serves all t."""
    live = _live(found)
    similar, dissimilar = _ridged(found, options, live)
    lower = torch.linalg.cholesky(similar)
    values, vectors = torch.linalg.eigh(lower.mT @ dissimilar @ lower)
    image = vectors.mT @ torch.linalg.solve_triangular(lower, found.delta[:, live, None], upper=False)  # (G, D, 1)
    powers = torch.stack([values.clamp(min=0) ** t for t in ts], -1)  # (G, D, T)
    slopes = torch.linalg.solve_triangular(lower.mT, vectors @ (powers * image), upper=True)
    norms = (powers * image.square()).sum(1, keepdim=True).sqrt()
    slopes = slopes / torch.where(norms > 0, norms, 1.0)
    return found.delta.new_zeros(len(slopes), len(ts), found.delta.shape[1]).index_copy(2, live, slopes.mT)


def solve_factors(found: Averages, options: MetricOptions) -> Tensor:
    """Factors (G, D, k) of the metrics, k the number of features that vary within lists; the others have zero rows."""
    live = _live(found)
    factors = gmml_factor(*_ridged(found, options, live), options.t, method=options.solver)
    return found.delta.new_zeros(len(factors), found.delta.shape[1], len(live)).index_copy(1, live, factors)


class Spectra(NamedTuple):
    """The metrics B diag(c^t) B' of G groups for every t."""

    basis: Tensor  # (G, D, k), k the number of features that vary within lists; the others have zero rows
    values: Tensor  # (G, k)


def solve_spectra(found: Averages, options: MetricOptions) -> Spectra:
    """The metrics S^-1 #_t D of all t: with S = L L' and D = K K', c and V are those of L' D L, and B = L'^-1 V."""
    live = _live(found)
    lower, other = torch.linalg.cholesky(torch.stack(_ridged(found, options, live)))
    product = lower.mT @ other
    values, vectors = torch.linalg.eigh(product @ product.mT)
    for group in (~(values[:, -1] <= FORMED * values[:, 0])).nonzero().flatten().tolist():
        vectors[group], roots, _ = torch.linalg.svd(product[group])  # keeps twice the digits
        values[group] = roots.square()
    basis = torch.linalg.solve_triangular(lower.mT, vectors, upper=True)
    room = found.delta.new_zeros(len(basis), found.delta.shape[1], len(live))
    return Spectra(room.index_copy(1, live, basis), values.clamp(min=0))


def _live(found: Averages) -> Tensor:
    """The features that differ between some high and some low document; all if none does."""
    varies = found.dissimilar.diagonal(dim1=1, dim2=2).amax(0) > 0
    return (varies | ~varies.any()).nonzero().flatten()


def _ridged(found: Averages, options: MetricOptions, live: Tensor) -> tuple[Tensor, Tensor]:
    """Both scatters with their ridges; the identity in place of a scatter without any pair."""
    similar, dissimilar = (part[:, live][:, :, live] for part in found[:2])
    eye = torch.eye(len(live), dtype=similar.dtype, device=live.device)
    similar, dissimilar = (
        torch.where(part.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] > 0, part, eye)
        for part in (similar, dissimilar)
    )
    return ridged(similar, dissimilar, options, 0, torch.zeros(len(similar), 2, device=live.device))


def far_scores(along: Tensor, squares: Tensor, reach: Tensor) -> Tensor:
    """How much nearer than the origin a document is to an anchor: d0 - d, which tends to its part in the direction of
    the anchor for an anchor that is infinitely far away. Computed as (2 d0 s - |y|^2) / (d0 + d), without cancellation.

    Args:
        along: s, the part of the image y of the document in the direction of the anchor.
        squares: |y|^2.
        reach: d0, the distance of the anchor from the origin; may be infinite.

    >>> far_scores(torch.tensor([3.0]), torch.tensor([25.0]), torch.tensor([3.0, torch.inf]))
    tensor([-1.0000,  3.0000])
    """
    unit = torch.where(reach.isinf(), 1.0, reach.clamp(min=1))  # in these units nothing overflows
    share = torch.where(reach.isinf(), 1.0, reach / unit)
    far = (share.square() - 2 * share * along / unit + squares / unit / unit).clamp(min=0).sqrt()
    near = (2 * share * along - squares / unit) / (share + far).clamp(min=torch.finfo(far.dtype).tiny)
    return torch.where(reach.isinf(), along, near)


def deviations_of(lists: TrainingLists, values: Callable[[Batch], tuple[Tensor, Tensor]]) -> Tensor:
    """The standard deviation (M,) over all lists of weighted values; 1 where they do not vary.

    `values(batch)` returns the values (N, M) and their weights (N, M).
    """

    def first(batch: Batch) -> tuple[Tensor, Tensor]:
        found, weights = values(batch)
        return weights.double().sum(0), (weights * found).double().sum(0)

    count, total = lists.total(first)
    count = torch.where(count > 0, count, 1.0)
    mean = total / count

    def second(batch: Batch) -> Tensor:
        found, weights = values(batch)
        squares: Tensor = weights * (found - mean).square()
        return squares.double().sum(0)

    deviation: Tensor = (lists.total(second) / count).sqrt()
    return torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)

"""Metrics of groups of similar queries: k-means, averages shrunk towards those of all lists, and their metrics.

Su, King & Lyu (SIGIR 2017) learn a metric "from a part of examples space". Here a part is a group of queries whose
documents lie in similar places. Nothing of it looks at a label except the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from torchrank.solvers.local_metrics.scatter import PairSums, pair_sums

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
    points = points.double()[canonical_order(points).to(points.device)]
    mean, generator = points.mean(0), torch.Generator().manual_seed(seed)
    points = points - mean
    starts = (_first_centres(points, count, generator) for _ in range(RESTARTS if count > 1 else 1))
    results = [_lloyd(points, centres) for centres in starts]
    spread = torch.stack([within(points, centres) for centres in results])
    centres = results[int((spread <= spread.min() * (1 + 1e-9)).to(torch.int8).argmax())]
    return centres[canonical_order(centres).to(centres.device)] + mean


def _first_centres(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """k-means++: each centre is drawn from the points in proportion to the squared distance from those before it."""
    centres = points[torch.randint(len(points), (1,), generator=generator).to(points.device)]
    while len(centres) < count:
        distances = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
        far = distances.amin(1).square().cpu()
        if far.max() <= 1e-12 * points.square().sum(1).max().cpu():  # no other point is left
            break
        share = far.cumsum(0)
        drawn = torch.searchsorted(share, torch.rand(1, generator=generator, dtype=torch.float64) * share[-1])
        centres = torch.cat((centres, points[drawn.clamp(max=len(points) - 1).to(points.device)]))
    return centres


def _lloyd(points: Tensor, centres: Tensor) -> Tensor:
    for _ in range(STEPS):
        group = nearest_centre(points, centres)
        counts = group.bincount(minlength=len(centres))[:, None]
        means = torch.zeros_like(centres).index_add(0, group, points) / counts.clamp(min=1)
        before, centres = centres, torch.where(counts > 0, means, centres)
        if torch.equal(before, centres):
            break
    return centres


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """The group (Q,) of each point: that of the nearest centre; of equals, the first.

    >>> nearest_centre(torch.tensor([[0.0], [8.0]]), torch.tensor([[9.0], [1.0]]))
    tensor([1, 0])
    """
    return _closeness(points, centres).argmax(1)


def _closeness(points: Tensor, centres: Tensor) -> Tensor:
    """Half the squared distances (Q, C) with the opposite sign, up to a constant of each point."""
    mean = centres.mean(0)  # far from the origin digits would be lost
    points, centres = points.to(centres.dtype) - mean, centres - mean
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


class Averages(NamedTuple):
    """Averages over pairs and over lists, for each of G groups."""

    similar: Tensor  # (G, D, D)
    dissimilar: Tensor  # (G, D, D)
    high: Tensor  # (G, D)
    delta: Tensor  # (G, D) high mean minus low mean


def sum_groups(lists: TrainingLists, cells: Sequence[Tensor], counts: Sequence[int], high: str) -> list[PairSums]:
    """The sums over groups for several divisions of the lists, in one pass: division r puts list q into group
    `cells[r][q]` of `counts[r]`. No matrix of a list is kept."""
    sums = pair_sums(lists, [one_hot(cell, n).T.double() for cell, n in zip(cells, counts, strict=True)], high)
    if not sums[0].lists.any():
        raise DataError(
            f"none of the {len(lists)} training lists has a high document and a lower one, so no metric can be learned:"
            " check the labels, or try high=positive"
        )
    return sums


def averages(sums: PairSums) -> Averages:
    """Divided by the numbers of pairs and lists; 0 where there are none."""
    similar, dissimilar = (
        part / number.clamp(min=1)[:, None, None] for part, number in zip(sums[:2], sums.pairs.unbind(1), strict=True)
    )
    high, low = (sums.means / sums.lists.clamp(min=1)[:, None, None]).unbind(1)
    return Averages(similar, dissimilar, high, high - low)


def shrink(sums: PairSums, whole: Averages, alpha: float) -> Averages:
    """The averages of each group, shrunk towards those of all lists with weight n / (n + alpha), n the number of lists.
    A group without pairs of a kind takes the average of all lists."""
    share = torch.where(sums.lists > 0, sums.lists / (sums.lists + alpha), 0.0)
    kinds = (*(torch.where(number > 0, share, 0.0) for number in sums.pairs.unbind(1)), share, share)
    shrunk = []
    for weight, group, every in zip(kinds, averages(sums), whole, strict=True):
        weight = weight.view(-1, *[1] * (group.dim() - 1))
        shrunk.append(weight * group + (1 - weight) * every)
    return Averages(*shrunk)


# ---- metrics ---------------------------------------------------------------------------------------------------------


def solve_factors(averages: Averages, options: MetricOptions) -> Tensor:
    """Factors (G, D, k) of the metrics, k the number of features that vary within lists; the others have zero rows."""
    similar, dissimilar, live = _live_scatters(averages, options)
    factors = gmml_factor(similar, dissimilar, options.t)
    return torch.zeros_like(averages.similar)[:, :, : len(live)].index_copy(1, live, factors)


class Spectra(NamedTuple):
    """The metrics M = S^-1 #_t D = B diag(c^t) B' of G groups for every t, by which settings are compared."""

    basis: Tensor  # (G, D, k) B, k the number of features that vary within lists; the others have zero rows
    values: Tensor  # (G, k) c

    def directions(self, delta: Tensor, ts: Sequence[float]) -> Tensor:
        """M delta / ||delta||_M (G, T, D) for all t, with `delta (G, D)`: the gradient of the distance from an anchor
        that is infinitely far away in the direction of delta."""
        image = self.basis.mT @ delta[:, :, None]  # (G, k, 1)
        powers = torch.stack([self.values**t for t in ts], -1)  # (G, k, T)
        norms = (powers * image.square()).sum(1, keepdim=True).sqrt()
        return (self.basis @ (powers * image) / torch.where(norms > 0, norms, 1.0)).mT


def solve_spectra(averages: Averages, options: MetricOptions) -> Spectra:
    """The metrics of all t from one decomposition: with S = L L' and D = K K', c and V are the eigenvalues and vectors
    of L' D L, and B = L'^-1 V. Where digits would be lost, they come from the singular values of L' K, which takes
    twice the time."""
    similar, dissimilar, live = _live_scatters(averages, options)
    lower, other = torch.linalg.cholesky(torch.stack((similar, dissimilar)))
    product = lower.mT @ other
    values, vectors = torch.linalg.eigh(product @ product.mT)
    for group in (~(values[:, -1] <= FORMED * values[:, 0])).nonzero().flatten().tolist():
        vectors[group], roots, _ = torch.linalg.svd(product[group])
        values[group] = roots.square()
    basis = torch.linalg.solve_triangular(lower.mT, vectors, upper=True)
    zeros = torch.zeros_like(averages.similar)[:, :, : len(live)]
    return Spectra(zeros.index_copy(1, live, basis), values.clamp(min=0))


def _live_scatters(averages: Averages, options: MetricOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Both scatters (G, k, k) with their ridges, and the features (k,) that differ between some high and some low
    document, or all if none does. A scatter without any pair is the identity."""
    varies = averages.dissimilar.diagonal(dim1=1, dim2=2).amax(0) > 0
    live = (varies | ~varies.any()).nonzero().flatten()
    scatters = torch.stack(averages[:2])[:, :, live][:, :, :, live]
    there = scatters.diagonal(dim1=2, dim2=3).sum(2) > 0
    eye = torch.eye(len(live), dtype=scatters.dtype, device=live.device)
    scatters = torch.where(there[:, :, None, None], scatters, eye)
    pairs = torch.zeros(scatters.shape[1], 2, device=live.device)  # for messages, which need no numbers here
    return *ridged(scatters[0], scatters[1], options, 0, pairs), live

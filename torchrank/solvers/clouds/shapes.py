"""Shapes: what is kept of the clouds of lists in order to compare them, in one form for every kind of similarity.

Clouds are compared by directions (the similarities of `torchrank.functional.clouds`), by moments, or as Gaussians, as
in Figures 9 and 10 of Banerjee, Dubey, Machchhar & Chakrabarti 2009.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.functional.clouds.directions import DIRECTIONS, cloud_pca, cloud_similarity, nearest_clouds
from torchrank.functional.clouds.gaussians import DIVERGENCES, cloud_gaussians, cloud_moments, gaussian_divergence
from torchrank.functional.ragged import subsample, wide
from torchrank.solvers.clouds.clustering import Clusters, cluster_similar

MOMENTS = ("mean", "variance", "skew")
SHAPES = (*DIRECTIONS, *MOMENTS, *DIVERGENCES)
COMPARED = 2**24  # similarities computed at once
MAX_EXACT, SAMPLE = 8000, 4000  # lists above which a sample is clustered, and its size


class Shapes(NamedTuple):
    """Points and spread of Q lists: directions (Q, P, D) and their variances (Q, P); or a moment (Q, 1, D) and nothing
    (Q, 0); or means (Q, 1, D) and covariances (Q, D, D)."""

    points: Tensor
    spread: Tensor
    ranks: Tensor  # (Q,) 0: the list has no shape and cannot be compared

    def of(self, lists: Tensor | slice) -> "Shapes":
        """Shapes of these lists."""
        return Shapes(self.points[lists], self.spread[lists], self.ranks[lists])


def make_shapes(x: Tensor, offsets: Tensor, kind: str, components: int) -> tuple[Shapes, Tensor]:
    """Shapes of the lists of rows `x (N, D)`, and the total variance of each, (Q,)."""
    if kind in DIRECTIONS:
        u, eigenvalues, total, ranks = cloud_pca(x, offsets, components)
        return Shapes(u, eigenvalues, ranks), total
    mean, variance, skew = cloud_moments(x, offsets)
    ranks = (offsets.diff() > 0).long()
    if kind in MOMENTS:
        moment = {"mean": mean, "variance": variance, "skew": skew}[kind]
        return Shapes(moment.unsqueeze(1), moment.new_zeros(len(ranks), 0), ranks), variance.sum(1)
    means, covariances = cloud_gaussians(x, offsets)
    return Shapes(means.unsqueeze(1), covariances, ranks), variance.sum(1)


def compare(a: Shapes, b: Shapes, kind: str) -> Tensor:
    """Similarities (Q, Q') of all shapes of `a` to all of `b`: from 0 to 1 for directions, else minus a distance."""
    if kind in DIRECTIONS:
        size = 8 * len(a.ranks) * len(b.ranks)
        options = {"kind": kind, "eigenvalues": a.spread, "eigenvalues_v": b.spread, "max_bytes": size}
        return cloud_similarity(a.points, a.ranks, b.points, b.ranks, **options)
    first, second = a.points.squeeze(1), b.points.squeeze(1)
    if kind in MOMENTS:
        return -torch.cdist(wide(first), wide(second), compute_mode="donot_use_mm_for_euclid_dist")
    return -gaussian_divergence(first, a.spread, second, b.spread, kind=kind)


def most_similar(a: Shapes, b: Shapes, kind: str) -> tuple[Tensor, Tensor]:
    """Similarity (Q,) and position (Q,) of the shape of `b` most similar to each shape of `a`, of equal ones the first;
    position -1 where a list of `a`, or all of `b`, have no shape."""
    if kind in DIRECTIONS:
        options = {"kind": kind, "eigenvalues": a.spread, "eigenvalues_v": b.spread}
        best, place = nearest_clouds(a.points, a.ranks, b.points, b.ranks, **options)
        best, place = best[:, 0], place[:, 0]
    else:
        step = max(1, COMPARED // max(1, len(b.ranks)))
        parts = [a.of(slice(i, i + step)) for i in range(0, max(1, len(a.ranks)), step)]
        found = [compare(part, b, kind).masked_fill_(b.ranks == 0, -torch.inf).max(1) for part in parts]
        best, place = (torch.cat([part[i] for part in found]) for i in (0, 1))
    return best, torch.where((a.ranks > 0) & b.ranks.any(), place, -1)


@torch.no_grad()
def cluster(shapes: Shapes, clusters: list[int], kind: str, *, min_size: int, seed: int) -> Clusters:
    """Complete-link clusters for each number of them, see `cluster_similar`. Of very many lists only a sample is
    clustered; each other list joins the cluster of the sampled list most similar to it."""
    usable = shapes.ranks > 0
    if max(clusters, default=1) == 1:
        return cluster_similar(torch.empty(0, 0, device=usable.device), usable, clusters, min_size=min_size)
    kept = some = shapes.of(usable)
    leader: Tensor | None = None
    if len(kept.ranks) > MAX_EXACT:
        drawn = subsample(len(kept.ranks), SAMPLE, seed).to(usable.device)
        some = kept.of(drawn)
        leader = most_similar(kept, some, kind)[1]
        leader[drawn] = torch.arange(len(drawn), device=leader.device)
    return cluster_similar(compare(some, some, kind), usable, clusters, min_size=min_size, leader=leader)


def group_similarity(similarity: Tensor, labels: Tensor) -> Tensor:
    """Largest similarity `(T, C)` of each test list to the training lists of each group, from similarities `(T, Q)`.

    The group most similar to a test list is the group of its most similar training list (among lists in a group).

    >>> group_similarity(torch.tensor([[0.1, 0.9, 0.4]]), torch.tensor([0, 1, 0]))
    tensor([[0.4000, 0.9000]])
    """
    inside = labels >= 0
    index = labels[inside].expand(len(similarity), -1)
    best = similarity.new_full((len(similarity), int(labels.max()) + 1), -torch.inf)
    return best.scatter_reduce(1, index, similarity[:, inside], "amax")

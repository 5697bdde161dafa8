"""Complete-link clusters of clouds (Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 2), and the shapes of clouds.

One dendrogram serves all numbers of clusters. The linkage is that of scipy, on the host; it needs n (n - 1) / 2
distances in float64 and a copy of them. Clouds are compared by their shapes: by directions (the similarities of
`torchrank.functional.clouds`), by moments, or as Gaussians, as in Figures 9 and 10 of the paper.
"""

import warnings
from typing import Any, NamedTuple

import torch
from scipy.cluster.hierarchy import linkage
from torch import Tensor

from torchrank.errors import DataWarning, check_integer
from torchrank.functional.clouds import (
    DIRECTIONS,
    DIVERGENCES,
    cloud_gaussians,
    cloud_moments,
    cloud_pca,
    cloud_similarity,
    gaussian_divergence,
    nearest_clouds,
)
from torchrank.functional.ragged import subsample, wide

MOMENTS = ("mean", "variance", "skew")
SHAPES = (*DIRECTIONS, *MOMENTS, *DIVERGENCES)
BLOCK = 512  # rows of similarities that are converted to distances at once


class Clusters(NamedTuple):
    """The cluster of each list, for several numbers of clusters."""

    labels: Tensor  # (numbers of clusters, Q) int64; -1: the list has no shape, and so no cluster
    sampled: bool  # whether only a sample was clustered, and the other lists were assigned to its clusters


def cluster_similar(
    similarity: Tensor, usable: Tensor, clusters: list[int], *, min_size: int = 1, leader: Tensor | None = None
) -> Clusters:
    """Labels for each number of clusters, from one dendrogram of the similarity `(n, n)` of the lists that are `usable
    (Q,)`. The other lists have the label -1, except for a single cluster, which holds all lists.

    Clusters of fewer than `min_size` lists are merged into others, so there may be fewer than requested. With `leader`,
    the similarity is that of a sample, and each usable list is in the cluster of the sampled list at `leader`.

    >>> similarity = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.3], [0.2, 0.3, 1.0]])
    >>> cluster_similar(similarity, torch.tensor([True, False, True, True]), [2]).labels
    tensor([[ 0, -1,  0,  1]])
    """
    for number in clusters:
        check_integer(">= 1", clusters=number)
    check_integer(">= 1", min_size=min_size)
    single = torch.tensor(clusters, device=usable.device) == 1
    labels = single.long()[:, None].repeat(1, len(usable)) - 1
    if not len(similarity):
        return Clusters(labels, False)
    follow = torch.arange(len(similarity), device=similarity.device) if leader is None else leader
    followers, tree = follow.bincount(), link(similarity)
    for row, number in enumerate(clusters):
        if number > 1:
            merged = merge_small(cut(tree, number).to(follow.device), similarity, min_size, counts=followers)
            labels[row, usable] = _renumber(merged[follow])
    return Clusters(labels, leader is not None)


def link(similarity: Tensor) -> Tensor:
    """Complete-link dendrogram of the distances 1 - (S + S') / 2 of similarities `(Q, Q)`; the diagonal is ignored.

    Returns:
        Merges of two clusters, by rising height, `(Q - 1, 4)` as scipy has them: the two clusters, the largest distance
        within the new one, and the number of its lists. Clusters 0..Q-1 are the lists, merge i makes cluster Q + i.

    >>> link(torch.tensor([[1.0, 0.25, 0.5], [0.25, 1.0, 0.75], [0.5, 0.75, 1.0]]))
    tensor([[1.0000, 2.0000, 0.2500, 2.0000],
            [0.0000, 3.0000, 0.7500, 3.0000]], dtype=torch.float64)
    """
    lists = len(similarity)
    if not lists or similarity.shape != (lists, lists):
        raise ValueError(f"similarity must be (Q, Q) of at least one list, got {tuple(similarity.shape)}")
    if lists == 1:
        return torch.zeros(0, 4, dtype=torch.float64)
    distances = []
    for top in range(0, lists, BLOCK):
        both = similarity[top : top + BLOCK].double() + similarity[:, top : top + BLOCK].T
        behind = torch.ones_like(both, dtype=torch.bool).triu_(top + 1)  # row by row, in the order of scipy
        distances.append(1 - both[behind].cpu() / 2)
    return torch.from_numpy(linkage(torch.cat(distances).numpy(), "complete"))


def cut(tree: Tensor, clusters: int) -> Tensor:
    """Labels `(Q,)` of exactly this many clusters, whatever the ties: the last clusters - 1 merges are undone.

    Clusters are numbered by their first list. With fewer lists than clusters, every list is a cluster, and a warning
    says so.

    >>> cut(link(torch.tensor([[1.0, 0.25, 0.5], [0.25, 1.0, 0.75], [0.5, 0.75, 1.0]])), 2)
    tensor([0, 1, 1])
    """
    lists = len(tree) + 1
    if lists < clusters:
        asked = f"{clusters} clusters were requested of {lists} lists"
        warnings.warn(f"{asked}: every list becomes a cluster of its own", DataWarning, stacklevel=2)
    kept = max(lists - clusters, 0)
    above = torch.arange(lists + kept)
    above[tree[:kept, :2].long()] = torch.arange(lists, lists + kept)[:, None]
    while not torch.equal(above, higher := above[above]):  # each step doubles the number of merges that are followed
        above = higher
    return _renumber(above[:lists])


def merge_small(labels: Tensor, similarity: Tensor, min_size: int, *, counts: Tensor | None = None) -> Tensor:
    """Labels `(Q,)` after clusters of fewer than `min_size` lists have been merged into others, smallest first.

    Each is merged into the cluster at the smallest complete-link distance; of equal ones the first. `counts (Q,)`: how
    many lists each one stands for.

    >>> similarity = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.3], [0.2, 0.3, 1.0]])
    >>> merge_small(torch.tensor([0, 0, 1]), similarity, 2)
    tensor([0, 0, 0])
    """
    labels = _renumber(labels)
    counts = torch.ones_like(labels) if counts is None else counts
    while True:
        sizes = labels.bincount(counts).long()
        if len(sizes) < 2 or sizes.min() >= min_size:
            return labels
        smallest = sizes.argmin()
        inside = labels == smallest
        both = similarity[inside].double() + similarity[:, inside].T
        closest = both.new_full((len(sizes),), torch.inf).scatter_reduce(0, labels, both.amin(0), "amin")
        closest[smallest] = -torch.inf
        labels = _renumber(torch.where(inside, closest.argmax(), labels))


def _renumber(labels: Tensor) -> Tensor:
    """The same clusters, 0, 1, ... in the order of their first lists."""
    names, labels = labels.unique(return_inverse=True)
    place = torch.arange(len(labels), device=labels.device)
    first = place.new_full(names.shape, len(labels)).scatter_reduce(0, labels, place, "amin")
    return first.argsort().argsort()[labels]


# ---- shapes ------------------------------------------------------------------------------------------------------


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
        options: Any = {"kind": kind, "eigenvalues": a.spread, "eigenvalues_v": b.spread, "max_bytes": size}
        return cloud_similarity(a.points, a.ranks, b.points, b.ranks, **options)
    first, second = a.points.squeeze(1), b.points.squeeze(1)
    if kind in MOMENTS:
        return -torch.cdist(wide(first), wide(second), compute_mode="donot_use_mm_for_euclid_dist")
    return -gaussian_divergence(first, a.spread, second, b.spread, kind=kind)


def most_similar(a: Shapes, b: Shapes, kind: str, *, at_once: int = 2**24) -> tuple[Tensor, Tensor]:
    """Similarity (Q,) and position (Q,) of the shape of `b` most similar to each shape of `a`, of equal ones the first;
    position -1 where a list of `a`, or all of `b`, have no shape. Of moments and Gaussians so many similarities are
    computed `at_once`."""
    if kind in DIRECTIONS:
        options: Any = {"kind": kind, "eigenvalues": a.spread, "eigenvalues_v": b.spread}
        best, place = nearest_clouds(a.points, a.ranks, b.points, b.ranks, **options)
        best, place = best[:, 0], place[:, 0]
    else:
        step = max(1, at_once // max(1, len(b.ranks)))
        parts = [a.of(slice(i, i + step)) for i in range(0, max(1, len(a.ranks)), step)]
        largest = [compare(part, b, kind).masked_fill_(b.ranks == 0, -torch.inf).max(1) for part in parts]
        best, place = (torch.cat([part[i] for part in largest]) for i in (0, 1))
    return best, torch.where((a.ranks > 0) & b.ranks.any(), place, -1)


@torch.no_grad()
def cluster(
    shapes: Shapes,
    clusters: list[int],
    kind: str,
    *,
    min_size: int,
    seed: int,
    max_exact: int = 8000,
    sample: int = 4000,
) -> Clusters:
    """Complete-link clusters for each number of them, see `cluster_similar`. Of more than `max_exact` lists only a
    sample is clustered; each other list joins the cluster of the sampled list most similar to it."""
    usable = shapes.ranks > 0
    if max(clusters, default=1) == 1:
        return cluster_similar(torch.empty(0, 0, device=usable.device), usable, clusters, min_size=min_size)
    kept = some = shapes.of(usable)
    leader: Tensor | None = None
    if len(kept.ranks) > max_exact:
        drawn = subsample(len(kept.ranks), sample, seed).to(usable.device)
        some = kept.of(drawn)
        leader = most_similar(kept, some, kind)[1]
        leader[drawn] = torch.arange(len(drawn), device=leader.device)
    return cluster_similar(compare(some, some, kind), usable, clusters, min_size=min_size, leader=leader)

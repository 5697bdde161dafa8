"""Complete-link clusters of clouds (Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 2).

One dendrogram serves all numbers of clusters. The linkage is scipy's, on the host: n (n - 1) / 2 distances in float64
and a copy of them; so above a number of lists a drawn sample is clustered, and the others follow their nearest.
"""

import warnings
from typing import NamedTuple

import torch
from scipy.cluster.hierarchy import linkage
from torch import Tensor

from torchrank.functional.clouds import cloud_similarity, nearest_clouds

BLOCK = 512  # rows of the similarities that become distances at once


class Dendrogram(NamedTuple):
    """Merges of two clusters in rising order of their height; merge i makes the cluster Q + i of lists 0..Q-1."""

    merges: Tensor  # (Q - 1, 2) int64
    heights: Tensor  # (Q - 1,) float64, largest distance inside the new cluster


class Clusters(NamedTuple):
    labels: Tensor  # (numbers of clusters, Q) int64, -1: the list has no shape and no cluster
    sampled: bool  # whether a sample was clustered and the others followed


@torch.no_grad()
def cluster_clouds(
    u: Tensor,
    ranks: Tensor,
    clusters: list[int],
    *,
    kind: str = "ordered",
    eigenvalues: Tensor | None = None,
    min_size: int = 1,
    max_exact: int = 8000,
    sample: int = 4000,
    seed: int = 0,
) -> Clusters:
    """Labels of the clouds `u (Q, P, D)` for each number of clusters, from one dendrogram of 1 - similarity.

    Clouds of rank 0 take no part and have the label -1, but for one cluster: it holds all lists, whatever their shape.
    Clusters of fewer than `min_size` lists join others, so fewer than asked for may be left. Above `max_exact` lists
    with a shape `sample` of them are drawn and clustered; each other one is where its most similar drawn one is.

    >>> u = torch.eye(3)[[0, 1, 0, 2]][:, None]
    >>> cluster_clouds(u, torch.tensor([1, 1, 1, 0]), [1, 2]).labels
    tensor([[ 0,  0,  0,  0],
            [ 0,  1,  0, -1]])
    """
    _check(clusters, min_size, sample)
    usable = (ranks > 0).nonzero().flatten()
    if not len(usable) or max(clusters, default=1) == 1:
        return Clusters(_no_clusters(ranks > 0, clusters), False)
    shapes = _Shapes(u, ranks, eigenvalues).of(usable)
    sampled = len(usable) > max_exact
    drawn = draw_lists(len(usable), sample if sampled else len(usable), seed).to(u.device)
    some = shapes.of(drawn)
    leader = _leaders(shapes, some, drawn, kind) if sampled else drawn
    similarity = _similarity(some, kind)
    return Clusters(_cut_all(similarity, leader, ranks > 0, clusters, min_size), sampled)


def cluster_similar(
    similarity: Tensor, usable: Tensor, clusters: list[int], *, min_size: int = 1, leader: Tensor | None = None
) -> Clusters:
    """The same by any similarity `(n, n)` of the n lists that `usable (Q,)` marks; the others have the label -1.

    With `leader`, the similarity is that of a sample, and each usable list is where the drawn one at `leader` is.

    >>> similarity = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.3], [0.2, 0.3, 1.0]])
    >>> cluster_similar(similarity, torch.tensor([True, False, True, True]), [2]).labels
    tensor([[ 0, -1,  0,  1]])
    """
    _check(clusters, min_size, 1)
    if not len(similarity):
        return Clusters(_no_clusters(usable, clusters), False)
    everyone = torch.arange(len(similarity), device=similarity.device)
    follow = everyone if leader is None else leader
    return Clusters(_cut_all(similarity, follow, usable, clusters, min_size), leader is not None)


def _no_clusters(usable: Tensor, clusters: list[int]) -> Tensor:
    one = torch.tensor(clusters, device=usable.device) == 1
    return one.long()[:, None].expand(-1, len(usable)) - 1


def _cut_all(similarity: Tensor, leader: Tensor, usable: Tensor, clusters: list[int], min_size: int) -> Tensor:
    """Labels (numbers of clusters, Q): those of the `leader` of each usable list among the lists that are compared."""
    labels, followers, tree = _no_clusters(usable, clusters).clone(), leader.bincount(), link(similarity)
    for row, number in enumerate(clusters):
        if number > 1:
            found = merge_small(cut(tree, number).to(leader.device), similarity, min_size, counts=followers)
            labels[row, usable] = _renumber(found[leader])
    return labels


def link(similarity: Tensor) -> Dendrogram:
    """Complete-link dendrogram of the distances 1 - (S + S') / 2 of similarities `(Q, Q)`; the diagonal does not count.

    >>> link(torch.tensor([[1.0, 0.25, 0.5], [0.25, 1.0, 0.75], [0.5, 0.75, 1.0]]))
    Dendrogram(merges=tensor([[1, 2],
            [0, 3]]), heights=tensor([0.2500, 0.7500], dtype=torch.float64))
    """
    lists = len(similarity)
    if not lists or similarity.shape != (lists, lists):
        raise ValueError(f"similarity has shape {tuple(similarity.shape)}, it must be (Q, Q) of at least one list")
    if lists == 1:
        return Dendrogram(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))
    distances = torch.empty(lists * (lists - 1) // 2, dtype=torch.float64)
    end = 0
    for top in range(0, lists, BLOCK):
        both = similarity[top : top + BLOCK].double() + similarity[:, top : top + BLOCK].T
        behind = torch.ones_like(both, dtype=torch.bool).triu_(top + 1)  # row by row, as scipy wants them
        part = 1 - both[behind].cpu() / 2
        distances[end : end + len(part)] = part
        end += len(part)
    tree = torch.from_numpy(linkage(distances.numpy(), "complete"))
    return Dendrogram(tree[:, :2].long(), tree[:, 2].clone())


def cut(tree: Dendrogram, clusters: int) -> Tensor:
    """Labels `(Q,)` of exactly this many clusters, ties or not: the last clusters - 1 merges are undone.

    Clusters are numbered by their first list. Fewer lists than clusters: each is one, and a warning says so.

    >>> cut(link(torch.tensor([[1.0, 0.25, 0.5], [0.25, 1.0, 0.75], [0.5, 0.75, 1.0]])), 2)
    tensor([0, 1, 1])
    """
    lists = len(tree.merges) + 1
    if lists < clusters:
        warnings.warn(f"{clusters} clusters of {lists} lists: every list is a cluster of its own", stacklevel=2)
    kept = max(lists - clusters, 0)
    above = torch.arange(lists + kept)
    above[tree.merges[:kept]] = torch.arange(lists, lists + kept)[:, None]
    while not torch.equal(above, higher := above[above]):  # each step doubles the merges that are climbed
        above = higher
    return _renumber(above[:lists])


def merge_small(labels: Tensor, similarity: Tensor, min_size: int, *, counts: Tensor | None = None) -> Tensor:
    """Labels `(Q,)` in which clusters of fewer than `min_size` lists have joined others, the smallest one first.

    Each joins the cluster at the smallest complete-link distance; of equal ones the first. `counts (Q,)`: how many
    lists each one stands for.

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
    found, labels = labels.unique(return_inverse=True)
    place = torch.arange(len(labels), device=labels.device)
    first = place.new_full(found.shape, len(labels)).scatter_reduce(0, labels, place, "amin")
    return first.argsort().argsort()[labels]


def draw_lists(lists: int, sample: int, seed: int) -> Tensor:
    """Places of the sample, rising."""
    return torch.randperm(lists, generator=torch.Generator().manual_seed(seed))[:sample].sort().values


class _Shapes(NamedTuple):
    u: Tensor
    ranks: Tensor
    eigenvalues: Tensor | None

    def of(self, lists: Tensor) -> "_Shapes":
        weights = None if self.eigenvalues is None else self.eigenvalues[lists]
        return _Shapes(self.u[lists], self.ranks[lists], weights)


def _similarity(shapes: _Shapes, kind: str) -> Tensor:
    """Of all pairs, whatever it needs: the number of lists is limited by the caller."""
    u, ranks, eigenvalues = shapes
    return cloud_similarity(
        u, ranks, u, ranks, kind=kind, eigenvalues=eigenvalues, eigenvalues_v=eigenvalues, max_bytes=8 * len(u) ** 2
    )


def _leaders(shapes: _Shapes, some: _Shapes, drawn: Tensor, kind: str) -> Tensor:
    """Place in the sample of the drawn list that is most similar to each list; a drawn one leads itself."""
    (u, ranks, eigenvalues), (v, ranks_v, eigenvalues_v) = shapes, some
    _, found = nearest_clouds(u, ranks, v, ranks_v, kind=kind, eigenvalues=eigenvalues, eigenvalues_v=eigenvalues_v)
    leader = found.flatten()
    leader[drawn] = torch.arange(len(drawn), device=leader.device)
    return leader


def _check(clusters: list[int], min_size: int, sample: int) -> None:
    for name, value in [*(("clusters", number) for number in clusters), ("min_size", min_size), ("sample", sample)]:
        if value < 1:
            raise ValueError(f"{name} is {value}, choose 1 or more")

"""Clusters of training lists by the shapes of their clouds, and the cluster of any other list."""

from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import Derived, store
from torchrank.data.training import TrainingLists
from torchrank.errors import check_choice, check_integer, check_number
from torchrank.functional.clouds import DIRECTIONS, choose_components
from torchrank.solvers.cloud_clustering import (
    SHAPES,
    Shapes,
    cluster,
    compare,
    make_shapes,
    most_similar,
)
from torchrank.solvers.cloud_hashing import HashTables, build_tables, hashed_nearest, make_planes

MOST_COMPONENTS = 20  # that components="auto" chooses


class QueryClusters(nn.Module):
    """Clusters of the training lists for each of several numbers of clusters, all cut from one dendrogram.

    `LocalRank` explains the options.
    """

    labels: Tensor  # (numbers, Q) cluster of each training list; -1: none
    points: Tensor  # the shapes of the training lists, see `Shapes`
    spread: Tensor
    ranks: Tensor

    def __init__(
        self,
        numbers: list[int],
        *,
        similarity: str,
        components: int | str,
        variance: float,
        min_lists: int,
        partition: str,
        lsh: dict[str, int] | None,
        seed: int,
    ):
        super().__init__()
        self.numbers, self.kind, self.components, self.variance = numbers, similarity, components, variance
        self.min_lists, self.partition, self.lsh, self.seed = min_lists, partition, lsh, seed
        self.derived = Derived()
        self._check()
        for name in ("labels", "ranks"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))
        for name in ("points", "spread"):
            self.register_buffer(name, torch.zeros(0))

    def _check(self) -> None:
        check_choice(SHAPES, similarity=self.kind)
        check_choice(("clouds", "random"), partition=self.partition)
        check_number("> 0 and <= 1", variance=self.variance)
        check_integer(">= 1", min_lists=self.min_lists)
        for number in self.numbers:
            check_integer(">= 1", clusters=number)
        if self.components != "auto" and not (isinstance(self.components, int) and self.components >= 1):
            raise ValueError(f"components must be an integer >= 1 or auto, got {self.components!r}")
        if self.lsh is not None and (self.kind != "ordered" or self.lsh.keys() != {"bits", "tables", "rerank"}):
            given = f"lsh={self.lsh}, similarity={self.kind}"
            raise ValueError(f"lsh needs bits, tables and rerank, and similarity=ordered; got {given}")
        if self.lsh is not None and (min(self.lsh.values()) < 1 or self.lsh["bits"] > 62):
            raise ValueError(f"lsh.bits must be from 1 to 62, lsh.tables and lsh.rerank >= 1, got {self.lsh}")

    # ---- training lists -----------------------------------------------------------------------------------------

    def fit(self, lists: TrainingLists) -> dict[str, Any]:
        """Cluster the training lists; returns findings about the clusters, plain values."""
        findings: dict[str, Any] = {}
        labels = torch.zeros(len(self.numbers), len(lists), dtype=torch.int64, device=lists.device)
        if max(self.numbers) > 1:
            shapes, findings = self._training_shapes(lists)
            found = cluster(shapes, self.numbers, self.kind, min_size=self.min_lists, seed=self.seed)
            labels = found.labels if self.partition == "clouds" else self._dealt(found.labels)
            findings["clustered from a sample"] = found.sampled
            store(self, **shapes._asdict())
        store(self, labels=labels)
        sizes = (row[row >= 0].bincount().tolist() for row in labels)
        return findings | {"cluster sizes": dict(zip(map(str, self.numbers), sizes, strict=True))}

    def _training_shapes(self, lists: TrainingLists) -> tuple[Shapes, dict[str, Any]]:
        """Shapes of the lists of all processes (each process fills in its own), and findings about them."""
        width = next(iter(lists)).x.shape[1]
        components = min(MOST_COMPONENTS if self.components == "auto" else int(self.components), width)
        none = make_shapes(torch.zeros(0, width), torch.zeros(1, dtype=torch.int64), self.kind, components)
        into = tuple(lists.zeros(len(lists), *part.shape[1:]) for part in (*none[0], none[1]))

        def fill(batch: Batch, into: tuple[Tensor, ...]) -> None:
            found, total = self._shapes(batch, components)
            for whole, part in zip(into, (*found, total), strict=True):
                whole[batch.query] = part.double()

        points, spread, ranks, total = lists.total(fill, into=into)
        found = Shapes(points.float(), spread.float(), ranks.long())
        if self.kind not in DIRECTIONS:
            return found, {}
        if self.components == "auto":
            components = choose_components(spread, total, found.ranks, self.variance, MOST_COMPONENTS)
        share = (spread[:, :components].sum(1) / total)[found.ranks > 0].mean()
        findings = {"components": components, "explained variance": round(float(share), 4)}
        found = Shapes(found.points[:, :components], found.spread[:, :components], found.ranks.clamp(max=components))
        return found, findings

    def _shapes(self, batch: Batch, components: int) -> tuple[Shapes, Tensor]:
        found, total = make_shapes(batch.dense, batch.offsets, self.kind, components)
        return Shapes(found.points.to(self.points.dtype), found.spread.to(self.points.dtype), found.ranks), total

    def _dealt(self, labels: Tensor) -> Tensor:
        """The labels in a random order among the lists that have one: the placebo."""
        dealt = labels.clone()
        for number, row in enumerate(labels):
            inside = (row >= 0).nonzero().flatten()
            order = torch.randperm(len(inside), generator=torch.Generator().manual_seed(self.seed))
            dealt[number, inside] = row[inside[order.to(row.device)]]
        return dealt

    # ---- other lists --------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Shapes:
        """Shapes of the training lists."""
        return Shapes(self.points, self.spread, self.ranks)

    def nearest(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Similarity (Q,) and position (Q,) of the most similar training list; -1 for lists without a shape."""
        found, _ = self._shapes(batch, self.points.shape[1])
        if self.lsh is None:
            return most_similar(found, self.shapes, self.kind)
        tables, rerank = self._tables(self.lsh["tables"], self.lsh["bits"]), self.lsh["rerank"]
        similarity, place, _ = hashed_nearest(self.points, self.ranks, tables, found.points, found.ranks, rerank=rerank)
        return similarity[:, 0], torch.where(found.ranks > 0, place[:, 0], -1)

    def _tables(self, tables: int, bits: int) -> HashTables:
        def make() -> HashTables:
            components, width = self.points.shape[1:]
            planes = make_planes(components, tables, bits, width, self.seed).to(self.points.device)
            return build_tables(self.points, self.ranks, planes)

        return self.derived("tables", [self.points, self.ranks], make)

    def of(self, place: Tensor, row: int) -> Tensor:
        """Clusters of the training lists at these positions; -1 where there is none."""
        return torch.where(place < 0, -1, self.labels[row, place.clamp(min=0)])

    def closest(self, batch: Batch, row: int) -> Tensor:
        """Similarity (Q, C) of each list to the most similar training list of each cluster."""
        found, _ = self._shapes(batch, self.points.shape[1])
        return group_similarity(compare(found, self.shapes, self.kind), self.labels[row])


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

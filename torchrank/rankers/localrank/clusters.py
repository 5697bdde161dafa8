"""Clusters of training lists by the shapes of their clouds, and the cluster of any other list."""

from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.functional.clouds import choose_components
from torchrank.rankers.core.ranker import Ranker
from torchrank.solvers.clouds.groups import group_similarity
from torchrank.solvers.clouds.hashing import HashTables, build_tables, hashed_nearest, make_planes
from torchrank.solvers.clouds.shapes import DIRECTIONS, SHAPES, Shapes, cluster, compare, make_shapes, most_similar

MOST_COMPONENTS = 20  # of components="auto"


class QueryClusters(nn.Module):
    """The training lists in each of some numbers of clusters, by one dendrogram; see `LocalRank` for the options."""

    labels: Tensor  # (numbers, Q) cluster of each training list, -1: none
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
        self.hashed: HashTables | None = None  # made when they are first needed
        self._check()
        for name in ("labels", "ranks"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))
        for name in ("points", "spread"):
            self.register_buffer(name, torch.zeros(0))

    def _check(self) -> None:
        for name, value, choices in (
            ("similarity", self.kind, SHAPES),
            ("partition", self.partition, ("clouds", "random")),
        ):
            if value not in choices:
                raise ValueError(f"unknown {name}={value!r}: choose one of {', '.join(choices)}")
        if isinstance(self.components, str) and self.components != "auto":
            raise ValueError(f"components={self.components!r} is a number of principal directions, or auto")
        counts = [*self.numbers, self.min_lists, 1 if self.components == "auto" else self.components]
        if not all(type(count) is int and count >= 1 for count in counts):
            given = f"clusters={self.numbers}, min_lists={self.min_lists}, components={self.components}"
            raise ValueError(f"{given}: all must be whole numbers, 1 at least")
        if self.lsh is not None and (self.kind != "ordered" or self.lsh.keys() != {"bits", "tables", "rerank"}):
            given = f"lsh={self.lsh} and similarity={self.kind}"
            raise ValueError(f"{given}: hashed search is for similarity=ordered, with bits, tables and rerank")
        if self.lsh is not None and (min(self.lsh.values()) < 1 or self.lsh["bits"] > 62):
            raise ValueError(f"lsh={self.lsh}: bits are 1 to 62, tables and rerank 1 at least")
        if not 0 < self.variance <= 1:
            raise ValueError(f"variance={self.variance} is a share of the variance: above 0, at most 1")

    # ---- training lists -----------------------------------------------------------------------------------------

    def fit(self, ranker: Ranker) -> dict[str, Any]:
        """Cluster the training lists of a ranker; what there is to say about it."""
        lists = len(ranker.data.sets["train"])
        told: dict[str, Any] = {}
        labels = torch.zeros(len(self.numbers), lists, dtype=torch.int64, device=ranker.device)
        if max(self.numbers) > 1:
            shapes, told = self._training_shapes(ranker)
            found = cluster(shapes, self.numbers, self.kind, min_size=self.min_lists, seed=self.seed)
            labels = found.labels if self.partition == "clouds" else self._dealt(found.labels)
            told["clustered from a sample"] = found.sampled
            self._write(ranker, shapes._asdict())
        self._write(ranker, {"labels": labels})
        sizes = (row[row >= 0].bincount().tolist() for row in labels)
        return told | {"cluster sizes": dict(zip(map(str, self.numbers), sizes, strict=True))}

    def _write(self, ranker: Ranker, values: dict[str, Tensor]) -> None:
        self.hashed = None
        ranker.store({f"clusters.{name}": value for name, value in values.items()})

    def _training_shapes(self, ranker: Ranker) -> tuple[Shapes, dict[str, Any]]:
        """Those of the lists of all processes: each fills in its own."""
        lists, width = len(ranker.data.sets["train"]), ranker.transform.num_outputs
        components = min(MOST_COMPONENTS if self.components == "auto" else int(self.components), width)
        none = make_shapes(torch.zeros(0, width), torch.zeros(1, dtype=torch.int64), self.kind, components)
        shapes = [(lists, *part.shape[1:]) for part in (*none[0], none[1])]
        into = tuple(torch.zeros(shape, dtype=torch.float64, device=ranker.device) for shape in shapes)

        def fill(batch: Batch, into: tuple[Tensor, ...]) -> None:
            found, total = self._shapes(batch, components)
            for whole, part in zip(into, (*found, total), strict=True):
                whole[batch.query] = part.double()

        points, spread, ranks, total = ranker.total(fill, into=into)
        found = Shapes(points.float(), spread.float(), ranks.long())
        if self.kind not in DIRECTIONS:
            return found, {}
        if self.components == "auto":
            components = choose_components(spread, total, found.ranks, self.variance, MOST_COMPONENTS)
        share = (spread[:, :components].sum(1) / total)[found.ranks > 0].mean()
        told = {"components": components, "explained variance": round(float(share), 4)}
        found = Shapes(found.points[:, :components], found.spread[:, :components], found.ranks.clamp(max=components))
        return found, told

    def _shapes(self, batch: Batch, components: int) -> tuple[Shapes, Tensor]:
        rows: Any = batch.flat().x
        found, total = make_shapes(rows, batch.offsets, self.kind, components)
        return Shapes(found.points.to(self.points.dtype), found.spread.to(self.points.dtype), found.ranks), total

    def _dealt(self, labels: Tensor) -> Tensor:
        """The same labels, at random among the lists that have one: the placebo."""
        dealt = labels.clone()
        for place, row in enumerate(labels):
            inside = (row >= 0).nonzero().flatten()
            turn = torch.randperm(len(inside), generator=torch.Generator().manual_seed(self.seed))
            dealt[place, inside] = row[inside[turn.to(row.device)]]
        return dealt

    # ---- other lists --------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Shapes:
        return Shapes(self.points, self.spread, self.ranks)

    def nearest(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Similarity (Q,) and place (Q,) of the most similar training list, -1 for lists without a shape."""
        found, _ = self._shapes(batch, self.points.shape[1])
        if self.lsh is None:
            return most_similar(found, self.shapes, self.kind)
        tables, rerank = self._tables(self.lsh["tables"], self.lsh["bits"]), self.lsh["rerank"]
        similarity, place, _ = hashed_nearest(self.points, self.ranks, tables, found.points, found.ranks, rerank=rerank)
        return similarity[:, 0], torch.where(found.ranks > 0, place[:, 0], -1)

    def _tables(self, tables: int, bits: int) -> HashTables:
        if self.hashed is None or self.hashed.codes.device != self.points.device:
            components, width = self.points.shape[1:]
            planes = make_planes(components, tables, bits, width, self.seed).to(self.points.device)
            self.hashed = build_tables(self.points, self.ranks, planes)
        return self.hashed

    def of(self, place: Tensor, row: int) -> Tensor:
        """Cluster of the training lists at these places, -1 where there is none."""
        return torch.where(place < 0, -1, self.labels[row, place.clamp(min=0)])

    def closest(self, batch: Batch, row: int) -> Tensor:
        """Largest similarity to a training list of each cluster (Q, C)."""
        found, _ = self._shapes(batch, self.points.shape[1])
        return group_similarity(compare(found, self.shapes, self.kind), self.labels[row])

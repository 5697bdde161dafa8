"""Adapter: linear maps of given vectors of queries and documents that rank a corpus better."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import torchrank
from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import DataError, check_choice, check_integer, check_number, check_options
from torchrank.functional.corpus import SIMILARITIES, document_ranks, whole_tiles
from torchrank.functional.losses import LOSSES
from torchrank.functional.ragged import per_entry
from torchrank.rankers.adapter.gradient import Descent
from torchrank.rankers.adapter.lists import NEGATIVES
from torchrank.rankers.adapter.maps import LinearMap, map_rows, root_change
from torchrank.rankers.adapter.metrics import CuttingPlanes, GeometricMeans
from torchrank.rankers.adapter.mining import INDEXES
from torchrank.rankers.core.checkpoints import options_of
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.neural.ranker import OF_CALLS
from torchrank.solvers.metric_scores import fills_table, table_places

SIDES = ("query", "document", "both")
SOLVERS = ("gradient", "gmml", "mlr", "rmlr")
SCORED, LEARNED = 4, 32  # numbers of a table per entry: slopes cost a gathered row four passes more
SHORTEST = 1e-150  # what a length is divided by at least: the slopes of a vector of zeros are finite


class Adapter(Ranker):
    """Linear maps of given vectors, learned from a few judged queries, by which a corpus is ranked better.

    It starts at the identity and is pulled towards it, so that a few hundred queries do no harm; the first round
    changes nothing, so that the vectors as they are take part in the choice on validation. With `side="query"` the
    vectors of the documents, and an index over them, stay as they are.

    With `solver="gradient"` a round is a pass over the training queries. The other solvers learn a metric W, both sides
    are mapped by its root, and documents rank by their distance from the query: `gmml` in closed form, `mlr` and `rmlr`
    by cutting planes around the identity. Then every round is a whole fit with other settings.

    Args:
        num_features: numbers of a vector.
        side: the vectors that are mapped: query, document, or both by one map each; both by one map if a metric is
            learned.
        rank: of the change of the vectors; None: full.
        similarity: cosine, inner (product), or euclidean; not inner if a metric is learned.
        loss: a key of `torchrank.functional.LOSSES`.
        loss_options: of the loss, such as {"k": 10} of lambdarank.
        temperature: the loss sees similarities divided by it.
        pull: weight of half the squared norm of the change, which is added to the mean loss of the queries.
        negatives: what relevant documents compete with: mined (the nearest documents of the corpus), random ones, batch
            (the relevant documents of the other queries of the step), or all entries of a list.
        num_negatives: how many of them are mined or drawn for each query.
        refresh: negatives are mined or drawn again after so many rounds; None: once, at the start. Those that are mined
            once are pushed away, and others take their place.
        index: negatives are mined by exact search, or by an index of faiss, whose recall is told.
        batch_queries: queries of a step.
        lr: learning rate of Adam.
        solver: gradient, gmml, mlr or rmlr.
        solver_options: of gmml `t` and `ridge`; of mlr `measure`, `k`, `C`, `eps` and `cuts`, of rmlr `lam` too. Where
            `ridge` or `C` is a list, each of them is a round.
        seed: draws the order of the queries, and random negatives.
        rounds: most passes over the training queries, of which the first one changes nothing.

    Example:
        >>> import numpy as np
        >>> from torchrank.data import Judged, RankingSet
        >>> corpus, queries = torch.eye(3), torch.tensor([[1.0, 0.9, 0.0]]).repeat(4, 1)
        >>> relevance = Judged(torch.ones(4, dtype=torch.long), torch.ones(4), np.ones(4, dtype=int), num_rows=3)
        >>> ranker = Adapter(3, rounds=30, pull=0.0, lr=0.1)
        >>> ranker = ranker.fit(RankingSet(corpus, relevance, queries=queries))
        >>> ranker.rank(corpus, torch.tensor([0, 3]), queries=queries[:1], index=torch.arange(3))
        tensor([1, 2, 0])
    """

    takes = frozenset({"corpus", "queries"})
    ranks_corpus = True
    corpus_entries = 2**22  # of which only scores are made
    learner: Any

    def __init__(
        self,
        num_features: int,
        side: str = "query",
        rank: int | None = None,
        similarity: str = "cosine",
        loss: str = "domination",
        loss_options: dict[str, Any] | None = None,
        temperature: float = 0.05,
        pull: float = 0.3,
        negatives: str = "mined",
        num_negatives: int = 100,
        refresh: int | None = 1,
        index: str = "exact",
        batch_queries: int = 64,
        lr: float = 1e-3,
        solver: str = "gradient",
        solver_options: dict[str, Any] | None = None,
        seed: int = 0,
        rounds: int = 100,
    ):
        check_choice(SOLVERS, solver=solver)
        check_choice(SIMILARITIES, similarity=similarity)
        is_metric = solver != "gradient"
        super().__init__(num_features, "unit" if is_metric and similarity == "cosine" else None, rounds)
        check_choice(SIDES, side=side)
        check_choice(NEGATIVES, negatives=negatives)
        check_choice(INDEXES, index=index)
        check_choice([name for name in LOSSES if name != "ordinal"], loss=loss)
        check_integer(">= 1", rank=rank, num_negatives=num_negatives, refresh=refresh, batch_queries=batch_queries)
        check_integer(">= 0", seed=seed)
        check_number("> 0", temperature=temperature, lr=lr)
        check_number(">= 0", pull=pull)
        check_options(f"the loss {loss!r}", LOSSES[loss], loss_options or {}, OF_CALLS)
        self.side, self.similarity, self.solver = "both" if is_metric else side, similarity, solver
        self.maps = nn.ModuleDict(
            {each: LinearMap(num_features, rank) for each in SIDES[:2] if self.side in (each, "both")}
        )
        self.maps.requires_grad_(False)  # a round takes its gradients by itself
        if is_metric:
            self._check_metric(rank)
            self.learner = _metric_learner(solver, num_features, solver_options or {})
            self.is_path = True
            self.use_rounds(1 + len(self.learner.path))
        else:
            if solver_options:
                raise ValueError(f"solver_options are those of {', '.join(SOLVERS[1:])}: leave them out")
            self.learner = Descent(
                self.maps, LOSSES[loss], loss_options or {}, temperature=temperature, pull=pull, lr=lr,
                negatives=negatives, num_negatives=num_negatives, refresh=refresh, index=index,
                batch_queries=batch_queries, seed=seed,
            )  # fmt: skip

    def _check_metric(self, rank: int | None) -> None:
        if self.similarity == "inner":
            raise ValueError(f"solver={self.solver} learns distances: set similarity=cosine or euclidean")
        if rank is not None:
            raise ValueError(f"solver={self.solver} learns a metric of full rank: leave rank out")

    # ---- scoring ------------------------------------------------------------------------------------------------

    def images(self, vectors: Tensor, side: str) -> Tensor:
        """The vectors (n, D) of the queries or documents as they are compared: mapped, and for cosine of length 1."""
        return self.images_by(self.maps, vectors, side)

    def score(self, batch: Batch) -> Tensor:
        return self.scores_by(self.maps, batch)

    def corpus_ranks(self, batch: Batch) -> Tensor:
        """The rank (N,) from 1 of each entry among all rows of the corpus of its batch."""
        index: Any = batch.index
        if not self.is_path:
            left, right = self.searched(self.maps, *_vectors(batch))
            return document_ranks(index, left, right, batch.offsets, similarity=self.similarity, order=batch.order)
        left, right, beside = self._compared(self.maps, batch)
        if beside is not None and beside.any():  # a further number, whose product is added
            left, right = torch.cat([left, left.new_ones(len(left), 1)], 1), torch.cat([right, beside[:, None]], 1)
        similarity = "euclidean" if beside is None else "inner"
        return document_ranks(index, left, right, batch.offsets, similarity=similarity, order=batch.order)

    @staticmethod
    def searched(maps: nn.ModuleDict, queries: Tensor, documents: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of queries (Q, D) and documents (n, D) that are compared by `similarity`, without a copy of
        documents that are not mapped."""
        left, right = (
            map_rows(maps[side], vectors) if side in maps else vectors
            for side, vectors in (("query", queries), ("document", documents))
        )
        return left, right

    def images_by(self, maps: nn.ModuleDict, vectors: Tensor, side: str) -> Tensor:
        """`images` by given maps; half precision is widened."""
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        mapped = maps[side](vectors) if side in maps else vectors
        if self.similarity == "cosine" and not self.is_path:
            return normalize(mapped, dim=1, eps=max(torch.finfo(mapped.dtype).tiny, SHORTEST))
        return mapped

    def scores_by(self, maps: nn.ModuleDict, batch: Batch) -> Tensor:
        """`score` by given maps."""
        left, right, beside = self._compared(maps, batch)
        learns = left.requires_grad or right.requires_grad
        if fills_table(batch, LEARNED if learns else SCORED):
            table = (left @ (right if learns else whole_tiles(right)).T)[:, : len(right)]
            found = table.flatten().index_select(0, table_places(batch))
        else:
            found = (per_entry(left, batch.offsets, len(batch.labels)) * batch.at_entries(right)).sum(1)
        if self.similarity == "euclidean":
            sizes = per_entry(left.square().sum(1), batch.offsets, len(found))
            return 2 * found - sizes - batch.at_entries(right.square().sum(1))
        return found if beside is None else found + batch.at_entries(beside)

    def _compared(self, maps: nn.ModuleDict, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Images of the queries and of the rows, and what is added to the inner products with each row.

        Under a metric the distance of images of vectors v of length 1 is ranked by l.r + (|v|^2 - |r|^2) / 2, which is
        the cosine to the bit where the metric is the identity.
        """
        queries, rows = _vectors(batch)
        left, right = self.images_by(maps, queries, "query"), self.images_by(maps, rows, "document")
        if not self.is_path or self.similarity == "euclidean":
            return left, right, None
        return left, right, (rows.to(right.dtype).square().sum(1) - right.square().sum(1)) / 2

    # ---- beside scoring -----------------------------------------------------------------------------------------

    def baseline(self) -> Adapter:
        """The adapter that changes nothing."""
        return type(self)(**options_of(self)).to(self.device).eval()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the maps to a folder for use elsewhere, or a checkpoint if the path ends in `.ckpt`.

        Args:
            path: of a folder that numpy, sentence-transformers and `torchrank apply` read, see
                `torchrank.load_adapter`; or `NAME.ckpt`, which `torchrank.load` reads.

        Returns:
            The path.
        """
        if Path(path).suffix == ".ckpt":
            return super().save(path)
        matrices: dict[str, Any] = {side: each.matrix() for side, each in self.maps.items()}  # type: ignore[operator]
        written: Path = torchrank.find_export("save_adapter")(
            path,
            query=matrices.get("query"),
            document=matrices.get("document"),
            normalise=None if self.similarity != "cosine" else "vectors" if self.is_path else "images",
            similarity=self.similarity if not self.is_path else "euclidean",
        )
        return written

    def export(self, path: str | PathLike[str], to: str | None = None) -> Path:
        """Write the maps to a folder, as `save` does: a graph or a JSON file of one list has no query vectors."""
        is_file = to is not None or Path(path).suffix.lower() in (".onnx", ".pt2", ".json")
        return super().export(path, to) if is_file else self.save(path)

    # ---- learning -----------------------------------------------------------------------------------------------

    def start(self, lists: TrainingLists) -> None:
        if lists.lists.queries is None:
            raise DataError("Adapter learns from query vectors, but these lists have none: use data=embeddings")
        if self.is_path:
            self.learner.start(self, lists)

    def open(self, lists: TrainingLists) -> None:
        self.learner.open(self, lists)

    def round(self, lists: TrainingLists, number: int) -> Round:
        """The first round changes nothing."""
        if number == 0:
            return Round(done=False, findings={"index": "stays as it is: the vectors are not changed"})
        found, stays = self._learned(lists, number), self.side == "query"
        index = "stays as it is: query vectors alone are mapped" if stays else "must be rebuilt from mapped documents"
        return found._replace(findings={**found.findings, "index": index})

    def _learned(self, lists: TrainingLists, number: int) -> Round:
        if not self.is_path:
            descended: Round = self.learner.round(self, lists, number)
            return descended
        metric, found = self.learner.metric(self, lists, number - 1)
        for each in self.maps.parameters():
            each.copy_(root_change(metric))
        return found  # type: ignore[no-any-return]


def _vectors(batch: Batch) -> tuple[Tensor, Tensor]:
    """The vectors of the queries, and the rows."""
    if batch.queries is None:
        raise DataError("Adapter compares documents with query vectors, but these lists have none: pass queries=")
    rows: Any = batch.x
    return batch.queries.to(torch.promote_types(rows.dtype, torch.float32)), rows  # half precision is widened later


def _metric_learner(solver: str, width: int, options: dict[str, Any]) -> GeometricMeans | CuttingPlanes:
    """The learner of a metric, with its own options."""
    if solver == "gmml":
        check_options(f"solver={solver}", GeometricMeans, options, ())
        return GeometricMeans(**options)
    given = ("width", "robust", *(() if solver == "rmlr" else ("lam",)))
    check_options(f"solver={solver}", CuttingPlanes, options, given)
    return CuttingPlanes(width, solver == "rmlr", **options)

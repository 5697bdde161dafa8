"""The documents nearest to each query: exactly, or from an index of faiss, whose recall is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from torchrank.data.sampler import shard
from torchrank.data.training import TrainingLists
from torchrank.functional.corpus import search

INDEXES = ("exact", "faiss")
CHECKED = 100  # queries by which the recall of an index is measured
NEIGHBOURS, DEPTH = 32, 128  # links of a document of faiss's graph, and candidates that a search holds


class Mine:
    """A corpus that is searched for negatives. It is divided among the processes by queries.

    Args:
        lists: of the fit.
        similarity: of the vectors that are compared: inner, cosine, or euclidean.
        k: documents of each query.
        index: exact, or faiss: a graph (HNSW), which is built again when documents have changed.
    """

    def __init__(self, lists: TrainingLists, similarity: str, k: int, index: str):
        self.lists, self.similarity, self.k, self.index = lists, similarity, k, index
        self.recall: float | None = None  # of the index at its last search
        places = lists.lists.id_places()
        self._order = None if places is None else places.argsort(stable=True)  # of equal scores
        self._graph: Any = None
        self._built_of: Tensor | None = None

    def nearest(self, queries: Tensor, documents: Tensor) -> np.ndarray:
        """The k documents (Q, k) nearest to each query of all processes, the same in all of them."""
        first, last = shard(self.lists.lists.lengths, self.lists.rank, self.lists.world)
        found = torch.zeros(len(queries), min(self.k, len(documents)), dtype=torch.int64, device=queries.device)
        if last > first:
            found[first:last] = self._searched(queries[first:last], documents)
        return self.lists.reduce(found).cpu().numpy()

    def _searched(self, queries: Tensor, documents: Tensor) -> Tensor:
        if self.index == "exact":
            return search(queries, documents, self.k, similarity=self.similarity, order=self._order).rows
        if self._built_of is not documents:
            self._graph, self._built_of = graph_of(documents, self.similarity), documents
        k = min(self.k, len(documents))
        rows = torch.from_numpy(self._graph.search(_taken(queries, self.similarity), k)[1]).to(queries.device)
        some = slice(0, None, -(-len(queries) // CHECKED))
        exact = search(queries[some], documents, k, similarity=self.similarity).rows
        self.recall = float((rows[some][:, :, None] == exact[:, None]).any(2).double().mean())
        return torch.where(rows >= 0, rows, rows[:, :1].clamp(min=0))  # -1: it has found fewer than k


def graph_of(documents: Tensor, similarity: str) -> Any:
    """faiss's graph over the documents."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("index=faiss needs faiss: pip install 'torchrank-ltr[faiss]'") from error
    metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
    graph = faiss.IndexHNSWFlat(documents.shape[1], NEIGHBOURS, metric)
    graph.hnsw.efSearch = DEPTH
    graph.add(_taken(documents, similarity))
    return graph


def _taken(vectors: Tensor, similarity: str) -> np.ndarray:
    """Vectors as faiss takes them, which has no cosine."""
    vectors = vectors.float()
    found: np.ndarray = (normalize(vectors, dim=1) if similarity == "cosine" else vectors).cpu().numpy()
    return found


def drawn(lists: TrainingLists, k: int, seed: tuple[int, ...]) -> np.ndarray:
    """k documents at random for each query (Q, k), the same in every process."""
    return np.random.default_rng(seed).integers(len(lists.lists.x), size=(len(lists), k))

"""What all rankers by a learned metric share: distances from the query, and the space in which they are Euclidean."""

from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch, as_floats
from torchrank.functional.ragged import wide
from torchrank.rankers.core.ranker import Ranker
from torchrank.solvers.cutting_plane.psi import component_scores


class DistanceRanker(Ranker):
    """Scores s = -|L (q - x)|^2 for `components` L (r, D), of the transformed features: the metric is W = L'L."""

    takes = frozenset({"corpus", "queries"})
    corpus_entries = 2**20  # at once: scores of 8 MB
    components: Any  # (r, D)

    def score(self, batch: Batch) -> Tensor:
        self.check_queries(batch.queries is not None)
        return component_scores(batch, wide(self.components))

    def get_mahalanobis_matrix(self) -> Tensor:
        """W (D, D)."""
        components = self.components.detach().double()
        return components.T @ components

    def embed(self, x: Tensor) -> Tensor:
        """Rows (n, D) in the space whose squared Euclidean distances are those of the metric: transformed, times L'."""
        rows: Any = self.transform(as_floats(x), torch.tensor([0, len(x)]))
        return rows @ self.components.detach().to(rows.dtype).T

    def check_queries(self, there: bool) -> None:
        if not there:
            raise ValueError(
                f"{type(self).__name__} learns distances from query vectors, and these lists have none: use "
                "data=points, retrieval or gaussian (queries= of a call), or SVMMap for documents with features of "
                "their own."
            )

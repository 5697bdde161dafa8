"""Rankers that learn a distance from the query, and structural SVMs trained by cutting planes."""

from torch import Tensor

from torchrank.data.batch import Batch, as_floats
from torchrank.data.transforms import one_list
from torchrank.errors import DataError
from torchrank.functional.ragged import wide
from torchrank.rankers.core.ranker import Ranker
from torchrank.solvers.metric_scores import component_scores


class DistanceRanker(Ranker):
    """Scores s = -|L (q - x)|^2 of the transformed features, where `components` are L (r, D): the metric is W = L'L."""

    takes = frozenset({"corpus", "queries"})
    corpus_entries = 2**20  # their scores take 8 MB
    components: Tensor  # (r, D)

    def score(self, batch: Batch) -> Tensor:
        self.check_queries(batch.queries is not None)
        return component_scores(batch, wide(self.components))

    def get_mahalanobis_matrix(self) -> Tensor:
        """The metric W (D, D) of the transformed features."""
        components = self.components.detach().double()
        return components.T @ components

    def embed(self, x: Tensor) -> Tensor:
        """Images (n, r) of rows (n, D): their squared Euclidean distances are the distances under the metric."""
        x = as_floats(x)
        rows: Tensor = self.transform(x, one_list(x))
        return rows @ self.components.detach().to(rows.dtype).T

    def check_queries(self, there: bool) -> None:
        """Refuse lists without query vectors."""
        if not there:
            raise DataError(
                f"{type(self).__name__} learns distances from query vectors, but these lists have none: use "
                "data=points, retrieval or gaussian, pass queries= to the call, or use SVMMap for documents with "
                "features of their own."
            )

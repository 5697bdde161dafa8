"""The baseline below which nothing should be: a random order."""

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.rankers.core.ranker import Ranker, TransformOption
from torchrank.rankers.core.rounds import Round


class RandomRanker(Ranker):
    """Ranks by numbers that look random but depend on the row alone, so that a document has the same score wherever it
    is: the digits of a random projection far behind the point. It learns nothing.

    Args:
        num_features: number of columns of the rows.
        seed: draws the projection.
        transform: feature transform, see `make_transform`.

    Example:
        >>> ranker, x = RandomRanker(3), torch.eye(3)
        >>> torch.equal(ranker(x, torch.tensor([0, 3])), ranker(x.flip(0), torch.tensor([0, 3])).flip(0))
        True
    """

    takes = frozenset({"sparse", "corpus", "queries"})
    projection: Tensor  # (D,)

    def __init__(self, num_features: int, seed: int = 0, transform: TransformOption = None):
        super().__init__(num_features, transform, rounds=1)
        drawn = torch.rand(
            self.transform.num_outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        self.register_buffer("projection", 1e4 * (1 + drawn))

    def score(self, batch: Batch) -> Tensor:
        found = batch.x.to(dtype=torch.float64) @ self.projection.double()
        return batch.at_entries(torch.frac(found).abs()).to(batch.x.dtype)

    def round(self, lists: TrainingLists, number: int) -> Round:
        return Round(done=True)

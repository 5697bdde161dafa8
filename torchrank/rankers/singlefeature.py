"""The baseline that every ranker should beat: a single feature, ascending or descending."""

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.errors import check_integer
from torchrank.functional import ndcg
from torchrank.functional.ragged import by_column, first_largest
from torchrank.rankers.core.ranker import Ranker, TransformOption
from torchrank.rankers.core.rounds import Round


class SingleFeature(Ranker):
    """Ranks by the feature and the sign with the best mean NDCG@k on the training lists; of equal ones the first.

    Documents with equal values count with the mean over all their orders; otherwise a constant feature would profit
    from the order of the file.

    Args:
        num_features: number of columns of the rows.
        k: cut-off of NDCG.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[5.0, 0.0], [7.0, -2.0], [6.0, -1.0]]), torch.tensor([0, 3])
        >>> ranker = SingleFeature(2).fit(RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets))
        >>> int(ranker.feature), float(ranker.sign), ranker.rank(x, offsets)
        (0, 1.0, tensor([1, 2, 0]))
    """

    feature: Tensor
    sign: Tensor

    def __init__(self, num_features: int, k: int = 10, transform: TransformOption = None):
        super().__init__(num_features, transform, rounds=1)
        check_integer(">= 1", k=k)
        self.k = k
        self.register_buffer("feature", torch.tensor(0))
        self.register_buffer("sign", torch.tensor(1.0))

    def score(self, batch: Batch) -> Tensor:
        return self.sign.to(batch.x.dtype) * batch.dense[:, self.feature]

    def entry_bytes(self, width: int) -> int:
        return super().entry_bytes(6 * width)  # every feature is sorted and measured

    def round(self, lists: TrainingLists, number: int) -> Round:
        best, width = first_largest(lists.total(self.quality)), self.transform.num_outputs
        self.feature.copy_(best % width)
        self.sign.copy_(1.0 - 2.0 * (best // width))
        return Round(done=True)

    def quality(self, batch: Batch) -> Tensor:
        """NDCG@k summed over the lists, (2 D,): by every feature, then by every negated feature."""
        x = batch.dense.double()
        options = {"k": self.k, "ties": "average", "empty": 0.0}
        found = [by_column(ndcg, scores, batch.labels, batch.offsets, **options) for scores in (x, -x)]
        return torch.cat([values.sum(0) for values in found])

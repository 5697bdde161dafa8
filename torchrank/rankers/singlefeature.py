"""The yardstick below which no ranker should fall: one feature, one sign."""

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.measures import ndcg
from torchrank.rankers.core.ranker import RoundRanker


class SingleFeature(RoundRanker):
    """Ranks by the feature and the sign with the best mean NDCG@k on the training lists; of equal ones the first.

    Equal values count with the mean over their orders, or a constant feature would profit from the order of the file.
    """

    feature: Tensor
    sign: Tensor

    def __init__(self, num_features: int, k: int = 10, transform: str | dict | list | None = None):
        super().__init__(num_features, transform, rounds=1)
        self.k = k
        self.register_buffer("feature", torch.tensor(0))
        self.register_buffer("sign", torch.tensor(1.0))

    def score(self, batch: Batch) -> Tensor:
        return self.sign.to(batch.x.dtype) * dense(batch)[:, self.feature]

    def round(self) -> bool:
        sums = self.total(self.quality)
        best = torch.argmax((sums >= sums.max() - 1e-12).to(torch.int8))
        self.feature.copy_(best % self.transform.num_outputs)
        self.sign.copy_(1.0 - 2.0 * (best // self.transform.num_outputs))
        return True

    def quality(self, batch: Batch) -> Tensor:
        """Sum over the lists of NDCG@k by every feature (D,), then by every negated feature (D,)."""
        x = dense(batch)
        num_entries, num_columns = x.shape
        starts = torch.arange(num_columns, device=batch.device) * num_entries  # column j is a run of lists of its own
        offsets = torch.cat([(batch.offsets[:-1] + starts[:, None]).flatten(), starts[-1:] + num_entries])
        values = x.T.double().flatten()
        labels = batch.labels.repeat(num_columns)
        return torch.cat(
            [
                ndcg(scores, labels, offsets, k=self.k, ties="average", empty=0.0, max_length=batch.max_length)
                .view(num_columns, batch.num_lists)
                .sum(1)
                for scores in (values, -values)
            ]
        )


def dense(batch: Batch) -> Tensor:
    assert isinstance(batch.x, Tensor)  # the base class has refused sparse rows
    return batch.x

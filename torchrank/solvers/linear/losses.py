"""Losses of lists under many columns of scores, with their slopes in closed form."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.functional.arrays import to_offsets
from torchrank.functional.losses.listnet import listnet_slopes
from torchrank.functional.ragged import list_ids, pairs, segment_softmax, wide


class ListNetLoss(NamedTuple):
    """Cross entropy of softmax(labels) and softmax(scores): `listnet_loss` for lists with different labels."""

    offsets: Tensor  # (Q+1,)
    target: Tensor  # (N,)

    @classmethod
    def of(cls, labels: Tensor, offsets: Tensor) -> "ListNetLoss":
        return cls(offsets, segment_softmax(wide(labels), offsets))

    @property
    def work(self) -> Tensor:
        """Values that each list needs for one column of scores (Q,)."""
        return self.offsets.diff()

    @property
    def ends(self) -> Tensor:
        """Where the values of each list begin and end (Q+1,)."""
        return self.offsets

    def block(self, first: int, last: int, inside: slice) -> "ListNetLoss":
        """The lists from `first` up to `last`, whose values are those `inside`."""
        return ListNetLoss(self.offsets[first : last + 1] - inside.start, self.target[inside])

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (Q, A) and its slopes (N, A) in the scores (N, A)."""
        return listnet_slopes(scores, self.target, self.offsets)


class RankSVMLoss(NamedTuple):
    """Mean of max(0, 1 - (s_i - s_j))^2 over the pairs of a list with y_i > y_j."""

    offsets: Tensor  # (Q+1,)
    winner: Tensor  # (P,)
    loser: Tensor  # (P,)
    bounds: Tensor  # (Q+1,) where the pairs of each list begin

    @classmethod
    def of(cls, labels: Tensor, offsets: Tensor) -> "RankSVMLoss":
        winner, loser = pairs(labels, offsets)
        count = torch.bincount(list_ids(offsets, len(labels))[winner], minlength=len(offsets) - 1)
        return cls(offsets, winner, loser, to_offsets(count))

    @property
    def work(self) -> Tensor:
        return torch.maximum(self.bounds.diff(), self.offsets.diff())

    @property
    def ends(self) -> Tensor:
        return self.bounds

    def block(self, first: int, last: int, inside: slice) -> "RankSVMLoss":
        ends, bounds = self.offsets[first : last + 1], self.bounds[first : last + 1] - inside.start
        return RankSVMLoss(ends - ends[0], self.winner[inside] - ends[0], self.loser[inside] - ends[0], bounds)

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        ids = list_ids(self.bounds, len(self.winner))
        share = 1 / wide(self.bounds.diff())[ids, None]
        short = (1 - scores[self.winner] + scores[self.loser]).clamp_(min=0)  # (P, A)
        loss = scores.new_zeros(len(self.offsets) - 1, scores.shape[1]).index_add_(0, ids, short * short * share)
        slopes = torch.zeros_like(scores).index_add_(0, self.loser, short.mul_(2 * share))
        return loss, slopes.index_add_(0, self.winner, short, alpha=-1)


LOSSES: dict[str, Any] = {"listnet": ListNetLoss, "ranksvm": RankSVMLoss}

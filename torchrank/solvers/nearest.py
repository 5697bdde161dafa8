"""Lists cut to the neighbourhood of their query: what a metric can still get right."""

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.functional.ragged import ranks
from torchrank.solvers.cutting_plane.psi import metric_scores
from torchrank.solvers.narrowing import narrow

IMPOSTORS = 3  # for each relevant neighbour


def keep_nearest(batch: Batch, neighbours: int, threshold: float) -> Batch:
    """The `neighbours` relevant entries nearest to each query, and three times as many of the nearest others, by the
    Euclidean distance of the (transformed) rows; of equal distances the first. After LMNN's target neighbours and
    impostors (Weinberger & Saul 2009): pairs far from the query, which no metric can order, are gone.
    """
    scores = metric_scores(batch, torch.ones(batch.x.shape[1], dtype=torch.float64, device=batch.device))
    relevant = batch.labels >= threshold

    def among(these: Tensor) -> Tensor:
        return ranks(torch.where(these, scores, -torch.inf), batch.offsets)

    near = relevant & (among(relevant) <= neighbours)
    return narrow(batch, near | (~relevant & (among(~relevant) <= IMPOSTORS * neighbours)))

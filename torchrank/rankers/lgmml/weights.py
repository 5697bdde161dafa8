"""The weights of local metrics: shared by all queries, a row for each training query, or a function of the list.

None of them ever depends on the labels of a list that is scored.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from torchrank.data.batch import Batch
from torchrank.data.training import TrainingLists
from torchrank.functional.ragged import per_entry, segment_sum

NEIGHBOURS = 10  # training queries whose rows are averaged into the weights of another one (fallback="knn")


class MetricWeights(nn.Module):
    """Learned `values`, and how they become the weights (M,) of a batch, or (Q, M) if its lists have different ones."""

    values: nn.Parameter
    live: Tensor  # (D,) 1, or 0 for a feature that was constant in training and must be ignored
    each_list = False  # whether each list has values of its own, so that a step on it is not divided by the lists

    def __init__(self, fallback: str):
        super().__init__()
        self.fallback = fallback
        self.values = nn.Parameter(torch.zeros(0), requires_grad=False)
        self.register_buffer("live", torch.zeros(0))

    def first(self, num_lists: int, num_metrics: int, num_features: int) -> Tensor:
        """Values with which all weights are 1."""
        return torch.ones(num_metrics, dtype=torch.float64)

    def learned(self, values: Tensor, batch: Batch, features: Tensor) -> Tensor:
        """Weights of training lists, differentiable in `values`; `features (N, M)` are the kernel values."""
        return values

    def of(self, batch: Batch, features: Tensor) -> Tensor:
        """Weights of any lists."""
        return self.learned(self.values, batch, features)

    def constant(self) -> Tensor | None:
        """The weights (M,) if they are the same for every list that was not learned from, otherwise None."""
        return None

    def projected(self, values: Tensor) -> Tensor:
        """The nearest values with which no weight is negative."""
        return values.clamp(min=0)

    def profiles_of(self, lists: TrainingLists, num_features: int) -> dict[str, Tensor]:
        """The buffers about the training lists that `of` needs, by name."""
        return {}


class SharedWeights(MetricWeights):
    """One weight per metric."""

    def constant(self) -> Tensor:
        return self.values


class QueryWeights(MetricWeights):
    """A row for every training query, as in the paper, which leaves open what weights other queries get."""

    each_list = True
    profiles: Tensor  # (Q, 2 D) standardised means and deviations of the features of the training lists, for "knn"
    profile_scale: Tensor  # (2, 2 D) mean and deviation of the profiles before they were standardised

    def __init__(self, fallback: str):
        super().__init__(fallback)
        self.register_buffer("profiles", torch.zeros(0, 0, dtype=torch.float64))
        self.register_buffer("profile_scale", torch.zeros(0, 0, dtype=torch.float64))

    def first(self, num_lists: int, num_metrics: int, num_features: int) -> Tensor:
        return torch.ones(num_lists, num_metrics, dtype=torch.float64)

    def learned(self, values: Tensor, batch: Batch, features: Tensor) -> Tensor:
        return values[batch.query]

    def of(self, batch: Batch, features: Tensor) -> Tensor:
        if (same := self.constant()) is not None:
            return same
        mean, deviation = self.profile_scale
        own = self.live.repeat(2) * (profile(batch) - mean) / deviation
        distances = torch.cdist(own, self.profiles, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.sort(dim=1, stable=True).indices[:, :NEIGHBOURS]
        return self.values[nearest].mean(1)

    def constant(self) -> Tensor | None:
        if self.fallback == "knn":
            return None
        return self.values.mean(0) if self.fallback == "mean" else torch.ones_like(self.values[0])

    def profiles_of(self, lists: TrainingLists, num_features: int) -> dict[str, Tensor]:
        if self.fallback != "knn":
            return {}

        def write(batch: Batch, into: tuple[Tensor, ...]) -> None:
            into[0][batch.query] = profile(batch)

        (profiles,) = lists.total(write, into=(lists.zeros(len(lists), 2 * num_features),))
        mean, deviation = profiles.mean(0), profiles.std(0, correction=0)
        scale = torch.stack((mean, torch.where(deviation > 0, deviation, 1.0)))
        return {"profiles": (profiles - mean) / scale[1], "profile_scale": scale}


class AmortizedWeights(MetricWeights):
    """softplus of a linear function of the list: the means over its documents of the kernel values and the features."""

    def first(self, num_lists: int, num_metrics: int, num_features: int) -> Tensor:
        values = torch.zeros(num_metrics, 1 + num_metrics + num_features, dtype=torch.float64)
        values[:, 0] = torch.tensor(1.0, dtype=torch.float64).expm1().log()  # softplus of it is 1
        return values

    def learned(self, values: Tensor, batch: Batch, features: Tensor) -> Tensor:
        both = torch.cat((features, batch.dense.to(features.dtype) * self.live), 1)
        means = segment_sum(both, batch.offsets) / batch.offsets.diff().clamp(min=1)[:, None]
        return softplus(pad(means, (1, 0), value=1.0).to(values.dtype) @ values.T)

    def projected(self, values: Tensor) -> Tensor:
        return values  # softplus is positive


WEIGHTS = {"shared": SharedWeights, "per_query": QueryWeights, "amortized": AmortizedWeights}


def profile(batch: Batch) -> Tensor:
    """Mean and standard deviation of the features of each list (Q, 2 D), float64; 0 for a list without entries."""
    rows = batch.dense.double()
    lengths = batch.offsets.diff().clamp(min=1)[:, None]
    mean = segment_sum(rows, batch.offsets) / lengths
    centred = rows - per_entry(mean, batch.offsets, len(rows))
    return torch.cat((mean, (segment_sum(centred.square(), batch.offsets) / lengths).sqrt()), 1)

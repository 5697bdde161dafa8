"""The closed form of L-GMML for the training lists of a ranker, and the scale of its distances."""

import torch
from torch import Tensor

from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.lgmml.compiled import CompiledMetrics
from torchrank.solvers.local_metrics.closed_form import LocalMetrics, MetricOptions, local_metrics

SAMPLE = 10_000  # training rows from which scales are taken
QUANTILES = {"median": 0.5, "q95": 0.95, "max": 1.0}


def closed_form(ranker: Ranker, options: MetricOptions, rows: Tensor) -> LocalMetrics:
    """The local metrics of a ranker's training lists; `rows` are any training rows."""
    train = ranker.data.sets["train"]
    return local_metrics(options, ranker.total, len(train), rows[0], train.classes)


def check_scale(by: str | float) -> str | float:
    """The option `tau`, refused where it is neither a quantile nor a positive number."""
    if isinstance(by, str) and by not in QUANTILES:
        raise ValueError(f"unknown tau={by!r}: choose one of {', '.join(QUANTILES)} or a number")
    if not isinstance(by, str) and not 0 < by < torch.inf:
        raise ValueError(f"tau={by} must be positive")
    return by


def distance_scale(found: LocalMetrics, rows: Tensor, by: str | float, *, one: bool = False) -> Tensor:
    """tau (M,): a quantile of the distances of `rows` from each anchor (`one`: from all anchors), or a number."""
    if not isinstance(by, str):
        return found.anchors.new_full((len(found.anchors),), by)
    shifts = torch.einsum("mdk,md->mk", found.factors, found.anchors)
    distances = CompiledMetrics(found.factors, shifts, dtype=torch.float64).distances(rows)
    distances = distances.flatten()[:, None] if one else distances
    ordered, place = distances.sort(0).values, QUANTILES[by] * (len(distances) - 1)
    low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    tau = torch.lerp(low, high, place - int(place)).expand(len(found.anchors))
    return torch.where(tau > 0, tau, 1.0)

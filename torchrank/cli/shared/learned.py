"""What a fitted ranker has learned, as plain values for a report: spectra of its metrics, weights of its features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrank.cli.shared import CHECKPOINT

if TYPE_CHECKING:
    from torch import Tensor

    from torchrank.data.sets import RankingSet
    from torchrank.rankers.core.ranker import Ranker

METRICS, FEATURES = 12, 25  # most metrics and features of a ranker that are shown
LISTS, REPEATS = 200, 3  # validation lists and permutations of measured importances
FLOOR = 1e-6  # smaller shares of a spectrum count as 0
LARGEST = 2**29  # bytes of a checkpoint that is still read for a figure


def learned_of(folder: Path, shuffled: bool = False) -> dict[str, Any]:
    """Spectra and importances of the ranker of a run folder; nothing if it has no checkpoint that can be read.

    With `shuffled` the importances are measured, by permutation on validation lists, which are read again.
    """
    path = folder / CHECKPOINT
    if not path.is_file() or path.stat().st_size > LARGEST:
        return {}
    from torchrank.rankers.core.checkpoints import load

    try:
        ranker = load(path)
        found = describe_learned(ranker)
    except (ValueError, OSError, ImportError, RuntimeError, KeyError):  # a figure less, not a report less
        return {}
    return found | {"importances": measured_importances(ranker, validation_of(folder))} if shuffled else found


def describe_learned(ranker: Ranker) -> dict[str, Any]:
    """What a ranker has learned, where its model says so by itself.

    Returns:
        "spectra", the shares of the eigenvalues of each metric; and "importances", the largest weights of features.
    """
    found: dict[str, Any] = {}
    if metrics := metrics_of(ranker):
        found["spectra"] = [{"label": name, **_spectrum(metric)} for name, metric in list(metrics.items())[:METRICS]]
    weights = weights_of(ranker)
    if weights is not None:
        found["importances"] = _largest(ranker, *weights)
    return found


def metrics_of(ranker: Ranker) -> dict[str, Tensor]:
    """The learned metrics (D, D) by name; of rankers without metrics none."""
    model: Any = ranker
    factors = getattr(model, "factors", getattr(getattr(model, "scorer", None), "factors", None))
    if factors is not None and factors.dim() == 3:
        first = ["all queries"] * ranker.has_groups
        names = [*first, *(f"{'group' if first else 'metric'} {place}" for place in range(len(factors) - len(first)))]
        return {name: factor @ factor.T for name, factor in zip(names, factors.detach().double(), strict=True)}
    if hasattr(model, "get_mahalanobis_matrix"):
        return {"metric": model.get_mahalanobis_matrix().detach().double()}
    return {}


def _spectrum(metric: Tensor) -> dict[str, Any]:
    import torch

    values = torch.linalg.eigvalsh(metric.cpu()).flip(0).clamp(min=0)
    shares = values / values.sum() if values.sum() > 0 else values
    return {"size": len(shares), "shares": [float(f"{share:.4g}") for share in shares.tolist() if share > FLOOR]}


def weights_of(ranker: Ranker) -> tuple[Tensor, str, str] | None:
    """A number for each feature, what it is in a sentence, and its name on an axis; None if the model has none."""
    from torchrank.rankers.trees.ranker import GBDTRanker

    model: Any = ranker
    if isinstance(ranker, GBDTRanker):
        return _gains(model)
    if hasattr(model, "feature") and hasattr(model, "alpha"):
        return _votes(model)
    weight = getattr(model, "weight", getattr(getattr(model, "scorer", None), "weight", None))
    if weight is not None and weight.numel() == ranker.num_features:
        return (
            weight.detach().double().flatten().cpu(),
            "Weights of the linear model, of transformed features",
            "weight",
        )
    return None


def _gains(ranker: Any) -> tuple[Tensor, str, str]:
    gains = ranker.importances()
    share = gains / gains.sum().clamp(min=1e-300)
    return share, "Share of the gain of all splits of the trees that use the feature", "share of the gain"


def _votes(ranker: Any) -> tuple[Tensor, str, str]:
    import torch

    votes = torch.zeros(ranker.num_features, dtype=torch.float64)
    votes.index_add_(0, ranker.feature.cpu(), ranker.alpha.detach().double().abs().cpu())
    return votes, "Sum of the weights of the weak rankers that use the feature, without their signs", "weight"


def validation_of(folder: Path) -> RankingSet:
    """The first validation lists of a run, read again as its configuration says."""
    import json

    from torchrank.data.datamodule import RankingDataModule
    from torchrank.record import RESULTS

    options = dict(json.loads((folder / RESULTS).read_text(encoding="utf-8"))["config"]["data"])
    options.pop("_target_", None)
    data = RankingDataModule(**options)
    data.setup()
    lists = data.sets["val"]
    return lists.subset(range(min(LISTS, len(lists))))


def measured_importances(ranker: Ranker, lists: RankingSet) -> dict[str, Any]:
    """The largest permutation importances of a ranker, with their standard errors."""
    from torchrank.explanations.importance import permutation_importance

    found = permutation_importance(ranker, lists, repeats=REPEATS).to_dict()
    rows = found["features"][:FEATURES]
    return {
        "kind": f"Loss of {found['measure']} ({found['value']:.4f} on {len(lists)} validation queries) when a feature "
        f"is shuffled, mean of {REPEATS} permutations with its standard error",
        "unit": f"loss of {found['measure']}",
        "total": len(found["features"]),
        "features": [row["name"] for row in rows],
        "values": [row["importance"] for row in rows],
        "errors": [row["error"] for row in rows],
    }


def _largest(ranker: Ranker, weights: Tensor, kind: str, unit: str) -> dict[str, Any]:
    from torchrank.explanations.names import feature_names_of

    names = feature_names_of(len(weights), ranker)
    order = [place for place in weights.abs().argsort(descending=True, stable=True).tolist() if weights[place] != 0]
    values = [float(f"{weights[place]:.6g}") for place in order[:FEATURES]]
    shown = [names[place] for place in order[:FEATURES]]
    return {"kind": kind, "unit": unit, "total": len(weights), "features": shown, "values": values}

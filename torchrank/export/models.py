"""The score of one list as a plain module: no checks, no offsets, nothing that depends on the values of the rows."""

from copy import deepcopy
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrank.data.batch import Batch
from torchrank.errors import NotFittedError
from torchrank.export.errors import NotExportable
from torchrank.export.rows import OneListRows
from torchrank.export.trees import TreeScores, trees_of
from torchrank.rankers.adarank import AdaRank
from torchrank.rankers.core.linear import LinearRanker
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.ensemble.ranker import Ensemble
from torchrank.rankers.ensemble.standard import ROUNDING
from torchrank.rankers.lgmml.far_anchors import far_scores
from torchrank.rankers.lgmml.grouped import GroupScorer
from torchrank.rankers.lgmml.kernels import KERNELS
from torchrank.rankers.lgmml.net import LGMMLNet
from torchrank.rankers.lgmml.ranker import LGMML
from torchrank.rankers.lgmml.scorer import LocalScorer
from torchrank.rankers.lgmml.weights import NEIGHBOURS, AmortizedWeights, MetricWeights, QueryWeights
from torchrank.rankers.localrank.ranker import LocalRank
from torchrank.rankers.metric import DistanceRanker
from torchrank.rankers.metric.svmmap import SVMMap
from torchrank.rankers.neural.linear import LinearScorer
from torchrank.rankers.neural.members import networks_of, ranking_scores
from torchrank.rankers.neural.ranker import NeuralRanker
from torchrank.rankers.queryknn import QueryKNN
from torchrank.rankers.random_order import RandomRanker
from torchrank.rankers.rankboost import RankBoost
from torchrank.rankers.singlefeature import SingleFeature
from torchrank.rankers.transductive import TransductivePCA
from torchrank.rankers.trees.ranker import GBDTRanker


class OneList(nn.Module):
    """Raw rows (n, D) of one list in float32 -> scores (n,) in float32, transform included."""

    def __init__(self, ranker: Ranker):
        super().__init__()
        check_exportable(ranker)
        self.num_features = ranker.num_features
        self.rows, self.model = OneListRows(ranker.transform), model_of(ranker)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(self.rows(x.double()))
        return scores.float()


def check_exportable(ranker: Ranker) -> None:
    """Refuse a ranker whose scores need more than the rows of one list, and one that is not fitted."""
    name = type(ranker).__name__
    if isinstance(ranker, DistanceRanker) or ranker.by_query:
        raise NotExportable(f"{name} measures distances from query vectors: its scores need more than a list's rows")
    if ranker.num_topics is not None:
        raise NotExportable(f"this {name} has a model for each topic: a list's rows do not tell its topic")
    if isinstance(ranker, Ensemble):
        for _, member in ranker.used():
            check_exportable(member)
    if isinstance(ranker, GBDTRanker) and ranker.first is not None:
        check_exportable(ranker.first)
    if ranker.transform.learns and not ranker.transform.fitted:
        raise NotFittedError(f"this {name} is not fitted: call fit first")


# ---- one form for each kind of model ---------------------------------------------------------------------------------


@singledispatch
def model_of(ranker: Ranker) -> nn.Module:
    """The module that scores the transformed rows (n, P) of one list."""
    return OwnScore(ranker)


def weights_of(ranker: Ranker) -> Tensor | None:
    """The weights (P,) of a ranker whose scores are linear in the transformed rows, for all lists; otherwise None."""
    weight: Any = None
    if isinstance(ranker, LinearRanker) and not ranker.per_topic:
        weight = ranker.weight[0]
    elif isinstance(ranker, AdaRank) or (isinstance(ranker, SVMMap) and not ranker.by_query):
        weight = ranker.weight
    elif isinstance(ranker, SingleFeature):
        weight = torch.zeros(ranker.transform.num_outputs, dtype=torch.float64)
        weight[ranker.feature] = ranker.sign.double()
    elif isinstance(ranker, NeuralRanker) and not ranker.is_ordinal:
        weight = linear_weight(networks_of(ranker.scorer))
    return None if weight is None else weight.detach().double().cpu().clone()


def linear_weight(networks: list[nn.Module]) -> Tensor | None:
    """The mean (P,) of the weights of linear networks without a constant; None if they are others."""
    weights: list[Tensor] = [each.weight for each in networks if isinstance(each, LinearScorer) and each.bias is None]
    return torch.stack(weights).double().mean(0) if len(weights) == len(networks) else None


@model_of.register(LinearRanker)
@model_of.register(AdaRank)
@model_of.register(SVMMap)
@model_of.register(SingleFeature)
def _linear(ranker: Ranker) -> nn.Module:
    weight = weights_of(ranker)
    assert weight is not None
    return LinearScores(weight)


@model_of.register
def _network(ranker: NeuralRanker) -> nn.Module:
    weight = weights_of(ranker)
    if weight is not None:
        return LinearScores(weight)
    return NetworkScores(ranker)


@model_of.register
def _stumps(ranker: RankBoost) -> nn.Module:
    return StumpScores(ranker)


@model_of.register
def _trees(ranker: GBDTRanker) -> nn.Module:
    trees = TreeScores(trees_of(ranker))
    return trees if ranker.first is None else StartedScores(ranker.first, trees)


@model_of.register
def _local_metrics(ranker: LGMML) -> nn.Module:
    ranker._check_fitted()
    if isinstance(ranker.scorer, GroupScorer):
        return GroupScores(ranker.scorer, ranker.weights)
    return MetricScores(ranker.scorer, ranker.weighting)


@model_of.register
def _net(ranker: LGMMLNet) -> nn.Module:
    return NetScores(ranker) if ranker.groups == "similar" else deepcopy(ranker.scorer).eval()


@model_of.register
def _nearest_query(ranker: QueryKNN) -> nn.Module:
    return NearestQueryScores(ranker)


@model_of.register
def _clusters(ranker: LocalRank) -> nn.Module:
    ranker._check_fitted()
    if ranker._is_local(int(ranker.chosen)):
        raise NotExportable(
            "LocalRank compares the principal directions of a list with those of all training lists: no format has that"
        )
    return model_of(ranker.parts[0])


@model_of.register
def _ensemble(ranker: Ensemble) -> nn.Module:
    return EnsembleScores(ranker)


@model_of.register
def _transductive(ranker: TransductivePCA) -> nn.Module:
    raise NotExportable("TransductivePCA fits a new model for every list that it ranks, from all training lists")


@model_of.register
def _random(ranker: RandomRanker) -> nn.Module:
    raise NotExportable("RandomRanker has learned nothing, and its digits depend on the rounding of the machine")


class EnsembleScores(nn.Module):
    """The weighted mean of the standardised scores of members, each on its own rows."""

    def __init__(self, ranker: Ensemble):
        super().__init__()
        used = list(ranker.used())
        self.weights = [weight for weight, _ in used]
        self.standardised = [not isinstance(member, Ensemble) for _, member in used]
        self.rows = nn.ModuleList(OneListRows(member.transform) for _, member in used)
        self.models = nn.ModuleList(model_of(member) for _, member in used)

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0], dtype=torch.float64)
        parts = zip(self.weights, self.standardised, self.rows, self.models, strict=True)
        for weight, standardised, rows, model in parts:
            scores: Tensor = model(rows(x.double())).double()
            total = total + weight * (standard_scores(scores) if standardised else scores)
        return total


def standard_scores(scores: Tensor) -> Tensor:
    """Those of `rankers/ensemble/standard.py` for one list, in operations that every format has."""
    largest = scores.abs().amax(0)
    values = scores / torch.where(largest > 0, largest, 1.0)
    flat = values.amax(0) - values.amin(0) <= ROUNDING * torch.finfo(torch.float32).eps
    centred = values - values.mean(0)
    return torch.where(flat, 0.0, centred / torch.where(flat, 1.0, centred.square().mean(0)).sqrt())


class StartedScores(nn.Module):
    """Trees that add to the scores of another ranker."""

    def __init__(self, start: Ranker, trees: nn.Module):
        super().__init__()
        self.rows, self.start, self.trees = OneListRows(start.transform), model_of(start), trees

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.start(self.rows(x.double())).double() + self.trees(x)
        return scores


class OwnScore(nn.Module):
    """The score of a ranker that is not of this library, as it is: it must be free of branches on values."""

    def __init__(self, ranker: Ranker):
        super().__init__()
        self.scored = [ranker]  # in a list: its parameters become constants

    def forward(self, x: Tensor) -> Tensor:
        offsets = torch.arange(2, device=x.device) * x.shape[0]
        labels, query = torch.zeros_like(x[:, 0]), torch.zeros(1, dtype=torch.int64, device=x.device)
        return self.scored[0].score(Batch(x, labels, offsets, query, None, None, x.shape[0], 0, 1))


class NetworkScores(nn.Module):
    """The networks of a `NeuralRanker`; a user's see rows in their own dtype, and the offsets if they ask for them."""

    def __init__(self, ranker: NeuralRanker):
        super().__init__()
        self.scorer, self.is_ordinal = deepcopy(ranker.scorer).eval(), ranker.is_ordinal
        self.is_own, self.sees_lists = "scorer" in ranker.own, ranker.sees_lists

    def forward(self, x: Tensor) -> Tensor:
        lists: dict[str, Any] = {}
        if self.is_own and self.sees_lists:  # to ours, rows without offsets are one list
            lists = {"offsets": torch.arange(2, device=x.device) * x.shape[0]}
        weight = next((each for each in self.scorer.parameters() if each.is_floating_point()), x)
        rows = x.to(weight.dtype) if self.is_own else x
        found = torch.stack([network(rows, **lists) for network in networks_of(self.scorer)])
        if self.is_ordinal:
            return ranking_scores(found if found.dim() == 3 else found[:, :, None], ordinal=True)
        return ranking_scores(found.reshape(found.shape[:2]), ordinal=False)


class LinearScores(nn.Module):
    """x . w in float64."""

    weight: Tensor

    def __init__(self, weight: Tensor):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return x.double() @ self.weight


class StumpScores(nn.Module):
    """sum_t alpha_t [x_f > theta]; rows are compared as the ranker does it, after their rounding to float32."""

    feature: Tensor
    threshold: Tensor
    alpha: Tensor

    def __init__(self, ranker: RankBoost):
        super().__init__()
        for name in ("feature", "threshold", "alpha"):
            self.register_buffer(name, getattr(ranker, name).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        above = x.double().index_select(1, self.feature) > self.threshold
        return above.double() @ self.alpha


class MetricScores(nn.Module):
    """`LGMML` with metrics of random groups: kernels of the distances from anchors, weighted."""

    factors: Tensor  # (M, D, k)
    shifts: Tensor  # (M, k)
    tau: Tensor  # (M,)

    def __init__(self, scorer: LocalScorer, weighting: MetricWeights):
        super().__init__()
        self.scorer, self.weighting = [scorer], deepcopy(weighting).double()
        self.register_buffer("factors", scorer.factors.detach().double().clone())
        self.register_buffer("shifts", scorer.shifts().detach().clone())
        self.register_buffer("tau", scorer.tau.detach().double().clone())

    def forward(self, x: Tensor) -> Tensor:
        rows, scorer = x.double(), self.scorer[0]
        images = (rows @ self.factors.permute(1, 0, 2).flatten(1)).unflatten(1, self.shifts.shape) - self.shifts
        scaled = images.square().sum(2).sqrt() / self.tau
        features = scaled if scorer.kernel == "localized" else KERNELS[scorer.kernel](scaled, scorer.beta)
        weights = self._weights(features, rows)
        if scorer.kernel != "localized":
            return features @ weights
        near = weights * scorer._near(features, weights)
        return -(near * features.square()).sum(1) / near.sum(1).clamp(min=torch.finfo(near.dtype).tiny)

    def _weights(self, features: Tensor, rows: Tensor) -> Tensor:
        """The weights (M,) of the metrics for this list."""
        weighting = self.weighting
        if isinstance(weighting, AmortizedWeights):
            means = torch.cat((features, rows * weighting.live), 1).mean(0)
            return softplus(weighting.values.detach() @ pad(means, (1, 0), value=1.0))
        if isinstance(weighting, QueryWeights) and weighting.fallback == "knn":
            own = torch.cat((rows.mean(0), rows.std(0, correction=0)))
            gaps = weighting.live.repeat(2) * (own - weighting.profile_scale[0]) / weighting.profile_scale[1]
            far = (gaps - weighting.profiles).square().sum(1)
            nearest = far.topk(min(NEIGHBOURS, len(far)), largest=False).indices
            return weighting.values.detach()[nearest].mean(0)
        constant = weighting.constant()
        assert constant is not None
        return constant.detach()


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), by functions that onnxruntime has in float64."""
    return x.clamp(min=0) + torch.log(1 + torch.exp(-x.abs()))


class Gate(nn.Module):
    """The shares (C,) of the groups in a list, by the mean of its rows: see `shares_of`."""

    centres: Tensor
    width: Tensor

    def __init__(self, centres: Tensor, width: Tensor, metrics: int):
        super().__init__()
        self.whole = metrics > 1  # the first metric is that of all lists, with share 1
        self.soft = bool(width > 0)
        self.register_buffer("centres", centres.detach().double().clone())
        self.register_buffer("width", width.detach().double().clone())

    def forward(self, rows: Tensor) -> Tensor:
        middle = self.centres.mean(0)
        centres = self.centres - middle
        close = centres @ (rows.double().mean(0) - middle) - centres.square().sum(1) / 2
        if self.soft:
            shares = (close / self.width).softmax(0)
        else:
            shares = (torch.arange(len(centres), device=rows.device) == close.argmax(0)).double()
        return pad(shares, (1, 0), value=1.0) if self.whole else shares


class GroupScores(nn.Module):
    """`LGMML` with groups of similar queries."""

    anchors: Tensor
    slopes: Tensor
    reach: Tensor
    factors: Tensor
    scale: Tensor

    def __init__(self, scorer: GroupScorer, weights: Tensor):
        super().__init__()
        self.linear = scorer.is_linear_limit
        self.gate = Gate(scorer.centres, scorer.width, len(scorer.tau))
        for name in ("anchors", "slopes", "reach", "factors"):
            self.register_buffer(name, getattr(scorer, name).detach().double().clone())
        self.register_buffer("scale", weights.detach().double() / scorer.tau.detach().double())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.double()
        found = rows @ self.slopes.T - (self.anchors * self.slopes).sum(1)
        if not self.linear:
            shifts = (self.factors * self.anchors[:, :, None]).sum(1)
            images = (rows @ self.factors.permute(1, 0, 2).flatten(1)).unflatten(1, shifts.shape) - shifts
            found = far_scores(found, images.square().sum(2), self.reach)
        scores: Tensor = found @ (self.gate(rows) * self.scale)
        return scores


class NetScores(nn.Module):
    """`LGMMLNet` with groups of similar queries."""

    def __init__(self, ranker: LGMMLNet):
        super().__init__()
        self.scorer = deepcopy(ranker.scorer).double().eval()
        self.gate = Gate(self.scorer.centres, self.scorer.width, len(self.scorer.weights))

    def forward(self, x: Tensor) -> Tensor:
        rows, scorer = x.double(), self.scorer
        terms = scorer.terms(rows)
        if scorer.linear is not None:
            terms = terms + rows @ (scorer.linear * scorer.live).T
        scores: Tensor = terms @ self.gate(rows)
        return scores


class NearestQueryScores(nn.Module):
    """`QueryKNN`: the weights of the training query that is nearest to the mean of the rows."""

    weight: Tensor
    vectors: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, ranker: QueryKNN):
        super().__init__()
        if not len(ranker.vectors):
            raise NotFittedError("this QueryKNN is not fitted: call fit first")
        self.top, self.reference = ranker.top, ranker.reference_feature
        for name in ("weight", "vectors", "mean", "scale"):
            self.register_buffer(name, getattr(ranker, name).detach().double().clone())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.double()
        gaps = (self._mean(rows) - self.mean) / self.scale - self.vectors
        return rows @ self.weight.index_select(0, gaps.square().sum(1).argmin(0, keepdim=True))[0]

    def _mean(self, rows: Tensor) -> Tensor:
        """The mean (P,) of the rows, or of the `top` of them; of equal values the first count (ONNX cannot sort so)."""
        if self.top is None:
            return rows.mean(0)
        values, place = rows[:, self.reference], torch.arange(rows.shape[0], device=rows.device)
        before = (values > values[:, None]) | ((values == values[:, None]) & (place < place[:, None]))
        used = (before.sum(1) < self.top).double()
        return used @ rows / used.sum()

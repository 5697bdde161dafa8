"""What each transformed feature adds to the difference of two scores, for every model that has such parts."""

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.transforms import PCA, Quadratic, Transform
from torchrank.explanations.gradients import integrated_parts
from torchrank.export.models import weights_of
from torchrank.export.rows import steps_of
from torchrank.functional.ragged import list_ids, wide
from torchrank.rankers.core.linear import LinearRanker
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.ensemble.members import batch_for
from torchrank.rankers.ensemble.ranker import Ensemble
from torchrank.rankers.ensemble.standard import deviations
from torchrank.rankers.lgmml.net import LGMMLNet
from torchrank.rankers.lgmml.ranker import LGMML
from torchrank.rankers.localrank.ranker import LocalRank
from torchrank.rankers.metric import DistanceRanker
from torchrank.rankers.metric.svmmap import SVMMap
from torchrank.rankers.neural.gam import GAMScorer
from torchrank.rankers.neural.members import networks_of
from torchrank.rankers.neural.ranker import NeuralRanker
from torchrank.rankers.queryknn import QueryKNN
from torchrank.rankers.rankboost import RankBoost
from torchrank.rankers.transductive import TransductivePCA
from torchrank.rankers.trees.ranker import GBDTRanker
from torchrank.solvers.boosting import Rules
from torchrank.solvers.linear.many_models import JoinedLists
from torchrank.solvers.linear.scores import nearest_queries


class Parts(NamedTuple):
    """Parts (P, D) of the differences of P pairs of documents, and how they were found."""

    values: Tensor
    method: str


@singledispatch
def parts_of(ranker: Ranker, batch: Batch, pairs: Tensor) -> Parts | None:
    """Parts of score[first] - score[second] for entries `pairs (P, 2)` of a batch of transformed rows in float64.

    None: the ranker has no exact parts, and its scores no gradients whose integral is the difference.
    """
    weight = list_weights(ranker, batch)
    if weight is not None:
        lists = list_ids(batch.offsets, len(batch.labels))[pairs[:, 0]]
        return Parts(gaps(batch.dense, pairs) * weight[lists], "weight times difference, exact")
    if (terms := terms_of(ranker, batch)) is not None:
        return Parts(gaps(terms, pairs), "functions of single features, exact")
    found = integrated_parts(ranker, batch, pairs)
    return None if found is None else Parts(*found)


def terms_of(ranker: Ranker, batch: Batch) -> Tensor | None:
    """What each transformed feature adds to each score, (N, D), where a score is a sum of functions of one feature."""
    networks = networks_of(ranker.scorer) if isinstance(ranker, NeuralRanker) and not ranker.is_ordinal else []
    terms = [each.terms(batch.dense) for each in networks if isinstance(each, GAMScorer)]
    return torch.stack(terms).mean(0) if terms else None


def gaps(rows: Tensor, pairs: Tensor) -> Tensor:
    return rows[pairs[:, 0]] - rows[pairs[:, 1]]


def list_weights(ranker: Ranker, batch: Batch) -> Tensor | None:
    """The weights (Q, D) of the lists of a batch, where the scores of a list are linear in its rows."""
    if isinstance(ranker, LinearRanker) and ranker.per_topic:
        return ranker.weight.detach().double()[batch.query]
    if isinstance(ranker, QueryKNN) and len(ranker.vectors):
        vectors = (ranker._vectors(batch) - ranker.mean) / ranker.scale
        return ranker.weight.detach()[nearest_queries(vectors, ranker.vectors, 1)[:, 0]].double()
    same = weights_of(ranker)
    return None if same is None else same.to(batch.device).expand(batch.num_lists, -1)


@parts_of.register
def _differences_from_queries(ranker: SVMMap, batch: Batch, pairs: Tensor) -> Parts:
    rows = batch.dense
    if batch.queries is not None:
        rows = (rows - batch.queries[list_ids(batch.offsets, len(rows))]).abs()
    return Parts(gaps(rows, pairs) * ranker.weight.detach().double(), "weight times difference, exact")


@parts_of.register
def _distance(ranker: DistanceRanker, batch: Batch, pairs: Tensor) -> Parts:
    """-(a - b)_j [W (a + b - 2 q)]_j, which sum to the difference of the squared distances."""
    rows, metric = batch.dense, ranker.get_mahalanobis_matrix().double()
    query = batch.queries[list_ids(batch.offsets, len(rows))[pairs[:, 0]]]  # type: ignore[index]
    both = rows[pairs[:, 0]] + rows[pairs[:, 1]] - 2 * query
    return Parts(-gaps(rows, pairs) * (both @ metric), "squared distance, feature by feature, exact")


@parts_of.register(LGMML)
@parts_of.register(LGMMLNet)
def _local_metrics(ranker: LGMML | LGMMLNet, batch: Batch, pairs: Tensor) -> Parts:
    return Parts(ranker.parts_of(batch, pairs).sum(1), "local metrics, exact")


@parts_of.register
def _trees(ranker: GBDTRanker, batch: Batch, pairs: Tensor) -> Parts | None:
    ranker.check_fitted()
    found = torch.from_numpy(ranker.engine.contributions(ranker.booster, batch.dense[pairs.flatten()]))
    values = found.reshape(len(pairs), 2, -1).to(batch.device)
    trees = Parts(values[:, 0] - values[:, 1], "SHAP values of the trees, exact")
    if ranker.first is None:
        return trees
    start = parts_of(ranker.first, batch_for(ranker.first, batch), pairs)
    if start is None:
        return None
    first = parts_of_raw(ranker.first.transform, batch, pairs, start.values)
    return Parts(first + trees.values, f"{start.method}; {trees.method}")


@parts_of.register
def _rules(ranker: RankBoost, batch: Batch, pairs: Tensor) -> Parts:
    rules = Rules(ranker.feature[None], ranker.threshold[None], ranker.alpha[None])
    return Parts(rule_parts(batch.dense, pairs, rules, torch.zeros_like(pairs[:, 0])), "rules, exact")


def rule_parts(rows: Tensor, pairs: Tensor, rules: Rules, model: Tensor) -> Tensor:
    """What the rules of each feature add, by the model (P,) of each pair: (P, D)."""
    feature = rules.feature[model]
    above = [rows[side].gather(1, feature) > rules.threshold[model] for side in pairs.unbind(1)]
    parts = rules.alpha[model] * (above[0].double() - above[1].double())
    return parts.new_zeros(len(pairs), rows.shape[1]).scatter_add(1, feature, parts)


@parts_of.register
def _transductive(ranker: TransductivePCA, batch: Batch, pairs: Tensor) -> Parts:
    """By the model that is fitted for the list: linear, or rules on projections, of which every feature has a share."""
    rows, offsets = batch.dense, batch.offsets
    basis, shaped = ranker._basis(rows, offsets)
    train = JoinedLists(
        ranker.rows, ranker.labels, ranker.offsets, torch.arange(len(ranker.offsets) - 1), ranker.num_lists
    )
    lists = list_ids(offsets, len(rows))[pairs[:, 0]]
    if ranker.base != "rankboost":
        weight = ranker.weight.detach().expand(len(shaped), -1).clone()
        weight[shaped] = ranker._solved(train, basis[shaped]).weight
        return Parts(gaps(rows, pairs) * weight[lists], "weights fitted for the list, exact")
    own = Rules(ranker.feature, ranker.threshold, ranker.alpha)
    parts = rule_parts(rows, pairs, own, torch.zeros_like(lists))
    local = shaped[lists]
    if local.any():
        place = (shaped.cumsum(0) - 1)[lists[local]]
        turn = wide(basis[shaped])[place]  # (P', C, D)
        projected = torch.einsum("pcd,psd->psc", turn, wide(rows)[pairs[local]])
        ends = torch.arange(2 * len(place)).view(-1, 2)
        found = rule_parts(projected.flatten(0, 1), ends, ranker._boosted(train, basis[shaped]), place)
        parts[local] = spread_back(found, projected[:, 0] - projected[:, 1], gaps(rows, pairs[local]), turn.mT)
    return Parts(parts, "rules fitted for the list, exact")


def spread_back(parts: Tensor, change: Tensor, gap: Tensor, turn: Tensor) -> Tensor:
    """Parts (P, D) of rows from the parts (P, C) of their projections: in proportion to what each feature adds to the
    change (P, C) = gap (P, D) @ turn (D, C) of a projection."""
    slope = torch.where(change == 0, 0.0, parts / torch.where(change == 0, 1.0, change))
    return gap * (turn @ slope[..., None]).squeeze(-1)


@parts_of.register
def _clusters(ranker: LocalRank, batch: Batch, pairs: Tensor) -> Parts | None:
    """By the models of the clusters of the lists."""
    ranker._check_fitted()
    row, whole = int(ranker.chosen), ranker.parts[0]
    if not ranker._is_local(row):
        return parts_of(whole, batch, pairs)
    cluster = ranker.clusters.of(ranker.clusters.nearest(batch)[1], row)
    own = cluster[list_ids(batch.offsets, len(batch.labels))[pairs[:, 0]]]
    if ranker.assignment == "hard":
        return _by_model(ranker, batch, pairs, ranker._part_of(own, row))
    first = parts_of(whole, batch, pairs)
    if first is None:
        return None
    values = _shrunk(ranker, batch, pairs, own) if ranker.assignment == "shrink" else _mixed(ranker, batch, pairs)
    without = ranker._part_of(own, row) == 0 if ranker.assignment == "shrink" else own < 0
    return None if values is None else Parts(torch.where(without[:, None], first.values, values), first.method)


def _by_model(ranker: LocalRank, batch: Batch, pairs: Tensor, model: Tensor) -> Parts | None:
    values, method = torch.zeros(len(pairs), batch.x.shape[1], dtype=torch.float64, device=batch.device), ""
    for number in model.unique().tolist():
        found = parts_of(ranker.parts[number], batch, pairs[model == number])
        if found is None:
            return None
        values[model == number], method = found.values, found.method
    return Parts(values, method)


def _mixed(ranker: LocalRank, batch: Batch, pairs: Tensor) -> Tensor | None:
    row, lists = int(ranker.chosen), list_ids(batch.offsets, len(batch.labels))[pairs[:, 0]]
    shares = (ranker.clusters.closest(batch, row) / ranker.temperature).softmax(1)[lists].double()
    models = ranker.models[row, : shares.shape[1]].tolist()
    every = [parts_of(ranker.parts[number], batch, pairs) for number in models]
    parts = [each.values for each in every if each is not None]
    return (torch.stack(parts, 1) * shares[:, :, None]).sum(1) if len(parts) == len(every) else None


def _shrunk(ranker: LocalRank, batch: Batch, pairs: Tensor, cluster: Tensor) -> Tensor:
    """Shared weights and a correction for each cluster, see `spread`."""
    weight = weights_of(ranker.parts[int(ranker.models[int(ranker.chosen)].max())])
    assert weight is not None
    shared, *corrections = weight.to(batch.device).split(batch.x.shape[1])
    own = torch.stack(corrections)[cluster.clamp(min=0)] / ranker.stiffness**0.5
    weights: Tensor = shared + torch.where(cluster[:, None] < 0, 0.0, own)
    return gaps(batch.dense, pairs) * weights


@parts_of.register
def _ensemble(ranker: Ensemble, batch: Batch, pairs: Tensor) -> Parts | None:
    """The parts of its members, whose differences are divided by the deviation of the member's scores of the list."""
    total, methods = torch.zeros(len(pairs), batch.x.shape[1], dtype=torch.float64, device=batch.device), []
    lists = list_ids(batch.offsets, len(batch.labels))[pairs[:, 0]]
    for weight, member in ranker.used():
        own = batch_for(member, batch)
        found = parts_of(member, own, pairs)
        if found is None:
            return None
        scale = torch.ones(batch.num_lists, dtype=torch.float64, device=batch.device)
        if not isinstance(member, Ensemble):
            scale = deviations(member.score(own), batch.offsets)
        values = parts_of_raw(member.transform, batch, pairs, found.values)
        total += weight * torch.where(scale > 0, 1 / scale, 0.0)[lists][:, None] * values
        methods.append(found.method)
    return Parts(total, "; ".join(dict.fromkeys(methods)))


@torch.no_grad()
def parts_of_raw(transform: Transform, raw: Batch, pairs: Tensor, parts: Tensor) -> Tensor:
    """Parts (P, D) of raw features from those of the transformed ones."""
    rows, inputs = raw.dense.double(), []
    for step in steps_of(transform):
        inputs.append((step, rows[pairs]))  # (P, 2, D)
        rows = step(rows, raw.offsets)
    for step, both in reversed(inputs):
        parts = _before(step, both, parts)
    return parts


def _before(step: Transform, both: Tensor, parts: Tensor) -> Tensor:
    """The parts of the columns before a transform; most work column by column."""
    gap, middle = both[:, 0] - both[:, 1], both.mean(1)
    if isinstance(step, PCA):
        turn = step.components.double()
        return spread_back(parts, gap @ turn, gap, turn)
    if not isinstance(step, Quadratic):
        return parts
    width, (left, right) = gap.shape[1], step.pairs
    single, crossed, squares = parts.split((width, len(left), width), 1)
    ways = (gap[:, left] * middle[:, right], gap[:, right] * middle[:, left])  # they sum to the change of a product
    change = ways[0] + ways[1]
    slope = torch.where(change == 0, 0.0, crossed / torch.where(change == 0, 1.0, change))
    own: Tensor = single + squares
    return own.index_add(1, left, slope * ways[0]).index_add(1, right, slope * ways[1])

"""The table of all rankers: short fits through which the laws run, in one process and in several."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from torchrank import (
    GMML,
    LGMML,
    MLR,
    PAMIR,
    RMLR,
    Adapter,
    AdaRank,
    DominationRank,
    Ensemble,
    GBDTRanker,
    LambdaRank,
    LGMMLNet,
    ListNet,
    LocalRank,
    LowRankMLR,
    MetricBaseline,
    NeuralRanker,
    QueryKNN,
    RandomRanker,
    RankBoost,
    Ranker,
    RankingSet,
    RankSVM,
    SingleFeature,
    SVMMap,
    TransductivePCA,
)
from torchrank.data import Judged, SameClass

FEATURES = 5
LENGTHS = {"train": [1, 40, 2, 9, 5, 3, 17], "val": [6, 11], "test": [4, 1, 8, 5]}  # uneven, and fewer than processes
TOPICS = {"train": [12, 40, 2, 9], "val": [6, 11, 3, 4], "test": [4, 7, 8, 5]}  # list q is topic q
LOCAL = {"groups": "random", "metrics": 3, "queries_per_metric": 2, "high": "positive"}
SMALL = {"width": 4, "hidden": 3, "blocks": 1, "dropout": 0.0}
TREES = {"min_leaf": 3, "leaves": 4, "threads": 1}


class Case(NamedTuple):
    """A ranker, how many epochs or rounds its fit has, and the kind of lists that it learns from."""

    make: Callable[[], Ranker]
    epochs: int
    kind: str = "lists"
    one_process: bool = False  # whether it refuses several


CASES = {
    "listnet": Case(lambda: ListNet(5, rounds=30), 30),
    "listnet_gradient": Case(lambda: ListNet(5, solver="gradient"), 3),
    "singlefeature": Case(lambda: SingleFeature(5), 1),
    "random": Case(lambda: RandomRanker(5), 1),
    "lambdarank": Case(lambda: LambdaRank(5, lr=0.1), 4),
    "lambdarank_scheduled": Case(
        lambda: LambdaRank(5, optimizer={"name": "SGD", "momentum": 0.5}, scheduler={"name": "StepLR", "step_size": 1}),
        4,
    ),
    "mlp_ranknet": Case(lambda: NeuralRanker(5, "mlp", "ranknet", scorer_options={"hidden": [4]}, lr=0.05), 3),
    "mlp_listnet_pca": Case(
        lambda: NeuralRanker(5, "mlp", "listnet", {"name": "pca", "variance": 0.9}, {"hidden": [4]}, lr=0.05), 3
    ),
    "mlp_members": Case(
        lambda: NeuralRanker(5, "mlp", "ordinal", scorer_options={"hidden": [3]}, lr=0.02, members=2, clip=0.5), 2
    ),
    "resnet": Case(lambda: NeuralRanker(5, "resnet", "listnet", scorer_options=SMALL | {"norm": "batch"}, lr=0.02), 2),
    "dcn": Case(lambda: NeuralRanker(5, "dcn", "ranknet", scorer_options={"hidden": [4], "rank": 2}, lr=0.05), 2),
    "gam": Case(lambda: NeuralRanker(5, "gam", "listnet", scorer_options={"hidden": [3, 2]}, lr=0.005), 2),
    "attention": Case(lambda: NeuralRanker(5, "attention", scorer_options=SMALL | {"heads": 2}, lr=0.02), 2),
    "gbdt": Case(lambda: GBDTRanker(5, rounds=6, **TREES), 6, one_process=True),
    "xgboost": Case(lambda: GBDTRanker(5, rounds=6, leaves=4, threads=1, engine="xgboost"), 6, one_process=True),
    "gbdt_started": Case(lambda: GBDTRanker(5, rounds=4, start=members()[0], **TREES), 4, one_process=True),
    "xgboost_started": Case(
        lambda: GBDTRanker(5, rounds=4, leaves=4, threads=1, engine="xgboost", start=members()[0]), 4, one_process=True
    ),
    "gmml": Case(lambda: GMML(5, high="positive"), 1),
    "gmml_given": Case(lambda: GMML(5, high="positive", t=0.5, ridge=0.1, kappa=10.0, transform="standard"), 1),
    "gmml_queries": Case(lambda: GMML(5), 1, "points"),
    "lgmml_similar": Case(lambda: LGMML(5, num_groups=2, alpha=2.0, high="positive", rounds=4), 4),
    "lgmml_soft": Case(
        lambda: LGMML(5, num_groups=2, alpha=2.0, gate="soft", t=0.0, ridge=0.1, kappa=5.0, transform="quantile"), 3
    ),
    "lgmml_similar_queries": Case(lambda: LGMML(5, num_groups=2, alpha=1.0, rounds=3), 3, "points"),
    "lgmml": Case(lambda: LGMML(5, rounds=4, **LOCAL), 4),
    "lgmml_per_query": Case(lambda: LGMML(5, weights="per_query", fallback="knn", rounds=4, **LOCAL), 4),
    "lgmml_amortized": Case(lambda: LGMML(5, weights="amortized", anchor="search", rounds=3, **LOCAL), 3),
    "lgmml_sgd": Case(lambda: LGMML(5, mode="sgd", kernel="rbf", rounds=4, **LOCAL), 4, one_process=True),
    "lgmml_queries": Case(
        lambda: LGMML(5, groups="random", metrics=3, queries_per_metric=1, kernel="localized", tau=1.0, rounds=3),
        3,
        "points",
    ),
    "lgmml_net": Case(
        lambda: LGMMLNet(
            5, groups="random", metrics=3, rank=2, closed_form={"queries_per_metric": 2, "high": "positive"}
        ),
        3,
    ),
    "lgmml_net_similar": Case(  # anchors at a finite distance: in the linear limit metrics start without a gradient
        lambda: LGMMLNet(5, closed_form={"num_groups": 2, "alpha": 2.0, "high": "positive", "kappa": 3.0}), 3
    ),
    "pamir": Case(lambda: PAMIR(5, rounds=3), 3, one_process=True),
    "pamir_minibatches": Case(lambda: PAMIR(5, minibatch=8, rounds=3), 3),
    "pamir_topics": Case(lambda: PAMIR(5, per_topic=True, rounds=3), 3, "topics"),
    "pamir_topics_last": Case(lambda: PAMIR(5, per_topic=True, rounds=3, averaged=False, l2=1e-3), 3, "topics"),
    "pamir_topics_minibatches": Case(lambda: PAMIR(5, per_topic=True, rounds=3, minibatch=8), 3, "topics"),
    "domination_lbfgs": Case(lambda: DominationRank(5, l2=0.1), 20),
    "domination_fista": Case(lambda: DominationRank(5, l1=1.0, l2=0.0, margin=0.5), 20),
    "domination_pooled": Case(lambda: DominationRank(5, l1=1.0, l2=0.1, solver="fista", group="pooled"), 20),
    "domination_drawn": Case(lambda: DominationRank(5, l1=0.5, l2=0.1, negatives=0.5, grades="flat"), 20),
    "domination_induction": Case(lambda: DominationRank(5, l1=1.0, l2=0.0, induction=2), 20),
    "domination_cd": Case(lambda: DominationRank(5, l1=0.5, solver="cd", rounds=4), 4),
    "domination_blocked": Case(lambda: DominationRank(5, solver="blocked", block=2, rounds=4), 4),
    "domination_path": Case(lambda: DominationRank(5, l2=0.0, path=4), 4),
    "domination_path_induction": Case(lambda: DominationRank(5, l2=0.0, path=4, induction=2), 4),
    "domination_topics": Case(lambda: DominationRank(5, per_topic=True, l1=0.5, l2=0.1), 20, "topics"),
    "domination_topics_induction": Case(
        lambda: DominationRank(5, per_topic=True, l1=0.5, l2=0.1, induction=1), 20, "topics"
    ),
    "rankboost": Case(lambda: RankBoost(5, rounds=12), 12),
    "rankboost_few_bins": Case(lambda: RankBoost(5, bins=5, pair_weight="query", alpha="exact", rounds=12), 12),
    "adarank": Case(lambda: AdaRank(5, rounds=12), 12),
    "adarank_ndcg": Case(lambda: AdaRank(5, "ndcg@3", both_directions=True, ties="average", rounds=12), 12),
    "adarank_published": Case(lambda: AdaRank(5, exclude_repeat=False, rounds=12), 12),
    "queryknn": Case(lambda: QueryKNN(5, neighbours=2, l2=0.1), 2),
    "queryknn_ranksvm": Case(lambda: QueryKNN(5, 3, "ranksvm", 0.1, top=2, reference_feature=1), 1),
    "dk": Case(lambda: TransductivePCA(5, "auto", l2=0.1), 1),
    "dk_rankboost": Case(lambda: TransductivePCA(5, 2, "rankboost", boosting_rounds=3), 1),
    "local_listnet": Case(lambda: LocalRank(5, base_options={"l2": 0.1}, clusters=[2, 4], min_lists=1, rounds=12), 12),
    "local_shrunk": Case(
        lambda: LocalRank(5, base_options={"l2": 0.1}, clusters=3, assignment="shrink", min_lists=1, rounds=12), 12
    ),
    "local_rankboost": Case(lambda: LocalRank(5, "rankboost", clusters=2, components=2, min_lists=1, rounds=4), 4),
    "local_network": Case(
        lambda: LocalRank(5, "neural", {"scorer_options": {"hidden": [4]}, "lr": 0.05}, [2], min_lists=1), 3
    ),
    "mlr": Case(lambda: MLR(5, C=3.0, eps=1e-2), 40, "queries"),
    "mlr_auc_fro": Case(lambda: MLR(5, "auc", C=3.0, regulariser="fro", eps=1e-2, threshold="sweep"), 40, "queries"),
    "mlr_diagonal": Case(lambda: MLR(5, "mrr", C=5.0, regulariser="diagonal", eps=1e-2, neighbours=2), 40, "queries"),
    "mlr_path": Case(lambda: MLR(5, "ndcg", C=[10.0, 30.0], eps=1e-2), 2, "queries"),
    "mlr_points": Case(lambda: MLR(5, C=3.0, eps=1e-2), 40, "points"),
    "rmlr": Case(lambda: RMLR(5, C=5.0, lam=0.3, eps=1e-2), 40, "queries"),
    "rmlr_anchored": Case(lambda: RMLR(5, C=[0.0, 1.0], lam=0.1, eps=1e-2, anchor=1.0), 2, "queries"),
    "lowrank_mlr": Case(lambda: LowRankMLR(5, rank=2, lr=0.05), 4, "queries"),
    "euclidean": Case(lambda: MetricBaseline(5), 1, "points"),
    "svmmap": Case(lambda: SVMMap(5, eps=1e-2), 60),
    "svmmap_queries": Case(lambda: SVMMap(5, "precision", eps=1e-2, transform="standard"), 60, "queries"),
    "ranksvm": Case(lambda: RankSVM(5, eps=1e-2, threshold="sweep"), 60),
    "adapter": Case(lambda: Adapter(5, rounds=4, num_negatives=6, batch_queries=3, lr=0.05), 4, "judged"),
    "adapter_both": Case(
        lambda: Adapter(5, "both", 2, "euclidean", "softmax", negatives="all", batch_queries=3, lr=0.05, rounds=4),
        4,
        "queries",
    ),
    "adapter_random": Case(
        lambda: Adapter(
            5, "document", similarity="inner", negatives="random", refresh=2, num_negatives=6, lr=0.05, rounds=5
        ),
        5,
        "judged",
    ),
    "adapter_gmml": Case(lambda: Adapter(5, solver="gmml", solver_options={"ridge": [3.0, 0.1]}), 3, "judged"),
    "adapter_mlr": Case(lambda: Adapter(5, solver="mlr", solver_options={"C": [0.0, 5.0], "cuts": 5}), 3, "judged"),
    "ensemble": Case(lambda: Ensemble(members(), weights="greedy", steps=4), 1),
    "ensemble_queries": Case(lambda: Ensemble([*members(), distances()], weights=[1, 2, 1, 3]), 1, "queries"),
}
KINDS = {name.partition("_")[0]: name for name in reversed(CASES)}  # the first case of every kind of ranker


@cache
def members() -> list[Ranker | list[Ranker]]:
    """Of an ensemble, fitted on other lists than those of the laws."""
    train = lists("other", {"other": [3, 12, 1, 8, 9]})
    trees, rules = GBDTRanker(5, rounds=4, **TREES), RankBoost(5, rounds=4)
    found = [ListNet(5, "lbfgs", 0.1), trees, rules, SingleFeature(5, transform="quantile")]
    a, b, c, d = (each.fit(train) for each in found)
    return [a, b, [c, d]]


@cache
def distances() -> Ranker:
    return MetricBaseline(5).fit(queries("train"))


def lists(split: str, all_lengths: dict[str, list[int]] = LENGTHS) -> RankingSet:
    lengths = torch.tensor(all_lengths[split])
    generator = torch.Generator().manual_seed(len(split))
    x = torch.randn(int(lengths.sum()), FEATURES, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (len(x),), generator=generator).float()
    labels[lengths[0]] = 2.0  # every set has a relevant document
    return RankingSet(x, labels, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), name=split)


def queries(split: str) -> RankingSet:
    """The same lists over one corpus, with query vectors."""
    flat = lists(split)
    generator = torch.Generator().manual_seed(10 + len(split))
    index = torch.randint(25, (len(flat.x),), generator=generator)
    vectors = torch.randn(len(flat), FEATURES, generator=generator, dtype=torch.float64)
    corpus = torch.randn(25, FEATURES, generator=generator, dtype=torch.float64)
    return RankingSet(corpus, flat.labels, flat.offsets, index=index, queries=vectors, name=split)


def judged(split: str) -> RankingSet:
    """Queries that rank a whole corpus, of which some documents are relevant."""
    generator, count = torch.Generator().manual_seed(30 + len(split)), len(LENGTHS[split])
    vectors, corpus = (torch.randn(n, FEATURES, generator=generator, dtype=torch.float64) for n in (count, 25))
    rows = torch.cat([torch.randperm(25, generator=generator)[:3] for _ in range(count)])
    grades = torch.randint(1, 3, (len(rows),), generator=generator).float()
    relevance = Judged(rows, grades, np.full(count, 3), num_rows=25)
    return RankingSet(corpus, relevance, queries=vectors, name=split)


def topics(split: str) -> RankingSet:
    return lists(split, TOPICS)


def points(split: str) -> RankingSet:
    """Points of three classes, each a query that ranks the training points."""
    generator = torch.Generator().manual_seed(20)
    corpus = torch.randn(15, FEATURES, generator=generator, dtype=torch.float64)
    classes = torch.arange(15) % 3
    corpus[:, 0] += 1.5 * classes
    if split == "train":
        relevance = SameClass(classes, classes, tuple("abc"), own=torch.arange(15))
        return RankingSet(corpus, relevance, queries=corpus, name=split)
    generator.manual_seed(30 + len(split))
    vectors, own = torch.randn(6, FEATURES, generator=generator, dtype=torch.float64), torch.arange(6) % 3
    vectors[:, 0] += 1.5 * own
    return RankingSet(corpus, SameClass(own, classes, tuple("abc")), queries=vectors, name=split)


SETS = {"lists": lists, "queries": queries, "judged": judged, "topics": topics, "points": points}


def sets(kind: str) -> dict[str, RankingSet]:
    return {split: SETS[kind](split) for split in LENGTHS}

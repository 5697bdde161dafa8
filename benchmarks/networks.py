"""Fits that solve or train many parts: a step of LGMMLNet against the plain form of its distances, and the models of
QueryKNN, whose cost should depend on the neighbourhood, not on the number of queries."""

from collections.abc import Iterator

import torch

from benchmarks.suite import Row, Setting
from torchrank import LGMMLNet, QueryKNN
from torchrank.data import synthetic_splits
from torchrank.rankers.neural.local import LocalMetricScorer
from torchrank.solvers.linear.many import join_lists, solve_many_linear
from torchrank.solvers.query_means import nearest_queries, query_vectors

FEATURES = 136


def rows(setting: Setting) -> Iterator[Row]:
    yield net_step(setting, setting.size(200, 10), setting.size(32, 2))
    yield from query_models(setting, (200, 800, 3200) if not setting.quick else (10, 20), setting.size(20, 4))


def net_step(setting: Setting, queries: int, metrics: int) -> Row:
    """Loss and gradient of all training lists, beside the same with images of all rows."""
    train = synthetic_splits(num_queries=queries, num_features=FEATURES)["train"]
    ranker = LGMMLNet(FEATURES, groups="random", metrics=metrics, transform="standard")
    ranker.transform.fit(train.x, train.offsets)
    batch = train.to("cpu", ranker.transform)[:]

    def step() -> None:
        ranker.loss(batch).sum().backward()

    def plain() -> None:
        own, LocalMetricScorer.terms = LocalMetricScorer.terms, plain_terms
        try:
            step()
        finally:
            LocalMetricScorer.terms = own

    ours, theirs = setting.race(step, plain, repeats=4)
    name = f"a step of lgmml_net, {metrics} metrics of full rank, {len(batch.labels)} rows"
    return Row(name, ours, peer="images of all rows", theirs=theirs, bar=0.55)


def plain_terms(scorer: LocalMetricScorer, x: torch.Tensor) -> torch.Tensor:
    """`LocalMetricScorer.terms` with the kernel "distance"."""
    images = (x @ scorer.factors.permute(1, 0, 2).flatten(1)).unflatten(1, scorer.shifts.shape) - scorer.shifts
    return -torch.linalg.vector_norm(images, dim=2) / scorer.log_tau.exp() * scorer.weights


def query_models(setting: Setting, sizes: tuple[int, ...], models: int) -> Iterator[Row]:
    """The time of a model among more and more queries, beside that among the fewest."""
    first = None
    for queries in sizes:
        seconds = a_model(setting, queries, models)
        first = first or seconds
        yield Row(f"a model of queryknn among {queries} queries", seconds, peer=f"among {sizes[0]}", theirs=first)


def a_model(setting: Setting, queries: int, models: int) -> float:
    train = synthetic_splits(num_queries=queries * 5 // 3, num_features=FEATURES)["train"]
    ranker = QueryKNN(FEATURES)
    ranker.transform.fit(train.x, train.offsets)
    batch = train.to("cpu", ranker.transform)[:]
    found, lists = query_vectors(batch.dense, batch.offsets), join_lists([batch])
    members = nearest_queries(found[:models], found, min(ranker.neighbours + 1, len(found)), first=0)
    (seconds,) = setting.race(lambda: solve_many_linear(lists, len(members), l2=ranker.l2, members=members), repeats=1)
    return seconds / len(members)

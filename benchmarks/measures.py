"""Measures beside plain padded PyTorch, torchmetrics, pytrec_eval and ranx.

All tools are given what they take: conversions to padded tensors, to indexes and to dictionaries are made before. No
two scores are equal, so all rank alike; NDCG has the gain y instead of 2^y - 1 in torchmetrics, pytrec_eval and ranx.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from benchmarks.lists import SMALL, Lists, Shape, check_same, make_lists, shapes
from benchmarks.padded import MEASURES as PADDED
from benchmarks.run import Case, Setting, Sides
from torchrank import functional as F

TREC = {  # the names of the same measures in pytrec_eval and ranx
    "ndcg": ("ndcg", "ndcg"),
    "ndcg@10": ("ndcg_cut.10", "ndcg@10"),
    "average_precision": ("map", "map"),
    "reciprocal_rank": ("recip_rank", "mrr"),
    "evaluate": ("ndcg_cut.1,5,10 map recip_rank", "ndcg@1 ndcg@5 ndcg@10 map mrr"),
}


def cases(setting: Setting) -> Iterator[Case]:
    for shape in shapes(setting):
        for name in TREC:
            yield Case(f"{name}, {shape.name}", partial(sides, name, shape), 0.5)


@lru_cache(maxsize=1)
def kept(shape: Shape) -> Lists:
    return make_lists(shape)


def sides(name: str, shape: Shape) -> Sides:
    lists = kept(shape)
    function: Callable[..., Any] = partial(F.ndcg, k=10) if name == "ndcg@10" else getattr(F, name)

    def ours() -> Any:
        return function(lists.scores, lists.labels, lists.given)

    if shape in SMALL:
        found, plain = ours(), PADDED[name](*lists.padded)
        for one, other in zip(found.values(), plain, strict=True) if name == "evaluate" else [(found, plain)]:
            check_same(one, other)
    makers = {"torchmetrics": of_torchmetrics, "pytrec_eval": of_pytrec_eval, "ranx": of_ranx}
    peers = {peer: partial(make, name, shape) for peer, make in makers.items()}
    return Sides(ours, {"padded PyTorch": lambda: partial(PADDED[name], *lists.padded)} | peers)


def of_torchmetrics(name: str, shape: Shape) -> Callable[[], object]:
    from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR, RetrievalNormalizedDCG

    lists, alone = kept(shape), {"ndcg": [None], "ndcg@10": [10], "evaluate": [1, 5, 10]}
    numbers = torch.repeat_interleave(lists.offsets.diff())
    relevant = (lists.labels >= 1).long()

    def call() -> list[Tensor]:
        metrics: list[tuple[Any, Tensor]]
        metrics = [(RetrievalNormalizedDCG(top_k=k), lists.labels.long()) for k in alone.get(name, [])]
        metrics += [(RetrievalMAP(), relevant)] if name in ("average_precision", "evaluate") else []
        metrics += [(RetrievalMRR(), relevant)] if name in ("reciprocal_rank", "evaluate") else []
        for metric, labels in metrics:
            metric.update(lists.scores, labels, indexes=numbers)
        return [metric.compute() for metric, _ in metrics]

    return call


@lru_cache(maxsize=1)
def dictionaries(shape: Shape) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """{query: {document: value}} for labels and for scores."""
    lists, judged, found = kept(shape), {}, {}
    scores, labels = lists.scores.tolist(), lists.labels.tolist()
    for number, (first, last) in enumerate(pairwise(lists.offsets.tolist())):
        judged[f"q{number}"] = {f"d{i}": labels[i] for i in range(first, last)}
        found[f"q{number}"] = {f"d{i}": scores[i] for i in range(first, last)}
    return judged, found


def of_pytrec_eval(name: str, shape: Shape) -> Callable[[], object]:
    import pytrec_eval

    judged, found = dictionaries(shape)
    evaluator = pytrec_eval.RelevanceEvaluator(judged, set(TREC[name][0].split()))
    return lambda: evaluator.evaluate(found)


def of_ranx(name: str, shape: Shape) -> Callable[[], object]:
    import ranx

    judged, found = dictionaries(shape)
    qrels, run = ranx.Qrels(judged), ranx.Run(found)
    return lambda: ranx.evaluate(qrels, run, TREC[name][1].split(), make_comparable=False)

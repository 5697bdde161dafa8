"""NDCG@1,5,10 + MAP + MRR on 6,000 lists: torchrank against torchmetrics, pytrec_eval and ranx, in one run.

No two scores are equal, so all tools rank alike: MAP and MRR agree, and so does NDCG except for the gain, 2^y-1 here
and y there.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR, RetrievalNormalizedDCG

from benchmarks.suite import MissingPeerError, Row, Setting, peer
from torchrank.functional.measures.evaluation import evaluate
from torchrank.functional.ragged import list_ids

TREC = {"ndcg@1": "ndcg_cut_1", "ndcg@5": "ndcg_cut_5", "ndcg@10": "ndcg_cut_10", "map": "map", "mrr": "recip_rank"}


def make_lists(lists: int, seed: int = 0):
    """About 120 documents per list (log-normal, 1 to 1,251), grades 0-4 with MSLR's frequencies, scores that help."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.exp(4.6 + 0.6 * torch.randn(lists, generator=generator)).long().clamp(1, 1251)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    frequencies = torch.tensor([0.52, 0.32, 0.13, 0.02, 0.01])
    labels = torch.multinomial(frequencies, int(offsets[-1]), replacement=True, generator=generator).float()
    scores = labels + 3 * torch.randn(len(labels), generator=generator)
    scores = scores.argsort().argsort().float()  # the same order without equal scores
    return scores, labels, offsets


class TorchRank:
    """`evaluate` on the flat tensors, nothing else known."""

    def __init__(self, scores, labels, offsets):
        self.batch = scores, labels, offsets

    def convert(self):
        return self.batch

    def run(self, batch):
        values = evaluate(*batch, convention="default", measures=tuple(TREC))
        return {name: value.nanmean().item() for name, value in values.items()}


class TorchMetrics:
    """One retrieval metric per measure; indexes are the list numbers."""

    def __init__(self, scores, labels, offsets):
        self.batch = scores, labels, offsets

    def convert(self):
        scores, labels, offsets = self.batch
        return scores, labels.long(), list_ids(offsets, len(scores))

    def run(self, converted):
        scores, labels, ids = converted
        metrics = {f"ndcg@{k}": RetrievalNormalizedDCG(top_k=k) for k in (1, 5, 10)}
        metrics |= {"map": RetrievalMAP(), "mrr": RetrievalMRR()}
        for name, metric in metrics.items():
            metric.update(scores, labels if "ndcg" in name else (labels >= 1).long(), indexes=ids)
        return {name: metric.compute().item() for name, metric in metrics.items()}


def dictionaries(scores, labels, offsets):
    """{query: {document: value}} for judgements and scores, the form that pytrec_eval and ranx take."""
    judged, found = {}, {}
    scores, labels = scores.tolist(), labels.int().tolist()
    for q, (first, last) in enumerate(pairwise(offsets.tolist())):
        judged[f"q{q}"] = {f"d{i}": labels[i] for i in range(first, last)}
        found[f"q{q}"] = {f"d{i}": scores[i] for i in range(first, last)}
    return judged, found


class PytrecEval:
    def __init__(self, *batch):
        self.batch = batch

    def convert(self):
        judged, found = dictionaries(*self.batch)
        return peer("pytrec_eval", "dev").RelevanceEvaluator(judged, {"ndcg_cut.1,5,10", "map", "recip_rank"}), found

    def run(self, converted):
        evaluator, found = converted
        values = evaluator.evaluate(found)
        return {name: sum(one[trec] for one in values.values()) / len(values) for name, trec in TREC.items()}


class Ranx:
    def __init__(self, *batch):
        self.batch = batch

    def convert(self):
        judged, found = dictionaries(*self.batch)
        ranx = peer("ranx")
        return ranx.Qrels(judged), ranx.Run(found)

    def run(self, converted):
        return peer("ranx").evaluate(*converted, list(TREC), make_comparable=False)


PEERS = {"torchmetrics": (TorchMetrics, 1 / 40, 1), "pytrec_eval": (PytrecEval, 1 / 2, 7), "ranx": (Ranx, 1 / 2, 7)}


def rows(setting: Setting) -> Iterator[Row]:
    batch = make_lists(setting.size(6000, 50))
    ours = TorchRank(*batch)
    for name, (tool, bar, repeats) in PEERS.items():
        theirs = tool(*batch)
        try:
            converted = theirs.convert()
        except MissingPeerError as error:
            yield Row(f"evaluation beside {name}", note=str(error))
            continue
        agree(ours.run(batch), theirs.run(converted))
        times = setting.race(lambda: ours.run(batch), lambda: theirs.run(converted), repeats=repeats)  # noqa: B023
        yield Row("evaluation", times[0], peer=name, theirs=times[1], bar=bar)
        if name != "torchmetrics":
            times = setting.race(lambda: ours.run(batch), lambda: theirs.run(theirs.convert()), repeats=2)  # noqa: B023
            yield Row("evaluation and conversion", times[0], peer=name, theirs=times[1], bar=1 / 20)


def agree(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """MAP and MRR do; NDCG has another gain there."""
    for name in ("map", "mrr"):
        assert abs(ours[name] - theirs[name]) < 1e-5, (name, ours, theirs)

"""NDCG@1,5,10 + MAP + MRR on 6,000 lists: torchrank against torchmetrics, pytrec_eval and ranx, in one run.

    python benchmarks/measures.py [--lists 6000] [--repeats 7] [--threads 2] [--quick]

Each time is the best of `repeats` rounds in which all tools but torchmetrics (one round: it takes seconds) take turns,
so that a busy machine slows down all of them. No two scores are equal, so all tools rank alike: MAP and MRR agree, and
so does NDCG except for the gain, 2^y-1 here and y there. Without ranx (the extra `bench`) its row is left out.
"""

import argparse
import time
from itertools import pairwise

import pytrec_eval
import torch
from quick import parse
from torchmetrics.retrieval import RetrievalMAP, RetrievalMRR, RetrievalNormalizedDCG

from torchrank.functional.conventions import describe, evaluate
from torchrank.functional.ragged import list_ids, sort_within

try:
    import ranx
except ImportError:
    ranx = None

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
        return pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.1,5,10", "map", "recip_rank"}), found

    def run(self, converted):
        evaluator, found = converted
        values = evaluator.evaluate(found)
        return {name: sum(one[trec] for one in values.values()) / len(values) for name, trec in TREC.items()}


class Ranx:
    def __init__(self, *batch):
        self.batch = batch

    def convert(self):
        judged, found = dictionaries(*self.batch)
        return ranx.Qrels(judged), ranx.Run(found)

    def run(self, converted):
        return ranx.evaluate(*converted, list(TREC), make_comparable=False)


def seconds(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of torchrank and torchmetrics; default: torch's own choice")
    options = parse(parser, lists=50, repeats=1)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    batch = make_lists(options.lists)
    print(f"{options.lists} lists, {len(batch[0])} documents, longest {int(batch[2].diff().max())}, "
          f"{torch.get_num_threads()} threads\n")  # fmt: skip
    tools = {"torchrank": TorchRank(*batch), "pytrec_eval": PytrecEval(*batch)}
    tools |= {} if ranx is None else {"ranx": Ranx(*batch)}
    alone, whole, values = {}, {}, {}
    for _ in range(options.repeats):
        for name, tool in tools.items():
            making, converted = seconds(tool.convert)
            running, values[name] = seconds(tool.run, converted)
            alone[name] = min(alone.get(name, running), running)
            whole[name] = min(whole.get(name, making + running), making + running)
        sorting, _ = seconds(sort_within, batch[0], batch[2])
        alone["(the sort)"] = min(alone.get("(the sort)", sorting), sorting)
    tool = TorchMetrics(*batch)
    alone["torchmetrics"], values["torchmetrics"] = seconds(tool.run, tool.convert())
    report(alone, whole, values)


def report(alone, whole, values):
    print(f"{'':14}{'evaluation':>12}{'+ conversion':>14}   means {', '.join(TREC)}")
    for name, time_alone in alone.items():
        both = f"{1e3 * whole[name]:11.0f} ms" if name in whole else " " * 14
        means = " ".join(f"{values[name][measure]:.6f}" for measure in TREC) if name in values else ""
        print(f"{name:14}{1e3 * time_alone:9.1f} ms{both}   {means}")
    ours, peers = alone["torchrank"], [name for name in ("pytrec_eval", "ranx") if name in alone]
    print("\n(the sort) is one sort of all scores at once, for scale; torchrank sorts pieces that fit the cache")
    print(f"torchrank: {describe('default')}")
    print("the others: gain y, discount 1/log2(1+rank), relevant y>=1, queries without relevant documents count 0")
    for text, ratio, target in [
        ("torchmetrics / torchrank", alone["torchmetrics"] / ours, 40),
        (f"fastest of {', '.join(peers)} / torchrank", min(alone[name] for name in peers) / ours, 2),
        ("the same with conversion / torchrank", min(whole[name] for name in peers) / whole["torchrank"], 20),
    ]:
        print(f"{text:45}{ratio:8.1f}x   (wanted: {target}x) {'ok' if ratio >= target else 'MISSED'}")


if __name__ == "__main__":
    main()

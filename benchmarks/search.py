"""Exact search over a corpus beside faiss, and the rounds of an adapter that mines its negatives by it.

1. 1,000 queries among 1,000,000 vectors of 384 float32, the 100 best of each: faiss's IndexFlatIP on the same vectors
   takes turns with it, and so do the bare products of the blocks. Memory is that beside vectors and result.
2. The same search by cosine, by the Euclidean distance, and among float16 vectors.
3. Rounds of an adapter on 100,000 documents and 2,000 queries, beside the time that their products would take at the
   speed of a large product of float32 matrices.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.suite import MissingPeerError, Row, Setting, in_process, peer
from torchrank import Adapter, RankingSet, TrainingLists
from torchrank.data import Judged
from torchrank.functional import search
from torchrank.functional.neighbours.corpus import BLOCK_DOCUMENTS, BLOCK_SCORES

WIDTH, TOP, JUDGED = 384, 100, 5
LIMIT = 512  # MB
ROUNDING = 1e-5  # of scores, relative to the highest one


def rows(setting: Setting) -> Iterator[Row]:
    documents, queries = setting.size(1_000_000, 3_000), setting.size(1000, 20)
    corpus, asked = vectors(documents, 0), vectors(queries, 1)
    name = f"{queries:,} queries among {documents:,} vectors"
    yield from beside_faiss(setting, name, asked, corpus)
    yield memory(name, documents, queries)
    yield from others(setting, name, asked, corpus)
    del corpus
    yield from training(setting)


def vectors(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


# ---- search ---------------------------------------------------------------------------------------------------------


def beside_faiss(setting: Setting, name: str, queries: torch.Tensor, corpus: torch.Tensor) -> Iterator[Row]:
    def products():
        scores = torch.empty(BLOCK_SCORES)
        for rows in corpus.split(BLOCK_DOCUMENTS):
            for part in queries.split(BLOCK_SCORES // BLOCK_DOCUMENTS):
                torch.mm(part, rows.T, out=scores[: len(part) * len(rows)].view(len(part), len(rows)))

    functions = [lambda: search(queries, corpus, TOP), products]
    try:
        faiss = peer("faiss", "faiss")
    except MissingPeerError as error:
        yield Row(f"{name}, faiss", note=str(error))
    else:
        faiss.omp_set_num_threads(setting.threads)
        index = faiss.IndexFlatIP(WIDTH)
        index.add(corpus.numpy())
        functions.append(lambda: index.search(queries.numpy(), TOP))
    ours, bare, *theirs = setting.race(*functions, repeats=3)
    if theirs:
        scores, found = index.search(queries.numpy(), TOP)
        told = compared(search(queries, corpus, TOP), scores, found)
        yield Row(name, ours, peer="faiss IndexFlatIP", theirs=theirs[0], bar=1.5, note=told)
    yield Row(f"{name}, products", ours, peer="its bare products", theirs=bare, note=f"{bare / ours:.0%} of its time")


def compared(ours, scores: np.ndarray, rows: np.ndarray) -> str:
    """Whether two searches found the same rows; others must have scores that are equal but for rounding."""
    same, mine = ours.rows.numpy() == rows, ours.scores.numpy()
    apart = float(np.abs(mine - scores).max() / np.abs(scores).max())
    if apart > ROUNDING:
        raise AssertionError(f"scores differ from those of faiss by {apart:.1e} of the highest one")
    common = np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(ours.rows.numpy(), rows, strict=True)])
    places = f"{(~same).sum():,} of {same.size:,} places differ by rounding" if not same.all() else "the same rows"
    return f"{places}, {common:.6f} of the rows in common"


MEMORY = """
import sys, torch
from benchmarks.search import TOP, vectors
from torchrank.functional import search

def held(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

documents, queries = map(int, sys.argv[1:])
corpus, asked = vectors(documents, 0), vectors(queries, 1)
search(asked[:1], corpus[:TOP], TOP)  # what libraries take at their first call
before = held("VmRSS")
found = search(asked, corpus, TOP)
print(held("VmHWM") - before - (found.scores.nbytes + found.rows.nbytes) / 2**20)
"""


def memory(name: str, documents: int, queries: int) -> Row:
    """Memory of a search in a process of its own."""
    if sys.platform != "linux":
        return Row(f"{name}, memory", note="measured on Linux only")
    taken = float(in_process(MEMORY, str(documents), str(queries)))
    note = "beside the vectors and what is found"
    return Row(f"{name}, memory", taken, "MB", "limit", LIMIT, 1, note)


def others(setting: Setting, name: str, queries: torch.Tensor, corpus: torch.Tensor) -> Iterator[Row]:
    for similarity in ("cosine", "euclidean"):
        ours, inner = setting.race(
            lambda similarity=similarity: search(queries, corpus, TOP, similarity=similarity),
            lambda: search(queries, corpus, TOP),
            repeats=2,
        )
        yield Row(f"{name}, {similarity}", ours, peer="inner product", theirs=inner)
    half = corpus.half()
    ours, inner = setting.race(lambda: search(queries, half, TOP), lambda: search(queries, corpus, TOP), repeats=2)
    yield Row(f"{name}, float16", ours, peer="float32", theirs=inner)


# ---- training -------------------------------------------------------------------------------------------------------


def training(setting: Setting) -> Iterator[Row]:
    documents, queries = setting.size(100_000, 1_000), setting.size(2_000, 40)
    peak, ranker = products_per_second(setting), Adapter(WIDTH)
    lists = TrainingLists(judged(documents, queries))
    ranker.begin(lists)
    ranker.resume(lists)
    ranker.take_round(0)  # it changes nothing
    ranker.take_round(1)
    mined, descent = [], ranker.learner

    def timed(*given, mine=descent._mined):
        found: list = []
        mined.append(setting.seconds(lambda: found.append(mine(*given))))
        return found[0]

    descent._mined = timed
    rounds = [setting.seconds(lambda number=number: ranker.take_round(number)) for number in (2, 3)]
    whole, mining = min(zip(rounds, mined, strict=True))
    limit = 2.0 * queries * documents * WIDTH / peak
    parts = f"mining {mining:.3g} s, steps {whole - mining:.3g} s"
    told = f"{parts}; {limit / whole:.0%} of the peak of {peak / 1e9:.0f} GFLOPS"
    name = f"a round of an adapter, {queries:,} queries and {documents:,} documents"
    yield Row(name, whole, peer="the products of mining at the peak", theirs=limit, note=told)


def judged(documents: int, queries: int) -> RankingSet:
    """Queries near to one of their judged documents."""
    random, corpus = np.random.default_rng(0), vectors(documents, 2)
    relevant = np.stack([np.sort(random.choice(documents, JUDGED, replace=False)) for _ in range(queries)])
    relevance = Judged.make(relevant.ravel(), np.ones(relevant.size), np.full(queries, JUDGED), documents)
    return RankingSet(corpus, relevance, queries=corpus[torch.from_numpy(relevant[:, 0])] + vectors(queries, 3))


def products_per_second(setting: Setting) -> float:
    """Operations in a second of a large product of float32 matrices."""
    size = setting.size(3_000, 200)
    left, right = (torch.randn(size, size) for _ in range(2))
    into = torch.empty(size, size)
    (time,) = setting.race(lambda: torch.mm(left, right, out=into), repeats=5)
    return 2.0 * size**3 / time

"""Small lists with query vectors, and fits of MLR on them."""

import numpy as np
import torch

from tests.reference.mlr import brute_force
from torchrank import MLR, RankingDataModule, RankingSet
from torchrank.data.relevance import SameClass

D = 5
QUICK = {"C": 3.0, "eps": 1e-2, "transform": None}
KINDS = {
    "map": {},
    "auc": {"measure": "auc", "regulariser": "fro"},
    "sweep": {"measure": "mrr", "threshold": "sweep", "regulariser": "l21", "lam": 0.3},
    "ndcg": {"measure": "ndcg", "k": 4, "regulariser": "diagonal", "C": 30.0},
    "neighbours": {"measure": "precision", "k": 2, "neighbours": 3},
    "anchor": {"regulariser": "fro", "anchor": 0.5},
    "path": {"C": [1.0, 3.0, 10.0]},
}


def rows(seed, count):
    """Points of three classes that differ in two features of five."""
    random = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % 3
    x = torch.randn(count, D, generator=random)
    x[:, 0] += 1.5 * classes
    x[:, 2] -= 1.0 * (classes == 1)
    return x.double(), classes  # float32 numbers, as resident sets hold them


def of_classes(x, classes, names=("a", "b", "c")):
    """Every point ranks the others; those of its class are relevant."""
    return RankingSet(x, SameClass(classes, classes, names, own=torch.arange(len(x))), queries=x)


def points(train=15, others=9):
    x, classes = rows(0, train)
    sets = {"train": of_classes(x, classes)}
    for seed, split in ((1, "val"), (2, "test")):
        queries, own = rows(seed, others)
        sets[split] = RankingSet(x, SameClass(own, classes, ("a", "b", "c")), queries=queries)
    return sets


def graded(form="corpus", lists=8, seed=3):
    """Lists of 4..9 candidates with grades 0-3, one list with one grade; a corpus row may be a candidate of many."""
    draw = np.random.default_rng(seed)
    corpus, queries = rows(seed, 30)[0], rows(seed + 1, lists)[0]
    lengths = draw.integers(4, 10, lists)
    offsets = torch.tensor(np.concatenate([[0], lengths.cumsum()]))
    index = torch.tensor(np.concatenate([draw.permutation(30)[:n] for n in lengths]))
    ids = torch.repeat_interleave(torch.arange(lists), torch.tensor(lengths))
    near = -(corpus[index] - queries[ids])[:, 0].abs() + 0.5 * torch.tensor(draw.normal(size=len(index)))
    labels = (near > -3).float() + (near > -1).float() + (near > -0.5).float()
    labels[offsets[2] : offsets[3]] = 1.0
    if form == "corpus":
        return RankingSet(corpus, labels, offsets, index=index, queries=queries, name=f"seed {seed}")
    return RankingSet(corpus[index], labels, offsets, queries=queries, name=f"seed {seed}")


def data(batch_documents=60, form=None):
    """For tests of trainers and checkpoints."""
    sets = (
        points() if form is None else {"train": graded(form), "val": graded(form, seed=5), "test": graded(form, seed=7)}
    )
    return RankingDataModule.from_sets(**sets, batch_documents=batch_documents)


def train_of(kind):
    """The lists that a kind of fit learns from: only a sweep needs grades."""
    return graded() if kind == "sweep" else points()["train"]


def fit(train=None, make=MLR, batch_documents=60, **options):
    train = points()["train"] if train is None else train
    return make(D, **QUICK | options).fit(train, batch_documents=batch_documents)


def objective(train, metric, measure="map", k=None, threshold=1):
    """Mean of the hinge over the lists with two classes, all rankings tried where lists are short."""
    found = []
    for q in range(len(train)):
        batch = train[q].flat()
        gaps = batch.x.double().numpy() - batch.queries[0].double().numpy()
        relevant = batch.labels.numpy() >= threshold
        if relevant.any() and not relevant.all():
            scores = -np.einsum("nd,de,ne->n", gaps, metric, gaps)
            found.append(brute_force(scores, relevant, measure, k))
    return float(np.mean(found))

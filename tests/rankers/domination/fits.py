"""Documents with topics, and fits of DominationRank to them."""

import torch

from tests.rankers.small import lists
from tests.reference.domination import Objective
from torchrank import DominationRank, RankingDataModule, RankingSet
from torchrank.data import SparseRows

TOPICS, DOCUMENTS, WORDS = 4, 40, 16
TIGHT = {"transform": None, "tolerance": 1e-6, "rounds": 200}
SOLVERS = {
    "lbfgs": {"l2": 0.5},
    "fista": {"l1": 1.0, "l2": 0.0},
    "pooled": {"l1": 1.0, "l2": 0.1, "group": "pooled"},
    "negatives": {"l1": 1.0, "l2": 0.0, "negatives": 0.5, "grades": "flat"},
    "induction": {"l1": 1.0, "l2": 0.0, "induction": 2},
    "path": {"l2": 0.0, "path": 4, "path_ratio": 0.05},
    "path by induction": {"l2": 0.0, "path": 4, "path_ratio": 0.05, "induction": 2},
}


def corpus(split, *, shared=True, sparse=True, names=None):
    """Every document of a split in the list of every topic; a topic prefers words of its own. The last has none."""
    random = torch.Generator().manual_seed(len(split))
    x = torch.rand(DOCUMENTS, WORDS, generator=random) * (torch.rand(DOCUMENTS, WORDS, generator=random) < 0.3)
    scores = x @ torch.randn(WORDS, TOPICS, generator=torch.Generator().manual_seed(9))
    labels = (scores > scores.quantile(torch.tensor([0.6, 0.8, 0.9, 1.0]), 0).diagonal()).float().T.flatten()
    index = torch.arange(DOCUMENTS).repeat(TOPICS)
    rows = x if shared else x[index]
    return RankingSet(
        SparseRows.from_dense(rows) if sparse else rows,
        labels,
        torch.arange(0, TOPICS * DOCUMENTS + 1, DOCUMENTS),
        index=index if shared else None,
        query_ids=names or [f"topic {t}" for t in range(TOPICS)],
        name=split,
    )


def topic_data(**options):
    return RankingDataModule.from_sets(**{split: corpus(split, **options) for split in ("train", "val", "test")})


def fit(train=None, val=None, batch_documents=40, **options):
    """A fit to the lists `train`, by default `lists(0)`, to a tight tolerance."""
    train = lists(0) if train is None else train
    ranker = DominationRank(train.x.shape[1], **TIGHT | options)
    return ranker.fit(train, val, batch_documents=batch_documents)


def recorded(ranker):
    """Objective, violation and weights after every round of the fits of a ranker."""
    rounds, take = [], ranker.round

    def record(lists, number):
        found = take(lists, number)
        rounds.append((found.log["train/objective"], found.log["train/kkt"], ranker.weight.numpy().copy()))
        return found

    ranker.round = record
    return rounds


def relabelled(ranking_set, labels):
    return RankingSet(ranking_set.x, labels, ranking_set.offsets, name=ranking_set.name)


def reference(ranking_set, delta=None, flat=False, pooled=False, **penalty):
    """The objective of these lists, typed again."""
    labels = (ranking_set.labels > 0).float() if flat else ranking_set.labels
    offsets = [0, len(labels)] if pooled else ranking_set.offsets
    return Objective(ranking_set.x, labels, offsets, delta=delta, **penalty)


def topic_reference(topic, **penalty):
    flat = corpus("train", shared=False, sparse=False)[topic]
    return Objective(flat.x, flat.labels, flat.offsets, **penalty)


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one.weight, other.weight, rtol=0, atol=atol)

"""Documents with topics, and fits of DominationRank to them."""

import torch

from tests.golden.domination_reference import Objective
from tests.rankers.small import data, trainer
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


def topic_data(batch_documents=100, **options):
    sets = {split: corpus(split, **options) for split in ("train", "val", "test")}
    return RankingDataModule.from_sets(**sets, batch_documents=batch_documents, measures=["map"])


def fit(folder, module=None, callbacks=(), **options):
    module = module or data()
    ranker = DominationRank(module.num_features, **TIGHT | options)
    runner = trainer(folder, ranker.rounds, monitor=f"val/{module.measures[-1]}", callbacks=callbacks)
    runner.fit(ranker, datamodule=module)
    return ranker


def reference(ranking_set, **penalty):
    return Objective(ranking_set.x, ranking_set.labels, ranking_set.offsets, **penalty)


def topic_reference(topic, **penalty):
    flat = corpus("train", shared=False, sparse=False)[topic]
    return Objective(flat.x, flat.labels, flat.offsets, **penalty)


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one.weight, other.weight, rtol=0, atol=atol)

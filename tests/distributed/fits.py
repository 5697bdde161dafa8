"""Fits every deterministic ranker in this process group and saves what it learned: run under torch.distributed.run.

usage: python -m torch.distributed.run --nproc-per-node 2 fits.py out.pt [listnet_lbfgs ...]
"""

import os
import sys
import warnings

import torch
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.strategies import DDPStrategy

from torchrank import (
    MLR,
    PAMIR,
    RMLR,
    AdaRank,
    DominationRank,
    LambdaRank,
    ListNet,
    LocalRank,
    LowRankMLR,
    NeuralRanker,
    QueryKNN,
    RankBoost,
    RankingDataModule,
    RankingSet,
    RankSVM,
    SingleFeature,
    SVMMap,
    TransductivePCA,
)

LENGTHS = {"train": [1, 40, 2, 9, 5, 3, 17], "val": [6, 11], "test": [4, 1, 8, 5]}  # uneven, and fewer than processes
TOPICS = {"train": [12, 40, 2, 9], "val": [6, 11, 3, 4], "test": [4, 7, 8, 5]}  # list q is topic q

FITS = {
    "listnet_lbfgs": (lambda: ListNet(5, rounds=30), 30),
    "singlefeature": (lambda: SingleFeature(5), 1),
    "lambdarank": (lambda: LambdaRank(5, lr=0.1), 4),
    "mlp_ranknet": (lambda: NeuralRanker(5, "mlp", "ranknet", scorer_options={"hidden": [4]}, lr=0.05), 3),
    "mlp_listnet_pca": (
        lambda: NeuralRanker(5, "mlp", "listnet", {"name": "pca", "variance": 0.9}, {"hidden": [4]}, lr=0.05),
        3,
    ),
    "pamir_minibatches": (lambda: PAMIR(5, minibatch=8, rounds=3), 3),
    "domination_lbfgs": (lambda: DominationRank(5, l2=0.1), 20),
    "domination_fista": (lambda: DominationRank(5, l1=1.0, l2=0.0, margin=0.5), 20),
    "domination_pooled": (lambda: DominationRank(5, l1=1.0, l2=0.1, solver="fista", group="pooled"), 20),
    "domination_drawn": (lambda: DominationRank(5, l1=0.5, l2=0.1, negatives=0.5, grades="flat"), 20),
    "domination_induction": (lambda: DominationRank(5, l1=1.0, l2=0.0, induction=2), 20),
    "domination_cd": (lambda: DominationRank(5, l1=0.5, solver="cd", order="random", rounds=4), 4),
    "domination_blocked": (lambda: DominationRank(5, solver="blocked", block=2, rounds=4), 4),
    "domination_path": (lambda: DominationRank(5, l2=0.0, path=4), 4),
    "domination_path_induction": (lambda: DominationRank(5, l2=0.0, path=4, induction=2), 4),
    "rankboost": (lambda: RankBoost(5, rounds=12), 12),
    "rankboost_few_bins": (lambda: RankBoost(5, bins=5, pair_weight="query", alpha="exact", rounds=12), 12),
    "adarank": (lambda: AdaRank(5, rounds=12), 12),
    "adarank_ndcg": (lambda: AdaRank(5, "ndcg@3", both_directions=True, ties="average", rounds=12), 12),
    "adarank_published": (lambda: AdaRank(5, exclude_repeat=False, rounds=12), 12),
    "queryknn": (lambda: QueryKNN(5, neighbours=2, l2=0.1, models_per_round=4), 2),
    "queryknn_ranksvm": (lambda: QueryKNN(5, 3, "ranksvm", 0.1, top=2, reference_feature=1), 1),
    "dk": (lambda: TransductivePCA(5, "auto", l2=0.1), 1),
    "dk_rankboost": (lambda: TransductivePCA(5, 2, "rankboost", boosting_rounds=3), 1),
    "local_listnet": (lambda: LocalRank(5, base_options={"l2": 0.1}, clusters=[2, 4], min_lists=1, rounds=12), 12),
    "local_shrunk": (
        lambda: LocalRank(5, base_options={"l2": 0.1}, clusters=3, assignment="shrink", min_lists=1, rounds=12),
        12,
    ),
    "local_rankboost": (lambda: LocalRank(5, "rankboost", clusters=2, components=2, min_lists=1, rounds=4), 4),
    "local_network": (
        lambda: LocalRank(5, "neural", {"scorer_options": {"hidden": [4]}, "lr": 0.05}, [2], min_lists=1),
        3,
    ),
    "mlr": (lambda: MLR(5, C=3.0, eps=1e-2), 40, "queries"),
    "mlr_auc_fro": (lambda: MLR(5, "auc", C=3.0, regulariser="fro", eps=1e-2, threshold="sweep"), 40, "queries"),
    "mlr_diagonal": (lambda: MLR(5, "mrr", C=5.0, regulariser="diagonal", eps=1e-2, neighbours=2), 40, "queries"),
    "mlr_path": (lambda: MLR(5, "ndcg", C=[10.0, 30.0], eps=1e-2), 2, "queries"),
    "rmlr": (lambda: RMLR(5, C=5.0, lam=0.3, eps=1e-2), 40, "queries"),
    "lowrank_mlr": (lambda: LowRankMLR(5, rank=2, lr=0.05), 4, "queries"),
    "svmmap": (lambda: SVMMap(5, eps=1e-2), 60),
    "svmmap_queries": (lambda: SVMMap(5, "precision", eps=1e-2, transform="standard"), 60, "queries"),
    "ranksvm": (lambda: RankSVM(5, eps=1e-2, threshold="sweep"), 60),
    "pamir_topics": (lambda: PAMIR(5, per_topic=True, rounds=3), 3, "topics"),
    "pamir_topics_last": (lambda: PAMIR(5, per_topic=True, rounds=3, averaged=False, l2=1e-3), 3, "topics"),
    "pamir_topics_minibatches": (lambda: PAMIR(5, per_topic=True, rounds=3, minibatch=8), 3, "topics"),
    "domination_topics": (lambda: DominationRank(5, per_topic=True, l1=0.5, l2=0.1), 20, "topics"),
    "domination_topics_induction": (
        lambda: DominationRank(5, per_topic=True, l1=0.5, l2=0.1, induction=1),
        20,
        "topics",
    ),
}


def lists(split: str, all_lengths: dict[str, list[int]] = LENGTHS) -> RankingSet:
    lengths = torch.tensor(all_lengths[split])
    generator = torch.Generator().manual_seed(len(split))
    x = torch.randn(int(lengths.sum()), 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (len(x),), generator=generator).float()
    labels[lengths[0]] = 2.0  # every set has a relevant document
    return RankingSet(x, labels, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), name=split)


def queries(split: str) -> RankingSet:
    """The same lists over one corpus, with query vectors."""
    flat = lists(split)
    generator = torch.Generator().manual_seed(10 + len(split))
    index = torch.randint(25, (len(flat.x),), generator=generator)
    vectors = torch.randn(len(flat), 5, generator=generator, dtype=torch.float64)
    corpus = torch.randn(25, 5, generator=generator, dtype=torch.float64)
    return RankingSet(corpus, flat.labels, flat.offsets, index=index, queries=vectors, name=split)


def topics(split: str) -> RankingSet:
    return lists(split, TOPICS)


SETS = {"lists": lists, "queries": queries, "topics": topics}


def fit(make, epochs: int, kind: str = "lists") -> dict:
    seed_everything(1, verbose=False)
    ranker = make()
    strategy = DDPStrategy(process_group_backend="gloo", broadcast_buffers=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=strategy,
        max_epochs=epochs,
        precision="64-true",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
        num_sanity_val_steps=0,
    )
    data = RankingDataModule.from_sets(**{split: SETS[kind](split) for split in LENGTHS}, batch_documents=20)
    trainer.fit(ranker, datamodule=data)
    trainer.test(ranker, datamodule=data, verbose=False)
    return {"state": ranker.state_dict(), "measured": ranker.measured, "epochs": trainer.current_epoch}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    learned = {name: fit(*FITS[name]) for name in sys.argv[2:] or FITS}
    if torch.distributed.get_rank() == 0:
        torch.save(learned, sys.argv[1])
    torch.distributed.destroy_process_group()

"""Copies of a base ranker, each fitted on lists of its own: what LocalRank is made of."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

import torchrank
from torchrank.data.datamodule import RankingDataModule
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.rankers.core.ranker import Ranker

BASES = {
    "listnet": "ListNet",
    "lambdarank": "LambdaRank",
    "neural": "NeuralRanker",
    "singlefeature": "SingleFeature",
    "gbdt": "GBDTRanker",
    "gmml": "GMML",
    "lgmml": "LGMML",
    "lgmml_net": "LGMMLNet",
    "domination": "DominationRank",
    "pamir": "PAMIR",
    "svmmap": "SVMMap",
    "ranksvm": "RankSVM",
    "rankboost": "RankBoost",
    "adarank": "AdaRank",
}
LINEAR = ("listnet", "lambdarank", "domination", "pamir", "svmmap", "ranksvm")


def make_base(base: str, num_features: int, rounds: int, options: dict[str, Any]) -> Any:
    """A ranker of rows that are transformed already."""
    if base not in BASES:
        raise ValueError(f"unknown base={base!r}: choose one of {', '.join(BASES)}")
    if own := options.keys() & {"transform", "num_features", "rounds"}:
        raise ValueError(f"base_options have {', '.join(sorted(own))}: set it for the whole, as model.{min(own)}")
    if options.get("per_topic"):
        raise ValueError("base_options have per_topic, a model of each list: models of clusters rank any list")
    make = torchrank.__getattr__(BASES[base])
    limit = {"rounds": rounds} if "rounds" in inspect.signature(make).parameters else {}
    return make(num_features, transform=None, **limit, **options)


class Parts(nn.ModuleList):
    """Part 0 learns from all training lists, each other one from lists of its own; the first `count` are in use.

    Parts go through the rounds side by side. Each counts its own, so that a fit that is interrupted in the middle of a
    round goes on where it was.
    """

    count = 1
    held = 1  # were in use in this fit or in one before it

    def used(self) -> list[Any]:
        return list(self)[: self.count]

    def start(self, whole: Ranker, data: list[RankingDataModule]) -> None:
        """Before the first round, and after a fit was taken up again."""
        self.count, self.held = len(data), max(self.held, len(data))
        for part, lists in zip(self.used(), data, strict=True):
            part.join(whole, lists)

    def round(self, done: Tensor) -> bool:
        """One round of every part that is not through; `done (M,)` counts rounds."""
        for number, part in enumerate(self.used()):
            if not part.converged and done[number] <= part.trainer.current_epoch:
                part.converged.fill_(bool(part.round()))
                done[number] += 1
        return all(bool(part.converged) for part in self.used())

    def end(self) -> None:
        for part in self.used():
            part.leave()

    def certificate(self) -> dict[str, float]:
        """That of the part which is furthest from its own."""
        found = [part.certificate for part in self.used() if part.certificate]
        return max(found, key=lambda each: next(iter(each.values())), default={})

    def states(self) -> list[dict]:
        """What the parts write into a checkpoint beside their tensors."""
        parts: list[Any] = list(self)[: self.held]
        saved: list[dict] = [{} for _ in parts]
        for part, state in zip(parts, saved, strict=True):
            part.on_save_checkpoint(state)
        return saved

    def load(self, saved: list[dict]) -> None:
        self.count = self.held = len(saved)
        for part, state in zip(self.used(), saved, strict=True):
            part.on_load_checkpoint(state)


def lists_as_data(whole: Ranker, lists: RankingSet) -> RankingDataModule:
    """Lists that are transformed already and on the device of a ranker, as the training data of one of its parts."""
    data = RankingDataModule.from_sets(train=lists, batch_documents=whole.data.batch_documents, resident=True)
    data.trainer = whole.data.trainer
    return data


def resident_lists(whole: Ranker) -> RankingSet:
    """The training lists of a ranker, transformed and on its device."""
    lists = whole.data.ready("train")
    if not isinstance(lists, RankingSet):
        name = type(whole).__name__
        raise ValueError(f"{name} takes its training lists apart, on the device: set data.resident=true")
    return lists


def spread(x: Tensor, cluster: Tensor, clusters: int, stiffness: float) -> SparseRows:
    """Rows (n, D) side by side with themselves in the columns of their cluster (n,), -1: of none, as (n, D (C + 1)).

    One linear model w of such rows is w_0 + d_c, shared weights and a correction for each cluster. The second copy is
    divided by sqrt(stiffness), so that |w|^2 = |w_0|^2 + stiffness * sum of |d_c|^2.

    >>> spread(torch.tensor([[2.0], [3.0]]), torch.tensor([1, -1]), 2, 4.0).dense()
    tensor([[2., 0., 1.],
            [3., 0., 0.]])
    """
    count, width = x.shape
    columns = torch.arange(width, device=x.device).expand(count, -1)
    own = columns + width * (1 + cluster.clamp(min=0))[:, None]
    values = torch.where(cluster[:, None] < 0, 0, x / stiffness**0.5)
    offsets = 2 * width * torch.arange(count + 1, device=x.device)
    both = torch.stack((columns, own), 1).reshape(-1), torch.stack((x, values), 1).reshape(-1)
    return SparseRows(both[1], both[0], offsets, width * (clusters + 1))

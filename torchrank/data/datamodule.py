"""The data of a run: its sets of lists, prepared for a module (transformed, on its device) and cut into batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningDataModule, Trainer
from pytorch_lightning.trainer.states import TrainerStatus
from pytorch_lightning.utilities import rank_zero_warn

from torchrank.data.catalogue import CATALOGUE, load_splits
from torchrank.data.cleaning import clean, repeated_queries
from torchrank.data.rows import ALONE, Share
from torchrank.data.sampler import BatchLoader, BudgetSampler
from torchrank.data.sets import RankingSet
from torchrank.data.sources.embeddings import load_embeddings
from torchrank.data.sources.names import read_names
from torchrank.data.sources.points import load_points
from torchrank.data.sources.rcv1 import load_rcv1
from torchrank.data.sources.retrieval import load_retrieval
from torchrank.data.sources.tables import load_table
from torchrank.data.synthetic.clouds import load_clouds
from torchrank.data.synthetic.gaussian import load_gaussian
from torchrank.data.synthetic.matchmaking import load_matchmaking
from torchrank.data.synthetic.mslr import synthetic_splits
from torchrank.data.synthetic.music import load_music
from torchrank.data.synthetic.text import load_text
from torchrank.data.training import TrainingLists, batch_entries, free_memory, pass_room
from torchrank.data.transforms import Transform
from torchrank.data.weights import propensity_weights
from torchrank.errors import DataError, DataWarning, check_choice, check_integer

LOADERS: dict[str, Callable[..., dict[str, RankingSet]]] = {
    "clouds": load_clouds,
    "embeddings": load_embeddings,
    "gaussian": load_gaussian,
    "matchmaking": load_matchmaking,
    "music": load_music,
    "points": load_points,
    "rcv1": load_rcv1,
    "retrieval": load_retrieval,
    "synthetic": synthetic_splits,
    "table": load_table,
    "text": load_text,
}
UNNAMED = re.compile(
    r"train|training|fold\d*|data", re.IGNORECASE
)  # a file or folder that tells no data set from others
CLEANED: dict[str, tuple[str, ...]] = {"none": (), "train": ("train",), "all": ("train", "val", "test")}


class RankingDataModule(LightningDataModule):
    """The train, val and test lists of a known data set; `RankingDataModule.from_sets(train=...)` takes your own.

    Its loaders serve any LightningModule and, after `setup()`, plain torch loops. Batches are on the device of the
    trainer, on the CPU without one. Their rows have gone through `module.transform` if the module has a `Transform`, as
    rankers do; otherwise they are as they were read, in float32.

    Args:
        name: a data set of the catalogue (`LOADERS` and `CATALOGUE`).
        fold: the fold of the data set, from 1.
        seed: draws what is random in the data: synthetic lists, held-out queries.
        order_seed: draws the order of the batches.
        clean: delete contradictory documents and queries without relevant ones from "train", from "all" sets (which
            raises every measure), or from "none".
        batch_documents: documents of one optimizer step over all processes, so that a fit does not depend on their
            number.
        pass_bytes: memory of the device that a round, a validation or a test takes for one batch. By default half of
            what is free there; on the CPU these batches have `batch_documents`.
        resident: True transforms whole sets once and keeps them on the device, False transforms each batch when it is
            read; "auto" keeps sets that take less than half of the free memory of the device. A shared corpus is
            always kept.
        feature_names: the names of the features: a list, or a file below `root` with one name per line. By default the
            data set's own, if it has some (`table`).
        propensities: the probability that position 0, 1, ... is examined: documents with positions get the weights
            1 / p(position), times their own weights if they have some. See `propensity_weights`.
        source: the options of the data set's reader, such as `root`.

    Example:
        >>> data = RankingDataModule("synthetic", num_queries=20, batch_documents=300)
        >>> data.setup()
        >>> sum(batch.num_lists for batch in data.train_dataloader())
        12
    """

    def __init__(
        self,
        name: str,
        *,
        fold: int = 1,
        seed: int = 0,
        order_seed: int = 0,
        clean: str = "none",
        batch_documents: int = 20_000,
        pass_bytes: int | None = None,
        resident: bool | str = "auto",
        feature_names: str | Path | Sequence[str] | None = None,
        propensities: Sequence[float] | None = None,
        **source: Any,
    ):
        super().__init__()
        check_choice((*LOADERS, *CATALOGUE), name=name)
        check_choice(CLEANED, clean=clean)
        check_choice((True, False, "auto"), resident=resident)
        check_integer(">= 1", batch_documents=batch_documents, pass_bytes=pass_bytes)
        self.name: str = name
        self.fold, self.clean, self.source = fold, clean, source
        self.seed, self.order_seed = seed, order_seed
        self.batch_documents, self.pass_bytes, self.resident = batch_documents, pass_bytes, resident
        self.feature_names, self.propensities = feature_names, propensities
        self.sets: dict[str, RankingSet] = {}
        self._ready: dict[str, RankingSet] = {}

    @classmethod
    def from_sets(
        cls,
        *,
        train: RankingSet | None = None,
        val: RankingSet | None = None,
        test: RankingSet | None = None,
        batch_documents: int = 20_000,
        pass_bytes: int | None = None,
        resident: bool | str = "auto",
        order_seed: int = 0,
    ) -> RankingDataModule:
        """A data module of sets in memory.

        Args:
            train: the lists to learn from.
            val: the lists to choose the best state by.
            test: the lists to measure.
            batch_documents: see `RankingDataModule`, as for the other options.
            pass_bytes: see `RankingDataModule`.
            resident: see `RankingDataModule`.
            order_seed: see `RankingDataModule`.

        Returns:
            The data module; it needs no `setup`.
        """
        options: dict[str, Any] = {"batch_documents": batch_documents, "pass_bytes": pass_bytes}
        module = cls("files", resident=resident, order_seed=order_seed, **options)
        given = {"train": train, "val": val, "test": test}
        module.sets = {split: lists for split, lists in given.items() if lists is not None}
        return module

    def setup(self, stage: str | None = None) -> None:
        """Read the data, once. Every call prepares the sets again: the module and its transform may have changed."""
        self._ready = {}
        if self.sets:
            return
        options = {"fold": self.fold, "seed": self.seed, **self.source}
        sets = LOADERS[self.name](**options) if self.name in LOADERS else load_splits(self.name, **options)
        if self.feature_names is not None:
            names = read_names(self.feature_names, self.source.get("root"), sets["train"].num_features)
            for lists in sets.values():
                lists.feature_names = names
        if self.propensities is not None:
            for split, lists in sets.items():
                weigh(split, lists, self.propensities)
        warn_of_repeated_queries(sets)
        for split in [split for split in CLEANED[self.clean] if split in sets]:
            sets[split], report = clean(sets[split])
            documents, queries = report.documents_removed, report.queries_removed
            found = f"{documents} contradictory documents, then {queries} queries without a relevant document"
            rank_zero_warn(f"Removed from {split}: {found}.", category=DataWarning)
        self.sets = sets

    def teardown(self, stage: str) -> None:
        """Forget the sets as they were prepared for a module."""
        self._ready = {}

    @property
    def num_features(self) -> int:
        """Columns of the rows as they are read, before any transform."""
        if not self.sets:
            raise DataError(f"the data set {self.name!r} is not read yet: call setup() first")
        return next(iter(self.sets.values())).num_features

    @property
    def title(self) -> str:
        """The name in tables, with the part of a collection: `letor3/td2003`, `points/wine`, `gaussian/10`.

        Your own files have the name of the training file, or of its folder if that says more: `files/shop`.
        """
        if own := self.source.get("train") or self.source.get("file"):
            return f"{self.name}/{own_name(Path(self.source.get('root') or '.') / own)}"
        if self.name in ("folds", "embeddings"):
            return f"{self.name}/{own_name(Path(self.source.get('root') or '.') / 'train')}"
        parts = (self.source.get(option) for option in ("subset", "source", "centres"))
        part = next((part for part in parts if isinstance(part, str | int)), None)
        return self.name if part is None else f"{self.name}/{part}"

    # ---- sets prepared for the module ---------------------------------------------------------------------------

    @property
    def _running(self) -> Trainer | None:
        """The trainer, while it fits, tests or predicts."""
        busy = self.trainer is not None and self.trainer.state.status == TrainerStatus.RUNNING
        return self.trainer if busy else None

    @property
    def _module(self) -> Any:
        """The module that is being fitted or tested, if any."""
        return None if self._running is None else self._running.lightning_module

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu") if self._running is None else self._running.strategy.root_device

    @property
    def _transform(self) -> Transform | None:
        transform = getattr(self._module, "transform", None)
        return transform if isinstance(transform, Transform) else None

    def ready(self, split: str) -> RankingSet:
        """The set of a split ("train", "val" or "test") as the module takes it, transformed and on its device."""
        if split not in self._ready:
            if not self.sets:
                raise DataError(f"the data set {self.name!r} is not read yet: call setup() first")
            if split not in self.sets:
                raise DataError(f"this needs {split} lists, but the data has only {', '.join(self.sets)}: add {split}=")
            lists = self.sets[split]
            made = [(self.sets[other], done) for other, done in self._ready.items()]
            self._ready[split] = self._through(lists, self._transform, made)
        return self._ready[split]

    def _through(
        self, lists: RankingSet, transform: Transform | None, made: Sequence[tuple[RankingSet, RankingSet]] = ()
    ) -> RankingSet:
        resident = self._fits(lists) if self.resident == "auto" else self.resident
        if resident or lists.is_shared:
            return lists.to(self._device, transform, share=self.share, beside=made)
        return lists.streamed(self._device, transform)

    def _fits(self, lists: RankingSet) -> bool:
        free = free_memory(self._device)
        if free is None:
            return True
        width = lists.num_features if self._transform is None else self._transform.num_outputs
        return 4 * len(lists.x) * width < free / 2

    def training_lists(self) -> TrainingLists:
        """The training lists of this process, as a ranker learns from them."""
        return self._divided(self.ready("train"))

    def prepared(self, lists: RankingSet, transform: Transform) -> TrainingLists:
        """Any lists of this process, through a fitted transform."""
        return self._divided(self._through(lists, transform))

    @property
    def share(self) -> Share:
        """Which process this is, of how many, and how they add up."""
        return ALONE if self._running is None else Share(*self._place(), self._sum_over_processes)

    def _divided(self, lists: RankingSet) -> TrainingLists:
        rank, world = self._place()
        reduce = None if self._running is None else self._sum_over_processes
        budget = batch_entries(lists, self.batch_documents, self._module, self._room())
        return TrainingLists(lists, budget=budget, device=self._device, rank=rank, world=world, reduce=reduce)

    def _room(self) -> int | None:
        """Bytes that a pass may take on the device, the same in all processes: they divide the same batches."""
        room = pass_room(self._device) if self.pass_bytes is None else self.pass_bytes
        if self._device.type == "cpu" or self._running is None or room is None:
            return None
        least = torch.tensor(room, device=self._device)
        return int(self._running.strategy.reduce(least, reduce_op="min"))

    def _sum_over_processes(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._place()[1] == 1:
            return tensor
        there = tensor.to(self._device)  # NCCL adds up on devices only
        torch.distributed.all_reduce(there)  # Lightning's would wait at a barrier first
        return there.to(tensor.device)

    def _place(self) -> tuple[int, int]:
        """The number of this process, and the number of processes."""
        if self._running is not None:
            return self._running.global_rank, self._running.world_size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    # ---- loaders ------------------------------------------------------------------------------------------------

    @property
    def _takes_ranks(self) -> bool:
        """Whether the module ranks a whole corpus by itself, and all that is measured is known from ranks."""
        if self._running is None or not getattr(self._module, "ranks_corpus", False):
            return False
        callbacks: Any = self._running.callbacks  # type: ignore[attr-defined]
        wanted = [each.takes_ranks for each in callbacks if hasattr(each, "takes_ranks")]
        return bool(wanted) and all(wanted)

    def train_dataloader(self) -> Any:
        """Shuffled batches of training lists; one token per epoch for a ranker that learns by rounds, since it reads
        the lists itself."""
        return range(1) if getattr(self._module, "by_rounds", False) else self._loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        """Batches of validation lists, in order; nothing without a validation set, which Lightning accepts."""
        return [] if self.sets and "val" not in self.sets else self._loader("val", measured=True)

    def test_dataloader(self) -> BatchLoader:
        """Batches of test lists, in order."""
        return self._loader("test", measured=True)

    def predict_dataloader(self) -> BatchLoader:
        """Batches of test lists, in order, which are scored."""
        return self._loader("test")

    def _loader(self, split: str, *, shuffle: bool = False, measured: bool = False) -> BatchLoader:
        lists, (rank, world) = self.ready(split), self._place()
        if measured and self._takes_ranks and lists.has_judgements:
            lists = lists.judged()
        module, room = (None, None) if shuffle else (self._module, self._room())
        budget, seed = batch_entries(lists, self.batch_documents, module, room), self.order_seed
        budget *= 1 if shuffle else world  # a step is divided; what is only scored fills the batches of every process
        sampler = BudgetSampler(lists.lengths, budget=budget, shuffle=shuffle, seed=seed, rank=rank, world=world)
        return BatchLoader(lists, sampler)


def weigh(split: str, lists: RankingSet, propensities: Sequence[float]) -> None:
    """Multiply the weights of lists by inverse propensities; validation and test lists may lack positions."""
    if lists.positions is None and split == "train":
        raise DataError("data.propensities need the position of each training document: see Weights and positions")
    if lists.positions is not None:
        found = propensity_weights(lists.positions, propensities)
        lists.weights = found if lists.weights is None else found * lists.weights


def warn_of_repeated_queries(sets: dict[str, RankingSet]) -> None:
    """Warn about queries that two splits have in common: what is measured on them is too good."""
    for one, other in combinations(sets, 2):
        if found := repeated_queries(sets[one], sets[other]):
            share = f"{len(found)} of {len(sets[other])} queries of {other}"
            told = f"{share} are in {one} too, with the same rows (the first is query {found[0]})"
            rank_zero_warn(f"{told}: measures of {other} will be too good. Split by queries.", category=DataWarning)


def own_name(path: Path) -> str:
    """What tells a user's own training file from others: its name without suffixes, or that of its folder.

    Example:
        >>> own_name(Path("/home/me/shop.train.txt.gz")), own_name(Path("/home/me/shop/Fold1/train.txt"))
        ('shop.train', 'shop')
    """
    path = path.resolve()
    name = re.sub(r"(\.(txt|letor|svm|csv|tsv|parquet|arrow|feather|npz|gz|zst))+$", "", path.name, flags=re.IGNORECASE)
    names = (name, *(folder.name for folder in path.parents if folder.name))
    return next((each for each in names if not UNNAMED.fullmatch(each)), name)

"""The data of a run: three sets of lists, made ready for a ranker (transformed, on its device) and cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from torchrank.data.batch import Batch
from torchrank.data.catalogue import CATALOGUE, find_entry, load_splits
from torchrank.data.cleaning import clean
from torchrank.data.letor import DataWarning
from torchrank.data.sampler import BudgetSampler, ranges, shard
from torchrank.data.sets import RankingSet
from torchrank.data.sources.points import load_points
from torchrank.data.sources.rcv1 import load_rcv1
from torchrank.data.sources.retrieval import load_retrieval
from torchrank.data.synthetic.clouds import load_clouds
from torchrank.data.synthetic.gaussian import load_gaussian
from torchrank.data.synthetic.matchmaking import load_matchmaking
from torchrank.data.synthetic.mslr import synthetic_splits
from torchrank.data.synthetic.music import load_music
from torchrank.data.synthetic.text import load_text
from torchrank.data.transforms.base import Transform
from torchrank.functional.ragged import entries_of

LOADERS: dict[str, Callable] = {
    "clouds": load_clouds,
    "gaussian": load_gaussian,
    "matchmaking": load_matchmaking,
    "music": load_music,
    "points": load_points,
    "rcv1": load_rcv1,
    "retrieval": load_retrieval,
    "synthetic": synthetic_splits,
    "text": load_text,
}
CLEANED: dict[str, tuple[str, ...]] = {"none": (), "train": ("train",), "all": ("train", "val", "test")}
MEASURES = ("ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr")


class RankingDataModule(LightningDataModule):
    """Train, val and test lists of a data set of the catalogue (`name`, with the options of its reader), or your own:
    `RankingDataModule.from_sets(train=RankingSet(x, labels, offsets), val=..., test=...)`.

    `seed` draws the data where it is drawn (synthetic lists, held-out queries), `order_seed` the order of the batches.
    `batch_documents` is the budget of one optimizer step over all processes, so a fit does not depend on their number.
    `resident`: whole sets transformed once and kept on the device; "auto" does so when they take less than half of
    its free memory. `clean` deletes contradictory documents and queries without relevant ones: of "train", of "all"
    sets (which raises every measure), or of "none".
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
        resident: bool | str = "auto",
        measures: list[str] | tuple[str, ...] = MEASURES,
        conventions: list[str] | tuple[str, ...] = ("default",),
        **source: Any,
    ):
        super().__init__()
        if name not in (*LOADERS, *CATALOGUE):
            raise ValueError(f"unknown data set {name!r}: choose {', '.join([*LOADERS, *CATALOGUE])}")
        if clean not in CLEANED:
            raise ValueError(f"unknown clean={clean!r}: choose one of {', '.join(CLEANED)}")
        if resident not in (True, False, "auto"):
            raise ValueError(f"unknown resident={resident!r}: choose true, false or auto")
        self.name: str = name
        self.fold, self.clean, self.source = fold, clean, source
        self.seed, self.order_seed = seed, order_seed
        self.batch_documents, self.resident = batch_documents, resident
        self.measures, self.conventions = list(measures), list(conventions)
        self.sets: dict[str, RankingSet] = {}
        self._ready: dict[str, Dataset] = {}
        self._tiebreaks: dict[str, Tensor] = {}

    @classmethod
    def from_sets(
        cls,
        *,
        train: RankingSet | None = None,
        val: RankingSet | None = None,
        test: RankingSet | None = None,
        batch_documents: int = 20_000,
        resident: bool | str = "auto",
        order_seed: int = 0,
        measures: list[str] | tuple[str, ...] = MEASURES,
        conventions: list[str] | tuple[str, ...] = ("default",),
    ) -> RankingDataModule:
        """Over sets in memory, those that are needed; the options are those of the constructor."""
        module = cls(
            "files",
            batch_documents=batch_documents,
            resident=resident,
            order_seed=order_seed,
            measures=measures,
            conventions=conventions,
        )
        given = {"train": train, "val": val, "test": test}
        module.sets = {split: lists for split, lists in given.items() if lists is not None}
        return module

    def setup(self, stage: str | None = None) -> None:
        if self.sets:
            return
        options = {"fold": self.fold, "seed": self.seed, **self.source}
        sets = LOADERS[self.name](**options) if self.name in LOADERS else load_splits(self.name, **options)
        for split in [split for split in CLEANED[self.clean] if split in sets]:
            sets[split], report = clean(sets[split])
            documents, queries = report.documents_removed, report.queries_removed
            found = f"{documents} contradictory documents removed, then {queries} queries without a relevant document"
            rank_zero_warn(f"{split}: {found}", category=DataWarning)
        self.sets = sets

    @property
    def num_features(self) -> int:
        return self.sets["train"].num_features

    @property
    def title(self) -> str:
        """The name in tables, with the part of a collection: `letor3/td2003`, `points/wine`, `gaussian/10`."""
        parts = (self.source.get(option) for option in ("subset", "source", "centres"))
        part = next((part for part in parts if isinstance(part, str | int)), None)
        return self.name if part is None else f"{self.name}/{part}"

    @property
    def letor_threshold(self) -> int:
        """Grade from which the LETOR tools count a document as relevant: 2 on the MSLR sets, else 1."""
        return find_entry(self.name, self.source.get("subset")).letor_threshold if self.name in CATALOGUE else 1

    @property
    def max_label(self) -> float:
        """Highest grade of the data set (for ERR); of the training lists where the catalogue does not know it."""
        entry = find_entry(self.name, self.source.get("subset")) if self.name in CATALOGUE else None
        if entry is not None and entry.max_label is not None:
            return entry.max_label
        if "train" not in self.sets:
            raise ValueError("err needs the highest grade of the data set, known by the training lists: add train=...")
        train = self.sets["train"]
        return train.num_grades - 1 if train.num_grades else float(train.labels.max())

    def attach(self, transform: Transform, device: torch.device) -> None:
        """From now on batches are on `device` and their rows went through `transform`."""
        self._transform, self._device, self._ready = transform, device, {}

    def ready(self, split: str) -> Dataset:
        """The set of `split` as `attach` asked for it: resident, or transformed batch by batch as it is read."""
        if split not in self._ready:
            lists = self.sets[split]
            resident = self._fits(lists) if self.resident == "auto" else self.resident
            if resident or lists.is_shared:
                self._ready[split] = lists.to(self._device, self._transform)
            else:
                self._ready[split] = StreamedSet(lists, self._transform, self._device)
        return self._ready[split]

    def _fits(self, lists: RankingSet) -> bool:
        if self._device.type != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info(self._device)
        return 4 * len(lists.x) * self._transform.num_outputs < free / 2

    def training_shard(self, corpus_entries: int = 0) -> Iterator[Batch]:
        """This process's share of the training lists, in order; the shares of all processes are the whole set."""
        lists = self.ready("train")
        first, last = shard(self.sets["train"].lengths, *self._place())
        for a, b in ranges(self.sets["train"].lengths, self._budget("train", corpus_entries), first, last):
            yield lists[a:b]

    def _budget(self, split: str, corpus_entries: int) -> int:
        """Entries of a batch: at least so many where all lists hold much of the corpus that they share."""
        lists = self.sets[split]
        whole = lists.is_shared and 4 * int(lists.lengths.min(initial=len(lists.x))) >= len(lists.x)
        return max(self.batch_documents, corpus_entries if whole else 0)

    def tiebreak(self, split: str, batch: Batch) -> Tensor:
        """Order of the document ids, descending inside each list, for the entries of a batch of `split` (trec)."""
        if split not in self._tiebreaks:
            self._tiebreaks[split] = self.sets[split].tiebreak().to(batch.device)
        entries, _ = entries_of(self.sets[split].offsets.to(batch.device), batch.query, len(batch.labels))
        return self._tiebreaks[split][entries]

    def train_dataloader(self) -> Any:
        """Batches; for a ranker that fits by rounds one token per epoch, since it reads the lists itself."""
        ranker: Any = self.trainer and self.trainer.lightning_module
        return range(1) if ranker.by_rounds else self._loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        return self._loader("val", shuffle=False) if "val" in self.sets else []  # []: Lightning fits without it

    def test_dataloader(self) -> Any:
        return self._loader("test", shuffle=False)

    predict_dataloader = test_dataloader

    def _loader(self, split: str, *, shuffle: bool) -> BatchLoader:
        rank, world = self._place()
        ranker: Any = None if shuffle or self.trainer is None else self.trainer.lightning_module
        budget = self._budget(split, getattr(ranker, "corpus_entries", 0))  # not every module is a ranker of ours
        lengths = self.sets[split].lengths
        sampler = BudgetSampler(lengths, budget=budget, shuffle=shuffle, seed=self.order_seed, rank=rank, world=world)
        return BatchLoader(self.ready(split), sampler)

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)


class BatchLoader:
    """The batches of an epoch; knows how many it has given, so that a fit is resumed in the middle of an epoch."""

    batch_sampler = None  # Lightning looks for it, and calls sampler.set_epoch

    def __init__(self, lists: Dataset, sampler: BudgetSampler):
        self.lists, self.sampler = lists, sampler
        self.given = self._skip = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        self.given, self._skip = self._skip, 0
        for positions in islice(self.sampler, self.given, None):
            self.given += 1
            yield self.lists[positions]

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._skip = state["given"] % len(self)


class StreamedSet(Dataset):
    """A set too large for the device: batches are moved and transformed when they are asked for."""

    def __init__(self, lists: RankingSet, transform: Transform, device: torch.device):
        self.lists, self.transform, self.device = lists, transform, device

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, positions: slice | Tensor) -> Batch:
        batch = transform_batch(self.transform, self.lists[positions].to(self.device))
        return batch._replace(x=batch.x.to(dtype=torch.float32))  # as resident sets are


def transform_batch(transform: Transform, batch: Batch) -> Batch:
    """The batch with its rows, and its query vectors where it has them, through the transform."""
    transform.check_lists(shared=batch.index is not None, vectors=batch.queries is not None)
    rows = batch.offsets if batch.index is None else torch.tensor([0, len(batch.x)])
    queries = batch.queries
    if queries is not None:
        queries = transform(queries, torch.tensor([0, len(queries)]))
    return batch._replace(x=transform(batch.x, rows), queries=queries)

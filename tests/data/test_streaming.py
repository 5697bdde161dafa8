"""Sets that are larger than memory: batches of a mapped file, read ahead, and what that takes of anonymous memory."""

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning import Trainer

from torchrank import ListNet, RankingDataModule, RankingSet
from torchrank.data import make_transform
from torchrank.data.sampler import BatchLoader, BudgetSampler, read_ahead

STATUS = Path("/proc/self/status")
ROWS, WIDTH, LENGTH = 300_000, 136, 100  # 163 MB


def anonymous() -> int:
    """Bytes of memory of this process that belong to no file."""
    return 1024 * int(re.search(r"RssAnon:\s*(\d+)", STATUS.read_text())[1])


class Watch:
    """The most anonymous memory that was taken in a block, beyond what was there before."""

    def __enter__(self):
        self._before, self.grown, self._done = anonymous(), 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while not self._done.wait(0.002):
            self._note()

    def _note(self):
        self.grown = max(self.grown, anonymous() - self._before)

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        self._note()


@pytest.fixture
def mapped(tmp_path):
    """Rows in a file, as in the cache of a data set."""
    few = np.random.default_rng(0).standard_normal((3_000, WIDTH), dtype=np.float32)
    with open(tmp_path / "x.bin", "wb") as file:
        for _ in range(ROWS // len(few)):
            file.write(few.data)
    x = torch.from_numpy(np.memmap(tmp_path / "x.bin", dtype=np.float32, mode="c", shape=(ROWS, WIDTH)))
    labels = (x[:, 0] > 0.5).float()
    return RankingSet(x, labels, torch.arange(0, ROWS + 1, LENGTH))


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_a_streamed_fit_takes_a_fraction_of_its_rows(mapped):
    size = mapped.x.numel() * 4
    data = RankingDataModule.from_sets(train=mapped, val=mapped.subset(range(50)), resident=False, batch_documents=5000)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=1, enable_model_summary=False, num_sanity_val_steps=0, **options)
    ranker = ListNet(WIDTH, solver="gradient", transform="standard", lr=0.1)
    with Watch() as watch:
        trainer.fit(ranker, datamodule=data)
    assert watch.grown < 0.5 * size
    assert float(trainer.callback_metrics["val/ndcg@10"]) > 0.9  # it has learned
    with Watch() as watch:  # and the watch would have seen more
        resident = mapped.to("cpu", ranker.transform)
    assert watch.grown > 0.9 * size and len(resident) == len(mapped)


def small() -> RankingSet:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return RankingSet(x, torch.arange(60) % 3, torch.arange(0, 61, 5))


def test_batches_that_are_read_ahead_are_the_same():
    lists = small()
    transform = make_transform("standard", 4).fit(lists.x, lists.offsets)
    for shuffle in (False, True):
        sampler = BudgetSampler(lists.lengths, budget=12, shuffle=shuffle)
        streamed, resident = lists.streamed("cpu", transform), lists.to("cpu", transform)
        pairs = list(zip(BatchLoader(streamed, sampler), BatchLoader(resident, sampler), strict=True))
        assert len(pairs) == len(sampler) > 3
        assert all(torch.equal(a.x, b.x) and torch.equal(a.query, b.query) for a, b in pairs)


def test_one_batch_is_read_ahead_and_no_more():
    read, lists = [], small()
    for number, batch in enumerate(read_ahead(lambda place: (read.append(place), lists[place])[1], range(6))):
        time.sleep(0.01)
        assert batch.query.tolist() == [number] and number < len(read) <= number + 2


def test_an_error_of_the_thread_comes_out_where_its_batch_would():
    def read(place):
        if place == 1:
            raise OSError("the disk is gone")
        return small()[place]

    batches = read_ahead(read, range(3))
    assert next(batches).query.tolist() == [0]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert not list(read_ahead(read, []))

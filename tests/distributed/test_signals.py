"""A signal to one of two processes ends both: promptly, in one line each, with a checkpoint to resume from."""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import SIGTERMException

import torchrank
from tests.cli.running import ROOT, SMALL, train_here
from tests.distributed.group import start_group
from tests.rankers.small import FEATURES, lists
from torchrank import LambdaRank, RankingDataModule
from torchrank.rankers.core.stopping import is_lost_process

pytestmark = [pytest.mark.distributed]
MODELS = {"lambdarank": [], "rankboost": ["model.rounds=100000", "model.bins=8"]}  # by gradient and by rounds
TERM, KILL = signal.SIGTERM, signal.SIGKILL


def endless(model: str) -> list[str]:
    return [*SMALL, f"model={model}", *MODELS[model], "trainer=ddp_cpu", "trainer.max_epochs=100000",
            "~callbacks.early_stopping"]  # fmt: skip


def run_rank(rank, model, folder):
    """A process of a group, as torchrun starts it."""
    (folder / str(rank)).mkdir()
    train_here([*endless(model), f"hydra.run.dir={folder / 'out'}", f"hydra.job.name=train{rank}"], folder / str(rank))


def wait_for(path, process):
    while not path.exists() and process.is_alive():
        time.sleep(0.02)
    time.sleep(0.1)  # in the middle of a later epoch


@pytest.mark.parametrize(
    ("model", "to", "sent", "code"),
    [("lambdarank", 1, TERM, 143), ("rankboost", 0, TERM, 143), ("lambdarank", 1, KILL, 1)],
)
def test_a_signal_to_one_process_ends_both(tmp_path, model, to, sent, code):
    group, last = start_group(2, run_rank, model, tmp_path), tmp_path / "out/checkpoints/last.ckpt"
    wait_for(last, group[0])
    os.kill(group[to].pid, sent)
    began = time.monotonic()
    for process in group:
        process.join(20)
        process.kill()
    assert time.monotonic() - began < 10
    for rank, process in enumerate(group):
        told = (tmp_path / str(rank) / "stderr").read_text()
        assert process.exitcode == (-KILL if (rank, sent) == (to, KILL) else code), told
        assert "Traceback" not in told and ("Resume with" in told or (rank, sent) == (to, KILL)), told
    torchrank.load(last)


def launch(rank, folder):
    """The first process of a fit, which Lightning lets start the other one."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID"):
        del os.environ[name]
    sys.modules["__main__"].__spec__ = None  # started as a script, not as `python -m pytest`
    script = str(ROOT / "train.py")
    train_here([*endless("lambdarank"), "hydra.run.dir=out"], folder, script)


@pytest.mark.slow
def test_a_signal_to_a_process_that_lightning_has_started(tmp_path):
    (first,) = start_group(1, launch, tmp_path)
    wait_for(tmp_path / "out/checkpoints/last.ckpt", first)
    (second,) = map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split())
    os.kill(second, TERM)
    first.join(10)
    told = (tmp_path / "stderr").read_text()
    first.kill()
    assert first.exitcode == 143 and told.count("Resume with") == 2 and "Traceback" not in told, told
    assert not Path(f"/proc/{second}").exists()


def fit_with_a_handler(rank, folder):
    """A user's own handler is called too, and is there again after the fit."""
    called = []
    signal.signal(TERM, own := lambda *_: called.append(rank))
    strategy = DDPStrategy(process_group_backend="gloo", broadcast_buffers=False)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=100000, logger=False,
                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    ranker = LambdaRank(FEATURES)
    ranker.on_train_epoch_end = lambda: rank or ranker.current_epoch != 2 or os.kill(os.getpid(), TERM)
    with pytest.raises(SIGTERMException):
        trainer.fit(ranker, datamodule=RankingDataModule.from_sets(train=lists(0)))
    assert signal.getsignal(TERM) is own and called == [0] * (rank == 0)
    (folder / str(rank)).touch()


@pytest.mark.filterwarnings("ignore")
def test_a_handler_of_the_user_is_not_lost(tmp_path):
    for process in start_group(2, fit_with_a_handler, tmp_path):
        process.join(20)
        process.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4"), True),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:92] Read error [::1]:4: Connection reset by peer"), True),
        (torch.distributed.DistBackendError("NCCL error: remote process exited or there was a network error"), True),
        (torch.distributed.DistNetworkError("Broken pipe"), True),
        (RuntimeError("gloo: tensors must have the same size"), False),
        (RuntimeError("NCCL error: invalid usage"), False),
        (RuntimeError("my database: Connection reset by peer"), False),
        (ConnectionResetError("gloo: reset by peer"), False),
    ],
    ids=range(8),
)
def test_only_the_loss_of_a_process_is_told_in_one_line(error, lost):
    assert is_lost_process(SimpleNamespace(world_size=2), error) is lost
    assert not is_lost_process(SimpleNamespace(world_size=1), error)

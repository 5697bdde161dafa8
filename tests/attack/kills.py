"""Fits that are killed at random moments and resumed from their last checkpoint end as if nothing had happened."""

import os
import random
import shutil
import signal
import socket
import tempfile
import time
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy

from tests.attack import children
from tests.attack.tally import Tally
from tests.laws.rankers import CASES, KINDS, sets
from torchrank import RankingDataModule, RankingEvaluation, load

SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
ENDED = 20.0  # seconds in which a process has to end after a signal
OTHER = Path("/dev/shm")  # a file system of its own on most machines
FILES = {"best.ckpt", "last.ckpt"}


class Setting(NamedTuple):
    """What is fitted, how it is ended, and where."""

    case: str
    ended_by: str = "KILL"
    processes: int = 1
    apart: bool = False  # TMPDIR is on another file system than the checkpoints

    def __str__(self) -> str:
        return f"{self.case}, SIG{self.ended_by}, {self.processes} process{'es' * (self.processes > 1)}" + (
            ", TMPDIR elsewhere" * self.apart
        )


class Begun(Callback):
    """Tells that this process has met the others: before, one that lost another would wait as long as torch does."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        (self.folder / f"begun-{trainer.global_rank}").touch()


# ---- a fit in a child ------------------------------------------------------------------------------------------------


def fit(case_name: str, folder: Path, result: Path) -> None:
    """Fit as train.py does, going on from the last checkpoint; test the state that validation chose; write it."""
    warnings.simplefilter("ignore")
    found = [folder / name for name in FILES if (folder / name).exists()]
    for path in found:
        load(path)  # whole, whenever the process before was ended
    seed_everything(1, workers=True, verbose=False)
    case = CASES[case_name]
    ranker, evaluation = case.make(), RankingEvaluation(["ndcg@10", "map"])
    trainer = make_trainer(folder, case.epochs, evaluation, certified=ranker.certified)
    data = RankingDataModule.from_sets(**sets(case.kind), batch_documents=20)
    last = folder / "last.ckpt"
    trainer.fit(ranker, datamodule=data, ckpt_path=last if last in found else None, weights_only=True)
    best: Any = trainer.checkpoint_callback
    chosen = None if ranker.certified else best.best_model_path
    trainer.validate(ranker, datamodule=data, ckpt_path=chosen, weights_only=True, verbose=False)
    trainer.test(ranker, datamodule=data, ckpt_path=chosen, weights_only=True, verbose=False)
    if trainer.is_global_zero:
        learned = {"state": ranker.state_dict(), "measured": evaluation.measured, "epochs": trainer.current_epoch}
        written = result.with_suffix(".part")
        torch.save(learned, written)
        written.rename(result)


def make_trainer(folder: Path, epochs: int, evaluation: RankingEvaluation, *, certified: bool) -> Trainer:
    """The callbacks of conf/callbacks/default.yaml."""
    monitor: dict[str, Any] = {"monitor": "val/ndcg@10", "mode": "max"}
    best = ModelCheckpoint(folder, "best", enable_version_counter=False, **monitor)
    last = ModelCheckpoint(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False)
    stopper = [] if certified else [EarlyStopping(**monitor, patience=20)]
    off = ("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    several = int(os.environ.get("WORLD_SIZE", 1))
    ddp = {"strategy": DDPStrategy(process_group_backend="gloo", broadcast_buffers=False)} if several > 1 else {}
    return Trainer(
        accelerator="cpu",
        devices=several,
        max_epochs=epochs,
        callbacks=[evaluation, best, last, Begun(folder.parent), *stopper],
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **dict.fromkeys(off, False),
        **ddp,
    )


# ---- chains of kills -------------------------------------------------------------------------------------------------


class Place:
    """The folders of one chain: checkpoints, temporary files, and what the processes say."""

    def __init__(self, folder: Path, temporary: Path):
        self.checkpoints, self.temporary = folder / "checkpoints", temporary
        self.result, self.output = folder / "result.pt", folder / "output"
        for each in (self.checkpoints, self.temporary):
            each.mkdir()

    def start(self, setting: Setting) -> list[int]:
        """The processes of a fit."""
        for begun in self.checkpoints.parent.glob("begun-*"):
            begun.unlink()
        work = partial(fit, setting.case, self.checkpoints, self.result)
        shared = {"TMPDIR": str(self.temporary)}
        if setting.processes == 1:
            return [children.start(work, self.output, shared)]
        shared |= group(setting.processes)
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(setting.processes)]
        return [children.start(work, self.output, shared | rank) for rank in ranks]

    def wait_for(self, processes: list[int]) -> None:
        """Until all processes of a group have met."""
        end = time.monotonic() + children.DEADLINE
        while len(processes) > 1 and time.monotonic() < end:
            if sum(1 for _ in self.checkpoints.parent.glob("begun-*")) == len(processes):
                return
            time.sleep(children.TICK)

    def said(self) -> str:
        """The last line that a process has written."""
        lines = self.output.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "nothing was said"

    def litter(self) -> list[str]:
        own = {path.name for path in self.checkpoints.iterdir()} - FILES
        return sorted(own | {path.name for path in self.temporary.iterdir()})


def group(processes: int) -> dict[str, str]:
    """The environment that `torchrun` would set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "attack",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def whole_fit(setting: Setting, folder: Path) -> tuple[Any, float]:
    """What a fit that nobody ends has learned, and how long it takes."""
    folder.mkdir()
    place, began = Place(folder, folder / "tmp"), time.monotonic()
    processes = place.start(setting)
    if len(processes) > 1:
        place.wait_for(processes)
        began = time.monotonic()
    codes = [children.wait(child) for child in processes]
    if any(codes):
        raise RuntimeError(f"{setting}: the uninterrupted fit ended with {codes}: {place.said()}")
    return torch.load(place.result, weights_only=True), time.monotonic() - began


def chain(setting: Setting, folder: Path, kills: int, seed: str, expected: Any, seconds: float) -> Tally:
    """A fit that is ended up to `kills` times, and resumed each time; the last process is left alone."""
    draw, tally = random.Random(seed), Tally("kills", f"SIG{setting.ended_by}")
    folder.mkdir()
    with ExitStack() as stack:
        other = tempfile.TemporaryDirectory(dir=OTHER) if setting.apart else None
        temporary = Path(stack.enter_context(other), "tmp") if other else folder / "tmp"
        place = Place(folder, temporary)
        wrong = killed(setting, place, kills, draw, seconds, tally) or finished(setting, place, expected)
    tally.tries = 1
    tally.count("resumed to the same bits", int(not wrong))
    if wrong:
        tally.failures.append(f"{setting}, seed {seed!r}: {wrong}")
    return tally


def killed(setting: Setting, place: Place, kills: int, draw: random.Random, seconds: float, tally: Tally) -> str:
    """Start and end the fit so many times; what went wrong."""
    for _ in range(kills):
        processes, victims = place.start(setting), draw.choice(("one", "all"))
        place.wait_for(processes)
        struck, *others = draw.sample(processes, len(processes))
        code = children.strike(struck, SIGNALS[setting.ended_by], draw.uniform(0.02, 1.0) * seconds)
        if code is None:
            tally.count("kills")
            tally.count("in the middle of a write", int(any(place.checkpoints.glob(".*.part"))))
        for other in others if victims == "all" and code is None else ():
            os.kill(other, SIGNALS[setting.ended_by])
        codes = [children.wait(each, ENDED) for each in (others if code is not None else processes)]
        if children.HUNG in codes:
            return f"a process did not end within {ENDED:.0f} s after the signal to {victims}: {place.said()}"
        if code is not None:
            return "" if code == 0 else f"a resumed fit ended with {code}: {place.said()}"
    return ""


def finished(setting: Setting, place: Place, expected: Any) -> str:
    """Let the fit finish; what is wrong with its result."""
    place.result.unlink(missing_ok=True)
    codes = [children.wait(child) for child in place.start(setting)]
    if any(codes):
        return f"the last resumed fit ended with {codes}: {place.said()}"
    if different := difference(expected, torch.load(place.result, weights_only=True)):
        return f"the result differs in {different}"
    return f"left behind: {', '.join(place.litter())}" if place.litter() else ""


def difference(one: Any, other: Any, where: str = "") -> str:
    """Where two nested values differ; equal tensors have equal bits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next((found for key in one if (found := difference(one[key], other[key], f"{where}/{key}"))), "")
    if isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for i, pair in pairs if (found := difference(*pair, f"{where}/{i}"))), "")
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return "" if same and _bits(one) == _bits(other) else where
    return "" if repr(one) == repr(other) else f"{where} ({one!r:.60}, then {other!r:.60})"


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


# ---- settings --------------------------------------------------------------------------------------------------------


def all_settings() -> list[Setting]:
    """Every ranker is killed; one of each kind is also asked to end, has its TMPDIR elsewhere, has two processes."""
    kinds = list(KINDS.values())
    plain = [Setting(name) for name in CASES]
    asked = [Setting(name, ended_by) for name in kinds for ended_by in ("TERM", "INT")]
    apart = [Setting(name, apart=True) for name in kinds] if other_file_system() else []
    several = [Setting(name, ended_by, 2) for name in ("lambdarank", "rankboost", "svmmap") for ended_by in SIGNALS]
    return [*plain, *asked, *apart, *several]


def other_file_system() -> bool:
    """Whether there is a second file system for temporary files."""
    return os.access(OTHER, os.W_OK) and OTHER.stat().st_dev != Path(tempfile.gettempdir()).stat().st_dev


def attack(setting: Setting, seed: int, chains: int = 1, kills: int = 5) -> Tally:
    """Chains of kills in one setting."""
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    tally = Tally("kills", f"SIG{setting.ended_by}" + ", TMPDIR elsewhere" * setting.apart)
    if setting.processes > 1:
        tally.what += f", {setting.processes} processes"
    tally.count("settings")
    try:
        expected, seconds = whole_fit(setting, folder / "whole")
        for number in range(chains):
            found = chain(setting, folder / str(number), kills, f"{seed} {number}", expected, seconds)
            tally.add(found)
    except RuntimeError as error:
        tally.failures.append(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tally

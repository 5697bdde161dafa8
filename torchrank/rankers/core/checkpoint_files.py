"""Checkpoints that are whole or not there: written beside their target, flushed, renamed, and verified when read."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_warn

from torchrank.errors import CheckpointError

FilePath = str | Path


class WholeCheckpoints(TorchCheckpointIO):
    """Writes and reads the checkpoints of rankers; Lightning's own way for files that are not on this machine.

    A kill, a full disk or a file size limit leaves the old checkpoint as it was. The checksums in a file are compared
    with its content before anything is made of it.

    Example:
        >>> import tempfile
        >>> files, path = WholeCheckpoints(), Path(tempfile.mkdtemp(), "last.ckpt")
        >>> files.save_checkpoint({"epoch": 3}, path)
        >>> files.load_checkpoint(path), [each.name for each in path.parent.iterdir()]
        ({'epoch': 3}, ['last.ckpt'])
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: FilePath, storage_options: Any = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_whole(checkpoint, Path(path))

    def load_checkpoint(
        self, path: FilePath, map_location: Any = "cpu", weights_only: bool | None = True
    ) -> dict[str, Any]:
        if "://" in str(path):
            return super().load_checkpoint(path, map_location, weights_only)
        check_whole(path)
        checkpoint = super().load_checkpoint(path, map_location, weights_only)
        for state in checkpoint.get("callbacks", {}).values():
            if isinstance(state, dict) and state.get("best_model_path"):
                state |= _found_again(state, Path(path).resolve().parent)
        return checkpoint


def write_whole_checkpoints(trainer: Trainer) -> None:
    """Let a trainer write and read its checkpoints this way, unless it was given a way of its own."""
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = WholeCheckpoints()


def write_whole(checkpoint: dict[str, Any], path: Path) -> None:
    """Write beside the target, flush to disk, rename. One process at a time writes a checkpoint, so that what a killed
    one has left is overwritten by the next."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            _save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _save(checkpoint: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:  # of torch's writer, which goes on after the disk has refused
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _flush_folder(folder: Path) -> None:
    """The new name is on the disk too; systems that cannot do that (Windows) write it when they do."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _found_again(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The state of a `ModelCheckpoint` in a folder that may have been moved or copied since it was written."""

    def here(path: str) -> str:
        return str(folder / Path(path).name) if path else path

    best, old = state["best_model_path"], Path(state.get("dirpath") or folder)
    if old != folder and Path(here(best)).is_file():
        names = ("best_model_path", "kth_best_model_path", "last_model_path")
        paths = {name: here(state.get(name, "")) for name in names}
        kept = {here(path): score for path, score in state.get("best_k_models", {}).items()}
        return {**paths, "best_k_models": kept, "dirpath": str(folder)}
    if Path(best).is_file():
        return {}
    rank_zero_warn(f"The best checkpoint of this fit, {Path(best).name}, is not in {folder}: the choice starts over.")
    return {"best_model_path": "", "dirpath": ""}


def check_whole(path: FilePath) -> None:
    """Refuse a file that is not a whole checkpoint: cut off, or with content that differs from its checksums."""
    refused = f"{path} is not a whole checkpoint of torchrank"
    remedy = "Use another checkpoint of the run (best.ckpt or last.ckpt), or fit it again."
    if Path(path).stat().st_size == 0:
        raise CheckpointError(f"{refused}: it is empty. {remedy}")
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            is_stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
            damaged = archive.testzip() if is_stored else None
    except Exception:  # a damaged directory of the archive can lead anywhere
        raise CheckpointError(f"{refused}: it was cut off, or is another kind of file. {remedy}") from None
    if not is_stored or sum(part.file_size for part in parts) > Path(path).stat().st_size:
        raise CheckpointError(f"{refused}: its content is larger than the file. {remedy}")
    if damaged is not None:
        raise CheckpointError(f"{refused}: the checksum of its part {damaged!r} differs. {remedy}")

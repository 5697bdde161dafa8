"""What a checkpoint must be: plain values, a ranker of torchrank, and for a fit that is resumed the same beginning."""

from __future__ import annotations

import inspect
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning.__version__ import version as lightning_version

import torchrank
from torchrank.errors import CheckpointError
from torchrank.rankers.core.checkpoint_content import check_content, check_options, check_scores, named, present, reason
from torchrank.rankers.core.checkpoint_files import check_whole, write_whole

if TYPE_CHECKING:
    from torchrank.rankers.core.ranker import Ranker

FORMAT = 2  # of what is in a checkpoint; 0.1 had none


def load(path: str | PathLike[str], map_location: Any = "cpu", *, scorer: Any = None, loss: Any = None) -> Ranker:
    """Load the fitted ranker in a checkpoint. Nothing in the file is executed, and no config is needed.

    Args:
        path: a file that a fit through a Trainer has written.
        map_location: where its tensors go, as in `torch.load`.
        scorer: your own network, if the ranker was fitted with one: its class, an instance, or its dotted name. The
            file holds its name, and nothing is imported because a file names it.
        loss: your own loss, likewise.

    Returns:
        The ranker in evaluation mode.

    Example:
        >>> ranker = load("runs/best.ckpt")  # doctest: +SKIP
        >>> scores = ranker(x, offsets)  # doctest: +SKIP
    """
    name = read_checkpoint(path)["ranker"]
    if name not in torchrank.RANKERS:
        known = ", ".join(torchrank.RANKERS)
        raise CheckpointError(f"{path} holds a {name}, not one of {known}: use {name}.load_from_checkpoint(path)")
    kind: type[Ranker] = torchrank.find_export(name)
    own = {name: given for name, given in (("scorer", scorer), ("loss", loss)) if given is not None}
    ranker = kind.load_from_checkpoint(Path(path), map_location=map_location, **own).eval()
    with named(path):
        if not _has_own_parts(ranker) and ranker.num_topics is None:
            check_scores(ranker)
    return ranker


def _has_own_parts(ranker: Ranker) -> bool:
    """Whether a network or loss of the user is in it, or in one of its members."""
    members = ranker.own.get("members")
    return bool(ranker.own) if members is None else any(map(_has_own_parts, members))


def save(ranker: Ranker, path: str | PathLike[str], **more: Any) -> Path:
    """Write a ranker to a checkpoint, whole or not at all, with what else belongs to it: see `Ranker.save`."""
    write_whole(
        {
            "ranker": type(ranker).__name__,
            "format": FORMAT,
            "hyper_parameters": dict(ranker.hparams),
            "state_dict": ranker.state_dict(),
            "pytorch-lightning_version": lightning_version,
            **more,
        },
        Path(path),
    )
    return Path(path)


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint, checked to be one of torchrank."""
    check_whole(Path(path))
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of zip, of pickle, or of what torch makes of either
        raise CheckpointError(f"{path} is not a checkpoint of torchrank: {reason(error)}") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("ranker"), str):
        raise CheckpointError(f"{path} is not a checkpoint of torchrank: it names no ranker")
    return checkpoint


def check_for(kind: type[Ranker], path: str | PathLike[str]) -> None:
    """Refuse a file whose options are not those of a ranker of this class, or make it absurdly large."""
    content, size = read_checkpoint(path), Path(path).stat().st_size
    check_content(content, size)
    options = content.get("hyper_parameters", {})
    check_plain(options, "hyper-parameters")
    check_options(kind, options, size)


def check_format(checkpoint: dict[str, Any]) -> None:
    if checkpoint.get("format") != FORMAT:
        made = "with torchrank 0.1" if "format" not in checkpoint else f"in format {checkpoint['format']}"
        raise CheckpointError(f"the checkpoint was made {made}, but this version reads format {FORMAT}: fit it again")


FREE = {"rounds", "compile"}  # options that say nothing about what is learned: the limit of rounds, how steps run


def check_same_ranker(ranker: Ranker, checkpoint: dict[str, Any]) -> None:
    """A state is loaded into a ranker of its kind and with its options; those of `FREE` may differ."""
    name, saved, given = type(ranker).__name__, checkpoint.get("hyper_parameters", {}), ranker.hparams
    kinds = [name, *(kind.__name__ for kind in type(ranker).__mro__ if kind.__name__ in torchrank.RANKERS)][:2]
    if checkpoint.get("ranker", name) not in kinds:
        raise CheckpointError(f"the checkpoint holds a {checkpoint['ranker']}, not a {name}: choose its model")
    other = [key for key in saved.keys() & given.keys() - FREE if _listed(saved[key]) != _listed(given[key])]
    if other:
        theirs, ours = (", ".join(f"{key}={of[key]!r}" for key in sorted(other)) for of in (saved, given))
        raise CheckpointError(
            f"Cannot resume: the checkpoint was made with {theirs}, but this {name} has {ours}. Use the options of the "
            "checkpoint (only rounds may differ), or drop ckpt_path to start over."
        )


def check_same_data(saved: dict[str, int], given: dict[str, int]) -> None:
    """A fit is resumed on the training lists that it began with, told apart by their outlines."""
    if other := [name for name in saved | given if saved.get(name) != given.get(name)]:
        theirs, ours = (f"{of['lists']} lists, {of['entries']} entries" for of in (saved, given))
        raise CheckpointError(
            f"Cannot resume: the training data ({ours}) differs from the checkpoint's ({theirs}) in its "
            f"{', '.join(other)}. Use the original data, or drop ckpt_path to start over."
        )


def check_plain(value: Any, where: str, seen: set[int] | None = None) -> None:
    """Hyper-parameters are plain Python values, or the checkpoint could not be loaded without executing code."""
    seen = set() if seen is None else seen
    if isinstance(value, dict) or type(value) in (list, tuple):
        if id(value) in seen:  # a file can refer to the same part at many places
            return
        seen.add(id(value))
        for key, item in value.items() if isinstance(value, dict) else (("", item) for item in value):
            check_plain(item, f"{where}.{key}" if key else where, seen)
    elif value is not None and type(value) not in (str, int, float, bool):
        kind = type(value).__name__
        raise ValueError(f"{where} is a {kind} ({value!r}): pass a plain str, int, float, bool, list or dict.")


def options_of(ranker: Ranker) -> dict[str, Any]:
    """The options with which a ranker was made, as its constructor takes them: own objects in place of their names."""
    known = inspect.signature(type(ranker)).parameters
    return {name: value for name, value in {**ranker.hparams, **ranker.own}.items() if name in known}


def _listed(value: Any) -> Any:
    """Tuples as lists, which configs have in their place."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in present(value).items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value

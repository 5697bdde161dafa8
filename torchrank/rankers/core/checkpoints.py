"""What a checkpoint has to be: plain values, a ranker of torchrank, and for a fit that goes on the same beginning."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

import torchrank

if TYPE_CHECKING:
    from torchrank.rankers.core.ranker import Ranker


def load(path: str | PathLike, map_location: Any = "cpu") -> Ranker:
    """The fitted ranker in a checkpoint, ready to score; nothing in the file is executed and no config is needed."""
    name = read_checkpoint(path, map_location)["ranker"]
    if name not in torchrank.RANKERS:
        known = ", ".join(torchrank.RANKERS)
        raise ValueError(f"{path} holds a {name}, not one of {known}: use {name}.load_from_checkpoint(path)")
    return torchrank.__getattr__(name).load_from_checkpoint(path, map_location=map_location, weights_only=True).eval()


def read_checkpoint(path: str | PathLike, map_location: Any = "cpu") -> dict[str, Any]:
    try:
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of zip, of pickle, or of what torch makes of either
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise ValueError(f"{path} is not a checkpoint of torchrank: {reason}") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("ranker"), str):
        raise ValueError(f"{path} is not a checkpoint of torchrank: it names no ranker")
    return checkpoint


def check_same_ranker(ranker: Any, checkpoint: dict[str, Any]) -> None:
    """A state goes on in a ranker of its kind and with its options; only the limit of rounds may be raised."""
    name, saved, given = type(ranker).__name__, checkpoint.get("hyper_parameters", {}), ranker.hparams
    kinds = [name, *(kind.__name__ for kind in type(ranker).__mro__ if kind.__name__ in torchrank.RANKERS)][:2]
    if checkpoint.get("ranker", name) not in kinds:
        raise ValueError(f"the checkpoint holds a {checkpoint['ranker']}, not a {name}: choose its model")
    other = [key for key in saved.keys() & given.keys() - {"rounds"} if _listed(saved[key]) != _listed(given[key])]
    if other:
        theirs, ours = (", ".join(f"{key}={of[key]!r}" for key in sorted(other)) for of in (saved, given))
        raise ValueError(
            f"the checkpoint was made with {theirs}, and this {name} has {ours}: go on with the options of the "
            "checkpoint (only rounds may differ), or start anew without ckpt_path."
        )


def check_same_data(saved: dict[str, int], given: dict[str, int]) -> None:
    """A fit goes on with the training lists that it began with, told by their outlines (of older versions: untold)."""
    if saved.keys() == given.keys() and (other := [name for name in given if saved[name] != given[name]]):
        theirs, ours = (f"{of['lists']} lists, {of['entries']} entries" for of in (saved, given))
        raise ValueError(
            f"the checkpoint was made with other training lists ({theirs}) than these ({ours}), other by their "
            f"{', '.join(other)}: go on with the data that the fit began with, or start anew without ckpt_path."
        )


def check_plain(value: Any, where: str) -> None:
    """Hyper-parameters are plain Python values, or the checkpoint could not be loaded without executing code."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_plain(item, f"{where}.{key}")
    elif type(value) in (list, tuple):
        for item in value:
            check_plain(item, where)
    elif value is not None and type(value) not in (str, int, float, bool):
        kind = type(value).__name__
        raise ValueError(f"{where} is a {kind} ({value!r}): pass a plain str, int, float, bool, list or dict.")


def _listed(value: Any) -> Any:
    """Tuples as lists, which configs have in their place."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value

"""What is in a checkpoint, checked before memory is taken for it: plain options, tensors that the file can hold."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrank.errors import CheckpointError, NotFittedError

if TYPE_CHECKING:
    from torchrank.rankers.core.ranker import Ranker

REMEDY = "Use another checkpoint of the run (best.ckpt or last.ckpt), or fit it again."
FREE = 2**26  # bytes, and features, that any file may ask for
GONE = {"LGMML": {"solver"}, "GMML": {"solver"}}  # options that files of earlier versions may name: they are dropped
TIMES = 64  # bytes that a file may ask for, for each byte of its own: a ranker can be larger before its fit than after


@contextmanager
def named(path: str | PathLike[str]) -> Iterator[None]:
    """Whatever goes wrong with the content of a file is one line with the name of the file and what to do."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except CheckpointError as error:
        raise (error if str(path) in str(error) else CheckpointError(f"{path}: {error}")) from error.__cause__
    except Exception as error:  # foreign content can lead anywhere
        raise CheckpointError(f"{path} cannot be loaded: {reason(error)}. {REMEDY}") from error


def reason(error: BaseException) -> str:
    """An error in one line that is not too long; those that are no sentences have the name of their class."""
    text = " ".join(str(error).split())[:300].rstrip(".")
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__} {text}".rstrip()


def check_content(checkpoint: dict[str, Any], size: int) -> None:
    """Refuse options that are not plain, and a state with more elements than a file of this size can hold."""
    options, state = checkpoint.get("hyper_parameters", {}), checkpoint.get("state_dict")
    for name, part in (("hyper_parameters", options), ("state_dict", state)):
        if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
            raise CheckpointError(f"its {name} must be a dict with names, got {type(part).__name__}")
    tensors = list(_leaves([state, checkpoint.get("optimizer_states")]))
    asked = sum(each.numel() * each.element_size() for each in tensors)
    if any(each.layout != torch.strided or each.is_quantized for each in tensors) or asked > 4 * size:
        raise CheckpointError(f"its tensors would take {asked:,} bytes, but the file has {size:,}")
    features = options.get("num_features")
    if isinstance(features, int) and features > max(FREE, TIMES * size):
        raise CheckpointError(f"num_features={features} is absurd for a file of {size:,} bytes")


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)


def check_options(kind: type[Ranker], options: dict[str, Any], size: int) -> None:
    """Refuse options of another class, and those with which a ranker would be absurdly large for the file."""
    known = {name for each in kind.__mro__ for name in inspect.signature(vars(each).get("__init__", object)).parameters}
    known |= GONE.get(kind.__name__, set())
    if foreign := [name for name in options if name not in known and not name.startswith("_")]:  # Lightning's own do
        raise CheckpointError(f"its hyper-parameters are not those of a {kind.__name__}: {', '.join(foreign)}")
    own = inspect.signature(kind).parameters
    with torch.device("meta"):  # sizes without memory
        fresh = kind(**{name: value for name, value in options.items() if name in own})
    asked = sum(each.numel() * each.element_size() for each in chain(fresh.parameters(), fresh.buffers()))
    if asked > max(FREE, TIMES * size):
        raise CheckpointError(f"its options ask for {asked:,} bytes, which is absurd for a file of {size:,} bytes")


def present(described: dict[str, Any]) -> dict[str, Any]:
    """What a file says about a member of an ensemble, without options that are gone."""
    gone, options = GONE.get(str(described.get("ranker"))), described.get("options")
    if gone is None or not isinstance(options, dict):
        return described
    return described | {"options": {name: value for name, value in options.items() if name not in gone}}


def check_state(ranker: Ranker, state: dict[str, Any], prefix: str) -> None:
    """Refuse tensors of another kind: integers in place of real numbers, or values that are no tensors at all."""
    for name, own in ranker.state_dict(prefix=prefix, keep_vars=True).items():
        new = state.get(name)
        if isinstance(own, Tensor) and name in state and (not isinstance(new, Tensor) or _kind(own) != _kind(new)):
            found = str(new.dtype) if isinstance(new, Tensor) else type(new).__name__
            raise CheckpointError(f"{name} must be a tensor like {own.dtype}, got {found}")


def _kind(tensor: Tensor) -> tuple[bool, bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool


def check_extra_state(state: Any, num_features: int) -> None:
    """Refuse what belongs to a state beside its tensors if it is of other types."""
    names = state.get("feature_names") if isinstance(state, dict) else None
    certificate = state.get("certificate") if isinstance(state, dict) else None
    holds = (
        isinstance(state, dict)
        and isinstance(state["findings"], dict)
        and isinstance(state["by_query"], bool | None)
        and isinstance(state["outline"], dict)
        and all(type(each) is int for each in state["outline"].values())
        and isinstance(names, list | None)
        and (names is None or (len(names) == num_features and all(isinstance(each, str) for each in names)))
        and (certificate is None or _is_certificate(certificate))
    )
    if not holds:
        raise CheckpointError("what it says about its fit has wrong types")


def _is_certificate(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value["bounds"], dict) or not isinstance(value["name"], str):
        return False
    return all(isinstance(each, int | float) for each in (value["found"], value["limit"], *value["bounds"].values()))


@torch.no_grad()
def check_scores(ranker: Ranker) -> None:
    """A state is proved by the scores of a list of two documents; that of a ranker before its fit has none."""
    x, offsets = torch.zeros(2, ranker.num_features, device=ranker.device), torch.tensor([0, 2], device=ranker.device)
    vectors = {"queries": x[:1]} if ranker.by_query else {}
    try:
        scores = ranker(x, offsets, **vectors)
    except NotFittedError:
        return
    if scores.shape != (2,) or not scores.is_floating_point():
        raise CheckpointError(f"its scores of 2 documents have the shape {tuple(scores.shape)}")

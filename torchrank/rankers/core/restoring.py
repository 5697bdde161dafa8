"""What a resumed fit takes over from its checkpoint beside the ranker: checked before Lightning takes it over."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.optim import Optimizer

from torchrank.errors import CheckpointError
from torchrank.rankers.core.checkpoint_content import named
from torchrank.rankers.core.random_state import check_random_state

WATCHING = (ModelCheckpoint, EarlyStopping)


def name_the_file(trainer: Trainer) -> None:
    """Whatever goes wrong while Lightning restores a fit is one line with the name of the checkpoint."""
    connector: Any = trainer._checkpoint_connector
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    fresh = {each.state_key: each.state_dict() for each in callbacks if type(each) in WATCHING}
    for name in ("_restore_modules_and_callbacks", "restore_training_state"):
        vars(connector)[name] = partial(_restore, trainer, fresh, partial(getattr(type(connector), name), connector))


def _restore(trainer: Trainer, fresh: dict[str, Any], restore: Callable[..., None], *arguments: Any) -> None:
    path = arguments[0] if arguments else trainer.ckpt_path
    with named(path) if path else nullcontext():
        if path and not arguments and trainer.state.fn == "fit":  # the second of the two: loops, optimizers, schedules
            check_progress(trainer, fresh, trainer._checkpoint_connector._loaded_checkpoint)
        restore(*arguments)


def check_progress(trainer: Trainer, fresh: dict[str, Any], checkpoint: dict[str, Any]) -> None:
    """Refuse progress of another kind than this trainer's, which would end a fit in the middle of its loops."""
    loops, found = trainer.fit_loop.state_dict(), checkpoint["loops"]["fit_loop"]
    places = found["state_dict"].get("combined_loader", [])
    _require(_is_alike(loops | {"state_dict": {}}, found | {"state_dict": {}}), "loops")
    _require(isinstance(places, list) and all(_is_alike({"epoch": 0, "given": 0}, each) for each in places), "loops")
    for key in fresh.keys() & checkpoint["callbacks"].keys():
        state = checkpoint["callbacks"][key]
        _require(_is_alike(fresh[key], state), "callbacks")
        _require(state.get("kth_best_model_path", "") in ("", *state.get("best_k_models", ())), "callbacks")
    schedules, found = (
        [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        checkpoint["lr_schedulers"],
    )
    _require(isinstance(found, list) and len(found) == len(schedules), "lr_schedulers")
    _require(all(map(_is_schedule, schedules, found)), "lr_schedulers")
    states = checkpoint["optimizer_states"]
    _require(isinstance(states, list) and len(states) == len(trainer.optimizers), "optimizer_states")
    _require(all(map(_is_state_of, trainer.optimizers, states)), "optimizer_states")
    if "random_state" in checkpoint:
        check_random_state(checkpoint["random_state"])


def _require(holds: bool, part: str) -> None:
    if not holds:
        raise CheckpointError(f"its {part} are not those of this fit. Use another checkpoint, or start over.")


def _is_alike(own: Any, found: Any) -> bool:
    """Whether a state has the names and types of another; scores are tensors of one number, and None before."""
    if isinstance(own, dict) and not own:
        return isinstance(found, dict) and all(map(_is_score, found.values()))
    if isinstance(own, dict):
        keys = isinstance(found, dict) and own.keys() == found.keys()
        return keys and all(_is_alike(own[key], value) for key, value in found.items())
    if isinstance(own, list | tuple):
        return isinstance(found, list | tuple) and len(own) == len(found) and all(map(_is_alike, own, found))
    if own is None or isinstance(own, Tensor):
        return _is_score(found) or (own is None and (found is None or isinstance(found, str)))
    if isinstance(own, float):
        return type(found) in (int, float) and math.isfinite(found)
    return type(own) is type(found) and (not isinstance(own, int) or found >= 0)


def _is_schedule(own: dict[str, Any], found: Any) -> bool:
    """Whether it can be the state of a schedule: what is a number in a fresh one is a number; more may be known."""
    numbers = [key for key, value in own.items() if isinstance(value, int | float)]
    return isinstance(found, dict) and all(
        isinstance(found.get(key), int | float) or _is_score(found.get(key)) for key in numbers
    )


def _is_score(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()


def _is_state_of(optimizer: Optimizer, state: Any) -> bool:
    """Whether it can be loaded into the optimizer, and the next step taken with it."""
    own = optimizer.state_dict()["param_groups"]
    groups = [{key: group[key] for key in mine} for group, mine in zip(state["param_groups"], own, strict=True)]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    kept = _kept_by(optimizer)
    return _is_alike(own, groups) and all(
        type(place) is int and _is_kept(kept, values, parameters[place]) for place, values in state["state"].items()
    )


def _kept_by(optimizer: Optimizer) -> dict[str, Any] | None:
    """What an optimizer of this class keeps for a parameter with one entry; None if a step does not tell it."""
    probe = nn.Parameter(torch.zeros(1))
    probe.grad = torch.zeros(1)
    with suppress(Exception):  # one that needs a closure, or is made of something else than parameters
        other = type(optimizer)([probe], **optimizer.defaults)
        other.step()
        return dict(other.state[probe])
    return None


def _is_kept(own: dict[str, Any] | None, found: Any, parameter: Tensor) -> bool:
    """Whether an optimizer can go on with what was kept: tensors like the parameter, and counts."""
    if own is None:
        return isinstance(found, dict)
    if not isinstance(found, dict) or own.keys() != found.keys():
        return False
    return all(_is_like(own[name], value, parameter) for name, value in found.items())


def _is_like(own: Any, found: Any, parameter: Tensor) -> bool:
    if not isinstance(own, Tensor):
        return type(own) is type(found)
    if not isinstance(found, Tensor) or not found.is_floating_point() or not bool(found.isfinite().all()):
        return False
    return found.shape == parameter.shape if own.ndim else found.ndim == 0 and bool(found >= 0)

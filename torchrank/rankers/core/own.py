"""A user's own network or loss, given as an object or by its dotted name.

Hyper-parameters and checkpoints hold its name only. A name in code or in a config is imported, as its author asked for
it; a name in a file never is: whoever loads the file gives the object.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from torchrank.errors import CheckpointError, check_choice

OPTIONS = ("scorer", "loss")


class Loading(NamedTuple):
    """What was given for a file that is being read, and which of it the file has a place for."""

    objects: dict[str, Any]
    used: set[str]


_loading: ContextVar[Loading | None] = ContextVar("loading", default=None)


@contextmanager
def loading(**given: Any) -> Iterator[None]:
    """While the options of a ranker come from a file: its own objects are those that are given, or there are none."""
    objects = {name: find(name, value) for name, value in given.items() if value is not None}
    state = Loading(objects, set())
    token = _loading.set(state)
    try:
        yield
    finally:
        _loading.reset(token)
    for name in objects.keys() - state.used:
        raise ValueError(f"the checkpoint has no {name} of your own: load it without {name}=")


def is_loading() -> bool:
    """Whether the options of a ranker come from a file at this moment."""
    return _loading.get() is not None


def resolve(option: str, value: Any, known: Mapping[str, Any]) -> tuple[str, Any]:
    """The name of an option, and the object of that name: one of torchrank's, or the user's own.

    >>> resolve("loss", "min", {"min": min}), resolve("loss", max, {})
    (('min', <built-in function min>), ('builtins.max', <built-in function max>))
    """
    if not isinstance(value, str):
        return name_of(value), value
    if value in known:
        return value, known[value]
    if "." not in value:
        check_choice([*known, "the dotted name of your own"], **{option: value})
    state = _loading.get()
    if state is None:
        return value, find(option, value)
    if option not in state.objects:
        raise CheckpointError(_missing(option, value))
    state.used.add(option)
    return value, state.objects[option]


def only_given(value: Any, given: Mapping[str, Any]) -> Any:
    """Options from a file, in which the dotted names of own objects are replaced by those that are given; none is left.

    >>> only_given({"loss": "my.loss", "k": 3, "base": {"scorer": "mlp"}}, {"loss": max})
    {'loss': <built-in function max>, 'k': 3, 'base': {'scorer': 'mlp'}}
    """
    if not isinstance(value, dict):
        return value
    found = {name: only_given(each, given) for name, each in value.items()}
    for name in OPTIONS:
        if isinstance(found.get(name), str) and "." in found[name]:
            if given.get(name) is None:
                raise CheckpointError(_missing(name, found[name]))
            found[name] = given[name]
    return found


def _missing(option: str, name: str) -> str:
    return (
        f"the checkpoint needs {option}={name!r}, which is not part of torchrank, and nothing is imported because "
        f"a file names it: load(path, {option}=...), or --{option} {name} on the command line"
    )


def find(option: str, value: Any) -> Any:
    """The object with a dotted name; anything but a string is the object."""
    if not isinstance(value, str):
        return value
    try:
        return pkgutil.resolve_name(value)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import {option}={value!r}: {error}") from error


def import_from_here() -> None:
    """Let the command line import what lies in the current directory, as `python script.py` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def name_of(value: Any) -> str:
    """The dotted name of a class or function, or of the class of another object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def plain_names(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Options in which own objects are replaced by their names.

    >>> plain_names({"loss": max, "lr": 0.1})
    {'loss': 'builtins.max', 'lr': 0.1}
    """
    if options is None:
        return None
    objects = {name: name_of(options[name]) for name in OPTIONS if not isinstance(options.get(name, ""), str)}
    return options | objects

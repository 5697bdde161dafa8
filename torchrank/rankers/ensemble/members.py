"""The members of an ensemble: copies of fitted rankers, the plain values that a checkpoint describes them by, and what
each of them gets of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice
from os import PathLike
from typing import Any

import torch

import torchrank
from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.data.transforms import OneOf, Transform, transform_batch
from torchrank.errors import CheckpointError
from torchrank.rankers.core.checkpoint_content import present
from torchrank.rankers.core.checkpoints import load
from torchrank.rankers.core.own import is_loading
from torchrank.rankers.core.ranker import Ranker
from torchrank.record import checkpoint_of

MOST = 1000  # rankers of an ensemble, all levels together: a file may say more than it holds


def make_members(given: Any) -> list[Ranker]:
    """A fitted ranker for each member: a ranker, of which a copy is taken; a checkpoint or a run folder, which is
    loaded; several of them in a list, which are an ensemble; or what `description` has written."""
    if isinstance(given, str | PathLike | Ranker) or not isinstance(given, Sequence):
        raise ValueError(f"members must be a list of rankers, checkpoints or run folders, got {given!r:.100}")
    if len(list(islice(_each(given), MOST + 1))) > MOST:
        raise ValueError(f"an ensemble has at most {MOST} rankers, those of its ensembles included")
    return [_member(number, each) for number, each in enumerate(given)]


def _each(given: Sequence[Any]) -> Iterator[Any]:
    """All members at all levels."""
    for member in given:
        yield member
        options = member.get("options") if isinstance(member, dict) else None
        below = member if isinstance(member, list | tuple) else (options or {}).get("members")
        if isinstance(below, list | tuple):
            yield from _each(below)


def _member(number: int, given: Any) -> Ranker:
    given = getattr(given, "ranker_", given)  # of an estimator
    if isinstance(given, Ranker):
        return _copied(given)
    if isinstance(given, dict):
        return _described(given)
    if is_loading():
        raise CheckpointError(f"member {number} of the ensemble is not in the file: {given!r:.100}")
    if isinstance(given, list | tuple):
        nested: Ranker = torchrank.find_export("Ensemble")(given)
        return nested
    if isinstance(given, str | PathLike):
        return load(checkpoint_of(given))
    raise ValueError(f"member {number} must be a fitted ranker, a checkpoint or a run folder, got {given!r:.100}")


def _copied(ranker: Ranker) -> Ranker:
    """A copy without the trainer that has fitted it."""
    held = {name: vars(ranker).get(name) for name in ("_trainer", "_fabric")}
    vars(ranker).update(dict.fromkeys(held))
    try:
        return deepcopy(ranker)
    finally:
        vars(ranker).update(held)


def _described(given: dict[str, Any]) -> Ranker:
    """A ranker of these options before its fit, whose state comes later."""
    given = present(given)
    name, options = given.get("ranker"), given.get("options")
    if name not in torchrank.RANKERS or not isinstance(options, dict):
        known = ", ".join(torchrank.RANKERS)
        raise ValueError(
            f"a member of the ensemble is a {name}, not one of {known}: make the ensemble of your own again"
        )
    kind: type[Ranker] = torchrank.find_export(str(name))
    with torch.random.fork_rng([]):  # first weights are drawn, and replaced by the state
        return kind(**options)


def description(ranker: Ranker) -> dict[str, Any]:
    """A ranker without what it has learned, in plain values: its class and the options of its constructor."""
    known = inspect.signature(type(ranker)).parameters
    options = {name: value for name, value in ranker.hparams.items() if name in known}
    return {"ranker": type(ranker).__name__, "options": options}


def features_of(members: Sequence[Ranker], given: int | None) -> int:
    """The number of features that all members, and the data, have in common."""
    found = {f"member {number} ({type(each).__name__})": each.num_features for number, each in enumerate(members)}
    if given is not None:
        found = {"the data": given, **found}
    if not found:
        raise ValueError("an Ensemble needs members=[...]: fitted rankers, checkpoints or run folders")
    (first, wanted), *others = found.items()
    for name, count in others:
        if count != wanted:
            raise ValueError(f"{name} has {count} features, but {first} has {wanted}: members rank the same rows")
    return wanted


def batch_for(member: Ranker, batch: Batch) -> Batch:
    """A batch of raw rows as a member takes it: through its transform, without what it cannot look at."""
    if batch.index is not None and ("corpus" not in member.takes or _looks_at_lists(member.transform)):
        batch = batch.flat()
    if isinstance(batch.x, SparseRows) and ("sparse" not in member.takes or member.transform.sparse_refusal):
        batch = batch._replace(x=batch.x.dense())
    if not member.by_query:
        batch = batch._replace(queries=None)
    return transform_batch(member.transform, batch)


def _looks_at_lists(transform: Transform) -> bool:
    chosen: Transform = transform.options[transform.chosen] if isinstance(transform, OneOf) else transform
    return chosen.per_query

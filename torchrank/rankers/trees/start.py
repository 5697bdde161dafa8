"""The ranker that trees start from: its scores are the ones that the first tree adds to."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.errors import CheckpointError
from torchrank.rankers.core.own import OPTIONS, is_loading
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.ensemble.members import batch_for, make_members


def make_start(given: Any, num_features: int, transform: Any) -> Ranker | None:
    """A fitted ranker of these features, which ranks by rows alone; a path is a checkpoint or a run folder."""
    given = getattr(given, "ranker_", given)  # of an estimator
    if given is None:
        return None
    if is_loading() and not isinstance(given, dict):
        raise CheckpointError(f"the ranker that the trees start from is not in the file: {given!r:.100}")
    if not isinstance(given, str | PathLike | dict | Ranker):
        raise ValueError(f"start must be a fitted ranker, a checkpoint or a run folder, got {given!r:.100}")
    if transform is not None:
        raise ValueError("start= needs transform=null: the ranker that trees start from sees the rows as they are")
    found = make_members([given])[0]
    _check(found, num_features)
    return found.requires_grad_(False).eval()


def _check(found: Ranker, num_features: int) -> None:
    name = type(found).__name__
    if found.num_features != num_features:
        raise ValueError(f"start is a {name} of {found.num_features} features, but there are {num_features}")
    if found.by_query or found.num_topics is not None:
        raise ValueError(f"start is a {name} that ranks by queries, not by the rows of documents alone: use another")
    if own := [option for option in OPTIONS if option in found.own]:
        raise ValueError(f"start is a {name} with a {own[0]} of your own, which a checkpoint of trees cannot hold")


@torch.no_grad()
def start_scores(start: Ranker, batch: Batch) -> Tensor:
    """Scores (N,) of a batch of raw rows."""
    return start.eval().score(batch_for(start, batch))

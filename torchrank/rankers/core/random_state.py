"""The random state of a fit in its checkpoints, so that a resumed fit draws what an uninterrupted one would."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import distributed

from torchrank.errors import CheckpointError


def random_state() -> list[dict[str, Any]]:
    """The global generators of every process, in plain values. All processes have to call it together.

    >>> state = random_state()
    >>> first = torch.rand(3)
    >>> restore(state)
    >>> torch.equal(first, torch.rand(3))
    True
    """
    version, numbers, gauss = random.getstate()
    name, keys, *counts = np.random.get_state(legacy=True)
    own = {
        "python": [version, list(numbers), gauss],
        "numpy": [name, torch.from_numpy(np.array(keys, dtype=np.int64)), *counts],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    if not (distributed.is_available() and distributed.is_initialized()):
        return [own]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, own)
    return found


def restore(states: list[dict[str, Any]]) -> None:
    """Set the generators of this process as they were; another number of processes starts with its own."""
    several = distributed.is_available() and distributed.is_initialized()
    if len(states) != (distributed.get_world_size() if several else 1):
        return
    _set(states[distributed.get_rank() if several else 0])


def check_random_state(states: Any) -> None:
    """Refuse what is not the state of generators: each is set, and then set again as it was."""
    numbers, arrays, tensor = random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state()
    try:
        for each in states:
            _set(each | {"cuda": each["cuda"][:0]})
    except Exception as error:  # of any of the generators
        raise CheckpointError("its random_state is not that of generators") from error
    finally:
        random.setstate(numbers)
        np.random.set_state(arrays)
        torch.set_rng_state(tensor)


def _set(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    name, keys, *counts = state["numpy"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state((name, keys.numpy().astype(np.uint32), *counts))
    torch.set_rng_state(state["torch"].cpu())
    if len(state["cuda"]) == torch.cuda.device_count() > 0:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])

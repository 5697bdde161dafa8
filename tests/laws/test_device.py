"""Laws of devices: every ranker fits on one that is not the CPU, and no change adds a wait for it unseen.

The device is emulated (`device.py`). The table has ceilings for the kernels and the waits of a later round (or epoch)
and of a later validation, on the small lists of `rankers.py` in one batch. A wait more than the table says turns the
test red: lower a ceiling freely, raise one only with a reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from tests.laws.cases import ROWS
from tests.laws.device import DEVICE, Count, counting, emulated
from tests.laws.rankers import CASES, sets
from torchrank import Ranker
from torchrank.rankers.core.fitting import Descent, Watch

pytestmark = pytest.mark.filterwarnings("ignore")


class Ceiling(NamedTuple):
    """Kernels and waits of the last round, and of the last validation."""

    kernels: int
    waits: int
    val_kernels: int
    val_waits: int


CEILINGS = {
}


class Recorded(NamedTuple):
    rounds: list[Count]
    validations: list[Count]


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Counts every round, epoch and validation of fits without Lightning."""
    found = Recorded([], [])

    def counted(function: Any, into: list[Count]) -> Any:
        def call(*arguments: Any) -> Any:
            with counting() as count:
                result = function(*arguments)
            into.append(count)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, into in (
            (Ranker, "take_round", found.rounds),
            (Descent, "epoch", found.rounds),
            (Watch, "validate", found.validations),
        ):
            patch.setattr(owner, name, counted(getattr(owner, name), into))
        yield found


def fitted(name: str, device: torch.device | str) -> Ranker:
    torch.manual_seed(0)
    case, own = CASES[name], sets(CASES[name].kind)
    return case.make().to(device).fit(own["train"], own["val"], epochs=case.epochs)


def scores(ranker: Ranker, name: str) -> torch.Tensor:
    batch = sets(CASES[name].kind)["test"].to(ranker.device)[:]
    given = {"index": batch.index, "queries": batch.queries}
    given |= {"query": batch.query} if ranker.num_topics is not None else {}
    with torch.no_grad():
        return ranker(batch.x, batch.offsets, **{key: part for key, part in given.items() if part is not None}).cpu()


@pytest.mark.parametrize("name", CEILINGS)
def test_a_fit_on_a_device(name):
    with emulated(), recorded() as found:
        ranker = fitted(name, DEVICE)
        assert {each.device for each in (*ranker.parameters(), *ranker.buffers())} == {DEVICE}
        here = scores(ranker, name)
    torch.testing.assert_close(here, scores(fitted(name, "cpu"), name), rtol=1e-5, atol=1e-7)
    last, val = found.rounds[-1], found.validations[-1]
    ceiling = CEILINGS[name]
    assert last.waits <= ceiling.waits, dict(last.waited_at)
    assert val.waits <= ceiling.val_waits, dict(val.waited_at)
    assert (last.kernels, val.kernels) <= (ceiling.kernels, ceiling.val_kernels)
    assert last.kernels <= ceiling.kernels and val.kernels <= ceiling.val_kernels


def test_every_kind_of_ranker_is_in_the_table():
    assert {type(case.make()) for name, case in CASES.items()} == {type(CASES[name].make()) for name in CEILINGS}


def test_the_device_refuses_tensors_of_the_host_and_counts_waits():
    with emulated(), counting() as count:
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        with pytest.raises(RuntimeError, match="emulated.* and on cpu"):
            x + torch.ones(2, 3)
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()
        assert count.waits == 0
        assert x.sum().item() == 15 and (x > 2).nonzero().shape == (3, 2) and x.cpu().shape == (2, 3)
    assert count.waits == 3 and count.kernels >= 4

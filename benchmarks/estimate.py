"""What a GPU would take for a round and a validation of each ranker, by a roofline: an estimate, not a measurement.

    python -m benchmarks --estimate [--machine NAME=bandwidth,f32,f64] [--scale 0.5] [name ...]

The fits run on the emulated device of `tests/laws/device.py`, which counts kernels, waits, bytes and floating-point
operations. Time = the sum over operations of the largest of bytes / bandwidth, flop / rate and launches, and the waits.
Beside it is the CPU time of the same rounds on one core of this machine. Not in it: atomics that meet, the allocator,
and the work of the host between the operations.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

import torchrank as tr
from tests.laws.device import DEVICE, Count, counting, emulated
from torchrank.data import synthetic_splits
from torchrank.data.synthetic.matchmaking import load_matchmaking
from torchrank.rankers.core.fitting import Descent, Watch

LAUNCH, WAIT = 5e-6, 15e-6  # seconds
LISTS, FEATURES, ROUNDS = 700, 136, 3  # of which 60% are trained on: 420 lists, 50,000 documents
FREE = 2**36  # bytes of the device


class Machine(NamedTuple):
    bandwidth: float  # bytes per second
    float32: float  # operations per second
    float64: float

    def seconds(self, count: Count) -> float:
        busy = sum(
            max(moved / self.bandwidth, flop / getattr(self, kind), kernels * LAUNCH)
            for kernels, moved, flop, kind in count.work
        )
        return busy + WAIT * count.waits


MACHINES = {"A100": Machine(1.24e12, 13.7e12, 6.8e12), "4090": Machine(0.85e12, 49e12, 1.16e12)}  # 80% of the peaks


class Case(NamedTuple):
    make: Callable[[int], Any]
    share: float = 1.0  # of the lists: some take long
    data: str = "lists"
    host: bool = False  # whether its rounds run on the host, whatever the device


CASES = {
    "lambdarank": Case(tr.LambdaRank),
    "neural": Case(tr.NeuralRanker),
    "lgmml_net": Case(lambda width: tr.LGMMLNet(width, groups="random", rank=8)),
    "listnet": Case(tr.ListNet),
    "domination": Case(tr.DominationRank),
    "domination solver=fista": Case(lambda width: tr.DominationRank(width, l1=0.1)),
    "domination solver=cd": Case(lambda width: tr.DominationRank(width, l1=0.1, solver="cd")),
    "domination solver=blocked": Case(lambda width: tr.DominationRank(width, l1=0.1, solver="blocked")),
    "lgmml": Case(lambda width: tr.LGMML(width, groups="random")),
    "lgmml mode=sgd": Case(lambda width: tr.LGMML(width, groups="random", mode="sgd"), host=True),
    "gmml": Case(tr.GMML),
    "rankboost": Case(tr.RankBoost),
    "adarank": Case(tr.AdaRank),
    "singlefeature": Case(tr.SingleFeature),
    "pamir": Case(tr.PAMIR, host=True),
    "pamir minibatch=64": Case(lambda width: tr.PAMIR(width, minibatch=64)),
    "ranksvm": Case(tr.RankSVM),
    "svmmap": Case(tr.SVMMap),
    "mlr": Case(tr.MLR, data="queries"),
    "localrank": Case(tr.LocalRank, 0.5),
    "dk": Case(tr.TransductivePCA, 0.2),
    "queryknn": Case(tr.QueryKNN, 0.2),
    "gbdt": Case(tr.GBDTRanker, host=True),
}


class Seen(NamedTuple):
    """What was seen of the rounds and of the validations of a fit."""

    rounds: list[Any]
    validations: list[Any]


@contextmanager
def seconds() -> Iterator[list[float]]:
    """CPU time of the block."""
    found = [time.process_time()]
    yield found
    found[0] = time.process_time() - found[0]


@contextmanager
def watched(measure: Callable[[], Any]) -> Iterator[Seen]:
    """Measures every round, epoch and validation of the fits in the block."""
    seen = Seen([], [])

    def by(function: Callable[..., Any], into: list[Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with measure() as found:
                result = function(*arguments)
            into.append(found)
            return result

        return call

    with (
        mock.patch.object(tr.Ranker, "take_round", by(tr.Ranker.take_round, seen.rounds)),
        mock.patch.object(Descent, "epoch", by(Descent.epoch, seen.rounds)),
        mock.patch.object(Watch, "validate", by(Watch.validate, seen.validations)),
    ):
        yield seen


def fitted(case: Case, scale: float, device: torch.device | str, measure: Callable[[], Any]) -> Seen:
    """A fit of a few rounds on synthetic lists of MSLR's shape."""
    lists = max(20, round(LISTS * case.share * scale))
    if case.data == "queries":
        sets = load_matchmaking(queries=lists, candidates=120)
    else:
        sets = synthetic_splits(num_queries=lists, num_features=FEATURES, mean_length=120)
    ranker = case.make(sets["train"].num_features).to(device)
    with watched(measure) as seen:
        ranker.fit(sets["train"], sets["val"], epochs=ROUNDS)
    return seen


def estimated(names: list[str], machines: dict[str, Machine], scale: float) -> Iterator[str]:
    """The rows of the table, in Markdown."""
    yield f"| ranker | phase | kernels | waits | MB | {' | '.join(f'{name} ms' for name in machines)} | one core ms | |"
    yield f"|{'---|' * (7 + len(machines))}"
    for name in names:
        case = CASES[name]
        with emulated(), mock.patch("torchrank.data.training.free_memory", lambda device: FREE):
            there = fitted(case, scale, DEVICE, counting)
        here = fitted(case, scale, "cpu", seconds)
        for phase, counts, times in zip(("round", "validation"), there, here, strict=True):
            yield row(name, phase, counts[-1], times[-1][0], machines)


def row(name: str, phase: str, count: Count, core: float, machines: dict[str, Machine]) -> str:
    if phase == "round" and CASES[name].host:
        return f"| {name} | {phase} | {'| ' * (3 + len(machines))}{1e3 * core:.0f} | on the host |"
    times = [machine.seconds(count) for machine in machines.values()]
    shown = " | ".join(f"{1e3 * each:.1f}" for each in times)
    cells = f"{count.kernels} | {count.waits} | {count.bytes / 1e6:.0f} | {shown} | {1e3 * core:.0f}"
    return f"| {name} | {phase} | {cells} | {core / max(times[0], 1e-9):.0f} times |"


def machine(text: str) -> tuple[str, Machine]:
    """`NAME=bandwidth,f32,f64`, in units of 10^12 bytes and operations per second.

    >>> machine("H100=2.7,50,26")
    ('H100', Machine(bandwidth=2700000000000.0, float32=50000000000000.0, float64=26000000000000.0))
    """
    name, _, rates = text.partition("=")
    found = [1e12 * float(rate) for rate in rates.split(",")]
    if not name or len(found) != 3 or min(found) <= 0:
        raise ValueError(f"a machine is NAME=bandwidth,f32,f64 in 10^12 per second, got {text!r}")
    return name, Machine(*found)

"""Every loss of `torchrank.functional.LOSSES`, beside the plain padded PyTorch form of benchmarks/padded.py.

A step is forward and backward of the mean over the lists; the value alone is under `torch.no_grad()`. What torchrank
knows about the lists (`Lists`) and the padded tensors are made before. Padded pairs that would need too much memory
are made for some lists at a time.
"""

import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor

from benchmarks.lists import GRADES, SMALL, Lists, Shape, check_same, make_lists, shapes
from benchmarks.padded import LOSSES as PADDED
from benchmarks.padded import MAKE_PAIRS
from benchmarks.run import Case, Setting, Sides, Skipped
from torchrank import functional as F

AT_ONCE = 2**22  # numbers in a padded tensor of pairs; with the tensors of autograd it takes ten times as much
MOST_PAIRS = 2**28  # padded pairs that are measured at all
LONGEST_CALL = 15.0  # seconds


def cases(setting: Setting) -> Iterator[Case]:
    for shape in shapes(setting):
        for name in F.LOSSES:
            for what in ("step", "value"):
                yield Case(f"{name}, {what}, {shape.name}", partial(sides, name, what, shape), 0.3)


@lru_cache(maxsize=2)
def kept(shape: Shape) -> Lists:
    return make_lists(shape)


def sides(name: str, what: str, shape: Shape) -> Sides:
    lists = kept(shape)
    refuse_slow(name, lists)
    flat, padded = for_loss(name, lists.scores), (for_loss(name, lists.padded[0]), *lists.padded[1:])
    loss = F.LOSSES[name]

    def ours(scores: Tensor = flat) -> Tensor:
        return loss(scores, lists.labels, lists.given)

    def plain() -> Callable[[], object]:
        if name not in PADDED:
            raise Skipped("no plain form")
        parts = blocks(name, *padded)
        if shape in SMALL:
            check_same(ours().detach(), PADDED[name](*padded))
        calls = [form(what, lambda s, part=part: PADDED[name](s, *part[1:]), part[0]) for part in parts]
        return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]

    return Sides(form(what, ours, flat), {"padded PyTorch": plain})


def form(what: str, function: Callable[[Tensor], Tensor], scores: Tensor) -> Callable[[], object]:
    """A step, or the value alone."""
    if what == "value":
        return torch.no_grad()(lambda: function(scores))
    leaf = scores.clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        function(leaf).mean().backward()

    return step


def for_loss(name: str, scores: Tensor) -> Tensor:
    """The ordinal loss takes a score for each grade above 0, all others take one score."""
    return scores[..., None] - torch.arange(len(GRADES) - 1.0) if name == "ordinal" else scores


def blocks(name: str, scores: Tensor, labels: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The padded lists, some at a time where all their pairs would take gigabytes."""
    pairs = mask.shape[1] ** 2
    if name not in MAKE_PAIRS or pairs * len(mask) <= AT_ONCE:
        return [(scores, labels, mask)]
    if pairs * len(mask) > MOST_PAIRS:
        raise Skipped(f"{pairs * len(mask):,} padded pairs")
    some = max(1, AT_ONCE // pairs)
    return list(zip(scores.split(some), labels.split(some), mask.split(some), strict=True))


def refuse_slow(name: str, lists: Lists, share: int = 50) -> None:
    """A call on a fiftieth of many lists tells whether one on all of them would take too long."""
    count = (len(lists.offsets) - 1) // share
    if count < 2:
        return
    last = int(lists.offsets[count])
    some = for_loss(name, lists.scores[:last]).clone().requires_grad_()
    start = time.process_time()
    F.LOSSES[name](some, lists.labels[:last], lists.offsets[: count + 1]).mean().backward()
    if (seconds := share * (time.process_time() - start)) > LONGEST_CALL:
        raise Skipped(f"a call would take about {seconds:.0f} s")

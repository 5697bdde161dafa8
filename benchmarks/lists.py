"""Lists with scores and labels, which losses and measures take."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.run import Setting
from torchrank import functional as F

GRADES = torch.tensor([0.52, 0.32, 0.13, 0.02, 0.01])  # how frequent the labels 0 to 4 are in MSLR-WEB30K, about
LONGEST = 1251  # documents, in MSLR-WEB30K


class Shape(NamedTuple):
    """So many lists, of equal length or with a mean length; `name` tells which."""

    name: str
    lists: int
    length: int
    ragged: bool = False


SMALL = (Shape("32 lists of 10", 32, 10), Shape("32 ragged lists of about 10", 32, 10, True))
MIDDLE = (Shape("20,000 documents in lists of 100", 200, 100), Shape("20,000 in ragged lists", 167, 120, True))
LARGE = (Shape("700,000 documents in lists of 120", 5833, 120), Shape("700,000 in ragged lists", 5833, 120, True))


def shapes(setting: Setting) -> tuple[Shape, ...]:
    return SMALL if setting.quick else SMALL + MIDDLE + LARGE


class Lists(NamedTuple):
    """Flat tensors, and the same padded: `(Q, L)` with a mask."""

    scores: Tensor
    labels: Tensor
    offsets: Tensor
    given: Any  # what functions take as their third argument
    padded: tuple[Tensor, Tensor, Tensor]  # scores, labels in float32, mask


def make_lists(shape: Shape, seed: int = 0) -> Lists:
    """Lists of equal length, or log-normal ones with MSLR's spread. No two scores are equal."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.full((shape.lists,), shape.length)
    if shape.ragged:
        factors = torch.exp(0.6 * torch.randn(shape.lists, generator=draw) - 0.18)  # of mean 1
        lengths = (shape.length * factors).long().clamp(1, LONGEST)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    labels = torch.multinomial(GRADES, int(offsets[-1]), replacement=True, generator=draw)
    ranks = (labels + 3 * torch.randn(len(labels), generator=draw)).argsort().argsort()
    scores = 6 * ranks / len(ranks) - 3
    (padded, mask), (grades, _) = F.pad(scores, offsets), F.pad(labels, offsets)
    return Lists(scores, labels, offsets, third_argument(labels, offsets), (padded, grades.float(), mask))


def third_argument(labels: Tensor, offsets: Tensor) -> Any:
    """What is known about the lists is found once, before the calls; versions without `Lists` take the offsets."""
    return F.Lists.of(offsets=offsets, labels=labels) if hasattr(F, "Lists") else offsets


def check_same(ours: Tensor, theirs: Tensor) -> None:
    """The plain form finds the same values. Lists from which there is nothing to learn may differ."""
    defined = torch.isfinite(ours) & (ours != 0)
    torch.testing.assert_close(ours[defined].float(), theirs[defined].float(), rtol=1e-3, atol=1e-4)

"""Domination loss, forward + backward: against the list length, the naive pair form, ListNet and a padded logsumexp.

The padded logsumexp is timed from the flat scores (it makes the `(Q, L)` tensor itself, as every other form), and once
more, for scale, on a tensor that was padded before.
"""

from collections.abc import Iterator

import torch

from benchmarks.suite import Row, Setting
from torchrank.functional import domination_loss, listnet_loss, pad

GRADES = 5
ROWS = 1000  # of the pair matrix at once: all of it would be 400 MB, several times over


def make_lists(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    labels = torch.randint(0, GRADES, (int(offsets[-1]),), generator=generator)
    scores = torch.randn(len(labels), generator=generator).requires_grad_()
    return scores, labels, offsets


def draw_lengths(lists, kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if kind == "long":
        return torch.randint(60, 201, (lists,), generator=generator)
    return torch.exp(torch.log(torch.tensor(20.5)) + 0.6 * torch.randn(lists, generator=generator)).long().clamp(1, 150)


def gradient(loss, leaf):
    """One forward and backward pass."""
    leaf.grad = None
    loss().sum().backward()


def naive(scores, labels):
    """Gradient of log(1 + sum of exp(f_j - f_i)) over all pairs of one list, `ROWS` rows of the matrix at a time."""
    scores.grad = None
    for some in torch.arange(len(scores)).split(ROWS):
        terms = torch.where(labels[some, None] > labels, scores - scores[some, None], -torch.inf)
        torch.nn.functional.pad(terms, (1, 0)).logsumexp(1).sum().backward()
    return scores.grad


def rows(setting: Setting) -> Iterator[Row]:
    yield from against_length(setting, setting.size(10_000, 500))
    yield from against_losses(setting, "long", bar=2)
    yield from against_losses(setting, "short", bar=3)


def against_length(setting: Setting, length: int) -> Iterator[Row]:
    one, tenth = (make_lists(torch.tensor([size])) for size in (length, length // 10))
    forms = [lambda some=some: gradient(lambda: domination_loss(*some), some[0]) for some in (one, tenth)]
    longer, shorter = setting.race(*forms, repeats=200)
    yield Row(f"one list of {length:,}", longer, peer="a tenth of the length", theirs=shorter, bar=3)
    found = one[0].grad.clone()
    seconds = setting.seconds(lambda: naive(*one[:2]))
    difference = f"gradients differ by {float((found - one[0].grad).abs().max()):.1e}"
    yield Row(f"one list of {length:,}", longer, peer="all pairs", theirs=seconds, bar=1 / 1000, note=difference)


def against_losses(setting: Setting, kind: str, bar: float) -> Iterator[Row]:
    batch = make_lists(draw_lengths(setting.size(256, 32), kind))
    scores, _, offsets = batch
    longest = int(offsets.diff().max())
    padded = pad(scores.detach(), offsets, fill=-torch.inf)[0].requires_grad_()
    ours, listnet, padding, alone = setting.race(
        lambda: gradient(lambda: domination_loss(*batch), scores),
        lambda: gradient(lambda: listnet_loss(*batch), scores),
        lambda: gradient(lambda: pad(scores, offsets, max_length=longest, fill=-torch.inf)[0].logsumexp(1), scores),
        lambda: gradient(lambda: padded.logsumexp(1), padded),
        repeats=200,
    )
    lists = f"{len(offsets) - 1} lists of {int(offsets.diff().min())} to {longest}"
    yield Row(lists, ours, peer="listnet", theirs=listnet, bar=bar)
    yield Row(lists, ours, peer="padded logsumexp", theirs=padding, bar=bar)
    yield Row(lists, ours, peer="logsumexp of a padded tensor", theirs=alone)

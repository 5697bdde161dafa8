"""Every loss under torch.func: grad and jacrev in all, vmap, forward mode and second derivatives where torch itself
differentiates the formula; elsewhere these are refused in one line.

A loss of the table LOSSES is under these laws without a line here.
"""

import itertools

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from torchrank.functional import LOSSES

FORMULAS = {"listnet", "softmax", "poly1_softmax", "listmle", "mse", "bce", "ordinal", "pairwise_mse"}
each_loss = pytest.mark.parametrize("name", LOSSES)
OFFSETS = torch.tensor([0, 4, 4, 9])
LABELS = torch.tensor([0, 2, 1, 0, 1, 0, 3, 1, 0])
WIDTHS = {"ordinal": 3}  # scores of an entry, where there are several


def draw(name, *shape, seed=0, dtype=torch.float64):
    width = (WIDTHS[name],) if name in WIDTHS else ()
    return torch.randn(*shape, 9, *width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def of(name, labels=LABELS, offsets=OFFSETS):
    return lambda scores: LOSSES[name](scores, labels, offsets)


def total(name, **lists):
    return lambda scores: of(name, **lists)(scores).sum()


def plain_gradient(function, scores):
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(function(scores), scores)[0]


def same(actual, expected, digits=1e-10):
    torch.testing.assert_close(actual, expected, rtol=10 * digits, atol=digits)


def same_or_refused(name, way, expected, what, **digits):
    """`way()` gives what `expected()` gives for the formulas, and says in one line that the others cannot."""
    if name in FORMULAS:
        same(way(), expected(), **digits)
        return
    with pytest.raises(RuntimeError, match=f"has no {what}: its gradient is known in closed form") as told:
        way()
    assert "\n" not in str(told.value)


@each_loss
def test_grad_is_autograd_whatever_is_an_argument(name):
    scores = draw(name)
    expected = plain_gradient(total(name), scores)
    same(grad(total(name))(scores), expected)
    same(grad(lambda *lists: LOSSES[name](*lists).sum())(scores, LABELS, OFFSETS), expected)


@each_loss
def test_jacobians_hold_the_gradients_of_each_list(name):
    scores, expected = draw(name), []
    for a, b in itertools.pairwise(OFFSETS.tolist()):
        gradient = torch.zeros_like(scores)
        gradient[a:b] = plain_gradient(total(name, labels=LABELS[a:b], offsets=torch.tensor([0, b - a])), scores[a:b])
        expected.append(gradient)
    same(jacrev(of(name))(scores), torch.stack(expected))
    same_or_refused(name, lambda: jacfwd(of(name))(scores), lambda: torch.stack(expected), "forward mode")


@each_loss
def test_forward_mode_is_the_gradient_times_the_tangent_or_refused(name):
    scores, tangent, function = draw(name), draw(name, seed=1), total(name)
    product = (plain_gradient(function, scores) * tangent).sum()
    same_or_refused(name, lambda: jvp(function, (scores,), (tangent,))[1], lambda: product, "forward mode")

    def dual():
        with torch.no_grad(), forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(scores, tangent))).tangent

    same_or_refused(name, dual, lambda: product, "forward mode")


@each_loss
def test_vmap_is_a_loop_or_refused(name):
    scores, labels = draw(name, 3), torch.stack([LABELS, LABELS.flip(0), LABELS.roll(2)])
    offsets = torch.tensor([[0, 4, 4, 9], [0, 9, 9, 9], [0, 1, 3, 9]])

    summed = grad(lambda *lists: LOSSES[name](*lists).sum())
    cases = [(of(name), (scores,)), (jacrev(of(name)), (scores,)), (summed, (scores, labels, offsets))]
    for function, given in [*cases, (lambda offsets: of(name, LABELS, offsets)(scores[0]), (offsets,))]:
        loop = lambda f=function, g=given: torch.stack([f(*each) for each in zip(*g, strict=True)])  # noqa: E731
        same_or_refused(name, lambda f=function, g=given: vmap(f)(*g), loop, "vmap")


def differences(function, scores, step=1e-6):
    """The derivative of a function by the difference of its values on both sides."""
    moves = step * torch.eye(scores.numel(), dtype=scores.dtype).view(-1, *scores.shape)
    columns = [(function(scores + move) - function(scores - move)) / (2 * step) for move in moves]
    return torch.stack(columns, -1).view(*scores.shape, *scores.shape)


@each_loss
def test_second_derivatives_are_right_or_refused(name):
    scores, function = draw(name), total(name)
    ways = (jacrev(jacrev(function)), lambda scores: torch.autograd.functional.hessian(function, scores))
    expected = differences(grad(function), scores)
    for way in ways:
        same_or_refused(name, lambda way=way: way(scores), lambda: expected, "second derivative", digits=1e-7)
    same_or_refused(name, lambda: hessian(function)(scores), lambda: expected, "forward mode", digits=1e-7)

"""Every loss under torch.func: grad, jacrev, jacfwd, jvp, vmap, functional_call, and second derivatives.

A loss of the table LOSSES is under these laws without a line here.
"""

import itertools

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from torchrank.functional import LOSSES

each_loss = pytest.mark.parametrize("name", LOSSES)
OFFSETS = torch.tensor([0, 4, 4, 9])
LABELS = torch.tensor([0, 2, 1, 0, 1, 0, 3, 1, 0])
WIDTHS = {"ordinal": 3}  # scores of an entry, where there are several


def draw(name, *shape, seed=0, dtype=torch.float64):
    width = (WIDTHS[name],) if name in WIDTHS else ()
    return torch.randn(*shape, 9, *width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def of(name, labels=LABELS, offsets=OFFSETS, **options):
    return lambda scores: LOSSES[name](scores, labels, offsets, **options)


def total(name, **options):
    return lambda scores: of(name, **options)(scores).sum()


def plain_gradient(function, scores):
    scores = scores.clone().requires_grad_()
    return torch.autograd.grad(function(scores), scores)[0]


def same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@each_loss
def test_grad_is_autograd(name):
    scores = draw(name)
    same(grad(total(name))(scores), plain_gradient(total(name), scores))


@each_loss
def test_jacobians_hold_the_slopes_of_each_list(name):
    scores, expected = draw(name), []
    for a, b in itertools.pairwise(OFFSETS.tolist()):
        alone = torch.tensor([0, b - a])
        slopes = torch.zeros_like(scores)
        slopes[a:b] = plain_gradient(total(name, labels=LABELS[a:b], offsets=alone), scores[a:b])
        expected.append(slopes)
    for jacobian in (jacrev, jacfwd):
        same(jacobian(of(name))(scores), torch.stack(expected))


@each_loss
def test_forward_mode_is_the_slopes_times_the_tangent(name):
    scores, tangent = draw(name), draw(name, seed=1)
    value, found = jvp(of(name), (scores,), (tangent,))
    same(value, of(name)(scores))
    same(found.sum(), (plain_gradient(total(name), scores) * tangent).sum())
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = of(name)(torch.autograd.forward_ad.make_dual(scores, tangent))
        same(torch.autograd.forward_ad.unpack_dual(dual).tangent, found)


@each_loss
def test_vmap_is_a_loop(name):
    scores, functions = draw(name, 5), (of(name), grad(total(name)), jacrev(of(name)), jacfwd(of(name)))
    for function in functions:
        same(vmap(function)(scores), torch.stack([function(each) for each in scores]))
    same(vmap(of(name), in_dims=1)(scores.movedim(0, 1)), torch.stack([of(name)(each) for each in scores]))


@each_loss
def test_vmap_over_labels_offsets_and_weights(name):
    draws = torch.Generator().manual_seed(2)
    scores, labels = draw(name, 3), torch.randint(0, 4, (3, 9), generator=draws)
    offsets = torch.tensor([[0, 4, 4, 9], [0, 9, 9, 9], [0, 1, 3, 9]])

    def loss(scores, labels, offsets):
        return LOSSES[name](scores, labels, offsets)

    for function in (loss, grad(lambda *lists: loss(*lists).sum())):
        expected = [function(*each) for each in zip(scores, labels, offsets, strict=True)]
        same(vmap(function)(scores, labels, offsets), torch.stack(expected))


@each_loss
def test_the_numbers_of_a_batch_may_be_given_under_vmap(name):
    sizes = {"max_length": 6, "num_grades": 4, "num_pairs": 5 + 8}
    scores = draw(name, 4)
    same(vmap(of(name, **sizes))(scores), torch.stack([of(name)(each) for each in scores]))


@each_loss
def test_gradients_per_sample_of_a_model(name):
    model = torch.nn.Linear(4, WIDTHS.get(name, 1)).double()
    weights = {key: value.detach() for key, value in model.named_parameters()}
    x = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def loss(weights, x):
        scores = functional_call(model, weights, (x,))
        return LOSSES[name](scores if name in WIDTHS else scores[:, 0], LABELS, OFFSETS).sum()

    found = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for sample in range(3):
        loop = torch.autograd.grad(loss(dict(model.named_parameters()), x[sample]), list(model.parameters()))
        for key, expected in zip(weights, loop, strict=True):
            same(found[key][sample], expected)


@each_loss
def test_second_derivatives_agree_or_are_refused(name):
    """Reverse over reverse, forward over reverse, reverse over forward, and a loop over central differences."""
    scores, function = draw(name), total(name)
    ways = (hessian(function), jacrev(jacrev(function)), jacrev(jacfwd(function)))
    try:
        expected = torch.autograd.functional.hessian(function, scores)
    except RuntimeError as error:
        assert name in str(error) and "\n" not in str(error)
        for way in ways:
            with pytest.raises(RuntimeError, match=name):
                way(scores)
        return
    for way in ways:
        same(way(scores), expected)
    step, slope = 1e-6, grad(function)
    for place in range(scores.numel()):
        shift = torch.zeros_like(scores)
        shift.view(-1)[place] = step
        difference = (slope(scores + shift) - slope(scores - shift)) / (2 * step)
        column = expected.reshape(*scores.shape, -1)[..., place]
        torch.testing.assert_close(column, difference, rtol=1e-6, atol=1e-7)


@each_loss
def test_forward_over_forward_is_right_or_refused(name):
    """torch itself takes it for 0 in a function that has its own forward mode."""
    scores, function = draw(name), total(name)
    try:
        found = jacfwd(jacfwd(function))(scores)
    except RuntimeError as error:
        assert name in str(error) and "\n" not in str(error)
    else:
        same(found, hessian(function)(scores))


@each_loss
def test_values_are_not_read_in_transformations(name):
    """NaN labels of a batch of lists: eagerly an error, under vmap, where nothing can be read, a value."""
    labels = LABELS.double().expand(2, 9).clone()
    vmap(lambda scores, labels: LOSSES[name](scores, labels, OFFSETS))(draw(name, 2), labels)
    with pytest.raises(ValueError, match="finite"):
        LOSSES[name](draw(name), torch.where(LABELS > 2, torch.inf, LABELS.double()), OFFSETS)

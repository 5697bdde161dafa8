"""What `weights` and `list_weights` mean in every loss of the table LOSSES."""

import itertools

import pytest
import torch
from torch.func import grad, vmap

from tests.laws.test_transformations import LABELS, OFFSETS, draw, same, same_or_refused
from torchrank.functional import LOSSES

each_loss = pytest.mark.parametrize("name", LOSSES)
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25, 1.5, 0.7, 2.5, 1.25], dtype=torch.float64)
LIST_WEIGHTS = torch.tensor([2.0, 5.0, 0.5], dtype=torch.float64)


def found(name, scores, labels=LABELS, offsets=OFFSETS, **weights):
    """Values, and slopes of their sum."""
    scores = scores.clone().requires_grad_()
    values = LOSSES[name](scores, labels, offsets, **weights)
    return values.detach(), torch.autograd.grad(values.sum(), scores)[0]


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ones_are_none(name, dtype):
    scores = draw(name, dtype=dtype)
    for ones in (torch.ones(9), torch.ones(9, dtype=torch.int64), [1] * 9):
        for one, other in zip(found(name, scores, weights=ones), found(name, scores), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=1e-15)
    for one, other in zip(found(name, scores, list_weights=torch.ones(3)), found(name, scores), strict=True):
        assert torch.equal(one, other)


@each_loss
def test_the_weight_of_a_list_multiplies_its_value_and_its_slopes(name):
    scores = draw(name)
    values, slopes = found(name, scores, weights=WEIGHTS, list_weights=LIST_WEIGHTS)
    plain, plain_slopes = found(name, scores, weights=WEIGHTS)
    same(values, plain * LIST_WEIGHTS)
    factor = LIST_WEIGHTS.repeat_interleave(OFFSETS.diff()).view(-1, *[1] * (scores.ndim - 1))
    same(slopes, plain_slopes * factor)


@each_loss
def test_a_factor_of_all_weights_adds_in_proportion(name):
    """It multiplies the loss, or changes nothing where weights are divided by their sum; Poly1 has a part of each."""
    one, three, five = (found(name, draw(name), weights=WEIGHTS * factor) for factor in (1, 3, 5))
    for low, middle, high in zip(one, three, five, strict=True):
        same(high - middle, middle - low)
    if name != "poly1_softmax":
        normalised = torch.allclose(three[0], one[0])
        same(three[0], (1 if normalised else 3) * one[0])


@each_loss
def test_weights_change_the_loss_of_their_own_list_only(name):
    scores = draw(name)
    values, slopes = found(name, scores, weights=WEIGHTS)
    assert not torch.allclose(values, found(name, scores)[0])
    for q, (a, b) in enumerate(itertools.pairwise(OFFSETS.tolist())):
        alone = found(name, scores[a:b], LABELS[a:b], torch.tensor([0, b - a]), weights=WEIGHTS[a:b])
        same(alone[0][0], values[q])
        same(alone[1], slopes[a:b])


@each_loss
def test_a_list_without_weight_has_a_connected_loss_of_0(name):
    weights = torch.where(torch.arange(9) < 4, 0.0, WEIGHTS)
    values, slopes = found(name, draw(name), weights=weights)
    assert (slopes[:4] == 0).all() and slopes.isfinite().all() and values[2] != 0
    assert values[0] == (3 / 4 if name == "poly1_softmax" else 0)  # whose target is then uniform, as in rax
    values, slopes = found(name, draw(name), list_weights=torch.zeros(3))
    assert (values == 0).all() and (slopes == 0).all()


@each_loss
def test_vmap_over_weights_is_a_loop_or_refused(name):
    rows = WEIGHTS * torch.tensor([[1.0], [0.3], [2.0]]) + torch.arange(3)[:, None]

    def total(scores, weights):
        return LOSSES[name](scores, LABELS, OFFSETS, weights=weights).sum()

    scores = draw(name, 3)
    for function in (total, grad(total)):
        loop = [function(*each) for each in zip(scores, rows, strict=True)]
        same_or_refused(name, lambda f=function: vmap(f)(scores, rows), lambda loop=loop: torch.stack(loop), "vmap")


@pytest.mark.weekly
@pytest.mark.parametrize("name", ["softmax", "ranknet"])  # a graph takes a second to make
def test_weights_in_a_compiled_graph(name):
    torch._dynamo.reset()
    scores = draw(name).requires_grad_()

    def total(scores, weights, list_weights):
        return LOSSES[name](scores, LABELS, OFFSETS, weights=weights, list_weights=list_weights).sum()

    graph = torch.compile(total, backend="aot_eager", fullgraph=True)
    pair = [function(scores, WEIGHTS, LIST_WEIGHTS) for function in (graph, total)]
    same(*pair)
    same(*(torch.autograd.grad(value, scores)[0] for value in pair))


@each_loss
def test_weights_that_make_no_sense_are_refused(name):
    def loss(**weights):
        return LOSSES[name](draw(name), LABELS, OFFSETS, **weights)

    for kind, good in (("weights", WEIGHTS), ("list_weights", LIST_WEIGHTS)):
        for wrong in (-1.0, torch.nan, torch.inf):
            bad = good.clone()
            bad[1] = wrong
            with pytest.raises(ValueError, match=rf"^{kind}\[1\] is .*finite and 0 or more$"):
                loss(**{kind: bad})
        with pytest.raises(ValueError, match=rf"^{kind} must be \({len(good)},\)"):
            loss(**{kind: good[:-1]})

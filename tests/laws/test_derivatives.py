"""`derivatives` of every loss, gradients at labels and weights where torch differentiates a formula, and no gradient
where nobody asks for one."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.laws.test_transformations import FORMULAS, LABELS, OFFSETS, draw
from torchrank.functional import LOSSES, as_loss, derivatives, softmax_loss

each_loss = pytest.mark.parametrize("name", LOSSES)
WITHOUT = {"warp", "structured_hinge", "neural_ndcg", "approx_ndcg", "approx_mrr"}  # a diagonal: no formula
WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25, 1.5, 0.7, 2.5, 1.25], dtype=torch.float64)
GIVEN = {"weights": WEIGHTS, "list_weights": torch.tensor([2.0, 5.0, 0.5], dtype=torch.float64)}
OPTIONS = [
    *((name, {}) for name in LOSSES),
    ("softmax", {"gain": "exp2", "normalize": True}),
    ("poly1_softmax", {"epsilon": -0.5}),
    ("unique_softmax", {"gain": "linear"}),
    ("listmle", {"discount": "log2p1"}),
    ("domination", {"margin": WEIGHTS}),
    ("lambdarank", {"k": 2, "pair": "soft_zero_one"}),
]


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["plain", "weighted"])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_derivatives_are_the_gradient_and_its_differences(name, options, given):
    loss, scores, step = LOSSES[name], draw(name).requires_grad_(), 1e-6

    def gradient(scores):
        (found,) = torch.autograd.grad(loss(scores, LABELS, OFFSETS, **options, **given).sum(), scores)
        return found

    found, diagonal = derivatives(loss)(scores, LABELS, OFFSETS, **options, **given)
    assert torch.equal(found, gradient(scores))
    assert (diagonal is None) == (name in WITHOUT)
    if diagonal is None:
        return
    assert diagonal.shape == scores.shape and not diagonal.requires_grad
    for place in range(scores.numel()):
        move = torch.zeros_like(scores)
        move.view(-1)[place] = step
        expected = (gradient(scores + move) - gradient(scores - move)).view(-1)[place] / (2 * step)
        assert diagonal.reshape(-1)[place].item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-7)


def test_derivatives_of_any_function_of_lists():
    lists = draw("softmax"), LABELS, OFFSETS
    gradient, diagonal = derivatives(lambda *lists: softmax_loss(*lists).square())(*lists)
    doubled = 2 * softmax_loss(*lists)[:, None] * torch.func.jacrev(lambda s: softmax_loss(s, *lists[1:]))(lists[0])
    torch.testing.assert_close(gradient, doubled.sum(0))
    assert diagonal is None
    arrays = derivatives(softmax_loss)([1, 2, 0.5], [0, 1, 1], group=[3])
    assert [part.dtype for part in arrays] == [torch.float64] * 2


BY_ORDER = {"listmle", "ordinal"}  # know only which label is larger, or whether it reaches a grade
AT_LABELS = FORMULAS - BY_ORDER | {"unique_softmax", "approx_ndcg", "approx_mrr"}
AT_WEIGHTS = AT_LABELS | BY_ORDER | {"structured_hinge"}


@each_loss
@pytest.mark.parametrize(("what", "claimed"), [("labels", AT_LABELS), ("weights", AT_WEIGHTS)])
def test_labels_and_weights_have_gradients_or_are_refused(name, what, claimed):
    labels = LABELS + torch.linspace(0.05, 0.4, 9, dtype=torch.float64)  # none at 1, where bce has a bend
    given = {"labels": labels, "weights": WEIGHTS}

    def loss(values):
        return LOSSES[name](draw(name), offsets=OFFSETS, **given | {what: values})

    point = given[what].clone().requires_grad_()
    if name in claimed:
        assert torch.autograd.gradcheck(loss, point)
    elif name in BY_ORDER:
        assert not loss(point).requires_grad
    else:
        with pytest.raises(ValueError, match=f"has no gradient at {what}: give {what}.detach()"):
            loss(point)


def test_soft_measures_have_gradients_at_weights():
    loss = as_loss("map")
    point = WEIGHTS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: loss(draw("mse"), LABELS, OFFSETS, weights=w), point)


class Work(TorchDispatchMode):
    """Counts the numbers that operations make."""

    made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            self.made += each.numel() if isinstance(each, torch.Tensor) else 0
        return result


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - FORMULAS - {"structured_hinge", "unique_softmax"}))
def test_no_gradient_is_computed_where_nobody_asks_for_one(name):
    """Nor where one could not ask: the scores are constants, or there is no grad mode."""
    scores, made = draw(name), []
    for grad, point in (
        (True, scores.clone().requires_grad_()),
        (False, scores.clone().requires_grad_()),
        (True, scores),
    ):
        with torch.set_grad_enabled(grad), Work() as work:
            value = LOSSES[name](point, LABELS, OFFSETS)
            if value.requires_grad:
                value.sum().backward()
        made.append(work.made)
    assert max(made[1:]) < 0.9 * made[0]

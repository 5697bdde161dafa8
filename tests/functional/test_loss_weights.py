"""Weighted losses against plain loops, values of rax's own tests, and what a `ListLoss` refuses."""

import math

import numpy as np
import pytest
import torch
from torchrank.functional.operations import ListLoss, formula_loss

from tests.reference import losses as reference
from tests.reference.measures import blocks, ordered_pairs, random_batch, stable_order, tensors
from torchrank import functional as F
from torchrank.functional.ragged import segment_sum


def listnet(scores, labels, weights):
    """rax's softmax_loss of exp(labels): labels are multiplied by the weights, then divided by their sum."""
    if len(set(labels)) < 2 or not any(weights):
        return 0.0
    shares = [weight * math.exp(label - max(labels)) for label, weight in zip(labels, weights, strict=True)]
    logs = reference.log_softmax(scores)
    return -math.fsum(share * log for share, log in zip(shares, logs, strict=True)) / math.fsum(shares)


def ranknet(scores, labels, weights):
    return math.fsum(weights[i] * reference.softplus(scores[j] - scores[i]) for i, j in ordered_pairs(labels))


def lambdarank(scores, labels, weights):
    """rax's pairwise_logistic_loss with dcg_lambdaweight(normalize=True), up to its factor of the list's length."""
    gains = [weight * (2**label - 1) for label, weight in zip(labels, weights, strict=True)]
    discounts = {entry: 1 / math.log2(place + 2) for place, entry in enumerate(stable_order(scores))}
    ideal = math.fsum(gain / math.log2(place + 2) for place, gain in enumerate(sorted(gains, reverse=True))) or 1.0
    return math.fsum(
        weights[i]
        * abs(gains[i] - gains[j])
        * abs(discounts[i] - discounts[j])
        / ideal
        * reference.softplus(scores[j] - scores[i])
        for i, j in ordered_pairs(labels)
    )


def warp(scores, labels, weights):
    terms = reference.warp_terms(scores, labels)
    total = math.fsum(weights[i] * price * (0.1 - scores[i] + scores[j]) for i, found, price in terms for j in found)
    return total / max(len(terms), 1)


def domination(scores, labels, weights):
    total = 0.0
    for i, terms in reference.domination_terms(scores, labels, reference.no_margin).items():
        top = max(0, *terms.values())
        total += weights[i] * (top + np.log(np.exp(-top) + sum(np.exp(term - top) for term in terms.values())))
    return float(total)


PLAIN = {"listnet": listnet, "ranknet": ranknet, "lambdarank": lambdarank, "warp": warp, "domination": domination}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("real", [False, True])
def test_weighted_losses_are_plain_loops(name, real):
    for seed in (40, 41):
        scores, labels, offsets = random_batch(seed, real=real)
        weights = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 3.0], len(scores))
        expected = [
            PLAIN[name](*(part[block].tolist() for part in (scores, labels, weights))) for block in blocks(offsets)
        ]
        found = F.LOSSES[name](*tensors(scores, labels, offsets), weights=torch.tensor(weights))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["ranknet", "lambdarank"])
def test_blocks_of_pairs_know_weights_too(name, monkeypatch):
    """Large batches take the pairs in blocks, small ones one after another."""
    draw = torch.Generator().manual_seed(0)
    offsets, labels = torch.tensor([0, 150, 151, 320]), torch.randint(0, 4, (320,), generator=draw)
    scores, weights = torch.randn(2, 320, generator=draw, dtype=torch.float64).abs()
    found = []
    for few in (2**13, 2**40):
        monkeypatch.setattr("torchrank.functional.losses.pairs.FEW_PAIRS", few)
        point = scores.clone().requires_grad_()
        value = F.LOSSES[name](point, labels, offsets, weights=weights)
        (slopes,) = torch.autograd.grad(value.sum(), point, create_graph=True)
        found.append((value, slopes, torch.autograd.grad((slopes * weights).sum(), point)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_the_structured_hinge_is_multiplied_by_the_mean_weight_of_relevant_entries():
    scores, labels, offsets = tensors(*random_batch(42))
    weights = torch.rand(len(scores), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, found = (F.structured_hinge(scores, labels, offsets, weights=each) for each in (None, weights))
    for value, expected, block in zip(found, plain, blocks(offsets), strict=True):
        relevant = weights[block][labels[block] >= 1]
        assert value.item() == pytest.approx(expected.item() * (relevant.mean().item() if len(relevant) else 0))


def test_a_loss_without_second_derivative_says_so():
    """And it is never taken for 0, as where the loss itself is summed up."""

    def halves(scores, labels, offsets, weights):
        return torch.segment_reduce(scores.square() / 2, "sum", offsets=offsets), scores.clone()

    loss, scores = ListLoss("halves", halves), torch.ones(3, requires_grad=True)
    for factor in (1.0, torch.ones(1, requires_grad=True)):
        (slopes,) = torch.autograd.grad(
            loss(scores * factor, torch.ones(3), torch.tensor([0, 3])).sum(), scores, create_graph=True
        )
        with pytest.raises(RuntimeError, match=r"^halves is once_differentiable: .*are not$"):
            slopes.sum().backward()


def test_a_loss_by_formula_has_all_derivatives():
    """Also one whose second derivative is 0, and one that does not depend on the scores at all."""
    scores, labels, offsets = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 2, 3])

    def cubes(scores, labels, offsets, weights):
        return segment_sum((scores - labels) ** 3, offsets)

    loss = formula_loss("cubes", cubes)
    assert torch.func.grad(lambda s: loss(s, labels, offsets).sum())(scores).tolist() == [0.0, 12.0, 27.0]
    second = torch.func.hessian(lambda s: loss(s, labels, offsets).sum())(scores)
    assert second.tolist() == torch.diag(6 * (scores - labels)).tolist()
    one, linear = formula_loss("one", lambda *_: torch.ones(1)), formula_loss("linear", lambda s, *_: s.sum().view(1))
    for flat in (one, linear):
        assert (torch.func.hessian(lambda s, f=flat: f(s, labels, torch.tensor([0, 3])).sum())(scores) == 0).all()

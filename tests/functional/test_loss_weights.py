"""Weighted losses against plain loops: those of tests/reference, and what rax does where it has weights."""

import inspect
import math

import numpy as np
import pytest
import torch

from tests.reference import losses as reference
from tests.reference.measures import blocks, ordered_pairs, random_batch, stable_order, tensors
from torchrank import functional as F


def listnet(scores, labels, *, weights):
    """rax's softmax_loss of exp(labels): labels are multiplied by the weights, then divided by their sum."""
    if len(set(labels)) < 2 or not any(weights):
        return 0.0
    gain = {"gain": lambda label: math.exp(label - max(labels)), "normalize": True}
    return reference.softmax_loss(scores, labels, **gain, weights=weights)


def lambdarank(scores, labels, *, weights):
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


def warp(scores, labels, *, weights):
    terms = reference.warp_terms(scores, labels)
    total = math.fsum(weights[i] * price * (0.1 - scores[i] + scores[j]) for i, found, price in terms for j in found)
    return total / max(len(terms), 1)


def domination(scores, labels, *, weights):
    return reference.unique_softmax_loss(scores, labels, gain=lambda label: 1.0, weights=weights)


PLAIN = {name: getattr(reference, f"{name}_loss") for name in F.LOSSES if hasattr(reference, f"{name}_loss")}
PLAIN = {name: loss for name, loss in PLAIN.items() if "weights" in inspect.signature(loss).parameters}
PLAIN |= {"listnet": listnet, "ranknet": reference.logistic_loss, "lambdarank": lambdarank, "warp": warp}
PLAIN |= {"domination": domination}
del PLAIN["lambda"]  # whose reference takes weights of pairs: see test_soft_losses.py


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("real", [False, True])
def test_weighted_losses_are_plain_loops(name, real):
    for seed in (40, 41):
        scores, labels, offsets = random_batch(seed, real=real)
        weights = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 3.0], len(scores))
        lists = [[part[block].tolist() for part in (scores, labels, weights)] for block in blocks(offsets)]
        expected = [PLAIN[name](s, y, weights=w) for s, y, w in lists]
        found = F.LOSSES[name](*tensors(scores, labels, offsets), weights=torch.tensor(weights))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-12)


def test_the_structured_hinge_is_multiplied_by_the_mean_weight_of_relevant_entries():
    scores, labels, offsets = tensors(*random_batch(42))
    weights = torch.rand(len(scores), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, found = (F.structured_hinge(scores, labels, offsets, weights=each) for each in (None, weights))
    for value, expected, block in zip(found, plain, blocks(offsets), strict=True):
        relevant = weights[block][labels[block] >= 1]
        assert value.item() == pytest.approx(expected.item() * (relevant.mean().item() if len(relevant) else 0))

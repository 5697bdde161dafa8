"""Explanations: each part typed again in numpy, and the sum of all parts is the difference of the scores in float64."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import KERNELS, WEIGHTS, fitted, graded, judged, live, state, write
from tests.rankers.small import FEATURES, lists
from tests.reference import local_metrics as plain
from torchrank import LGMMLNet
from torchrank.rankers.lgmml.scorer import distance_forms, explain_differences, lists_of_pairs


def pairs_within(offsets, count=60, seed=0):
    """Random pairs of entries of one list, among them an entry with itself."""
    draw = np.random.default_rng(seed)
    bounds = [(a, b) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True) if b > a]
    chosen = [bounds[draw.integers(len(bounds))] for _ in range(count)]
    return torch.tensor([[0, 0], *(draw.integers(a, b, 2).tolist() for a, b in chosen)])


def check(ranker, x, offsets, **given):
    """(P, M, D) parts that sum to the difference of the scores of the same ranker in float64."""
    pairs = pairs_within(offsets)
    parts = ranker.explain(x, offsets, pairs, **given)
    wide = {name: part.double() if part.is_floating_point() else part for name, part in given.items()}
    scores = deepcopy(ranker).double()(x.double(), offsets, **wide)
    difference = scores[pairs[:, 0]] - scores[pairs[:, 1]]
    assert parts.dtype == torch.float64 and difference.abs().max() > 1e-3
    torch.testing.assert_close(parts.sum((1, 2)), difference, rtol=0, atol=1e-10)
    assert not parts[0].any()
    return pairs, parts


CHOICES = [(kernel, "shared") for kernel in KERNELS] + [
    (kernel, mode) for kernel in ("rbf", "localized") for mode in WEIGHTS if mode != "shared"
]


@pytest.mark.parametrize(("kernel", "mode"), CHOICES)
def test_parts_sum_to_the_difference(kernel, mode):
    tau = "max" if kernel in ("paper", "demo") else "median"
    ranker, test = fitted(kernel=kernel, rounds=2, tau=tau, **WEIGHTS[mode]), lists(2)
    check(ranker, test.x, test.offsets)


@pytest.mark.parametrize("kernel", plain.KERNELS)
@pytest.mark.parametrize("anchor", ["virtual", "best"])
def test_parts_are_the_shares_of_the_bilinear_form(anchor, kernel):
    """Per metric and feature, split as the squared distances are; dead features have no share."""
    train, test = graded(35, top=3), graded(36)
    ranker = fitted(train, kernel=kernel, anchor=anchor)
    write(ranker.weights, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    pairs, parts = check(ranker, test.x, test.offsets)
    own, keep = train.x.double().numpy(), live(train)
    rows = ((test.x.double().numpy() - own.mean(0))[:, keep] / own.std(0)[keep]).clip(-8, 8)  # they stay in float64
    local, weights = state(ranker, train), ranker.weights.double().numpy()
    for (a, b), found in zip(pairs.tolist()[1:], parts.numpy()[1:], strict=True):
        expected = plain.explanation(local, rows[a], rows[b], weights, kernel, 2.0)
        np.testing.assert_allclose(found[:, keep], expected, rtol=1e-6, atol=1e-9)
        assert a == b or not np.delete(found, keep, axis=1).any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_query_vectors(kernel):
    ranker, batch = fitted(judged(0), kernel=kernel, anchor="best", tau=2.0), judged(2)[:]
    check(ranker, batch.x, batch.offsets, index=batch.index, queries=batch.queries)


@pytest.mark.parametrize("kernel", plain.KERNELS)
@pytest.mark.parametrize("linear", [True, False])
def test_net(kernel, linear):
    options = {"metrics": 3, "rank": 4, "kernel": kernel, "linear": linear, "lr": 0.1}
    ranker, test = fitted(make=LGMMLNet, epochs=2, **options), lists(2)
    with torch.no_grad():
        pairs, parts = check(ranker, test.x, test.offsets)
        assert parts.shape == (len(pairs), 4, FEATURES)
        rows = ranker.transform(test.x.double(), test.offsets)
        slope = ranker.scorer.linear.double() if linear else torch.zeros(FEATURES, dtype=torch.float64)
    torch.testing.assert_close(parts[:, 3], (rows[pairs[:, 0]] - rows[pairs[:, 1]]) * slope)


def test_equal_shares_where_the_form_is_0():
    """Mirror images have the same distance; their terms may still differ, as those of another list's weights do."""
    rows = torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    factors, shifts = torch.eye(2, dtype=torch.float64)[None], torch.zeros(1, 2, dtype=torch.float64)
    terms = torch.tensor([[3.0], [1.0]], dtype=torch.float64)
    pairs = torch.tensor([[0, 1]])
    assert explain_differences(terms, distance_forms(rows, factors, shifts, pairs), pairs).tolist() == [[[1.0, 1.0]]]


def test_pairs_of_two_lists_are_refused():
    offsets = torch.tensor([0, 2, 5])
    assert lists_of_pairs(torch.tensor([[0, 1], [4, 2]]), offsets, 5).tolist() == [0, 1]
    with pytest.raises(ValueError, match="must be in one list, got lists 0 and 1 for pair 1"):
        lists_of_pairs(torch.tensor([[0, 1], [1, 2]]), offsets, 5)

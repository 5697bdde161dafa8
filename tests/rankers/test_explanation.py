"""Explanations: each part typed again in numpy, and the sum of all parts is the difference of the scores in float64."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from tests.rankers.local import WEIGHTS, fit, judged, with_queries
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import LGMMLNet
from torchrank.rankers.lgmml.explain import explain_differences, lists_of_pairs

KERNELS = ["paper", "demo", "rbf", "laplace", "distance", "localized"]


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
def test_parts_sum_to_the_difference(tmp_path, kernel, mode):
    ranker, test = fit(tmp_path, kernel=kernel, rounds=2, tau="max" if kernel in ("paper", "demo") else "median",
                       **WEIGHTS[mode]), lists(2)  # fmt: skip
    check(ranker, test.x, test.offsets)


@pytest.mark.parametrize("options", [{"anchor": "best"}, {"distance": "eq12"}, {"transform": "l2"}], ids=str)
def test_parts_are_the_shares_of_the_bilinear_form(tmp_path, options):
    ranker, test = fit(tmp_path, kernel="rbf", **options), lists(2)
    ranker.weights.copy_(torch.tensor([1.0, 0.5, 0.0, 2.0]))
    pairs, parts = check(ranker, test.x, test.offsets)
    rows = ranker.transform(test.x.double(), test.offsets).numpy()
    factors, anchors = ranker.factors.double().numpy(), ranker.anchors.double().numpy()
    tau, weights = ranker.tau.double().numpy(), ranker.weights.double().numpy()
    for (first, second), found in zip(pairs.tolist()[1:], parts[1:], strict=True):
        a, b = rows[first], rows[second]
        for r in range(4):
            metric = factors[r] @ factors[r].T
            phi = [np.exp(-((p - anchors[r]) @ metric @ (p - anchors[r])) / tau[r] ** 2) for p in (a, b)]
            form = (a - b) * (metric @ (a + b - 2 * anchors[r]))
            share = form / form.sum() if form.sum() else np.full(FEATURES, 1 / FEATURES)
            np.testing.assert_allclose(found[r], weights[r] * (phi[0] - phi[1]) * share, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_query_vectors(tmp_path, kernel):
    ranker, batch = with_queries(tmp_path, kernel=kernel, anchor="best", tau=2.0), judged(2)[:]
    check(ranker, batch.x, batch.offsets, index=batch.index, queries=batch.queries)


@pytest.mark.parametrize("kernel", KERNELS[:-1])
@pytest.mark.parametrize("linear", [True, False])
def test_net(tmp_path, kernel, linear):
    ranker, test = LGMMLNet(FEATURES, metrics=3, rank=4, kernel=kernel, linear=linear, lr=0.1), lists(2)
    trainer(tmp_path, 2).fit(ranker, datamodule=data())
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
    assert explain_differences(terms, rows, factors, shifts, torch.tensor([[0, 1]])).tolist() == [[[1.0, 1.0]]]


def test_pairs_of_two_lists_are_refused():
    offsets = torch.tensor([0, 2, 5])
    assert lists_of_pairs(torch.tensor([[0, 1], [4, 2]]), offsets, 5).tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"pair 1 is of lists \[0, 1\]"):
        lists_of_pairs(torch.tensor([[0, 1], [1, 2]]), offsets, 5)

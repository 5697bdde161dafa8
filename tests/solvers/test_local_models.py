"""Models of groups of lists against one solve at a time, and their measures against loops."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from torchrank.data.batch import make_batch
from torchrank.functional import average_precision, ndcg
from torchrank.solvers.clouds import groups as local_models
from torchrank.solvers.clouds.groups import group_models, group_similarity, measure_models
from torchrank.solvers.linear.many import join_lists


def draw(seed, lengths=(5, 8, 3, 6, 4, 7)):
    random = np.random.default_rng(seed)
    x, offsets = random.standard_normal((sum(lengths), 3)), np.concatenate([[0], np.cumsum(lengths)])
    labels = random.integers(3, size=len(x)).astype(float)
    labels[offsets[2] : offsets[3]] = 1.0  # the third list has one label
    return torch.tensor(x), torch.tensor(labels), torch.tensor(offsets)


def plain_listnet(x, labels, offsets, lists, l2):
    """Minimum over w of the mean cross entropy of the lists, by scipy."""

    def objective(w):
        total = 0.0
        for q in lists:
            rows = slice(int(offsets[q]), int(offsets[q + 1]))
            if len(np.unique(labels[rows])) > 1:
                total -= softmax(labels[rows].numpy()) @ log_softmax(x[rows].numpy() @ w)
        return total / len(lists) + l2 / 2 * w @ w

    return minimize(objective, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x


def test_each_group_has_the_model_of_its_lists():
    x, labels, offsets = draw(0)
    lists = join_lists([make_batch(x, labels, offsets)])
    weight = group_models(lists, torch.tensor([0, 1, 1, -1, 0, 1]), l2=0.1, tolerance=1e-9)
    expected = [plain_listnet(x, labels, offsets, each, 0.1) for each in ([0, 4], [1, 2, 5])]
    np.testing.assert_allclose(weight, expected, atol=1e-5)


def test_a_group_without_pairs_has_the_model_of_all_lists():
    x, labels, offsets = draw(1)
    lists = join_lists([make_batch(x, labels, offsets)])
    weight = group_models(lists, torch.tensor([0, 0, 1, 0, 0, 0]), l2=0.1, tolerance=1e-9)
    np.testing.assert_allclose(weight[1], plain_listnet(x, labels, offsets, range(6), 0.1), atol=1e-5)


def test_similarity_to_groups_is_that_of_their_nearest_member():
    similarity, labels = (
        torch.rand(7, 9, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 2, 1, -1, 2, 0, 1, 1, -1]),
    )
    found = group_similarity(similarity, labels)
    for row, best in zip(similarity.tolist(), found.tolist(), strict=True):
        assert best == [max(s for s, label in zip(row, labels.tolist(), strict=True) if label == c) for c in range(3)]
    minus = group_similarity(-similarity, labels)  # minus distances too
    assert (minus < 0).all() and (minus > -1).all()


@pytest.mark.parametrize("block", [1, 70, 2**22])
def test_measures_are_those_of_one_model_at_a_time(monkeypatch, block):
    x, labels, offsets = draw(2)
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(local_models, "BLOCK", block)
    for measure, options in ((ndcg, {"k": 3}), (average_precision, {})):
        found = measure_models(weight, x, labels, offsets, measure, **options)
        alone = [measure(x @ w, labels, offsets, **options) for w in weight]
        torch.testing.assert_close(found, torch.stack(alone, 1), equal_nan=True)

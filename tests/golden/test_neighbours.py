"""Votes of the nearest neighbours against a vote counted by hand."""

import numpy as np
import pytest
import torch

from torchrank.functional import neighbours

from . import mlr_reference as plain
from .reference import blocks

KS = [1, 2, 3, 4, 5, 7, 10, 21]


def lists(seed: int, ties: bool):
    """Lists of 1..15 entries of four classes; a query's class may be missing in its list."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 16, 60)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    scores = rng.integers(-3, 1, offsets[-1]) / 2 if ties else rng.normal(size=offsets[-1])
    return scores, rng.integers(0, 4, offsets[-1]), offsets, rng.integers(0, 4, 60)


def expected(scores, classes, offsets, query_classes, k):
    votes = [plain.vote(scores[block], classes[block], k) for block in blocks(offsets)]
    return (np.array(votes) != query_classes).astype(float)


def test_the_vote_by_hand():
    assert plain.vote(np.array([0.1, 0.9, 0.5, 0.4]), np.array([2, 0, 1, 1]), 1) == 0
    assert plain.vote(np.array([0.1, 0.9, 0.5, 0.4]), np.array([2, 0, 1, 1]), 2) == 0  # 0 and 1 have one each
    assert plain.vote(np.array([0.1, 0.9, 0.5, 0.4]), np.array([2, 0, 1, 1]), 3) == 1
    assert plain.vote(np.array([0.5, 0.5]), np.array([3, 1]), 1) == 3


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_votes(ties, dtype):
    given = lists(1, ties)
    tensors = torch.tensor(given[0], dtype=dtype), *(torch.tensor(part) for part in given[1:])
    together = neighbours.knn_error(*tensors, k=KS)
    assert together.shape == (60, len(KS))
    for column, k in enumerate(KS):
        alone = neighbours.knn_error(*tensors, k=k)
        assert alone.shape == (60,)
        np.testing.assert_array_equal(alone, expected(*given, k))
        np.testing.assert_array_equal(together[:, column], alone)


def test_a_batch_of_no_list():
    none = torch.zeros(0, dtype=torch.int64)
    offsets = torch.zeros(1, dtype=torch.int64)
    assert neighbours.knn_error(torch.zeros(0), none, offsets, none, k=3).shape == (0,)
    assert neighbours.knn_error(torch.zeros(0), none, offsets, none, k=[1, 3]).shape == (0, 2)


@pytest.mark.parametrize("k", [0, -1, [1, 0]])
def test_k_is_at_least_one(k):
    given = torch.zeros(2), torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([0])
    with pytest.raises(ValueError, match="k"):
        neighbours.knn_error(*given, k=k)

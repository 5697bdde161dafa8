"""DominationRank by coordinate descent: the minimum of the other solvers, for every form of the data."""

from itertools import pairwise

import pytest
import torch

from tests.rankers.domination.fits import corpus, recorded
from tests.rankers.small import lists
from torchrank import DominationRank

DESCENTS = [{"solver": "cd"}, {"solver": "blocked", "block": 2}]
NAMES = ["cd", "blocked"]


def fit(train, tolerance=1e-3, batch_documents=40, **options):
    """The ranker, and its objective after every round."""
    options = {"rounds": 400} | options
    ranker = DominationRank(train.x.shape[1], tolerance=tolerance, transform=None, **options)
    rounds = recorded(ranker)
    ranker.fit(train, batch_documents=batch_documents)
    return ranker, [value for value, *_ in rounds]


@pytest.mark.parametrize("penalty", [{"l1": 0.0, "l2": 4.0}, {"l1": 6.0, "l2": 1.0}])
@pytest.mark.parametrize("descent", DESCENTS, ids=NAMES)
def test_the_same_minimum_as_by_the_other_solvers(descent, penalty):
    best, values = fit(lists(0), 1e-7, **penalty)
    found, descending = fit(lists(0), **penalty, **descent)
    assert found.converged and descending[-1] == pytest.approx(values[-1], rel=1e-7)
    assert all(after <= before * (1 + 1e-13) for before, after in pairwise(descending))
    torch.testing.assert_close(found.weight, best.weight, rtol=0, atol=1e-3)
    assert torch.equal(found.weight == 0, best.weight == 0)


@pytest.mark.parametrize(
    ("shared", "sparse", "options"),
    [
        (True, True, {}),
        (False, True, {"margin": 0.5, "negatives": 0.5}),
        (True, False, {}),
        (True, True, {"induction": 9}),
    ],
)
def test_topics_in_every_form(shared, sparse, options):
    options = {"per_topic": True, "l1": 1.0, "l2": 0.5, **options}
    train = corpus("train", sparse=sparse, shared=shared)
    best, values = fit(train, 1e-6, batch_documents=100, **options)
    for descent in DESCENTS:
        found, descending = fit(train, 1e-2, batch_documents=70, **options, **descent)
        assert found.converged and descending[-1] == pytest.approx(values[-1], rel=1e-5)
        torch.testing.assert_close(found.weight, best.weight, rtol=0, atol=0.05)
        assert found.weight.any()


@pytest.mark.parametrize("descent", DESCENTS, ids=NAMES)
def test_dense_and_sparse_sweeps_are_the_same(descent):
    fits = [
        fit(corpus("train", sparse=sparse), per_topic=True, l1=0.3, rounds=3, **descent)[0] for sparse in (False, True)
    ]
    torch.testing.assert_close(fits[0].weight, fits[1].weight, rtol=1e-10, atol=1e-10)
    assert fits[0].weight.any()


@pytest.mark.parametrize("solver", NAMES)
def test_a_path_by_sweeps(solver):
    options = {"path": 3, "path_ratio": 0.1, "l2": 0.1, "tolerance": 1e-4}
    best, found = (fit(lists(0), solver=each, **options)[0] for each in ("fista", solver))
    torch.testing.assert_close(found.weight, best.weight, rtol=0, atol=1e-4)

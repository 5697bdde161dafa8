"""Dead features, units of any size, equal documents, and sampled steps with query vectors."""

import numpy as np
import pytest
import torch

from torchrank import LGMML, LGMMLNet, RankingSet
from torchrank import functional as F

from .local_fits import DEAD, FEATURES, first_round, graded, run, scores_of, state
from .test_lgmml_queries import with_queries

pytestmark = pytest.mark.filterwarnings("ignore:Total length of")


@pytest.mark.parametrize("transform", [None, "l2"])
@pytest.mark.parametrize("make", [
    lambda transform: LGMML(FEATURES, 4, 3, rounds=3, weights="amortized", transform=transform),
    lambda transform: LGMMLNet(FEATURES, metrics=4, closed_form={"queries_per_metric": 3}, transform=transform),
], ids=["amortized", "net"])  # fmt: skip
def test_a_feature_that_was_constant_in_training_is_ignored(make, transform):
    train, test = graded(14), graded(15)
    changed = RankingSet(test.x.clone(), test.labels, test.offsets)
    changed.x[:, DEAD] = 10
    ranker = run(make(transform), train, 3)
    np.testing.assert_array_equal(scores_of(ranker, changed), scores_of(ranker, test))


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_the_unit_of_all_features_whatever_its_size(scale):
    similar, dissimilar = torch.diag(torch.tensor([1.0, 2.0])).double(), torch.diag(torch.tensor([4.0, 2.0])).double()
    expected = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(F.gmml(scale * similar, scale * dissimilar), expected, rtol=1e-12, atol=1e-12)


def test_lists_of_equal_documents_give_euclid():
    """Both scatters are 0 and get the same, smallest ridge: M = I."""
    rng = np.random.default_rng(0)
    x = torch.tensor(np.repeat(rng.normal(size=(5, 3)), 6, axis=0), dtype=torch.float32)
    train = RankingSet(x, torch.tensor([1.0, 1, 0, 0, 0, 1] * 5), torch.arange(0, 31, 6))
    for metric in state(first_round(train), train).metrics:
        np.testing.assert_allclose(metric, np.eye(3), atol=1e-6)


def test_sampled_steps_with_query_vectors():
    """phi_r(p) = -w_r(q) ||p - q||_r^2: linear in the shared weights."""
    train = with_queries(62)
    options = {"metrics": 4, "queries_per_metric": 2, "kernel": "localized", "anchor": "best", "mode": "sgd"}
    ranker = run(LGMML(5, rounds=3, **options), train, 3)
    assert (ranker.weights != 1).any()

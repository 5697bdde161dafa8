"""SingleFeature against brute force over all features and signs."""

import pytest
import torch

from tests.rankers.small import FEATURES, lists
from torchrank import RankingSet, SingleFeature
from torchrank.functional import ndcg


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_single_feature_is_the_best_of_all_features_and_signs(k):
    for seed in range(4):
        train = lists(seed, noise=2.0)
        x = torch.cat([train.x, train.x.flip(1)], 1)  # twins: of equal ones the first
        ranker = SingleFeature(2 * FEATURES, k=k).fit(RankingSet(x, train.labels, train.offsets), batch_documents=30)
        values = [
            float(ndcg(sign * column.double(), train.labels, train.offsets, k=k, ties="average").nansum())
            for sign in (1, -1)
            for column in x.T
        ]
        best = max(range(len(values)), key=lambda place: (round(values[place], 9), -place))
        assert (int(ranker.feature), int(ranker.sign)) == (best % (2 * FEATURES), 1 - 2 * (best // (2 * FEATURES)))
        torch.testing.assert_close(ranker(x, train.offsets), ranker.sign * x[:, ranker.feature])

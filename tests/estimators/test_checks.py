"""scikit-learn's own checks of estimators."""

import pytest
from sklearn.utils.estimator_checks import check_estimator

from torchrank import MetricEstimator, RankingEstimator


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [
        RankingEstimator("listnet"),
        RankingEstimator("lgmml", rounds=1),
        RankingEstimator("svmmap", eps=0.1),
        MetricEstimator("metric_baseline"),
        MetricEstimator("mlr", eps=0.5, rounds=5),
        MetricEstimator("gmml", t=0.5, ridge=0.1, kappa=1.0),
        MetricEstimator("lgmml_query", metrics=4),
    ],
    ids=lambda each: each.model,
)
def test_the_checks_of_scikit_learn(estimator):
    assert len(check_estimator(estimator, on_skip=None)) > 40

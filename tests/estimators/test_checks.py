"""scikit-learn's own checks of estimators."""

import pytest
from sklearn.utils.estimator_checks import check_estimator

from torchrank import MetricEstimator, RankingEstimator

PER_LIST = {
    "check_methods_subset_invariance": "features are scaled within each list, and a part of the rows is another list"
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "contradictions"),
    [
        (RankingEstimator("listnet"), {}),
        (RankingEstimator("lgmml", rounds=1), {}),
        (RankingEstimator("svmmap", eps=0.1), PER_LIST),
        (MetricEstimator("metric_baseline"), {}),
        (MetricEstimator("mlr", eps=0.5, rounds=5), {}),
        (MetricEstimator("gmml", t=0.5, ridge=0.1, kappa=1.0), {}),
        (MetricEstimator("lgmml_query", metrics=4), {}),
    ],
    ids=lambda each: getattr(each, "model", ""),
)
def test_the_checks_of_scikit_learn(estimator, contradictions):
    found = check_estimator(estimator, expected_failed_checks=contradictions, on_skip=None)
    assert len(found) > 40
    assert {each["check_name"] for each in found if each["status"] == "xfail"} == contradictions.keys()

"""Rankers behind the interface of scikit-learn: `RankingEstimator` for lists, `MetricEstimator` for classes."""

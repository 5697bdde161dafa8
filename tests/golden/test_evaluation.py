"""`RankingMetrics` against the transcriptions: any batches, values per query, lists without a value left out."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from torchrank.rankers.core.evaluation import RankingMetrics

from . import reference

MEASURES = ["ndcg@1", "ndcg@5", "ndcg", "map", "mrr", "p@5", "auc"]


def values_of(scores, labels, offsets):
    """(Q,) per measure, by the transcriptions; nan is left out of the mean."""
    return {
        "ndcg@1": reference.per_list(reference.ndcg, scores, labels, offsets, k=1),
        "ndcg@5": reference.per_list(reference.ndcg, scores, labels, offsets, k=5),
        "ndcg": reference.per_list(reference.ndcg, scores, labels, offsets),
        "map": reference.per_list(reference.average_precision, scores, labels, offsets),
        "mrr": reference.per_list(reference.reciprocal_rank, scores, labels, offsets),
        "p@5": reference.per_list(reference.precision, scores, labels, offsets, k=5),
        "auc": reference.per_list(reference.auc, scores, labels, offsets),
    }


def pieces(scores, labels, offsets, cuts):
    """The lists cuts[i]:cuts[i+1] as batches of their own, with their positions; equal cuts give an empty batch."""
    for first, last in pairwise(cuts):
        begin, end = offsets[first], offsets[last]
        yield (
            torch.tensor(scores[begin:end]),
            torch.tensor(labels[begin:end]),
            torch.tensor(offsets[first : last + 1] - begin),
            torch.arange(first, last),
        )


CUTS = {
    "one batch": [0, 60],
    "one list at a time": list(range(61)),
    "uneven, some empty": [0, 0, 1, 7, 7, 40, 59, 60, 60],
}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_means_do_not_depend_on_the_batches(cuts):
    batch = reference.random_batch(50)
    metric = RankingMetrics(MEASURES)
    for scores, labels, offsets, _ in pieces(*batch, cuts):
        metric.update(scores, labels, offsets)
    result = metric.compute()
    assert list(result) == MEASURES
    for name, values in values_of(*batch).items():
        assert float(result[name]) == pytest.approx(np.nanmean(values), abs=1e-12), name


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_values_of_each_query_stand_at_its_position(cuts):
    """Batches arrive in reverse; nan where a list has no value."""
    batch = reference.random_batch(51)
    metric = RankingMetrics(MEASURES, num_queries=60)
    for scores, labels, offsets, query in reversed(list(pieces(*batch, cuts))):
        metric.update(scores, labels, offsets, query=query)
    kept, means = metric.per_query(), metric.compute()
    for name, values in values_of(*batch).items():
        assert kept[name].shape == (60,)
        np.testing.assert_allclose(kept[name].numpy(), values, rtol=0, atol=1e-12, err_msg=name)
        assert float(means[name]) == pytest.approx(np.nanmean(values), abs=1e-12)


def test_queries_never_seen_are_nan():
    scores, labels, offsets = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), torch.tensor([0, 2])
    metric = RankingMetrics(["ndcg", "map"], num_queries=4)
    metric.update(scores, labels, offsets, query=torch.tensor([2]))
    np.testing.assert_array_equal(metric.per_query()["ndcg"].numpy(), [np.nan, np.nan, 1.0, np.nan])
    assert float(metric.compute()["map"]) == 1.0


def test_letor_counts_lists_without_relevant_entries_as_zero():
    # One perfect list, one with nothing relevant: LETOR averages 1 and 0, the default leaves the second out.
    batch = torch.tensor([2.0, 1.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 2, 4])
    means = {}
    for name in ("default", "letor", "lightgbm"):
        metric = RankingMetrics(["ndcg@2", "map"], name)
        metric.update(*batch)
        means[name] = {key: float(value) for key, value in metric.compute().items()}
    assert means["default"] == {"ndcg@2": 1.0, "map": 1.0}
    assert means["letor"] == {"ndcg@2": 0.5, "map": 0.5}
    assert means["lightgbm"] == {"ndcg@2": 1.0, "map": 1.0}


@pytest.mark.parametrize("name", ["default", "letor", "lightgbm"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_lists_and_empty_lists_are_counted(cuts, name):
    """Whatever a convention makes of them: all lists without a relevant entry, those without any entry among them."""
    batch = reference.random_batch(55)
    metric = RankingMetrics(["ndcg@5", "map"], name)
    for scores, labels, offsets, _ in pieces(*batch, cuts):
        metric.update(scores, labels, offsets)
    metric.compute()
    empty = sum(not np.any(batch[1][block] >= 1) for block in reference.blocks(batch[2]))
    assert 0 < empty < 60
    assert (metric.lists, metric.empty) == (60, empty)


def test_threshold_and_max_label_reach_the_measures():
    batch = reference.random_batch(52)
    metric = RankingMetrics(["map", "err@5"], threshold=2, max_label=4)
    metric.update(*(torch.tensor(part) for part in batch))
    expected = reference.per_list(reference.average_precision, *batch, threshold=2)
    assert float(metric.compute()["map"]) == pytest.approx(np.nanmean(expected), abs=1e-12)
    expected = reference.per_list(reference.err, *batch, k=5, max_label=4)
    assert float(metric.compute()["err@5"]) == pytest.approx(np.nanmean(expected), abs=1e-12)


def test_reset_forgets():
    first, second = reference.random_batch(53), reference.random_batch(54)
    metric = RankingMetrics(MEASURES, num_queries=60)
    for batch in (first, second):
        metric.reset()
        metric.update(*(torch.tensor(part) for part in batch), query=torch.arange(60))
    for name, values in values_of(*second).items():
        assert float(metric.compute()[name]) == pytest.approx(np.nanmean(values), abs=1e-12)
        np.testing.assert_allclose(metric.per_query()[name].numpy(), values, rtol=0, atol=1e-12)


def test_float32_scores_lose_nothing_in_the_sum():
    """100,000 lists whose NDCG is 1/log2(3): a float32 running sum would drift in the fifth digit."""
    lists, value = 100_000, 1 / np.log2(3)
    metric = RankingMetrics(["ndcg"])
    scores, labels = torch.tensor([1.0, 2.0]).repeat(lists // 100), torch.tensor([1.0, 0.0]).repeat(lists // 100)
    for _ in range(100):
        metric.update(scores, labels, torch.arange(0, 2 * (lists // 100) + 1, 2))
    assert float(metric.compute()["ndcg"]) == pytest.approx(value, abs=5e-8)


def test_nothing_but_empty_lists_has_no_mean():
    metric = RankingMetrics(["ndcg", "map"])
    metric.update(torch.zeros(3), torch.zeros(3), torch.tensor([0, 2, 2, 3]))
    assert all(np.isnan(float(value)) for value in metric.compute().values())
